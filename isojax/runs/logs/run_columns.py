"""Tables whose columns are runs, as `Step,n4-s0,n8-s0` of a pivot, with one metric for all. `--map
reward=*` says so, or reward=val/acc_* where the columns share a name. Without it, columns are runs
where their names have the pattern of the user's map (n{}), or are those of the user's table of
settings."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from isojax.core.columns import parse_number
from isojax.core.errors import InputError
from isojax.core.number_text import number_advice
from isojax.core.table_checks import check_number
from isojax.core.tabular import list_some
from isojax.runs.logs.log_table import LogTable, RunSettings
from isojax.runs.logs.typed_options import leave_out_option, map_option

# Field -> the columns that a log format is known to have it in: {"step": ("step", "_step")}. Names
# may be patterns, as "val/acc_*"; the first that a log has is taken.
KnownColumns = Mapping[str, Sequence[str]]
# The user's --map, field -> column, number or pattern: {"reward": "val/acc_*", "n": "n{}", "B":
# "64"}. * stands for any text in a column's name, and {} for a number in the name of a run or file.
FieldMap = Mapping[str, str]

# What is beside runs: an index, the bounds and steps of W&B's export, times and epochs.
_NO_RUN = re.compile(
    r"(?i)|unnamed: ?\d+|index|.*__(min|max)|.* - _step|_step|_timestamp|_runtime|epochs?"
    r"|.*\btime\b.*"
)
_NAMES_A_STEP = re.compile(r"(?i)((global|training)?[-_ ]?(step|update|iter(ation)?)[-_ =]?)?\d+")


@dataclass(frozen=True)
class MappedTable:
    """A table, and the user's map as it holds for it."""

    table: LogTable
    field_map: FieldMap


def split_run_columns(
    table: LogTable,
    field_map: FieldMap,
    settings: RunSettings,
    known_columns: KnownColumns,
    takes_run: Callable[[str], bool] | None = None,
) -> list[MappedTable]:
    """One table for each run, where a table has a column for each run; else the table itself.

    Such a table has columns as Step, n4-s0, n8-s0. Each table comes with the user's map as it holds
    for it.

    `field_map`: the user's --map, field to column, number or pattern; reward=* makes columns runs.
    `settings`: by run, what the user's --settings table gives. `known_columns`: by field, the
    columns that a log format is known to use for it.

    InputError for a pattern that no column matches, for a table without steps, and for runs whose
    n and B_p nothing gives. `takes_run`: only the runs for which it is true need these (others are
    left out later); None for all."""
    pattern = field_map.get("reward", "")
    is_pattern = "*" in pattern and pattern not in table.columns
    if table.one_run or table.run:  # the table of one run, by its format or because it is named
        if is_pattern:
            field_map = {**field_map, "reward": _only_column(table, pattern, known_columns)}
        return [MappedTable(table, field_map)]

    # Column -> run; empty where the columns are no runs.
    map_of_all = {**_steps_in_first_column(table, field_map, known_columns), **field_map}
    if is_pattern:
        run_of_column = _match_columns(table, pattern, map_of_all, known_columns)
        if not run_of_column:
            _refuse_unmatched(table, pattern, map_of_all, known_columns)
    else:
        run_of_column = _columns_named_as_runs(table, map_of_all, settings, known_columns)
    if not run_of_column:
        return [MappedTable(table, field_map)]

    _require_steps(table, list(run_of_column), map_of_all, known_columns)
    runs = [run for run in run_of_column.values() if takes_run is None or takes_run(run)]
    _require_settings(table, runs, field_map, settings, known_columns)
    _require_numbers_in_names(table, runs, field_map)

    # What is not read should be seen, as it may be a run whose name the pattern misses.
    notes = list(table.notes)
    if is_pattern:
        unread = _describe_unread(table, pattern, map_of_all, known_columns, set(run_of_column))
        if unread:
            notes.append(f"--map reward={pattern} leaves out {unread}")
    else:  # the user did not say that columns are runs
        columns = number_columns(table, map_of_all, known_columns)
        other_columns = [name for name in columns if name not in run_of_column]
        notes.append(_describe_reading(list(run_of_column), other_columns))

    # The metric is called as what the columns' names share: val/acc of val/acc_*.
    metric = pattern.replace("*", "").strip(" -_/.") or "reward"
    table = replace(table, notes=tuple(notes))
    tables = [
        _table_of_column(table, column, run, metric, run_of_column)
        for column, run in run_of_column.items()
    ]
    map_of_run = {**map_of_all, "reward": metric}
    return [MappedTable(table_of_run, map_of_run) for table_of_run in tables if table_of_run.rows]


