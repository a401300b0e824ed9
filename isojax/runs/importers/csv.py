"""CSV with a header line: one row an evaluation, or a training step; comma, tab or semicolon between cells. One file
may hold many runs.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from isojax.core.errors import InputError
from isojax.runs.log_fields import LEDGER_FIELDS
from isojax.runs.log_table import BytesReadCallback, LogRow, LogTable, other_format_hint, read_lines

FIELDS = LEDGER_FIELDS
DELIMITERS = ",\t;"


def read(path: Path, on_bytes_read: BytesReadCallback) -> list[LogTable]:
    """The file as one table; every cell is text, an empty one is "".

    Raises:
        InputError: not text, no header, a name twice in it, no row below it, or a row that has not as many cells
            as the header, with its line.
    """
    text_lines = (line for _, line in read_lines(path, on_bytes_read))
    header_text = next(text_lines)
    delimiter = max(DELIMITERS, key=header_text.count)

    def all_lines() -> Iterator[str]:
        yield header_text
        yield from text_lines

    reader = csv.reader(all_lines(), delimiter=delimiter, strict=True)
    rows: list[LogRow] = []
    try:
        header = _parse_header(path, next(reader))
        row_line = reader.line_num + 1
        for cells in reader:
            if cells and cells != [""]:
                rows.append(_parse_row(path, header, cells, row_line))
            row_line = reader.line_num + 1
    except csv.Error as e:
        fix = other_format_hint(path, "csv") or " Mend the quotes of that line."
        raise InputError(f"{path}, line {reader.line_num}: not CSV ({e}).{fix}") from e
    if not rows:
        raise InputError(
            f"{path} has a header (line 1) and no row below it; expected at least one evaluation. Leave it out."
        )
    return [LogTable(str(path), tuple(rows), one_run=False)]


def _parse_header(path: Path, names: list[str]) -> list[str]:
    header = [name.strip() for name in names]
    if not any(header) or header[0].startswith("{"):
        hint = other_format_hint(path, "csv") or " Write the columns' names there."
        raise InputError(f"{path}, line 1: given {names!r}, expected a header of column names.{hint}")
    duplicate = next((name for name in header if header.count(name) > 1), None)
    if duplicate is not None:
        raise InputError(
            f"{path}, line 1: the column {duplicate!r} is there twice, expected once. Rename or remove one."
        )
    return header


def _parse_row(path: Path, header: list[str], cells: list[str], line: int) -> LogRow:
    if len(cells) != len(header):
        problem = f"{path}, line {line} has {len(cells)} cells, the header has {len(header)} ({', '.join(header)})"
        raise InputError(f"{problem}; expected as many. Mend or remove the line.")
    return LogRow(f"line {line}", dict(zip(header, (cell.strip() for cell in cells), strict=True)))
