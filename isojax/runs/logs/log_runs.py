"""The rows of a log grouped into runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from isojax.core.errors import InputError
from isojax.core.tabular import DataRow
from isojax.runs.logs.column_map import ColumnMap
from isojax.runs.logs.log_table import LogTable

_SEPARATE_RUNS_HINT = "Give each run its own file, or name the column that tells them apart: --map run=COLUMN."


@dataclass
class LogRun:
    """The rows of one run, as they are gathered; `seed` is None until one is known or assigned."""

    table: LogTable
    column_map: ColumnMap
    B_p: int
    n: int
    seed: int | None
    name: str
    rows: list[DataRow] = field(default_factory=list)

    @property
    def location(self) -> str:
        """Where it begins."""
        return self.rows[0].location


def group_rows(table: LogTable, column_map: ColumnMap) -> list[LogRun]:
    """The runs of one log, in the order they begin.

    With a `run` column, its values tell them apart; without one, a format that holds one run per log is one run, and
    in others the rows of one (B_p, n, seed) are.

    Raises:
        InputError: as `_row_settings`, or n, B_p or the seed changes inside a run; names both places.
    """
    metric_columns = [column_map.columns[name] for name in column_map.metric_fields]
    rows = [row for row in table.rows if any(column in row.values for column in metric_columns)]
    if not rows:
        raise InputError(
            f"{table.rows[0].location}: no row from there on has a value of {', '.join(metric_columns)}. Name the"
            " columns with --map."
        )
    runs: dict[object, LogRun] = {}
    for row in rows:
        B_p, n, seed = _row_settings(row, column_map)
        name = column_map.read_text("run", row) if "run" in column_map else ""
        key: object = name if "run" in column_map or table.one_run else (B_p, n, seed)
        run = runs.setdefault(key, LogRun(table, column_map, B_p, n, seed, name))
        if (run.B_p, run.n, run.seed) != (B_p, n, seed):
            raise _changed_settings_error(run, row, B_p, n, seed)
        run.rows.append(row)
    _reject_mixed_settings(list(runs.values()), rows, column_map)
    return list(runs.values())


def _row_settings(row: DataRow, column_map: ColumnMap) -> tuple[int, int, int | None]:
    """(B_p, n, seed) of a row.

    Raises:
        InputError: missing, no whole number, or a batch that is no multiple of n.
    """
    n = column_map.read_integer("n", row, 1)
    seed = column_map.read_integer("seed", row, 0) if "seed" in column_map else None
    if "B_p" in column_map:
        return column_map.read_integer("B_p", row, 1), n, seed
    B = column_map.read_integer("B", row, 1)
    if B % n:
        raise InputError(f"{row.location}: B = {B} is no multiple of n = {n}; expected B = B_p n, rollouts per update.")
    return B // n, n, seed


def _changed_settings_error(run: LogRun, row: DataRow, B_p: int, n: int, seed: int | None) -> InputError:
    changes = ", ".join(
        f"{setting} from {old} to {new}"
        for setting, old, new in (("B_p", run.B_p, B_p), ("n", run.n, n), ("seed", run.seed, seed))
        if old != new
    )
    run_label = f"the run {run.name!r}" if run.name else "one run"
    return InputError(
        f"{row.location}: {run_label} (from {run.rows[0].position}) changes {changes}; expected one setting."
        f" {_SEPARATE_RUNS_HINT}"
    )


def _reject_mixed_settings(runs: Sequence[LogRun], rows: Sequence[DataRow], column_map: ColumnMap) -> None:
    """Refuse settings that change while the steps go on rising, through the whole file, or there and back: these are
    one run's rows, not several runs'.
    """
    if "run" in column_map or len(runs) < 2:
        return
    clock_field = "step" if "step" in column_map.columns else "rollouts"
    run_of_row = {id(row): run for run in runs for row in run.rows}
    clock_of_row = {id(row): column_map.read_integer(clock_field, row, 0) for row in rows}
    row_blocks = [list(block) for _, block in groupby(rows, key=lambda row: id(run_of_row[id(row)]))]
    always_rising = all(clock_of_row[id(a)] < clock_of_row[id(b)] for a, b in pairwise(rows))
    interrupting_runs = _interrupting_runs(runs, row_blocks, run_of_row, clock_of_row)
    if not always_rising and not interrupting_runs:
        return
    second_run = runs[1] if always_rising else interrupting_runs[0]
    first_run = runs[0] if always_rising else run_of_row[id(rows[rows.index(second_run.rows[0]) - 1])]
    raise InputError(
        f"{second_run.location}: two settings are mixed in one run: n = {first_run.n}, B_p = {first_run.B_p}"
        f" (from {first_run.rows[0].position}), then n = {second_run.n}, B_p = {second_run.B_p}, while {clock_field}"
        f" goes on rising; expected one setting. {_SEPARATE_RUNS_HINT} Where each n is a run of its own: --map run=n."
    )


def _interrupting_runs(
    runs: Sequence[LogRun],
    row_blocks: Sequence[Sequence[DataRow]],
    run_of_row: Mapping[int, LogRun],
    clock_of_row: Mapping[int, int],
) -> list[LogRun]:
    """The runs all of whose blocks of rows interrupt one other run, and fit into its steps."""

    def interrupts(before: Sequence[DataRow], block: Sequence[DataRow], after: Sequence[DataRow]) -> bool:
        same_run = run_of_row[id(before[-1])] is run_of_row[id(after[0])]
        fits_after = clock_of_row[id(before[-1])] < clock_of_row[id(block[0])]
        fits_before = clock_of_row[id(block[-1])] < clock_of_row[id(after[0])]
        return same_run and fits_after and fits_before

    inner_blocks = zip(row_blocks, row_blocks[1:], row_blocks[2:], strict=False)
    block_interrupts = [False, *(interrupts(*blocks) for blocks in inner_blocks), False]
    not_interrupting = {
        id(run_of_row[id(block[0])])
        for block, does_interrupt in zip(row_blocks, block_interrupts, strict=True)
        if not does_interrupt
    }
    return [run for run in runs if id(run) not in not_interrupting]
