"""Problems from JSON lines: `jsonl:PATH`, a .jsonl or .jsonl.gz with one object per line, or a .json with one list of
objects. A problem's id is its line number minus 1, or its place in the list, from 0."""

from collections.abc import Iterator
from pathlib import Path

from isojax.core.config import DataConfig
from isojax.core.errors import InputError
from isojax.core.table_files import object_row, read_json, read_objects
from isojax.core.tabular import DataRow
from isojax.tasks.problem_sources import InMemorySource, rows_to_problems


def source(argument: str, data: DataConfig) -> InMemorySource:
    """The problems of a file; an InputError names the file and the line."""
    if not argument:
        raise InputError("cell.task: jsonl takes a file: jsonl:problems.jsonl, a .jsonl, .jsonl.gz or .json.")
    path = Path(argument).expanduser()
    rows = _read_list(path) if path.name.removesuffix(".gz").endswith(".json") else read_objects(path)
    return InMemorySource(rows_to_problems(rows, data, str(path)))


def _read_list(path: Path) -> Iterator[DataRow]:
    """The objects of a file that holds one list of them."""
    items = read_json(path)
    if not isinstance(items, list):
        raise InputError(
            f"{path}, line 1: given a {type(items).__name__}, expected a list of objects; name a file of lines .jsonl."
        )
    for i, value in enumerate(items):
        yield object_row(value, path, f"item {i} of the list", i)
