"""JSON lines, of one run or of many: one object per line; keys of objects within it become column
names with dots. One list of objects in a file, as pandas writes with orient="records", is read like
lines."""

from pathlib import Path

from isojax.core.table_files import JSON_LINES_SUFFIXES
from isojax.core.tabular import DataRow, RowTable
from isojax.core.yaml_files import flatten
from isojax.runs.importers import importer
from isojax.runs.logs.known_columns import TABLE_FIELDS
from isojax.runs.logs.log_files import LogStart
from isojax.runs.logs.log_table import LogTable, read_log_objects


def detect(log: LogStart) -> bool:
    return log.is_json


@importer(fields=TABLE_FIELDS, detect=detect, is_general=True, suffixes=JSON_LINES_SUFFIXES)
def read(path: Path) -> list[LogTable]:
    """The file as one table; raises InputError as `read_log_objects`."""
    rows, notes = read_log_objects(path)
    flat_rows = (
        DataRow(row.source, row.position, dict(flatten(row.values)), row.index) for row in rows
    )
    table = RowTable.gather(flat_rows)
    return [LogTable(str(path), table, one_run=False, is_export=True, notes=notes)]
