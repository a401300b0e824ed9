"""JSON lines, of one run or of many: one object per line; keys of objects within it become column names with dots. One
list of objects in a file, as pandas writes with orient="records", is read like lines."""

import json
import re
from dataclasses import replace
from pathlib import Path

from isojax.core.errors import InputError
from isojax.core.table_files import parse_json, read_lines, read_objects
from isojax.core.tabular import DataRow
from isojax.core.yaml_files import flatten
from isojax.runs.logs.log_table import LEDGER_FIELDS, LogTable, check_log_file

FIELDS = LEDGER_FIELDS
SUFFIXES = (".jsonl", ".ndjson")


def read_log_objects(path: Path) -> tuple[list[DataRow], tuple[str, ...]]:
    """The file's rows, at least one, and a note where its last line is torn; raises InputError as `read_objects`."""
    check_log_file(path)
    lines = list(read_lines(path))
    text = "".join(text for _, text in lines)
    if re.match(r"\s*\[\s*\{", text):
        lines = [(i, json.dumps(value)) for i, value in enumerate(parse_json(text, path), 1)]
        return [replace(row, position=f"entry {row.index + 1}") for row in read_objects(path, lines)], ()
    rows, notes = list(read_objects(path, lines[:-1])), tuple[str, ...]()
    try:
        rows += read_objects(path, lines[-1:])
    except InputError:
        if not rows or lines[-1][1].endswith("\n"):
            raise
        notes = ("its last line is torn, and left out (the run still writes it, or was stopped)",)
    if not rows:
        raise InputError(f"{path} holds blank lines only, expected one JSON object per line. Leave it out.")
    return rows, notes


def read(path: Path) -> list[LogTable]:
    """The file as one table; raises InputError as `read_log_objects`."""
    rows, notes = read_log_objects(path)
    flat_rows = tuple(replace(row, values=dict(flatten(row.values))) for row in rows)
    return [LogTable(str(path), flat_rows, one_run=False, notes=notes)]
