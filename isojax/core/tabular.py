"""Rows that know their place in a file, and checks that name the file, row and column of an unusable cell."""

import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isojax.core.errors import InputError
from isojax.core.limits import MAX_COLUMNS, MAX_COUNT, MAX_NAME, MAX_NUMBER

MAX_LISTED = 20  # values and columns that a message lists
_NUMBER_PATTERN = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NOT_FINITE = ("nan", "inf", "infinity")


@dataclass(frozen=True)
class DataRow:
    source: str  # the file, or what else holds the row, for messages
    position: str  # where the row stands in it: "line 12", or "step 40" where a format has no lines
    values: Mapping[str, Any]  # column -> text from CSV, anything from JSON; a column that the row lacks is absent
    index: int = 0  # the row's number in the source, from 0; blank lines count

    @property
    def location(self) -> str:
        return f"{self.source}, {self.position}"


@dataclass(frozen=True)
class DataTable:
    """The rows of a file, at least one."""

    source: str  # the file, for messages
    columns: tuple[str, ...]  # of JSON lines, those of any row, with dots for objects within objects
    rows: tuple[DataRow, ...]
    header_position: str  # the line that names the columns; of JSON lines, the first row's


def is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def parse_number(cell_value: Any) -> float | None:
    """The number in a cell: NaN if not finite, infinite if too large for a float, None where it holds no number."""
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
    """A cell's finite number; InputError names the `cell` and what was `expected`, if it is none or out of range."""
    if is_blank(cell_value):
        raise InputError(f"{cell} is missing or empty; expected {expected}. Fill the cell in, or remove the row.")
    number = parse_number(cell_value)
    if number is None:
        form = "a number such as 0.25 or 2.5e5, without unit and thousands separator"
        comma = " Write a decimal comma as a point, or export with decimal points." if "," in str(cell_value) else ""
        raise InputError(f"{cell} is {cell_value!r}; expected {form}.{comma}")
    is_too_low = minimum is not None and number < minimum
    requirement = ""
    if not math.isfinite(number):
        requirement = "a finite number"
    elif whole and (is_too_low or number != int(number)):
        requirement = "a whole number" + ("" if minimum is None else f" of at least {minimum:g}")
    elif abs(number) > (MAX_COUNT if whole else MAX_NUMBER):
        requirement = f"a number of at most {MAX_COUNT if whole else MAX_NUMBER:g} in size"
    elif is_too_low:
        requirement = f"at least {minimum:g}"
    elif exclusive_minimum is not None and number <= exclusive_minimum:
        requirement = f"more than {exclusive_minimum:g}"
    if requirement:
        meaning = "" if expected == "a number" else f" ({expected})"
        raise InputError(f"{cell} is {cell_value}; expected {requirement}{meaning}. Correct it, or remove the row.")
    return number


def require_column(table: DataTable, name: str) -> str:
    """The name itself, once the table is known to have that column."""
    if name not in table.columns:
        (nearest,) = nearest_names(name, table.columns)
        columns = f"the nearest is {nearest!r}. The columns are {list_some(table.columns)}"
        raise InputError(f"{table.source}, {table.header_position}: no column {name!r}; {columns}.")
    return name


def nearest_names(name: str, names: Sequence[str], cutoff: float = 0.0) -> list[str]:
    """The one most alike of names, at least one, or none; long names, and names after the first thousands, are none."""
    short_names = [other for other in names[:MAX_COLUMNS] if len(other) <= MAX_NAME]
    return difflib.get_close_matches(name[:MAX_NAME], short_names or [names[0][:MAX_NAME]], n=1, cutoff=cutoff)


def list_some(texts: Sequence[str]) -> str:
    """The first of them, for a message: "a, b and 3 more"."""
    more = f" and {len(texts) - MAX_LISTED} more" if len(texts) > MAX_LISTED else ""
    return ", ".join(texts[:MAX_LISTED]) + more


def float_column(
    table: DataTable, name: str, minimum: float | None = None, exclusive_minimum: float | None = None
) -> NDArray[np.float64]:
    """A column as float[rows]; InputError where there is none, or at a cell that `check_number` refuses."""
    require_column(table, name)
    check = partial(check_number, minimum=minimum, exclusive_minimum=exclusive_minimum)
    return np.array([check(row.values.get(name), f"{row.location}: {name}") for row in table.rows])


def filter_rows(table: DataTable, filters: Sequence[str]) -> DataTable:
    """The rows for which every COLUMN=VALUE holds; of several filters on one column, any. InputError if none is."""
    wanted_by_column: dict[str, list[str]] = {}
    for text in filters:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--where: given {text!r}, expected COLUMN=VALUE, such as set=easy.")
        wanted_by_column.setdefault(require_column(table, name.strip()), []).append(value.strip())
    for name, wanted in wanted_by_column.items():
        wanted_keys = [_comparison_key(value) for value in wanted]
        rows = tuple(row for row in table.rows if _comparison_key(row.values.get(name)) in wanted_keys)
        if not rows:
            available = list(dict.fromkeys(_cell_text(row.values.get(name)) for row in table.rows))
            condition = " or ".join(f"{name}={value}" for value in wanted)
            raise InputError(f"{table.source}: --where {condition} matches no row; {name} has {list_some(available)}.")
        table = replace(table, rows=rows)
    return table


def check_unique_rows(table: DataTable, key_columns: Sequence[str]) -> None:
    """InputError where two rows agree in these columns."""
    row_by_key: dict[tuple[Any, ...], DataRow] = {}
    for row in table.rows:
        key = tuple(_comparison_key(row.values.get(name)) for name in key_columns)
        earlier_row = row_by_key.setdefault(key, row)
        if earlier_row is not row:
            key_text = ", ".join(f"{name} = {_cell_text(row.values.get(name))}" for name in key_columns)
            raise InputError(f"{row.location}: {key_text}, as in {earlier_row.position} already; remove one of them.")


def _cell_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _comparison_key(value: Any) -> str | float:
    """What makes cells equal: their number (32 equals 32.0), else their text."""
    number = parse_number(value)
    return number if number is not None and math.isfinite(number) else _cell_text(value)
