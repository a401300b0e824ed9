"""Intervals: of replicates (draws, or refits to resampled residuals or points), with one level,
number and seed for all; and of a share of correct rollouts (binomial)."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from isojax.core.estimators import FloatArray
from isojax.scaling.result import OpenInterval

LEVEL = 0.9  # the share of the replicates inside an interval
TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)  # the quantiles at its ends
REPLICATES = 500
SEED = 0


def central_interval(values: ArrayLike, discrete: bool = False) -> OpenInterval:
    """The interval (low, high) of the central share LEVEL of replicates, float[Q], some infinite.

    An infinite bound is given as None, an open end; both are None if Q is 0. With `discrete`, the
    bounds are two of the values themselves, such as measured n."""
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
    """The lower and the upper bounds of the central share LEVEL, along the first axis.

    values: replicates float[Q, ...], finite, Q > 0 -> two float[...]. With `discrete`, the bounds
    are two of the values themselves."""
    low, high = np.quantile(values, TAILS, axis=0, method="nearest" if discrete else "linear")
    return low, high


def share_quantiles(share: float, rollouts: float, levels: ArrayLike) -> FloatArray:
    """Quantiles of the true share of correct rollouts, where a `share` of N rollouts was correct.

    share: in [0, 1]; rollouts: N > 0; levels: float[...] in (0, 1) -> float[...] in [0, 1]. At 0.05
    and 0.95 they are the bounds of Clopper and Pearson (1934). The number of hits, share N, need
    not be whole. At 0 of N the upper bound is 3 / N, the rule of three; at N of N the lower one is
    1 - 3 / N."""
    u = np.asarray(levels, dtype=np.float64)
    hits = min(max(share * rollouts, 0.0), rollouts)
    misses = rollouts - hits

    # Levels below 0.5 get the bound from below, which is 0 with less than one hit; others the bound
    # from above, which is 1 with less than one miss.
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
    """Draws of the true share of correct rollouts, float[count], rising.

    A `share` of so many rollouts was correct; the draws are quantiles of the true share at evenly
    spaced levels. The middle draw is the share, and the draws' central interval is widened to
    contain `interval`, (low, high)."""
    rank = np.arange(count)
    last = count - 1
    draws = share_quantiles(share, rollouts, (rank + 0.5) / count)
    # the middle draw; of an even number the middle two
    draws = np.where(np.abs(rank - last / 2) < 1, share, draws)

    # A bound of the draws' interval is between two of them: both are moved outside.
    is_low = rank <= np.ceil(TAILS[0] * last)
    is_high = rank >= np.floor(TAILS[1] * last)
    draws = np.where(is_low, np.minimum(draws, interval[0]), draws)
    return np.where(is_high, np.maximum(draws, interval[1]), draws)


def share_interval(share: float, rollouts: float) -> tuple[float, float]:
    """The interval (low, high) of the true share of correct rollouts, at LEVEL.

    A `share`, in [0, 1], of so many rollouts was correct; it is inside the interval."""
    low, high = share_quantiles(share, rollouts, TAILS).tolist()
    return min(low, share), max(high, share)
