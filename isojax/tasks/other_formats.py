"""Recognizes files that were given as JSON lines but have another format: a table in CSV, one JSON
array, Parquet. The error then names a command that converts the file, or another source, instead of
the first line that cannot be read.
"""

import csv
import re
import shlex
from pathlib import Path

from isojax.core.atomic_files import open_file
from isojax.core.csv_header import HeaderLine
from isojax.core.errors import InputError
from isojax.core.table_files import read_lines
from isojax.tasks.problem_columns import ANSWER_COLUMNS, PROMPT_COLUMNS

PARQUET_START = b"PAR1"
ARRAY_OF_OBJECTS = re.compile(r"\s*\[\s*(?:\{|$)")
TABLE_SUFFIXES = (".csv", ".tsv")


def refuse_other_format(path: Path) -> None:
    """Called when a file could not be read as JSON lines: InputError with what to do where it is
    Parquet, a JSON array or a table in CSV. Returns for any other file. read_lines gives (number
    from 1, text) of each line."""
    if not path.is_file():  # a pipe has been read already
        return
    with open_file(path) as file:
        if file.read(len(PARQUET_START)) == PARQUET_START:
            raise InputError(
                where=path,
                found="a Parquet file, not JSON lines",
                fix=f"Set cell.task=parquet:{path}.",
            )

    # The first line that is not blank.
    line_number, text = 0, ""
    for number, line in read_lines(path):
        if line.strip():
            line_number, text = number, line
            break

    expected = "one JSON object on each line"
    if ARRAY_OF_OBJECTS.match(text):
        rows = f"json.load({_opened(path)})"
        command = _conversion(path, modules="json", rows=rows)
        raise InputError(
            where=f"{path}, line {line_number}",
            found="begins a JSON array",
            expected=expected,
            fix=f"Convert it: {command}",
        )
    # HeaderLine.delimiter: what divides the names in the line, such as a comma or a tab.
    header = _header_of_table(path, text) if line_number == 1 else []
    if header:
        delimiter = HeaderLine(1, text).delimiter
        option = "" if delimiter == "," else f", delimiter={delimiter!r}"
        rows = f"csv.DictReader({_opened(path)}{option})"
        command = _conversion(path, modules="csv, json", rows=rows)
        raise InputError(
            where=f"{path}, line {line_number}",
            found=f"the header of a table in CSV ({', '.join(header)})",
            expected=expected,
            fix=f"Convert it: {command}",
        )


def _header_of_table(path: Path, text: str) -> list[str]:
    """The names of the columns of a table in CSV, from `text`, the first line of its file; [] where
    the line does not look like a header: one cell, an empty name, or neither a CSV suffix nor a
    usual name such as "prompt"."""
    if text.lstrip().startswith("{"):  # a JSON object
        return []
    try:
        cells = next(csv.reader([text.rstrip("\r\n")], delimiter=HeaderLine(1, text).delimiter))
    except csv.Error:  # such as a carriage return within the line
        return []

    header = [name.strip() for name in cells]
    if len(header) < 2 or not all(header):
        return []
    is_named_table = any(suffix in TABLE_SUFFIXES for suffix in path.suffixes)
    lower_names = {name.lower() for name in header}
    has_usual_names = not lower_names.isdisjoint((*PROMPT_COLUMNS, *ANSWER_COLUMNS))
    return header if is_named_table or has_usual_names else []


def _opened(path: Path) -> str:
    """Python that opens the file as text, a byte-order mark left out."""
    if path.suffix.lower() == ".gz":
        return f"gzip.open({str(path)!r}, 'rt', newline='', encoding='utf-8-sig')"
    return f"open({str(path)!r}, newline='', encoding='utf-8-sig')"


def _conversion(path: Path, modules: str, rows: str) -> str:
    """A command that writes rows as JSON lines in the current folder."""
    stem = path.name.partition(".")[0]
    new_name = f"{stem}.jsonl" if path.name != f"{stem}.jsonl" else f"{stem}-rows.jsonl"
    if path.suffix.lower() == ".gz":
        modules += ", gzip"
    program = f"import {modules}; [print(json.dumps(row)) for row in {rows}]"
    escaped = re.sub(r'([\\"$`])', r"\\\1", program)  # of what a shell reads within double quotes
    return f'python -c "{escaped}" > {shlex.quote(new_name)}'
