"""In which order a sweep's rollouts are spent: all cells to the budget, or round by round where n*(C) is least certain. No jax here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from isojax.config import Config
from isojax.files import write_text
from isojax.launch.display import console
from isojax.records import RECORDS, read_run
from isojax.types import Cell, InputError, RunRecord

if TYPE_CHECKING:
    from isojax.scaling.adaptive import Frontier

SUMMARY = "frontier.json"


class Goal(NamedTuple):
    """A cell that is to be trained up to C rollouts."""

    cell: Cell
    C: int


def rounds(config: Config, cells: Sequence[Cell], folder: Path, failed: Sequence[tuple[Cell, Exception]]) -> Iterator[list[Goal]]:
    """What is to be trained side by side, one list after another; each is asked for when the one before has ended.

    `failed`: cells that have failed since, which are not asked for again; the caller adds to it.

    Raises:
        InputError: as `check`.
    """
    sweep = config.sweep
    if sweep.strategy == "grid":
        yield [Goal(cell, sweep.budget) for cell in cells]
        return
    policy = frontier(config, cells)
    while wanted := policy.next(_runs(cells, folder, failed)):
        yield [Goal(*one) for one in wanted]
    summary = policy.summary(_runs(cells, folder, failed))
    write_text(folder / SUMMARY, json.dumps(summary, indent=1) + "\n")
    spent, saved = f"{summary['spent']:,} rollouts spent of the {summary['grid']:,} of the whole grid", f"{summary['saved']:.0%} saved"
    console.print(f"frontier: {spent}, {saved} ({folder / SUMMARY})", soft_wrap=True, highlight=False)


def check(config: Config, cells: Sequence[Cell]) -> None:
    """InputError where strategy frontier has too few evaluations or rollouts to begin with, or a grid is given rollouts."""
    if config.sweep.strategy == "frontier":
        frontier(config, cells)
    elif config.sweep.rollouts is not None:
        raise InputError(
            f"sweep.rollouts = {config.sweep.rollouts} with sweep.strategy=grid, which spends sweep.budget on each cell; expected "
            "sweep.strategy=frontier, or sweep.budget alone."
        )


def frontier(config: Config, cells: Sequence[Cell]) -> Frontier:
    """The policy of a sweep; raises as `check`."""
    from isojax.scaling.adaptive import Frontier  # loads scipy's optimizers, which a grid does without

    grid = config.cell.eval.grid(config.sweep.budget)
    return Frontier(cells, grid, config.sweep.rollouts, f"avg@{config.cell.eval.samples}")


def _runs(cells: Sequence[Cell], folder: Path, failed: Sequence[tuple[Cell, Exception]]) -> list[RunRecord]:
    """What is recorded so far."""
    why, found = {cell: str(error) for cell, error in failed}, []
    for cell in cells:
        own = folder / "cells" / cell.name
        try:
            run = read_run(own) if (own / RECORDS).exists() else RunRecord(cell, ())
        except InputError:  # killed before its first point
            run = RunRecord(cell, ())
        found.append(replace(run, failed=why[cell]) if cell in why else run)
    return [run for run in found if run.points or run.failed]
