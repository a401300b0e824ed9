"""The rows of a ledger's files: their meaning, and their checks when they are read.

A row is a JSON object on a line of its own, of one of these kinds:

cell    the first line of records.jsonl: B_p, n and seed, or a schedule, and the settings' hash
eval    an evaluation, the fields of EvalPoint
failed  the run broke off after update M, and why
timing  a line of timing.jsonl: the wall clock of an evaluation
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from isojax.core.atomic_files import read_file
from isojax.core.errors import InputError
from isojax.core.limits import MAX_COUNT, MAX_LINE_BYTES, MAX_SAMPLES
from isojax.core.nouns import SPEND_PREFIX, Cell, EvalPoint, RewardSums
from isojax.core.schedule import Stage, parse_schedule, schedule_text
from isojax.runs.logs.column_map import METRIC_AT_K

ROW_KINDS = ("cell", "eval", "failed", "timing")
SCHEMA = 1
ROUNDING = 0.006  # of a recorded mean: logs may round to two decimals
_POINT_ADAPTER = TypeAdapter(EvalPoint)

Row = Mapping[str, Any]


def header_row(cell: Cell, cell_hash: str) -> dict[str, Any]:
    """The first row of a cell's records.jsonl. cell_hash: of the settings that decide its result.

    {"kind": "cell", "schema": 1, "B_p": 16, "n": 8, "seed": 0, "cell_hash": "..."}, and for a
    schedule its name, its stages, n_max, and is_of_spend, whether `isojax spend` made it.
    """
    row: dict[str, Any] = {"kind": "cell", "schema": SCHEMA}
    row |= {"B_p": cell.B_p, "n": cell.n, "seed": cell.seed}
    if cell.schedule:
        # With n_max, the gradient decides during the run when n grows: only the first stage is
        # known here, and the points' C and M tell the others.
        stages = cell.stages[:1] if cell.n_max else cell.stages
        row |= {"schedule": cell.schedule, "stages": [list(stage) for stage in stages]}
        if cell.n_max:
            row["n_max"] = cell.n_max
        if cell.is_of_spend:
            row["is_of_spend"] = True
    return {**row, "cell_hash": cell_hash}


def is_header_of(row: Row, cell: Cell, cell_hash: str) -> bool:
    """Whether a ledger's first line is that of this run, also where it was written before
    is_of_spend was."""
    header = header_row(cell, cell_hash)
    older_header = {name: value for name, value in header.items() if name != "is_of_spend"}
    return row in (header, older_header)


def timing_row(point: EvalPoint, seconds: float, devices: int) -> dict[str, Any]:
    """`seconds`: of wall clock since the evaluation before."""
    return {"kind": "timing", "target": point.target, "seconds": seconds, "devices": devices}


class LedgerLines(NamedTuple):
    rows: list[dict[str, Any]]
    torn: bytes  # what there is of a last line that a kill or a full disk has cut; b"" for none


def read_ledger_lines(path: Path) -> LedgerLines:
    """The rows of records.jsonl or timing.jsonl, and what there is of a torn last line.

    InputError where the file cannot be read, or another line is broken.
    """
    try:
        data = read_file(path)
    except OSError as e:
        raise InputError(
            where=path,
            found=f"cannot be read: {e.strerror or e}",
        ) from e

    complete, _, torn = data.rpartition(b"\n")
    rows: list[dict[str, Any]] = []
    for line_number, line in enumerate(complete.split(b"\n") if complete else [], 1):
        try:
            rows.append(_parse_line(line))
        except (ValueError, RecursionError) as e:
            raise InputError(
                where=f"{path}, line {line_number}",
                found=f"broken ({e}); only a torn last line can be left out",
                fix="Restore the file, or remove the cell's folder and run it again.",
            ) from e
    return LedgerLines(rows, torn)


def _parse_line(line: bytes) -> dict[str, Any]:
    """ValueError, or RecursionError, where it is no row."""
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"longer than {MAX_LINE_BYTES:,} bytes")
    row = json.loads(line)
    if not isinstance(row, dict) or row.get("kind") not in ROW_KINDS:
        raise ValueError(f"expected a JSON object whose kind is one of {', '.join(ROW_KINDS)}")
    return row


class CellRecord(NamedTuple):
    """The content of a records.jsonl."""

    cell: Cell
    points: tuple[EvalPoint, ...]
    line_numbers: tuple[int, ...]  # of each point


def parse_rows(rows: Sequence[Row], path: Path) -> CellRecord:
    """The cell and the evaluations of a ledger's rows.

    rows: one or more, as many as the file has lines, the first of kind "cell". path: for messages.
    InputError where a row cannot be used, or where C or M fall.
    """
    header = rows[0]
    cell = parse_cell(header, f"{path}, line 1")
    for line_number, row in enumerate(rows[1:], 2):
        if row["kind"] == "cell":
            raise InputError(
                where=f"{path}, line {line_number}",
                found=f"begins another run ({row}) in the ledger of {header}",
                expected="one",
                fix="Split the file.",
            )

    line_numbers = tuple(i for i, row in enumerate(rows, 1) if row["kind"] == "eval")
    points = tuple(parse_point(rows[i - 1], f"{path}, line {i}") for i in line_numbers)
    for line_number, (before, after) in zip(line_numbers[1:], pairwise(points), strict=False):
        if problem := _describe_fall(before, after):
            raise InputError(
                where=f"{path}, line {line_number}",
                found=problem,
                expected="points that rise in C",
                fix="Correct or remove it.",
            )
    return CellRecord(cell, points, line_numbers)


def _describe_fall(before: EvalPoint, after: EvalPoint) -> str:
    """Why a point cannot follow another one; "" where it can. C has to rise, and M may stay."""
    if after.rollouts < before.rollouts:
        return f"rollouts fall from {before.rollouts} to {after.rollouts}"
    if after.rollouts == before.rollouts:
        return f"the point at {before.rollouts} rollouts is there twice"
    if after.M < before.M:
        return f"M falls from {before.M} to {after.M}"
    return ""


def failure_reason(rows: Sequence[Row]) -> str:
    """Why a run broke off after its last point; "" where it did not."""
    if not rows or rows[-1]["kind"] != "failed":
        return ""
    return str(rows[-1].get("reason", "failed"))


def parse_point(row: Row | EvalPoint, location: str) -> EvalPoint:
    """A row of a ledger, or a point of a log, as a checked evaluation.

    location: file and line. InputError where a field is missing or of another type, or where no run
    can measure such numbers.
    """
    try:
        point = _POINT_ADAPTER.validate_python(row)
        _check_ranges(point)
        return point
    except ValidationError as e:
        first = e.errors()[0]
        name = ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            problem = f"it has no {name!r}"
        else:
            problem = f"{name} is {first['input']!r}: {first['msg']}"
    except ValueError as e:
        problem = str(e)

    expected = "target, M, rollouts, tokens and metrics"
    raise InputError(
        where=location,
        found=f"not an evaluation ({problem})",
        expected=expected,
        fix="Correct it.",
    )


def _check_ranges(point: EvalPoint) -> None:
    """ValueError for an evaluation with numbers that no run can measure.

    Such as negative counts, an average above 1, or averages that contradict its counts: for each
    validation problem the sum of its samples' rewards, in `extra` those of further problem sets.
    """
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

    mean_metric = f"avg@{point.samples}"
    _check_mean(point, mean_metric, point.counts)
    for problem_set, sums in point.extra.items():
        _check_mean(point, f"{problem_set}/{mean_metric}", sums)


def _check_range(name: str, value: float, highest: float) -> None:
    if not 0 <= value <= highest:
        raise ValueError(f"{name} is {value}: it should be at least 0 and at most {highest:g}")


def _check_mean(point: EvalPoint, metric: str, sums: RewardSums) -> None:
    """ValueError where the sums of the problems' rewards give another mean than the metric says."""
    if not sums or not point.samples or metric not in point.metrics:
        return
    mean = sum(sums) / (len(sums) * point.samples)
    if abs(point.metrics[metric] - mean) > ROUNDING:
        raise ValueError(f"{metric} is {point.metrics[metric]:g}, and its counts give {mean:g}")


