"""Columns of a CSV, TSV or JSON-lines file, each row with its line, so that whatever cannot be used is refused where it
stands.

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

from isojax.core.errors import InputError
from isojax.core.yaml_files import flatten
from isojax.scaling.validation_metrics import FloatArray

JSON_LINES_SUFFIXES = (".jsonl", ".ndjson")
DELIMITERS = ",\t;"
MAX_LISTED = 20  # values and columns that a message lists
_NUMBER_PATTERN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class DataRow:
    """One row: its line in the file, and column -> value (text from CSV, anything from JSON)."""

    line: int
    values: dict[str, Any]


@dataclass(frozen=True)
class DataTable:
    """A file's rows.

    Attributes:
        path: the file, for messages.
        columns: the names there are; of JSON lines, those of any row, with dots for objects within objects.
        rows: at least one.
        header: the line that names the columns; of JSON lines the first row's.
    """

    path: Path
    columns: tuple[str, ...]
    rows: tuple[DataRow, ...]
    header_line: int

    def location(self, row: DataRow) -> str:
        """The file and line of a row."""
        return f"{self.path}, line {row.line}"


def read_table(path: Path) -> DataTable:
    """The file as a table: JSON lines where it is named .jsonl or opens with "{", else CSV with a header (comma, tab or
    semicolon).

    Raises:
        InputError: no such file, not UTF-8, empty, no header or no row below it, a row with more or fewer cells, half a
        JSON object.
    """
    text = _read_text(path)
    if path.suffix in JSON_LINES_SUFFIXES or text.lstrip()[:1] == "{":
        rows = tuple(_json_rows(path, text))
        columns, header = tuple(dict.fromkeys(name for row in rows for name in row.values)), rows[0].line
    else:
        columns, rows, header = _csv_rows(path, text)
    if not rows or not columns:
        raise InputError(f"{path} has no row of data; expected at least one below the header.")
    return DataTable(path, columns, rows, header)


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as e:
        raise InputError(f"cannot read {path}: {e.strerror or e}. Expected a CSV, TSV or JSONL file.") from e
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, e.start) + 1
        raise InputError(
            f"{path}, line {line}: not UTF-8 text. Expected CSV, TSV or JSON lines; save it as UTF-8."
        ) from e
    if not text.strip():
        raise InputError(f"{path} is empty; expected a header line with the columns' names and rows below it.")
    return text


def _json_rows(path: Path, text: str) -> Iterator[DataRow]:
    for line_number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as e:
            raise InputError(
                f"{path}, line {line_number}: not JSON ({e}). Expected one whole object a line; mend or remove that line."
            ) from e
        if not isinstance(value, dict):
            raise InputError(
                f"{path}, line {line_number}: given a {type(value).__name__}, expected one JSON object a line."
            )
        yield DataRow(line_number, dict(flatten(value)))


def _csv_rows(path: Path, text: str) -> tuple[tuple[str, ...], tuple[DataRow, ...], int]:
    lines = text.splitlines(keepends=True)
    first_line = next(line for line in lines if line.strip())
    reader = csv.reader(lines, delimiter=max(DELIMITERS, key=first_line.count), strict=True)
    header: tuple[str, ...] = ()
    rows, end, header_line = [], 0, 0
    try:
        for cells in reader:
            start, end = end + 1, reader.line_num
            if not any(cell.strip() for cell in cells):
                continue
            if not header:
                header, header_line = _parse_header(path, start, cells), start
            elif len(cells) == len(header):
                rows.append(DataRow(start, dict(zip(header, (cell.strip() for cell in cells), strict=True))))
            else:
                expected = f"expected {len(header)} as in the header ({', '.join(header[:MAX_LISTED])})"
                hint = " A number may hold no comma." if len(cells) > len(header) else ""
                raise InputError(
                    f"{path}, line {start} has {len(cells)} cells, {expected}.{hint} Mend or remove the line."
                )
    except csv.Error as e:
        raise InputError(f"{path}, line {reader.line_num}: not CSV ({e}). Mend the quotes of that line.") from e
    return header, tuple(rows), header_line


def _parse_header(path: Path, line: int, cells: Sequence[str]) -> tuple[str, ...]:
    names = tuple(cell.strip() for cell in cells)
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise InputError(
            f"{path}, line {line}: the column {duplicate!r} is there twice, expected once. Rename or remove one."
        )
    if all(_NUMBER_PATTERN.fullmatch(name) for name in names):
        raise InputError(
            f"{path}, line {line}: given {', '.join(names)}, expected a header of column names. Write one above the numbers."
        )
    return names


def require_column(table: DataTable, name: str) -> str:
    """The name itself, once the table is known to have it.

    Raises:
        InputError: it has not; lists the columns there are and the nearest.
    """
    if name not in table.columns:
        nearest = difflib.get_close_matches(name, table.columns, n=1, cutoff=0)[0]
        available = ", ".join(table.columns[:MAX_LISTED]) + (" and more" if len(table.columns) > MAX_LISTED else "")
        raise InputError(
            f"{table.path}, line {table.header_line}: no column {name!r}; the nearest is {nearest!r}. Columns there are: {available}."
        )
    return name


def is_blank(value: Any) -> bool:
    """Whether a cell holds nothing."""
    return value is None or (isinstance(value, str) and not value.strip())


def filter_rows(table: DataTable, filters: Sequence[str]) -> DataTable:
    """The rows for which every COL=VALUE holds; of several for one column, any.

    Raises:
        InputError: no COL=VALUE, a column that is not there, or a filter that matches nothing; lists the values there
        are.
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
            available = list(dict.fromkeys(_display_value(row.values.get(name)) for row in table.rows))
            more = f" and {len(available) - MAX_LISTED} more" if len(available) > MAX_LISTED else ""
            condition = " or ".join(f"{name}={value}" for value in values)
            raise InputError(
                f"{table.path}: --where {condition} matches no row; values of {name} there are: {', '.join(available[:MAX_LISTED])}{more}."
            )
        table = replace(table, rows=rows)
    return table


