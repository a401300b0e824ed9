"""A folder at a URL, by fsspec: its objects by their names below it. Errors of the storage's own library become
InputError and RunFailed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from isojax.core.atomic_files import write_bytes
from isojax.core.errors import InputError, RunFailed

T = TypeVar("T")
CONNECT_TIMEOUT = 20.0  # seconds to wait for storage to answer, before any work


class RemoteFolder:
    """A folder (or a file) at a URL; names are relative to it."""

    def __init__(self, url: str):
        """Raises InputError where fsspec, or this machine, does not know the protocol."""
        from fsspec.core import url_to_fs
        from fsspec.implementations.local import LocalFileSystem
        from fsspec.registry import known_implementations

        protocol, self.url, self._timeout = url.partition("://")[0], url, CONNECT_TIMEOUT
        options = {"auto_mkdir": True} if protocol in ("file", "local") else {}
        started_at = time.monotonic()
        try:
            self._fs, self._root = self._run_with_timeout(lambda: url_to_fs(url, **options))
        except ImportError as e:
            package = known_implementations.get(protocol, {}).get("class", protocol).partition(".")[0]
            raise InputError(
                f"{url}: {e}; expected a package that reads {protocol}://. Run: pip install {package}"
            ) from e
        except Exception as e:  # each library has errors of its own
            raise self._access_error(e) from e
        # What the search for credentials has left of one limit.
        self._timeout = max(CONNECT_TIMEOUT / 5, CONNECT_TIMEOUT - (time.monotonic() - started_at))
        self._is_disk = isinstance(self._fs, LocalFileSystem)

    def call_with_timeout(self, operation: Callable[[], T]) -> T:
        """The result of an operation before any work; InputError where it fails, or takes too long."""
        try:
            result = self._run_with_timeout(operation)
        except Exception as e:  # each library has errors of its own
            raise self._access_error(e) from e
        self._timeout = CONNECT_TIMEOUT
        return result

    def _run_with_timeout(self, operation: Callable[[], T]) -> T:
        """The result of an operation; TimeoutError where it takes too long."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(operation())
            except Exception as e:  # for `result` to raise
                future.set_exception(e)

        threading.Thread(target=run, daemon=True).start()
        return future.result(self._timeout)

    def _access_error(self, error: Exception) -> InputError:
        reason = (
            f"no answer within {CONNECT_TIMEOUT:g} seconds" if isinstance(error, TimeoutError) else error_summary(error)
        )
        return InputError(
            f"cannot use {self.url}: {reason}. Expected a place that exists and that you may write: check its name, the"
            " network and your credentials, or give another run.dir."
        )

    def find(self) -> set[str]:
        """The names of all objects; of a file, an empty name. Raises InputError."""

        def list_paths() -> list[str]:
            self._fs.invalidate_cache()
            return self._fs.find(self._root)

        paths = self.call_with_timeout(list_paths)
        return {name.removeprefix(self._root).removeprefix("/") for name in paths if not name.endswith("/")}

    def get(self, pairs: Sequence[tuple[str, Path]]) -> None:
        """Copies objects to files. Raises InputError."""
        try:
            self._fs.get([self._full_path(name) for name, _ in pairs], [str(path) for _, path in pairs])
        except Exception as e:  # each library has errors of its own
            raise InputError(
                f"cannot read {self.url}: {error_summary(e)}. Check the network and your credentials, and try again."
            ) from e

    def read(self, name: str) -> bytes | None:
        """An object; None where there is none. Raises what the library raises."""
        try:
            return self._fs.cat_file(self._full_path(name))
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """A small object, whole or not at all. This and all that follow raise what the library raises."""
        if self._is_disk:
            write_bytes(Path(self._full_path(name)), data)
        else:
            self._fs.pipe_file(self._full_path(name), data)

    def put(self, name: str, file: Path) -> None:
        """A file, whole or not at all."""
        if self._is_disk:
            self.write(name, file.read_bytes())
        else:
            self._fs.put_file(str(file), self._full_path(name))

    def put_all(self, pairs: Iterable[tuple[str, Path]]) -> None:
        """Many files at once; a kill may leave some of them, and a part of one."""
        remote_paths, local_paths = zip(*((self._full_path(name), str(path)) for name, path in pairs), strict=True)
        self._fs.put(list(local_paths), list(remote_paths))

    def list_folder(self, folder: str) -> set[str]:
        """The names of a folder's files and folders."""
        self._fs.invalidate_cache()
        return {path.rstrip("/").rpartition("/")[2] for path in self._fs.ls(self._full_path(folder), detail=False)}

    def remove(self, name: str) -> None:
        """An object, or a folder with all in it, where there is one."""
        self._fs.invalidate_cache()
        if self._fs.exists(self._full_path(name)):
            self._fs.rm(self._full_path(name), recursive=True)

    @contextmanager
    def translate_write_errors(self) -> Iterator[None]:
        """RunFailed for whatever goes wrong while a run writes."""
        try:
            yield
        except RunFailed:
            raise
        except Exception as e:  # each library has errors of its own
            raise RunFailed(
                f"cannot write to {self.url}: {error_summary(e)}. What was recorded there is whole; solve that, and"
                " continue with --resume."
            ) from e

    def _full_path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root


def error_summary(error: Exception) -> str:
    """An error in one line."""
    message = " ".join(str(error).split())[:300].removesuffix(".")
    return (
        message
        if isinstance(error, InputError | RunFailed)
        else ": ".join(filter(None, (type(error).__name__, message)))
    )
