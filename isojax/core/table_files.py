"""Files of rows: CSV, TSV and JSON lines, plain or gzipped.

What cannot be read is refused with its file and line.
"""

import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fnmatch import filter as match_names
from pathlib import Path
from typing import Any, Literal, cast

from isojax.core import limits
from isojax.core.atomic_files import open_file
from isojax.core.csv_text import parse_csv
from isojax.core.errors import InputError
from isojax.core.git_lfs import POINTER_START, pointer_error, refuse_pointer
from isojax.core.limits import MAX_DEPTH, MAX_DOCUMENT_BYTES, MAX_LINE_BYTES
from isojax.core.tabular import DataRow, DataTable, RowTable
from isojax.core.yaml_files import first_line, flatten

JSON_LINES_SUFFIXES = (".jsonl", ".ndjson")
BLOCK_BYTES = 2**20  # of a text file, read at a time
_KEY_END = re.compile(r'"\s*:')  # of a key of JSON: its quotation mark, and the colon behind it

OtherBytes = Literal["strict", "replace"]  # what becomes of bytes that are no UTF-8
NumberedLine = tuple[int, str]  # a line's number, from 1, and its text with the line end


def paths_below(folder: Path, pattern: str = "*", nested: bool = True) -> list[Path]:
    """The files and folders of such a name in a folder, sorted; `nested`: also in those within it.

    pattern: of the last part of a path, such as "*.jsonl". [] where there is no such folder.
    InputError where a folder cannot be listed, which Path.rglob would leave out.
    """

    # os.walk calls it for each folder that it cannot list. A folder that is not there, or has just
    # gone, is no mistake.
    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise InputError(
                where=error.filename,
                found=f"cannot be read: {error.strerror}",
                expected="one that you may list",
                fix="Correct its permissions.",
            ) from error

    if "\0" in str(folder):  # os.walk would raise a ValueError.
        return []

    paths: list[Path] = []
    for parent, folder_names, file_names in os.walk(folder, onerror=refuse):
        names = match_names([*folder_names, *file_names], pattern)
        paths += [Path(parent, name) for name in names]
        if not nested:
            folder_names.clear()  # which os.walk then does not enter
    return sorted(paths)


def read_table(path: Path) -> DataTable:
    """The file as a table; InputError where it is none.

    JSON lines where it is named .jsonl or .ndjson or opens with "{", else CSV with a header. Of
    JSON lines, the keys of objects within objects are joined by dots: {"a": {"b": 1}} has the
    column "a.b".
    """
    text = read_text(path)
    is_json = path.suffix in JSON_LINES_SUFFIXES or text.lstrip().startswith("{")
    if not is_json:
        return parse_csv(path, text)

    objects = read_objects(path, split_lines(text))
    rows = RowTable.of([replace(row, values=dict(flatten(row.values))) for row in objects])
    if not rows.names:
        raise InputError(
            where=path,
            found="no row of data: its objects hold no key",
            expected="one key for each column",
        )
    return DataTable(str(path), rows.names, rows, rows.place(0).position)


def read_text(path: Path) -> str:
    """All of a UTF-8 file (a .gz unpacked), no byte-order mark; InputError as of `_read_blocks`."""
    return "".join(text for _, text in _read_blocks(path, "strict"))


def read_lines(path: Path, errors: OtherBytes = "strict") -> Iterator[NumberedLine]:
    """The lines of a UTF-8 file (a .gz unpacked), no byte-order mark, as they are asked for.

    `errors`: "strict" refuses bytes that are no UTF-8, and NUL; "replace" puts U+FFFD in their
    place. InputError as of `_read_blocks`.
    """
    for line_number, text in _read_blocks(path, errors):
        yield from split_lines(text, line_number)


def split_lines(text: str, first_number: int = 1) -> Iterator[NumberedLine]:
    """The lines of a text, numbered from `first_number`. They end at \\n alone, which they keep."""
    return enumerate(io.StringIO(text, newline="\n"), first_number)


