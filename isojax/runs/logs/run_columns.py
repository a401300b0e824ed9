"""Tables whose columns are runs, as `Step,n4-s0,n8-s0` of a pivot, with one metric for all. `--map reward=*` says so,
or reward=val/acc_* where the columns share a name. Without it, columns are runs where their names have the pattern of
the user's map (n{}), or are those of the user's table of settings."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from isojax.core.errors import InputError
from isojax.core.tabular import is_blank, list_some, parse_number
from isojax.runs.logs.log_table import LogTable, RunSettings

KnownColumns = Mapping[str, Sequence[str]]
FieldMap = Mapping[str, str]

_NOT_LOGGED = re.compile(r"(?i)nan|none|null|na|n/a")  # in a cell: the run has no value at this step
# What is beside runs: an index, the bounds and steps of W&B's export, times and epochs.
_NO_RUN = re.compile(
    r"(?i)|unnamed: ?\d+|index|.*__(min|max)|.* - _step|_step|_timestamp|_runtime|epochs?|.*\btime\b.*"
)
RUN_COLUMNS_HINT = "add --map 'reward=*', with --map n=n{} for names such as n8-a, or --settings TABLE (run,n,B_p)"


@dataclass(frozen=True)
class MappedTable:
    """A table, and the user's map as it holds for it."""

    table: LogTable
    field_map: FieldMap


def split_run_columns(
    table: LogTable, field_map: FieldMap, settings: RunSettings, known_columns: KnownColumns
) -> list[MappedTable]:
    """A table of each run where the columns are runs, else the table itself. InputError for a pattern that no column
    matches, and where nothing says the runs' steps, n or B_p."""
    pattern = field_map.get("reward", "")
    is_pattern = "*" in pattern and pattern not in table.columns
    if table.run:  # of a format that has one run in a table
        only = {**field_map, "reward": _only_column(table, pattern, known_columns)} if is_pattern else field_map
        return [MappedTable(table, only)]
    run_by_column = _match_columns(table, pattern, field_map, known_columns) if is_pattern else {}
    if is_pattern and not run_by_column:
        columns = list_some(table.columns)
        problem = f"{table.source}: --map reward={pattern} matches no column with numbers, expected one for each run"
        raise InputError(f"{problem}. The columns are {columns}.")
    note = ""
    if not is_pattern and "reward" not in field_map:
        run_by_column = _columns_named_as_runs(table, field_map, settings, known_columns)
        note = f"the columns {list_some(list(run_by_column))} are read as runs, as --map 'reward=*' says"
    if not run_by_column:
        return [MappedTable(table, field_map)]

    _require_steps(table, field_map, known_columns)
    _require_settings(table, list(run_by_column.values()), field_map, settings, known_columns)
    metric = pattern.replace("*", "").strip(" -_/.") or "reward"
    notes = (*table.notes, note) if note else table.notes
    tables = [_table_of_column(table, column, run, metric, run_by_column) for column, run in run_by_column.items()]
    map_of_run = {**field_map, "reward": metric}
    return [MappedTable(replace(part, notes=notes), map_of_run) for part in tables if part.rows]


def _only_column(table: LogTable, pattern: str, known_columns: KnownColumns) -> str:
    columns = list(_match_columns(table, pattern, {}, known_columns))
    if len(columns) != 1:
        choices = " or ".join(f"--map reward={name}" for name in columns or ["COLUMN"])
        problem = f"{table.label}: --map reward={pattern} matches {list_some(columns) or 'no column'}, expected one"
        raise InputError(f"{problem}, as the log holds one run; type {choices}.")
    return columns[0]


def _match_columns(table: LogTable, pattern: str, field_map: FieldMap, known: KnownColumns) -> dict[str, str]:
    """Column -> run, which is what the pattern's * stands for, of columns that are no other field."""
    template = re.compile(re.escape(pattern).replace(r"\*", "(.*)"))
    names = number_columns(table, field_map, known)
    matches = {name: template.fullmatch(name) for name in names}
    return {name: "-".join(match.groups()).strip() or name for name, match in matches.items() if match}


