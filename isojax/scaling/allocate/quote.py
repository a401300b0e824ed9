"""What a reward costs: after how many rollouts one new run of each measured cell is expected to
reach it. A recommendation reads rewards off the curves at a budget; this reads budgets off the same
draws of the curves, at a reward."""

from dataclasses import dataclass

import numpy as np

from isojax.core.errors import InputError
from isojax.scaling.allocate.curve_ensemble import (
    CurveEnsemble,
    IntArray,
    RunHours,
    load_rollout_ensemble,
)
from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.sweep_estimate import MAX_EXTRAPOLATION
from isojax.scaling.intervals import LEVEL, TAILS
from isojax.scaling.result import FitResult
from isojax.scaling.tracks import FloatArray, group_by

BUDGETS = 256  # values of the grid of C on which the draws are inverted
LUCK_SEED = 2  # of the random deviations of new runs


@dataclass(frozen=True)
class QuotedCell:
    """After how many rollouts, and how long, a run of one measured cell reaches the reward. C and
    what follows from it is None where most draws never reach the reward."""

    B_p: int
    n: int
    C: float | None  # rollouts until one new run has the reward, the median of the draws
    low: float | None  # the interval of C
    high: float | None  # None: the interval has no upper end, since some runs never reach it
    # The probability that the run has not reached it by the horizon; None where the sweep shows
    # nothing.
    p_never: float | None
    M: int | None  # updates, of the median
    hours: float | None  # wall clock of the median; None where the cell has no clock
    device_hours: float | None
    extrapolated: bool  # the median is beyond the cell's data


@dataclass(frozen=True)
class Quote:
    """The rollouts until a reward is reached, for each n."""

    reward: float
    metric: str
    horizon: float  # a C; what is not reached by then counts as never reached
    level: float  # of the intervals
    best_n: int | None  # of the lowest median; None where the sweep shows nothing
    cells: tuple[QuotedCell, ...]  # by n, each of the B_p that reaches the reward soonest
    # of a sweep that shows nothing: what was seen and why, without the sentence's capital
    nothing_learnt: str = ""
    # of such a sweep, what the reward may be at most, by the interval of its evaluations
    highest: float | None = None


def quote(fit: FitResult, reward: float) -> Quote:
    """After how many rollouts, and how many hours, one new run of each n reaches a reward.

    For each n it gives a median and an interval, with the B_p that reaches the reward soonest;
    hours where the runs' times are known. reward: between 0 and 1, such as 0.6. InputError for
    another number, a reward that the base policy already has, a fit without draws, and one whose C
    does not count rollouts."""
    ensemble = load_rollout_ensemble(fit)
    if not 0 < reward < 1:
        raise InputError(
            found=f"a reward of {reward:g}",
            expected="one between 0 and 1, such as 0.6",
        )
    if fit.nothing_learnt:
        return _quote_of_nothing(ensemble, reward)
    if not ensemble.replicates:
        raise InputError(
            found="this fit has no draws of its curves",
            expected="mode hierarchical with --replicates above 0",
        )
    if fit.base_reward is not None and reward <= fit.base_reward:
        base = f"the base policy's {fit.metric}, {fit.base_reward:.3f}"
        raise InputError(
            found=f"given {reward:g}",
            expected=f"more than {base}",
        )

    horizon = MAX_EXTRAPOLATION * ensemble.C_measured_max
    C = first_budgets(ensemble, reward, horizon)  # [replicates, cells]
    cells = [quote_cell(ensemble, i, C[:, i]) for i in _quotable_cells(ensemble).tolist()]
    cells_by_n = group_by(cells, lambda cell: cell.n)
    soonest = tuple(min(cells_by_n[n], key=_cost) for n in sorted(cells_by_n))
    return Quote(
        reward=reward,
        metric=fit.metric,
        horizon=horizon,
        level=LEVEL,
        best_n=min(soonest, key=_cost).n,
        cells=soonest,
    )


def _quotable_cells(ensemble: CurveEnsemble) -> IntArray:
    """The indices of the cells with a stable B_p; of all cells where no B_p is stable."""
    if ensemble.stable.any():
        return np.flatnonzero(ensemble.stable)
    return np.arange(len(ensemble.n))


