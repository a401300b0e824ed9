"""Checkpoints that nobody needs any more: those of runs that are done, but for the newest, or all
of them.

A checkpoint holds parameters and Adam's moments, three times the size of the policy. The newest one
of a run is what `isojax model export` reads, and what a larger budget goes on from. Runs that are
not done keep all: if their newest checkpoint is damaged, a resume goes on from the one before it.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isojax.core.errors import InputError
from isojax.launch.sweep_status import read_sweep_status
from isojax.runs.mirror import find_mirror, is_written

CHECKPOINT_FOLDER = "checkpoint"  # in a run's folder


@dataclass(frozen=True)
class Removal:
    """What is removed of one run."""

    run: str  # its name, such as 16x8-s0
    folders: tuple[Path, ...]
    bytes: int


def plan_removals(sweep_folder: Path, newest_too: bool) -> list[Removal]:
    """What `remove` would remove of a sweep's runs that are done; nothing is removed here.

    newest_too: whether a run's newest checkpoint is removed too. InputError where the sweep is
    being written, or is at a URL.
    """
    if find_mirror(sweep_folder) is not None:
        raise InputError(
            found="the sweep is at a URL, of which no checkpoint is fetched",
            expected="a folder",
            fix=(
                f"Remove cells/*/{CHECKPOINT_FOLDER} there by the storage's own tool, such as "
                "gcloud storage rm -r."
            ),
        )
    status = read_sweep_status(sweep_folder)
    if is_written(sweep_folder):
        raise InputError(
            where=sweep_folder,
            found="being written by a run",
            expected="one that has ended",
            fix="Wait, or end it.",
        )

    removals = []
    for summary in status.cells:
        run = summary.cell.name
        checkpoint_folder = sweep_folder / "cells" / run / CHECKPOINT_FOLDER
        if summary.state != "done" or not checkpoint_folder.is_dir():
            continue

        # Each is a folder whose name is the number of updates done, such as 128.
        by_update = sorted(checkpoint_folder.glob("[0-9]*"), key=lambda path: int(path.name))
        # With newest_too the folder itself goes: a run that is done counts as saved without the
        # folder, but not with an empty one (train/checkpoint.py).
        folders = (checkpoint_folder,) if newest_too else tuple(by_update[:-1])
        if folders:
            size = sum(folder_bytes(folder) for folder in folders)
            removals.append(Removal(run, folders, size))
    return removals


def remove(removals: Sequence[Removal]) -> None:
    """Remove the folders; InputError names one that cannot be removed."""
    for removal in removals:
        for folder in removal.folders:
            try:
                shutil.rmtree(folder)
            except OSError as e:
                raise InputError(
                    where=folder,
                    found=f"cannot be removed: {e.strerror or e}",
                    expected="a folder that you may write",
                ) from e


def folder_bytes(folder: Path) -> int:
    """The bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
