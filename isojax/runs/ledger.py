"""Writes and reads ledgers. A run's ledger is the file of its evaluations (points), one JSON line
each, which is only appended to and can be read by any tool.

A cell's folder contains `records.jsonl` (a header line of kind "cell", then lines of kind "eval";
the same bits whenever the same run is repeated), `timing.jsonl` (wall-clock times) and, once the
run has ended, `health.json`: whether it ended well. A torn last line, left by a kill or a full
disk, loses only that line. ledger_rows.py defines the lines."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from isojax.core.atomic_files import append_bytes, write_text
from isojax.core.cycle_collection import cycle_collection_paused
from isojax.core.errors import InputError
from isojax.core.limits import MAX_COUNT
from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.core.table_files import paths_below
from isojax.runs.ledger_rows import (
    failure_reason,
    header_row,
    is_header_of,
    parse_cell,
    parse_point,
    parse_rows,
    read_ledger_lines,
    timing_row,
)
from isojax.runs.setting_differences import describe_difference

RECORDS_FILE = "records.jsonl"
TIMING_FILE = "timing.jsonl"
HEALTH_FILE = "health.json"  # what flags a run as broken, written as it ends
# The option of commands that puts back runs flagged as broken (scaling/checks/run_health.py).
INCLUDE_FLAGGED = "--include-flagged"


class Ledger:
    """A cell's ledger, open for appending; a cell is one run of a sweep.

    `on_append` is called after each new point. A run that resumes from an older checkpoint measures
    some points again: those that are recorded already stay as they are.
    """

    def __init__(self, folder: Path, cell: Cell, cell_hash: str):
        """Open the ledger in a cell's folder, or begin it.

        A last line that is not complete, as after a kill, is removed. cell_hash: a hash of the
        settings that decide a run's result. InputError where the ledger is that of another cell or
        other settings.
        """
        self.folder = folder
        self.path = folder / RECORDS_FILE
        self.on_append: Callable[[], None] = lambda: None

        folder.mkdir(parents=True, exist_ok=True)
        _cut_torn_line(self.path)
        _cut_torn_line(folder / TIMING_FILE)

        header = header_row(cell, cell_hash)
        rows = read_ledger_lines(self.path).rows if self.path.exists() else []
        if not rows:
            _append_row(self.path, header)
        elif not is_header_of(rows[0], cell, cell_hash):
            raise InputError(
                where=self.path,
                found=f"belongs to another run ({rows[0]}), not to {header}",
                fix="Choose another name=.",
            )

        # What a resumed run needs: at which values of the grid of C it was evaluated, and how many
        # updates it had made by the last one.
        points = [row for row in rows if row["kind"] == "eval"]
        self.targets: list[int] = [row["target"] for row in points]
        self.last_update: int = points[-1]["M"] if points else 0

    def append(self, point: EvalPoint, seconds: float, devices: int) -> None:
        """Record a point, unless its target is recorded already.

        seconds: of wall clock since the point before. devices: how many the run uses.
        """
        if point.target in self.targets:
            return

        # The time goes first: a kill between the two leaves a time too many, which nothing reads,
        # and no point without its time.
        _append_row(self.folder / TIMING_FILE, timing_row(point, round(seconds, 6), devices))
        _append_row(self.path, {"kind": "eval", **asdict(point)})
        self.targets.append(point.target)
        self.last_update = point.M
        self.on_append()

    def record_failure(self, M: int, reason: str) -> None:
        """Record that the run broke off after update M, and why."""
        row = {"kind": "failed", "M": M, "reason": reason}
        if read_ledger_lines(self.path).rows[-1] != row:
            _append_row(self.path, row)


def _cut_torn_line(path: Path) -> None:
    torn = read_ledger_lines(path).torn if path.exists() else b""
    if torn:
        os.truncate(path, path.stat().st_size - len(torn))


def _append_row(path: Path, row: Mapping[str, Any]) -> None:
    append_bytes(path, (json.dumps(row) + "\n").encode())


def write_run(folder: Path, run: RunRecord) -> None:
    """Write a whole run that was measured elsewhere as a ledger in a new folder.

    That is records.jsonl and, where its device hours are known, timing.jsonl. InputError for a cell
    or a point that no run can have; FileExistsError where the folder is there.
    """
    # Check the cell and each point as a reader of the ledger would, before a file is written.
    header = header_row(run.cell, run.cell_hash)
    parse_cell(header, run.source)
    # asdict would copy every number of a point: of a million points, half a minute.
    points = ({"kind": "eval", **vars(parse_point(point, run.source))} for point in run.points)
    text = _rows_text([header, *points])

    folder.mkdir(parents=True)
    write_text(folder / RECORDS_FILE, text)
    if run.device_hours:
        hours_since_last = [after - before for before, after in pairwise((0.0, *run.device_hours))]
        timing = [
            timing_row(point, 3600 * hours / run.devices, run.devices)
            for point, hours in zip(run.points, hours_since_last, strict=True)
        ]
        write_text(folder / TIMING_FILE, _rows_text(timing))


def _rows_text(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def read_run(folder: Path, warn: Callable[[str], object] | None = None) -> RunRecord:
    """The run in a cell's folder, such as runs/NAME/cells/16x8-s0.

    warn: called with a sentence where a torn last line is left out. InputError where another line
    is broken, or where there is no evaluation yet.
    """
    path = folder / RECORDS_FILE
    rows, torn = read_ledger_lines(path)
    if torn and warn is not None:
        warn(f"{path}: the last line is torn and was left out")
    if not rows or rows[0]["kind"] != "cell" or not any(row["kind"] == "eval" for row in rows):
        raise InputError(
            where=path,
            found="no complete point after a cell header",
            fix="Go on with the run by --resume.",
        )

    record = parse_rows(rows, path)
    clock = _device_clock(folder, record.points)
    return RunRecord(
        record.cell,
        record.points,
        source=str(path),
        device_hours=clock.hours,
        cell_hash=str(rows[0].get("cell_hash", "")),
        failure_reason=failure_reason(rows),
        line_numbers=record.line_numbers,
        devices=clock.devices,
    )


class PointTiming(NamedTuple):
    seconds: float  # of wall clock since the point before
    devices: int


def read_timing(folder: Path) -> dict[int, PointTiming]:
    """The timing of each point, by its target; empty where timing.jsonl cannot be read."""
    try:
        timing = {
            int(row["target"]): PointTiming(float(row["seconds"]), int(row["devices"]))
            for row in read_ledger_lines(folder / TIMING_FILE).rows
            if row["kind"] == "timing"
        }
    except (InputError, KeyError, TypeError, ValueError, OverflowError):
        # A run without times can be fitted; a command that asks for device hours says that they are
        # missing.
        return {}
    numbers = [*timing, *chain.from_iterable(timing.values())]
    return timing if all(0 <= number <= MAX_COUNT for number in numbers) else {}


class _DeviceClock(NamedTuple):
    hours: tuple[float, ...]  # of all devices, until each point; empty where a time is missing
    devices: int  # at the last point; 1 where that is not known


def _device_clock(folder: Path, points: Sequence[EvalPoint]) -> _DeviceClock:
    """The device hours until each point, by timing.jsonl. points: those of the folder's ledger."""
    timing_of_target = read_timing(folder)
    timing = [
        timing_of_target[point.target] for point in points if point.target in timing_of_target
    ]
    if len(timing) < len(points) or timing[-1].devices < 1:
        return _DeviceClock((), 1)
    hours = accumulate(time.seconds * time.devices / 3600 for time in timing)
    return _DeviceClock(tuple(hours), timing[-1].devices)


