"""Checks of a table's cells, columns and rows, and the rows that --where takes.

An InputError names the file, the row and the column.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isojax.core.columns import Column, is_blank, parse_number, rows_where
from isojax.core.errors import InputError
from isojax.core.limits import MAX_COUNT, MAX_NUMBER
from isojax.core.number_text import number_advice
from isojax.core.tabular import DataTable, list_some, nearest_names


def check_number(
    cell_value: Any,
    cell: str,
    *,
    expected: str = "a number",
    minimum: float | None = None,
    exclusive_minimum: float | None = None,
    whole: bool = False,
    remedy: str = "Correct it, or remove the row.",
) -> float:
    """A cell's finite number; InputError where it holds none, or one out of range.

    cell_value: text of a CSV, or any value of JSON; None where the row lacks the column.
    cell: what the message calls it, such as "log.csv, line 12: reward".
    expected: what the number is, as a phrase for the message: "a number", "the learning rate".
    minimum, exclusive_minimum: the number must be at least, or more than, this.
    whole: it must have no fraction; the result is a float nevertheless.
    remedy: what to do, for text that nobody takes for a number.
    """
    if is_blank(cell_value):
        raise InputError(
            where=cell,
            found="missing or empty",
            expected=expected,
            fix="Fill the cell in, or remove the row.",
        )

    number = parse_number(cell_value)
    if number is None:
        form = "a number such as 0.25 or 2.5e5, without unit and thousands separator"
        advice = number_advice(cell_value, whole) if isinstance(cell_value, str) else ""
        raise InputError(
            where=cell,
            found=f"given {cell_value!r}",
            expected=form,
            fix=advice or remedy,
        )

    requirement = _broken_requirement(number, minimum, exclusive_minimum, whole)
    if requirement:
        meaning = "" if expected == "a number" else f" ({expected})"
        raise InputError(
            where=cell,
            found=f"given {cell_value}",
            expected=f"{requirement}{meaning}",
            fix="Correct it, or remove the row.",
        )
    return number


def _broken_requirement(
    number: float, minimum: float | None, exclusive_minimum: float | None, whole: bool
) -> str:
    """What a number should be and is not, such as "at least 0"; "" where it is all that it should
    be. Arguments as of `check_number`."""
    largest = MAX_COUNT if whole else MAX_NUMBER  # Floats hold whole numbers up to MAX_COUNT.
    is_too_low = minimum is not None and number < minimum

    if not math.isfinite(number):
        return "a finite number"
    if whole and (is_too_low or number != int(number)):
        return "a whole number" + ("" if minimum is None else f" of at least {minimum:g}")
    if abs(number) > largest:
        return f"a number of at most {largest:g} in size"
    if is_too_low:
        return f"at least {minimum:g}"
    if exclusive_minimum is not None and number <= exclusive_minimum:
        return f"more than {exclusive_minimum:g}"
    return ""


def check_numbers(
    column: Column,
    cell: Callable[[int], str],
    *,
    expected: str = "a number",
    minimum: float | None = None,
    exclusive_minimum: float | None = None,
    whole: bool = False,
) -> NDArray[np.float64]:
    """float[rows]: every cell of a column, checked as `check_number` does.

    cell: called with the number of a row, gives what a message calls its cell. The other arguments
    are those of `check_number`. InputError at the first cell that cannot be used.
    """
    # All at once, as a column may have a million rows. A comparison with NaN, which stands for what
    # is no number, is false.
    numbers = column.numbers
    with np.errstate(invalid="ignore"):  # trunc of what is not finite
        is_usable = np.abs(numbers) <= (MAX_COUNT if whole else MAX_NUMBER)
        if minimum is not None:
            is_usable &= numbers >= minimum
        if exclusive_minimum is not None:
            is_usable &= numbers > exclusive_minimum
        if whole:
            is_usable &= numbers == np.trunc(numbers)

    # The first cell that cannot be used is refused, with the reason: `check_number` raises for each
    # of these rows, as it has the same limits.
    for row in rows_where(~is_usable):
        check_number(
            column[row],
            cell(int(row)),
            expected=expected,
            minimum=minimum,
            exclusive_minimum=exclusive_minimum,
            whole=whole,
        )
    return numbers


def require_column(table: DataTable, name: str) -> str:
    """The name itself, once the table is known to have that column; InputError where it has not."""
    if name not in table.columns:
        (nearest,) = nearest_names(name, table.columns)
        raise InputError(
            where=f"{table.source}, {table.header_position}",
            found=f"no column {name!r}",
            fix=f"The nearest is {nearest!r}. The columns are {list_some(table.columns)}.",
        )
    return name


def float_column(
    table: DataTable,
    name: str,
    minimum: float | None = None,
    exclusive_minimum: float | None = None,
) -> NDArray[np.float64]:
    """A column as float[rows]; every row must have a number in it.

    minimum, exclusive_minimum: as of `check_number`. InputError where there is no such column, or
    at a cell that `check_number` refuses.
    """
    column = table.rows.column(require_column(table, name))

    # What a message calls the cell of a row; captures `table` and `name`.
    def name_cell(row: int) -> str:
        return f"{table.rows.place(row).location}: {name}"

    return check_numbers(column, name_cell, minimum=minimum, exclusive_minimum=exclusive_minimum)


def filter_rows(table: DataTable, filters: Sequence[str]) -> DataTable:
    """The rows for which every filter COLUMN=VALUE holds; of several on one column, any of them.

    filters: such as ["set=easy", "set=hard", "seed=0"]: seed 0 of both sets. Values are equal as
    numbers (32 and 32.0), or else as text. InputError for another form, where there is no such
    column, and where no row is left.
    """
    for name, wanted in _parse_filters(table, filters).items():
        wanted_keys = {_comparison_key(value) for value in wanted}
        cells = list(table.rows.column(name))
        is_wanted = np.array([_comparison_key(cell) in wanted_keys for cell in cells], np.bool_)
        if not is_wanted.any():
            available = list(dict.fromkeys(map(_cell_text, cells)))
            condition = " or ".join(f"{name}={value}" for value in wanted)
            raise InputError(
                where=f"{table.source}: --where {condition}",
                found="matches no row",
                expected=f"a value that {name} has ({list_some(available)})",
            )
        table = replace(table, rows=table.rows.take(is_wanted))
    return table


def _parse_filters(table: DataTable, filters: Sequence[str]) -> dict[str, list[str]]:
    """The wanted values of each column that the filters name: {"set": ["easy", "hard"]}."""
    wanted_by_column: dict[str, list[str]] = {}
    for text in filters:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InputError(
                where="--where",
                found=f"given {text!r}",
                expected="COLUMN=VALUE, such as set=easy",
            )
        column = require_column(table, name.strip())
        wanted_by_column.setdefault(column, []).append(value.strip())
    return wanted_by_column


def check_unique_rows(table: DataTable, key_columns: Sequence[str]) -> None:
    """InputError where two rows agree in all of these columns, such as ["n", "seed", "step"].

    Cells agree as numbers (32 and 32.0), or else as text; two that are empty agree too. The table
    must have the columns.
    """
    columns = [list(table.rows.column(name)) for name in key_columns]
    row_by_key: dict[tuple[str | float, ...], int] = {}

    for row, cells in enumerate(zip(*columns, strict=True)):
        key = tuple(map(_comparison_key, cells))
        earlier_row = row_by_key.setdefault(key, row)
        if earlier_row != row:
            named_cells = zip(key_columns, cells, strict=True)
            key_text = ", ".join(f"{name} = {_cell_text(cell)}" for name, cell in named_cells)
            location = table.rows.place(row).location
            earlier_position = table.rows.place(earlier_row).position
            raise InputError(
                where=location,
                found=f"{key_text}, as in {earlier_position} already",
                fix="Remove one of them.",
            )


def _cell_text(value: Any) -> str:
    """A cell as text: of a CSV as it is, of JSON lines as JSON, and "" where it is absent."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _comparison_key(value: Any) -> str | float:
    """What makes cells equal: their finite number (32 equals 32.0), else their text."""
    number = parse_number(value)
    return number if number is not None and math.isfinite(number) else _cell_text(value)
