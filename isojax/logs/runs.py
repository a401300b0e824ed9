"""Logs -> runs: each row's cell, the rows of a run together, seeds where nobody gave any."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from isojax.logs.fields import Bound
from isojax.logs.points import evaluations, is_measured, main_metric, measures, metric_name
from isojax.logs.table import Row, Table
from isojax.logs.values import text_of, whole
from isojax.types import Cell, InputError, RunRecord


@dataclass
class Run:
    """The rows of one run, as they are gathered."""

    table: Table
    bound: Bound
    B_p: int
    n: int
    seed: int | None
    name: str
    rows: list[Row] = field(default_factory=list)

    @property
    def place(self) -> str:
        """Where it begins."""
        return f"{self.table.source}, {self.rows[0].place}"


def settings(row: Row, table: Table, bound: Bound) -> tuple[int, int, int | None]:
    """(B_p, n, seed) of a row.

    Raises:
        InputError: missing, no whole number, or a batch that is no multiple of n, with the row's place.
    """
    n = whole("n", row, table, bound, 1)
    seed = whole("seed", row, table, bound, 0) if "seed" in bound else None
    if "B_p" in bound:
        return whole("B_p", row, table, bound, 1), n, seed
    B = whole("B", row, table, bound, 1)
    if B % n:
        raise InputError(f"{table.source}, {row.place}: B = {B} is no multiple of n = {n}; expected B = B_p n, rollouts an update.")
    return B // n, n, seed


def gather(table: Table, bound: Bound) -> list[Run]:
    """The runs of one log, in the order they begin.

    With a `run` column, its values tell them apart; without one a format that holds one run a log is one run, and in others rows of one
    (B_p, n, seed) are.

    Raises:
        InputError: as `settings`, or n, B_p or the seed changes inside a run, with both places.
    """
    runs: dict[object, Run] = {}
    rows = [row for row in table.rows if is_measured(row, bound)]
    if not rows:
        used = ", ".join(bound.columns[name] for name in measures(bound))
        raise InputError(f"{table.source}, {table.rows[0].place}: no row from there on has a value of {used}. Name the columns with --map.")
    for row in rows:
        B_p, n, seed = settings(row, table, bound)
        name = text_of("run", row, table, bound) if "run" in bound else ""
        key: object = name if "run" in bound or table.one_run else (B_p, n, seed)
        run = runs.setdefault(key, Run(table, bound, B_p, n, seed, name))
        if (run.B_p, run.n, run.seed) != (B_p, n, seed):
            changes = ", ".join(
                f"{what} from {old} to {new}"
                for what, old, new in (("B_p", run.B_p, B_p), ("n", run.n, n), ("seed", run.seed, seed))
                if old != new
            )
            who = f"the run {name!r}" if name else "one run"
            raise InputError(
                f"{table.source}, {row.place}: {who} (from {run.rows[0].place}) changes {changes}; expected one setting. {_SEPARATE}"
            )
        run.rows.append(row)
    _refuse_mixed(list(runs.values()), rows, table, bound)
    return list(runs.values())


_SEPARATE = "Give each run its own file, or name the column that tells them apart: --map run=COLUMN."


def _refuse_mixed(runs: Sequence[Run], rows: Sequence[Row], table: Table, bound: Bound) -> None:
    """Settings that change while the steps rise on are one run's, not several runs': through the whole file, or there and back."""
    if "run" in bound or len(runs) < 2:
        return
    clock = "step" if "step" in bound.columns else "rollouts"
    owner = {id(row): run for run in runs for row in run.rows}
    steps = {id(row): whole(clock, row, table, bound, 0) for row in rows}
    blocks = [list(block) for _, block in groupby(rows, key=lambda row: id(owner[id(row)]))]
    rising = all(steps[id(a)] < steps[id(b)] for a, b in pairwise(rows))
    inside = [_is_inside(before, block, after, owner, steps) for before, block, after in zip(blocks, blocks[1:], blocks[2:], strict=False)]
    strays = [
        run
        for run in runs
        if all(inner for block, inner in zip(blocks, [False, *inside, False], strict=True) if owner[id(block[0])] is run)
    ]
    if rising or strays:
        other = runs[1] if rising else strays[0]
        first = runs[0] if rising else owner[id(rows[rows.index(other.rows[0]) - 1])]
        what = f"n = {first.n}, B_p = {first.B_p} (from {first.rows[0].place}), then n = {other.n}, B_p = {other.B_p}"
        given = f"{table.source}, {other.rows[0].place}: two settings are mixed in one run: {what}, while {clock} goes on rising"
        raise InputError(f"{given}; expected one setting. {_SEPARATE} Where each n is a run of its own: --map run=n.")


def _is_inside(before: list[Row], block: list[Row], after: list[Row], owner: Mapping[int, Run], steps: Mapping[int, int]) -> bool:
    """Whether a block of rows interrupts one other run, and fits into its steps."""
    same = owner[id(before[-1])] is owner[id(after[0])]
    return same and steps[id(before[-1])] < steps[id(block[0])] and steps[id(block[-1])] < steps[id(after[0])]


def records(runs: Sequence[Run]) -> tuple[list[RunRecord], list[str]]:
    """Every run as a record, by cell, and what was assumed.

    Runs of one (B_p, n) without a seed get 0, 1, ... in order; so do runs in logs of their own whose settings repeat one seed.

    Raises:
        InputError: as `points.evaluations`, two runs with one (B_p, n, seed), or the same run twice.
    """
    notes = [*_refuse_other_metrics(runs), *_number_seeds(runs)]
    made = []
    for run in runs:
        assert run.seed is not None
        cell = Cell(run.B_p, run.n, run.seed)
        points, hours, said = evaluations(run.rows, run.table, run.bound, cell)
        notes += [f"{run.place}{f' (run {run.name!r})' if run.name else ''}: {text}" for text in said]
        made.append(RunRecord(cell, points, run.place, hours, "imported"))
    _refuse_copies(made)
    return sorted(made, key=lambda run: run.cell), notes


def _refuse_other_metrics(runs: Sequence[Run]) -> list[str]:
    """Refuse runs whose validation metric has different names; says where one name stands for different columns."""
    first = {(metric_name(main_metric(run.bound), run.bound), run.bound.columns[main_metric(run.bound)]): run for run in reversed(runs)}
    if len({name for name, _ in first}) > 1:
        given = " and ".join(f"{name} ({run.table.source})" for (name, _), run in first.items())
        raise InputError(f"the runs have different validation metrics: {given}; expected one. Name it for all: --map avg@4=COLUMN.")
    if len(first) > 1:
        return [f"{name} is read from {column} in {run.table.source}" for (name, column), run in first.items()]
    return []


def _number_seeds(runs: Sequence[Run]) -> list[str]:
    """Give each run its seed; says where there was a choice.

    Raises:
        InputError: two runs of one cell with one seed, where somebody gave it or a file of many runs has it as a column.
    """
    notes = []
    cells: dict[tuple[int, int], list[Run]] = defaultdict(list)
    for run in runs:
        cells[run.B_p, run.n].append(run)
    for (B_p, n), group in cells.items():
        given = Counter(run.seed for run in group if run.seed is not None)
        for run in group:
            if run.seed is not None and given[run.seed] > 1 and run.table.one_run and "seed" in run.bound.found:
                run.seed = None  # a trainer's default, which says nothing of which run it was
        first: dict[int, Run] = {}
        for run in (run for run in group if run.seed is not None):
            other = first.setdefault(int(run.seed or 0), run)
            if other is not run:
                what = f"two runs with B_p = {B_p}, n = {n}, seed = {run.seed}: {other.place} and {run.place}"
                raise InputError(f"{what}; expected one. Give each its seed, or leave one out.")
        unknown = [run for run in group if run.seed is None]
        free = (seed for seed in range(len(group)) if seed not in first)
        for run, seed in zip(unknown, free, strict=False):
            run.seed = seed
        if unknown and len(group) > 1:
            order = ", ".join(f"{run.name or run.table.source} is {run.seed}" for run in unknown)
            notes.append(f"seeds of B_p = {B_p}, n = {n} are numbered in the order given: {order}")
    return notes


def _refuse_copies(runs: Sequence[RunRecord]) -> None:
    """One run counted as two seeds, be it from two of its checkpoints, would make every interval too narrow."""
    for i, a in enumerate(runs):
        for b in runs[:i]:
            shared = min(len(a.points), len(b.points))
            if (a.cell.B_p, a.cell.n) == (b.cell.B_p, b.cell.n) and shared > 1 and a.points[:shared] == b.points[:shared]:
                cell = f"B_p = {a.cell.B_p}, n = {a.cell.n}"
                raise InputError(f"{b.source} and {a.source} hold the same run of {cell}, as far as both go; leave one out.")
