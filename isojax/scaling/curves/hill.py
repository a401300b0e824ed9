"""The learning curve R(C) of one (B_p, n), its derivatives and its bounds; every fit of the package
uses these.

    R(C) = R0 + (A - R0) s(z),    z = exponent (ln C - ln C_mid),    s(z; tail) = 1 - (1 + (2^tail - 1) e^z)^(-1 / tail)

R0 is the reward before training, A the asymptote, C_mid the compute of half the gain. tail = 1 is
ScaleRL's sigmoid (arXiv:2510.13786, eq. 1), R0 + (A - R0) / (1 + (C_mid / C)^exponent); tail = 0 is
the stretched exponential, R0 + (A - R0) (1 - exp(-ln 2 (C / C_mid)^exponent))."""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from isojax.scaling.intervals import OpenInterval, Positive, Size
from isojax.scaling.tracks import FloatArray

HILL_TAIL, STRETCHED_TAIL = 1.0, 0.0
EXPONENT_BOUNDS = (0.05, 10.0)
C_MID_MARGIN_DECADES = 2.0  # C_mid may be this many decades outside the points
LN10 = float(np.log(10.0))
# times C_high: runs end at their last evaluation, a little before the budget
MEASURED_TOLERANCE = 1.05
FADE_DECADES = 0.3  # outside its knots a correction fades to 0 within so many
_KNOT_CORRELATION = 0.7  # of a correction's error from one knot to the next
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


@dataclass(frozen=True)
class ResidualCorrection:
    """A cell's correction at knots: log10_C rising, the reward to add, and its standard
    deviation."""

    log10_C: tuple[float, ...]
    value: tuple[float, ...]
    sd: tuple[float, ...]

    def evaluate(self, C: ArrayLike) -> FloatArray:
        """Reward to add at C > 0, float[...] -> float[...]."""
        knots = [self.log10_C[0] - FADE_DECADES, *self.log10_C, self.log10_C[-1] + FADE_DECADES]
        return np.interp(np.log10(np.asarray(C, dtype=np.float64)), knots, [0.0, *self.value, 0.0])

    def sample(self, C: ArrayLike, replicates: int, key: tuple[int, int]) -> FloatArray:
        """The same of replicates, float[G] -> float[Q, G]."""
        knot_weights = np.stack(
            [replace(self, value=tuple(row)).evaluate(C) for row in np.eye(len(self.value))]
        )
        return _knot_draws(self, replicates, key) @ knot_weights


@lru_cache(maxsize=1024)
def _knot_draws(
    correction: ResidualCorrection, replicates: int, key: tuple[int, int]
) -> FloatArray:
    """float[Q, knots], the rewards to add at the knots; the cell's key seeds them, so that no file
    holds them."""
    normal_draws = np.random.default_rng(key).normal(size=(replicates, len(correction.log10_C)))
    for k in range(1, len(correction.log10_C)):
        innovation = np.sqrt(1 - _KNOT_CORRELATION**2) * normal_draws[:, k]
        normal_draws[:, k] = _KNOT_CORRELATION * normal_draws[:, k - 1] + innovation
    return np.array(correction.value) + np.array(correction.sd) * normal_draws


@dataclass(frozen=True)
class FlatStart:
    """Where a cell begins: up to C_flat every evaluation shows one level, such as 0 before the
    first right answer. The reward there is known as well as one evaluation of so many rollouts
    shows it, whatever the curve says."""

    level: float
    rollouts: float  # of one evaluation
    C_flat: Positive
    # of the first evaluation that shows something else; None where none does
    C_rise: Positive | None

    @property
    def step(self) -> float:
        """The smallest difference that an evaluation can show."""
        return 1 / self.rollouts

    def holds_at(self, C: ArrayLike) -> NDArray[np.bool_]:
        """bool[...], whether C > 0 is where the evaluations show the level."""
        return np.asarray(C) <= self.C_flat * (1 + 1e-9)

    def doubt_at(self, C: ArrayLike) -> FloatArray:
        """float[...]: how much of an evaluation's own uncertainty remains at C: 1 up to C_flat, 0
        from C_rise on."""
        if self.C_rise is None:
            return np.ones(np.shape(C))
        decades = np.log10(np.asarray(C, dtype=np.float64) / self.C_flat) / np.log10(
            self.C_rise / self.C_flat
        )
        return 1 - np.clip(decades, 0.0, 1.0)


@dataclass(frozen=True)
class FittedCurve:
    """A fitted R(C) of one (B_p, n); a bound of None in an interval is an open end."""

    B_p: Size
    n: Size
    R0: float
    A: float
    exponent: Positive
    C_mid: Positive  # in units of compute
    C_low: Positive  # the range of C > 0 over which the cell was measured
    C_high: Positive
    points: int  # it was fitted to (record-breaking ones in mode "paper")
    rmse: float  # root mean square residual at those points, in reward
    # parameters that ended at a bound: the data do not determine them
    at_bounds: tuple[str, ...] = ()
    tail: float = HILL_TAIL  # mode "paper" has no other
    # of the shape inside the measured range, where that does not suffice
    correction: ResidualCorrection | None = None
    # whether the data determine A; else read the curve only where it was measured
    determined: bool = True
    # where reward starts to fall; the curve is held flat beyond, as stopping early would
    C_peak: float | None = None
    A_interval: OpenInterval | None = None  # 90%, where the mode gives intervals
    exponent_interval: OpenInterval | None = None
    C_mid_interval: OpenInterval | None = None
    flat_start: FlatStart | None = None  # None where the cell's first evaluations differ

    @property
    def key(self) -> tuple[int, int]:
        return self.B_p, self.n


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
