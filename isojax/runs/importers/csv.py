"""CSV with a header line, one row per evaluation or training step, of one run or of many."""

from pathlib import Path

from isojax.core.table_files import read_csv, read_lines
from isojax.runs.logs.log_table import LEDGER_FIELDS, LogTable, check_log_file

FIELDS = LEDGER_FIELDS


def read(path: Path) -> list[LogTable]:
    """The file as one table; raises InputError as `read_csv`."""
    check_log_file(path)
    table = read_csv(path, read_lines(path))
    return [LogTable(table.source, table.rows, one_run=False)]
