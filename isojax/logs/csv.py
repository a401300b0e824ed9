"""CSV with a header line: one row an evaluation, or a training step; comma, tab or semicolon between cells. One file may hold many runs."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from isojax.logs.fields import OWN_NAMES
from isojax.logs.table import Row, Table, Tick, lines, other_format
from isojax.types import InputError

FIELDS = OWN_NAMES
DELIMITERS = ",\t;"


def read(path: Path, tick: Tick) -> list[Table]:
    """The file as one table; every cell is text, an empty one is "".

    Raises:
        InputError: not text, no header, a name twice in it, no row below it, or a row that has not as many cells
            as the header, with its line.
    """
    text = (line for _, line in lines(path, tick))
    first = next(text)
    delimiter = max(DELIMITERS, key=first.count)

    def every() -> Iterator[str]:
        yield first
        yield from text

    reader = csv.reader(every(), delimiter=delimiter, strict=True)
    rows: list[Row] = []
    try:
        header = _header(path, next(reader))
        start = reader.line_num + 1
        for cells in reader:
            if cells and cells != [""]:
                rows.append(_row(path, header, cells, start))
            start = reader.line_num + 1
    except csv.Error as e:
        mend = other_format(path, "csv") or " Mend the quotes of that line."
        raise InputError(f"{path}, line {reader.line_num}: not CSV ({e}).{mend}") from e
    if not rows:
        raise InputError(f"{path} has a header (line 1) and no row below it; expected at least one evaluation. Leave it out.")
    return [Table(str(path), tuple(rows), one_run=False)]


def _header(path: Path, names: list[str]) -> list[str]:
    header = [name.strip() for name in names]
    if not any(header) or header[0].startswith("{"):
        hint = other_format(path, "csv") or " Write the columns' names there."
        raise InputError(f"{path}, line 1: given {names!r}, expected a header of column names.{hint}")
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{path}, line 1: the column {twice!r} is there twice, expected once. Rename or remove one.")
    return header


def _row(path: Path, header: list[str], cells: list[str], line: int) -> Row:
    if len(cells) != len(header):
        given = f"{path}, line {line} has {len(cells)} cells, the header has {len(header)} ({', '.join(header)})"
        raise InputError(f"{given}; expected as many. Mend or remove the line.")
    return Row(f"line {line}", dict(zip(header, (cell.strip() for cell in cells), strict=True)))
