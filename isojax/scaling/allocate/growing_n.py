"""Runs whose n changes on the way, from the curves of runs with a fixed n. The model: what a policy
learns next depends on its reward alone, so that after a change it rises as a run of the new n does
from that reward on."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from isojax.core.errors import InputError
from isojax.core.estimators import FloatArray
from isojax.core.nouns import GrowingRun, Interval
from isojax.core.schedule import Stage, schedule_text
from isojax.scaling.allocate.curve_ensemble import CurveEnsemble, IntArray
from isojax.scaling.intervals import central_band

# of the grid of C on which the draws are tabulated, up to so many times the end: a slow cell has a
BUDGETS = 256
HORIZON_FACTOR = 4.0  # run's reward only after more rollouts than the run has spent
REWARDS = 400  # of the grid of rewards on which the fastest n is chosen
LAST_SWITCH = 0.9  # of the budget: later switches change nothing
RECENT = 5  # evaluations that say how far a run is from its cell's curve
# of reward, and the probability that there is any: from there on, raising n is advised
RAISE_GAIN = 0.005
RAISE_PROBABILITY = 0.8


@dataclass(frozen=True)
class NOption:
    """A run that goes on with this n, in a measured cell, against one that goes on as it is."""

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


@dataclass(frozen=True)
class CurveTable:
    """The draws' curves on a grid, from which runs that change their cell are put together."""

    log_C: FloatArray  # [budgets]
    rewards: FloatArray  # [budgets, replicates, cells], rising

    @staticmethod
    def of(ensemble: CurveEnsemble, C_end: float) -> "CurveTable":
        """For runs to C_end; InputError for a fit without draws."""
        if not ensemble.replicates:
            raise InputError(
                "this fit has no draws of its curves; expected mode hierarchical, --replicates above 0."
            )
        C = np.geomspace(
            0.01 * float(ensemble.samples.C_low.min()), HORIZON_FACTOR * C_end, BUDGETS
        )
        rewards = ensemble.sampled_at_cell_budgets(C[:, None], same_problems=True)
        return CurveTable(np.log(C), np.maximum.accumulate(rewards, axis=0))

    def go_on(self, cell: int, rewards: FloatArray, C_more: float) -> FloatArray:
        """Rewards float[replicates] after C_more more rollouts in a cell; one above all of the
        cell's curve stays."""
        after = np.empty_like(rewards)
        for q, reward in enumerate(rewards):
            curve = self.rewards[:, q, cell]
            C_now = np.exp(np.interp(reward, curve, self.log_C))
            after[q] = max(reward, np.interp(np.log(C_now + C_more), self.log_C, curve))
        return after


def compare_n(
    ensemble: CurveEnsemble, B_p: int, n: int, C: FloatArray, R: FloatArray, C_end: float
) -> list[NOption]:
    """What each measured n at this B_p would give a run of (B_p, n) from its newest evaluation on;
    its evaluations are C > 0, R: float[points]. InputError where the fit has no such cell."""
    own = next((i for i, c in enumerate(ensemble.curves) if c.key == (B_p, n)), None)
    if own is None:
        measured = ", ".join(f"{c.B_p}x{c.n}" for c in ensemble.curves)
        raise InputError(
            f"the run has B_p x n = {B_p}x{n}, and the sweep measured {measured}; expected one of these."
        )
    offset = float(np.mean(R[-RECENT:] - ensemble.expected_rewards(C[-RECENT:])[:, own]))
    reward = float(ensemble.expected_rewards(C[-1])[own]) + offset
    C_done, C_end = float(C[-1]), max(C_end, float(C[-1]))
    left, table = C_end - C_done, CurveTable.of(ensemble, C_end)
    now = np.full(ensemble.replicates, reward)
    as_it_is = table.go_on(own, now, left)
    options = []
    for i in np.flatnonzero(ensemble.B_p == B_p).tolist():
        end = table.go_on(i, now, left)
        gain = end - as_it_is
        low, high = map(float, central_band(gain))
        hours, device_hours = ensemble.predict_hours(i, C_end, C_done)
        option = NOption(
            B_p=int(ensemble.B_p[i]),
            n=int(ensemble.n[i]),
            reward=float(end.mean()),
            interval=ensemble.interval(end),
            gain=float(gain.mean()),
            gain_interval=(low, high),
            p_better=float(np.mean(gain > 0)),
            hours=hours,
            device_hours=device_hours,
        )
        options.append(option)
    return options


