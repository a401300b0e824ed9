"""Logs -> runs: each row's cell, the rows of a run together, seeds where nobody gave any."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from isojax.core.errors import InputError
from isojax.core.nouns import Cell, RunRecord
from isojax.runs.log_evaluations import (
    has_metric_cell,
    ledger_metric_name,
    main_metric_field,
    metric_fields,
    read_evaluations,
)
from isojax.runs.log_fields import ColumnMap
from isojax.runs.log_table import LogRow, LogTable
from isojax.runs.log_values import read_integer, read_text


@dataclass
class LogRun:
    """The rows of one run, as they are gathered."""

    table: LogTable
    column_map: ColumnMap
    B_p: int
    n: int
    seed: int | None
    name: str
    rows: list[LogRow] = field(default_factory=list)

    @property
    def location(self) -> str:
        """Where it begins."""
        return f"{self.table.source}, {self.rows[0].location}"


def cell_settings(row: LogRow, table: LogTable, column_map: ColumnMap) -> tuple[int, int, int | None]:
    """(B_p, n, seed) of a row.

    Raises:
        InputError: missing, no whole number, or a batch that is no multiple of n, with the row's place.
    """
    n = read_integer("n", row, table, column_map, 1)
    seed = read_integer("seed", row, table, column_map, 0) if "seed" in column_map else None
    if "B_p" in column_map:
        return read_integer("B_p", row, table, column_map, 1), n, seed
    B = read_integer("B", row, table, column_map, 1)
    if B % n:
        raise InputError(
            f"{table.source}, {row.location}: B = {B} is no multiple of n = {n}; expected B = B_p n, rollouts an update."
        )
    return B // n, n, seed


def group_rows(table: LogTable, column_map: ColumnMap) -> list[LogRun]:
    """The runs of one log, in the order they begin.

    With a `run` column, its values tell them apart; without one a format that holds one run a log is one run, and in
    others rows of one (B_p, n, seed) are.

    Raises:
        InputError: as `settings`, or n, B_p or the seed changes inside a run, with both places.
    """
    runs: dict[object, LogRun] = {}
    rows = [row for row in table.rows if has_metric_cell(row, column_map)]
    if not rows:
        metric_columns = ", ".join(column_map.columns[name] for name in metric_fields(column_map))
        raise InputError(
            f"{table.source}, {table.rows[0].location}: no row from there on has a value of {metric_columns}. Name the columns with --map."
        )
    for row in rows:
        B_p, n, seed = cell_settings(row, table, column_map)
        name = read_text("run", row, table, column_map) if "run" in column_map else ""
        key: object = name if "run" in column_map or table.one_run else (B_p, n, seed)
        run = runs.setdefault(key, LogRun(table, column_map, B_p, n, seed, name))
        if (run.B_p, run.n, run.seed) != (B_p, n, seed):
            changes = ", ".join(
                f"{setting} from {old} to {new}"
                for setting, old, new in (("B_p", run.B_p, B_p), ("n", run.n, n), ("seed", run.seed, seed))
                if old != new
            )
            run_label = f"the run {name!r}" if name else "one run"
            raise InputError(
                f"{table.source}, {row.location}: {run_label} (from {run.rows[0].location}) changes {changes}; expected one setting. {_SEPARATE_RUNS_HINT}"
            )
        run.rows.append(row)
    _reject_mixed_settings(list(runs.values()), rows, table, column_map)
    return list(runs.values())


_SEPARATE_RUNS_HINT = "Give each run its own file, or name the column that tells them apart: --map run=COLUMN."


def _reject_mixed_settings(
    runs: Sequence[LogRun], rows: Sequence[LogRow], table: LogTable, column_map: ColumnMap
) -> None:
    """Settings that change while the steps rise on are one run's, not several runs': through the whole file, or there
    and back.
    """
    if "run" in column_map or len(runs) < 2:
        return
    clock_field = "step" if "step" in column_map.columns else "rollouts"
    run_of_row = {id(row): run for run in runs for row in run.rows}
    clock_of_row = {id(row): read_integer(clock_field, row, table, column_map, 0) for row in rows}
    row_blocks = [list(block) for _, block in groupby(rows, key=lambda row: id(run_of_row[id(row)]))]
    rising = all(clock_of_row[id(a)] < clock_of_row[id(b)] for a, b in pairwise(rows))
    interrupts_other = [
        _interrupts_run(block_before, block, block_after, run_of_row, clock_of_row)
        for block_before, block, block_after in zip(row_blocks, row_blocks[1:], row_blocks[2:], strict=False)
    ]
    interrupting_runs = [
        run
        for run in runs
        if all(
            inner
            for block, inner in zip(row_blocks, [False, *interrupts_other, False], strict=True)
            if run_of_row[id(block[0])] is run
        )
    ]
    if rising or interrupting_runs:
        second_run = runs[1] if rising else interrupting_runs[0]
        first_run = runs[0] if rising else run_of_row[id(rows[rows.index(second_run.rows[0]) - 1])]
        settings_text = f"n = {first_run.n}, B_p = {first_run.B_p} (from {first_run.rows[0].location}), then n = {second_run.n}, B_p = {second_run.B_p}"
        problem = f"{table.source}, {second_run.rows[0].location}: two settings are mixed in one run: {settings_text}, while {clock_field} goes on rising"
        raise InputError(
            f"{problem}; expected one setting. {_SEPARATE_RUNS_HINT} Where each n is a run of its own: --map run=n."
        )


def _interrupts_run(
    block_before: list[LogRow],
    block: list[LogRow],
    block_after: list[LogRow],
    run_of_row: Mapping[int, LogRun],
    clock_of_row: Mapping[int, int],
) -> bool:
    """Whether a block of rows interrupts one other run, and fits into its steps."""
    same_run = run_of_row[id(block_before[-1])] is run_of_row[id(block_after[0])]
    return (
        same_run
        and clock_of_row[id(block_before[-1])] < clock_of_row[id(block[0])]
        and clock_of_row[id(block[-1])] < clock_of_row[id(block_after[0])]
    )


def to_run_records(runs: Sequence[LogRun]) -> tuple[list[RunRecord], list[str]]:
    """Every run as a record, by cell, and what was assumed.

    Runs of one (B_p, n) without a seed get 0, 1, ... in order; so do runs in logs of their own whose settings repeat
    one seed.

    Raises:
        InputError: as `points.evaluations`, two runs with one (B_p, n, seed), or the same run twice.
    """
    notes = [*_reject_different_metrics(runs), *_assign_seeds(runs)]
    run_records = []
    for run in runs:
        assert run.seed is not None
        cell = Cell(run.B_p, run.n, run.seed)
        points, hours, run_notes = read_evaluations(run.rows, run.table, run.column_map, cell)
        notes += [f"{run.location}{f' (run {run.name!r})' if run.name else ''}: {text}" for text in run_notes]
        run_records.append(RunRecord(cell, points, run.location, hours, "imported"))
    _reject_copies(run_records)
    return sorted(run_records, key=lambda run: run.cell), notes


def _reject_different_metrics(runs: Sequence[LogRun]) -> list[str]:
    """Refuse runs whose validation metric has different names; says where one name stands for different columns."""
    run_by_metric = {
        (
            ledger_metric_name(main_metric_field(run.column_map), run.column_map),
            run.column_map.columns[main_metric_field(run.column_map)],
        ): run
        for run in reversed(runs)
    }
    if len({name for name, _ in run_by_metric}) > 1:
        metrics_text = " and ".join(f"{name} ({run.table.source})" for (name, _), run in run_by_metric.items())
        raise InputError(
            f"the runs have different validation metrics: {metrics_text}; expected one. Name it for all: --map avg@4=COLUMN."
        )
    if len(run_by_metric) > 1:
        return [f"{name} is read from {column} in {run.table.source}" for (name, column), run in run_by_metric.items()]
    return []


def _assign_seeds(runs: Sequence[LogRun]) -> list[str]:
    """Give each run its seed; says where there was a choice.

    Raises:
        InputError: two runs of one cell with one seed, where somebody gave it or a file of many runs has it as a
        column.
    """
    notes = []
    cells: dict[tuple[int, int], list[LogRun]] = defaultdict(list)
    for run in runs:
        cells[run.B_p, run.n].append(run)
    for (B_p, n), cell_runs in cells.items():
        seed_counts = Counter(run.seed for run in cell_runs if run.seed is not None)
        for run in cell_runs:
            if (
                run.seed is not None
                and seed_counts[run.seed] > 1
                and run.table.one_run
                and "seed" in run.column_map.detected
            ):
                run.seed = None  # a trainer's default, which says nothing of which run it was
        run_by_seed: dict[int, LogRun] = {}
        for run in (run for run in cell_runs if run.seed is not None):
            run_with_seed = run_by_seed.setdefault(int(run.seed or 0), run)
            if run_with_seed is not run:
                problem = f"two runs with B_p = {B_p}, n = {n}, seed = {run.seed}: {run_with_seed.location} and {run.location}"
                raise InputError(f"{problem}; expected one. Give each its seed, or leave one out.")
        unseeded_runs = [run for run in cell_runs if run.seed is None]
        free_seeds = (seed for seed in range(len(cell_runs)) if seed not in run_by_seed)
        for run, seed in zip(unseeded_runs, free_seeds, strict=False):
            run.seed = seed
        if unseeded_runs and len(cell_runs) > 1:
            numbering = ", ".join(f"{run.name or run.table.source} is {run.seed}" for run in unseeded_runs)
            notes.append(f"seeds of B_p = {B_p}, n = {n} are numbered in the order given: {numbering}")
    return notes


def _reject_copies(runs: Sequence[RunRecord]) -> None:
    """One run counted as two seeds, be it from two of its checkpoints, would make every interval too narrow."""
    for i, a in enumerate(runs):
        for b in runs[:i]:
            shared_points = min(len(a.points), len(b.points))
            if (
                (a.cell.B_p, a.cell.n) == (b.cell.B_p, b.cell.n)
                and shared_points > 1
                and a.points[:shared_points] == b.points[:shared_points]
            ):
                cell = f"B_p = {a.cell.B_p}, n = {a.cell.n}"
                raise InputError(
                    f"{b.source} and {a.source} hold the same run of {cell}, as far as both go; leave one out."
                )
