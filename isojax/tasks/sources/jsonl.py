"""Problems from JSON lines: `jsonl:PATH`, a .jsonl or .jsonl.gz with one object a line, or a .json with one list of
objects. No jax here.

A problem's id is its line's number, or its place in the list, from 0.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isojax.core.config import DataConfig
from isojax.core.errors import InputError
from isojax.tasks.problem_sources import InMemorySource
from isojax.tasks.source_rows import SourceRow, rows_to_problems


def source(argument: str, data: DataConfig) -> InMemorySource:
    """The problems of a file.

    Raises:
        InputError: no such file, a line that is no JSON object, a prompt or an answer that is missing; with file and
        line.
    """
    if not argument:
        raise InputError("cell.task: jsonl takes a file: jsonl:problems.jsonl, a .jsonl, .jsonl.gz or .json.")
    path = Path(argument).expanduser()
    rows = _read_list(path) if path.name.removesuffix(".gz").endswith(".json") else _read_lines(path)
    return InMemorySource(rows_to_problems(rows, data, str(path)))


def _read_lines(path: Path) -> Iterator[SourceRow]:
    line_number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as f:
            for line_number, line in enumerate(f, 1):
                if line.strip():
                    yield _to_row(
                        _parse_json(line.rstrip(b"\r\n"), path, line_number),
                        line_number - 1,
                        f"{path}, line {line_number}",
                    )
    except (OSError, EOFError, zlib.error) as e:
        raise _unreadable_error(path, e, f", line {line_number + 1}" if line_number else "") from e


def _read_list(path: Path) -> Iterator[SourceRow]:
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as e:
        raise _unreadable_error(path, e) from e
    items = _parse_json(content, path)
    if not isinstance(items, list):
        raise InputError(
            f"{path}, line 1: given a {type(items).__name__}, expected a list of objects. Write [ ... ], or name a file of lines .jsonl."
        )
    for i, value in enumerate(items):
        yield _to_row(value, i, f"{path}, item {i} of the list")


def _parse_json(content: bytes, path: Path, first_line: int = 1) -> Any:
    """One JSON value that begins on `line`."""
    try:
        return json.loads(content.decode("utf-8-sig" if first_line == 1 else "utf-8"))
    except json.JSONDecodeError as e:
        error_line = first_line + e.lineno - 1
        fix = "Mend or remove it." if e.msg != "Extra data" else "Put one object on a line, in a file named .jsonl."
        raise InputError(
            f"{path}, line {error_line}: not JSON ({e.msg} at column {e.colno}); expected an object. {fix}"
        ) from e
    except UnicodeDecodeError as e:
        error_line = first_line + content.count(b"\n", 0, e.start)
        raise InputError(
            f"{path}, line {error_line}: not UTF-8 (byte {content[e.start]:#04x}); save the file as UTF-8."
        ) from e
    except (ValueError, RecursionError) as e:  # a number of thousands of digits; lists in lists in lists
        raise InputError(
            f"{path}, line {first_line}: cannot be read ({str(e).splitlines()[0]}). Mend or remove it."
        ) from e


def _to_row(value: Any, row_number: int, location: str) -> SourceRow:
    if not isinstance(value, dict):
        raise InputError(
            f"{location}: given {str(value)[:80]!r} ({type(value).__name__}), expected a JSON object. Mend or remove it."
        )
    return SourceRow(row_number, location, value)


def _unreadable_error(path: Path, error: Exception, location: str = "") -> InputError:
    reason = (error.strerror if isinstance(error, OSError) else None) or error
    return InputError(
        f"cannot read {path}{location}: {reason}; expected a file of JSON lines, or a whole .gz of one. Check cell.task."
    )
