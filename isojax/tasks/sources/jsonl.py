"""Problems from JSON lines: `jsonl:PATH`, a .jsonl or .jsonl.gz. A problem's id is its line number
minus 1."""

from pathlib import Path

from isojax.core.argument_path import ArgumentPath
from isojax.core.config import DataConfig
from isojax.core.errors import InputError
from isojax.core.table_files import read_objects
from isojax.tasks.other_formats import refuse_other_format
from isojax.tasks.problem_sources import InMemorySource, rows_to_problems
from isojax.tasks.sources import source


@source(path=ArgumentPath)
def jsonl(argument: str, data: DataConfig) -> InMemorySource:
    """The problems of a file; an InputError names the file and the line."""
    if not argument:
        raise InputError(
            where="cell.task",
            found="jsonl takes a file: jsonl:problems.jsonl, a .jsonl or .jsonl.gz",
        )
    path = Path(argument).expanduser()
    try:
        rows = list(read_objects(path))
    except InputError:
        refuse_other_format(path)
        raise
    return InMemorySource(rows_to_problems(rows, data, str(path)))
