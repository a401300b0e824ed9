"""In which order a sweep's rollouts are spent: all cells to the budget, or where n*(C) is least certain."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from isojax.core.atomic_files import write_text
from isojax.core.config import Config
from isojax.core.errors import InputError, RunFailed
from isojax.core.nouns import Cell, RunRecord
from isojax.launch.display import print_line
from isojax.runs.ledger import RECORDS_FILE, read_run
from isojax.scaling.adaptive import AdaptivePolicy

SUMMARY_FILE = "frontier.json"


class CellTarget(NamedTuple):
    """A cell that is to be trained up to C rollouts."""

    cell: Cell
    C: int


def training_rounds(
    config: Config, cells: Sequence[Cell], folder: Path, failures: Sequence[tuple[Cell, Exception]]
) -> Iterator[list[CellTarget]]:
    """What is to be trained at the same time, list after list; the caller adds cells that failed to `failures`."""
    sweep = config.sweep
    if sweep.strategy == "grid":
        yield [CellTarget(cell, sweep.budget) for cell in cells]
        return
    policy = adaptive_policy(config, cells)
    while next_targets := policy.next_round(_recorded_runs(cells, folder, failures)):
        yield [CellTarget(*target) for target in next_targets]
    summary = policy.summary(_recorded_runs(cells, folder, failures))
    write_text(folder / SUMMARY_FILE, json.dumps(summary, indent=1) + "\n")
    print_line(
        f"frontier: {summary['spent']:,} rollouts spent of the {summary['grid']:,} of the whole grid, "
        f"{summary['saved']:.0%} saved ({folder / SUMMARY_FILE})"
    )


def check(config: Config, cells: Sequence[Cell]) -> None:
    """InputError where the adaptive strategy has too few evaluations or rollouts, or a grid is given rollouts."""
    if config.sweep.strategy == "adaptive":
        adaptive_policy(config, cells)
    elif config.sweep.total_rollouts is not None:
        raise InputError(
            f"sweep.total_rollouts = {config.sweep.total_rollouts} with sweep.strategy=grid, "
            "which spends sweep.budget on each cell; expected sweep.strategy=adaptive, or sweep.budget alone."
        )


def adaptive_policy(config: Config, cells: Sequence[Cell]) -> AdaptivePolicy:
    targets = config.cell.eval.evaluation_targets(config.sweep.budget)
    return AdaptivePolicy(cells, targets, config.sweep.total_rollouts, f"avg@{config.cell.eval.samples}")


def _recorded_runs(cells: Sequence[Cell], folder: Path, failures: Sequence[tuple[Cell, Exception]]) -> list[RunRecord]:
    failure_reasons, runs = {cell: str(error) for cell, error in failures}, []
    for cell in cells:
        cell_folder = folder / "cells" / cell.name
        run = RunRecord(cell, ())
        if (cell_folder / RECORDS_FILE).exists():
            with suppress(InputError):  # killed before its first point
                run = read_run(cell_folder)
        runs.append(replace(run, failure_reason=failure_reasons.get(cell, run.failure_reason)))
    return [run for run in runs if run.points or run.failure_reason]


def raise_cell_failures(failures: Sequence[tuple[Cell, Exception]], num_cells: int, folder: Path) -> None:
    """Raise one error for all cells that failed: an InputError where every cell failed by one, else RunFailed."""
    if not failures:
        return
    if len(failures) == num_cells and all(isinstance(error, InputError) for _, error in failures):
        raise InputError(" ".join(dict.fromkeys(str(error) for _, error in failures)))
    errors = [f"{cell.name}: {error}" for cell, error in failures]
    if num_cells == 1:
        raise RunFailed(errors[0])
    summary = f"{len(failures)} of {num_cells} cells failed; the others are recorded in {folder}."
    raise RunFailed("\n  ".join([summary, *errors]))
