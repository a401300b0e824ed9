"""What a file is that was given as JSON lines and is none: a table in CSV, one JSON array, Parquet.
To correct its lines one by one would be of no use; each of these has a command that makes JSON
lines of it, or a source of its own."""

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
    """InputError, with what to do, where a file that could not be read as JSON lines is of one of
    these formats."""
    if not path.is_file():  # a pipe has been read already
        return
    with open_file(path) as file:
        if file.read(len(PARQUET_START)) == PARQUET_START:
            raise InputError(
                f"{path}: is a Parquet file, not JSON lines. Set cell.task=parquet:{path}."
            )

    line_number, text = next(
        ((number, text) for number, text in read_lines(path) if text.strip()), (0, "")
    )
    expected = "expected one JSON object on each line"
    if ARRAY_OF_OBJECTS.match(text):
        rows = f"json.load({_opened(path)})"
        command = _conversion(path, "json", rows)
        raise InputError(
            f"{path}, line {line_number}: begins a JSON array; {expected}. Convert it: {command}"
        )
    if line_number == 1 and (header := _header_of_table(path, text)):
        delimiter = HeaderLine(1, text).delimiter
        option = "" if delimiter == "," else f", delimiter={delimiter!r}"
        command = _conversion(path, "csv, json", f"csv.DictReader({_opened(path)}{option})")
        found = f"the header of a table in CSV ({', '.join(header)})"
        raise InputError(f"{path}, line {line_number}: {found}; {expected}. Convert it: {command}")


def _header_of_table(path: Path, text: str) -> list[str]:
    """The names of the columns, by a file's first line; none where this is no header."""
    if text.lstrip().startswith("{"):
        return []
    try:
        cells = next(csv.reader([text.rstrip("\r\n")], delimiter=HeaderLine(1, text).delimiter))
    except csv.Error:  # such as a carriage return within the line
        return []
    header = [name.strip() for name in cells]
    is_named_so = any(suffix in TABLE_SUFFIXES for suffix in path.suffixes)
    has_usual_names = bool({name.lower() for name in header} & {*PROMPT_COLUMNS, *ANSWER_COLUMNS})
    return header if len(header) > 1 and all(header) and (is_named_so or has_usual_names) else []


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
