"""One writer at a time for a folder: on a disk by a lock on the file `.lock` in it; at a URL by the object `.lock`
there, which names the holder, who renews it while alive."""

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from isojax.core.errors import InputError, RunFailed
from isojax.core.terminal import note
from isojax.runs.object_store import RemoteFolder

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


LOCK_OBJECT = ".lock"
RENEW_SECONDS = 10.0  # seconds between two renewals
STALE_SECONDS = 60.0  # seconds without a renewal after which another process may take the lease


class Lease:
    """The right to write, as a context. Entering may wait until a process that was killed counts as dead; InputError
    where another process writes."""

    def __init__(self, remote: RemoteFolder):
        self._remote, self._closed, self._taken_over_by, self._renewed_at = remote, threading.Event(), "", 0.0
        self._renew_thread = threading.Thread(target=self._renew_loop, daemon=True)
        self._identity = {"host": _host_id(), "pid": os.getpid(), "token": uuid4().hex}

    def __enter__(self) -> Self:
        self._wait_for_holder()
        self._remote.call_with_timeout(self._write_lock)
        self._remote.call_with_timeout(self._check_holder)
        if self._taken_over_by:
            raise self._locked_error(self._taken_over_by)
        self._renew_thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._renew_thread.join(RENEW_SECONDS)
        with suppress(Exception):  # without removal it grows stale
            if not self._taken_over_by:
                self._remote.remove(LOCK_OBJECT)

    def check(self) -> None:
        """RunFailed where another process has taken the lease; a process that was frozen looks at the URL first."""
        if time.time() - self._renewed_at > STALE_SECONDS:
            self._check_holder()
        if self._taken_over_by:
            raise RunFailed(
                f"{self._remote.url} was taken over by {self._taken_over_by}, because this process did not renew its"
                f" lease for {STALE_SECONDS:.0f} seconds; this one ends."
            )

    def _wait_for_holder(self) -> None:
        """Wait until no process writes; InputError where the holder renews its lease meanwhile."""
        first_lock = self._remote.call_with_timeout(self._read_lock)
        if first_lock is None or _holder_is_dead(first_lock) or _is_stale(first_lock):
            return
        holder = _holder_name(first_lock)
        note(f"waiting to see whether {holder}, which has written to {self._remote.url}, is alive")
        lock: dict[str, Any] | None = first_lock
        while lock is not None and not _is_stale(lock):
            if lock != first_lock:
                raise self._locked_error(_holder_name(lock))
            time.sleep(1)
            lock = self._remote.call_with_timeout(self._read_lock)

    def _locked_error(self, holder: str) -> InputError:
        return InputError(
            f"{self._remote.url} is being written by {holder}; expected one writer at a time. Wait for it, stop it, or"
            " choose another name=NAME."
        )

    def _read_lock(self) -> dict[str, Any] | None:
        data = self._remote.read(LOCK_OBJECT)
        return None if data is None else json.loads(data)

    def _write_lock(self) -> None:
        now = time.time()
        self._remote.write(LOCK_OBJECT, json.dumps(self._identity | {"time": now}).encode())
        self._renewed_at = now

    def _check_holder(self) -> None:
        if (lock := self._read_lock()) is not None and lock["token"] != self._identity["token"]:
            self._taken_over_by = _holder_name(lock)

    def _renew_loop(self) -> None:
        while not self._taken_over_by and not self._closed.wait(RENEW_SECONDS):
            with suppress(Exception):  # the next renewal may succeed; the run's own writes report storage that is lost
                self._check_holder()
                if not self._taken_over_by:
                    self._write_lock()


def _host_id() -> str:
    """This machine; each container counts as one."""
    with suppress(OSError):
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def _holder_name(lock: dict[str, Any]) -> str:
    return f"process {lock['pid']} on {lock['host'].partition(' ')[0]}"


def _is_stale(lock: dict[str, Any]) -> bool:
    return time.time() - lock["time"] >= STALE_SECONDS


def _holder_is_dead(lock: dict[str, Any]) -> bool:
    """Whether the holder was a process of this machine that has ended."""
    if lock["host"] != _host_id():
        return False
    try:
        os.kill(lock["pid"], 0)
    except OSError as e:
        return isinstance(e, ProcessLookupError)
    return False
