"""Runs that were resumed: the logs of one run joined. Where two of them have a step, the later log
counts."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile

from isojax.core.columns import is_blank, is_missing
from isojax.core.errors import InputError
from isojax.core.tabular import DataRow, RowTable
from isojax.runs.logs.column_map import ColumnMap


@dataclass
class LogRun:
    """The rows of one run, as they are gathered; `seed` is None until one is known or assigned."""

    column_map: ColumnMap
    name: str
    B_p: int
    n: int
    seed: int | None
    rows: RowTable
    may_be_skipped: bool = False  # in a folder with other logs, where it cannot be used
    seed_is_stated: bool = False  # by the user's table of settings, for this run
    scale_is_stated: bool = False  # likewise
    scale_is_auto: bool = False  # the run's own rewards decide whether they are percent
    parts: tuple[str, ...] = ()  # of a run that was resumed: the logs that it was joined from

    @property
    def location(self) -> str:
        return self.rows.place(0).location

    @property
    def named_location(self) -> str:
        name = self.name or self.column_map.table.run
        return f"{self.location} (run {name!r})" if name else self.location

    @property
    def sources(self) -> tuple[str, ...]:
        """The log that it was read from; of a run that was resumed, the logs."""
        return self.parts or (self.column_map.table.source,)

    @property
    def label(self) -> str:
        """Its name, or else the name of its run in the log's format, or its file."""
        return self.name or self.column_map.table.label


def join_resumed_runs(runs: Sequence[LogRun], on_request: bool) -> tuple[list[LogRun], list[str]]:
    """The runs, those with one id joined, and notes of what was joined. `on_request`: those with
    one name and setting too (without a name, or of a seed that the user gives, with one seed), and
    a log's run goes on where steps fall."""
    parts_by_run: dict[object, list[LogRun]] = defaultdict(list)
    for i, run in enumerate(runs):
        table = run.column_map.table
        # of a seed that the user gives
        name = "" if "seed" in run.column_map.constants else run.name or table.run
        named = (
            (name, run.B_p, run.n, run.seed) if on_request and (name or run.seed is not None) else i
        )
        parts_by_run[table.run_id or named].append(run)
    joined, notes = [], []
    for parts in parts_by_run.values():
        parts.sort(key=lambda part: part.column_map.table.started)
        if len(parts) == 1 and not on_request:
            joined += parts
            continue
        run = _join(parts)
        latest_rows, repeated = _keep_latest(
            [part.rows for part in parts], run.column_map, on_request
        )
        run.rows = RowTable.of(latest_rows)
        joined.append(run)
        if len(parts) > 1 or repeated:
            logs = " and ".join(dict.fromkeys(part.rows.place(0).source for part in parts))
            what = (
                f"{repeated} rows of steps that were repeated count once, as they were logged last"
            )
            notes.append(
                f"{run.name or run.column_map.table.run or 'a run'} was resumed ({logs}): {what}"
            )
    return joined, notes


def _join(parts: Sequence[LogRun]) -> LogRun:
    """The settings and columns of all; InputError where they differ."""
    for a, b in pairwise(parts):
        shared = a.column_map.columns.keys() & b.column_map.columns.keys()
        different = [name for name in ("B_p", "n") if vars(a)[name] != vars(b)[name]]
        different += [
            name for name in shared if a.column_map.columns[name] != b.column_map.columns[name]
        ]
        if different:
            names = ", ".join(different)
            problem = f"{a.location} and {b.location} are logs of one run, which was resumed, and differ in {names}"
            raise InputError(
                f"{problem}; expected one setting. Leave one out, or name the columns with --map."
            )
    columns = {field: column for part in parts for field, column in part.column_map.columns.items()}
    constants = {
        field: number for part in parts for field, number in part.column_map.constants.items()
    }
    detected = frozenset().union(*(part.column_map.detected for part in parts))
    column_map = replace(
        parts[-1].column_map, columns=columns, constants=constants, detected=detected
    )
    sources = tuple(dict.fromkeys(part.column_map.table.source for part in parts))
    return replace(parts[-1], column_map=column_map, parts=sources)


def _keep_latest(
    parts: Sequence[Sequence[DataRow]], column_map: ColumnMap, split_falls: bool
) -> tuple[list[DataRow], int]:
    """(the rows that no later part repeats, how many others); a part also begins at a fall if
    `split_falls`."""
    kept: list[tuple[int, DataRow]] = []
    dropped = 0
    # W&B's count of calls may begin again, and so may a column that an evaluation need not have.
    may_be_another = (
        split_falls or "step" not in column_map.detected or column_map.columns["step"] == "_step"
    )
    for rows in parts:
        # whether this step, and the one before, are there twice
        is_twice = earlier_is_twice = False
        for i, row in enumerate(rows):
            clock = column_map.read(column_map.clock_field, row)
            begins = i == 0 or (split_falls and _goes_back(kept, clock, row, column_map))
            starts_over = kept and (clock < kept[0][0] or (clock == kept[0][0] and len(kept) > 1))
            if begins and starts_over and may_be_another:
                raise InputError(
                    f"{row.location}: {column_map.clock_field} goes back to {clock}, where the run began"
                    f" ({kept[0][1].location}), so nothing before would count. Name the earlier log first; leave out a"
                    " start that failed; sort a file by step; split one that holds two runs; number seeds by --settings"
                    " TABLE or --map seed=COLUMN."
                )
            if not kept or clock != kept[-1][0]:
                is_twice, earlier_is_twice = False, is_twice
            is_twice |= i > 0 and begins and kept[-1][0] == clock
            if is_twice and earlier_is_twice:
                problem = f"{row.location}: {column_map.clock_field} {clock} is there twice, and so is the step before"
                fix = "Separate runs or benchmarks by --map run=COLUMN or seed=COLUMN, or give each a file"
                raise InputError(f"{problem}, as where runs alternate; expected one run. {fix}.")
            while begins and kept and kept[-1][0] >= clock:
                kept.pop()
                dropped += 1
            kept.append((clock, row))
    return [row for _, row in kept], dropped


def _goes_back(
    kept: Sequence[tuple[int, DataRow]], clock: int, row: DataRow, column_map: ColumnMap
) -> bool:
    is_unlogged = is_missing if column_map.table.is_export else is_blank
    logged = [
        column for column in column_map.step_columns if not is_unlogged(row.values.get(column))
    ]
    at_step = takewhile(lambda entry: entry[0] == clock, reversed(kept))
    return clock < kept[-1][0] or any(
        not is_unlogged(other.values.get(c)) for _, other in at_step for c in logged
    )