def plan_growing_run(
    ensemble: CurveEnsemble, cell: int, C_end: float, B_max: int | None
) -> GrowingRun | None:
    """The schedule at the cell's B_p that follows, from each reward on, the n whose expected curve
    rises there fastest, against the cell itself after C_end rollouts; None where it does not
    gain."""
    cells = np.flatnonzero((ensemble.B_p == ensemble.B_p[cell]) & ensemble.stable)
    cells = cells[ensemble.B[cells] <= (B_max or ensemble.B.max())]
    if not ensemble.replicates or len(cells) < 2 or cell not in cells:
        return None
    table = CurveTable.of(ensemble, C_end)
    stages = _fastest_cells(table, cells, C_end)
    if len(stages) < 2:
        return None
    rewards = table.rewards[0].min(1)  # of the base policy, float[replicates]
    for (C, i), (C_next, _) in pairwise([*stages, (C_end, -1)]):
        rewards = table.go_on(i, rewards, C_next - C)
    gain = (
        rewards
        - ensemble.sampled_at_cell_budgets(np.full(len(ensemble.n), C_end), same_problems=True)[
            :, cell
        ]
    )
    if gain.mean() <= 0:
        return None
    low, high = map(float, central_band(gain))
    cell_by_C = {round(C): i for C, i in stages}
    text = schedule_text(
        [Stage(C, int(ensemble.B_p[i]), int(ensemble.n[i])) for C, i in cell_by_C.items()]
    )
    stage_ends = [*list(cell_by_C)[1:], C_end]
    batches = [
        ensemble.counts[i].batches(end, C)
        for (C, i), end in zip(cell_by_C.items(), stage_ends, strict=True)
    ]
    return GrowingRun(
        schedule=text,
        expected_reward=float(rewards.mean()),
        gain=float(gain.mean()),
        gain_interval=(low, high),
        p_better=float(np.mean(gain > 0)),
        batches=() if set(batches) == {1.0} else tuple(batches),
    )


def _fastest_cells(table: CurveTable, cells: IntArray, C_end: float) -> list[tuple[float, int]]:
    """(C from which on, cell) of a run that always has the cell whose expected curve takes the
    fewest rollouts to the next higher reward; n never falls."""
    curves = table.rewards.mean(1)[:, cells]
    rewards = np.linspace(curves[0].min(), curves[-1].max(), REWARDS)
    C = np.exp(
        np.stack(
            [np.interp(rewards, curve, table.log_C, right=np.inf) for curve in curves.T], axis=1
        )
    )
    with np.errstate(invalid="ignore"):
        cost = np.nan_to_num(np.diff(C, axis=0), nan=np.inf)  # of the next step of reward
    fastest = np.maximum.accumulate(cost.argmin(1))  # cells are in order of n
    stages: list[tuple[float, int]] = []
    spent = 0.0
    for step, j in enumerate(fastest):
        if not stages or stages[-1][1] != cells[j]:
            stages.append((spent, int(cells[j])))
        spent += float(cost[step, j])
        if spent >= C_end:
            break
    return [stage for stage in stages if stage[0] <= LAST_SWITCH * C_end]


def best_n_stages(ensemble: CurveEnsemble, B_p: int, ahead: float, C_end: float) -> list[Stage]:
    """n*(ahead C), of the highest expected curve at this B_p, as stages up to C_end; InputError for
    an unknown B_p."""
    cells = np.flatnonzero(ensemble.B_p == B_p)
    if not len(cells):
        raise InputError(
            f"the fit has no B_p = {B_p}; expected one of {sorted(set(ensemble.B_p.tolist()))}."
        )
    C = np.geomspace(min(float(ensemble.samples.C_low.min()), C_end), C_end, BUDGETS)
    n = ensemble.n[cells][ensemble.expected_rewards(ahead * C)[:, cells].argmax(1)]
    changes = [i for i in range(len(C)) if i == 0 or n[i] != n[i - 1]]
    return [Stage(round(C[i]) if i else 0, B_p, int(n[i])) for i in changes]


def n_to_raise_to(options: list[NOption], n: int) -> NOption | None:
    """The larger n that gains most, where one surely gains; None where none does."""
    larger = [
        o for o in options if o.n > n and o.gain >= RAISE_GAIN and o.p_better >= RAISE_PROBABILITY
    ]
    return max(larger, key=lambda o: o.gain, default=None)
