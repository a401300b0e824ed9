"""Mode "paper" (IsoCompute Playbook, arXiv:2603.12151, section 4 and appendix A): record-breaking
points of each run, one monotone sigmoid for each (B_p, n), R0 the base policy's reward; unlike
ScaleRL (arXiv:2510.13786) no grid over A and no points skipped, but the soft-L1 loss at .01 of
reward with R0 <= A <= 1, from the best corners of a fixed grid.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isojax.scaling.curves.sigmoid_fit import curve_points, fit_sigmoid
from isojax.scaling.curves.sweep_estimate import FitOptions, SweepEstimate
from isojax.scaling.result import FittedCurve
from isojax.scaling.tracks import RunTrack, TracksByCell, base_reward

BIN_WIDTH = 0.005  # of reward (appendix A, Fig. 15)
# a reward on a bin's edge belongs to the upper bin however it was rounded: .3 / .005 gives 60
_EDGE_TOLERANCE = 1e-9
SOFT_L1_SCALE = 0.01  # reward
MIN_POINTS = 3


def record_breaking_indices(rewards: ArrayLike) -> NDArray[np.intp]:
    """Where floor(R / BIN_WIDTH) exceeds that of all points before, in one run by rising C (section
    4, Fig. 5)."""
    bins = np.floor(np.asarray(rewards, dtype=np.float64) / BIN_WIDTH + _EDGE_TOLERANCE)
    best_bin_before = np.concatenate([[-np.inf], np.maximum.accumulate(bins)[:-1]])[: len(bins)]
    return np.flatnonzero(bins > best_bin_before)


def estimate(cells: TracksByCell, metric: str, options: FitOptions) -> SweepEstimate:
    """A curve for each cell that has enough records; no intervals."""
    R0 = base_reward([t for seeds in cells.values() for t in seeds])
    curve_or_reason = {key: fit_records(seeds, R0) for key, seeds in cells.items()}
    curves = [c for c in curve_or_reason.values() if isinstance(c, FittedCurve)]
    return SweepEstimate(
        curves, [(B_p, n, c) for (B_p, n), c in curve_or_reason.items() if isinstance(c, str)]
    )


def fit_records(seeds: Sequence[RunTrack], R0: float | None) -> FittedCurve | str:
    """The curve of one (B_p, n) through the records of its seeds, or why there is none; R0 None is
    fitted too."""
    C_low = max(float(t.C[t.C > 0].min(initial=np.inf)) for t in seeds)
    C_high = min(float(t.C[-1]) for t in seeds)
    if not 0 < C_low < C_high:
        return "its seeds share no range of C > 0"
    records = [(t, record_breaking_indices(t.R)) for t in seeds]
    C = np.concatenate([t.C[i] for t, i in records])
    R = np.concatenate([t.R[i] for t, i in records])
    return fit_points(seeds[0].key, C[C > 0], R[C > 0], R0, (C_low, C_high))


def fit_points(
    key: tuple[int, int], C: ArrayLike, R: ArrayLike, R0: float | None, C_range: tuple[float, float]
) -> FittedCurve | str:
    """The sigmoid of a cell, measured over C_range, through R at C > 0, float[points] each, or why
    there is none."""
    compute, rewards = np.asarray(C, dtype=np.float64), np.asarray(R, dtype=np.float64)
    distinct_count = len(np.unique(compute))
    required = MIN_POINTS + (R0 is None)
    if distinct_count < required:
        return f"{distinct_count} record-breaking values of C > 0, at least {required} needed"
    if R0 is not None and R0 > 1 - 1e-6:
        return "the base policy's reward is 1 already"
    fit = fit_sigmoid(curve_points(compute, rewards, R0), SOFT_L1_SCALE)
    return FittedCurve(
        *key,
        R0=fit.R0,
        A=fit.A,
        exponent=fit.exponent,
        C_mid=10**fit.log10_C_mid,
        C_low=C_range[0],
        C_high=C_range[1],
        points=len(compute),
        rmse=float(np.sqrt(np.mean((fit.fitted_rewards - rewards) ** 2))),
        at_bounds=("A",) if fit.A == fit.R0 else fit.at_bounds,
    )
