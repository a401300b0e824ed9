"""`isojax records import`: reads logs, and writes a sweep's folder of ledgers, completely or not at
all. Rows are grouped into runs (run_rows.py), and runs become records (run_records.py)."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from isojax.core.atomic_files import atomic_folder, write_text
from isojax.core.columns import is_blank
from isojax.core.cycle_collection import cycle_collection_paused
from isojax.core.errors import InputError
from isojax.core.tabular import DataRow, RowTable, list_some
from isojax.core.user_code import MAX_CHARACTERS
from isojax.runs.importers import Importer, importer
from isojax.runs.ledger import write_run
from isojax.runs.logs.column_detection import map_columns
from isojax.runs.logs.find_logs import detect_format, logs_of_folder
from isojax.runs.logs.log_files import LogFiles
from isojax.runs.logs.log_run import LogRun
from isojax.runs.logs.log_table import LogTable, RunSettings, name_in_settings, settings_of
from isojax.runs.logs.resumed_runs import join_resumed_runs
from isojax.runs.logs.reward_scale import AUTO_SCALE
from isojax.runs.logs.run_columns import KnownColumns, MappedTable, split_run_columns
from isojax.runs.logs.run_records import ImportedRuns, to_run_records
from isojax.runs.logs.run_rows import describe_rows_without_metric, group_rows
from isojax.runs.logs.source_words import TAKE_ALL, SourceChoice, depth_of_shared_folder, path_below


@cycle_collection_paused()
def read_logs(
    paths: Sequence[Path],
    log_format: str | None,
    field_map: Mapping[str, str],
    settings: RunSettings | None = None,
    resumed: bool = False,
    whole_lines: bool = False,
    choice: SourceChoice = TAKE_ALL,
) -> ImportedRuns:
    """The runs in logs of one format, as records.

    paths        logs, or folders with logs
    log_format   an importer's name or module path; None: detected
    field_map    of the user's --map: field -> column or number
    settings     the user's table of settings by run (--settings), for what the logs lack
    resumed      join runs of one name (or seed) into one, and the parts of a log whose steps fall
    whole_lines  leave out a last line without a line end, in formats such as CSV in which nothing
                 else shows that it is torn: for logs that are still being written
    choice       which logs and runs to take (--only, --leave-out)

    InputError, with file and line, for a log that cannot be used. One log of several in a folder is
    skipped instead, and listed in the result, as long as others can be used.
    """
    _check_paths(paths)
    log_format = log_format or detect_format(paths)
    log_importer = importer.load(log_format)

    log_runs: list[LogRun] = []
    notes: list[str] = []
    refusals: list[InputError] = []
    left_out = 0  # logs or runs
    depth = depth_of_shared_folder([path if path.is_dir() else path.parent for path in paths])
    for log, may_be_skipped in _logs_of_paths(paths, log_importer):
        # `may_take`: the path has no word of --leave-out. `takes`, below: and it has one of --only,
        # if that is given, or the name of a run in the log has.
        source = path_below(depth, str(log.source))
        if not choice.may_take(source):
            left_out += 1
            continue

        try:
            tables = _read_tables(log, log_importer, whole_lines, field_map)
            # called with a run's name
            takes_run = None if choice == TAKE_ALL else partial(choice.takes, source)
            gathered = gather_runs(
                tables, field_map, settings or {}, log_importer.traits.fields, takes_run
            )
        except InputError as e:
            if not choice.takes(source):  # left out anyway, so its faults do not matter
                left_out += 1
                continue
            if not may_be_skipped:
                raise
            refusals.append(e)
            continue

        runs = [
            run for run in gathered.runs if choice.takes(source, run.name, run.column_map.table.run)
        ]
        left_out += gathered.left_out + len(gathered.runs) - len(runs)
        log_runs += [replace(run, may_be_skipped=may_be_skipped) for run in runs]
        for table in (*tables, *(run.column_map.table for run in runs)):
            notes += [f"{table.source}: {note}" for note in table.notes]
        # In isojax's own formats, which trainers write, rows without a metric are usual;
        # in a user's format they may be a mistake.
        if not log_importer.is_own:
            for run in runs:
                if note := describe_rows_without_metric(run.column_map):
                    notes.append(f"{run.column_map.table.source}: {note}")

    if not log_runs and not refusals:
        if left_out:
            raise InputError(
                where="--only and --leave-out",
                found=f"take none of the {left_out} logs or runs",
                expected="one or more",
            )
        raise InputError(
            where=paths[0],
            found=f"the format {log_format} found no run",
        )
    if left_out:
        count = "1 log or run is" if left_out == 1 else f"{left_out} logs or runs are"
        notes.append(f"{count} left out, as --only and --leave-out say")
    elif settings and not refusals:
        notes += _describe_unused_settings([run.column_map.table for run in log_runs], settings)

    # From here on all logs together: parts of one run, seeds, scales.
    joined = join_resumed_runs(log_runs, resumed)
    imported = to_run_records(joined.runs, refusals)
    return replace(imported, notes=(*dict.fromkeys(notes), *joined.notes, *imported.notes))


class _NamedLog(NamedTuple):
    log: LogFiles
    may_be_skipped: bool  # where it has no use, as one of several in a folder


def _logs_of_paths(paths: Sequence[Path], log_importer: Importer) -> Iterator[_NamedLog]:
    """The logs that the paths name, each once."""
    is_one_of_several: dict[Path, bool] = {}
    for path in paths:
        files = logs_of_folder(path, log_importer) if path.is_dir() else [path]
        is_one_of_several |= dict.fromkeys(files, len(files) > 1)

    files = list(is_one_of_several)
    group_files = log_importer.traits.group_files
    logs = group_files(files) if group_files else [LogFiles((file,), file) for file in files]
    for log in logs:
        yield _NamedLog(log, may_be_skipped=all(is_one_of_several[file] for file in log.files))


def _check_paths(paths: Sequence[Path]) -> None:
    """InputError where a log is not there, or named twice."""
    path_by_target: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise InputError(
                where=path,
                found="no such log",
                expected="a file that exists",
                fix="Check its name.",
            )
        earlier_path = path_by_target.setdefault(path.resolve(), path)
        if earlier_path is not path:
            raise InputError(
                where=path,
                found=f"given twice (as {earlier_path} too)",
                expected="once",
                fix="Leave one out.",
            )


def _read_tables(
    log: LogFiles, log_importer: Importer, whole_lines: bool, field_map: Mapping[str, str]
) -> list[LogTable]:
    """The tables of all files of a log, by its format's importer.

    whole_lines: leave out a last line that may be torn (`read_logs`). field_map: the user's --map.
    InputError where a file cannot be read.
    """
    traits = log_importer.traits
    read = log_importer
    if whole_lines and traits.read_growing is not None:
        read = traits.read_growing

    tables: list[LogTable] = []
    for file in log.files:
        try:
            tables += _check_tables(read(file), log_importer)
        except OSError as e:
            raise InputError(
                where=file,
                found=f"cannot be read: {e.strerror or e}",
                fix="Check who may read it.",
            ) from e
    return traits.join_tables(log, tables, field_map) if traits.join_tables else tables


def _check_tables(tables: Any, log_importer: Importer) -> list[LogTable]:
    """What an importer returned; InputError where it is no list of tables."""
    expected = "a list of LogTable, each with rows of DataRow (isojax.runs.logs.log_table)"
    if not isinstance(tables, list | tuple):
        raise InputError(
            where=log_importer.place,
            found=f"the importer returned {type(tables).__name__}",
            expected=expected,
        )

    for table in tables:
        if not isinstance(table, LogTable):
            raise InputError(
                where=log_importer.place,
                found=f"the importer returned a list with {type(table).__name__} in it",
                expected=expected,
            )
        if isinstance(table.rows, RowTable):  # its rows are made as DataRows when asked for
            continue

        for row in table.rows:
            if not isinstance(row, DataRow) or not isinstance(row.values, Mapping):
                raise InputError(
                    where=log_importer.place,
                    found=f"the importer returned a LogTable with a row {row!r}"[:MAX_CHARACTERS],
                    expected="DataRow(source, position, values) with a dictionary of values",
                )
    return list(tables)


def _describe_unused_settings(tables: Sequence[LogTable], settings: RunSettings) -> list[str]:
    """A note of the rows of the user's table that no run has."""
    used = {name_in_settings(table, settings) for table in tables}
    unused = [name for name in settings if name not in used]
    if not unused:
        return []
    return [f"--settings: no run, or none with a value, is called {list_some(unused)}"]


