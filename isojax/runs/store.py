"""Where a sweep's folder lies: on a disk, or at a URL that fsspec knows (gs://bucket/runs, s3://..., file://...).

With `run.dir` a URL, a run works in a scratch folder of its machine, and whatever it writes there is put to the URL in
the same order: a ledger before the state that is past its points, a state's mark after all its files. So what is found
at the URL after a kill at any instant is what a kill could have left on a disk, and `--resume` on any machine goes on
from it to the same bits. An object store puts whole objects or nothing; on a disk a file is replaced by renaming. No
jax here.
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

from isojax.core.atomic_files import WRITE_LISTENERS
from isojax.core.errors import InputError, RunFailed
from isojax.runs.lease import Lease
from isojax.runs.object_store import RemoteFolder

CHECKPOINTS_FOLDER, STARTED_MARK, COMPLETE_SUFFIX = (
    "checkpoint",
    "begun",
    ".whole",
)  # a cell's states; that it keeps some; the mark of a whole one, checkpoint/16.whole
RAY_SCHEME = "ray://"  # not storage
LOCK_FILE = ".lock"  # the file in a folder that its writer holds
MIRRORS: list[Mirror] = []  # of this process


class FolderLocked(InputError):
    """Another process writes to a folder."""


def is_url(text: str) -> bool:
    """Whether a place is written as a URL."""
    return re.match(r"[a-z][a-z0-9+.-]*://", text) is not None


def working_folder(run_dir: str, name: str) -> Path:
    """The folder that a sweep works in: run_dir/name, or its mirror where `run_dir` is a URL.

    Raises:
        InputError: a URL that no `working` mirrors.
    """
    if not is_url(run_dir):
        return Path(run_dir) / name
    for mirror in MIRRORS:
        if mirror.url == _join_url(run_dir, name):
            return mirror.local
    raise InputError(
        f"run.dir = {run_dir}: only `isojax launch` and `isojax train` run at a URL; expected a folder. Give run.dir=FOLDER."
    )


def display_path(text: object) -> str:
    """A path or a message as a user knows it: with URLs for their mirrors."""
    message = str(text)
    for mirror in MIRRORS:
        message = message.replace(str(mirror.local), mirror.url)
    return message


@contextmanager
def remote_workspace(
    run_dir: str, name: str, multi_process: bool = False, dry_run: bool = False, cell_name: str = ""
) -> Iterator[None]:
    """A sweep at a URL, mirrored while the context lasts (`folder_of`); with a folder, nothing.

    `cell`: the part of a worker that trains one cell of a sweep whose writer is another process: the sweep's own files
    and the cell's.

    Raises:
        InputError: `several` processes, storage that cannot be reached or written, or another process that writes
        there.
        RunFailed: storage that fails later.
    """
    if not is_url(run_dir):
        yield
        return
    if multi_process:
        raise InputError(
            f"run.dir = {run_dir} with several processes; expected a folder that all of them share, for each writes its part of a "
            "checkpoint. Mount the bucket and give run.dir=FOLDER, or run one process (docs/hosts.md)."
        )
    url = _join_url(run_dir, name)
    remote = RemoteFolder(url)
    lease = None
    with ExitStack() as stack:
        if dry_run:
            scratch = Path(stack.enter_context(TemporaryDirectory(prefix="isojax-")))
        else:
            scratch = _cache_folder() / "runs" / hashlib.sha256(f"{url} {cell_name}".encode()).hexdigest()[:12]
            if not cell_name:
                lease = stack.enter_context(Lease(remote))
            stack.enter_context(exclusive_lock(scratch))
            shutil.rmtree(scratch / name, ignore_errors=True)  # of a run that was killed; what counts lies at the URL
        mirror = Mirror(url, scratch / name, remote, lease)
        mirror.pull(with_checkpoints=not dry_run, cell_name=cell_name)
        stack.enter_context(mirror.auto_upload())
        try:
            yield
        except Exception:  # whatever ended the run, what it has written goes to the URL; then it is raised
            with suppress(RunFailed):  # what has ended the run is told, not what followed from it
                mirror.push(mirror.local)
            raise
        if not dry_run:
            mirror.push(mirror.local)
            shutil.rmtree(mirror.local, ignore_errors=True)


def refresh(folder: Path, cell_name: str = "") -> None:
    """What other processes have put to the URL that a folder mirrors, to the folder: of cells without their states; or
    one cell with them. Nothing where it is no mirror.

    Raises:
        InputError: it cannot be reached.
    """
    for mirror in MIRRORS:
        if mirror.local == folder:
            if cell_name:
                shutil.rmtree(folder / "cells" / cell_name, ignore_errors=True)
            mirror.pull(with_checkpoints=bool(cell_name), cell_name=cell_name)


@contextmanager
def localize(arguments: Sequence[str]) -> Iterator[list[str]]:
    """A command's words with mirrors of what lies at their URLs, states of cells left out; what it writes there is put
    to the URL.

    Raises:
        InputError: it cannot be reached, or there is nothing.
    """
    with ExitStack() as stack:
        localized = []
        for argument in arguments:
            if is_url(argument) and not argument.startswith(RAY_SCHEME):
                url = argument.rstrip("/")
                local_path = Path(
                    stack.enter_context(TemporaryDirectory(prefix="isojax-")), *url.partition("://")[2].split("/")[-2:]
                )
                mirror = Mirror(url, local_path)
                if not mirror.pull(with_checkpoints=False):
                    raise InputError(
                        f"there is nothing at {url}; expected a sweep's folder, such as gs://BUCKET/runs/quickstart."
                    )
                stack.enter_context(mirror.auto_upload())
                argument = str(local_path)
            localized.append(argument)
        yield localized


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "isojax"


def _join_url(run_dir: str, name: str) -> str:
    return f"{run_dir.rstrip('/')}/{name}"


@contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Hold the folder: InputError where it cannot be made or written, Busy where another process is writing to it, on
    any machine that sees it (NFS keeps locks of files for all its clients, of folders for none)."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock_fd = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as e:
        raise InputError(
            f"cannot make the folder {folder}, or write in it: {e.strerror or e}. Choose a place that you may write."
        ) from e
    try:
        if not any(
            try_flock(lock_fd, fcntl.LOCK_EX, delay) for delay in (0.0, 0.1)
        ):  # `isojax status` may have been looking
            raise FolderLocked(
                f"{folder} is being written by another process; wait for it, stop it, or choose another name=NAME. If that process was on "
                f"a machine that is lost, a file server may keep its lock for a while; then remove {folder / LOCK_FILE}."
            )
        yield
    finally:
        os.close(lock_fd)


def is_locked(folder: Path) -> bool:
    """Whether a process is writing to the folder, as far as this machine can tell."""
    try:
        lock_fd = os.open(folder / LOCK_FILE, os.O_RDONLY)
    except OSError:  # nobody ever was
        return False
    try:
        return not try_flock(lock_fd, fcntl.LOCK_SH)
    finally:
        os.close(lock_fd)


def try_flock(lock_fd: int, lock_type: int, delay: float = 0.0) -> bool:
    """Whether a lock of this kind (fcntl.LOCK_EX or LOCK_SH) could be taken on an open file, after so many seconds."""
    time.sleep(delay)
    try:
        fcntl.flock(lock_fd, lock_type | fcntl.LOCK_NB)
    except BlockingIOError:  # another process has it
        return False
    except OSError:  # a file system without locks
        return True
    return True


class Mirror:
    """A folder at a URL and its like on this machine."""

    def __init__(self, url: str, local: Path, remote: RemoteFolder | None = None, lease: Lease | None = None):
        """`claim`: what says that no other process writes there; None for one that reads, or that works for the one
        that has it.
        """
        self.url, self.local, self.remote, self._lease = url, local, remote or RemoteFolder(url), lease
        self._uploaded: dict[Path, tuple[int, int]] = {}  # a file as it is at the URL: time of its last change, bytes

    @contextmanager
    def auto_upload(self) -> Iterator[None]:
        """Puts what isojax.core.yaml_files writes below the folder to the URL, as it is written."""
        MIRRORS.insert(0, self)  # stays, for messages that come later
        WRITE_LISTENERS.append(self.push)
        try:
            yield
        finally:
            WRITE_LISTENERS.remove(self.push)

    def pull(self, with_checkpoints: bool = True, cell_name: str = "") -> int:
        """What lies at the URL, to the folder (or file): of states the whole ones, and none without `checkpoints`; of
        cells `cell`, where one is named. Returns how many files that is; raises InputError."""
        remote_names = self.remote.find()
        names_to_pull = [
            name for name in sorted(remote_names) if _should_pull(name, remote_names, with_checkpoints, cell_name)
        ]
        for name in remote_names if with_checkpoints else ():
            parent, separator, _ = f"/{name}".rpartition(f"/{CHECKPOINTS_FOLDER}/")
            if separator:
                (self.local / parent.strip("/") / CHECKPOINTS_FOLDER).mkdir(
                    parents=True, exist_ok=True
                )  # where none is whole yet, too
        downloads = [(name, self.local / name if name else self.local) for name in names_to_pull]
        for _, path in downloads:
            path.parent.mkdir(parents=True, exist_ok=True)
        self.remote.get(downloads)
        self._uploaded |= {path: _stat_fingerprint(path) for _, path in downloads}
        return len(downloads)

    def push(self, *paths: Path) -> None:
        """Files and folders below the folder, where they have changed; states and hidden files excepted, and what lies
        elsewhere.

        Raises:
            RunFailed: they cannot be written, or another process has begun to write there.
        """
        for path in paths:
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                if not file.is_relative_to(self.local) or not file.is_file():
                    continue
                name = self._remote_name(file)
                if any(part.startswith((".", CHECKPOINTS_FOLDER)) for part in name.split("/")) or self._uploaded.get(
                    file
                ) == (fingerprint := _stat_fingerprint(file)):
                    continue
                with self._guarded_write():
                    self.remote.put(name, file)
                self._uploaded[file] = fingerprint

    def push_checkpoint(self, folder: Path) -> None:
        """One whole state, checkpoint/M, and its mark after all its files; then what is no longer there on this machine
        goes at the URL.

        Raises:
            RunFailed: as `push`.
        """
        name, checkpoints_name = self._remote_name(folder), self._remote_name(folder.parent)
        with self._guarded_write():
            self._remove_checkpoint(name)
            self.remote.put_all((self._remote_name(file), file) for file in sorted(folder.rglob("*")) if file.is_file())
            self.remote.write(name + COMPLETE_SUFFIX, b"whole\n")
            local_names = {path.name for path in folder.parent.iterdir()}
            for stale_name in (
                {remote_name.removesuffix(COMPLETE_SUFFIX) for remote_name in self.remote.list_folder(checkpoints_name)}
                - local_names
                - {STARTED_MARK}
            ):
                self._remove_checkpoint(f"{checkpoints_name}/{stale_name}")

    def mark_started(self, checkpoints_folder: Path) -> None:
        """Says at the URL that a cell keeps its states in this folder, as an empty folder says on a disk."""
        with self._guarded_write():
            self.remote.write(f"{self._remote_name(checkpoints_folder)}/{STARTED_MARK}", b"begun\n")

    def _remove_checkpoint(self, name: str) -> None:
        """Removes a state, its mark first."""
        self.remote.remove(name + COMPLETE_SUFFIX)
        self.remote.remove(name)

    def _remote_name(self, path: Path) -> str:
        return path.relative_to(self.local).as_posix()

    @contextmanager
    def _guarded_write(self) -> Iterator[None]:
        with self.remote.translate_write_errors():
            if self._lease is not None:
                self._lease.check()
            yield


def _should_pull(name: str, remote_names: set[str], with_checkpoints: bool, cell_name: str) -> bool:
    """Whether `pull` takes an object."""
    parts = name.split("/")
    if parts[-1].startswith(".") or (cell_name and parts[0] == "cells" and parts[1] != cell_name):
        return False
    if CHECKPOINTS_FOLDER not in parts[:-1]:
        return True
    checkpoint_depth = parts.index(CHECKPOINTS_FOLDER) + 2  # the parts up to a state's folder
    return (
        with_checkpoints
        and len(parts) > checkpoint_depth
        and "/".join(parts[:checkpoint_depth]) + COMPLETE_SUFFIX in remote_names
    )


def _stat_fingerprint(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size


class CheckpointUploader:
    """The states of one cell on their way to a URL, one at a time, beside the run; nothing where its folder is no
    mirror.
    """

    def __init__(self, folder: Path):
        """`folder`: of the cell's states."""
        self._mirror = next((m for m in MIRRORS if folder.is_relative_to(m.local)), None)
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        if self._mirror is not None:
            self._mirror.mark_started(folder)

    def upload(self, checkpoint_folder: Path, is_writing: Callable[[], bool]) -> None:
        """Put the state `step` there when it is no longer being written; nothing where that failed, which whoever
        writes it tells.
        """
        if self._mirror is not None:
            self._thread = threading.Thread(
                target=self._upload, args=(self._mirror, checkpoint_folder, is_writing), daemon=True
            )
            self._thread.start()

    def _upload(self, mirror: Mirror, checkpoint_folder: Path, is_writing: Callable[[], bool]) -> None:
        try:
            while is_writing():
                time.sleep(0.02)
            if checkpoint_folder.exists():
                mirror.push_checkpoint(checkpoint_folder)
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
