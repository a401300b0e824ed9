"""The run ledger, written and read: what a run measured, one JSON line per point, append-only,
readable by any tool.

A cell's folder holds `records.jsonl` (a header line of kind "cell", then lines of kind "eval"; the
same bits whenever the same run is repeated), `timing.jsonl` (wall-clock times) and, once it has
ended, `health.json`, whether it ended well. A torn last line, left by a kill or a full disk, loses
that line alone."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from isojax.core.atomic_files import append_bytes, read_file, write_text
from isojax.core.cycle_collection import cycle_collection_paused
from isojax.core.errors import InputError
from isojax.core.limits import MAX_COUNT, MAX_LINE_BYTES, MAX_SAMPLES
from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.core.schedule import Stage, parse_schedule, schedule_text
from isojax.core.table_files import paths_below
from isojax.runs.logs.column_map import METRIC_AT_K

RECORDS_FILE = "records.jsonl"
TIMING_FILE = "timing.jsonl"
HEALTH_FILE = "health.json"  # what flags a run as broken, written as it ends
ROW_KINDS = ("cell", "eval", "failed", "timing")
SCHEMA = 1
ROUNDING = 0.006  # of a recorded mean: logs may round to two decimals
# The option of commands that puts back runs flagged as broken (scaling/checks/run_health.py).
INCLUDE_FLAGGED = "--include-flagged"
_POINT_ADAPTER = TypeAdapter(EvalPoint)


class Ledger:
    """A cell's ledger, open for appending; opening cuts a torn last line. A point that is recorded
    already, as a run meets that resumes from an older checkpoint, stays as it is. `on_append` is
    called after each new point."""

    def __init__(self, folder: Path, cell: Cell, cell_hash: str):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.path = folder, folder / RECORDS_FILE
        self.on_append: Callable[[], None] = lambda: None
        for path in (self.path, folder / TIMING_FILE):
            if path.exists() and (torn := read_ledger_lines(path)[1]):
                os.truncate(path, path.stat().st_size - len(torn))
        header = _header_row(cell, cell_hash)
        rows = read_ledger_lines(self.path)[0] if self.path.exists() else []
        if not rows:
            _append_row(self.path, header)
        elif rows[0] != header:
            raise InputError(
                f"{self.path} belongs to another run ({rows[0]}), not to {header}; choose another name=."
            )
        points = [row for row in rows if row["kind"] == "eval"]
        self.targets: list[int] = [row["target"] for row in points]
        self.last_update: int = points[-1]["M"] if points else 0

    def append(self, point: EvalPoint, seconds: float, devices: int) -> None:
        """Record a point and the seconds of wall clock since the one before, unless its target is
        recorded already."""
        if point.target in self.targets:
            return
        _append_row(self.folder / TIMING_FILE, _timing_row(point, round(seconds, 6), devices))
        _append_row(self.path, {"kind": "eval", **asdict(point)})
        self.targets.append(point.target)
        self.last_update = point.M
        self.on_append()

    def record_failure(self, M: int, reason: str) -> None:
        """Record that the run broke off after update M, and why."""
        row = {"kind": "failed", "M": M, "reason": reason}
        if read_ledger_lines(self.path)[0][-1] != row:
            _append_row(self.path, row)


def write_run(folder: Path, run: RunRecord) -> None:
    """A whole run, measured elsewhere, as records.jsonl and, where its device hours are known,
    timing.jsonl."""
    header = _header_row(run.cell, run.cell_hash)
    parse_cell(header, run.source)
    # asdict would copy every number of a point: of a million points, half a minute.
    points = ({"kind": "eval", **vars(parse_point(point, run.source))} for point in run.points)
    text = _rows_text([header, *points])
    folder.mkdir(parents=True)
    write_text(folder / RECORDS_FILE, text)
    if run.device_hours:
        hours = [b - a for a, b in pairwise((0.0, *run.device_hours))]
        rows = zip(run.points, hours, strict=True)
        timing = [_timing_row(point, 3600 * h / run.devices, run.devices) for point, h in rows]
        write_text(folder / TIMING_FILE, _rows_text(timing))


def _append_row(path: Path, row: Mapping[str, Any]) -> None:
    append_bytes(path, (json.dumps(row) + "\n").encode())


def _rows_text(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _header_row(cell: Cell, cell_hash: str) -> dict[str, Any]:
    schedule: dict[str, Any] = {}
    # where the gradient decides, its first stage: the points' C and M tell the others
    if cell.schedule:
        stages = cell.stages[:1] if cell.n_max else cell.stages
        schedule = {"schedule": cell.schedule, "stages": [list(stage) for stage in stages]}
        schedule |= {"n_max": cell.n_max} if cell.n_max else {}
    sizes = {"B_p": cell.B_p, "n": cell.n, "seed": cell.seed}
    return {"kind": "cell", "schema": SCHEMA, **sizes, **schedule, "cell_hash": cell_hash}


def _timing_row(point: EvalPoint, seconds: float, devices: int) -> dict[str, Any]:
    return {"kind": "timing", "target": point.target, "seconds": seconds, "devices": devices}


def read_ledger_lines(path: Path) -> tuple[list[dict[str, Any]], bytes]:
    """The rows of a ledger's file, and what there is of a torn last line; InputError where another
    line is broken."""
    try:
        data = read_file(path)
    except OSError as e:
        raise InputError(f"cannot read the ledger {path}: {e.strerror or e}") from e
    complete, _, torn = data.rpartition(b"\n")
    rows: list[dict[str, Any]] = []
    for line_number, line in enumerate(complete.split(b"\n") if complete else [], 1):
        try:
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(f"longer than {MAX_LINE_BYTES:,} bytes")
            row = json.loads(line)
            if not isinstance(row, dict) or row.get("kind") not in ROW_KINDS:
                raise ValueError(
                    f"expected a JSON object whose kind is one of {', '.join(ROW_KINDS)}"
                )
        except (ValueError, RecursionError) as e:
            problem = (
                f"{path}, line {line_number} is broken ({e}); only a torn last line can be left out"
            )
            raise InputError(
                f"{problem}. Restore the file, or remove the cell's folder and run it again."
            ) from e
        rows.append(row)
    return rows, torn


def parse_point(row: Mapping[str, Any] | EvalPoint, location: str) -> EvalPoint:
    """A ledger's row, or a log's point, as an evaluation; InputError where no run can measure its
    numbers."""
    try:
        point = _POINT_ADAPTER.validate_python(row)
        _check_ranges(point)
        return point
    except ValidationError as e:
        first = e.errors()[0]
        name = ".".join(map(str, first["loc"]))
        is_missing = first["type"] == "missing"
        problem = (
            f"it has no {name!r}" if is_missing else f"{name} is {first['input']!r}: {first['msg']}"
        )
    except ValueError as e:
        problem = str(e)
    expected = "target, M, rollouts, tokens and metrics"
    raise InputError(
        f"{location} is not an evaluation ({problem}); expected {expected}. Correct it."
    )


@cache
def _is_average(metric: str) -> bool:
    """Whether it is avg@k, or another of METRIC_AT_K, of whichever problem set."""
    return METRIC_AT_K.fullmatch(metric.rpartition("/")[2]) is not None


def _check_range(name: str, value: float, highest: float) -> None:
    if not 0 <= value <= highest:
        raise ValueError(f"{name} is {value}: it should be at least 0 and at most {highest:g}")


def _check_ranges(point: EvalPoint) -> None:
    _check_range("samples", point.samples, MAX_SAMPLES)
    for count in chain(point.counts, *point.extra.values()):
        _check_range("counts", count, point.samples)
    _check_range("target", point.target, MAX_COUNT)
    _check_range("M", point.M, MAX_COUNT)
    _check_range("rollouts", point.rollouts, MAX_COUNT)
    _check_range("tokens", point.tokens, MAX_COUNT)
    for metric, value in point.metrics.items():
        if _is_average(metric):
            _check_range(metric, value, 1.0)
    for problem_set, sums in {"": point.counts, **point.extra}.items():
        name = f"{problem_set}/avg@{point.samples}".lstrip("/")
        if sums and point.samples and name in point.metrics:
            mean = sum(sums) / (len(sums) * point.samples)
            if abs(point.metrics[name] - mean) > ROUNDING:
                raise ValueError(f"{name} is {point.metrics[name]:g}, and its counts give {mean:g}")


def parse_cell(header: Mapping[str, Any], location: str) -> Cell:
    """The cell that a ledger's first line names; InputError where it is of another schema, or no
    run's."""
    values = [header.get(name) for name in ("B_p", "n", "seed")]
    are_counts = all(
        type(v) is int and low <= v <= MAX_COUNT for v, low in zip(values, (1, 1, 0), strict=True)
    )
    if not are_counts or header.get("schema") != SCHEMA:
        raise InputError(
            f"{location}: header {dict(header)} needs schema = {SCHEMA}, B_p and n from 1, seed from 0."
        )
    return Cell(header["B_p"], header["n"], header["seed"], *_parse_schedule(header, location))