def _refuse_unmatched(
    table: LogTable, pattern: str, field_map: FieldMap, known: KnownColumns
) -> NoReturn:
    """InputError where a pattern of --map reward=PATTERN matches no column that holds numbers.
    Where a matching column holds texts that look like numbers to a person ("0,0977", "9.8%"), the
    first of these is what the message is about, else the pattern."""
    template = _pattern(pattern)
    for name in _columns_of_no_field(table, field_map, known):
        cells = table.cells.column(name)
        looks_like_number = cells.ask(_looks_like_number)
        if template.fullmatch(name) and looks_like_number.any():
            row = int(np.argmax(looks_like_number))
            # always raises here, with advice on how to write the number
            check_number(cells[row], f"{table.cells.place(row).location}: reward (column {name})")
    raise InputError(
        where=table.source,
        found=f"--map reward={pattern} matches no column with numbers",
        expected="one for each run",
        fix=f"The columns are {list_some(table.columns)}.",
    )


def _looks_like_number(value: Any) -> bool:
    """Whether a text is no number here, but one to a person."""
    return isinstance(value, str) and number_advice(value) != ""


def _describe_unread(
    table: LogTable, pattern: str, field_map: FieldMap, known: KnownColumns, run_columns: set[str]
) -> str:
    """A list for a note: columns that a pattern matches, but that are not read; "" for none.

    That is neither as runs nor as another field; each has the reason: "epoch (an index or a time)".
    pattern: of --map reward=PATTERN, such as "val/acc_*". field_map: the user's --map. known: the
    format's columns, by field. run_columns: the columns that are runs.
    """
    template = _pattern(pattern)
    read_columns = run_columns | _names_of_fields(field_map, known)
    reasons = []
    for name in table.columns:
        if name in read_columns or not template.fullmatch(name):
            continue
        is_empty = bool(table.cells.column(name).is_missing.all())
        if name.endswith(("__MIN", "__MAX")) or (not name and is_empty):
            # W&B's bounds of a curve that is a run; or what follows a line's last delimiter
            continue

        # A matching column with numbers would be a run, but for names as of an index or a time
        # (_NO_RUN), which `number_columns` leaves out.
        if _holds_numbers(table, name):
            reason = "an index or a time"
        else:
            reason = "no value" if is_empty else "no number"
        reasons.append(f"{name or 'the column without a name'} ({reason})")
    return list_some(reasons)


def _describe_reading(columns: Sequence[str], other_columns: Sequence[str]) -> str:
    """A note that columns are read as runs, and which other columns of numbers are not."""
    without = ""
    if other_columns:
        without = f", without {list_some(other_columns)}, which --settings does not name"
    return f"the columns {list_some(columns)} are read as runs, as --map 'reward=*' says{without}"


def _steps_in_first_column(
    table: LogTable, field_map: FieldMap, known: KnownColumns
) -> dict[str, str]:
    """{"step": COLUMN} where the table's first column counts updates by its name; else {}.

    Such a name is "Update". {} also where a column is known or mapped as the step or the rollouts.
    """
    first = next(iter(table.columns), "")
    counts = re.search(r"(?i)step|update|iter", first) is not None
    return {"step": first} if counts and not _has_steps(table, field_map, known) else {}


def _has_steps(table: LogTable, field_map: FieldMap, known: KnownColumns) -> bool:
    """Whether a column is the step or the rollouts, by the user's map or by a known name."""
    clock_names = {name for field in ("step", "rollouts") for name in known.get(field, ())}
    return bool({"step", "rollouts"} & {*field_map} or clock_names & {*table.columns})


def _only_column(table: LogTable, pattern: str, known_columns: KnownColumns) -> str:
    """The column that a pattern matches in a log of one run; InputError where it is not one."""
    columns = list(_match_columns(table, pattern, {}, known_columns))
    if len(columns) == 1:
        return columns[0]
    choices = " or ".join(map_option("reward", name) for name in columns or ["COLUMN"])
    matches = list_some(columns) or "no column"
    raise InputError(
        where=table.label,
        found=f"--map reward={pattern} matches {matches}",
        expected="one, as the log holds one run",
        fix=f"Type {choices}.",
    )


def _match_columns(
    table: LogTable, pattern: str, field_map: FieldMap, known: KnownColumns
) -> dict[str, str]:
    """Column -> name of its run, for columns that a pattern matches and that are no other field.

    The name is what the pattern's * stands for: "n8" of the column "val/acc_n8" with the pattern
    "val/acc_*"; of several * their texts joined by "-"; the column's name where that is empty.
    """
    template = _pattern(pattern)
    run_of_column = {}
    for name in number_columns(table, field_map, known):
        if match := template.fullmatch(name):
            run_of_column[name] = "-".join(match.groups()).strip() or name
    return run_of_column


def _pattern(pattern: str) -> re.Pattern[str]:
    """An expression with a group for each * of a pattern such as "val/acc_*"."""
    return re.compile(re.escape(pattern).replace(r"\*", "(.*)"))