class RecordedPoints(NamedTuple):
    points: Sequence[EvalPoint]  # the complete ones so far
    failure_reason: str  # why the run broke off after them; "" where it did not


def recorded_points(folder: Path) -> RecordedPoints:
    """What a run has recorded so far, which may be nothing; InputError where a line cannot be
    used."""
    path = folder / RECORDS_FILE
    rows = read_ledger_lines(path).rows if path.exists() else []
    points = parse_rows(rows, path).points if rows else ()
    return RecordedPoints(points, failure_reason(rows))


def ledger_folders(paths: Iterable[str | Path]) -> list[Path]:
    """The folders of all cells below the given paths.

    paths: each a sweep's folder, a cell's folder or a records.jsonl. InputError where one has none.
    """
    folders: list[Path] = []
    for path in map(Path, paths):
        if path.name == RECORDS_FILE and path.is_file():
            ledgers = [path]
        else:
            ledgers = paths_below(path, RECORDS_FILE)

        if not ledgers:
            raise InputError(
                where=path,
                found=f"no {RECORDS_FILE}" if path.exists() else "no such run",
                expected=f"a sweep's folder (runs/NAME), a run's folder or a {RECORDS_FILE}",
                fix="`isojax records import LOG` makes them of another trainer's log.",
            )
        folders += [ledger.parent for ledger in ledgers]
    return folders


@cycle_collection_paused()
def read_runs(
    paths: Iterable[str | Path], warn: Callable[[str], object] | None = None
) -> list[RunRecord]:
    """All runs below these folders or ledgers, sorted by cell.

    warn: as of `read_run`. InputError if a path has none, one is unusable, or two clash.
    """
    runs = [read_run(folder, warn) for folder in ledger_folders(paths)]
    runs.sort(key=lambda run: run.cell)
    conflict = next(run_conflicts(runs), None)
    if conflict is not None:
        raise InputError(conflict)
    return runs


def default_metric(runs: Sequence[RunRecord]) -> str:
    """The metric a fit takes where none is asked for, such as "avg@4".

    avg@k of the evaluations' k samples, else the first that the first run has recorded. That run
    has an evaluation, as each that `read_run` returns. InputError without runs.
    """
    if not runs:
        raise InputError(
            found="there is no run to fit",
            expected="at least one RunRecord, as isojax.read_runs returns them",
        )
    first_point = runs[0].points[0]
    avg_metric = f"avg@{first_point.samples}"
    if avg_metric in first_point.metrics:
        return avg_metric
    return next(iter(first_point.metrics), avg_metric)


def run_conflicts(runs: Sequence[RunRecord]) -> Iterator[str]:
    """The reasons why runs cannot be fitted together, a sentence each.

    Two ledgers of one cell and seed, or different settings. runs: sorted by cell, as only
    neighbours are compared.
    """
    for a, b in pairwise(runs):
        both_sources = f"{a.source}, line 1 and {b.source}, line 1"
        if a.cell == b.cell:
            yield (
                f"two ledgers of {a.cell.name}: {both_sources}. "
                "Fit one sweep at a time, or give each its own seeds."
            )

        if a.cell_hash != b.cell_hash:
            # the names and values of settings; "" where a sweep's config is not there to compare
            difference = describe_difference(a, b)
            if difference:
                different = f"different settings: {difference}"
            else:
                hashes = f"{a.cell_hash!r} and {b.cell_hash!r}"
                different = (
                    "different `cell` settings, or sampled by different engines "
                    f"(run.rollouts, run.evaluations): {hashes}, expected one"
                )
            yield (
                f"{both_sources} were run with {different}; "
                "one law cannot describe both. Fit them separately."
            )
