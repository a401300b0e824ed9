"""Which rows of a log are which run, in what order, and what is refused as more than one run or
curve."""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress, pairwise
from typing import NamedTuple

import numpy as np

from isojax.core.columns import Mask, is_blank
from isojax.core.errors import InputError
from isojax.core.tabular import RowTable
from isojax.runs.logs.column_map import ColumnMap, is_validation
from isojax.runs.logs.log_run import LogRun
from isojax.runs.logs.measured_words import BENCHMARKS, HELD_OUT, TRAINING, words_of_source

SEPARATE_RUNS_HINT = (
    "Give each run its own file, or name the column that separates them: --map run=COLUMN."
)
_SAYS_WHETHER = re.compile(r"(?i)is_?(val|valid|validation|eval|train|training|test)")
_MOST_KINDS = 100  # of one column, that are looked at
_KIND_COLUMN = re.compile(
    r"(?i)split|mode|phase|stage|subset|data_?(set|source)|benchmark|is_?(val|eval|train|test)"
)


class _Settings(NamedTuple):
    B_p: int
    n: int
    seed: int | None


def group_rows(column_map: ColumnMap) -> list[LogRun]:
    """The runs of one log, in the order in which they begin, each with its rows.

    Rows are of one run if they have the same value in the column of runs; in a log without that
    column, all rows are one run where the format has one run in a log (`one_run`), else those with
    the same (B_p, n, seed) are. InputError where a run's setting changes, where no row has a
    metric, and where rows look like two runs or two curves mixed."""
    table = column_map.table
    metric_columns = [column_map.columns[name] for name in column_map.metric_fields]
    rows = _rows_of_runs(column_map)
    if not _has_any(rows, metric_columns).any():
        missing = ", ".join(metric_columns)
        raise InputError(
            where=table.rows[0].location,
            found=f"no row from there on has {missing}",
            fix="Name columns with --map.",
        )

    has_names = "run" in column_map
    settings = _read_settings(rows, column_map)
    names = column_map.read_all("run", rows) if has_names else [""] * len(rows)

    # For each row, the first one of its run.
    run_of_row = names if has_names or table.one_run else settings
    first_row_of_run: dict[object, int] = {}
    first_rows = [first_row_of_run.setdefault(run, row) for row, run in enumerate(run_of_row)]
    run_count = len(first_row_of_run)

    # Within a run, the setting must not change.
    for row, first in enumerate(first_rows):
        if settings[row] != settings[first]:
            before = settings[first]._asdict()
            after = settings[row]._asdict()
            changes = [
                f"{field} from {before[field]} to {after[field]}"
                for field in before
                if before[field] != after[field]
            ]
            run_label = f"the run {names[row]!r}" if names[row] else "one run"
            start = rows.place(first).position
            raise InputError(
                where=rows.place(row).location,
                found=f"{run_label} (from {start}) changes {', '.join(changes)}",
                expected="one setting",
                fix=SEPARATE_RUNS_HINT,
            )
    if not has_names and run_count > 1:
        _reject_mixed_settings(rows, first_rows, settings, column_map)

    # A run without any metric is dropped.
    runs = []
    for first, rows_of_run in rows.group_by(first_rows).items():
        run = LogRun(column_map, names[first], *settings[first], rows=rows_of_run)
        _reject_kinds_of_rows(run, is_only_run=run_count == 1 and not has_names)
        rows_in_order = _interleave_metrics(rows_of_run, column_map)
        if _has_any(rows_in_order, metric_columns).any():
            runs.append(replace(run, rows=rows_in_order))
    return runs


def describe_rows_without_metric(column_map: ColumnMap) -> str:
    """A note on the rows of a table with a step and nothing measured at it; "" for none."""
    rows = column_map.table.cells
    clock_field = column_map.clock_field
    has_step = ~column_map.is_unlogged(clock_field, rows)
    count = int((has_step & ~_has_any(rows, column_map.step_columns)).sum())
    if count == 0:
        return ""
    rows_have = "1 row has" if count == 1 else f"{count} rows have"
    verb = "is" if count == 1 else "are"
    missing = " and no ".join(column_map.step_columns)
    return f"{rows_have} {column_map.columns[clock_field]}, but no {missing}, and {verb} left out"


def _has_any(rows: RowTable, columns: Sequence[str]) -> Mask:
    """bool[rows]: where a row has a cell of one of these columns, even a blank one."""
    has_any = np.zeros(len(rows), np.bool_)
    for column in columns:
        has_any |= rows.column(column).is_present
    return has_any


