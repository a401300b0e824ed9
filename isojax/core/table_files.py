"""Files of rows: CSV, TSV and JSON lines, plain or gzipped. What cannot be read is refused with its file and line."""

import csv
import gzip
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import filter as match_names
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from isojax.core import limits
from isojax.core.atomic_files import open_file
from isojax.core.errors import InputError
from isojax.core.limits import MAX_COLUMNS, MAX_DEPTH, MAX_DOCUMENT_BYTES, MAX_LINE_BYTES
from isojax.core.tabular import DataRow, DataTable, list_some, parse_number
from isojax.core.yaml_files import first_line, flatten

JSON_LINES_SUFFIXES = (".jsonl", ".ndjson")
DELIMITERS = ",\t;"

csv.field_size_limit(MAX_LINE_BYTES)
NumberedLine = tuple[int, str]  # a line's number, from 1, and its text with the line end


def paths_below(folder: Path, pattern: str = "*", nested: bool = True) -> list[Path]:
    """The files and folders of such a name in a folder, and where `nested` in those within it, sorted; none where there
    is no such folder. InputError where one cannot be read, which Path.rglob leaves out."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            problem = f"cannot read the folder {error.filename}: {error.strerror}"
            raise InputError(f"{problem}; expected one that you may list. Correct its permissions.") from error

    paths: list[Path] = []
    for parent, folder_names, names in os.walk(folder, onerror=refuse) if "\0" not in str(folder) else ():
        paths += [Path(parent, name) for name in match_names([*folder_names, *names], pattern)]
        if not nested:
            folder_names.clear()
    return sorted(paths)


def read_table(path: Path) -> DataTable:
    """The file as a table: JSON lines where it is named .jsonl or opens with "{", else CSV with a header."""
    lines = read_lines(path)
    first = list(islice((line for line in lines if line[1].strip()), 1))
    lines = chain(first, lines)
    if path.suffix not in JSON_LINES_SUFFIXES and not any(text.lstrip().startswith("{") for _, text in first):
        return read_csv(path, lines)
    objects = read_objects(path, lines)
    rows = tuple(DataRow(row.source, row.position, dict(flatten(row.values)), row.index) for row in objects)
    columns = tuple(dict.fromkeys(name for row in rows for name in row.values))
    if not columns:
        raise InputError(f"{path} has no row of data: its objects hold no key; expected one key for each column.")
    return DataTable(str(path), columns, rows, rows[0].position)


def read_lines(path: Path, errors: Literal["strict", "replace"] = "strict") -> Iterator[NumberedLine]:
    """The lines of a UTF-8 file (a .gz unpacked), no byte-order mark. `errors`: refuse other bytes, or put U+FFFD."""
    line_number = size = 0
    try:
        with open_file(path) as packed, gzip.open(packed) if path.suffix.lower() == ".gz" else packed as f:
            for line_number, data in enumerate(iter(lambda: f.readline(MAX_LINE_BYTES + 1), b""), 1):
                if len(data) > MAX_LINE_BYTES:
                    raise InputError(f"{path}, line {line_number}: expected at most {MAX_LINE_BYTES:,} bytes per line.")
                size += len(data)
                if line_number > limits.MAX_LINES or size > limits.MAX_TEXT_BYTES:
                    most = f"at most {limits.MAX_LINES:,} lines and {limits.MAX_TEXT_BYTES:,} bytes, unpacked"
                    raise InputError(f"{path}, line {line_number}: expected {most}. Split the file, or leave some out.")
                yield line_number, _decode(data, path, line_number, errors)
    except (OSError, EOFError, zlib.error) as e:
        reason = (e.strerror if isinstance(e, OSError) else None) or e
        location = f"{path}, line {line_number + 1}" if line_number else str(path)
        raise InputError(f"cannot read {location}: {reason}; expected a text file, or a whole .gz of one.") from e


def _decode(data: bytes, path: Path, line_number: int, errors: str) -> str:
    try:
        text = data.decode("utf-8-sig" if line_number == 1 else "utf-8", errors)
    except UnicodeDecodeError as e:
        byte = f"byte {e.object[e.start]:#04x} at position {e.start + 1}"
        raise InputError(f"{path}, line {line_number}: not UTF-8 ({byte}); save the file as UTF-8, unpacked.") from e
    if "\0" in text and errors == "strict":
        raise InputError(f"{path}, line {line_number}: a NUL byte, expected text; this looks like a binary file.")
    return text


def read_objects(path: Path, lines: Iterable[NumberedLine] | None = None) -> Iterator[DataRow]:
    """The rows of a file with one JSON object per line, blank lines left out; `lines`: those that were read of it."""
    for line_number, text in read_lines(path) if lines is None else lines:
        if text.strip():
            value = parse_json(text.rstrip("\r\n"), path, line_number)
            position = f"line {line_number}"
            if not isinstance(value, dict):
                received = f"{str(value)[:80]!r} ({type(value).__name__})"
                raise InputError(f"{path}, {position}: given {received}, expected a JSON object on each line.")
            yield DataRow(str(path), position, value, line_number - 1)


def parse_json(text: str, path: Path, line: int = 1) -> Any:
    """One JSON value that begins on this line of a file."""
    try:
        opened = text.count("[") + text.count("{")
        if opened > limits.MAX_OBJECTS:
            raise ValueError(f"more than {limits.MAX_OBJECTS:,} lists and objects")
        value = json.loads(text)
        if opened > MAX_DEPTH and _depth(value) > MAX_DEPTH:
            raise ValueError(f"lists and objects more than {MAX_DEPTH} deep")
        return value
    except json.JSONDecodeError as e:
        line_number = line + e.lineno - 1
        is_part = e.msg == "Extra data" or len(text) == 1  # an object of many lines, or several on one
        fix = "Put one object on a line, in a .jsonl." if is_part else "Correct the line, or remove it."
        problem = f"not JSON ({e.msg} at column {e.colno})"
        raise InputError(f"{path}, line {line_number}: {problem}; expected a whole object. {fix}") from e
    except (ValueError, RecursionError) as e:  # numbers of thousands of digits, lists nested too deeply
        raise InputError(f"{path}, line {line}: cannot be read ({first_line(e)}). Correct or remove it.") from e


def _depth(value: Any) -> int:
    """How many lists and objects are within each other; RecursionError for a thousand or so."""
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)


def read_json_object(path: Path) -> dict[str, Any]:
    """The object that a whole file holds."""
    texts, size = [], 0
    for _, text in read_lines(path):
        texts.append(text)
        size += len(text)
        if size > MAX_DOCUMENT_BYTES:
            raise InputError(f"{path}: more than {MAX_DOCUMENT_BYTES:,} bytes, the most of a file of one JSON value.")
    value = parse_json("".join(texts), path)
    if not isinstance(value, dict):
        raise InputError(f"{path}: given a {type(value).__name__} at the top, expected a JSON object.")
    return value


def read_csv(path: Path, lines: Iterable[NumberedLine]) -> DataTable:
    """CSV with a header, by commas, tabs or semicolons. Cells are text; blank rows and further headers are left out."""
    numbered_lines = iter(lines)
    is_empty = re.compile(r"\s*(sep=.\s*)?").fullmatch  # the latter: Excel's first line
    first_number, first_text = next((line for line in numbered_lines if not is_empty(line[1])), (0, ""))
    if not first_text:
        raise InputError(f"{path} is empty; expected a header line with the columns' names and rows below it.")
    texts = chain([first_text], (text for _, text in numbered_lines))
    reader = csv.reader(texts, delimiter=max(DELIMITERS, key=first_text.count), strict=True)
    lines_before = first_number - 1
    rows: list[DataRow] = []
    try:
        header = _parse_header(path, first_number, next(reader))
        line_number = lines_before + reader.line_num + 1
        for cells in reader:
            if any(cell.strip() for cell in cells) and tuple(map(str.strip, cells)) != header:
                rows.append(_parse_csv_row(path, line_number, header, cells))
            line_number = lines_before + reader.line_num + 1
    except csv.Error as e:
        line_number = lines_before + reader.line_num
        raise InputError(f"{path}, line {line_number}: not CSV ({e}). Correct the quotes of that line.") from e
    if not rows:
        raise InputError(f"{path} has no row of data below its header (line {first_number}); expected at least one.")
    return DataTable(str(path), header, tuple(rows), f"line {first_number}")


def _parse_header(path: Path, line_number: int, cells: Sequence[str]) -> tuple[str, ...]:
    names = tuple(cell.strip() for cell in cells)
    if len(names) > MAX_COLUMNS:
        raise InputError(f"{path}, line {line_number}: {len(names):,} columns, expected at most {MAX_COLUMNS:,}.")
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise InputError(f"{path}, line {line_number}: the column {duplicate!r} is there twice; rename or remove one.")
    if names[0].startswith("{") or all(parse_number(name) is not None for name in names):
        raise InputError(f"{path}, line {line_number}: given {', '.join(names)}, expected a header of column names.")
    return names


def _parse_csv_row(path: Path, line_number: int, header: Sequence[str], cells: Sequence[str]) -> DataRow:
    if len(cells) != len(header):
        hint = " A number may hold no comma: export with decimal points." if len(cells) > len(header) else ""
        expected = f"expected {len(header)} as in the header ({list_some(header)})"
        raise InputError(f"{path}, line {line_number} has {len(cells)} cells, {expected}.{hint}")
    values = dict(zip(header, (cell.strip() for cell in cells), strict=True))
    return DataRow(str(path), f"line {line_number}", values, line_number - 1)
