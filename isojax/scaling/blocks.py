"""Moving-block bootstrap of residuals (Künsch 1989) around a fitted curve, for one run or several seeds of it.

Residuals of a fit are smaller and less autocorrelated than the noise was, because the curve has followed some of it. Both are mended with
the AR(1) that the noise is taken to be, q = (1 + rho) / (1 - rho) times as strong at low frequencies as it would be if white: k smooth
parameters take k q / N of the variance, so that residuals have the autocorrelation (rho - k q / N) / (1 - k q / N); of the noise at low
frequencies, which is what moves a curve, blocks of length l keep the covariances within them, less k l / N that the fit has taken. Drawn
residuals are larger, to make up for both. Several seeds are each drawn as a level of its own plus blocks around it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isojax.scaling.metrics import FloatArray

RHO_MAX = 0.9
MOST_LOST = 0.6  # of the variance, where points are few
BLOCKS_AT_LEAST = 4  # blocks a run


@dataclass(frozen=True)
class Noise:
    """What residuals say of the noise.

    Attributes:
        sd: its standard deviation. rho: autocorrelation of neighbours, >= 0.
        block: length of blocks, in points. factor: how many times larger residuals are drawn than they are.
    """

    sd: float
    rho: float
    block: int
    factor: float


def noise(runs: Sequence[FloatArray], parameters: int) -> Noise:
    """The noise behind residuals.

    Args:
        runs: the residuals of each seed, float[points] by rising C.
        parameters: how many the curve has.
    """
    centred = [r - r.mean() for r in runs] if len(runs) > 1 else list(runs)
    count, taken = sum(map(len, runs)), parameters + len(runs) - 1
    square = sum(float((r * r).sum()) for r in centred)
    if square == 0:
        return Noise(0.0, 0.0, 1, 1.0)
    measured = sum(float((r[1:] * r[:-1]).sum()) for r in centred) / square
    rho, lost = _ar1(measured, taken / count, count)
    shortest = min(map(len, runs))
    best = (math.sqrt(6) * rho / (1 - rho**2)) ** (2 / 3) * shortest ** (1 / 3)
    block = max(1, min(math.ceil(best), shortest // BLOCKS_AT_LEAST))
    lags = np.arange(1, block)
    kept = (1 + 2 * float(((1 - lags / block) * rho**lags).sum())) * (1 - rho) / (1 + rho)
    sd = math.sqrt(square / count / (1 - lost))
    return Noise(sd, rho, block, 1 / math.sqrt(max(kept - taken * block / count, 1 - MOST_LOST)))


def _ar1(measured: float, share: float, count: int) -> tuple[float, float]:
    """(rho, the share of variance lost) from the residuals' autocorrelation: the mean of rho over its likelihood, 0 to RHO_MAX."""
    grid = np.linspace(0, RHO_MAX, 91)
    lost = np.minimum(share * (1 + grid) / (1 - grid), MOST_LOST)
    expected = np.maximum.accumulate((grid - lost) / (1 - lost))
    likely = np.exp(-0.5 * count * (measured - expected) ** 2 / (1 - grid**2))
    rho = float(np.average(grid, weights=likely))
    return rho, float(np.interp(rho, grid, lost))


def draw(runs: Sequence[FloatArray], found: Noise, replicates: int, rng: np.random.Generator) -> FloatArray:
    """Residuals of new runs like these, one after another as in `runs`; float[replicates points]."""
    if len(runs) == 1:
        return found.factor * _blocks(runs[0], found.block, replicates, rng)
    levels = np.array([r.mean() for r in runs])
    spread = (levels - levels.mean()) * math.sqrt(len(runs) / (len(runs) - 1))
    drawn = [
        found.factor * _blocks(r - level, found.block, replicates, rng) + rng.choice(spread, (replicates, 1))
        for r, level in zip(runs, levels, strict=True)
    ]
    return np.concatenate(drawn, axis=1)


def _blocks(residuals: FloatArray, length: int, replicates: int, rng: np.random.Generator) -> FloatArray:
    """Blocks of one run, end to end, less their mean; float[replicates points]."""
    count = len(residuals)
    starts = rng.integers(0, count - length + 1, (replicates, math.ceil(count / length)))
    chosen = (starts[..., None] + np.arange(length)).reshape(replicates, -1)[:, :count]
    windows = np.lib.stride_tricks.sliding_window_view(residuals, length)
    return residuals[chosen] - windows.mean()
