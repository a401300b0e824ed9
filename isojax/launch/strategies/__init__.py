"""Strategies, which decide how a sweep's rollouts are spent: `make(config, cells) -> CellStrategy`,
one file each, with the decorator `@strategy`. `sweep.strategy` names one of this folder, or a file
or module of yours.

A strategy is asked for one round of runs after the other (launch/rounds.py). It answers by the
`SweepHistory` alone, so that a sweep that was killed goes on as if it had not been."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from isojax.core.config import Config
from isojax.core.nouns import Cell, RunRecord
from isojax.core.plugins import PluginKind
from isojax.core.schedule import Stage
from isojax.launch.rounds import RoundStrategy
from isojax.runs.ledger import read_run, recorded_points


@dataclass(frozen=True)
class StrategyTraits:
    """What a strategy says of itself in its decorator."""

    # Whether its rounds are written to rounds.json, by which --resume completes a round that a kill
    # has interrupted, before the strategy is asked. False for one that knows from the config or
    # from a file of its own what is trained next.
    records_rounds: bool = True


strategy = PluginKind("strategy", "launch.strategies", StrategyTraits)


class CellTarget(NamedTuple):
    """A cell, that is one run of the sweep, that is to be trained up to C rollouts."""

    cell: Cell
    C: int
    stages: tuple[Stage, ...] = ()  # those so far, where `isojax spend` chooses them; else ()

    @property
    def cell_so_far(self) -> Cell:
        return self.cell.with_stages(self.stages) if self.stages else self.cell

    def rollouts(self, config: Config) -> int:
        """C after the update that reaches the last evaluation up to the target."""
        return self.cell_so_far.rollouts_to_reach(config.run_targets(self.C)[-1])


@dataclass(frozen=True)
class SweepHistory:
    """What is recorded of a sweep when its strategy is asked. Ledgers are read once they are
    needed."""

    cells: Sequence[Cell]  # all that the config plans
    folder: Path  # the sweep's
    # that are in rounds.json; of a strategy that does not record them, those of this process
    rounds: int
    failures: Mapping[Cell, str]  # why runs failed in this process

    @cached_property
    def runs(self) -> list[RunRecord]:
        """The runs that have an evaluation or failed; the reason is in their `failure_reason`.

        InputError where a ledger cannot be used.
        """
        runs = []
        for cell in self.cells:
            run = self._ledgers.get(cell, RunRecord(cell, ()))
            run = replace(run, failure_reason=self.failures.get(cell, run.failure_reason))
            if run.points or run.failure_reason:
                runs.append(run)
        return runs

    @cached_property
    def diverged(self) -> frozenset[Cell]:
        """Of whose runs a ledger says that updates were not finite: --resume cannot help them."""
        return frozenset(cell for cell, run in self._ledgers.items() if run.failure_reason)

    @cached_property
    def _ledgers(self) -> dict[Cell, RunRecord]:
        """The runs that have an evaluation, as their ledgers have them."""
        folders = {cell: self.folder / "cells" / cell.name for cell in self.cells}
        return {
            cell: read_run(folder)
            for cell, folder in folders.items()
            if recorded_points(folder).points  # `read_run` refuses a ledger without any
        }


CellStrategy = RoundStrategy[CellTarget, SweepHistory]
