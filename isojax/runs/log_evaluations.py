"""One run's rows -> its evaluations: a step's rows joined, training metrics averaged since the last evaluation, C from
steps if need be.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from isojax.core.errors import InputError
from isojax.core.nouns import Cell, EvalPoint
from isojax.runs.log_fields import ColumnMap
from isojax.runs.log_table import LogRow, LogTable
from isojax.runs.log_values import describe_cell, is_blank, read_correct_counts, read_integer, read_number

_MEAN_AT_K = re.compile(r"(?:mean|avg)@([1-9]\d*)$")
_CUMULATIVE_FIELDS = ("rollouts", "tokens", "device_hours")


@dataclass
class StepEntry:
    """All that a log says of one step of a run."""

    clock: int
    first_row: LogRow
    values: dict[str, Any] = field(default_factory=dict)
    source_rows: dict[str, LogRow] = field(default_factory=dict)
    blank_rows: dict[str, LogRow] = field(default_factory=dict)


def metric_fields(column_map: ColumnMap) -> list[str]:
    """The fields that a row is read for: validation and training metrics."""
    return [name for name in column_map.columns if _is_validation(name) or _is_training(name)]


def has_metric_cell(row: LogRow, column_map: ColumnMap) -> bool:
    """Whether a row has a cell, be it empty, for any of them."""
    return any(column_map.columns[name] in row.values for name in metric_fields(column_map))


def _is_validation(name: str) -> bool:
    return name in ("reward", "counts") or name.startswith("metric:")


def _is_training(name: str) -> bool:
    return name in ("train_reward", "response_length") or name.startswith("train:")


def main_metric_field(column_map: ColumnMap) -> str:
    """The validation metric that makes a row an evaluation: `reward`, else the right answers, else the first further
    one.
    """
    validation_fields = [name for name in column_map.columns if _is_validation(name)]
    return min(validation_fields, key=lambda name: (name != "reward", name != "counts"))


def ledger_metric_name(name: str, column_map: ColumnMap) -> str:
    """A validation metric's name in the ledger: as asked (metric:NAME), else the column's own, avg@k where that ends in
    mean@k or avg@k.
    """
    if name == "counts":
        return "right answers"
    if name != "reward":
        return name.removeprefix("metric:")
    column = column_map.columns[name]
    match = _MEAN_AT_K.search(column)
    return f"avg@{match[1]}" if match else column


def _row_values(row: LogRow, table: LogTable, column_map: ColumnMap) -> tuple[dict[str, Any], list[str]]:
    """(a row's measurements and clocks by field, the fields whose cell is empty); a training metric nobody asked for
    may be NaN.
    """
    values: dict[str, Any] = {}
    blank_fields = []
    for name, column in column_map.columns.items():
        if column not in row.values or not (_is_validation(name) or _is_training(name) or name in _CUMULATIVE_FIELDS):
            continue
        value = row.values[column]
        if is_blank(value):
            blank_fields.append(name)
        elif name == "counts":
            values[name] = read_correct_counts(
                row, table, column_map, read_integer("samples", row, table, column_map, 1)
            )
        elif name in _CUMULATIVE_FIELDS:
            values[name] = (
                read_number(name, row, table, column_map)
                if name == "device_hours"
                else read_integer(name, row, table, column_map, 0)
            )
        elif not (_is_training(name) and name in column_map.detected and _is_nan(value)):
            values[name] = read_number(name, row, table, column_map)
    return values, blank_fields


def _is_nan(value: Any) -> bool:
    try:
        return not math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def _join_steps(rows: Sequence[LogRow], table: LogTable, column_map: ColumnMap) -> list[StepEntry]:
    """Rows of one step joined, in rising order.

    Raises:
        InputError: steps (or rollouts) that fall, or a value given twice at one step, with both places.
    """
    clock_field = "step" if "step" in column_map else "rollouts"
    entries: list[StepEntry] = []
    for row in rows:
        clock = read_integer(clock_field, row, table, column_map, 0)
        if entries and clock < entries[-1].clock:
            problem = f"{clock_field} falls from {entries[-1].clock} ({entries[-1].first_row.location}) to {clock}"
            fix = "Sort the file, or tell its runs apart with --map run=COLUMN."
            raise InputError(
                f"{table.source}, {row.location}: {problem}; expected {clock_field} that rises within a run. {fix}"
            )
        if not entries or clock > entries[-1].clock:
            entries.append(StepEntry(clock, row))
        entry = entries[-1]
        values, blank_fields = _row_values(row, table, column_map)
        duplicate = next(
            (
                name
                for name in values
                if name in entry.values and (name not in _CUMULATIVE_FIELDS or entry.values[name] != values[name])
            ),
            None,
        )
        if duplicate is not None:
            earlier_values = (
                f"{entry.values[duplicate]!r} at {entry.source_rows[duplicate].location} and {values[duplicate]!r} here"
            )
            fix = "Remove one, or tell the runs apart with --map run=COLUMN or seed=COLUMN."
            location = describe_cell(row, table, column_map, duplicate)
            raise InputError(
                f"{location}: the point at {clock_field} {clock} is there twice ({earlier_values}); expected once. {fix}"
            )
        entry.values |= values
        entry.source_rows |= dict.fromkeys(values, row)
        entry.blank_rows |= dict.fromkeys(blank_fields, row)
    return entries


def _entry_rollouts(entry: StepEntry, table: LogTable, column_map: ColumnMap, cell: Cell) -> int:
    """C of an entry: as the log has it, else steps x B_p x n."""
    if "rollouts" not in column_map:
        return entry.clock * cell.B
    if "rollouts" not in entry.values:
        read_integer("rollouts", entry.blank_rows.get("rollouts", entry.first_row), table, column_map, 0)
    return int(entry.values["rollouts"])


def _evaluation_metrics(entry: StepEntry, table: LogTable, column_map: ColumnMap) -> dict[str, float]:
    """An evaluation's metrics by their names in the ledger, each in [0, 1]; none where the entry holds training only.

    Raises:
        InputError: a metric outside [0, 1], or an empty cell where a metric is due.
    """
    main_field = main_metric_field(column_map)
    has_training = any(_is_training(name) for name in entry.values)
    for name in column_map.columns:
        if name in entry.blank_rows and _is_validation(name) and (main_field in entry.values or not has_training):
            read_number(name, entry.blank_rows[name], table, column_map)
    if main_field not in entry.values:
        return {}
    scale = float(column_map.constants.get("scale", 1))
    metrics: dict[str, float] = {}
    for name in sorted(
        column_map.columns, key=lambda name: name != main_field
    ):  # the main one first: it is the one fitted by default
        if name in entry.values and _is_validation(name) and name != "counts":
            value = entry.values[name] * scale
            if not 0 <= value <= 1:
                location = describe_cell(entry.source_rows[name], table, column_map, name)
                fix = "Percent: --map scale=0.01; otherwise mend it or name another column."
                raise InputError(f"{location} is {value:g}, expected a number in [0, 1]. {fix}")
            metrics[ledger_metric_name(name, column_map)] = value
    if "counts" in entry.values:
        samples = read_integer("samples", entry.source_rows["counts"], table, column_map, 1)
        correct_counts = entry.values["counts"]
        metrics.setdefault(f"avg@{samples}", sum(correct_counts) / (samples * len(correct_counts)))
    return metrics


def _samples_per_problem(entry: StepEntry, table: LogTable, column_map: ColumnMap) -> int:
    if "samples" in column_map:
        return read_integer("samples", entry.source_rows.get("counts", entry.first_row), table, column_map, 1)
    match = re.fullmatch(r"avg@(\d+)", ledger_metric_name(main_metric_field(column_map), column_map))
    return int(match[1]) if match else 0


def _mean_train_metrics(entries: Sequence[StepEntry]) -> dict[str, float]:
    """Means of the training metrics over the rows of a stretch that have them."""
    values_by_metric: dict[str, list[float]] = {}
    for entry in entries:
        for name, value in entry.values.items():
            if _is_training(name):
                key = {"train_reward": "reward"}.get(name, name.removeprefix("train:"))
                values_by_metric.setdefault(key, []).append(value)
    return {name: sum(values) / len(values) for name, values in values_by_metric.items()}


def _cumulative_rollouts(entries: Sequence[StepEntry], table: LogTable, column_map: ColumnMap, cell: Cell) -> list[int]:
    """C at each entry; a training row that does not say it has that of the row before."""
    C: list[int] = []
    for entry in entries:
        has_rollouts = (
            "rollouts" not in column_map
            or "rollouts" in entry.values
            or any(_is_validation(name) for name in entry.values)
        )
        C.append(_entry_rollouts(entry, table, column_map, cell) if has_rollouts else (C or [0])[-1])
    return C


def _cumulative_tokens(entries: Sequence[StepEntry], C: Sequence[int]) -> list[float]:
    """Response tokens at each entry: mean length x rollouts, each length standing for the rollouts since the last one
    logged.

    Where the evaluation comes between two logged lengths, the last one goes on.
    """
    tokens: list[float] = []
    total_tokens, counted_rollouts, mean_length = 0.0, 0, 0.0
    for entry, rollouts in zip(entries, C, strict=True):
        if "response_length" in entry.values:
            mean_length = entry.values["response_length"]
            total_tokens, counted_rollouts = total_tokens + mean_length * (rollouts - counted_rollouts), rollouts
        tokens.append(max([total_tokens + mean_length * (rollouts - counted_rollouts), *tokens[-1:]]))
    return tokens


def read_evaluations(
    rows: Sequence[LogRow], table: LogTable, column_map: ColumnMap, cell: Cell
) -> tuple[tuple[EvalPoint, ...], tuple[float, ...], list[str]]:
    """A run's evaluations, the device hours at each (empty where the log has none), and what was left out.

    Raises:
        InputError: no evaluation, a point twice, compute that falls, a metric outside [0, 1], a cell that is missing or
        no number; with
            file and line (or step).
    """
    points: list[EvalPoint] = []
    device_hours: list[float] = []
    entries_since_evaluation: list[StepEntry] = []
    partial_evaluations = 0
    entries = _join_steps(rows, table, column_map)
    C = _cumulative_rollouts(entries, table, column_map, cell)
    for entry, rollouts, estimated_tokens in zip(entries, C, _cumulative_tokens(entries, C), strict=True):
        metrics = _evaluation_metrics(entry, table, column_map)
        entries_since_evaluation.append(entry)
        if not metrics:
            partial_evaluations += any(_is_validation(name) for name in entry.values)
            continue
        _require_rising_rollouts(points, rollouts, entry, table)
        M = entry.clock if "step" in column_map else round(rollouts / cell.B)
        tokens = _logged_tokens(points, entry, table, column_map) if "tokens" in column_map else round(estimated_tokens)
        correct_counts, samples = entry.values.get("counts", ()), _samples_per_problem(entry, table, column_map)
        points.append(
            EvalPoint(
                rollouts,
                M,
                rollouts,
                tokens,
                metrics,
                correct_counts,
                samples,
                _mean_train_metrics(entries_since_evaluation),
            )
        )
        if "device_hours" in column_map:
            device_hours.append(_logged_device_hours(entry, device_hours, table, column_map))
        entries_since_evaluation = []
    if not points:
        columns = ", ".join(column_map.columns[name] for name in column_map.columns if _is_validation(name))
        raise InputError(
            f"{table.source}, {rows[0].location}: the run that begins there has no value of {columns}; expected an evaluation."
        )
    return (
        tuple(points),
        tuple(device_hours),
        _evaluation_notes(entries_since_evaluation, partial_evaluations, points, cell, column_map),
    )


def _require_rising_rollouts(points: Sequence[EvalPoint], C: int, entry: StepEntry, table: LogTable) -> None:
    if points and C <= points[-1].rollouts:
        problem = "is there twice" if C == points[-1].rollouts else f"comes after {points[-1].rollouts}"
        raise InputError(
            f"{table.source}, {entry.first_row.location}: compute of {C} rollouts {problem}; expected rollouts that rise from evaluation to "
            "evaluation. Remove one point, or tell the runs apart with --map run=COLUMN."
        )


def _logged_tokens(points: Sequence[EvalPoint], entry: StepEntry, table: LogTable, column_map: ColumnMap) -> int:
    if "tokens" not in entry.values:
        read_integer("tokens", entry.blank_rows.get("tokens", entry.first_row), table, column_map, 0)
    tokens, earlier_tokens = int(entry.values["tokens"]), points[-1].tokens if points else 0
    if tokens < earlier_tokens:
        raise InputError(
            f"{describe_cell(entry.first_row, table, column_map, 'tokens')} falls from {earlier_tokens} to {tokens}; expected a sum so far. Mend it."
        )
    return tokens


def _logged_device_hours(
    entry: StepEntry, earlier_hours: Sequence[float], table: LogTable, column_map: ColumnMap
) -> float:
    if "device_hours" not in entry.values:
        read_number("device_hours", entry.blank_rows.get("device_hours", entry.first_row), table, column_map)
    device_hours = float(entry.values["device_hours"])
    if device_hours < (earlier_hours[-1] if earlier_hours else 0):
        location = describe_cell(entry.first_row, table, column_map, "device_hours")
        raise InputError(
            f"{location} is {device_hours:g} after {earlier_hours[-1] if earlier_hours else 0:g}; expected hours >= 0 that rise. Mend it."
        )
    return device_hours


def _evaluation_notes(
    trailing_entries: Sequence[StepEntry],
    partial_evaluations: int,
    points: Sequence[EvalPoint],
    cell: Cell,
    column_map: ColumnMap,
) -> list[str]:
    """What a reader of the ledger should know of how it was made."""
    notes = []
    if trailing_entries:
        notes.append(f"{len(trailing_entries)} training rows after the last evaluation are left out")
    if partial_evaluations:
        notes.append(f"{partial_evaluations} steps have a further metric without the main one, and are left out")
    if "rollouts" in column_map and "step" in column_map:
        mismatched = [p for p in points if p.rollouts != p.M * cell.B]
        if mismatched:
            mismatch = f"{mismatched[0].rollouts} at step {mismatched[0].M}, not {mismatched[0].M} x {cell.B_p} x {cell.n} = {mismatched[0].M * cell.B}"
            notes.append(f"rollouts are taken from the log, though they are not steps x B_p x n ({mismatch})")
    return notes