def _read_blocks(path: Path, errors: OtherBytes) -> Iterator[tuple[int, str]]:
    """Some whole lines at a time, as (number of the first, text).

    A text ends with \\n, but the last one of a file need not. `errors`: as of `read_lines`.
    InputError, with the line, for a file that cannot be read, is too large, or is no text.
    """
    line_number = 1  # of the first line that has not been given out
    size = 0  # bytes read
    unfinished = b""  # a line whose end has not been read yet
    try:
        with open_file(path) as packed:
            file = cast(io.BufferedReader, packed)
            if path.suffix.lower() == ".gz":
                file = gzip.GzipFile(fileobj=packed)

            # read1 gives as much as is there, so that a torn .gz is read up to its tear: the lines
            # before it are given out, and the error names the line.
            while data := file.read1(BLOCK_BYTES):
                if not size and data.startswith(POINTER_START):
                    raise pointer_error(path)
                _check_size(path, line_number, unfinished + data, size - len(unfinished))
                size += len(data)

                # `tail` is the beginning of a line; all of `data`, where no line ends in it.
                lines, end, tail = data.rpartition(b"\n")
                if not end:
                    unfinished += tail
                    continue
                block = unfinished + lines + end
                unfinished = tail
                yield line_number, _decode(block, path, line_number, errors)
                line_number += block.count(b"\n")
    except (OSError, EOFError, zlib.error) as e:
        if isinstance(e, gzip.BadGzipFile):
            refuse_pointer(path)  # A pointer of Git LFS is no gzip file, whatever its name.
        reason = (e.strerror if isinstance(e, OSError) else None) or e
        location = f"{path}, line {line_number}" if size else str(path)
        raise InputError(
            where=location,
            found=f"cannot be read: {reason}",
            expected="a text file, or a whole .gz of one",
        ) from e

    if unfinished:
        yield line_number, _decode(unfinished, path, line_number, errors)


def _check_size(path: Path, line_number: int, block: bytes, size_before: int) -> None:
    """InputError where a block, which begins at this line, passes a limit (core/limits.py).

    It names the line that does. block: begins with a line, and need not end with one; only its
    first line may be long, because it has been read in parts. size_before: the bytes of the file
    before the block.
    """
    first_line, _, _ = block.partition(b"\n")
    if len(first_line) >= MAX_LINE_BYTES:
        raise InputError(
            where=f"{path}, line {line_number}",
            expected=f"at most {MAX_LINE_BYTES:,} bytes per line",
        )

    line_count = block.count(b"\n") + (not block.endswith(b"\n"))
    most_lines = limits.MAX_LINES - line_number + 1  # that this block may have
    most_bytes = limits.MAX_TEXT_BYTES - size_before
    if line_count > most_lines or len(block) > most_bytes:
        offending_line = line_number + min(most_lines, block.count(b"\n", 0, most_bytes))
        most = f"at most {limits.MAX_LINES:,} lines and {limits.MAX_TEXT_BYTES:,} bytes, unpacked"
        raise InputError(
            where=f"{path}, line {offending_line}",
            expected=most,
            fix="Split the file, or leave some out.",
        )


def _decode(block: bytes, path: Path, first_number: int, errors: OtherBytes) -> str:
    """A block of whole lines as text; InputError, with the line, where it is none.

    first_number: of the block's first line. path: for messages. errors: as of `read_lines`.
    """
    try:
        # Only a file's first line may begin with a byte-order mark.
        text = block.decode("utf-8-sig" if first_number == 1 else "utf-8", errors)
    except UnicodeDecodeError as e:
        line_number = first_number + e.object.count(b"\n", 0, e.start)
        position = e.start - e.object.rfind(b"\n", 0, e.start)
        problem = f"not UTF-8 (byte {e.object[e.start]:#04x} at position {position})"
        raise InputError(
            where=f"{path}, line {line_number}",
            found=problem,
            fix="Save the file as UTF-8, unpacked.",
        ) from e

    # str.find gives -1 where there is none.
    nul = text.find("\0") if errors == "strict" else -1
    if nul >= 0:
        line_number = first_number + text.count("\n", 0, nul)
        raise InputError(
            where=f"{path}, line {line_number}",
            found="a NUL byte, as in a binary file",
            expected="text",
        )
    return text