@cache
def _is_average(metric: str) -> bool:
    """Whether it is avg@k, or another of METRIC_AT_K, of whichever problem set."""
    return METRIC_AT_K.fullmatch(metric.rpartition("/")[2]) is not None


def parse_cell(header: Row, location: str) -> Cell:
    """The cell that the first line of a ledger names, with its schedule if it has one.

    header: of `header_row`. location: file and line. InputError for another schema, or for numbers
    that no cell has.
    """
    lowest_values = {"B_p": 1, "n": 1, "seed": 0}
    are_counts = all(
        type(header.get(name)) is int and lowest <= header[name] <= MAX_COUNT
        for name, lowest in lowest_values.items()
    )
    if not are_counts or header.get("schema") != SCHEMA:
        raise InputError(
            where=location,
            found=f"header {dict(header)} needs schema = {SCHEMA}, B_p and n from 1, seed from 0",
        )

    cell = Cell(header["B_p"], header["n"], header["seed"])
    return _with_schedule(cell, header, location) if "schedule" in header else cell


def _with_schedule(cell: Cell, header: Row, location: str) -> Cell:
    """The cell with the schedule that a ledger's header names.

    That is its name, its stages, n_max, and is_of_spend (whether `isojax spend` made it).
    InputError where these are not valid, or do not begin with the cell's B_p and n.
    """
    try:
        name = str(header["schedule"])
        stages = tuple(Stage(*stage) for stage in header["stages"])
        n_max = header.get("n_max", 0)
        for number in (n_max, *chain(*stages)):
            if type(number) is not int or not 0 <= number <= MAX_COUNT:
                raise ValueError("a number of it is no count")

        # Older ledgers have it in the schedule's name, which no config may give to another.
        is_named_by_spend = name == f"{SPEND_PREFIX}{cell.n}" and len(stages) == 1
        is_of_spend = header.get("is_of_spend", is_named_by_spend)
        if type(is_of_spend) is not bool:
            raise ValueError("is_of_spend is neither true nor false")

        # A schedule is valid where its text is read back as the same stages.
        is_schedule = name != "" and parse_schedule(schedule_text(stages)) == stages
        if not is_schedule or (stages[0].B_p, stages[0].n) != (cell.B_p, cell.n):
            raise ValueError("its stages are no schedule")
    except (LookupError, TypeError, ValueError) as e:
        raise InputError(
            where=location,
            found=f"the schedule of {dict(header)} cannot be used ({e})",
            fix="Restore the file.",
        ) from e
    return replace(cell, schedule=name, stages=stages, n_max=n_max, is_of_spend=is_of_spend)
