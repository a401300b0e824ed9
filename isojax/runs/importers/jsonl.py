"""JSON lines, of one run or of many: one object per line; keys of objects within it become column
names with dots. One list of objects in a file, as pandas writes with orient="records", is read like
lines."""

from pathlib import Path

from isojax.core.tabular import DataRow, RowTable
from isojax.core.yaml_files import flatten
from isojax.runs.importers import csv, importer
from isojax.runs.logs.log_table import LogTable, read_log_objects


@importer(fields=csv.FIELDS, suffixes=(".jsonl", ".ndjson"))
def read(path: Path) -> list[LogTable]:
    """The file as one table; raises InputError as `read_log_objects`."""
    rows, notes = read_log_objects(path)
    flat_rows = (
        DataRow(row.source, row.position, dict(flatten(row.values)), row.index) for row in rows
    )
    return [
        LogTable(str(path), RowTable.gather(flat_rows), one_run=False, is_export=True, notes=notes)
    ]