def _parse_schedule(header: Mapping[str, Any], location: str) -> tuple[str, tuple[Stage, ...], int]:
    """The name, the stages and n_max of a run's schedule, if it has one."""
    if "schedule" not in header:
        return "", (), 0
    try:
        name = str(header["schedule"])
        stages = tuple(Stage(*stage) for stage in header["stages"])
        n_max = header.get("n_max", 0)
        if not all(
            type(number) is int and 0 <= number <= MAX_COUNT for number in (n_max, *chain(*stages))
        ):
            raise ValueError("a number of it is no count")
        if (
            not name
            or parse_schedule(schedule_text(stages)) != stages
            or stages[0][1:] != (header["B_p"], header["n"])
        ):
            raise ValueError("its stages are no schedule")
    except (LookupError, TypeError, ValueError) as e:
        raise InputError(
            f"{location}: the schedule of {dict(header)} cannot be used ({e}). Restore the file."
        ) from e
    return name, stages, n_max


def read_run(folder: Path, warn: Callable[[str], object] | None = None) -> RunRecord:
    """One cell's folder as a RunRecord; `warn` says that a torn last line is left out; InputError
    for another."""
    path = folder / RECORDS_FILE
    rows, torn = read_ledger_lines(path)
    if torn and warn is not None:
        warn(f"{path}: the last line is torn and was left out")
    if not rows or rows[0]["kind"] != "cell" or not any(row["kind"] == "eval" for row in rows):
        raise InputError(
            f"{path} holds no complete point after a cell header. Go on with the run by --resume."
        )
    cell, points, line_numbers = _parse_rows(rows, path)
    device_hours, devices = _device_hours(folder, points)
    cell_hash, failure = str(rows[0].get("cell_hash", "")), _failure_reason(rows)
    return RunRecord(
        cell, points, str(path), device_hours, cell_hash, failure, line_numbers, devices
    )


