"""The checkpoints of a cell whose sweep is at a URL: uploaded in the background, and counted only
once they are whole; their arrays are fetched when they are read.

A checkpoint is the folder checkpoint/M. It counts once its mark is at the URL, the object
checkpoint/M.whole. Several processes that train a run upload a part each, and process 0 writes the
mark when all parts are there.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from isojax.core.errors import RunFailed
from isojax.runs.mirror import (
    COMPLETE_SUFFIX,
    FILE_DEPTH,
    STARTED_MARK,
    Mirror,
    containing_mirror,
)
from isojax.runs.storage import run_in_thread

POLL_SECONDS = 0.02  # between two looks at whether a checkpoint is written on this machine


@dataclass(frozen=True)
class UploadPeers:
    """The processes that upload a checkpoint together, as one of them sees the others."""

    is_primary: bool  # whether this is process 0
    # What went wrong in this process, "" for nothing -> what went wrong in any, "" for nothing.
    # It waits for all processes, and all must call it.
    agree: Callable[[str], str]


ALONE = UploadPeers(is_primary=True, agree=lambda problem: problem)


class MirroredCheckpoints:
    """The checkpoints of one cell. Methods raise RunFailed where the URL cannot be written, or
    another launch has begun to write there."""

    def __init__(self, mirror: Mirror, folder: Path, peers: UploadPeers = ALONE):
        """`folder`: the one that holds them, cells/CELL/checkpoint in the mirror's folder."""
        self._mirror = mirror
        self._folder = folder
        self._peers = peers

    def mark_started(self) -> None:
        """Say at the URL that the cell keeps its checkpoints in this folder."""
        if self._peers.is_primary:
            name = f"{self._mirror.remote_name(self._folder)}/{STARTED_MARK}"
            with self._mirror.guarded_write():
                self._mirror.remote.write(name, b"started\n")

    def start_upload(self, checkpoint: Path, is_writing: Callable[[], bool]) -> Future[None]:
        """Upload a checkpoint in a thread, once `is_writing()` is false; returns at once."""

        def upload() -> None:
            while is_writing():
                time.sleep(POLL_SECONDS)
            # Where one process could not write it, that process reports why.
            unwritten = "" if checkpoint.exists() else f"{checkpoint} was not written"
            if not self._peers.agree(unwritten):
                self.push(checkpoint)

        return run_in_thread(upload)

    def push(self, checkpoint: Path) -> None:
        """Upload one checkpoint, or this process's part, which is complete on this machine.

        After all files comes the mark, M.whole; then the checkpoints that are no longer on this
        machine are removed from the URL. `checkpoint`: its folder, checkpoint/M.
        """
        # The mark is removed before any file is written, and written after all of them, so that a
        # kill leaves no mark at a part of a checkpoint.
        self._do_together(lambda: self._remove(checkpoint.name), by_primary_alone=True)
        self._do_together(lambda: self._put_files(checkpoint))
        self._do_together(lambda: self._complete(checkpoint), by_primary_alone=True)

    def _do_together(self, action: Callable[[], None], by_primary_alone: bool = False) -> None:
        """Do a step, and return when all processes have done theirs; RunFailed in all of them where
        it failed in one."""
        error: RunFailed | None = None
        if self._peers.is_primary or not by_primary_alone:
            try:
                with self._mirror.guarded_write():
                    action()
            except RunFailed as e:
                error = e

        problem = self._peers.agree("" if error is None else str(error))
        if problem:
            raise error or RunFailed(problem)

    def _put_files(self, checkpoint: Path) -> None:
        """Upload the checkpoint's files; of another process than process 0, those of arrays alone,
        as process 0 has the others too."""
        pairs = []
        for file in sorted(checkpoint.rglob("*")):
            is_of_array = len(file.relative_to(checkpoint).parts) > FILE_DEPTH
            if file.is_file() and (self._peers.is_primary or is_of_array):
                pairs.append((self._mirror.remote_name(file), file))
        self._mirror.remote.put_all(pairs)

    def _complete(self, checkpoint: Path) -> None:
        """Write the mark of a checkpoint, and remove those that are no longer on this machine."""
        name = self._mirror.remote_name(checkpoint)
        self._mirror.remote.write(name + COMPLETE_SUFFIX, b"whole\n")

        local_names = {path.name for path in self._folder.iterdir()}
        remote_names = {
            remote_name.removesuffix(COMPLETE_SUFFIX)
            for remote_name in self._mirror.remote.list_folder(
                self._mirror.remote_name(self._folder)
            )
        }
        for stale_name in remote_names - local_names - {STARTED_MARK}:
            self._remove(stale_name)

    def _remove(self, checkpoint_name: str) -> None:
        """Remove a checkpoint from the URL, where there is one: the mark first."""
        name = f"{self._mirror.remote_name(self._folder)}/{checkpoint_name}"
        self._mirror.remote.remove(name + COMPLETE_SUFFIX)
        self._mirror.remote.remove(name)

    def fetch(self, folder: Path, is_wanted: Callable[[str], bool]) -> None:
        """Copy the objects of a folder of a checkpoint that are not on this machine yet.

        is_wanted: called with the name of each, relative to the folder. InputError where the
        storage cannot be read.
        """
        folder_name = self._mirror.remote_name(folder)
        missing = []
        for name in sorted(self._mirror.remote.find(folder_name)):
            relative_name = name.removeprefix(f"{folder_name}/")
            path = folder / relative_name
            if is_wanted(relative_name) and not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                missing.append((name, path))
        self._mirror.remote.get(missing)


def mirrored_checkpoints(folder: Path, peers: UploadPeers = ALONE) -> MirroredCheckpoints | None:
    """The checkpoints of a cell in the folder that holds them; None where its sweep is not at a
    URL. `peers`: of this process, where several train the cell."""
    mirror = containing_mirror(folder)
    if mirror is None:
        return None
    checkpoints = MirroredCheckpoints(mirror, folder, peers)
    checkpoints.mark_started()
    return checkpoints