def _rows_of_runs(column_map: ColumnMap) -> RowTable:
    """The rows of a log that belong to a run.

    They have all settings that are columns (n, B_p, seed, ...) and some value that was logged at a
    step. Left out are rows with neither a validation metric nor the step: training rows whose steps
    are in another column.
    """
    rows = column_map.table.cells
    metrics_and_step = [
        name for name in column_map.columns if is_validation(name) or name == column_map.clock_field
    ]
    settings = [
        name
        for name in ("n", "B_p", "B", "sampled_B_p", "devices", "seed", "run")
        if name in column_map
    ]
    metric_columns = [column_map.columns[name] for name in column_map.metric_fields]

    lacks_setting = np.zeros(len(rows), np.bool_)
    for name in settings:
        lacks_setting |= column_map.cells(name, rows).is_blank

    lacks_metrics_and_step = np.ones(len(rows), np.bool_)
    for name in metrics_and_step:
        lacks_metrics_and_step &= column_map.is_unlogged(name, rows)

    # A row with a metric that lacks a setting is kept here, and refused where it is read.
    says_its_run = ~lacks_setting | _has_any(rows, metric_columns)
    has_value_of_step = _has_any(rows, column_map.step_columns)
    return rows.take(says_its_run & ~lacks_metrics_and_step & has_value_of_step)


def _reject_kinds_of_rows(run: LogRun, is_only_run: bool) -> None:
    """InputError where a run's rows are two curves, by a column such as `split` (train, val).

    Such a column has texts, and the import does not read it. Rows are two curves if its values
    alternate (and its name is that of such a column), or come one after another, the steps
    beginning again with the second. is_only_run: whether it is the only run of the log, so that
    each curve may be meant as a run, which the message offers.
    """
    column_map = run.column_map
    if column_map.table.one_run:
        return  # a trainer's log has a column for each curve

    # bool[rows - 1]: where the step does not rise from one evaluation to the next
    rows = run.rows.take(~column_map.is_unlogged(column_map.main_metric, run.rows))
    steps_fall = np.diff(column_map.cells(column_map.clock_field, rows).numbers) <= 0
    used = set(column_map.columns.values())
    for column in column_map.table.columns:
        names_kinds = _KIND_COLUMN.fullmatch(column) is not None
        if column in used or (not names_kinds and not steps_fall.any()):
            continue  # most columns of most logs: their values need not be looked at

        kind_of_row = [
            str(value) if isinstance(value, str | bool) and not is_blank(value) else ""
            for value in rows.column(column)
        ]
        logged_kinds = [kind for kind in kind_of_row if kind]
        kinds = list(dict.fromkeys(logged_kinds))
        # Kinds that follow one another change one time less than there are kinds.
        changes = sum(a != b for a, b in pairwise(logged_kinds))
        alternate = names_kinds and 2 <= len(kinds) <= changes

        # the kinds of the two rows between which the step does not rise
        kinds_at_falls = compress(pairwise(kind_of_row), steps_fall)
        changes_at_fall = any(before != after for before, after in kinds_at_falls)
        follow_one_another = changes_at_fall and _are_measurements(column, kinds)
        if not alternate and not follow_one_another:
            continue

        # The message keeps the first kind: the held-out one, which most people want to fit.
        kinds.sort(key=lambda kind: not _is_held_out(column, kind))
        order = "by turns" if alternate else "one after another"
        fix = f"Keep the rows of one, as {column} = {kinds[0]}"
        if alternate:
            fix += ", or remove the column if it distinguishes none"
        in_pandas = f"df[df[{column!r}].astype(str) == {kinds[0]!r}].to_csv(OTHER, index=False)"
        separate = f" Where each is a run of its own: --map run={column}." if is_only_run else ""
        raise InputError(
            where=rows.place(0).location,
            found=f"from there on, {column} is {' or '.join(kinds[:4])} {order} within a run",
            expected="one curve",
            fix=f"{fix}; in pandas: {in_pandas}.{separate}",
        )


def _is_held_out(column: str, kind: str) -> bool:
    """Whether a value of a column says that its rows are of held-out problems.

    As "val" of the column split, "True" of is_val, and "False" of is_train.
    """
    if _SAYS_WHETHER.fullmatch(column):
        return (kind.lower() in ("true", "1")) != ("train" in column.lower())
    return bool(words_of_source(kind) & HELD_OUT)


