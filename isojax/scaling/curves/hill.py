"""Reward against compute for one (B_p, n): ScaleRL's monotone sigmoid (arXiv:2510.13786, eq. 1),

    R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B),

A the asymptote, B the efficiency exponent, C_mid the compute of half the gain. It is fitted to the record-breaking
points of all seeds together. Departures from ScaleRL: no grid over A and no early points skipped, but bounded least
squares with the soft-L1 loss (scale .01 of reward), started from the best corners of a fixed grid of (B, C_mid), so
that a fit draws no random number. Inside, A is R0 + f (1 - R0) with f in [0, 1], which keeps R0 <= A <= 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import least_squares
from scipy.special import expit

from isojax.scaling.curves.curve_shape import HILL_TAIL, curve_value, shape_name
from isojax.scaling.curves.record_breaking import record_breaking_indices
from isojax.scaling.curves.residual_correction import ResidualCorrection
from isojax.scaling.validation_metrics import FloatArray, RunTrack

B_BOUNDS = (0.05, 10.0)
# C_mid may lie this many decades outside the points.
C_MID_DECADES = 2.0
SOFT_L1_SCALE = 0.01
MIN_POINTS = 3
START_COUNT = 2
_LN10 = np.log(10.0)
Interval = tuple[float | None, float | None]


@dataclass(frozen=True)
class FittedCurve:
    """A fitted R(C) of one (B_p, n).

    Attributes:
        R0, A, B, C_mid: the sigmoid's parameters; C_mid in units of compute.
        C_low, C_high: where all seeds of the cell have data, C > 0.
        points: it was fitted to (record-breaking ones in paper mode).
        rmse: root mean square residual at those points, in reward.
        at_bounds: parameters that ended at a bound, which the data therefore do not determine.
        tail: the shape (curve_shape.py); paper mode knows 1 alone.
        bend: added to the shape inside the measured range; None where the shape suffices.
        determined: whether the data come near the plateau A; where not, do not read A alone.
        C_peak: where reward starts to fall; the curve is held flat beyond, as stopping early would.
        A_interval, ...: 90%; a bound of None is an open end; None where the mode gives none.
    """

    B_p: int
    n: int
    R0: float
    A: float
    B: float
    C_mid: float
    C_low: float
    C_high: float
    points: int
    rmse: float
    at_bounds: tuple[str, ...] = ()
    tail: float = HILL_TAIL
    bend: ResidualCorrection | None = None
    determined: bool = True
    C_peak: float | None = None
    A_interval: Interval | None = None
    B_interval: Interval | None = None
    C_mid_interval: Interval | None = None

    @property
    def key(self) -> tuple[int, int]:
        """(B_p, n)."""
        return self.B_p, self.n


def hill(C: ArrayLike, R0: float, A: float, B: float, C_mid: float) -> FloatArray:
    """R(C) of the module's equation; C > 0, float[...] -> float[...]."""
    return curve_value(HILL_TAIL, C, R0, A, B, C_mid)


def curve_reward(curve: FittedCurve, C: ArrayLike) -> FloatArray:
    """The curve's reward at compute C > 0, float[...] -> float[...], inside its measured range or not; the best up to C
    where it peaks.
    """
    C_capped = np.minimum(np.asarray(C, dtype=np.float64), np.inf if curve.C_peak is None else curve.C_peak)
    shape_reward = curve_value(curve.tail, C_capped, curve.R0, curve.A, curve.B, curve.C_mid)
    return shape_reward if curve.bend is None else shape_reward + curve.bend.evaluate(C_capped)


def curve_to_json(curve: FittedCurve) -> dict[str, Any]:
    """A curve as fit.json holds it; its shape in words too."""
    row = asdict(curve) | {"form": shape_name(curve.tail)}
    del row["at_bounds"]
    return row


def _starting_points(x: FloatArray, R: FloatArray, R0: float | None) -> list[list[float]]:
    """The best corners [f, B, log10 C_mid(, R0)] of a fixed grid; at each, f (and R0) by linear least squares."""
    Bs, mids = np.meshgrid([0.3, 0.7, 1.2, 2.0, 4.0], np.linspace(x[0] - 0.3, x[-1] + 0.3, 9), indexing="ij")
    s = expit(_LN10 * Bs[..., None] * (x - mids[..., None]))  # [B, C_mid, points]
    if R0 is None:
        mean_s, mean_R = s.mean(-1), R.mean()
        gain = ((s - mean_s[..., None]) * (R - mean_R)).sum(-1) / np.maximum(
            ((s - mean_s[..., None]) ** 2).sum(-1), 1e-12
        )
        floor = np.clip(mean_R - gain * mean_s, 0.0, 0.999)
    else:
        gain = (s * (R - R0)).sum(-1) / np.maximum((s * s).sum(-1), 1e-12)
        floor = np.full_like(gain, R0)
    f = np.clip(gain / (1 - floor), 0.01, 0.99)
    squared_error = ((floor[..., None] + (f * (1 - floor))[..., None] * s - R) ** 2).sum(-1)
    best_corners = np.argsort(squared_error, axis=None, kind="stable")[:START_COUNT]
    floor_parameter = [] if R0 is not None else [floor]
    return [[float(v.flat[i]) for v in (f, Bs, mids, *floor_parameter)] for i in best_corners]


