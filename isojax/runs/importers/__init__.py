"""Importers of other trainers' logs: one file per format, here or in a user's folder, with a
function `read(path) -> list[LogTable]` that has the decorator `@importer(fields=...)`. All that
isojax knows of a format is in its file: importers do not import each other, and nothing else names
them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isojax.core.errors import InputError
from isojax.core.plugins import Plugin, PluginKind
from isojax.core.tabular import nearest_names
from isojax.runs.logs.column_map import METRIC_AT_K, METRIC_PREFIXES
from isojax.runs.logs.log_files import LogFiles, LogStart
from isojax.runs.logs.log_table import FIELD_HELP, LogTable


@dataclass(frozen=True)
class ImporterTraits:
    """The arguments of the decorator `importer`."""

    # field (log_table.py: FIELD_HELP) -> the columns in which the format is known to write it
    fields: Mapping[str, Sequence[str]]

    # Whether a file is of this format, where the user gives no --from.
    detect: Callable[[LogStart], bool] | None = None
    # Other formats are written in the same form, or beside such files: any other format that is
    # detected counts before this one.
    is_general: bool = False
    # The name of a file that shows that a folder has logs of this format, whatever else is in it.
    folder_pattern: str | None = None

    # Which files of a folder are logs: those that end so (or that are detected), or what a function
    # of the folder gives. Where there is none of these, the folder itself is a log.
    suffixes: Sequence[str] | None = None
    find_logs: Callable[[Path], list[Path]] | None = None

    # Where several files may be one log: which are one, and then the table of theirs, by the
    # columns that the user maps.
    group_files: Callable[[Sequence[Path]], list[LogFiles]] | None = None
    join_tables: (
        Callable[[LogFiles, Sequence[LogTable], Mapping[str, str]], list[LogTable]] | None
    ) = None

    # Reads a log that a run is still writing, where `read` cannot tell that its last line is torn.
    read_growing: Callable[[Path], list[LogTable]] | None = None

    example: str = ""  # a command that imports such logs, for --help

    def __post_init__(self) -> None:
        """InputError where `fields` has no field of a ledger, or one text in place of columns."""
        for field, columns in self.fields.items():
            # as metric:NAME, train:NAME or avg@4
            is_metric = field.startswith(METRIC_PREFIXES) or METRIC_AT_K.fullmatch(field)
            if field not in FIELD_HELP and not is_metric:
                (nearest,) = nearest_names(field, list(FIELD_HELP))  # always one
                raise InputError(
                    where="@importer",
                    found=f"fields has {field!r}",
                    expected=f"{', '.join(FIELD_HELP)}, metric:NAME or train:NAME",
                    fix=f"Did you mean {nearest!r}?",
                )
            is_list = isinstance(columns, Sequence) and not isinstance(columns, str)
            if not is_list or not all(isinstance(column, str) for column in columns):
                raise InputError(
                    where="@importer",
                    found=f"fields[{field!r}] = {columns!r}",
                    expected="a list of columns",
                    fix=f"For one column, write ({columns!r},)." if not is_list else "",
                )


Importer = Plugin[..., Any, ImporterTraits]

importer = PluginKind("importer", "runs.importers", ImporterTraits)
