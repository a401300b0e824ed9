"""A folder at a URL, by fsspec: its objects by their names below it."""

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from isojax.core.atomic_files import write_bytes
from isojax.core.errors import InputError, RunFailed

T = TypeVar("T")
CONNECT_TIMEOUT = 20.0  # seconds to wait for storage to answer, before any work


class RemoteFolder:
    """A folder (or a file) at a URL; names are relative to it. Methods raise what the storage's library raises."""

    def __init__(self, url: str):
        """Raises InputError where fsspec, or this machine, does not know the protocol."""
        from fsspec.core import url_to_fs
        from fsspec.implementations.local import LocalFileSystem

        self.url = url
        options = {"auto_mkdir": True} if url.startswith(("file://", "local://")) else {}
        self._fs, self._root = self.call_with_timeout(lambda: url_to_fs(url, **options))
        self._is_disk = isinstance(self._fs, LocalFileSystem)

    def call_with_timeout(self, operation: Callable[[], T]) -> T:
        """The result of an operation before any work; InputError where it fails, or takes too long."""
        try:
            return run_in_thread(operation).result(CONNECT_TIMEOUT)
        except Exception as e:  # each library has errors of its own
            is_timeout = isinstance(e, TimeoutError)
            reason = f"no answer within {CONNECT_TIMEOUT:g} seconds" if is_timeout else error_summary(e)
            raise InputError(
                f"cannot use {self.url}: {reason}. Expected a place that exists and that you may write: check its name,"
                " the network and your credentials, or give another run.dir."
            ) from e

    def find(self) -> set[str]:
        """The names of all objects; of a file, an empty name. Raises InputError."""
        self._fs.invalidate_cache()
        paths: list[str] = self.call_with_timeout(lambda: self._fs.find(self._root))
        return {name.removeprefix(self._root).removeprefix("/") for name in paths if not name.endswith("/")}

    def get(self, pairs: Sequence[tuple[str, Path]]) -> None:
        """Copy objects to files. Raises InputError."""
        try:
            self._fs.get([self._full_path(name) for name, _ in pairs], [str(path) for _, path in pairs])
        except Exception as e:  # each library has errors of its own
            raise InputError(
                f"cannot read {self.url}: {error_summary(e)}. Check the network and your credentials, and try again."
            ) from e

    def read(self, name: str) -> bytes | None:
        """An object; None where there is none."""
        try:
            return self._fs.cat_file(self._full_path(name))
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Write an object, whole or not at all."""
        if self._is_disk:
            write_bytes(Path(self._full_path(name)), data)
        else:
            self._fs.pipe_file(self._full_path(name), data)

    def put_all(self, pairs: Iterable[tuple[str, Path]]) -> None:
        """Write many files at once; a kill may leave some of them, and a part of one."""
        remote_paths, local_paths = zip(*((self._full_path(name), str(path)) for name, path in pairs), strict=True)
        self._fs.put(list(local_paths), list(remote_paths))

    def list_folder(self, folder: str) -> set[str]:
        """The names of a folder's files and folders."""
        self._fs.invalidate_cache()
        return {path.rstrip("/").rpartition("/")[2] for path in self._fs.ls(self._full_path(folder), detail=False)}

    def remove(self, name: str) -> None:
        """Remove an object, or a folder with all in it, where there is one."""
        self._fs.invalidate_cache()
        if self._fs.exists(self._full_path(name)):
            self._fs.rm(self._full_path(name), recursive=True)

    def _full_path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root


def run_in_thread(operation: Callable[[], T]) -> Future[T]:
    """An operation in a thread that does not keep the process from ending."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(operation())
        except BaseException as e:  # for `result` to raise
            future.set_exception(e)

    threading.Thread(target=run, daemon=True).start()
    return future


def error_summary(error: Exception) -> str:
    """An error in one line."""
    message = " ".join(str(error).split())[:300].removesuffix(".")
    if isinstance(error, InputError | RunFailed):
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
