"""Columns of a CSV, TSV or JSON-lines file, each row with its line, so that whatever cannot be used is refused where it stands.

The rows of one file, filtered with `where`, give float columns with `numbers`. No jax, no pandas.
"""

from __future__ import annotations

import csv
import difflib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from isojax.files import leaves
from isojax.scaling.metrics import FloatArray
from isojax.types import InputError

JSON_LINES = (".jsonl", ".ndjson")
DELIMITERS = ",\t;"
LISTED = 20  # values and columns that a message lists
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class Row:
    """One row: its line in the file, and column -> value (text from CSV, anything from JSON)."""

    line: int
    values: dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A file's rows.

    Attributes:
        path: the file, for messages.
        columns: the names there are; of JSON lines, those of any row, with dots for objects within objects.
        rows: at least one.
        header: the line that names the columns; of JSON lines the first row's.
    """

    path: Path
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    header: int

    def place(self, row: Row) -> str:
        """The file and line of a row."""
        return f"{self.path}, line {row.line}"


def read_table(path: Path) -> Table:
    """The file as a table: JSON lines where it is named .jsonl or opens with "{", else CSV with a header (comma, tab or semicolon).

    Raises:
        InputError: no such file, not UTF-8, empty, no header or no row below it, a row with more or fewer cells, half a JSON object.
    """
    text = _text(path)
    if path.suffix in JSON_LINES or text.lstrip()[:1] == "{":
        rows = tuple(_json_rows(path, text))
        columns, header = tuple(dict.fromkeys(name for row in rows for name in row.values)), rows[0].line
    else:
        columns, rows, header = _csv_rows(path, text)
    if not rows or not columns:
        raise InputError(f"{path} has no row of data; expected at least one below the header.")
    return Table(path, columns, rows, header)


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as e:
        raise InputError(f"cannot read {path}: {e.strerror or e}. Expected a CSV, TSV or JSONL file.") from e
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, e.start) + 1
        raise InputError(f"{path}, line {line}: not UTF-8 text. Expected CSV, TSV or JSON lines; save it as UTF-8.") from e
    if not text.strip():
        raise InputError(f"{path} is empty; expected a header line with the columns' names and rows below it.")
    return text


def _json_rows(path: Path, text: str) -> Iterator[Row]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as e:
            raise InputError(f"{path}, line {number}: not JSON ({e}). Expected one whole object a line; mend or remove that line.") from e
        if not isinstance(value, dict):
            raise InputError(f"{path}, line {number}: given a {type(value).__name__}, expected one JSON object a line.")
        yield Row(number, dict(leaves(value)))


def _csv_rows(path: Path, text: str) -> tuple[tuple[str, ...], tuple[Row, ...], int]:
    lines = text.splitlines(keepends=True)
    first = next(line for line in lines if line.strip())
    reader = csv.reader(lines, delimiter=max(DELIMITERS, key=first.count), strict=True)
    header: tuple[str, ...] = ()
    rows, end, header_line = [], 0, 0
    try:
        for cells in reader:
            start, end = end + 1, reader.line_num
            if not any(cell.strip() for cell in cells):
                continue
            if not header:
                header, header_line = _header(path, start, cells), start
            elif len(cells) == len(header):
                rows.append(Row(start, dict(zip(header, (cell.strip() for cell in cells), strict=True))))
            else:
                expected = f"expected {len(header)} as in the header ({', '.join(header[:LISTED])})"
                hint = " A number may hold no comma." if len(cells) > len(header) else ""
                raise InputError(f"{path}, line {start} has {len(cells)} cells, {expected}.{hint} Mend or remove the line.")
    except csv.Error as e:
        raise InputError(f"{path}, line {reader.line_num}: not CSV ({e}). Mend the quotes of that line.") from e
    return header, tuple(rows), header_line


def _header(path: Path, line: int, cells: Sequence[str]) -> tuple[str, ...]:
    names = tuple(cell.strip() for cell in cells)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{path}, line {line}: the column {twice!r} is there twice, expected once. Rename or remove one.")
    if all(_NUMBER.fullmatch(name) for name in names):
        raise InputError(f"{path}, line {line}: given {', '.join(names)}, expected a header of column names. Write one above the numbers.")
    return names


def column(table: Table, name: str) -> str:
    """The name itself, once the table is known to have it.

    Raises:
        InputError: it has not; lists the columns there are and the nearest.
    """
    if name not in table.columns:
        near = difflib.get_close_matches(name, table.columns, n=1, cutoff=0)[0]
        there = ", ".join(table.columns[:LISTED]) + (" and more" if len(table.columns) > LISTED else "")
        raise InputError(f"{table.path}, line {table.header}: no column {name!r}; the nearest is {near!r}. Columns there are: {there}.")
    return name


def blank(value: Any) -> bool:
    """Whether a cell holds nothing."""
    return value is None or (isinstance(value, str) and not value.strip())


def where(table: Table, filters: Sequence[str]) -> Table:
    """The rows for which every COL=VALUE holds; of several for one column, any.

    Raises:
        InputError: no COL=VALUE, a column that is not there, or a filter that matches nothing; lists the values there are.
    """
    asked: dict[str, list[str]] = {}
    for text in filters:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InputError(f"--where: given {text!r}, expected COLUMN=VALUE, such as set=easy.")
        asked.setdefault(column(table, name.strip()), []).append(value.strip())
    for name, values in asked.items():
        rows = tuple(row for row in table.rows if any(_same(row.values.get(name), value) for value in values))
        if not rows:
            there = list(dict.fromkeys(_shown(row.values.get(name)) for row in table.rows))
            more = f" and {len(there) - LISTED} more" if len(there) > LISTED else ""
            said = " or ".join(f"{name}={value}" for value in values)
            raise InputError(f"{table.path}: --where {said} matches no row; values of {name} there are: {', '.join(there[:LISTED])}{more}.")
        table = replace(table, rows=rows)
    return table


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _same(value: Any, asked: str) -> bool:
    """Whether a cell is what was asked, as text or as a number (32 is 32.0)."""
    text = "" if value is None else _shown(value)
    if text == asked:
        return True
    return all(_NUMBER.fullmatch(t) for t in (text, asked)) and float(text) == float(asked)


def numbers(table: Table, name: str, at_least: float | None = None, above: float | None = None) -> FloatArray:
    """A column as float[rows].

    Raises:
        InputError: no such column; a cell empty, no plain number (no unit, no thousands separator), not finite or out of range, with
            its line.
    """
    column(table, name)
    return np.array([_number(table, row, name, at_least, above) for row in table.rows])


def _number(table: Table, row: Row, name: str, at_least: float | None, above: float | None) -> float:
    given = row.values.get(name)
    place = f"{table.place(row)}: {name}"
    if blank(given):
        raise InputError(f"{place} is empty; expected a number. Fill it in or remove the line.")
    value = _plain(given)
    if value is None:
        raise InputError(f"{place} is {given!r}; expected a plain number such as 250000 or 2.5e5, no unit, no thousands separator.")
    if not math.isfinite(value):
        raise InputError(f"{place} is {given}; expected a finite number. Mend or remove the line.")
    if at_least is not None and value < at_least:
        raise InputError(f"{place} is {given}; expected at least {at_least:g}. Mend or remove the line.")
    if above is not None and value <= above:
        raise InputError(f"{place} is {given}; expected more than {above:g}. Mend or remove the line.")
    return value


def _plain(given: Any) -> float | None:
    """A cell's number, infinite where it is too large for a float; None where it is none."""
    if isinstance(given, str):
        text = given.strip()
        if text.lower().lstrip("+-") in ("nan", "inf", "infinity"):
            return math.nan
        return float(text) if _NUMBER.fullmatch(text) else None
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        return None
    try:
        return float(given)
    except OverflowError:
        return math.inf


def unique_rows(table: Table, names: Sequence[str]) -> None:
    """Refuse two rows that agree in these columns.

    Raises:
        InputError: names both lines.
    """
    seen: dict[tuple[Any, ...], Row] = {}
    for row in table.rows:
        key = tuple(_key(row.values.get(name)) for name in names)
        if key in seen:
            what = ", ".join(f"{name} = {_shown(row.values.get(name))}" for name in names)
            raise InputError(f"{table.place(row)}: {what} as in line {seen[key].line} already; expected each point once. Remove one.")
        seen[key] = row


def _key(value: Any) -> Any:
    number = _plain(value)
    return _shown(value) if number is None else number
