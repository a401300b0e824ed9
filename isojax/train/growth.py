"""When n grows: at the C of a schedule's stages, or when the gradients of successive updates no longer agree.

The inner product of an update's gradient with Adam's mean of the gradients before it, over its own square, estimates
which share of it is signal: its noise is independent of theirs. The share falls as training goes on, and is 0 where
steps of this size and noise lead nowhere (Pflug's test for a constant step, Chee and Toulis, arXiv:1710.06382). A
larger n has less noise. Its inverse, times B, is the noise scale of McCandlish et al. (arXiv:1812.06162)."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from isojax.core.nouns import Cell
from isojax.core.schedule import Stage
from isojax.rl.metric import Metrics

SIGNAL_SHARE = 0.005  # of the gradient's square: n doubles where no more of it is signal
UPDATES = 32  # over which the share is averaged, by exponential decay; as many at least come before a decision
CHECK_EVERY = 8  # updates
SIGNAL_METRICS = ("grad_signal", "grad_square")  # what the update must measure (rl/train_step.py)


@dataclass
class GradientSignal:
    """The share of signal in the gradients of the last updates of a stage."""

    signal: float = 0.0  # decayed sums over updates
    square: float = 0.0
    updates: int = 0  # of this stage

    def add(self, metrics: Metrics, count: int) -> None:
        """The metrics of `count` updates."""
        decay = (1 - 1 / UPDATES) ** count
        self.signal = self.signal * decay + metrics["grad_signal"].sum
        self.square = self.square * decay + metrics["grad_square"].sum
        self.updates += count

    @property
    def is_spent(self) -> bool:
        """Whether too little of the gradient is signal, at an update at which that is decided."""
        enough = self.updates >= UPDATES and self.updates % CHECK_EVERY == 0
        return enough and self.signal < SIGNAL_SHARE * self.square

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