def _are_measurements(column: str, kinds: Sequence[str]) -> bool:
    """Whether the values of a column differ in what was measured: train or val, gsm8k or aime.

    Where others differ, as the phases of a run, its steps may fall because it was resumed. kinds:
    the column's different values; only the first _MOST_KINDS are looked at.
    """
    if _SAYS_WHETHER.fullmatch(column) and len(kinds) > 1:
        return True
    measured = TRAINING | HELD_OUT | BENCHMARKS
    return len({words_of_source(kind) & measured for kind in kinds[:_MOST_KINDS]}) > 1


def _interleave_metrics(rows: RowTable, column_map: ColumnMap) -> RowTable:
    """The rows of a run sorted by step, where a file has one metric after another.

    That is where steps fall in the file, and rise within each metric's rows; else the rows stay as
    they are.
    """
    clocks = np.array(column_map.read_all(column_map.clock_field, rows))
    if (np.diff(clocks) >= 0).all():
        return rows
    for column in column_map.step_columns:
        steps = clocks[~column_map.table.is_unlogged(rows.column(column))]
        if (np.diff(steps) <= 0).any():
            return rows
    return rows.take(np.argsort(clocks, kind="stable"))


def _read_settings(rows: RowTable, column_map: ColumnMap) -> list[_Settings]:
    """The setting (B_p, n, seed) of each row, in the order of the rows.

    B_p is computed as B / n where only B, the rollouts of an update, is logged. The seed is None
    where no column has it. InputError where a row lacks one of them, or where B is not B_p n.
    """
    ns = column_map.read_all("n", rows)
    seeds = column_map.read_all("seed", rows) if "seed" in column_map else [None] * len(rows)
    Bs = column_map.read_all("B", rows) if "B" in column_map else []
    if "B_p" not in column_map:
        for row, (B, n) in enumerate(zip(Bs, ns, strict=True)):
            if B % n:
                raise InputError(
                    where=rows.place(row).location,
                    found=f"B = {B} is no multiple of n = {n}",
                    expected="B = B_p n, rollouts per update",
                )
        return [_Settings(B // n, n, seed) for B, n, seed in zip(Bs, ns, seeds, strict=True)]

    B_ps = column_map.read_all("B_p", rows)
    for row, B in enumerate(Bs):
        if B != B_ps[row] * ns[row]:
            raise InputError(
                where=rows.place(row).location,
                found=f"B = {B}, but B_p n = {B_ps[row] * ns[row]}",
                fix="Correct one, or name one that is right: --map B_p=COLUMN or B=COLUMN.",
            )
    return list(map(_Settings, B_ps, ns, seeds))


def _reject_mixed_settings(
    rows: RowTable, first_rows: Sequence[int], settings: Sequence[_Settings], column_map: ColumnMap
) -> None:
    """InputError where the setting changes while the steps go on rising.

    That is one run whose settings are wrong, as several runs would each begin at their first step.
    Either the steps rise in the whole log, or one setting is between rows of another with no fall
    on either side. first_rows, settings: for each row, the index of the first row of its run, and
    its setting.
    """
    clock_field = column_map.clock_field
    clocks = column_map.read_all(clock_field, rows)
    rises = [before < after for before, after in pairwise(clocks)]  # from each row to the next
    # A run is known by its first row; of its rows, the last one stays in the dictionary.
    last_row_of_run = {first: row for row, first in enumerate(first_rows)}
    all_rise = all(rises)
    runs_after_first = list(last_row_of_run)[1:]
    for first in runs_after_first:
        # The steps rise into this run's rows, and out of them into the rows of the run before.
        run_before = first_rows[first - 1]
        last = last_row_of_run[first]
        is_enclosed = last + 1 < len(rows) and first_rows[last + 1] == run_before
        goes_there_and_back = is_enclosed and rises[first - 1] and rises[last]
        if not goes_there_and_back and not all_rise:
            continue

        before = settings[run_before]
        after = settings[first]
        position_before = rows.place(run_before).position
        problem = (
            "two settings are mixed in one run: "
            f"n = {before.n}, B_p = {before.B_p} (from {position_before}), "
            f"then n = {after.n}, B_p = {after.B_p}, while {clock_field} goes on rising"
        )
        hint = f"{SEPARATE_RUNS_HINT} Where each n is a run of its own: --map run=n."
        raise InputError(
            where=rows.place(first).location,
            found=problem,
            fix=hint,
        )
