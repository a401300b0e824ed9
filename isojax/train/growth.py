"""When n grows by gradient: when the gradients of successive updates no longer agree.

The inner product of an update's gradient with Adam's mean of the gradients before it estimates the square of what they
have in common, for their noises are independent; over the gradient's own square it is the share that is signal, B over
the noise scale of McCandlish et al. (arXiv:1812.06162). It falls as training goes on. Where it is not positive, steps
of this noise lead nowhere (Pflug's test, by which Chee and Toulis, arXiv:1710.06382, end a constant learning rate), and
a larger n has less noise."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from isojax.core.nouns import Cell
from isojax.core.schedule import Stage
from isojax.rl.metric import Metrics

UPDATES = 32  # over which signal is averaged, by exponential decay; as many at least come before a decision
CHECK_EVERY = 8  # updates


@dataclass
class GradientSignal:
    """How far the gradients of a stage's last updates agree."""

    signal: float = 0.0  # the decayed sum of `grad_signal` (rl/train_step.py)
    updates: int = 0  # of this stage

    def add(self, metrics: Metrics, count: int) -> None:
        """The metrics of `count` updates."""
        self.signal = self.signal * (1 - 1 / UPDATES) ** count + metrics["grad_signal"].sum
        self.updates += count

    @property
    def has_vanished(self) -> bool:
        """Whether the gradients no longer agree, at an update at which that is decided."""
        return self.updates >= UPDATES and self.updates % CHECK_EVERY == 0 and self.signal <= 0

    def updates_to_check(self) -> int:
        """How many updates there are until the next decision."""
        return CHECK_EVERY - self.updates % CHECK_EVERY


def growth_state(cell: Cell, growth: GradientSignal) -> dict[str, Any] | None:
    """What a checkpoint holds of a run whose n the gradient decides: its stages so far, and the signal."""
    return {"stages": [list(stage) for stage in cell.stages], "signal": asdict(growth)} if cell.n_max else None


def read_growth(saved: Mapping[str, Any] | None) -> GradientSignal:
    """The signal as `growth_state` saved it."""
    return GradientSignal(**saved["signal"]) if saved else GradientSignal()


def with_next_stage(cell: Cell, C: int) -> Cell:
    """The cell with twice its n from C rollouts on."""
    last = cell.stages[-1]
    return cell.with_stages((*cell.stages, Stage(C, last.B_p, 2 * last.n)))
