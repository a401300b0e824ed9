"""The learning curve R(C) of one (B_p, n), its derivatives and its bounds; every fit of the package
uses these.

    R(C) = R0 + (A - R0) s(z),    z = exponent (ln C - ln C_mid)
    s(z; tail) = 1 - (1 + (2^tail - 1) e^z)^(-1 / tail)

R0 is the reward before training, A the asymptote, C_mid the compute of half the gain. tail = 1 is
ScaleRL's sigmoid (arXiv:2510.13786, eq. 1), R0 + (A - R0) / (1 + (C_mid / C)^exponent); tail = 0 is
the stretched exponential, R0 + (A - R0) (1 - exp(-ln 2 (C / C_mid)^exponent))."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from isojax.scaling.result import HILL_TAIL, FittedCurve
from isojax.scaling.tracks import FloatArray

STRETCHED_TAIL = 0.0
EXPONENT_BOUNDS = (0.05, 10.0)
C_MID_MARGIN_DECADES = 2.0  # C_mid may be this many decades outside the points
LN10 = float(np.log(10.0))
# times C_high: runs end at their last evaluation, a little before the budget
MEASURED_TOLERANCE = 1.05
_MIN_TAIL = 1e-6  # stands for the limit at tail = 0
_MAX_ABS_Z = 60.0  # beyond it s is 0 or 1 in double precision


def scaled_log_compute(
    log10_C: FloatArray, log10_C_mid: ArrayLike, exponent: ArrayLike
) -> FloatArray:
    """z of the module's equation; all arguments broadcast."""
    return LN10 * np.asarray(exponent) * (log10_C - np.asarray(log10_C_mid))


def progress_and_slope(z: FloatArray, tail: ArrayLike = HILL_TAIL) -> tuple[FloatArray, FloatArray]:
    """(s, ds/dz) at z float[...]; tail >= 0 broadcasts."""
    if np.ndim(tail) == 0 and tail == HILL_TAIL:
        s = expit(z)
        return s, s * (1 - s)
    t = np.maximum(np.asarray(tail, dtype=np.float64), _MIN_TAIL)
    growth = np.expm1(t * np.log(2.0)) * np.exp(np.clip(z, -_MAX_ABS_Z, _MAX_ABS_Z))
    remaining = np.exp(-np.log1p(growth) / t)
    return 1 - remaining, remaining * growth / (t * (1 + growth))


def progress_gradient(
    log10_C: FloatArray, log10_C_mid: ArrayLike, ln_exponent: ArrayLike, tail: ArrayLike = HILL_TAIL
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(s, ds/d log10_C_mid, ds/d ln exponent); all arguments broadcast. All three are 0 at C = 0
    (log10_C = -inf)."""
    has_compute = np.isfinite(log10_C)
    exponent = np.exp(ln_exponent)
    z = scaled_log_compute(np.where(has_compute, log10_C, 0.0), log10_C_mid, exponent)
    s, slope = progress_and_slope(z, tail)
    slope = slope * has_compute
    return s * has_compute, -LN10 * exponent * slope, z * slope


def curve_value(
    C: ArrayLike,
    R0: ArrayLike,
    A: ArrayLike,
    exponent: ArrayLike,
    C_mid: ArrayLike,
    tail: ArrayLike = HILL_TAIL,
) -> FloatArray:
    """R(C) of the module's equation for C > 0; all arguments broadcast, float[...] ->
    float[...]."""
    z = scaled_log_compute(np.log10(np.asarray(C, dtype=np.float64)), np.log10(C_mid), exponent)
    floor = np.asarray(R0, dtype=np.float64)
    return floor + (np.asarray(A) - floor) * progress_and_slope(z, tail)[0]


def curve_reward(curve: FittedCurve, C: ArrayLike) -> FloatArray:
    """The curve's reward at C > 0, float[...] -> float[...]; a curve with a peak gives the best
    reward up to C."""
    C_capped = np.minimum(
        np.asarray(C, dtype=np.float64), np.inf if curve.C_peak is None else curve.C_peak
    )
    reward = curve_value(C_capped, curve.R0, curve.A, curve.exponent, curve.C_mid, curve.tail)
    if curve.correction is not None:
        reward = np.clip(reward + curve.correction.evaluate(C_capped), 0.0, 1.0)
    if curve.flat_start is None:
        return reward
    return np.where(curve.flat_start.holds_at(C_capped), curve.flat_start.level, reward)