def number_columns(table: LogTable, field_map: FieldMap, known: KnownColumns) -> list[str]:
    """The columns that hold numbers and are no other field, by the map or by a known name."""
    return [
        name
        for name in _columns_of_no_field(table, field_map, known)
        if _holds_numbers(table, name)
    ]


def _columns_of_no_field(table: LogTable, field_map: FieldMap, known: KnownColumns) -> list[str]:
    """The columns that may be runs: no field, setting of the config, index or time by its name."""
    fields = _names_of_fields(field_map, known)
    columns = [name for name in table.columns if name not in fields and name not in table.config]
    return [name for name in columns if not _NO_RUN.fullmatch(name.strip())]


def _names_of_fields(field_map: FieldMap, known: KnownColumns) -> set[str]:
    """The names of columns that are a field other than the reward, by a known name or by the map.

    A number of the map stands for itself, also where a run is called so: B_p=8 in a table with the
    columns 4, 8 and 16.
    """
    fields = {name for field, names in known.items() if field != "reward" for name in names}
    return fields | {
        text
        for field, text in field_map.items()
        if field != "reward" and parse_number(text) is None
    }


def _holds_numbers(table: LogTable, column: str) -> bool:
    """Whether at least one cell of a column is a finite number."""
    return bool(np.isfinite(table.cells.column(column).numbers).any())


def _columns_named_as_runs(
    table: LogTable, field_map: FieldMap, settings: RunSettings, known: KnownColumns
) -> dict[str, str]:
    """Column -> name of its run, which is the same, where the user gave no pattern for the reward.

    That is the columns that the --settings table names as runs; else all columns of numbers, if
    each has the patterns of --map in its name (n{}: n4-s0, n8-s0).

    Empty where the table's columns are no runs: it has a column of the reward or of run names, or
    its file's name has the pattern, so that it is the log of one run."""
    templates = [
        _template(text)
        for field, text in field_map.items()
        if "{}" in text and field in ("n", "B_p", "B")
    ]
    has_names = bool(settings or templates)
    has_run_column = any(name in table.columns for name in known.get("run", ()))
    if "reward" in field_map or not has_names or has_run_column or _known_metric(table, known):
        return {}

    columns = number_columns(table, field_map, known)
    in_settings = [name for name in columns if name in settings]
    if in_settings:
        return {name: name for name in in_settings}

    if len(columns) < 2 or not templates:
        return {}
    file_name = Path(table.source).name
    if any(template.search(file_name) for template in templates):
        return {}
    is_named = all(template.search(name) for template in templates for name in columns)
    return {name: name for name in columns} if is_named else {}


def _known_metric(table: LogTable, known: KnownColumns) -> bool:
    """Whether a column is the reward by a known name, patterns aside, or the only metric."""
    names = known.get("reward", ())
    return table.only_metric != "" or any(
        name in table.columns for name in names if "*" not in name
    )


def _template(text: str) -> re.Pattern[str]:
    """An expression for a pattern of --map such as "n{}", where {} stands for a number.

    A pattern that begins with a letter begins where a word does: n{} is not found in gen4.
    """
    before = "(?<![A-Za-z])" if text[0].isalpha() else ""
    return re.compile(before + re.escape(text).replace(r"\{\}", r"\d+", 1))


def _require_steps(
    table: LogTable, columns: Sequence[str], field_map: FieldMap, known: KnownColumns
) -> None:
    """InputError where a table whose columns are runs has no column of steps.

    columns: those that would be runs. Where they are numbers (0, 10, 20), the table probably has a
    row for each run and a column for each step, and the message shows how to transpose it.
    """
    if _has_steps(table, field_map, known):
        return

    # A column that counts something (an index, an epoch) may be the steps.
    others = [name for name in table.columns if name not in columns]
    may_count = any(
        _NO_RUN.fullmatch(name.strip()) and _holds_numbers(table, name) for name in others
    )
    are_steps = len(columns) > 1 and all(_NAMES_A_STEP.fullmatch(name.strip()) for name in columns)
    if others and not may_count and are_steps:
        example = ""
        if others == table.columns[:1]:
            in_pandas = "pandas.read_csv(FILE, index_col=0).T.to_csv(OTHER, index_label='step')"
            example = f", as by {in_pandas}"
        # `others` holds the names of the runs then.
        raise InputError(
            where=table.source,
            found=(
                f"the columns {list_some(columns)} are named as steps, and no other counts "
                "updates, so the table has a row for each run"
            ),
            expected="a row for each step, and a column for each run",
            fix=f"Transpose it, with the steps in a column named step{example}.",
        )

    first = table.columns[0]
    if first:
        fix = f"name it, as {map_option('step', first)}"
    else:
        fix = "name the first column step, in the file's header"
    raise InputError(
        where=table.source,
        found=f"no column is known to count updates, where the others are runs; {fix}",
        fix=f"The columns are {list_some(table.columns)}.",
    )


