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
    """The runs, those with one id joined, and notes of what was joined. `on_request`: those with
    one name and setting too (without a name, or of a seed that the user gives, with one seed), and
    a log's run goes on where steps fall."""
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
    """What the parts of one run share; None of a run that is one by itself."""
    table = run.column_map.table
    if table.run_id or not on_request:
        return table.run_id or None

    has_given_seed = "seed" in run.column_map.constants
    name = "" if has_given_seed else run.name or table.run
    if not name and run.seed is None:
        return None
    return (name, run.B_p, run.n, run.seed)


def _join(parts: Sequence[LogRun]) -> LogRun:
    """The last part, with the settings and columns of all; InputError where they differ."""
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
                f"{a.location} and {b.location} are logs of one run, which was resumed, "
                f"and differ in {', '.join(different)}; expected one setting. "
                "Leave one out, or name the columns with --map."
            )

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
    """The rows of all parts; a part also begins at a fall of the steps if `split_falls`."""
    clock_field = column_map.clock_field
    # W&B's count of calls may begin again, and so may a column that an evaluation need not have.
    may_be_another = (
        split_falls or "step" not in column_map.detected or column_map.columns["step"] == "_step"
    )

    latest: list[_ClockedRow] = []
    repeated = 0
    for rows in parts:
        # whether this step, and the one before, are there twice
        is_twice = earlier_is_twice = False
        for i, row in enumerate(rows):
            clock = column_map.read(clock_field, row)
            begins = i == 0 or (split_falls and _goes_back(latest, clock, row, column_map))
            if begins and may_be_another and _starts_over(latest, clock):
                raise InputError(
                    f"{row.location}: {clock_field} goes back to {clock}, where the run began "
                    f"({latest[0].row.location}), so nothing before would count. "
                    "Name the earlier log first; leave out a start that failed; sort a file by "
                    "step; split one that holds two runs; number seeds by --settings TABLE or "
                    "--map seed=COLUMN."
                )

            # One step may be there twice, where a run was stopped in it; two in a row are not.
            if not latest or clock != latest[-1].clock:
                is_twice, earlier_is_twice = False, is_twice
            is_twice |= i > 0 and begins and latest[-1].clock == clock
            if is_twice and earlier_is_twice:
                raise InputError(
                    f"{row.location}: {clock_field} {clock} is there twice, "
                    "and so is the step before, as where runs alternate; expected one run. "
                    "Separate runs or benchmarks by --map run=COLUMN or seed=COLUMN, "
                    "or give each a file."
                )

            while begins and latest and latest[-1].clock >= clock:
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
    """Whether a row's step is before the last one, or has a value of a column that a row of the
    same step has already."""
    if clock < latest[-1].clock:
        return True
    is_unlogged = is_missing if column_map.table.is_export else is_blank
    logged = [
        column for column in column_map.step_columns if not is_unlogged(row.values.get(column))
    ]
    for entry in reversed(latest):
        if entry.clock != clock:
            break
        if any(not is_unlogged(entry.row.values.get(column)) for column in logged):
            return True
    return False
