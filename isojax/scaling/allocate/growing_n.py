"""Runs whose n changes on the way, from the curves of runs with a fixed n. The model: what a policy
learns next depends on its reward alone, so that after a change it rises as a run of the new n does
from that reward on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from isojax.core.errors import InputError
from isojax.core.estimators import FloatArray
from isojax.core.nouns import Interval
from isojax.core.schedule import Stage, schedule_text
from isojax.scaling.allocate.curve_ensemble import CurveEnsemble, IntArray
from isojax.scaling.allocate.recommendation import GrowingRun
from isojax.scaling.intervals import central_band

BUDGETS = 256  # of the grid of C on which the draws are tabulated
# It reaches up to so many times the end: a slow cell has a run's reward only after more rollouts
# than the run has spent.
HORIZON_FACTOR = 4.0
REWARDS = 400  # of the grid of rewards on which the fastest n is chosen
LAST_SWITCH = 0.9  # of the budget: later switches change nothing
RECENT = 5  # evaluations that say how far a run is from its cell's curve
# of reward, and the probability that there is any: from there on, raising n is advised
RAISE_GAIN = 0.005
RAISE_PROBABILITY = 0.8


@dataclass(frozen=True)
class NOption:
    """What a run gains if it goes on with this n, which the sweep measured at the run's B_p, over
    going on with the n that it has."""

    B_p: int
    n: int
    reward: float  # expected at the end
    interval: Interval | None
    gain: float  # of reward, over going on as it is
    gain_interval: Interval | None
    p_better: float
    # wall clock of the rollouts that are left; None where the cell has no clock
    hours: float | None
    device_hours: float | None


class CellStage(NamedTuple):
    """A stage of a run: from C rollouts on it has the B_p and n of this cell (an index)."""

    C: float
    cell: int


@dataclass(frozen=True)
class CurveTable:
    """The draws' curves on a grid of C, to look up how a run rises that changes its cell."""

    log_C: FloatArray  # [budgets]
    rewards: FloatArray  # [budgets, replicates, cells], rising

    @staticmethod
    def of(ensemble: CurveEnsemble, C_end: float) -> "CurveTable":
        """The table of all cells' curves, for runs to C_end; InputError for a fit without draws."""
        if not ensemble.replicates:
            raise InputError(
                found="this fit has no draws of its curves",
                expected="mode hierarchical, --replicates above 0",
            )
        C_start = 0.01 * float(ensemble.samples.C_low.min())
        C = np.geomspace(C_start, HORIZON_FACTOR * C_end, BUDGETS)
        rewards = ensemble.sampled_at_cell_budgets(C[:, None], on_sweep_problems=True)
        return CurveTable(np.log(C), np.maximum.accumulate(rewards, axis=0))

    def go_on(self, cell: int, rewards: FloatArray, C_more: float) -> FloatArray:
        """The rewards of a run after C_more more rollouts in a cell, float[replicates].

        rewards: those it has now, float[replicates], one in each draw of the curves; cell: an index
        of the table's last axis. By the model, the run goes on as a run of the cell does from the
        same reward on. A reward above the whole curve of the cell stays as it is."""
        after = np.empty_like(rewards)
        for q, reward in enumerate(rewards):
            curve = self.rewards[:, q, cell]
            # the C at which a run that always had this cell has that reward
            C_now = np.exp(np.interp(reward, curve, self.log_C))
            after[q] = max(reward, np.interp(np.log(C_now + C_more), self.log_C, curve))
        return after


