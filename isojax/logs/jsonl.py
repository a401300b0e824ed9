"""JSON lines: one object a line; keys of objects within it become column names with dots. One file may hold many runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isojax.files import leaves
from isojax.logs.fields import OWN_NAMES
from isojax.logs.table import Row, Table, Tick, lines, other_format
from isojax.types import InputError

FIELDS = OWN_NAMES


def objects(path: Path, tick: Tick, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, object) of each line that is not blank; `name` is the format asked for.

    Raises:
        InputError: not text, a line that is no whole JSON object, or no object at all, with its line.
    """
    found = False
    for number, text in lines(path, tick):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as e:
            why = e.msg if isinstance(e, json.JSONDecodeError) else type(e).__name__
            mend = other_format(path, name) or " Mend the line, or remove it where the writer was stopped half-way."
            raise InputError(f"{path}, line {number} is no whole JSON object ({why}); expected one object a line.{mend}") from e
        if not isinstance(row, dict):
            kind = type(row).__name__
            raise InputError(f"{path}, line {number} is a {kind}, expected a JSON object.{other_format(path, name) or ' Remove the line.'}")
        found = True
        yield number, row
    if not found:
        raise InputError(f"{path} holds blank lines only (from line 1 on), expected one JSON object a line. Leave it out.")


def read(path: Path, tick: Tick) -> list[Table]:
    """The file as one table; raises InputError as `objects`."""
    rows = tuple(Row(f"line {number}", dict(leaves(row))) for number, row in objects(path, tick, "jsonl"))
    return [Table(str(path), rows, one_run=False)]
