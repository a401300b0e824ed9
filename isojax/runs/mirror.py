"""A folder on this machine and its like at a URL that fsspec knows.

With `run.dir` a URL, a run works in a scratch folder of its machine, and whatever it writes there is put to the URL in
the same order: a ledger before the checkpoint that is past its points, a checkpoint's mark after all its files. So what
a kill at any instant leaves at the URL is what it could have left on a disk, and `--resume` on any machine goes on from
it to the same bits. An object store puts whole objects or nothing; on a disk a file is replaced by renaming.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from isojax.core.atomic_files import WRITE_LISTENERS
from isojax.runs.lease import Lease
from isojax.runs.object_store import RemoteFolder

CHECKPOINTS_FOLDER = "checkpoint"  # of a cell
STARTED_MARK = "started"  # the object that says that a cell keeps checkpoints
COMPLETE_SUFFIX = ".whole"  # of the mark of a whole checkpoint, checkpoint/16.whole
MIRRORS: list[Mirror] = []  # of this process, the newest first


def active_mirrors() -> Sequence[Mirror]:
    """The mirrors of this process, the newest first; one that is no longer kept up stays, for messages."""
    return MIRRORS


class Mirror:
    """A folder at a URL and its like on this machine."""

    def __init__(self, url: str, local: Path, remote: RemoteFolder | None = None, lease: Lease | None = None):
        """`lease`: the right to write there; None for a process that only reads, or that works for the holder."""
        self.url, self.local, self.remote, self._lease = url, local, remote or RemoteFolder(url), lease
        self._uploaded: dict[Path, tuple[int, int]] = {}  # file -> (time of its last change, bytes) as it is at the URL

    @contextmanager
    def auto_upload(self) -> Iterator[None]:
        """Put what core/atomic_files.py writes below the folder to the URL, as it is written."""
        MIRRORS.insert(0, self)
        WRITE_LISTENERS.append(self.push)
        try:
            yield
        finally:
            WRITE_LISTENERS.remove(self.push)

    def pull(self, with_checkpoints: bool = True, cell_name: str = "") -> int:
        """Copy what is at the URL to the folder (or file): of checkpoints the whole ones, or none; of cells the one
        named, or all. Returns how many files that is; raises InputError.
        """
        remote_names = self.remote.find()
        names_to_pull = [
            name for name in sorted(remote_names) if _should_pull(name, remote_names, with_checkpoints, cell_name)
        ]
        for name in remote_names if with_checkpoints else ():
            parent, separator, _ = f"/{name}".rpartition(f"/{CHECKPOINTS_FOLDER}/")
            if separator:
                # also where no checkpoint is whole yet
                (self.local / parent.strip("/") / CHECKPOINTS_FOLDER).mkdir(parents=True, exist_ok=True)
        downloads = [(name, self.local / name if name else self.local) for name in names_to_pull]
        for _, path in downloads:
            path.parent.mkdir(parents=True, exist_ok=True)
        self.remote.get(downloads)
        self._uploaded |= {path: _stat_fingerprint(path) for _, path in downloads}
        return len(downloads)

    def push(self, *paths: Path) -> None:
        """Put files and folders below the folder to the URL where they have changed, except checkpoints and hidden
        files.

        Raises:
            RunFailed: they cannot be written, or another process has begun to write there.
        """
        for path in paths:
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                if file.is_relative_to(self.local) and file.is_file():
                    self._push_file(file)

    def _push_file(self, file: Path) -> None:
        name = self._remote_name(file)
        if any(part.startswith((".", CHECKPOINTS_FOLDER)) for part in name.split("/")):
            return
        fingerprint = _stat_fingerprint(file)
        if self._uploaded.get(file) != fingerprint:
            with self._guarded_write():
                self.remote.put(name, file)
            self._uploaded[file] = fingerprint

    def push_checkpoint(self, folder: Path) -> None:
        """Put one whole checkpoint, checkpoint/M, and its mark after all its files; then remove from the URL what is no
        longer there on this machine.

        Raises:
            RunFailed: as `push`.
        """
        name, checkpoints_name = self._remote_name(folder), self._remote_name(folder.parent)
        with self._guarded_write():
            self._remove_checkpoint(name)
            self.remote.put_all((self._remote_name(file), file) for file in sorted(folder.rglob("*")) if file.is_file())
            self.remote.write(name + COMPLETE_SUFFIX, b"whole\n")
            local_names = {path.name for path in folder.parent.iterdir()}
            remote_names = {n.removesuffix(COMPLETE_SUFFIX) for n in self.remote.list_folder(checkpoints_name)}
            for stale_name in remote_names - local_names - {STARTED_MARK}:
                self._remove_checkpoint(f"{checkpoints_name}/{stale_name}")

    def mark_started(self, checkpoints_folder: Path) -> None:
        """Say at the URL that a cell keeps its checkpoints in this folder, as an empty folder says on a disk."""
        with self._guarded_write():
            self.remote.write(f"{self._remote_name(checkpoints_folder)}/{STARTED_MARK}", b"started\n")

    def _remove_checkpoint(self, name: str) -> None:
        """Remove a checkpoint, its mark first."""
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
    checkpoint_depth = parts.index(CHECKPOINTS_FOLDER) + 2  # the parts up to a checkpoint's folder
    return (
        with_checkpoints
        and len(parts) > checkpoint_depth
        and "/".join(parts[:checkpoint_depth]) + COMPLETE_SUFFIX in remote_names
    )


def _stat_fingerprint(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size


class CheckpointUploader:
    """Puts the checkpoints of one cell to a URL, one at a time, while the run goes on; does nothing where the cell's
    folder is no mirror.
    """

    def __init__(self, folder: Path):
        """`folder` holds the cell's checkpoints."""
        self._mirror = next((m for m in active_mirrors() if folder.is_relative_to(m.local)), None)
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        if self._mirror is not None:
            self._mirror.mark_started(folder)

    def upload(self, checkpoint_folder: Path, is_writing: Callable[[], bool]) -> None:
        """Put a checkpoint there when it is no longer being written; nothing where writing it failed, which its writer
        reports.
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
        """Wait until the last one is there.

        Raises:
            RunFailed: it cannot be written.
        """
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
