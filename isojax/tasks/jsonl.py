"""Problems from JSON lines: `jsonl:PATH`, a .jsonl or .jsonl.gz with one object a line, or a .json with one list of objects. No jax here.

A problem's id is its line's number, or its place in the list, from 0.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isojax.config import DataConfig
from isojax.tasks.rows import Row, read_rows
from isojax.tasks.sources import Held
from isojax.types import InputError


def source(argument: str, data: DataConfig) -> Held:
    """The problems of a file.

    Raises:
        InputError: no such file, a line that is no JSON object, a prompt or an answer that is missing; with file and line.
    """
    if not argument:
        raise InputError("cell.task: jsonl takes a file: jsonl:problems.jsonl, a .jsonl, .jsonl.gz or .json.")
    path = Path(argument).expanduser()
    rows = _listed(path) if path.name.removesuffix(".gz").endswith(".json") else _lines(path)
    return Held(read_rows(rows, data, str(path)))


def _lines(path: Path) -> Iterator[Row]:
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as f:
            for number, line in enumerate(f, 1):
                if line.strip():
                    yield _object(_parse(line.rstrip(b"\r\n"), path, number), number - 1, f"{path}, line {number}")
    except (OSError, EOFError, zlib.error) as e:
        raise _unreadable(path, e, f", line {number + 1}" if number else "") from e


def _listed(path: Path) -> Iterator[Row]:
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as e:
        raise _unreadable(path, e) from e
    whole = _parse(content, path)
    if not isinstance(whole, list):
        raise InputError(
            f"{path}, line 1: given a {type(whole).__name__}, expected a list of objects. Write [ ... ], or name a file of lines .jsonl."
        )
    for i, value in enumerate(whole):
        yield _object(value, i, f"{path}, item {i} of the list")


def _parse(content: bytes, path: Path, line: int = 1) -> Any:
    """One JSON value that begins on `line`."""
    try:
        return json.loads(content.decode("utf-8-sig" if line == 1 else "utf-8"))
    except json.JSONDecodeError as e:
        at = line + e.lineno - 1
        mend = "Mend or remove it." if e.msg != "Extra data" else "Put one object on a line, in a file named .jsonl."
        raise InputError(f"{path}, line {at}: not JSON ({e.msg} at column {e.colno}); expected an object. {mend}") from e
    except UnicodeDecodeError as e:
        at = line + content.count(b"\n", 0, e.start)
        raise InputError(f"{path}, line {at}: not UTF-8 (byte {content[e.start]:#04x}); save the file as UTF-8.") from e
    except (ValueError, RecursionError) as e:  # a number of thousands of digits; lists in lists in lists
        raise InputError(f"{path}, line {line}: cannot be read ({str(e).splitlines()[0]}). Mend or remove it.") from e


def _object(value: Any, number: int, place: str) -> Row:
    if not isinstance(value, dict):
        raise InputError(f"{place}: given {str(value)[:80]!r} ({type(value).__name__}), expected a JSON object. Mend or remove it.")
    return Row(number, place, value)


def _unreadable(path: Path, error: Exception, at: str = "") -> InputError:
    why = (error.strerror if isinstance(error, OSError) else None) or error
    return InputError(f"cannot read {path}{at}: {why}; expected a file of JSON lines, or a whole .gz of one. Check cell.task.")
