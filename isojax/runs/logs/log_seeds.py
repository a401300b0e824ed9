"""Runs of logs as records: a seed for each run, one validation metric for all, and no run counted twice."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from isojax.core.errors import InputError
from isojax.core.nouns import Cell, RunRecord
from isojax.runs.logs.log_evaluations import read_evaluations
from isojax.runs.logs.log_runs import LogRun


def to_run_records(runs: Sequence[LogRun]) -> tuple[list[RunRecord], list[str]]:
    """Every run as a record, sorted by cell, and what was assumed.

    Runs of one (B_p, n) without a seed get 0, 1, ... in order; so do runs in logs of their own whose settings repeat
    one seed.

    Raises:
        InputError: as `read_evaluations`, two runs with one (B_p, n, seed), or the same run twice.
    """
    notes = [*_reject_different_metrics(runs), *_assign_seeds(runs)]
    run_records = []
    for run in runs:
        assert run.seed is not None
        cell = Cell(run.B_p, run.n, run.seed)
        evaluations = read_evaluations(run.rows, run.column_map, cell)
        label = f"{run.location}{f' (run {run.name!r})' if run.name else ''}"
        notes += [f"{label}: {text}" for text in evaluations.notes]
        run_records.append(RunRecord(cell, evaluations.points, run.location, evaluations.device_hours, "imported"))
    _reject_copies(run_records)
    return sorted(run_records, key=lambda run: run.cell), notes


def _reject_different_metrics(runs: Sequence[LogRun]) -> list[str]:
    """Refuse runs whose validation metrics have different names; notes where one name stands for different columns."""
    run_by_metric = {}
    for run in reversed(runs):
        field = run.column_map.main_metric
        run_by_metric[run.column_map.ledger_name(field), run.column_map.columns[field]] = run
    if len({name for name, _ in run_by_metric}) > 1:
        metrics_text = " and ".join(f"{name} ({run.table.source})" for (name, _), run in run_by_metric.items())
        raise InputError(
            f"the runs have different validation metrics: {metrics_text}; expected one. Name it for all: --map"
            " avg@4=COLUMN."
        )
    if len(run_by_metric) > 1:
        return [f"{name} is read from {column} in {run.table.source}" for (name, column), run in run_by_metric.items()]
    return []


def _assign_seeds(runs: Sequence[LogRun]) -> list[str]:
    """Give each run its seed; notes where the seeds had to be numbered."""
    notes = []
    cells: dict[tuple[int, int], list[LogRun]] = defaultdict(list)
    for run in runs:
        cells[run.B_p, run.n].append(run)
    for (B_p, n), cell_runs in cells.items():
        _forget_default_seeds(cell_runs)
        taken_seeds = _reject_equal_seeds(cell_runs)
        unseeded_runs = [run for run in cell_runs if run.seed is None]
        free_seeds = (seed for seed in range(len(cell_runs)) if seed not in taken_seeds)
        for run, seed in zip(unseeded_runs, free_seeds, strict=False):
            run.seed = seed
        if unseeded_runs and len(cell_runs) > 1:
            numbering = ", ".join(f"{run.name or run.table.source} is {run.seed}" for run in unseeded_runs)
            notes.append(f"seeds of B_p = {B_p}, n = {n} are numbered in the order given: {numbering}")
    return notes


def _forget_default_seeds(cell_runs: Sequence[LogRun]) -> None:
    """A seed that several logs of one run each repeat is a trainer's default, which does not tell them apart."""
    seed_counts = Counter(run.seed for run in cell_runs if run.seed is not None)
    for run in cell_runs:
        is_default = run.table.one_run and "seed" in run.column_map.detected
        if run.seed is not None and seed_counts[run.seed] > 1 and is_default:
            run.seed = None


def _reject_equal_seeds(cell_runs: Sequence[LogRun]) -> set[int]:
    """The seeds of one cell's runs; InputError where two runs have the same, by --map or by a column of a file of many
    runs.
    """
    run_by_seed: dict[int, LogRun] = {}
    for run in cell_runs:
        if run.seed is None:
            continue
        earlier_run = run_by_seed.setdefault(run.seed, run)
        if earlier_run is not run:
            raise InputError(
                f"two runs with B_p = {run.B_p}, n = {run.n}, seed = {run.seed}: {earlier_run.location} and"
                f" {run.location}; expected one. Give each its seed, or leave one out."
            )
    return set(run_by_seed)


def _reject_copies(runs: Sequence[RunRecord]) -> None:
    """One run counted as two seeds, be it from two of its checkpoints, would make every interval too narrow."""
    for i, a in enumerate(runs):
        for b in runs[:i]:
            shared = min(len(a.points), len(b.points))
            same_cell = (a.cell.B_p, a.cell.n) == (b.cell.B_p, b.cell.n)
            if same_cell and shared > 1 and a.points[:shared] == b.points[:shared]:
                raise InputError(
                    f"{b.source} and {a.source} hold the same run of B_p = {a.cell.B_p}, n = {a.cell.n}, as far as both"
                    " go; leave one out."
                )
