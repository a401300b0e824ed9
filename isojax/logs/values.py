"""Cells of a log as numbers; whatever is none is refused with its file and line."""

from __future__ import annotations

import json
import math
from typing import Any

from isojax.logs.fields import HELP, Bound
from isojax.logs.table import Row, Table
from isojax.types import InputError


def where(row: Row, table: Table, bound: Bound, field: str) -> str:
    """ "runs.csv, line 7: reward (column val/acc)"."""
    column = bound.columns.get(field, field)
    return f"{table.source}, {row.place}: {field}" + (f" (column {column})" if column != field else "")


def is_blank(value: Any) -> bool:
    """Whether a cell is there and holds nothing."""
    return value is None or (isinstance(value, str) and not value.strip())


def number(field: str, row: Row, table: Table, bound: Bound) -> float:
    """A finite number.

    Raises:
        InputError: missing, no number, NaN or infinite.
    """
    value = bound.value(field, row, table)
    place = where(row, table, bound, field)
    if is_blank(value):
        raise InputError(f"{place} is missing; expected {HELP.get(field, 'a number')}. Fill the cell in, or remove the row.")
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise InputError(f"{place} is {value!r}, expected a number. Name another column with --map {field}=COLUMN, or mend it.")
    try:
        found = float(value)
    except (ValueError, OverflowError) as e:
        raise InputError(f"{place} is {value!r}, expected a number such as 0.25. Mend it, or name another column with --map.") from e
    if not math.isfinite(found):
        raise InputError(f"{place} is {found}, expected a finite number. Remove the row, or mend the value.")
    return found


def whole(field: str, row: Row, table: Table, bound: Bound, least: int) -> int:
    """A whole number of at least `least`; raises InputError as `number`."""
    found = number(field, row, table, bound)
    if found != int(found) or found < least:
        place = where(row, table, bound, field)
        raise InputError(f"{place} is {found:g}, expected a whole number of at least {least}: {HELP[field]}. Mend it.")
    return int(found)


def text_of(field: str, row: Row, table: Table, bound: Bound) -> str:
    """A name, such as a run's; raises InputError where it is missing."""
    value = bound.value(field, row, table)
    if is_blank(value):
        raise InputError(f"{where(row, table, bound, field)} is missing; expected {HELP[field]}. Fill the cell in, or remove the row.")
    return str(value)


def counts(row: Row, table: Table, bound: Bound, samples: int) -> tuple[int, ...]:
    """Right answers of each problem: a list, or its text ("[1, 0, 4]"), each in 0..samples.

    Raises:
        InputError: something else.
    """
    value = bound.value("counts", row, table)
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        found = value
    right = isinstance(found, list) and all(isinstance(c, int) and not isinstance(c, bool) and 0 <= c <= samples for c in found)
    if not right or not found:
        shown = str(value)[:60]
        place = where(row, table, bound, "counts")
        raise InputError(f"{place} is {shown!r}, expected a list of whole numbers in 0..{samples}, one a problem, such as [1, 0, 4].")
    return tuple(map(int, found))
