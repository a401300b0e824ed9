"""After which updates a cell is evaluated: one grid of C, the same for every (B_p, n)."""

from pathlib import Path

from isojax.core.config import Config
from isojax.core.nouns import Cell
from isojax.distributed import multiprocess
from isojax.train.checkpoint import has_checkpoint
from isojax.train.outputs import CHECKPOINT_FOLDER, PointLedger


def make_eval_grid(config: Config, cell: Cell) -> list[int]:
    """The values of C at which a cell is evaluated: the shared grid, up to what the last update reaches beyond the
    budget, so that a target does not depend on the budget."""
    evaluation = config.cell.eval
    last_target = evaluation.evaluation_targets(config.sweep.budget)[-1]
    return evaluation.evaluation_targets(updates_to_reach(last_target, cell.B) * cell.B)


def updates_to_reach(target: int, B: int) -> int:
    """The updates of B rollouts after which C >= target."""
    return -(-target // B)


def is_finished(config: Config, cell: Cell, folder: Path, ledger: PointLedger | None) -> bool:
    """Whether a cell is recorded and saved up to the sweep's budget; all processes agree on it."""
    eval_grid = make_eval_grid(config, cell)
    recorded_targets = multiprocess.broadcast(ledger.targets if ledger else [])
    if not recorded_targets or recorded_targets[-1] < eval_grid[-1]:
        return False
    last_update = updates_to_reach(eval_grid[-1], cell.B)  # a kill may have come between its evaluation and its state
    return multiprocess.run_on_primary(lambda: has_checkpoint(folder / CHECKPOINT_FOLDER, last_update))
