"""Files and folders written whole or not at all, and files appended to or read."""

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from isojax.core.errors import InputError, RunFailed
from isojax.core.limits import MAX_DOCUMENT_BYTES
from isojax.core.mirrored_folders import MIRRORED_FOLDERS

TEMP_CHARACTERS = 200  # of its name that a temporary file has: file systems take 255 bytes
DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_text(path: Path, text: str) -> None:
    """`write_bytes` of a text in UTF-8."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a whole file or nothing, and make its folder.

    A reader, or a kill, sees the old content or the new. RunFailed where the disk is full,
    InputError where the file cannot be written for another reason. Then folders that were made for
    it stay.
    """
    # In the file's folder, as only within a file system a rename is one step. The process's id
    # keeps it apart from that of another process.
    temp = path.with_name(f".{path.name[:TEMP_CHARACTERS]}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_to_disk(temp, "wb", data)
        os.replace(temp, path)
    except OSError as e:
        with suppress(OSError):
            temp.unlink(missing_ok=True)
        raise write_error(path, e) from e

    MIRRORED_FOLDERS.on_write(path)  # copies it elsewhere where its folder is mirrored


def open_file(path: Path) -> BinaryIO:
    """A file to read.

    A pipe that nobody writes to is empty, where `open` would wait for a writer.
    """

    def open_without_waiting(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK)

    file = open(path, "rb", opener=open_without_waiting)  # noqa: SIM115 - the caller closes it
    os.set_blocking(file.fileno(), True)  # A read waits again, for the rest of a pipe.
    return file


def read_file(path: Path) -> bytes:
    """All bytes of a file; of a device, which may have no end, those of a document."""
    with open_file(path) as file:
        return file.read() if path.is_file() else file.read(MAX_DOCUMENT_BYTES)


def append_bytes(path: Path, data: bytes) -> None:
    """Add to a file in one call, and force it to disk; errors as of `write_bytes`.

    A kill or a full disk may leave a part of it.
    """
    try:
        _write_to_disk(path, "ab", data)
    except OSError as e:
        raise write_error(path, e) from e

    MIRRORED_FOLDERS.on_write(path)


def _write_to_disk(path: Path, mode: str, data: bytes) -> None:
    with path.open(mode) as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which takes its name when the context ends without an error.

    The context gives the path of an empty folder under another name: write to that one. `folder`
    must not be there yet, or be empty.

    InputError where it cannot be written. After any error nothing of it is left, nor of the folders
    above it that were made for it.
    """
    folder = folder.absolute()
    # In the same parent, as only within a file system a rename is one step. The process's id keeps
    # it apart from that of another process.
    temp = folder.with_name(f".{folder.name[:TEMP_CHARACTERS]}.{os.getpid()}")
    new_parents = [parent for parent in folder.parents if not parent.exists()]  # the nearest first

    try:
        temp.mkdir(parents=True)
        yield temp
        os.rename(temp, folder)
    except OSError as e:
        raise InputError(
            where=folder,
            found=f"cannot be written: {e.strerror or e}",
            fix="Choose a place that you may write, with room for it.",
        ) from e
    finally:
        shutil.rmtree(temp, ignore_errors=True)  # which is gone where it got its name
        _remove_empty(new_parents)  # none of which is empty if `folder` is there


def _remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders, the innermost first, up to the first that holds something."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def write_error(path: Path, error: OSError) -> InputError | RunFailed:
    """The error for a file that cannot be written: RunFailed where the disk is full."""
    reason = error.strerror or error
    if error.errno in DISK_FULL_ERRNOS:
        return RunFailed(
            f"cannot write {path}: {reason}. What was written before is whole; "
            "make room, and continue with --resume."
        )
    return InputError(
        where=path,
        found=f"cannot be written: {reason}",
        fix="Choose a place that you may write.",
    )
