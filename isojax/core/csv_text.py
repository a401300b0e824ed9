"""CSV with a header, by commas, tabs, semicolons or bars, read as columns by pyarrow.

Cells are text, without the spaces around them; comments above the header, rows without a value, and
the header once more, are left out. What cannot be read is refused with its file and line. pyarrow
counts rows, and a row begins on a later line than its number says where cells before it are quoted
over several lines.
"""

import csv
import io
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from operator import eq
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isojax.core.columns import CellValues, Column, Mask
from isojax.core.csv_header import COMMENT, HeaderLine, check_header, find_header
from isojax.core.errors import InputError
from isojax.core.limits import MAX_LINE_BYTES
from isojax.core.tabular import DataTable, LinesOfFile, RowTable, list_some

# Of Python's reader, whose own limit of a cell is lower.
csv.field_size_limit(MAX_LINE_BYTES)


def parse_csv(path: Path, text: str) -> DataTable:
    """The text of a file as a table with at least one row.

    path: for messages. InputError, with the line, where the text is no such table. Every cell of
    the table is text.
    """
    # \n alone ends a line, which keeps its \n, and any \r before it.
    lines = io.StringIO(text, newline="\n")
    header_line = find_header(lines)
    if not header_line.text:
        raise InputError(
            where=path,
            found="empty",
            expected="a header line with the columns' names and rows below it",
        )

    delimiter = header_line.delimiter
    reader = csv.reader(chain([header_line.text], lines), delimiter=delimiter, strict=True)
    try:
        # The header may go on over several lines, where a name of it is quoted. `reader` takes them
        # from `lines`, so that what `lines` has left is the text below the header.
        header_cells = next(reader)
        # `line_num` is how many lines the reader has taken, the header's being the first of them.
        first_row_line = header_line.number + reader.line_num
        text_below = text[lines.tell() :]
        header = check_header(str(path), header_line, header_cells, text_below)

        has_lone_returns = text_below.count("\r") != text_below.count("\r\n")
        if '"' in text_below or has_lone_returns:
            # Read once by Python, which refuses what pyarrow would guess at, such as text between
            # a quote and the delimiter.
            deque(reader, maxlen=0)
    except csv.Error as e:
        last_line = header_line.number - 1 + reader.line_num
        raise _no_csv(path, text, header_line, last_line, e) from e

    if has_lone_returns:
        # Windows has written the line ends of another program once more.
        text_below = text_below.replace("\r\r\n", "\r\n")

    rows = None
    if text_below.strip():
        rows = _parse_rows(path, text_below, first_row_line, header, delimiter)
    if not rows:
        raise InputError(
            where=path,
            found=f"no row of data below its header (line {header_line.number})",
            expected="at least one",
        )
    return DataTable(str(path), header, rows, f"line {header_line.number}")


def _no_csv(
    path: Path, text: str, header_line: HeaderLine, last_line: int, error: csv.Error
) -> InputError:
    """The error for a text that Python could read as CSV as far as `last_line`, counted from 1."""
    if "new-line character" in str(error):
        return InputError(
            where=f"{path}, line {last_line}",
            found="not CSV (a carriage return, \\r, where no line ends)",
            fix="Save the file with line ends of \\n or \\r\\n.",
        )
    all_lines = io.StringIO(text, newline="\n")
    lines_read = list(islice(all_lines, header_line.number - 1, last_line))
    return _wrong_quotes(path, lines_read, header_line, str(error))


def _wrong_quotes(
    path: Path, lines: Sequence[str], header_line: HeaderLine, error: str
) -> InputError:
    """The error for lines, the header's and those below it, whose quotes go wrong.

    lines: up to the last one that was read, each with its line end. error: what Python's reader
    says.

    A cell whose quote nothing closes takes in all that is below, to the next quote or the end of
    the file: the line to correct is the one on which it opened.
    """
    opening_line = _opening_line(lines, header_line.number, header_line.delimiter)
    last_line = header_line.number + len(lines) - 1

    if "end of data" in error:
        return InputError(
            where=f"{path}, line {opening_line}",
            found="not CSV (a quote opens a cell, and none closes it)",
            fix="Close it, or remove the quote.",
        )
    if opening_line == last_line:
        return InputError(
            where=f"{path}, line {last_line}",
            found=f"not CSV ({error})",
            fix="Correct the quotes of that line.",
        )
    return InputError(
        where=f"{path}, line {last_line}",
        found=f"not CSV ({error}, in a cell whose quote opens on line {opening_line})",
        fix=f"Correct the quotes of line {opening_line}.",
    )


def _opening_line(lines: Sequence[str], first_line: int, delimiter: str) -> int:
    """The number of the line on which the last quoted cell opens; `first_line`, where none does.

    lines: with their line ends; `first_line` is the number of the first of them.
    """
    opening_line = first_line
    is_quoted = False
    character_before = "\n"
    for number, line in enumerate(lines, first_line):
        for character in line:
            if character == '"' and is_quoted:
                is_quoted = False
            elif character == '"' and character_before == '"':
                is_quoted = True  # It is the second of two, which stand for one within the cell.
            elif character == '"' and character_before in f"{delimiter}\n":
                opening_line = number
                is_quoted = True
            character_before = character
    return opening_line


@dataclass(frozen=True)
class ArrowRows:
    """The rows of a text, as pyarrow reads them."""

    columns: list[Any]  # for each a dictionary array: its texts, and which of them each row has
    left_out: list[Any]  # InvalidRows: those with another number of cells, which no column has
    row_count: int  # of both


