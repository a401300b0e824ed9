"""What a sweep's checkpoints take: bytes of the disk, and seconds to write them. How many of each
run are kept follows from the room that the disk has; a sweep that has none is refused."""

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isojax.core.config import Config
from isojax.core.config.sweep import DEFAULT_KEPT_CHECKPOINTS, RunConfig
from isojax.core.errors import InputError
from isojax.core.nouns import Cell
from isojax.core.save_interval import save_interval
from isojax.core.terminal import format_hours
from isojax.launch.checkpoint_cleanup import CHECKPOINT_FOLDER, folder_bytes
from isojax.launch.device_budget import format_bytes
from isojax.launch.sweep_status import CONFIG_FILE, read_sweep_status

MEGABYTE = 1e6  # bytes, as the makers of disks count
ASSUMED_RATE = 100 * MEGABYTE  # bytes/s of a disk that cannot be tried: that of a plain cloud disk
# A disk is tried by writing as much as a checkpoint has, but no more than either of these.
MAX_TRIAL_BYTES = 64 * 2**20
MAX_TRIAL_SECONDS = 1.0
TRIAL_BLOCK = 8 * 2**20  # bytes that are on the disk before the next are written


@dataclass(frozen=True)
class DiskRate:
    """How fast checkpoints are expected to be written."""

    bytes_per_second: float
    origin: str  # where that is known from, for a reader: "run.disk_rate"

    def __str__(self) -> str:
        return f"{self.bytes_per_second / MEGABYTE:,.3g} MB/s ({self.origin})"


@dataclass(frozen=True)
class CheckpointPlan:
    """What the checkpoints of a sweep take."""

    size: int  # bytes of one
    kept: int  # of each run
    runs: int  # of the sweep
    concurrent_runs: int  # that train at a time, and write to one disk
    rate: DiskRate
    checkpoint_seconds: float | None  # the setting; None: the interval follows what a save takes

    @property
    def most_bytes(self) -> int:
        """Bytes on the disk at most: of each run those kept, and of each run that trains one more,
        as the oldest is removed only when the new one is written."""
        return (self.runs * self.kept + self.concurrent_runs) * self.size

    @property
    def write_seconds(self) -> float:
        """Seconds to write one."""
        return self.size / self.rate.bytes_per_second

    @property
    def interval(self) -> float:
        """Seconds from one save of a run to the next, at least.

        Where the setting leaves it open, a save waits until the one before is written, while the
        other runs write too. For how long training waits, only the run itself measures: here that
        counts as nothing.
        """
        interval = save_interval(self.checkpoint_seconds, waiting_seconds=0.0)
        if self.checkpoint_seconds is not None:
            return interval
        return max(interval, self.concurrent_runs * self.write_seconds)

    @property
    def final_seconds(self) -> float:
        """Seconds that the sweep takes for its runs' last checkpoints, for which each run waits
        until they are written. The other saves are written while it trains."""
        return self.runs * self.write_seconds

    def describe(self) -> str:
        """A line of a plan."""
        seconds = format_hours(self.write_seconds / 3600)
        interval = format_hours(self.interval / 3600)
        line = (
            f"checkpoints: {format_bytes(self.size)} each, {self.kept} kept per run and one more"
            f" while it is written, {format_bytes(self.most_bytes)} at most for the sweep;"
            f" {seconds} to write one at {self.rate}; a run saves every {interval} or less often"
        )
        if self.interval < self.concurrent_runs * self.write_seconds:
            line += (
                f"; training waits for the disk, as run.checkpoint_seconds={self.interval:g} is"
                " shorter than the writing takes"
            )
        return line


def plan_checkpoints(
    run: RunConfig, size: int, *, runs: int, concurrent_runs: int, folder: Path | None = None
) -> CheckpointPlan:
    """What a sweep's checkpoints of `size` bytes take, with as many kept as the setting says.

    runs, concurrent_runs: of the sweep, and how many of them train at a time. folder: the sweep's,
    where it is on this machine, whose disk is tried; None where it is not.
    """
    kept = run.keep_checkpoints or DEFAULT_KEPT_CHECKPOINTS
    rate = find_disk_rate(run, size, folder)
    return CheckpointPlan(size, kept, runs, concurrent_runs, rate, run.checkpoint_seconds)


