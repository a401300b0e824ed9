"""A folder at a URL, by fsspec: its objects by their names below it. What the storage's own library says is told in isojax's words."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from isojax.files import write_bytes
from isojax.types import InputError, RunFailed

T = TypeVar("T")
REACH = 20.0  # seconds until storage that does not answer is given up, before any work


class Remote:
    """A folder (or a file) at a URL; names are relative to it."""

    def __init__(self, url: str):
        """Raises InputError where fsspec, or this machine, does not know the protocol."""
        from fsspec.core import url_to_fs
        from fsspec.implementations.local import LocalFileSystem
        from fsspec.registry import known_implementations

        protocol, self.url, self._patience = url.partition("://")[0], url, REACH
        options = {"auto_mkdir": True} if protocol in ("file", "local") else {}
        begun = time.monotonic()
        try:
            self._fs, self._root = self._soon(lambda: url_to_fs(url, **options))
        except ImportError as e:
            package = known_implementations.get(protocol, {}).get("class", protocol).partition(".")[0]
            raise InputError(f"{url}: {e}; expected a package that reads {protocol}://. Run: pip install {package}") from e
        except Exception as e:  # each library has errors of its own
            raise self._refusal(e) from e
        self._patience = max(REACH / 5, REACH - (time.monotonic() - begun))  # of one limit, what looking for credentials has left
        self._is_disk = isinstance(self._fs, LocalFileSystem)

    def first(self, do: Callable[[], T]) -> T:
        """What is done at the URL before any work; InputError where it fails, or takes long."""
        try:
            found = self._soon(do)
        except Exception as e:  # each library has errors of its own
            raise self._refusal(e) from e
        self._patience = REACH
        return found

    def _soon(self, do: Callable[[], T]) -> T:
        """What `do` gives; TimeoutError where that takes too long."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(do())
            except Exception as e:  # for `result` to raise
                done.set_exception(e)

        threading.Thread(target=run, daemon=True).start()
        return done.result(self._patience)

    def _refusal(self, error: Exception) -> InputError:
        said = f"no answer within {REACH:g} seconds" if isinstance(error, TimeoutError) else brief(error)
        return InputError(
            f"cannot use {self.url}: {said}. Expected a place that exists and that you may write: check its name, the network and "
            "your credentials, or give another run.dir."
        )

    def find(self) -> set[str]:
        """The names of all objects; of a file, an empty name. Raises InputError."""

        def names() -> list[str]:
            self._fs.invalidate_cache()
            return self._fs.find(self._root)

        found = self.first(names)
        return {name.removeprefix(self._root).removeprefix("/") for name in found if not name.endswith("/")}

    def get(self, pairs: Sequence[tuple[str, Path]]) -> None:
        """Copies objects to files. Raises InputError."""
        try:
            self._fs.get([self._at(name) for name, _ in pairs], [str(path) for _, path in pairs])
        except Exception as e:  # each library has errors of its own
            raise InputError(f"cannot read {self.url}: {brief(e)}. Check the network and your credentials, and try again.") from e

    def read(self, name: str) -> bytes | None:
        """An object; None where there is none. Raises what the library raises."""
        try:
            return self._fs.cat_file(self._at(name))
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """A small object, whole or not at all. This and all that follow raise what the library raises."""
        if self._is_disk:
            write_bytes(Path(self._at(name)), data)
        else:
            self._fs.pipe_file(self._at(name), data)

    def put(self, name: str, file: Path) -> None:
        """A file, whole or not at all."""
        if self._is_disk:
            self.write(name, file.read_bytes())
        else:
            self._fs.put_file(str(file), self._at(name))

    def put_all(self, pairs: Iterable[tuple[str, Path]]) -> None:
        """Many files at once; a kill may leave some of them, and a part of one."""
        there, here = zip(*((self._at(name), str(path)) for name, path in pairs), strict=True)
        self._fs.put(list(here), list(there))

    def names(self, folder: str) -> set[str]:
        """What lies in a folder, files and folders."""
        self._fs.invalidate_cache()
        return {path.rstrip("/").rpartition("/")[2] for path in self._fs.ls(self._at(folder), detail=False)}

    def remove(self, name: str) -> None:
        """An object, or a folder with all in it, where there is one."""
        self._fs.invalidate_cache()
        if self._fs.exists(self._at(name)):
            self._fs.rm(self._at(name), recursive=True)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """RunFailed for whatever goes wrong while a run writes."""
        try:
            yield
        except RunFailed:
            raise
        except Exception as e:  # each library has errors of its own
            raise RunFailed(
                f"cannot write to {self.url}: {brief(e)}. What was recorded there is whole; mend that, and go on by --resume."
            ) from e

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root


def brief(error: Exception) -> str:
    """An error in a line."""
    said = " ".join(str(error).split())[:300].removesuffix(".")
    return said if isinstance(error, InputError | RunFailed) else ": ".join(filter(None, (type(error).__name__, said)))