def compare_n(
    ensemble: CurveEnsemble, B_p: int, n: int, C: FloatArray, R: FloatArray, C_end: float
) -> list[NOption]:
    """What a run of (B_p, n) would reach at C_end if it went on with each n measured at its B_p.

    C, R: float[points], the run's evaluations, C > 0 rising, and their rewards; C_end: rollouts,
    raised to the last C where it is less. Gives the options by rising n, that of the run's n
    included, whose gain is 0. InputError where the fit has no replicates, or no cell (B_p, n)."""
    own_cell = next((i for i, c in enumerate(ensemble.curves) if c.key == (B_p, n)), None)
    if own_cell is None:
        measured = ", ".join(f"{c.B_p}x{c.n}" for c in ensemble.curves)
        raise InputError(
            found=f"the run has B_p x n = {B_p}x{n}, and the sweep measured {measured}",
            expected="one of these",
        )

    # The run's reward now is its cell's curve, moved by how far its last evaluations are from it:
    # less noisy than the last evaluation alone.
    expected = ensemble.expected_rewards(C[-RECENT:])[:, own_cell]
    offset = float(np.mean(R[-RECENT:] - expected))
    reward = float(ensemble.expected_rewards(C[-1])[own_cell]) + offset

    C_done = float(C[-1])
    C_end = max(C_end, C_done)
    C_left = C_end - C_done
    table = CurveTable.of(ensemble, C_end)
    now = np.full(ensemble.replicates, reward)
    as_it_is = table.go_on(own_cell, now, C_left)  # the end with the n that the run has

    options = []
    for i in np.flatnonzero(ensemble.B_p == B_p).tolist():
        end = table.go_on(i, now, C_left)
        gain = end - as_it_is
        low, high = map(float, central_band(gain))
        hours = ensemble.predict_hours(i, C_end, C_done)
        option = NOption(
            B_p=int(ensemble.B_p[i]),
            n=int(ensemble.n[i]),
            reward=float(end.mean()),
            interval=ensemble.interval(end),
            gain=float(gain.mean()),
            gain_interval=(low, high),
            p_better=float(np.mean(gain > 0)),
            hours=hours.wall_clock,
            device_hours=hours.of_devices,
        )
        options.append(option)
    return options


def plan_growing_run(
    ensemble: CurveEnsemble, cell: int, C_end: float, B_max: int | None
) -> GrowingRun | None:
    """A run whose n grows on the way to C_end, and what it gains over the fixed n of a cell.

    cell: an index of ensemble.curves; C_end: rollouts. At each reward the run has the n, of the
    stable cells with this B_p and at most B_max rollouts per batch (None: no limit), whose expected
    curve rises fastest there. None where that gains nothing, n never changes, the cell is unstable
    or above B_max, or the fit has no replicates."""
    cells = np.flatnonzero((ensemble.B_p == ensemble.B_p[cell]) & ensemble.stable)
    cells = cells[ensemble.B[cells] <= (B_max or ensemble.B.max())]
    if not ensemble.replicates or len(cells) < 2 or cell not in cells:
        return None
    table = CurveTable.of(ensemble, C_end)
    stages = _fastest_cells(table, cells, C_end)
    if len(stages) < 2:
        return None

    # Each draw's run goes through the stages from the reward of the base policy.
    # The lowest of all cells at the table's first C, a hundredth of the smallest measured one,
    # stands for it.
    rewards = table.rewards[0].min(1)  # float[replicates]
    C_of_next = [*(stage.C for stage in stages[1:]), C_end]
    for stage, C_next in zip(stages, C_of_next, strict=True):
        rewards = table.go_on(stage.cell, rewards, C_next - stage.C)

    # The same draws, on the same problems, as the table's curves.
    cell_budgets = np.full(len(ensemble.n), C_end)
    fixed = ensemble.sampled_at_cell_budgets(cell_budgets, on_sweep_problems=True)[:, cell]
    gain = rewards - fixed
    if gain.mean() <= 0:
        return None

    low, high = map(float, central_band(gain))
    whole_stages = _whole_stages(stages)
    batches = _batches_of_stages(ensemble, whole_stages, C_end)
    return GrowingRun(
        schedule=schedule_text(
            [Stage(C, int(ensemble.B_p[i]), int(ensemble.n[i])) for C, i in whole_stages.items()]
        ),
        expected_reward=float(rewards.mean()),
        gain=float(gain.mean()),
        gain_interval=(low, high),
        p_better=float(np.mean(gain > 0)),
        batches=() if set(batches) == {1.0} else batches,
    )


def _whole_stages(stages: Sequence[CellStage]) -> dict[int, int]:
    """The cell of each stage by the whole C at which it begins, such as {0: 3, 5000: 4}.

    Of stages that begin at the same rounded C the last counts. C rises, as in `stages`."""
    return {round(stage.C): stage.cell for stage in stages}


