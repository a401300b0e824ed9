"""Cells of a log as numbers; whatever is none is refused with its file and line."""

from __future__ import annotations

import json
import math
from typing import Any

from isojax.core.errors import InputError
from isojax.runs.log_fields import FIELD_HELP, ColumnMap
from isojax.runs.log_table import LogRow, LogTable


def describe_cell(row: LogRow, table: LogTable, column_map: ColumnMap, field: str) -> str:
    """ "runs.csv, line 7: reward (column val/acc)"."""
    column = column_map.columns.get(field, field)
    return f"{table.source}, {row.location}: {field}" + (f" (column {column})" if column != field else "")


def is_blank(value: Any) -> bool:
    """Whether a cell is there and holds nothing."""
    return value is None or (isinstance(value, str) and not value.strip())


def read_number(field: str, row: LogRow, table: LogTable, column_map: ColumnMap) -> float:
    """A finite number.

    Raises:
        InputError: missing, no number, NaN or infinite.
    """
    value = column_map.raw_value(field, row, table)
    cell_text = describe_cell(row, table, column_map, field)
    if is_blank(value):
        raise InputError(
            f"{cell_text} is missing; expected {FIELD_HELP.get(field, 'a number')}. Fill the cell in, or remove the row."
        )
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise InputError(
            f"{cell_text} is {value!r}, expected a number. Name another column with --map {field}=COLUMN, or mend it."
        )
    try:
        number = float(value)
    except (ValueError, OverflowError) as e:
        raise InputError(
            f"{cell_text} is {value!r}, expected a number such as 0.25. Mend it, or name another column with --map."
        ) from e
    if not math.isfinite(number):
        raise InputError(f"{cell_text} is {number}, expected a finite number. Remove the row, or mend the value.")
    return number


def read_integer(field: str, row: LogRow, table: LogTable, column_map: ColumnMap, minimum: int) -> int:
    """A whole number of at least `least`; raises InputError as `number`."""
    value = read_number(field, row, table, column_map)
    if value != int(value) or value < minimum:
        cell_text = describe_cell(row, table, column_map, field)
        raise InputError(
            f"{cell_text} is {value:g}, expected a whole number of at least {minimum}: {FIELD_HELP[field]}. Mend it."
        )
    return int(value)


def read_text(field: str, row: LogRow, table: LogTable, column_map: ColumnMap) -> str:
    """A name, such as a run's; raises InputError where it is missing."""
    value = column_map.raw_value(field, row, table)
    if is_blank(value):
        raise InputError(
            f"{describe_cell(row, table, column_map, field)} is missing; expected {FIELD_HELP[field]}. Fill the cell in, or remove the row."
        )
    return str(value)


def read_correct_counts(row: LogRow, table: LogTable, column_map: ColumnMap, samples: int) -> tuple[int, ...]:
    """Right answers of each problem: a list, or its text ("[1, 0, 4]"), each in 0..samples.

    Raises:
        InputError: something else.
    """
    value = column_map.raw_value("counts", row, table)
    try:
        correct_counts = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        correct_counts = value
    is_valid = isinstance(correct_counts, list) and all(
        isinstance(c, int) and not isinstance(c, bool) and 0 <= c <= samples for c in correct_counts
    )
    if not is_valid or not correct_counts:
        value_text = str(value)[:60]
        cell_text = describe_cell(row, table, column_map, "counts")
        raise InputError(
            f"{cell_text} is {value_text!r}, expected a list of whole numbers in 0..{samples}, one a problem, such as [1, 0, 4]."
        )
    return tuple(map(int, correct_counts))
