"""Problems from Parquet, `parquet:PATH`: a file, a folder or a pattern such as
data/train-*.parquet, in verl's schema or flat columns (tasks/problem_sources.py).

A problem's id is its row's number over all files by name, from 0.
"""

import glob
from collections.abc import Iterator
from pathlib import Path

from isojax.core import limits
from isojax.core.argument_path import ArgumentPath
from isojax.core.config import DataConfig
from isojax.core.errors import InputError
from isojax.core.git_lfs import refuse_pointer
from isojax.core.registry import import_extra
from isojax.core.table_files import paths_below
from isojax.core.tabular import DataRow
from isojax.tasks.problem_sources import InMemorySource, rows_to_problems, to_plain_json
from isojax.tasks.sources import source

BATCH_ROWS = 256  # unpacked at once


def argument_path(argument: str) -> ArgumentPath:
    return ArgumentPath(argument, inside=("*.parquet",))


@source(path=argument_path)
def parquet(argument: str, data: DataConfig) -> InMemorySource:
    """The problems of one or more files of one schema; an InputError names the file and the row."""
    import_extra("parquet", "cell.task: parquet", "pyarrow.parquet")
    return InMemorySource(rows_to_problems(_read_rows(_find_files(argument)), data, argument))


def _find_files(argument: str) -> list[Path]:
    """The files that a path, a folder or a pattern means, sorted by name; InputError where there is
    none. argument: such as "data/train.parquet", "data" or "data/train-*.parquet". The order fixes
    the problems' ids."""
    if not argument:
        raise InputError(
            where="cell.task",
            found="parquet takes a file, a folder or a pattern: parquet:data/train.parquet",
        )
    path = Path(argument).expanduser()
    if path.is_file():
        return [path]

    if path.is_dir():
        files = paths_below(path, "*.parquet", nested=False)
        problem = "a folder without .parquet files"
    else:
        files = sorted(map(Path, glob.glob(str(path))))
        problem = "no such file"
    if not files:
        raise InputError(
            where=path,
            found=f"cannot be read: {problem}",
            expected="a Parquet file, a folder or a pattern of them",
        )
    return files


def _read_rows(paths: list[Path]) -> Iterator[DataRow]:
    """The rows of Parquet files with the same columns, numbered over all files. InputError where
    columns differ, a file cannot be read, or the files are too large."""
    import pyarrow.parquet

    row_number = 0
    size = 0  # bytes unpacked so far
    first_names: list[str] | None = None  # the columns of the first file
    for path in paths:
        file_start = row_number
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                names = file.schema_arrow.names
                first_names = first_names or names
                if set(names) != set(first_names):
                    others = f"those of {paths[0]} {', '.join(first_names)}"
                    raise InputError(
                        where=path,
                        found=f"its columns are {', '.join(names)}, {others}",
                    )
                # Before anything is unpacked, by the number of rows; then by the bytes of each
                # batch.
                _check_size(path, row_number + file.metadata.num_rows, size)
                for batch in file.iter_batches(BATCH_ROWS):
                    size += batch.nbytes
                    _check_size(path, row_number, size)
                    for row in batch.to_pylist():
                        position = f"row {row_number - file_start}"
                        yield DataRow(str(path), position, to_plain_json(row), row_number)
                        row_number += 1
        except InputError:
            raise
        # Such as text that is no UTF-8, or no date of the calendar.
        except (OSError, ValueError, OverflowError, pyarrow.ArrowException) as e:
            refuse_pointer(path)
            raise InputError(
                where=path,
                found=(
                    f"cannot be read from row {row_number - file_start}: {str(e).splitlines()[0]}"
                ),
                expected="a Parquet file, of text in UTF-8 and dates of the years 1 to 9999",
            ) from e


def _check_size(path: Path, rows: int, size: int) -> None:
    """InputError where all files up to this one have too many rows, or bytes when unpacked."""
    if rows > limits.MAX_ROWS or size > limits.MAX_ROW_BYTES:
        most = f"at most {limits.MAX_ROWS:,} rows and {limits.MAX_ROW_BYTES:,} bytes in all files"
        raise InputError(
            where=path,
            found=f"{rows:,} rows, {size:,} bytes unpacked so far",
            expected=most,
            fix="Leave some out.",
        )
