"""One writer at a time for a folder on a disk, by a lock on the file `.lock` in it."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isojax.core.errors import InputError

LOCK_FILE = ".lock"


class FolderLocked(InputError):
    """Another process writes to a folder."""


@contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Make the folder if need be, and hold it; InputError where it cannot be written, FolderLocked where another
    process writes to it. NFS keeps locks on files for all its clients, locks on folders for none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock_fd = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as e:
        raise InputError(
            f"cannot make the folder {folder}, or write in it: {e.strerror or e}. Choose a place that you may write."
        ) from e
    try:
        if not try_flock(lock_fd, fcntl.LOCK_EX):
            time.sleep(0.1)  # `isojax status` may have been looking
            if not try_flock(lock_fd, fcntl.LOCK_EX):
                raise FolderLocked(
                    f"{folder} is being written by another process; wait for it, stop it, or choose another name=NAME."
                    " If that process was on a machine that is lost, a file server may keep its lock for a while; then"
                    f" remove {folder / LOCK_FILE}."
                )
        yield
    finally:
        os.close(lock_fd)


def is_locked(folder: Path) -> bool:
    """Whether a process is writing to the folder, as far as this machine can tell."""
    try:
        lock_fd = os.open(folder / LOCK_FILE, os.O_RDONLY)
    except OSError:  # no process ever was
        return False
    try:
        return not try_flock(lock_fd, fcntl.LOCK_SH)
    finally:
        os.close(lock_fd)


def try_flock(lock_fd: int, lock_type: int) -> bool:
    """Whether a lock of this kind (fcntl.LOCK_EX or LOCK_SH) could be taken on an open file."""
    try:
        fcntl.flock(lock_fd, lock_type | fcntl.LOCK_NB)
    except OSError as e:
        return not isinstance(e, BlockingIOError)  # another error: a file system without locks
    return True