def number_columns(table: LogTable, field_map: FieldMap, known: KnownColumns) -> list[str]:
    """The columns that hold numbers and are no other field, by the map or by a known name."""
    fields = {name for field, names in known.items() if field != "reward" for name in names}
    taken = fields | {text for field, text in field_map.items() if field != "reward"}
    columns = [name for name in table.columns if name not in taken and name not in table.config]
    return [name for name in columns if not _NO_RUN.fullmatch(name.strip()) and _holds_numbers(table, name)]


def _holds_numbers(table: LogTable, column: str) -> bool:
    return any(parse_number(row.values.get(column)) is not None for row in table.rows)


def _columns_named_as_runs(
    table: LogTable, field_map: FieldMap, settings: RunSettings, known: KnownColumns
) -> dict[str, str]:
    """The columns that the user's table of settings names as runs, else those which all have the patterns of the map
    ("n{}"); none where a metric or a column of runs is known, or the log's own name has the pattern."""
    if _known_metric(table, known) or any(name in table.columns for name in known.get("run", ())):
        return {}
    columns = number_columns(table, field_map, known)
    if in_settings := [name for name in columns if name in settings]:
        return {name: name for name in in_settings}
    templates = [_template(text) for field, text in field_map.items() if "{}" in text and field in ("n", "B_p", "B")]
    file_name = Path(table.source).name
    if len(columns) < 2 or not templates or any(template.search(file_name) for template in templates):
        return {}
    is_named = all(template.search(name) for template in templates for name in columns)
    return {name: name for name in columns} if is_named else {}


def _known_metric(table: LogTable, known: KnownColumns) -> bool:
    names = known.get("reward", ())
    return table.only_metric != "" or any(name in table.columns for name in names if "*" not in name)


def _template(text: str) -> re.Pattern[str]:
    before = "(?<![A-Za-z])" if text[0].isalpha() else ""
    return re.compile(before + re.escape(text).replace(r"\{\}", r"\d+", 1))


def _require_steps(table: LogTable, field_map: FieldMap, known: KnownColumns) -> None:
    clock_names = {name for field in ("step", "rollouts") for name in known.get(field, ())}
    if {"step", "rollouts"} & {*field_map} or clock_names & {*table.columns}:
        return
    first = table.columns[0]
    fix = f"name it, as --map step={first}" if first else "name the first column step, in the file's header"
    problem = f"{table.source}: no column is known to count updates, where the others are runs"
    raise InputError(f"{problem}; {fix}. The columns are {list_some(table.columns)}.")


def _require_settings(
    table: LogTable, runs: Sequence[str], field_map: FieldMap, settings: RunSettings, known: KnownColumns
) -> None:
    """InputError, which shows the table to write, where neither the map, nor settings, nor a column says n and B_p."""
    in_columns = {field for field, names in known.items() if any(name in table.columns for name in names)}
    said_for_all = {*field_map} | in_columns
    for run in runs:
        said = said_for_all | {*settings.get(run, {})}
        missing = [field for field in ("n", "B_p") if field not in said]
        if "B" in said and "B_p" in missing:
            missing.remove("B_p")
        if not missing:
            continue
        others = [other for other in runs if other not in settings]
        lines = " ".join(f"{other},8,32" for other in others)
        problem = f"{table.source}: nothing says {' and '.join(missing)} of the run {run} (a column)"
        write = f"write a table, say settings.csv, with the lines run,n,B_p {lines} (with the numbers of your runs)"
        for_all = "or, where one holds for all, --map n=8,B_p=32; or --map n=n{} where names have it, as n8-a"
        raise InputError(f"{problem}; {write} and add --settings settings.csv; {for_all}.")


def _table_of_column(table: LogTable, column: str, run: str, metric: str, run_by_column: Mapping[str, str]) -> LogTable:
    """The rows in which a run has a value, with that and what is no run's column."""
    rows = []
    for row in table.rows:
        cell = row.values.get(column)
        if is_blank(cell) or (isinstance(cell, str) and _NOT_LOGGED.fullmatch(cell.strip())):
            continue
        others = {name: value for name, value in row.values.items() if name not in run_by_column}
        rows.append(replace(row, values={**others, metric: cell}))
    return replace(table, rows=tuple(rows), run=run, one_run=True, only_metric=metric)