def _fit_parameters(x: FloatArray, R: FloatArray, R0: float | None) -> tuple[FloatArray, tuple[str, ...]]:
    """Best parameters [f, B, log10 C_mid, R0] for rewards R at log10 C = x (rising), and which ended at a bound."""
    parameter_names = ["A", "B", "C_mid", "R0"]
    lower = np.array([0.0, B_BOUNDS[0], x[0] - C_MID_DECADES, 0.0])
    upper = np.array([1.0, B_BOUNDS[1], x[-1] + C_MID_DECADES, 0.999])
    free_count = 4 if R0 is None else 3

    def progress_and_floor(theta: FloatArray) -> tuple[FloatArray, float]:
        return expit(_LN10 * theta[1] * (x - theta[2])), float(theta[3]) if R0 is None else R0

    def residual(theta: FloatArray) -> FloatArray:
        s, floor = progress_and_floor(theta)
        return floor + theta[0] * (1 - floor) * s - R

    def jacobian(theta: FloatArray) -> FloatArray:
        s, floor = progress_and_floor(theta)
        slope = theta[0] * (1 - floor) * s * (1 - s) * _LN10
        columns = [(1 - floor) * s, slope * (x - theta[2]), -slope * theta[1], 1 - theta[0] * s]
        return np.stack(columns[:free_count], axis=1)

    bounds = (lower[:free_count], upper[:free_count])
    jac: Any = jacobian  # SciPy's stub knows only the names of its finite differences
    solutions = [
        least_squares(
            residual,
            np.clip(start, bounds[0] + 1e-6, bounds[1] - 1e-6),
            jac,
            bounds,
            loss="soft_l1",
            f_scale=SOFT_L1_SCALE,
        )
        for start in _starting_points(x, R, R0)
    ]
    theta = min(solutions, key=lambda s: s.cost).x
    bound_margin = 1e-3 * (bounds[1] - bounds[0])
    at_bounds = tuple(
        name
        for name, t, lo, hi, e in zip(parameter_names, theta, *bounds, bound_margin, strict=False)
        if t - lo < e or hi - t < e
    )
    return np.append(theta, [] if R0 is None else R0), at_bounds


def fit_points(
    B_p: int, n: int, C: ArrayLike, R: ArrayLike, R0: float | None, C_range: tuple[float, float]
) -> FittedCurve | str:
    """The sigmoid through given points.

    Args:
        C: float[points] > 0, any order. R: float[points], rewards there.
        R0: the base policy's reward; None fits it too.
        C_range: the measured range (C_low, C_high) to note.

    Returns:
        The curve; or, where the points do not suffice, the reason in words.
    """
    order = np.argsort(np.asarray(C, dtype=np.float64), kind="stable")
    log10_C, sorted_rewards = np.log10(np.asarray(C, dtype=np.float64)[order]), np.asarray(R, dtype=np.float64)[order]
    distinct_count = len(np.unique(log10_C))
    required = MIN_POINTS + (R0 is None)
    if distinct_count < required:
        return f"{distinct_count} record-breaking values of C > 0, at least {required} needed"
    if R0 is not None and R0 > 1 - 1e-6:
        return "the base policy's reward is 1 already"
    theta, at_bounds = _fit_parameters(log10_C, sorted_rewards, R0)
    f, B, log10_C_mid, floor = (float(t) for t in theta)
    A = floor + f * (1 - floor)
    rmse = float(np.sqrt(np.mean((hill(10**log10_C, floor, A, B, 10**log10_C_mid) - sorted_rewards) ** 2)))
    return FittedCurve(B_p, n, floor, A, B, 10**log10_C_mid, *C_range, len(log10_C), rmse, at_bounds)


def fit_curve(seeds: Sequence[RunTrack], R0: float | None, bin_width: float) -> FittedCurve | str:
    """The curve of one (B_p, n), from the record-breaking points of its seeds at C > 0; or the reason why there is
    none.

    Raises:
        InputError: a bad bin width.
    """
    B_p, n = seeds[0].key
    C_low = max((float(t.C[t.C > 0].min(initial=np.inf)) for t in seeds), default=np.inf)
    C_high = min(float(t.C[-1]) for t in seeds)
    if not 0 < C_low < C_high:
        return "its seeds share no range of C > 0"
    records = [(t, record_breaking_indices(t.R, bin_width)) for t in seeds]
    C = np.concatenate([t.C[i] for t, i in records])
    R = np.concatenate([t.R[i] for t, i in records])
    return fit_points(B_p, n, C[C > 0], R[C > 0], R0, (C_low, C_high))