def _parse_rows(
    rows: Sequence[Mapping[str, Any]], path: Path
) -> tuple[Cell, tuple[EvalPoint, ...], tuple[int, ...]]:
    """(the cell, its points, the line of each) of a ledger that has a line; InputError where a row
    cannot be used."""
    header = rows[0]
    cell = parse_cell(header, f"{path}, line 1")
    for i, row in enumerate(rows[1:], 2):
        if row["kind"] == "cell":
            problem = f"{path}, line {i} begins another run ({row}) in the ledger of {header}"
            raise InputError(f"{problem}; expected one. Split the file.")
    line_numbers = tuple(i for i, row in enumerate(rows, 1) if row["kind"] == "eval")
    points = tuple(parse_point(rows[i - 1], f"{path}, line {i}") for i in line_numbers)
    for i, (a, b) in zip(line_numbers[1:], pairwise(points), strict=False):
        if b.rollouts <= a.rollouts or b.M < a.M:
            names = (
                ("rollouts fall", a.rollouts, b.rollouts)
                if b.rollouts < a.rollouts
                else ("M falls", a.M, b.M)
            )
            problem = "{} from {} to {}".format(*names)
            if b.rollouts == a.rollouts:
                problem = f"the point at {a.rollouts} rollouts is there twice"
            raise InputError(
                f"{path}, line {i}: {problem}; expected points that rise in C. Correct or remove it."
            )
    return cell, points, line_numbers