def _batches_of_stages(
    ensemble: CurveEnsemble, cell_by_C: dict[int, int], C_end: float
) -> tuple[float, ...]:
    """How many batches of B_p n rollouts an update of each stage takes on average.

    cell_by_C: the stages by rising C, as `_whole_stages` gives them; the last ends at C_end."""
    stage_ends = [*list(cell_by_C)[1:], C_end]
    return tuple(
        ensemble.counts[cell].batches(end, C)
        for (C, cell), end in zip(cell_by_C.items(), stage_ends, strict=True)
    )


def _fastest_cells(table: CurveTable, cells: IntArray, C_end: float) -> list[CellStage]:
    """The stages of the run that climbs fastest: the cells it goes through, by rising C.

    From each reward it goes on in the cell that takes the fewest rollouts to the next of a grid of
    rewards; n never falls. cells: indices of the table's last axis, by rising n, which must be so.
    The first stage begins at C = 0; none begins after LAST_SWITCH of C_end."""
    curves = table.rewards.mean(1)[:, cells]  # [budgets, cells]
    rewards = np.linspace(curves[0].min(), curves[-1].max(), REWARDS)
    # the C at which each cell has each reward, [rewards, cells]; infinite above its curve
    log_C = [np.interp(rewards, curve, table.log_C, right=np.inf) for curve in curves.T]
    C = np.exp(np.stack(log_C, axis=1))
    # A step above a cell's whole curve costs it infinity less infinity, NaN: counted as infinite.
    with np.errstate(invalid="ignore"):
        cost = np.nan_to_num(np.diff(C, axis=0), nan=np.inf)  # of the next step of reward

    # [rewards - 1]; the running maximum keeps n from falling, since cells are in order of n
    fastest = np.maximum.accumulate(cost.argmin(1))

    stages: list[CellStage] = []
    spent = 0.0
    for step, j in enumerate(fastest):
        if not stages or stages[-1].cell != cells[j]:
            stages.append(CellStage(spent, int(cells[j])))
        spent += float(cost[step, j])
        if spent >= C_end:
            break
    return [stage for stage in stages if stage.C <= LAST_SWITCH * C_end]


def best_n_stages(ensemble: CurveEnsemble, B_p: int, ahead: float, C_end: float) -> list[Stage]:
    """A schedule that has, at each C up to C_end, the n that is best at `ahead` times C rollouts.

    The best n is that of the highest expected curve at this B_p. ahead = 1 follows n*(C); a larger
    value, such as 2, changes n earlier. Gives stages by rising C, such as [Stage(C=0, B_p=32, n=4),
    Stage(C=5000, B_p=32, n=8)]; each has another n than the one before. InputError for a B_p that
    was not measured."""
    cells = np.flatnonzero(ensemble.B_p == B_p)
    if not len(cells):
        raise InputError(
            found=f"the fit has no B_p = {B_p}",
            expected=f"one of {sorted(set(ensemble.B_p.tolist()))}",
        )

    C = np.geomspace(min(float(ensemble.samples.C_low.min()), C_end), C_end, BUDGETS)
    rewards = ensemble.expected_rewards(ahead * C)[:, cells]
    n = ensemble.n[cells][rewards.argmax(1)]  # [budgets]
    stages = [Stage(0, B_p, int(n[0]))]
    for i in range(1, len(C)):
        if n[i] != n[i - 1]:
            stages.append(Stage(round(C[i]), B_p, int(n[i])))
    return stages


def n_to_raise_to(options: list[NOption], n: int) -> NOption | None:
    """The option with the n to raise a run's n to; None where no larger n is worth it.

    options: as `compare_n` gives them; n: the one that the run has. Worth it are larger n whose
    mean gain is RAISE_GAIN or more, and which gain at all with probability RAISE_PROBABILITY; of
    these the one with the highest gain is taken."""
    larger = [
        option
        for option in options
        if option.n > n and option.gain >= RAISE_GAIN and option.p_better >= RAISE_PROBABILITY
    ]
    return max(larger, key=lambda option: option.gain, default=None)
