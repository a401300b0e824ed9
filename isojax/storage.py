"""Where a sweep's folder lies: on a disk, or at a URL that fsspec knows (gs://bucket/runs, s3://..., file://...).

With `run.dir` a URL, a run works in a scratch folder of its machine, and whatever it writes there is put to the URL in the same order:
a ledger before the state that is past its points, a state's mark after all its files. So what is found at the URL after a kill at any
instant is what a kill could have left on a disk, and `--resume` on any machine goes on from it to the same bits. An object store puts
whole objects or nothing; on a disk a file is replaced by renaming. No jax here.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from isojax.claim import Claim
from isojax.files import WRITTEN
from isojax.remote import Remote
from isojax.types import InputError, RunFailed

STATES, BEGUN, WHOLE = "checkpoint", "begun", ".whole"  # a cell's states; that it keeps some; the mark of a whole one, checkpoint/16.whole
RAY = "ray://"  # not storage
HELD = ".lock"  # the file in a folder that its writer holds
MIRRORS: list[Mirror] = []  # of this process


class Busy(InputError):
    """Another process writes to a folder."""


def is_url(text: str) -> bool:
    """Whether a place is written as a URL."""
    return re.match(r"[a-z][a-z0-9+.-]*://", text) is not None


def folder_of(run_dir: str, name: str) -> Path:
    """The folder that a sweep works in: run_dir/name, or its mirror where `run_dir` is a URL.

    Raises:
        InputError: a URL that no `working` mirrors.
    """
    if not is_url(run_dir):
        return Path(run_dir) / name
    for mirror in MIRRORS:
        if mirror.url == _join(run_dir, name):
            return mirror.local
    raise InputError(f"run.dir = {run_dir}: only `isojax launch` and `isojax train` run at a URL; expected a folder. Give run.dir=FOLDER.")


def shown(text: object) -> str:
    """A path or a message as a user knows it: with URLs for their mirrors."""
    words = str(text)
    for mirror in MIRRORS:
        words = words.replace(str(mirror.local), mirror.url)
    return words


@contextmanager
def working(run_dir: str, name: str, several: bool = False, dry_run: bool = False, cell: str = "") -> Iterator[None]:
    """A sweep at a URL, mirrored while the context lasts (`folder_of`); with a folder, nothing.

    `cell`: the part of a worker that trains one cell of a sweep whose writer is another process: the sweep's own files and the cell's.

    Raises:
        InputError: `several` processes, storage that cannot be reached or written, or another process that writes there.
        RunFailed: storage that fails later.
    """
    if not is_url(run_dir):
        yield
        return
    if several:
        raise InputError(
            f"run.dir = {run_dir} with several processes; expected a folder that all of them share, for each writes its part of a "
            "checkpoint. Mount the bucket and give run.dir=FOLDER, or run one process (docs/hosts.md)."
        )
    url = _join(run_dir, name)
    remote = Remote(url)
    with ExitStack() as held:
        if dry_run:
            scratch = Path(held.enter_context(TemporaryDirectory(prefix="isojax-")))
        else:
            scratch = _cache() / "runs" / hashlib.sha256(f"{url} {cell}".encode()).hexdigest()[:12]
            claim = None if cell else held.enter_context(Claim(remote))
            held.enter_context(alone(scratch))
            shutil.rmtree(scratch / name, ignore_errors=True)  # of a run that was killed; what counts lies at the URL
        mirror = Mirror(url, scratch / name, remote, None if dry_run else claim)
        mirror.pull(checkpoints=not dry_run, cell=cell)
        held.enter_context(mirror.following())
        try:
            yield
        except Exception:  # whatever ended the run, what it has written goes to the URL; then it is raised
            with suppress(RunFailed):  # what has ended the run is told, not what followed from it
                mirror.push(mirror.local)
            raise
        if not dry_run:
            mirror.push(mirror.local)
            shutil.rmtree(mirror.local, ignore_errors=True)


def fresh(folder: Path, cell: str = "") -> None:
    """What other processes have put to the URL that a folder mirrors, to the folder: of cells without their states; or one cell with them.
    Nothing where it is no mirror.

    Raises:
        InputError: it cannot be reached.
    """
    for mirror in MIRRORS:
        if mirror.local == folder:
            if cell:
                shutil.rmtree(folder / "cells" / cell, ignore_errors=True)
            mirror.pull(checkpoints=bool(cell), cell=cell)


@contextmanager
def fetched(words: Sequence[str]) -> Iterator[list[str]]:
    """A command's words with mirrors of what lies at their URLs, states of cells left out; what it writes there is put to the URL.

    Raises:
        InputError: it cannot be reached, or there is nothing.
    """
    with ExitStack() as held:
        found = []
        for word in words:
            if is_url(word) and not word.startswith(RAY):
                url = word.rstrip("/")
                place = Path(held.enter_context(TemporaryDirectory(prefix="isojax-")), *url.partition("://")[2].split("/")[-2:])
                mirror = Mirror(url, place)
                if not mirror.pull(checkpoints=False):
                    raise InputError(f"there is nothing at {url}; expected a sweep's folder, such as gs://BUCKET/runs/quickstart.")
                held.enter_context(mirror.following())
                word = str(place)
            found.append(word)
        yield found


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "isojax"


def _join(run_dir: str, name: str) -> str:
    return f"{run_dir.rstrip('/')}/{name}"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the folder: InputError where it cannot be made or written, Busy where another process is writing to it, on any machine that sees
    it (NFS keeps locks of files for all its clients, of folders for none)."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / HELD, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as e:
        raise InputError(f"cannot make the folder {folder}, or write in it: {e.strerror or e}. Choose a place that you may write.") from e
    try:
        if not any(take(lock, fcntl.LOCK_EX, after) for after in (0.0, 0.1)):  # `isojax status` may have been looking
            raise Busy(
                f"{folder} is being written by another process; wait for it, stop it, or choose another name=NAME. If that process was on "
                f"a machine that is lost, a file server may keep its lock for a while; then remove {folder / HELD}."
            )
        yield
    finally:
        os.close(lock)


def held(folder: Path) -> bool:
    """Whether a process is writing to the folder, as far as this machine can tell."""
    try:
        lock = os.open(folder / HELD, os.O_RDONLY)
    except OSError:  # nobody ever was
        return False
    try:
        return not take(lock, fcntl.LOCK_SH)
    finally:
        os.close(lock)


def take(lock: int, kind: int, after: float = 0.0) -> bool:
    """Whether a lock of this kind (fcntl.LOCK_EX or LOCK_SH) could be taken on an open file, after so many seconds."""
    time.sleep(after)
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:  # another process has it
        return False
    except OSError:  # a file system without locks
        return True
    return True


class Mirror:
    """A folder at a URL and its like on this machine."""

    def __init__(self, url: str, local: Path, remote: Remote | None = None, claim: Claim | None = None):
        """`claim`: what says that no other process writes there; None for one that reads, or that works for the one that has it."""
        self.url, self.local, self.remote, self._claim = url, local, remote or Remote(url), claim
        self._sent: dict[Path, tuple[int, int]] = {}  # a file as it is at the URL: time of its last change, bytes

    @contextmanager
    def following(self) -> Iterator[None]:
        """Puts what isojax.files writes below the folder to the URL, as it is written."""
        MIRRORS.insert(0, self)  # stays, for messages that come later
        WRITTEN.append(self.push)
        try:
            yield
        finally:
            WRITTEN.remove(self.push)

    def pull(self, checkpoints: bool = True, cell: str = "") -> int:
        """What lies at the URL, to the folder (or file): of states the whole ones, and none without `checkpoints`; of cells `cell`, where
        one is named. Returns how many files that is; raises InputError."""
        there = self.remote.find()
        wanted = [name for name in sorted(there) if _wanted(name, there, checkpoints, cell)]
        for name in there if checkpoints else ():
            before, states, _ = f"/{name}".rpartition(f"/{STATES}/")
            if states:
                (self.local / before.strip("/") / STATES).mkdir(parents=True, exist_ok=True)  # where none is whole yet, too
        pairs = [(name, self.local / name if name else self.local) for name in wanted]
        for _, path in pairs:
            path.parent.mkdir(parents=True, exist_ok=True)
        self.remote.get(pairs)
        self._sent |= {path: _state(path) for _, path in pairs}
        return len(pairs)

    def push(self, *paths: Path) -> None:
        """Files and folders below the folder, where they have changed; states and hidden files excepted, and what lies elsewhere.

        Raises:
            RunFailed: they cannot be written, or another process has begun to write there.
        """
        for path in paths:
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                if not file.is_relative_to(self.local) or not file.is_file():
                    continue
                name = self._name(file)
                if any(part.startswith((".", STATES)) for part in name.split("/")) or self._sent.get(file) == (now := _state(file)):
                    continue
                with self._writing():
                    self.remote.put(name, file)
                self._sent[file] = now

    def push_checkpoint(self, folder: Path) -> None:
        """One whole state, checkpoint/M, and its mark after all its files; then what is no longer there on this machine goes at the URL.

        Raises:
            RunFailed: as `push`.
        """
        name, states = self._name(folder), self._name(folder.parent)
        with self._writing():
            self._drop(name)
            self.remote.put_all((self._name(file), file) for file in sorted(folder.rglob("*")) if file.is_file())
            self.remote.write(name + WHOLE, b"whole\n")
            here = {path.name for path in folder.parent.iterdir()}
            for old in {found.removesuffix(WHOLE) for found in self.remote.names(states)} - here - {BEGUN}:
                self._drop(f"{states}/{old}")

    def begin(self, states: Path) -> None:
        """Says at the URL that a cell keeps its states in this folder, as an empty folder says on a disk."""
        with self._writing():
            self.remote.write(f"{self._name(states)}/{BEGUN}", b"begun\n")

    def _drop(self, name: str) -> None:
        """Removes a state, its mark first."""
        self.remote.remove(name + WHOLE)
        self.remote.remove(name)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.local).as_posix()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self.remote.at_work():
            if self._claim is not None:
                self._claim.check()
            yield


def _wanted(name: str, there: set[str], checkpoints: bool, cell: str) -> bool:
    """Whether `pull` takes an object."""
    parts = name.split("/")
    if parts[-1].startswith(".") or (cell and parts[0] == "cells" and parts[1] != cell):
        return False
    if STATES not in parts[:-1]:
        return True
    at = parts.index(STATES) + 2  # the parts up to a state's folder
    return checkpoints and len(parts) > at and "/".join(parts[:at]) + WHOLE in there


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size


class Uploads:
    """The states of one cell on their way to a URL, one at a time, beside the run; nothing where its folder is no mirror."""

    def __init__(self, folder: Path):
        """`folder`: of the cell's states."""
        self._mirror = next((m for m in MIRRORS if folder.is_relative_to(m.local)), None)
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        if self._mirror is not None:
            self._mirror.begin(folder)

    def send(self, step: Path, writing: Callable[[], bool]) -> None:
        """Put the state `step` there when it is no longer being written; nothing where that failed, which whoever writes it tells."""
        if self._mirror is not None:
            self._thread = threading.Thread(target=self._send, args=(self._mirror, step, writing), daemon=True)
            self._thread.start()

    def _send(self, mirror: Mirror, step: Path, writing: Callable[[], bool]) -> None:
        try:
            while writing():
                time.sleep(0.02)
            if step.exists():
                mirror.push_checkpoint(step)
        except Exception as e:  # for `wait` to raise
            self._error = e

    def wait(self) -> None:
        """Until the last one is there.

        Raises:
            RunFailed: it cannot be written.
        """
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