def _require_settings(
    table: LogTable,
    runs: Sequence[str],
    field_map: FieldMap,
    settings: RunSettings,
    known: KnownColumns,
) -> None:
    """InputError where nothing gives n and B_p of a run that is a column.

    Neither the user's map does, nor the --settings table (`settings`, by run), nor a known column.
    The message shows what to type, or the table to write. runs: the names of those that are taken.
    """
    in_columns = {
        field for field, names in known.items() if any(name in table.columns for name in names)
    }
    known_for_all = {*field_map} | in_columns
    lacking: list[str] = []
    missing_of_first: list[str] = []
    for run in runs:
        known_of_run = known_for_all | {*settings.get(run, {})}
        missing = [field for field in ("n", "B_p") if field not in known_of_run]
        if "B" in known_of_run and "B_p" in missing:  # B_p = B / n
            missing.remove("B_p")
        if missing:
            missing_of_first = missing_of_first or missing
            lacking.append(run)
    if not lacking:
        return

    problem = f"no {' and no '.join(missing_of_first)} is known of the run {lacking[0]} (a column)"
    # The shortest way first: add rows to the user's table, else one map for all, else a new table.
    rows = [f"{run},8,32" for run in lacking]
    if settings:
        leave_out = _leave_out_options(lacking, runs, table)
        raise InputError(
            where=table.source,
            found=problem,
            fix=(
                f"Add to the --settings table {' '.join(rows)} (with your numbers), or leave "
                f"out: {leave_out}."
            ),
        )
    if maps := map_of_names(lacking, missing_of_first):
        raise InputError(
            where=table.source,
            found=problem,
            fix=f"Give it for all, with your numbers: --map '{maps}'",
        )

    write = f"printf '%s\\n' {shlex.join(['run,n,B_p', *rows])} > settings.csv"
    raise InputError(
        where=table.source,
        found=problem,
        fix=(
            f"Write a table, with your numbers, and add --settings settings.csv: {write} (or, "
            "where one holds for all: --map n=8,B_p=32)."
        ),
    )


def _leave_out_options(left_out: Sequence[str], runs: Sequence[str], table: LogTable) -> str:
    """The options that leave some of the runs out, as one types them."""
    others = [table.source, *(run for run in runs if run not in left_out)]
    return " ".join(leave_out_option(run, others) for run in left_out)


def map_of_names(runs: Sequence[str], missing: Sequence[str] = ("n", "B_p")) -> str:
    """What a user may type after --map for runs whose n or B_p are `missing`.

    "n=n{},B_p=32" where most names hold n, as n8-s0 does (the others, as mean, may be no runs);
    "B_p=32" where only that is missing; "" where n is missing and most names hold none.
    """
    with_n = [run for run in runs if re.search(r"(?<![A-Za-z])n\d+(?!\d)", run)]
    if "n" in missing and 2 * len(with_n) <= len(runs):
        return ""
    hints = {"n": "n=n{}", "B_p": "B_p=32"}
    return ",".join(hints[field] for field in missing)


def _require_numbers_in_names(table: LogTable, runs: Sequence[str], field_map: FieldMap) -> None:
    """InputError where a pattern of --map (n=n{}) finds a number in the names of only some runs.

    As where a column "mean" is among n4 and n8; the message shows how to leave it out. A number in
    the log's path is good for all runs.
    """
    for field, text in field_map.items():
        if "{}" not in text or field not in ("n", "B_p", "B", "seed"):
            continue

        template = _template(text)
        without = [run for run in runs if not template.search(run)]
        is_in_source = template.search(table.source) is not None
        # Where no name has a number, another check refuses the runs.
        if is_in_source or not without or len(without) == len(runs):
            continue

        raise InputError(
            where=table.source,
            found=(
                f"--map {field}={text} finds no number in the names of {list_some(without)} "
                "(columns)"
            ),
            expected="one for each run",
            fix=f"Where they are no runs: {_leave_out_options(without, runs, table)}.",
        )


def _table_of_column(
    table: LogTable, column: str, run: str, metric: str, run_by_column: Mapping[str, str]
) -> LogTable:
    """The table of one run out of a table whose columns are runs.

    It has the rows in which the run's column has a value, now under the name `metric`, and the
    columns that are no runs (steps, times). run_by_column: of all runs of the table.
    """
    cells = table.cells
    others = {name: cells.column(name) for name in cells.names if name not in run_by_column}
    rewards = cells.column(column)
    rows = cells.with_columns({**others, metric: rewards}).take(~rewards.is_missing)
    return replace(table, rows=rows, run=run, one_run=True, only_metric=metric)