def read_objects(path: Path, lines: Iterable[NumberedLine] | None = None) -> Iterator[DataRow]:
    """The rows of a file with one JSON object per line, blank lines left out.

    lines: those of the file, if they were read already; None: they are read. A row's values are the
    object as it is, with lists and objects in it. InputError for a line that is no object.
    """
    for line_number, text in read_lines(path) if lines is None else lines:
        if not text.strip():
            continue

        value = parse_json(text.rstrip("\r\n"), path, line_number)
        position = f"line {line_number}"
        if not isinstance(value, dict):
            received = f"{str(value)[:80]!r} ({type(value).__name__})"
            raise InputError(
                where=f"{path}, {position}",
                found=f"given {received}",
                expected="a JSON object on each line",
            )
        _reject_repeated_keys(text, value, f"{path}, {position}")
        yield DataRow(str(path), position, value, line_number - 1)


def _reject_repeated_keys(text: str, value: dict[str, Any], location: str) -> None:
    """InputError where an object, or one within it, has a key twice, with two values.

    text: a line; value: what Python's reader, which takes the last of them, made of it.
    """
    # Most rows have each key once, and no object within: they need no second reading. (A text that
    # holds `":` only makes it needed.)
    if len(_KEY_END.findall(text)) == len(value):
        return

    # Called with the keys and values of each object, the innermost first; captures `location`.
    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        whole = dict(pairs)
        if len(whole) == len(pairs):
            return whole
        for key, first in pairs:
            if repr(first) != repr(whole[key]):  # repr, as NaN does not equal itself
                raise InputError(
                    where=location,
                    found=f"the key {key!r} is there twice, with {first!r} and {whole[key]!r}",
                    expected="it once",
                    fix="Remove one.",
                )
        return whole

    json.loads(text, object_pairs_hook=check)


def parse_json(text: str, path: Path, line: int = 1) -> Any:
    """One JSON value that begins on line `line` of a file; InputError where it cannot be read.

    text: the whole value, of one or more lines. path: for messages. The value is refused if it has
    more lists and objects than MAX_OBJECTS, or they are nested deeper than MAX_DEPTH.
    """
    try:
        # Brackets are counted first: Python would fill the memory with lists, or end on the stack.
        opened = text.count("[") + text.count("{")
        if opened > limits.MAX_OBJECTS:
            raise ValueError(f"more than {limits.MAX_OBJECTS:,} lists and objects")
        value = json.loads(text)
        # With fewer brackets it cannot be that deep.
        if opened > MAX_DEPTH and _depth(value) > MAX_DEPTH:
            raise ValueError(f"lists and objects more than {MAX_DEPTH} deep")
        return value
    except json.JSONDecodeError as e:
        line_number = line + e.lineno - 1
        # Several objects on one line; or an object of many lines, of which this is the first: "{"
        # alone.
        is_not_one_a_line = e.msg == "Extra data" or len(text) == 1
        fix = "Correct the line, or remove it."
        if is_not_one_a_line:
            fix = "Put one object on a line, in a .jsonl."
        problem = f"not JSON ({e.msg} at column {e.colno})"
        raise InputError(
            where=f"{path}, line {line_number}",
            found=problem,
            expected="a whole object",
            fix=fix,
        ) from e
    except (ValueError, RecursionError) as e:
        # Of numbers with thousands of digits, too, and of lists that Python cannot nest so deeply.
        raise InputError(
            where=f"{path}, line {line}",
            found=f"cannot be read ({first_line(e)})",
            fix="Correct or remove it.",
        ) from e


def _depth(value: Any) -> int:
    """How many lists and objects are within each other: 0 of a number, 2 of [[]]. RecursionError
    for a thousand or so."""
    if not isinstance(value, dict | list):
        return 0
    items = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_depth, items), default=0)


def read_json_object(path: Path) -> dict[str, Any]:
    """The object that a whole file holds; InputError where it holds another value, or none.

    Also where it is longer than MAX_DOCUMENT_BYTES: such a file is not read to its end.
    """
    texts = []
    size = 0
    for _, text in _read_blocks(path, "strict"):
        texts.append(text)
        size += len(text)
        if size > MAX_DOCUMENT_BYTES:
            raise InputError(
                where=path,
                found="too long for a file of one JSON value",
                expected=f"at most {MAX_DOCUMENT_BYTES:,} bytes",
            )

    value = parse_json("".join(texts), path)
    if not isinstance(value, dict):
        raise InputError(
            where=path,
            found=f"given a {type(value).__name__} at the top",
            expected="a JSON object",
        )
    return value
