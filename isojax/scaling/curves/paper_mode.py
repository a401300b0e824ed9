"""Mode "paper": the published workflow, biases included (IsoCompute Playbook, arXiv:2603.12151, section 4 and appendix
A): record-breaking points of each run, one monotone sigmoid for each (B_p, n), R0 the base policy's reward.

Departures from ScaleRL's fit of the sigmoid (arXiv:2510.13786): no grid over A and no early points skipped, but the
soft-L1 loss at .01 of reward with R0 <= A <= 1, from the best corners of a fixed grid, so that a fit draws no random
number. The frontier, its running average and the sigmoid of log2 n* follow in scaling/fit.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from isojax.scaling.curves.fitted_curve import FittedCurve
from isojax.scaling.curves.record_breaking import BIN_WIDTH, record_breaking_indices
from isojax.scaling.curves.varpro import (
    best_corners,
    fit_from_starts,
    least_loss,
    parameters_at_bounds,
    search_space,
    soft_l1_loss,
    squared_loss,
)
from isojax.scaling.estimate import EstimationOptions, SweepEstimate
from isojax.scaling.fit_inputs import base_reward
from isojax.scaling.frontier.frontier_evidence import TracksByCell
from isojax.scaling.validation_metrics import RunTrack

SOFT_L1_SCALE = 0.01  # reward
MIN_POINTS = 3


def estimate(cells: TracksByCell, metric: str, options: EstimationOptions) -> SweepEstimate:
    """A curve for each cell that has enough records; no intervals."""
    del metric, options
    R0 = base_reward([t for seeds in cells.values() for t in seeds])
    curve_or_reason = {key: fit_records(seeds, R0, BIN_WIDTH) for key, seeds in cells.items()}
    curves = [c for c in curve_or_reason.values() if isinstance(c, FittedCurve)]
    return SweepEstimate(curves, [(B_p, n, c) for (B_p, n), c in curve_or_reason.items() if isinstance(c, str)])


def fit_records(seeds: Sequence[RunTrack], R0: float | None, bin_width: float) -> FittedCurve | str:
    """The curve of one (B_p, n), from the record-breaking points of its seeds at C > 0.

    Args:
        R0: the base policy's reward; None fits it too.

    Returns:
        The curve; or, where there is none, the reason in words.

    Raises:
        InputError: a bad bin width.
    """
    C_low = max((float(t.C[t.C > 0].min(initial=np.inf)) for t in seeds), default=np.inf)
    C_high = min(float(t.C[-1]) for t in seeds)
    if not 0 < C_low < C_high:
        return "its seeds share no range of C > 0"
    records = [(t, record_breaking_indices(t.R, bin_width)) for t in seeds]
    C = np.concatenate([t.C[i] for t, i in records])
    R = np.concatenate([t.R[i] for t, i in records])
    return fit_points(seeds[0].key, C[C > 0], R[C > 0], R0, (C_low, C_high))


def fit_points(
    key: tuple[int, int], C: ArrayLike, R: ArrayLike, R0: float | None, C_range: tuple[float, float]
) -> FittedCurve | str:
    """The sigmoid of the cell key = (B_p, n) through given points.

    Args:
        C: float[points] > 0, any order. R: float[points], rewards there.
        R0: the base policy's reward; None fits it too.
        C_range: the measured range (C_low, C_high) to note.

    Returns:
        The curve; or, where the points do not suffice, the reason in words.
    """
    compute, rewards = np.asarray(C, dtype=np.float64), np.asarray(R, dtype=np.float64)
    distinct_count = len(np.unique(compute))
    required = MIN_POINTS + (R0 is None)
    if distinct_count < required:
        return f"{distinct_count} record-breaking values of C > 0, at least {required} needed"
    if R0 is not None and R0 > 1 - 1e-6:
        return "the base policy's reward is 1 already"
    space = search_space(compute, (0.0, 1.0), R0)
    least_squares_fits = fit_from_starts(space, rewards, best_corners(space, rewards), squared_loss())
    loss = soft_l1_loss(SOFT_L1_SCALE)
    solution = least_loss(space, rewards, fit_from_starts(space, rewards, least_squares_fits.phi, loss), loss)
    gains_nothing = solution.G[0] == 0
    return FittedCurve(
        *key,
        R0=float(solution.R0[0]),
        A=float(solution.A[0]),
        exponent=float(solution.exponent[0]),
        C_mid=float(solution.C_mid[0]),
        C_low=C_range[0],
        C_high=C_range[1],
        points=len(compute),
        rmse=float(np.sqrt(np.mean((solution.fitted_rewards[0] - rewards) ** 2))),
        at_bounds=("A",) if gains_nothing else parameters_at_bounds(solution, space),
    )