def _display_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _matches(value: Any, wanted: str) -> bool:
    """Whether a cell is what was asked, as text or as a number (32 is 32.0)."""
    text = "" if value is None else _display_value(value)
    if text == wanted:
        return True
    return all(_NUMBER_PATTERN.fullmatch(t) for t in (text, wanted)) and float(text) == float(wanted)


def float_column(
    table: DataTable, name: str, minimum: float | None = None, exclusive_minimum: float | None = None
) -> FloatArray:
    """A column as float[rows].

    Raises:
        InputError: no such column; a cell empty, no plain number (no unit, no thousands separator), not finite or out
        of range, with
            its line.
    """
    require_column(table, name)
    return np.array([_checked_number(table, row, name, minimum, exclusive_minimum) for row in table.rows])


def _checked_number(
    table: DataTable, row: DataRow, name: str, minimum: float | None, exclusive_minimum: float | None
) -> float:
    cell_value = row.values.get(name)
    location = f"{table.location(row)}: {name}"
    if is_blank(cell_value):
        raise InputError(f"{location} is empty; expected a number. Fill it in or remove the line.")
    value = _parse_number(cell_value)
    if value is None:
        raise InputError(
            f"{location} is {cell_value!r}; expected a plain number such as 250000 or 2.5e5, no unit, no thousands separator."
        )
    if not math.isfinite(value):
        raise InputError(f"{location} is {cell_value}; expected a finite number. Mend or remove the line.")
    if minimum is not None and value < minimum:
        raise InputError(f"{location} is {cell_value}; expected at least {minimum:g}. Mend or remove the line.")
    if exclusive_minimum is not None and value <= exclusive_minimum:
        raise InputError(
            f"{location} is {cell_value}; expected more than {exclusive_minimum:g}. Mend or remove the line."
        )
    return value


def _parse_number(cell_value: Any) -> float | None:
    """A cell's number, infinite where it is too large for a float; None where it is none."""
    if isinstance(cell_value, str):
        text = cell_value.strip()
        if text.lower().lstrip("+-") in ("nan", "inf", "infinity"):
            return math.nan
        return float(text) if _NUMBER_PATTERN.fullmatch(text) else None
    if isinstance(cell_value, bool) or not isinstance(cell_value, (int, float)):
        return None
    try:
        return float(cell_value)
    except OverflowError:
        return math.inf


def check_unique_rows(table: DataTable, key_columns: Sequence[str]) -> None:
    """Refuse two rows that agree in these columns.

    Raises:
        InputError: names both lines.
    """
    row_by_key: dict[tuple[Any, ...], DataRow] = {}
    for row in table.rows:
        key = tuple(_comparison_key(row.values.get(name)) for name in key_columns)
        if key in row_by_key:
            key_text = ", ".join(f"{name} = {_display_value(row.values.get(name))}" for name in key_columns)
            raise InputError(
                f"{table.location(row)}: {key_text} as in line {row_by_key[key].line} already; expected each point once. Remove one."
            )
        row_by_key[key] = row


def _comparison_key(value: Any) -> Any:
    number = _parse_number(value)
    return _display_value(value) if number is None else number
