"""One run's rows as its evaluations: training metrics averaged since the last evaluation, C from steps where a log has
no rollouts, tokens from mean lengths where it has no tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from isojax.core.errors import InputError
from isojax.core.nouns import Cell, EvalPoint
from isojax.core.tabular import DataRow
from isojax.runs.logs.column_map import ColumnMap, is_training, is_validation
from isojax.runs.logs.log_steps import StepEntry, join_steps


@dataclass(frozen=True)
class LoggedEvaluations:
    """The evaluations of a run, the device hours at each (empty where the log has none), and what was left out."""

    points: tuple[EvalPoint, ...]
    device_hours: tuple[float, ...]
    notes: tuple[str, ...]


def read_evaluations(rows: Sequence[DataRow], column_map: ColumnMap, cell: Cell) -> LoggedEvaluations:
    """The evaluations of one run.

    Raises:
        InputError: no evaluation, a point twice, compute that falls, a metric outside [0, 1], a cell that is missing or
        holds no number; names the file and the line (or step).
    """
    points: list[EvalPoint] = []
    device_hours: list[float] = []
    entries_since_evaluation: list[StepEntry] = []
    partial_evaluations = 0
    entries = join_steps(rows, column_map)
    C = _cumulative_rollouts(entries, column_map, cell)
    for entry, rollouts, estimated_tokens in zip(entries, C, _cumulative_tokens(entries, C), strict=True):
        metrics = _evaluation_metrics(entry, column_map)
        entries_since_evaluation.append(entry)
        if not metrics:
            partial_evaluations += entry.has_validation
            continue
        _require_rising_rollouts(points, rollouts, entry)
        has_tokens = "tokens" in column_map
        point = EvalPoint(
            target=rollouts,
            M=entry.clock if "step" in column_map else round(rollouts / cell.B),
            rollouts=rollouts,
            tokens=_logged_tokens(points, entry, column_map) if has_tokens else round(estimated_tokens),
            metrics=metrics,
            counts=entry.values.get("counts", ()),
            samples=_samples_per_problem(entry, column_map),
            train=_mean_train_metrics(entries_since_evaluation),
        )
        points.append(point)
        if "device_hours" in column_map:
            device_hours.append(_logged_device_hours(entry, device_hours, column_map))
        entries_since_evaluation = []
    if not points:
        columns = ", ".join(column for name, column in column_map.columns.items() if is_validation(name))
        raise InputError(
            f"{rows[0].location}: the run that begins there has no value of {columns}; expected an evaluation."
        )
    notes = _evaluation_notes(entries_since_evaluation, partial_evaluations, points, cell, column_map)
    return LoggedEvaluations(tuple(points), tuple(device_hours), tuple(notes))


def _evaluation_metrics(entry: StepEntry, column_map: ColumnMap) -> dict[str, float]:
    """An evaluation's metrics by their names in the ledger, each in [0, 1], the main one first, which is fitted by
    default; none where the entry holds training metrics only.

    Raises:
        InputError: a metric outside [0, 1], or an empty cell where a metric is due.
    """
    main_field = column_map.main_metric
    validation_fields = [name for name in column_map.columns if is_validation(name)]
    for name in validation_fields:
        if name in entry.blank_rows and (main_field in entry.values or not entry.has_training):
            column_map.read_number(name, entry.blank_rows[name])
    if main_field not in entry.values:
        return {}
    metrics: dict[str, float] = {}
    for name in sorted(validation_fields, key=lambda name: name != main_field):
        if name in entry.values and name != "counts":
            metrics[column_map.ledger_name(name)] = _scaled_metric(name, entry, column_map)
    if "counts" in entry.values:
        samples = column_map.read_integer("samples", entry.source_rows["counts"], 1)
        counts = entry.values["counts"]
        metrics.setdefault(f"avg@{samples}", sum(counts) / (samples * len(counts)))
    return metrics


def _scaled_metric(name: str, entry: StepEntry, column_map: ColumnMap) -> float:
    value = entry.values[name] * float(column_map.constants.get("scale", 1))
    if not 0 <= value <= 1:
        raise InputError(
            f"{column_map.describe_cell(name, entry.source_rows[name])} is {value:g}, expected a number in [0, 1]."
            " Percent: --map scale=0.01; otherwise correct it, or name another column."
        )
    return value


def _samples_per_problem(entry: StepEntry, column_map: ColumnMap) -> int:
    if "samples" in column_map:
        return column_map.read_integer("samples", entry.source_rows.get("counts", entry.first_row), 1)
    match = re.fullmatch(r"avg@(\d+)", column_map.ledger_name(column_map.main_metric))
    return int(match[1]) if match else 0


def _mean_train_metrics(entries: Sequence[StepEntry]) -> dict[str, float]:
    """The mean of each training metric over the entries that have it."""
    values_by_metric: dict[str, list[float]] = {}
    for entry in entries:
        for name, value in entry.values.items():
            if is_training(name):
                ledger_name = "reward" if name == "train_reward" else name.removeprefix("train:")
                values_by_metric.setdefault(ledger_name, []).append(value)
    return {name: sum(values) / len(values) for name, values in values_by_metric.items()}


def _cumulative_rollouts(entries: Sequence[StepEntry], column_map: ColumnMap, cell: Cell) -> list[int]:
    """C at each entry: as the log has it, else steps x B_p x n. A training row without it has that of the row
    before.
    """
    if "rollouts" not in column_map:
        return [entry.clock * cell.B for entry in entries]
    C: list[int] = []
    for entry in entries:
        if "rollouts" not in entry.values and not entry.has_validation:
            C.append((C or [0])[-1])
            continue
        if "rollouts" not in entry.values:
            column_map.read_integer("rollouts", entry.blank_row("rollouts"), 0)  # raises: the cell is empty
        C.append(int(entry.values["rollouts"]))
    return C


def _cumulative_tokens(entries: Sequence[StepEntry], C: Sequence[int]) -> list[float]:
    """Response tokens at each entry: mean length x rollouts, each length standing for the rollouts since the last one
    logged. Where the evaluation comes between two logged lengths, the earlier one still holds.
    """
    tokens: list[float] = []
    total_tokens, counted_rollouts, mean_length = 0.0, 0, 0.0
    for entry, rollouts in zip(entries, C, strict=True):
        if "response_length" in entry.values:
            mean_length = entry.values["response_length"]
            total_tokens += mean_length * (rollouts - counted_rollouts)
            counted_rollouts = rollouts
        tokens.append(max([total_tokens + mean_length * (rollouts - counted_rollouts), *tokens[-1:]]))
    return tokens


def _require_rising_rollouts(points: Sequence[EvalPoint], C: int, entry: StepEntry) -> None:
    if points and C <= points[-1].rollouts:
        problem = "is there twice" if C == points[-1].rollouts else f"comes after {points[-1].rollouts}"
        raise InputError(
            f"{entry.first_row.location}: compute of {C} rollouts {problem}; expected rollouts that rise from"
            " evaluation to evaluation. Remove one point, or tell the runs apart with --map run=COLUMN."
        )


def _logged_tokens(points: Sequence[EvalPoint], entry: StepEntry, column_map: ColumnMap) -> int:
    if "tokens" not in entry.values:
        column_map.read_integer("tokens", entry.blank_row("tokens"), 0)  # raises: the cell is empty
    tokens, earlier_tokens = int(entry.values["tokens"]), points[-1].tokens if points else 0
    if tokens < earlier_tokens:
        raise InputError(
            f"{column_map.describe_cell('tokens', entry.first_row)} falls from {earlier_tokens} to {tokens}; expected a"
            " cumulative sum. Correct it."
        )
    return tokens


def _logged_device_hours(entry: StepEntry, earlier_hours: Sequence[float], column_map: ColumnMap) -> float:
    if "device_hours" not in entry.values:
        column_map.read_number("device_hours", entry.blank_row("device_hours"))  # raises: the cell is empty
    device_hours, last_hours = float(entry.values["device_hours"]), earlier_hours[-1] if earlier_hours else 0
    if device_hours < last_hours:
        raise InputError(
            f"{column_map.describe_cell('device_hours', entry.first_row)} is {device_hours:g} after {last_hours:g};"
            " expected hours >= 0 that rise. Correct it."
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
        mismatched = next((p for p in points if p.rollouts != p.M * cell.B), None)
        if mismatched is not None:
            notes.append(
                "rollouts are taken from the log, though they are not steps x B_p x n"
                f" ({mismatched.rollouts} at step {mismatched.M}, not {mismatched.M} x {cell.B_p} x {cell.n} ="
                f" {mismatched.M * cell.B})"
            )
    return notes
