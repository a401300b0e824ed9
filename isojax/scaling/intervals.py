"""Intervals of replicates (draws, or refits to resampled residuals or points): one level, number
and seed for all; and of shares that so many rollouts show."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from isojax.core.estimators import FloatArray
from isojax.scaling.result import OpenInterval

LEVEL = 0.9
TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
REPLICATES = 500
SEED = 0


def central_interval(values: ArrayLike, discrete: bool = False) -> OpenInterval:
    """The central LEVEL of replicates float[Q]; an infinite bound is None, an open end; both are
    None if Q is 0. The bounds of `discrete` values are among them."""
    samples = np.asarray(values, dtype=np.float64)
    if not samples.size:
        return None, None

    # Between a number and infinity nothing can be interpolated.
    method = "nearest" if discrete or not np.isfinite(samples).all() else "linear"
    low, high = np.quantile(samples, TAILS, method=method)
    return (
        float(low) if np.isfinite(low) else None,
        float(high) if np.isfinite(high) else None,
    )


def central_band(values: FloatArray, discrete: bool = False) -> tuple[FloatArray, FloatArray]:
    """The lower and upper bounds along the first axis of finite replicates: float[Q, ...] -> two
    float[...]."""
    low, high = np.quantile(values, TAILS, axis=0, method="nearest" if discrete else "linear")
    return low, high


def share_quantiles(share: float, rollouts: float, levels: ArrayLike) -> FloatArray:
    """Quantiles at `levels`, float[...], of what the true share may be where a `share` of N
    `rollouts` was right: at .05 and .95 the bounds of Clopper and Pearson (1934). k = share N need
    not be whole. At 0 of N the bound is 3 / N, the rule of three, and at N of N it is 1 - 3 / N."""
    u = np.asarray(levels, dtype=np.float64)
    hits = min(max(share * rollouts, 0.0), rollouts)
    misses = rollouts - hits

    # Below the median the bound from below, which less than one hit does not have, above it the
    # bound from above.
    lower = betaincinv(hits, misses + 1, u) if hits >= 1 else np.zeros_like(u)
    upper = betaincinv(hits + 1, misses, u) if misses >= 1 else np.ones_like(u)
    quantiles = np.where(u < 0.5, lower, upper)

    # 1 - .05^(1 / N) is a little less than 3 / N, which is what people expect to read.
    is_outer = u >= TAILS[1]
    at_least = np.maximum(quantiles, min(1.0, 3 / rollouts))
    quantiles = np.where(is_outer & (hits < 1), at_least, quantiles)

    is_inner = u <= TAILS[0]
    at_most = np.minimum(quantiles, max(0.0, 1 - 3 / rollouts))
    return np.where(is_inner & (misses < 1), at_most, quantiles)


def share_draws(
    share: float, rollouts: float, count: int, interval: tuple[float, float]
) -> FloatArray:
    """float[count], rising: draws of what the true share may be, evenly over its quantiles; the
    middle is the share, and their central interval holds `interval`."""
    rank = np.arange(count)
    last = count - 1
    draws = share_quantiles(share, rollouts, (rank + 0.5) / count)
    # the middle draw; of an even number the middle two
    draws = np.where(np.abs(rank - last / 2) < 1, share, draws)

    # The bounds of an interval lie between two draws: both have to be outside.
    is_low = rank <= np.ceil(TAILS[0] * last)
    is_high = rank >= np.floor(TAILS[1] * last)
    draws = np.where(is_low, np.minimum(draws, interval[0]), draws)
    return np.where(is_high, np.maximum(draws, interval[1]), draws)


def share_interval(share: float, rollouts: float) -> tuple[float, float]:
    """The central LEVEL of the same; the share itself is inside."""
    low, high = share_quantiles(share, rollouts, TAILS).tolist()
    return min(low, share), max(high, share)