@dataclass(frozen=True)
class GatheredRuns:
    """The runs of one log."""

    runs: list[LogRun]
    left_out: int  # runs that the user does not take


def gather_runs(
    tables: Sequence[LogTable],
    field_map: Mapping[str, str],
    settings: RunSettings,
    known_columns: KnownColumns,
    takes_run: Callable[[str], bool] | None = None,
) -> GatheredRuns:
    """The runs in the tables of a log. InputError where a run that is taken cannot be used.

    field_map      of the user's --map: field -> column or number
    settings       the user's table of settings by run; {}: none
    known_columns  field -> the columns in which the log's format is known to have it
    takes_run      whether to take a run of this name; None: all
    """
    # Where columns are runs, make a table of each; leave out the rows of runs that are not taken.
    mapped_tables: list[MappedTable] = []
    left_out = 0
    for table in tables:
        for mapped in split_run_columns(table, field_map, settings, known_columns, takes_run):
            remaining = _leave_out_runs(mapped, known_columns, takes_run)
            left_out += remaining.left_out
            # A table that was empty before is kept, to be refused below with its name.
            if remaining.mapped.table.rows or not remaining.left_out:
                mapped_tables.append(remaining.mapped)

    # Settings that follow from a run's name or the user's table differ between the runs of a table:
    # make a table of each run.
    is_by_name = any("{}" in text for text in field_map.values())
    if settings or is_by_name:
        mapped_tables = [
            replace(mapped, table=table_of_run)
            for mapped in mapped_tables
            for table_of_run in _split_by_run(mapped, known_columns)
        ]

    # Map the columns of each table, and group its rows into runs.
    log_runs: list[LogRun] = []
    for mapped in mapped_tables:
        # The user's --map goes before the table of settings.
        settings_of_run = settings_of(mapped.table, settings)
        map_of_run = {**settings_of_run, **mapped.field_map}
        scale_is_auto = map_of_run.get("scale") == AUTO_SCALE
        if scale_is_auto:
            del map_of_run["scale"]
        column_map = map_columns(mapped.table, map_of_run, known_columns)
        log_runs += [
            replace(
                run,
                seed_is_stated="seed" in settings_of_run,
                scale_is_stated="scale" in settings_of_run and "scale" not in mapped.field_map,
                scale_is_auto=scale_is_auto,
            )
            for run in group_rows(column_map)
        ]
    return GatheredRuns(log_runs, left_out)


