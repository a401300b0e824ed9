"""JSON lines: one object a line; keys of objects within it become column names with dots. One file may hold many
runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isojax.core.errors import InputError
from isojax.core.yaml_files import flatten
from isojax.runs.log_fields import LEDGER_FIELDS
from isojax.runs.log_table import BytesReadCallback, LogRow, LogTable, other_format_hint, read_lines

FIELDS = LEDGER_FIELDS


def read_objects(path: Path, on_bytes_read: BytesReadCallback, log_format: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, object) of each line that is not blank; `name` is the format asked for.

    Raises:
        InputError: not text, a line that is no whole JSON object, or no object at all, with its line.
    """
    has_objects = False
    for line_number, line in read_lines(path, on_bytes_read):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as e:
            reason = e.msg if isinstance(e, json.JSONDecodeError) else type(e).__name__
            fix = (
                other_format_hint(path, log_format)
                or " Mend the line, or remove it where the writer was stopped half-way."
            )
            raise InputError(
                f"{path}, line {line_number} is no whole JSON object ({reason}); expected one object a line.{fix}"
            ) from e
        if not isinstance(row, dict):
            kind = type(row).__name__
            raise InputError(
                f"{path}, line {line_number} is a {kind}, expected a JSON object.{other_format_hint(path, log_format) or ' Remove the line.'}"
            )
        has_objects = True
        yield line_number, row
    if not has_objects:
        raise InputError(
            f"{path} holds blank lines only (from line 1 on), expected one JSON object a line. Leave it out."
        )


def read(path: Path, on_bytes_read: BytesReadCallback) -> list[LogTable]:
    """The file as one table; raises InputError as `objects`."""
    rows = tuple(
        LogRow(f"line {line_number}", dict(flatten(row)))
        for line_number, row in read_objects(path, on_bytes_read, "jsonl")
    )
    return [LogTable(str(path), rows, one_run=False)]
