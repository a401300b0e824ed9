"""CSV with a header line: one row per evaluation, or per training step; comma, tab or semicolon between cells. One file
may hold many runs.
"""

from __future__ import annotations

from pathlib import Path

from isojax.core.table_files import BytesReadCallback, read_csv, read_lines
from isojax.runs.logs.column_map import LEDGER_FIELDS
from isojax.runs.logs.log_table import LogTable, checked_file_size

FIELDS = LEDGER_FIELDS


def read(path: Path, on_bytes_read: BytesReadCallback) -> list[LogTable]:
    """The file as one table; raises InputError as `read_csv`."""
    checked_file_size(path)
    table = read_csv(path, read_lines(path, on_bytes_read))
    return [LogTable(table.source, table.rows, one_run=False)]
