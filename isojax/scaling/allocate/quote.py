"""What a reward costs: the inverse of the draws that `recommend` evaluates, for one new run of each measured cell."""

import numpy as np

from isojax.core.errors import InputError
from isojax.core.nouns import Quote, QuotedCell
from isojax.scaling.allocate.curve_ensemble import CurveEnsemble, load_rollout_ensemble
from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.sweep_estimate import MAX_EXTRAPOLATION
from isojax.scaling.intervals import LEVEL, TAILS
from isojax.scaling.result import FitResult
from isojax.scaling.tracks import FloatArray, group_by

BUDGETS = 256  # of the grid of C on which the draws are inverted
LUCK_SEED = 2


def quote(fit: FitResult, reward: float) -> Quote:
    """The rollouts, and hours where clocks are known, at which one new run reaches a reward: a distribution for each n,
    of its soonest B_p. InputError for no reward, for one that the base policy has, and for a fit without draws."""
    ensemble = load_rollout_ensemble(fit)
    if not 0 < reward < 1:
        raise InputError(f"a reward of {reward:g}; expected one between 0 and 1, such as 0.6.")
    if not ensemble.replicates:
        raise InputError("this fit has no draws of its curves; expected mode hierarchical with --replicates above 0.")
    if fit.base_reward is not None and reward <= fit.base_reward:
        raise InputError(f"given {reward:g}, expected more than the base policy's {fit.metric}, {fit.base_reward:.3f}.")
    horizon = MAX_EXTRAPOLATION * ensemble.C_measured_max
    C = first_budgets(ensemble, reward, horizon)
    stable = np.flatnonzero(ensemble.stable) if ensemble.stable.any() else np.arange(len(ensemble.n))
    cells = [quote_cell(ensemble, int(i), C[:, i]) for i in stable]
    by_n = tuple(min(cells_of_n, key=_cost) for _, cells_of_n in sorted(group_by(cells, lambda c: c.n).items()))
    return Quote(reward, fit.metric, horizon, LEVEL, min(by_n, key=_cost).n, by_n)


def _cost(cell: QuotedCell) -> tuple[float, ...]:
    """By the median; where most draws never get there, by how many do."""
    return (cell.C is None, cell.p_never if cell.C is None else cell.C, cell.B_p)


def first_budgets(ensemble: CurveEnsemble, reward: float, horizon: float) -> FloatArray:
    """float[replicates, cells]: C at which a new run of each cell first has the reward, by each draw of the curves and
    of the run's own luck; infinite where it has not by the horizon."""
    C = np.geomspace(0.1 * float(ensemble.samples.C_low.min()), horizon, BUDGETS)
    rewards = ensemble.sampled_at_cell_budgets(C[:, None], same_problems=True)  # [BUDGETS, replicates, cells]
    settings, samples = ensemble.fit.intervals, ensemble.samples
    run_sd = 0.0 if settings is None else settings.run_sd
    luck = np.random.default_rng(LUCK_SEED).normal(size=rewards.shape[1:]) * run_sd  # at the plateau
    C_capped = np.minimum(C[:, None], samples.C_peak)[:, None]
    progress = curve_value(C_capped, 0.0, 1.0, samples.exponent, samples.C_mid, samples.tail[:, None])
    gain = np.maximum.accumulate(rewards + luck * progress, axis=0) - reward
    reached = gain >= 0
    first = reached.argmax(0)
    after, before = (np.take_along_axis(gain, i.clip(0)[None], 0)[0] for i in (first, first - 1))
    share = np.where(first > 0, -before / np.maximum(after - before, 1e-12), 1.0)
    log_C = np.log(C)
    between = np.exp(log_C[(first - 1).clip(0)] * (1 - share) + log_C[first] * share)
    return np.where(reached.any(0), between, np.inf)


def quote_cell(ensemble: CurveEnsemble, i: int, C: FloatArray) -> QuotedCell:
    """The distribution of C, float[replicates], of cell i: its median and interval are None where they are never."""
    quantiles = np.quantile(C, (TAILS[0], 0.5, TAILS[1]), method="higher")
    low, median, high = (float(quantile) if np.isfinite(quantile) else None for quantile in quantiles)
    hours, device_hours = (None, None) if median is None else ensemble.predict_hours(i, median)
    B_p, n = ensemble.curves[i].key
    return QuotedCell(
        B_p=B_p,
        n=n,
        C=median,
        low=low,
        high=high,
        p_never=float(np.isinf(C).mean()),
        M=None if median is None else -int(-median // (B_p * n)),
        hours=hours,
        device_hours=device_hours,
        extrapolated=median is None or ensemble.is_beyond_data(i, median),
    )
