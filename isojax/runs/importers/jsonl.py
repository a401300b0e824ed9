"""JSON lines, of one run or of many: one object per line; keys of objects within it become column names with dots."""

from dataclasses import replace
from pathlib import Path

from isojax.core.errors import InputError
from isojax.core.table_files import read_objects
from isojax.core.tabular import DataRow
from isojax.core.yaml_files import flatten
from isojax.runs.logs.log_table import LEDGER_FIELDS, LogTable, check_log_file

FIELDS = LEDGER_FIELDS
SUFFIXES = (".jsonl", ".ndjson")


def read_log_objects(path: Path) -> list[DataRow]:
    """The file's rows, at least one; raises InputError as `read_objects`."""
    check_log_file(path)
    rows = list(read_objects(path))
    if not rows:
        raise InputError(f"{path} holds blank lines only, expected one JSON object per line. Leave it out.")
    return rows


def read(path: Path) -> list[LogTable]:
    """The file as one table; raises InputError as `read_log_objects`."""
    rows = read_log_objects(path)
    return [LogTable(str(path), tuple(replace(row, values=dict(flatten(row.values))) for row in rows), one_run=False)]
