"""Runs that were resumed: the logs of one run joined. Where two of them have a step, the later log
counts."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from isojax.core.columns import is_blank, is_missing
from isojax.core.errors import InputError
from isojax.core.tabular import DataRow, RowTable
from isojax.runs.logs.column_map import ColumnMap
from isojax.runs.logs.log_run import LogRun, NotedRuns


def join_resumed_runs(runs: Sequence[LogRun], on_request: bool) -> NotedRuns:
    """The runs with the logs of each resumed run joined into one, and notes of what was joined.

    Logs are of one run if they have the same run id (as W&B gives one). `on_request` (--resumed)
    also joins logs that have the same name and setting, or, where they have no name or the user
    gives the seed, the same setting and seed; and within one log, rows whose steps fall back
    count as the run going on from an earlier checkpoint."""
    # A run that shares nothing with others is listed by its index.
    parts_of_run: dict[object, list[LogRun]] = defaultdict(list)
    for i, run in enumerate(runs):
        parts_of_run[_identity(run, on_request) or i].append(run)

    joined: list[LogRun] = []
    notes: list[str] = []
    for parts in parts_of_run.values():
        parts.sort(key=lambda part: part.column_map.table.started)
        if len(parts) == 1 and not on_request:
            joined += parts
            continue

        # One part is joined too: with --resumed, its steps may fall back within the log.
        run = _join(parts)
        latest = _keep_latest([part.rows for part in parts], run.column_map, on_request)
        joined.append(replace(run, rows=RowTable.of(latest.rows)))
        if len(parts) > 1 or latest.repeated:
            name = run.name or run.column_map.table.run or "a run"
            logs = " and ".join(dict.fromkeys(part.rows.place(0).source for part in parts))
            notes.append(
                f"{name} was resumed ({logs}): {latest.repeated} rows of steps that were repeated "
                "count once, as they were logged last"
            )
    return NotedRuns(joined, notes)


def _identity(run: LogRun, on_request: bool) -> object:
    """A key that is the same for all logs of one run, such as its id; None for a run in one log.

    on_request: whether --resumed was given, by which names and seeds count too.
    """
    table = run.column_map.table
    if table.run_id or not on_request:
        return table.run_id or None

    has_given_seed = "seed" in run.column_map.constants
    name = "" if has_given_seed else run.name or table.run
    if not name and run.seed is None:
        return None
    return (name, run.B_p, run.n, run.seed)


def _join(parts: Sequence[LogRun]) -> LogRun:
    """The last of a resumed run's logs, with the settings and columns of all of them.

    Its `parts` are the paths of the logs; its rows are those of the last log, which the caller
    replaces by those of `_keep_latest`. parts: by the time they were started. InputError where two
    logs have different B_p, n or columns for a field.
    """
    for a, b in pairwise(parts):
        different = []
        if a.B_p != b.B_p:
            different.append("B_p")
        if a.n != b.n:
            different.append("n")
        for field in a.column_map.columns.keys() & b.column_map.columns.keys():
            if a.column_map.columns[field] != b.column_map.columns[field]:
                different.append(field)
        if different:
            raise InputError(
                where=b.location,
                found=(
                    f"a log of the run of {a.location}, which was resumed, "
                    f"with another {' and another '.join(different)}"
                ),
                expected="one setting",
                fix="Leave one out, or name the columns with --map.",
            )

    # A log may lack a column that another has, as where evaluations began later.
    columns: dict[str, str] = {}
    constants: dict[str, float | int] = {}
    for part in parts:
        columns |= part.column_map.columns
        constants |= part.column_map.constants
    column_map = replace(
        parts[-1].column_map,
        columns=columns,
        constants=constants,
        detected=frozenset().union(*(part.column_map.detected for part in parts)),
    )
    logs = dict.fromkeys(part.column_map.table.source for part in parts)
    return replace(parts[-1], column_map=column_map, parts=tuple(logs))


class _ClockedRow(NamedTuple):
    clock: int  # its step, or its rollouts
    row: DataRow


class _LatestRows(NamedTuple):
    rows: list[DataRow]  # those that no later part repeats
    repeated: int  # how many others there are


def _keep_latest(
    parts: Sequence[Sequence[DataRow]], column_map: ColumnMap, split_falls: bool
) -> _LatestRows:
    """The rows of a resumed run that count: where two of its parts have a step, the later part's.

    `parts`: the rows of each log, earliest log first. `split_falls`: a part also begins where the
    steps of a log fall. Refused are a part that goes back to the run's first step, so that nothing
    before it would count, and rows of two runs that alternate. The clock of a row is its step, or
    its rollouts in a log without steps."""
    clock_field = column_map.clock_field
    # A part that starts over at the first step may be another run, or a start that failed; only
    # a step column that is known for sure (neither W&B's count of calls, "_step", nor one that
    # the user named) shows that it is neither.
    may_be_another = (
        split_falls or "step" not in column_map.detected or column_map.columns["step"] == "_step"
    )

    latest: list[_ClockedRow] = []
    repeated = 0
    for rows in parts:
        # whether the step of the row before, and the step before that one, are there twice
        is_twice = earlier_is_twice = False
        for i, row in enumerate(rows):
            clock = column_map.read(clock_field, row)
            begins_part = i == 0 or (split_falls and _goes_back(latest, clock, row, column_map))
            if begins_part and may_be_another and _starts_over(latest, clock):
                raise InputError(
                    where=row.location,
                    found=(
                        f"{clock_field} goes back to {clock}, where the run began "
                        f"({latest[0].row.location}), so nothing before would count"
                    ),
                    fix=(
                        "Name the earlier log first; leave out a start that failed; sort a "
                        "file by step; split one that holds two runs; number seeds by "
                        "--settings TABLE or --map seed=COLUMN."
                    ),
                )

            # One step may be there twice, where a run was stopped in it: then a part begins at the
            # step of the row before. Two steps in a row are not there twice.
            if not latest or clock != latest[-1].clock:
                is_twice, earlier_is_twice = False, is_twice
            elif begins_part and i > 0:
                is_twice = True
            if is_twice and earlier_is_twice:
                raise InputError(
                    where=row.location,
                    found=(
                        f"{clock_field} {clock} is there twice, and so is the step before, as "
                        "where runs alternate"
                    ),
                    expected="one run",
                    fix=(
                        "Separate runs or benchmarks by --map run=COLUMN or seed=COLUMN, or "
                        "give each a file."
                    ),
                )

            # A part that begins at a step replaces what earlier parts have from that step on.
            while begins_part and latest and latest[-1].clock >= clock:
                latest.pop()
                repeated += 1
            latest.append(_ClockedRow(clock, row))
    return _LatestRows([entry.row for entry in latest], repeated)


def _starts_over(latest: Sequence[_ClockedRow], clock: int) -> bool:
    """Whether nothing would be left of the rows so far, if a part began at this clock."""
    if not latest:
        return False
    start = latest[0].clock
    return clock < start or (clock == start and len(latest) > 1)


def _goes_back(
    latest: Sequence[_ClockedRow], clock: int, row: DataRow, column_map: ColumnMap
) -> bool:
    """Whether a row is from after a restart.

    It is where its clock (its step or rollouts) is below that of the last row of `latest`, or it
    has a column that another row of its step also has. Two rows of one step with different columns,
    as a training row and an evaluation, are no sign. latest: one or more rows.
    """
    if clock < latest[-1].clock:
        return True

    # In a table that people exported, NaN too says that nothing was logged.
    is_unlogged = is_missing if column_map.table.is_export else is_blank
    logged = [
        column for column in column_map.step_columns if not is_unlogged(row.values.get(column))
    ]
    # From the last row backwards, through those of the same step.
    for entry in reversed(latest):
        if entry.clock != clock:
            break
        if any(not is_unlogged(entry.row.values.get(column)) for column in logged):
            return True
    return False
