"""The rows of one run joined by step: what a log says of a step may stand in several rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isojax.core.errors import InputError
from isojax.core.tabular import DataRow, is_blank, parse_number
from isojax.runs.logs.column_map import ColumnMap, is_training, is_validation

CUMULATIVE_FIELDS = ("rollouts", "tokens", "device_hours")


@dataclass
class StepEntry:
    """All that a log says of one step of a run.

    Attributes:
        clock: the step, or the rollouts where a log has no steps.
        first_row: the first row of the step.
        values: field -> value.
        source_rows: field -> the row that its value stands in.
        blank_rows: field -> the last row in which its cell is empty.
    """

    clock: int
    first_row: DataRow
    values: dict[str, Any] = field(default_factory=dict)
    source_rows: dict[str, DataRow] = field(default_factory=dict)
    blank_rows: dict[str, DataRow] = field(default_factory=dict)

    @property
    def has_validation(self) -> bool:
        """Whether any validation metric has a value."""
        return any(is_validation(name) for name in self.values)

    @property
    def has_training(self) -> bool:
        """Whether any training metric has a value."""
        return any(is_training(name) for name in self.values)

    def blank_row(self, name: str) -> DataRow:
        """The row to name where a field has no value: one in which its cell is empty, else the step's first."""
        return self.blank_rows.get(name, self.first_row)


def join_steps(rows: Sequence[DataRow], column_map: ColumnMap) -> list[StepEntry]:
    """The rows of each step joined, in rising order.

    Raises:
        InputError: steps (or rollouts) that fall, or a value given twice at one step; names both places.
    """
    clock_field = column_map.clock_field
    entries: list[StepEntry] = []
    for row in rows:
        clock = column_map.read_integer(clock_field, row, 0)
        if entries and clock < entries[-1].clock:
            raise InputError(
                f"{row.location}: {clock_field} falls from {entries[-1].clock} ({entries[-1].first_row.position}) to"
                f" {clock}; expected {clock_field} that rises within a run. Sort the file, or tell its runs apart with"
                " --map run=COLUMN."
            )
        if not entries or clock > entries[-1].clock:
            entries.append(StepEntry(clock, row))
        entry = entries[-1]
        values, blank_fields = _row_values(row, column_map)
        _reject_duplicate_value(entry, row, values, column_map)
        entry.values |= values
        entry.source_rows |= dict.fromkeys(values, row)
        entry.blank_rows |= dict.fromkeys(blank_fields, row)
    return entries


def _row_values(row: DataRow, column_map: ColumnMap) -> tuple[dict[str, Any], list[str]]:
    """(a row's metrics and cumulative counts by field, the fields whose cell is empty). A training metric that no --map
    names may be NaN, and is then left out.
    """
    values: dict[str, Any] = {}
    blank_fields = []
    for name in (*column_map.metric_fields, *(name for name in CUMULATIVE_FIELDS if name in column_map.columns)):
        column = column_map.columns[name]
        if column not in row.values:
            continue
        if is_blank(row.values[column]):
            blank_fields.append(name)
        elif name == "counts":
            values[name] = column_map.read_counts(row)
        elif name in ("rollouts", "tokens"):
            values[name] = column_map.read_integer(name, row, 0)
        elif not (is_training(name) and name in column_map.detected and _is_not_finite(row.values[column])):
            values[name] = column_map.read_number(name, row)
    return values, blank_fields


def _is_not_finite(value: Any) -> bool:
    number = parse_number(value)
    return number is not None and not math.isfinite(number)


def _reject_duplicate_value(entry: StepEntry, row: DataRow, values: Mapping[str, Any], column_map: ColumnMap) -> None:
    """Refuse a second value of a field at one step; a cumulative count may be repeated."""
    for name, value in values.items():
        earlier_value = entry.values.get(name)
        if name not in entry.values or (name in CUMULATIVE_FIELDS and earlier_value == value):
            continue
        raise InputError(
            f"{column_map.describe_cell(name, row)}: the point at {column_map.clock_field} {entry.clock} is there twice"
            f" ({earlier_value!r} at {entry.source_rows[name].position} and {value!r} here); expected once. Remove one,"
            " or tell the runs apart with --map run=COLUMN or seed=COLUMN."
        )
