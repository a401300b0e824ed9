"""sweep.strategy=grid: every run of the grid to sweep.budget."""

from collections.abc import Sequence
from dataclasses import dataclass

from isojax.core.config import Config
from isojax.core.errors import InputError
from isojax.core.nouns import Cell
from isojax.launch.rounds import Round, Stop
from isojax.launch.strategies import CellTarget, SweepHistory, strategy


@dataclass(frozen=True)
class GridStrategy:
    """One round of all cells."""

    cells: Sequence[Cell]
    budget: int  # C of each

    def ask(self, history: SweepHistory) -> Round[CellTarget] | Stop:
        if history.rounds:
            return Stop("every run has reached sweep.budget, or has failed")
        return Round(tuple(CellTarget(cell, self.budget) for cell in self.cells))


@strategy(records_rounds=False)
def grid(config: Config, cells: Sequence[Cell]) -> GridStrategy:
    """InputError where sweep.total_rollouts is set."""
    sweep = config.sweep
    if sweep.total_rollouts is not None:
        raise InputError(
            where="sweep.total_rollouts",
            found=(
                f"given {sweep.total_rollouts} with sweep.strategy=grid, "
                "which spends sweep.budget on each run"
            ),
            expected="sweep.strategy=adaptive, or sweep.budget alone",
        )
    return GridStrategy(cells, sweep.budget)