class _RemainingRuns(NamedTuple):
    mapped: MappedTable
    left_out: int  # how many runs were taken out of it


def _leave_out_runs(
    mapped: MappedTable, known_columns: KnownColumns, takes_run: Callable[[str], bool] | None
) -> _RemainingRuns:
    """The table without the rows of the runs that are not taken, and how many runs these are.

    takes_run: whether a run of this name is taken; None: all are. A table of one named run is
    emptied where that run is not taken.
    """
    table = mapped.table
    if takes_run is None:
        return _RemainingRuns(mapped, 0)

    column = _column_of_runs(mapped, known_columns)
    if column is None:
        is_one_named_run = table.run != "" and "run" not in mapped.field_map
        if not is_one_named_run or takes_run(table.run):
            return _RemainingRuns(mapped, 0)
        return _RemainingRuns(replace(mapped, table=replace(table, rows=())), 1)

    names = table.cells.column(column)
    # bool[rows]; a row without a name is kept
    is_left_out = names.ask(lambda name: not is_blank(name) and not takes_run(str(name)))
    left_out = {str(name) for name in names.take(is_left_out)}
    remaining = replace(table, rows=table.cells.take(~is_left_out))
    return _RemainingRuns(replace(mapped, table=remaining), len(left_out))


def _column_of_runs(mapped: MappedTable, known_columns: KnownColumns) -> str | None:
    """The column that names the run of each row; None where there is none."""
    if "run" in mapped.field_map:
        names = [mapped.field_map["run"]]
    else:
        names = list(known_columns.get("run", ()))
    return next((name for name in names if name in mapped.table.cells.names), None)


def _split_by_run(mapped: MappedTable, known_columns: KnownColumns) -> list[LogTable]:
    """A table of each run, which has its name."""
    table = mapped.table
    column = _column_of_runs(mapped, known_columns)
    if column is None:
        return [table]
    names = ("" if name is None else str(name) for name in table.cells.column(column))
    return [
        replace(table, rows=rows, run=name) for name, rows in table.cells.group_by(names).items()
    ]


def check_output_folder(out: Path) -> None:
    """InputError where the folder to write is a file, or holds something."""
    is_empty_folder = out.is_dir() and not out.is_symlink() and not any(out.iterdir())
    if (out.exists() or out.is_symlink()) and not is_empty_folder:
        raise InputError(
            where="--out",
            found=f"given {out}, which is there and is no empty folder; it is kept",
            fix="Give another name, or remove it.",
        )


@cycle_collection_paused()
def write_ledgers(imported: ImportedRuns, out: Path, manifest: Mapping[str, object]) -> None:
    """Write runs as ledgers below the folder `out`, and import.json, which says what they are of.

    import.json has `manifest` (files, format, map), the log of each cell, the notes and the skipped
    logs. InputError where the folder is not empty or cannot be written; nothing is then written.
    """
    check_output_folder(out)
    with atomic_folder(out) as temp:
        for run in imported.runs:
            write_run(temp / "cells" / run.cell.name, run)

        document = {
            **manifest,
            "cells": {run.cell.name: run.source for run in imported.runs},
            "notes": imported.notes,
            "skipped": imported.skipped,
        }
        write_text(temp / "import.json", json.dumps(document, indent=1) + "\n")
