"""Rows that know their place in a file, and what may stand in their cells.

Every reader of rows uses this: `isojax fit-law` and `isojax fit-curve` read columns of numbers, the importers of other
trainers' logs read metrics, and the sources of problems read prompts and answers. A cell that cannot be used is refused
with its file, its row and its column. core/table_files.py reads the files.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isojax.core.errors import InputError

MAX_LISTED = 20  # values and columns that a message lists
_NUMBER_PATTERN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NOT_FINITE = ("nan", "inf", "infinity")


@dataclass(frozen=True)
class DataRow:
    """One row of a file.

    Attributes:
        source: the file, or what else holds the row, for messages.
        position: where the row stands in it, for messages: "line 12", or "step 40" where a format has no lines.
        values: column -> value (text from CSV, anything from JSON); a column that the row does not have is absent.
        index: the row's number in the source, from 0; blank lines count.
    """

    source: str
    position: str
    values: Mapping[str, Any]
    index: int = 0

    @property
    def location(self) -> str:
        """The file and the place in it."""
        return f"{self.source}, {self.position}"


@dataclass(frozen=True)
class DataTable:
    """The rows of a file.

    Attributes:
        source: the file, for messages.
        columns: the names of the columns; of JSON lines, those of any row, with dots for objects within objects.
        rows: at least one.
        header_position: the line that names the columns; of JSON lines, the first row's.
    """

    source: str
    columns: tuple[str, ...]
    rows: tuple[DataRow, ...]
    header_position: str


def is_blank(value: Any) -> bool:
    """Whether a cell holds nothing."""
    return value is None or (isinstance(value, str) and not value.strip())


def parse_number(cell_value: Any) -> float | None:
    """The number in a cell: NaN where it is written as not finite, infinite where it is too large for a float, None
    where the cell holds no number (text with a unit or a thousands separator, true, a list).
    """
    if isinstance(cell_value, str):
        text = cell_value.strip()
        if text.lower().lstrip("+-") in _NOT_FINITE:
            return math.nan
        return float(text) if _NUMBER_PATTERN.fullmatch(text) else None
    if isinstance(cell_value, bool) or not isinstance(cell_value, (int, float)):
        return None
    try:
        return float(cell_value)
    except OverflowError:
        return math.inf


def check_number(
    cell_value: Any,
    cell: str,
    *,
    expected: str = "a number",
    minimum: float | None = None,
    exclusive_minimum: float | None = None,
    whole: bool = False,
) -> float:
    """A cell's finite number.

    Args:
        cell_value: what the cell holds.
        cell: the file, the row and the column, for messages: "runs.csv, line 7: reward".
        expected: what the number stands for, for messages.
        minimum: the smallest number allowed.
        exclusive_minimum: a bound that the number must exceed.
        whole: whether the number must be whole.

    Raises:
        InputError: the cell is empty, holds no number, or holds one that is not finite or out of range.
    """
    if is_blank(cell_value):
        raise InputError(f"{cell} is missing or empty; expected {expected}. Fill the cell in, or remove the row.")
    number = parse_number(cell_value)
    if number is None:
        raise InputError(
            f"{cell} is {cell_value!r}; expected a number such as 0.25 or 2.5e5, without a unit and without a thousands"
            " separator. Correct the cell, or name another column."
        )
    if not math.isfinite(number):
        raise InputError(f"{cell} is {cell_value}; expected a finite number. Correct the cell, or remove the row.")
    requirement = ""
    if whole and (number != int(number) or (minimum is not None and number < minimum)):
        requirement = "a whole number" + ("" if minimum is None else f" of at least {minimum:g}")
    elif minimum is not None and number < minimum:
        requirement = f"at least {minimum:g}"
    elif exclusive_minimum is not None and number <= exclusive_minimum:
        requirement = f"more than {exclusive_minimum:g}"
    if requirement:
        meaning = "" if expected == "a number" else f" ({expected})"
        raise InputError(
            f"{cell} is {cell_value}; expected {requirement}{meaning}. Correct the cell, or remove the row."
        )
    return number


def require_column(table: DataTable, name: str) -> str:
    """The name itself, once the table is known to have that column.

    Raises:
        InputError: it has not; the message lists the columns and the nearest name.
    """
    if name not in table.columns:
        nearest = difflib.get_close_matches(name, table.columns, n=1, cutoff=0)[0]
        more = " and more" if len(table.columns) > MAX_LISTED else ""
        raise InputError(
            f"{table.source}, {table.header_position}: no column {name!r}; the nearest is {nearest!r}."
            f" The columns are {', '.join(table.columns[:MAX_LISTED])}{more}."
        )
    return name


def float_column(
    table: DataTable, name: str, minimum: float | None = None, exclusive_minimum: float | None = None
) -> NDArray[np.float64]:
    """A column as float[rows].

    Raises:
        InputError: no such column, or a cell that `check_number` refuses.
    """
    require_column(table, name)
    return np.array(
        [
            check_number(
                row.values.get(name),
                f"{row.location}: {name}",
                minimum=minimum,
                exclusive_minimum=exclusive_minimum,
            )
            for row in table.rows
        ]
    )


def filter_rows(table: DataTable, filters: Sequence[str]) -> DataTable:
    """The rows for which every COLUMN=VALUE holds; of several filters on one column, any.

    Raises:
        InputError: a filter of another form, a column that is not there, or a filter that matches no row; the message
        lists the values of the column.
    """
    values_by_column: dict[str, list[str]] = {}
    for text in filters:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--where: given {text!r}, expected COLUMN=VALUE, such as set=easy.")
        values_by_column.setdefault(require_column(table, name.strip()), []).append(value.strip())
    for name, values in values_by_column.items():
        rows = tuple(row for row in table.rows if any(_matches(row.values.get(name), value) for value in values))
        if not rows:
            available = list(dict.fromkeys(_cell_text(row.values.get(name)) for row in table.rows))
            more = f" and {len(available) - MAX_LISTED} more" if len(available) > MAX_LISTED else ""
            condition = " or ".join(f"{name}={value}" for value in values)
            raise InputError(
                f"{table.source}: --where {condition} matches no row; the values of {name} are"
                f" {', '.join(available[:MAX_LISTED])}{more}."
            )
        table = replace(table, rows=rows)
    return table


def check_unique_rows(table: DataTable, key_columns: Sequence[str]) -> None:
    """Refuse two rows that agree in these columns.

    Raises:
        InputError: names both rows.
    """
    row_by_key: dict[tuple[Any, ...], DataRow] = {}
    for row in table.rows:
        key = tuple(_comparison_key(row.values.get(name)) for name in key_columns)
        earlier_row = row_by_key.setdefault(key, row)
        if earlier_row is not row:
            key_text = ", ".join(f"{name} = {_cell_text(row.values.get(name))}" for name in key_columns)
            raise InputError(
                f"{row.location}: {key_text}, as in {earlier_row.position} already; expected each point once."
                " Remove one of the two."
            )


def _cell_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _matches(value: Any, wanted: str) -> bool:
    """Whether a cell equals a filter's value, as text or as a number (32 equals 32.0)."""
    text = "" if value is None else _cell_text(value)
    if text == wanted:
        return True
    return all(_NUMBER_PATTERN.fullmatch(t) for t in (text, wanted)) and float(text) == float(wanted)


def _comparison_key(value: Any) -> Any:
    number = parse_number(value)
    return _cell_text(value) if number is None else number