def find_disk_rate(run: RunConfig, size: int, folder: Path | None) -> DiskRate:
    """How fast a checkpoint of `size` bytes is written: as set, measured, or assumed.

    folder: in which it will be, where that is on this machine; None where it is not.
    """
    if run.disk_rate is not None:
        return DiskRate(run.disk_rate * MEGABYTE, "run.disk_rate")
    if folder is not None:
        try:
            return DiskRate(measure_write_rate(folder, size), "a test write here")
        except OSError:  # such as a full disk, which the check of its room answers
            pass
    return DiskRate(ASSUMED_RATE, "assumed; run.disk_rate sets it")


def measure_write_rate(folder: Path, size: int) -> float:
    """Bytes/s at which a file gets onto the disk of `folder`, which need not exist yet.

    size: bytes of what will be written; as many are tried, within limits. The file has no name, so
    that nothing of it is left whatever happens. OSError where it cannot be written.
    """
    trial_bytes = max(1, min(size, MAX_TRIAL_BYTES))
    block = os.urandom(min(trial_bytes, TRIAL_BLOCK))  # no zeros, which a disk may compress
    written = 0
    with tempfile.TemporaryFile(dir=_existing_folder(folder), buffering=0) as file:
        started_at = time.perf_counter()
        seconds = 0.0
        while written < trial_bytes and seconds < MAX_TRIAL_SECONDS:
            written += file.write(block)
            os.fsync(file.fileno())
            seconds = time.perf_counter() - started_at
    return written / max(seconds, 1e-9)


def fit_to_disk(
    config: Config, cells: Sequence[Cell], folder: Path, size: int, concurrent_runs: int
) -> int:
    """How many checkpoints of each run are kept: as set, or as many as the disk has room for.

    folder: the sweep's, which need not exist yet. size: bytes of a checkpoint. concurrent_runs:
    that train at a time. Not set, it is DEFAULT_KEPT_CHECKPOINTS, or 1 where there is no room for
    more. InputError where there is not even room for that.
    """
    setting = config.run.keep_checkpoints
    most_kept = setting or DEFAULT_KEPT_CHECKPOINTS
    free = free_bytes(folder)
    if (len(cells) * most_kept + concurrent_runs) * size <= free:
        return most_kept

    # Of a sweep that goes on, runs that are done need no more room, and what the others have
    # written already makes way for what they will write.
    unfinished = _unfinished_cells(config, cells, folder)
    if not unfinished:
        return most_kept
    written = sum(
        folder_bytes(folder / "cells" / cell.name / CHECKPOINT_FOLDER) for cell in unfinished
    )
    concurrent_runs = min(concurrent_runs, len(unfinished))

    fewest = setting or 1
    for kept in range(most_kept, fewest - 1, -1):
        if (len(unfinished) * kept + concurrent_runs) * size <= free + written:
            return kept

    needed = (len(unfinished) * fewest + concurrent_runs) * size
    keep_one = " keep one checkpoint of each run by run.keep_checkpoints=1," if fewest > 1 else ""
    raise InputError(
        where=folder,
        found=f"its disk has {format_bytes(free)} free",
        expected=(
            f"{format_bytes(needed - written)} for the checkpoints of {len(unfinished)}"
            f" run{'s' * (len(unfinished) > 1)}: {format_bytes(size)} each, {fewest} kept per run"
            f" and one more while it is written, {concurrent_runs} at a time"
        ),
        fix=f"Make room,{keep_one} choose a larger disk by run.dir=FOLDER, or train fewer runs.",
    )


def _unfinished_cells(config: Config, cells: Sequence[Cell], folder: Path) -> Sequence[Cell]:
    """Those of a sweep's cells that are still to be trained, or trained further."""
    if not (folder / CONFIG_FILE).exists():
        return cells
    status = read_sweep_status(folder, planned=config)
    done = {summary.cell for summary in status.cells if summary.state == "done"}
    return [cell for cell in cells if cell not in done]


def free_bytes(folder: Path) -> int:
    """Bytes free on the disk of a folder, which need not exist yet."""
    return shutil.disk_usage(_existing_folder(folder)).free


def _existing_folder(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())