def _parse_rows(
    path: Path, text: str, first_line: int, header: Sequence[str], delimiter: str
) -> RowTable:
    """The rows of a text that begins on line `first_line` of the file.

    header: the names of the columns, each once. Rows that are blank, or the header once more, are
    left out. InputError for a row with fewer cells than the header, or more.
    """
    arrow_rows = _read_by_pyarrow(text, len(header), delimiter)

    is_read = np.ones(arrow_rows.row_count, np.bool_)
    is_read[[row.number - 1 for row in arrow_rows.left_out]] = False  # numbered from 1
    line_numbers = first_line + _lines_before(text, arrow_rows, is_read)

    # A blank line, too, has another number of cells, and is no mistake.
    for row in arrow_rows.left_out:
        is_blank = re.fullmatch(rf'[\s"{delimiter}]*', row.text)
        if not is_blank:
            location = f"{path}, line {line_numbers[row.number - 1]}"
            raise _wrong_cell_count(location, row, header, delimiter)

    columns = {
        name: _column_of(array) for name, array in zip(header, arrow_rows.columns, strict=True)
    }
    rows = RowTable(LinesOfFile(str(path), line_numbers[is_read], columns))
    holds_data = _holds_data(columns, len(rows))
    return rows if holds_data.all() else rows.take(holds_data)


def _read_by_pyarrow(text: str, num_columns: int, delimiter: str) -> ArrowRows:
    """The rows of a text without a header, by pyarrow; rows of another number of cells than
    `num_columns` apart from the others."""
    import pyarrow.csv  # Here, because no other command should wait for it.

    left_out: list[pyarrow.csv.InvalidRow] = []

    # Captures `left_out`; pyarrow calls it for each such row, in the rows' order.
    def leave_out(row: pyarrow.csv.InvalidRow) -> str:
        left_out.append(row)
        return "skip"

    data = text.encode()
    # Columns are known by their place: pyarrow need not see the header's names.
    names = [str(i) for i in range(num_columns)]
    # A dictionary holds each text of a column once, as a Column does.
    text_column = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    table = pyarrow.csv.read_csv(
        pyarrow.BufferReader(data),
        # One block, as a row may not be longer than a block; one thread, as only then rows are
        # numbered.
        read_options=pyarrow.csv.ReadOptions(
            use_threads=False, block_size=len(data) + 1, column_names=names
        ),
        parse_options=pyarrow.csv.ParseOptions(
            delimiter=delimiter,
            newlines_in_values='"' in text,
            ignore_empty_lines=False,
            invalid_row_handler=leave_out,
        ),
        # Every cell is text, none is null.
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, text_column),
            null_values=[],
            strings_can_be_null=False,
        ),
    )
    columns = [column.combine_chunks() for column in table.columns]
    return ArrowRows(columns, left_out, table.num_rows + len(left_out))


def _lines_before(text: str, arrow_rows: ArrowRows, is_read: Mask) -> NDArray[np.int64]:
    """int[rows]: how many lines of a text are above the first line of each row.

    `is_read`, bool[rows]: the rows that columns have; the others are left out. Rows are all of
    both, in the order of the text.
    """
    # Lines of a row's cells, beyond its first: a quoted cell may hold line ends.
    extra_lines = np.zeros(arrow_rows.row_count, np.int64)
    # Where there are as many lines as rows, none has extra lines: cells need not be looked at.
    line_count = text.count("\n") + (not text.endswith("\n"))
    if line_count > arrow_rows.row_count:
        extra_lines[is_read] = sum(map(_line_ends, arrow_rows.columns))
        extra_lines[~is_read] = [row.text.count("\n") for row in arrow_rows.left_out]
    return np.arange(arrow_rows.row_count) + np.cumsum(extra_lines) - extra_lines


def _wrong_cell_count(location: str, row: Any, header: Sequence[str], delimiter: str) -> InputError:
    """The error for a row that has more cells than the header, or fewer."""
    return InputError(
        where=location,
        found=f"{row.actual_columns} cells",
        expected=f"{row.expected_columns} as in the header ({list_some(header)})",
        fix=_remedy_for_cells(row, delimiter),
    )


def _remedy_for_cells(row: Any, delimiter: str) -> str:
    if row.text.startswith(COMMENT):
        return "Remove the line, if it is a comment."
    if row.actual_columns < row.expected_columns:
        return "Complete the line, or remove it."
    if delimiter == ",":
        return (
            "A number may hold no comma: export with decimal points and without thousands "
            "separators. Else remove what is too much."
        )
    return (
        f"A text that holds {delimiter!r} needs quotes around it: correct the line, or remove it."
    )


def _line_ends(array: Any) -> NDArray[np.int32]:
    """int[rows]: how many line ends each cell of a column holds; only a quoted one has any."""
    by_text = np.array([text.count("\n") for text in array.dictionary.to_pylist()], np.int32)
    return by_text[_codes(array)]


def _codes(array: Any) -> NDArray[np.int32]:
    """int[rows]: which of its texts each row of a dictionary array of pyarrow has."""
    # Not to_numpy(), which imports pandas where it is installed.
    return np.from_dlpack(array.indices).astype(np.int32, copy=False)


def _column_of(array: Any) -> Column:
    """A dictionary array of pyarrow, whose texts become Python's where somebody asks for them."""

    def texts() -> list[str]:
        return [text.strip() for text in array.dictionary.to_pylist()]

    return Column(_codes(array), CellValues(texts))


def _holds_data(columns: Mapping[str, Column], row_count: int) -> Mask:
    """bool[rows]: whether a row is neither blank in every column, nor the header once more."""
    is_blank = np.ones(row_count, np.bool_)
    is_header = np.ones(row_count, np.bool_)
    for name, column in columns.items():
        is_blank &= column.is_blank
        is_header &= column.ask(partial(eq, name))
        if not (is_blank | is_header).any():
            break  # Most columns are never asked for, and stay as pyarrow has them.
    return ~(is_blank | is_header)