def _quote_of_nothing(ensemble: CurveEnsemble, reward: float) -> Quote:
    """The answer for a sweep in which nothing was learnt: no number of rollouts, for any n.

    It has for each n the cell of the smallest stable B_p; no curve rises to the reward. InputError
    for a reward that all runs have already."""
    fit = ensemble.fit
    curve_of_all = ensemble.curves[0]  # they are all equal
    level = curve_of_all.A
    if reward <= level:
        raise InputError(
            found=f"{fit.nothing_learnt}",
            fix=f"Given {reward:g}, expected more than the {level:.3g} of all runs.",
        )

    # Cells of one n are in order of B_p. Going backwards, the smallest B_p overwrites the others.
    first_of_n = {}
    for i in reversed(_quotable_cells(ensemble).tolist()):
        first_of_n[ensemble.curves[i].n] = ensemble.curves[i]
    cells = tuple(
        QuotedCell(
            B_p=first_of_n[n].B_p,
            n=n,
            C=None,
            low=None,
            high=None,
            p_never=None,
            M=None,
            hours=None,
            device_hours=None,
            extrapolated=True,
        )
        for n in sorted(first_of_n)
    )
    interval = curve_of_all.A_interval
    return Quote(
        reward=reward,
        metric=fit.metric,
        horizon=MAX_EXTRAPOLATION * ensemble.C_measured_max,
        level=LEVEL,
        best_n=None,
        cells=cells,
        nothing_learnt=fit.nothing_learnt,
        highest=None if interval is None else interval[1],
    )


def _cost(cell: QuotedCell) -> tuple[bool, float, int]:
    """Sorting key of cells by how soon they reach the reward: by the median C; after these the
    cells of which most draws never reach it, by the share that never does; of equals by B_p."""
    if cell.C is not None:
        return False, cell.C, cell.B_p
    p_never = 1.0 if cell.p_never is None else cell.p_never
    return True, p_never, cell.B_p


def first_budgets(ensemble: CurveEnsemble, reward: float, horizon: float) -> FloatArray:
    """The C at which a new run of each cell first has the reward, float[replicates, cells].

    There is one for each draw of the curves and of how far a run differs from its curve; infinite
    where the run does not have the reward by the horizon, a C in rollouts."""
    noise = ensemble.fit.intervals
    samples = ensemble.samples
    # From a tenth of the least C measured: a reward reached before that counts as reached there.
    C = np.geomspace(0.1 * float(samples.C_low.min()), horizon, BUDGETS)
    # [BUDGETS, replicates, cells], on the problems that were used. "As seen": with each cell's
    # level as evaluations show it, without their doubt of it.
    rewards = samples.curves_as_seen(C[:, None])

    # A run differs from its cell's curve by a random amount that all of its evaluations share. The
    # amount is that at the plateau; before, it is smaller in proportion to the progress s(C), which
    # rises from 0 to 1: the curve with R0 = 0 and A = 1.
    # LUCK_SEED is fixed, so that a quote that is asked for again is the same.
    run_sd = 0.0 if noise is None else noise.run_sd
    run_deviation = np.random.default_rng(LUCK_SEED).normal(size=rewards.shape[1:]) * run_sd
    # C_peak: [cells], where a cell's reward starts to fall, infinite where it does not.
    # C_capped: [BUDGETS, 1, cells]; the others are [replicates, cells], and tail [replicates, 1].
    C_capped = np.minimum(C[:, None], samples.C_peak)[:, None]
    progress = curve_value(
        C_capped,
        R0=0.0,
        A=1.0,
        exponent=samples.exponent,
        C_mid=samples.C_mid,
        tail=samples.tail[:, None],
    )
    best_so_far = np.maximum.accumulate(rewards + run_deviation * progress, axis=0)
    excess = best_so_far - reward

    # The excess turns positive between two budgets of the grid: interpolate linearly in log C.
    reached = excess >= 0
    first = reached.argmax(0)  # [replicates, cells], 0 also where it is never reached
    index_before = (first - 1).clip(0)
    after = np.take_along_axis(excess, first[None], 0)[0]
    before = np.take_along_axis(excess, index_before[None], 0)[0]
    # Reached at the grid's first budget: that budget is the answer.
    share = np.where(first > 0, -before / np.maximum(after - before, 1e-12), 1.0)
    log_C = np.log(C)
    crossing = np.exp(log_C[index_before] * (1 - share) + log_C[first] * share)
    return np.where(reached.any(0), crossing, np.inf)


def quote_cell(ensemble: CurveEnsemble, i: int, C: FloatArray) -> QuotedCell:
    """Median, interval and hours of cell i, from the draws of the C at which it has the reward.

    i: an index of ensemble.curves. C: float[replicates], infinite where the reward is never
    reached. A quantile that is infinite is given as None."""
    # method="higher" gives one of the draws: there is nothing between a number and infinity.
    quantiles = np.quantile(C, (TAILS[0], 0.5, TAILS[1]), method="higher")
    low, median, high = (
        float(quantile) if np.isfinite(quantile) else None for quantile in quantiles
    )
    hours = RunHours(None, None) if median is None else ensemble.predict_hours(i, median)

    B_p, n = ensemble.curves[i].key
    return QuotedCell(
        B_p=B_p,
        n=n,
        C=median,
        low=low,
        high=high,
        p_never=float(np.isinf(C).mean()),
        M=None if median is None else ensemble.counts[i].updates_to_reach(median),
        hours=hours.wall_clock,
        device_hours=hours.of_devices,
        extrapolated=median is None or ensemble.is_beyond_data(i, median),
    )