def read_timing(folder: Path) -> dict[int, tuple[float, int]]:
    """target -> (seconds of wall clock since the point before, devices); empty where timing.jsonl
    cannot be read."""
    try:
        rows, _ = read_ledger_lines(folder / TIMING_FILE)
        times = {
            int(r["target"]): (float(r["seconds"]), int(r["devices"]))
            for r in rows
            if r["kind"] == "timing"
        }
        numbers = [*times, *chain.from_iterable(times.values())]
        return times if all(0 <= number <= MAX_COUNT for number in numbers) else {}
    except (InputError, KeyError, TypeError, ValueError, OverflowError):
        # A run without times can be fitted; a command that asks for device hours says that they are
        # missing.
        return {}


def _device_hours(folder: Path, points: Sequence[EvalPoint]) -> tuple[tuple[float, ...], int]:
    """(device hours at each point, devices at the last), from timing.jsonl; ((), 1) where a clock
    is missing."""
    timing = read_timing(folder)
    timed_points = [timing[point.target] for point in points if point.target in timing]
    if len(timed_points) < len(points) or timed_points[-1][1] < 1:
        return (), 1
    return tuple(
        accumulate(seconds * devices / 3600 for seconds, devices in timed_points)
    ), timed_points[-1][1]


def recorded_points(folder: Path) -> tuple[Sequence[EvalPoint], str]:
    """(the complete points so far; why the run broke off after them); InputError where a line
    cannot be used."""
    path = folder / RECORDS_FILE
    rows = read_ledger_lines(path)[0] if path.exists() else []
    points = _parse_rows(rows, path)[1] if rows else ()
    return points, _failure_reason(rows)


def _failure_reason(rows: Sequence[Mapping[str, Any]]) -> str:
    return str(rows[-1].get("reason", "failed")) if rows and rows[-1]["kind"] == "failed" else ""


def ledger_folders(paths: Iterable[str | Path]) -> list[Path]:
    """The cells' folders below the given sweep folders, cell folders or ledgers; InputError where
    one holds none."""
    folders: list[Path] = []
    for path in map(Path, paths):
        is_ledger = path.name == RECORDS_FILE and path.is_file()
        cell_folders = (
            [path.parent] if is_ledger else [p.parent for p in paths_below(path, RECORDS_FILE)]
        )
        if not cell_folders:
            problem = f"{path} holds no {RECORDS_FILE}" if path.exists() else f"no such run: {path}"
            expected = f"Expected a sweep's folder (runs/NAME), a run's folder or a {RECORDS_FILE}"
            raise InputError(
                f"{problem}. {expected}; `isojax records import LOG` makes them of another trainer's log."
            )
        folders += cell_folders
    return folders


@cycle_collection_paused()
def read_runs(
    paths: Iterable[str | Path], warn: Callable[[str], object] | None = None
) -> list[RunRecord]:
    """All runs below these folders or ledgers, by cell; InputError if there is none, one is
    unusable, or two clash."""
    runs = sorted(
        (read_run(folder, warn) for folder in ledger_folders(paths)), key=lambda r: r.cell
    )
    if (conflict := next(run_conflicts(runs), None)) is not None:
        raise InputError(conflict)
    return runs


def default_metric(runs: Sequence[RunRecord]) -> str:
    """The metric a fit takes where none is asked for: avg@k of the evaluations' k samples, else the
    first recorded."""
    if not runs:
        raise InputError(
            "there is no run to fit; expected at least one RunRecord, as isojax.read_runs returns them."
        )
    first_point = runs[0].points[0]
    avg_metric = f"avg@{first_point.samples}"
    return (
        avg_metric
        if avg_metric in first_point.metrics
        else next(iter(first_point.metrics), avg_metric)
    )


def run_conflicts(runs: Sequence[RunRecord]) -> Iterator[str]:
    """Why sorted runs cannot be fitted together: two of one cell, or different `cell` settings."""
    for a, b in pairwise(runs):
        both_sources = f"{a.source}, line 1 and {b.source}, line 1"
        if a.cell == b.cell:
            yield f"two ledgers of {a.cell.name}: {both_sources}. Fit one sweep at a time, or give each its own seeds."
        if a.cell_hash != b.cell_hash:
            problem = f"{both_sources} were run with different `cell` settings ({a.cell_hash!r} and {b.cell_hash!r})"
            yield f"{problem}, expected one: one law cannot describe both. Fit them separately."
