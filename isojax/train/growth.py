"""When n grows by gradient: when nothing shows that the gradients of successive updates agree.

The inner product of an update's gradient with Adam's mean of the gradients before it estimates the
square of what they have in common, for their noises are independent; over the gradient's own square
it is the share that is signal, B over the noise scale of McCandlish et al. (arXiv:1812.06162). It
falls as training goes on. Where it is not positive, steps of this noise lead nowhere (Pflug's test,
by which Chee and Toulis, arXiv:1710.06382, end a constant learning rate), and a larger n has less
noise. n doubles after C has tripled, unless the signal is clearly positive; early, after C has
doubled, when it is clearly negative, so that steps undo a part of those before them. It stays where
few groups are mixed (have unequal rewards), so that of twice their size about half or fewer would
be: their problems are solved or too hard, and other problems help more than more rollouts."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from isojax.core.nouns import Cell
from isojax.core.schedule import Stage
from isojax.rl.metric import Metrics

CHECK_EVERY = 8  # updates between two decisions on n
MIN_GROUPS = 256  # of a stage before n doubles early; mixed ones, before it doubles otherwise
# standard errors of the signal's mean, above or below zero, from which it is clearly so
CLEAR = 2.0
# The share of groups with unequal rewards, below which n stays: of twice their size it would be
# about 1 - (1 - 0.3)^2 = 0.51.
MIN_MIXED = 0.3


@dataclass
class GradientSignal:
    """How far the gradients of a stage's last updates agree: on average over those since C was half
    of what it is.

    A stage is the updates of a run with one n; B_p stays. A group is the n rollouts of one problem;
    it is mixed if its rewards differ. Checkpoints hold the fields by name (`growth_state`).
    """

    # updates of this stage's size that the rollouts before the stage would make, so that C is
    # (earlier + updates) B_p n
    earlier: int = 0
    updates: int = 0  # of this stage
    groups: float = 0.0  # mixed groups of this stage
    mixed: float = 0.0  # the mean share of groups that are mixed, 0 to 1
    signal: float = 0.0  # the mean of `grad_signal` (rl/train_step.py)
    signal_square: float = 0.0  # the mean of `grad_signal_square`

    @property
    def _window(self) -> float:
        """Over how many updates the means are: those since C was half of what it is.

        They are more where these have fewer than MIN_GROUPS mixed groups or are fewer than
        CHECK_EVERY, but never more than the stage has.
        """
        min_updates = self.updates * MIN_GROUPS / max(1.0, self.groups)
        return min(self.updates, max(CHECK_EVERY, min_updates, (self.earlier + self.updates) / 2))

    def add(self, metrics: Metrics, count: int, B_p: int) -> None:
        """Take in the metrics of `count` updates, of which only sums are known.

        metrics: has "zero_variance", "grad_signal" and "grad_signal_square", each with the sum over
        these updates. The means are moving averages, so that older updates count less and less.
        """
        # metrics["zero_variance"] is the share of groups that are not mixed, summed over the
        # updates; `mixed` here is the sum of the shares that are.
        mixed = count - metrics["zero_variance"].sum
        self.updates += count
        self.groups += B_p * mixed

        weight = count / max(count, self._window)
        self.mixed += weight * (mixed / count - self.mixed)
        self.signal += weight * (metrics["grad_signal"].sum / count - self.signal)
        self.signal_square += weight * (
            metrics["grad_signal_square"].sum / count - self.signal_square
        )

    def has_faded(self, B_p: int) -> bool:
        """Whether the gradients agree too little, so that n is to double.

        False at an update at which that is not decided: all but every CHECK_EVERY-th, and those
        before C has doubled in this stage and it has MIN_GROUPS groups.
        """
        # C has doubled since the stage began: `earlier` updates of this size came before it.
        has_doubled = self.updates >= self.earlier
        has_groups = self.updates * B_p >= MIN_GROUPS  # mixed or not
        is_due = has_doubled and has_groups and self.updates % CHECK_EVERY == 0
        if not is_due or self.mixed < MIN_MIXED:
            return False

        variance = max(0.0, self.signal_square - self.signal**2)
        standard_error = math.sqrt(variance / max(1.0, self._window))
        # Once C has tripled (earlier + updates >= 3 earlier), and MIN_GROUPS mixed groups are
        # there, whatever is not clearly positive has faded; before, only what is clearly negative.
        has_tripled = self.updates >= 2 * self.earlier
        is_late = has_tripled and self.groups >= MIN_GROUPS
        limit = CLEAR * standard_error
        return self.signal < (limit if is_late else -limit)

    def updates_to_check(self) -> int:
        """Updates until it is decided again whether n grows: from 1 to CHECK_EVERY."""
        return CHECK_EVERY - self.updates % CHECK_EVERY


def growth_state(cell: Cell, growth: GradientSignal) -> dict[str, Any] | None:
    """What a checkpoint holds of a run whose n the gradient decides; None for any other run.

    {"stages": [[C, B_p, n], ...] so far, "signal": the fields of `growth`}.
    """
    if not cell.n_max:
        return None
    return {"stages": [list(stage) for stage in cell.stages], "signal": asdict(growth)}


def choose_n(cell: Cell, growth: GradientSignal) -> int:
    """The n to go on with: the present one, or twice as much, but never more than `cell.n_max`."""
    stage = cell.stages[-1]
    doubled = 2 * stage.n
    return doubled if doubled <= cell.n_max and growth.has_faded(stage.B_p) else stage.n


def next_stage(cell: Cell, C: int, n: int) -> tuple[Cell, GradientSignal]:
    """The cell with another n from C rollouts on, and a fresh signal for that stage."""
    stage = Stage(C, cell.stages[-1].B_p, n)
    signal = GradientSignal(earlier=C // (stage.B_p * stage.n))
    return cell.with_stages((*cell.stages, stage)), signal
