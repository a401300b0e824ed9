"""JSON lines: one object per line; keys of objects within it become column names with dots. One file may hold many
runs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from isojax.core.errors import InputError
from isojax.core.table_files import BytesReadCallback, read_objects
from isojax.core.tabular import DataRow
from isojax.core.yaml_files import flatten
from isojax.runs.logs.column_map import LEDGER_FIELDS
from isojax.runs.logs.log_table import LogTable, checked_file_size

FIELDS = LEDGER_FIELDS


def read_log_objects(path: Path, on_bytes_read: BytesReadCallback) -> list[DataRow]:
    """The file's rows, at least one; raises InputError as `read_objects`."""
    checked_file_size(path)
    rows = list(read_objects(path, on_bytes_read))
    if not rows:
        raise InputError(f"{path} holds blank lines only, expected one JSON object per line. Leave it out.")
    return rows


def read(path: Path, on_bytes_read: BytesReadCallback) -> list[LogTable]:
    """The file as one table; raises InputError as `read_log_objects`."""
    rows = read_log_objects(path, on_bytes_read)
    return [LogTable(str(path), tuple(replace(row, values=dict(flatten(row.values))) for row in rows), one_run=False)]
