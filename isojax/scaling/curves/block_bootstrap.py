"""Moving-block bootstrap of residuals (Künsch 1989) around a fitted curve, for one run or several seeds of it.

Residuals of a fit are smaller and less autocorrelated than the noise was, because the curve has followed some of it.
Both are mended with the AR(1) that the noise is taken to be, q = (1 + rho) / (1 - rho) times as strong at low
frequencies as it would be if white: k smooth parameters take k q / N of the variance, so that residuals have the
autocorrelation (rho - k q / N) / (1 - k q / N); of the noise at low frequencies, which is what moves a curve, blocks of
length l keep the covariances within them, less k l / N that the fit has taken. Drawn residuals are larger, to make up
for both. Several seeds are each drawn as a level of its own plus blocks around it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isojax.scaling.validation_metrics import FloatArray

RHO_MAX = 0.9
MAX_LOST_SHARE = 0.6  # of the variance, where points are few
MIN_BLOCKS_PER_RUN = 4  # blocks a run


@dataclass(frozen=True)
class NoiseModel:
    """What residuals say of the noise.

    Attributes:
        sd: its standard deviation. rho: autocorrelation of neighbours, >= 0.
        block: length of blocks, in points. factor: how many times larger residuals are drawn than they are.
    """

    sd: float
    rho: float
    block_length: int
    residual_scale: float


def estimate_noise(residuals_by_run: Sequence[FloatArray], parameter_count: int) -> NoiseModel:
    """The noise behind residuals.

    Args:
        runs: the residuals of each seed, float[points] by rising C.
        parameters: how many the curve has.
    """
    centred = [r - r.mean() for r in residuals_by_run] if len(residuals_by_run) > 1 else list(residuals_by_run)
    point_count, fitted_degrees = sum(map(len, residuals_by_run)), parameter_count + len(residuals_by_run) - 1
    sum_of_squares = sum(float((r * r).sum()) for r in centred)
    if sum_of_squares == 0:
        return NoiseModel(0.0, 0.0, 1, 1.0)
    autocorrelation = sum(float((r[1:] * r[:-1]).sum()) for r in centred) / sum_of_squares
    rho, lost_share = _fit_ar1(autocorrelation, fitted_degrees / point_count, point_count)
    shortest_run = min(map(len, residuals_by_run))
    optimal_length = (math.sqrt(6) * rho / (1 - rho**2)) ** (2 / 3) * shortest_run ** (1 / 3)
    block_length = max(1, min(math.ceil(optimal_length), shortest_run // MIN_BLOCKS_PER_RUN))
    lags = np.arange(1, block_length)
    kept_covariance = (1 + 2 * float(((1 - lags / block_length) * rho**lags).sum())) * (1 - rho) / (1 + rho)
    sd = math.sqrt(sum_of_squares / point_count / (1 - lost_share))
    return NoiseModel(
        sd,
        rho,
        block_length,
        1 / math.sqrt(max(kept_covariance - fitted_degrees * block_length / point_count, 1 - MAX_LOST_SHARE)),
    )


def _fit_ar1(autocorrelation: float, fitted_share: float, point_count: int) -> tuple[float, float]:
    """(rho, the share of variance lost) from the residuals' autocorrelation: the mean of rho over its likelihood, 0 to
    RHO_MAX.
    """
    grid = np.linspace(0, RHO_MAX, 91)
    lost_share = np.minimum(fitted_share * (1 + grid) / (1 - grid), MAX_LOST_SHARE)
    expected = np.maximum.accumulate((grid - lost_share) / (1 - lost_share))
    likelihood = np.exp(-0.5 * point_count * (autocorrelation - expected) ** 2 / (1 - grid**2))
    rho = float(np.average(grid, weights=likelihood))
    return rho, float(np.interp(rho, grid, lost_share))


def bootstrap_residuals(
    residuals_by_run: Sequence[FloatArray], noise_model: NoiseModel, replicates: int, rng: np.random.Generator
) -> FloatArray:
    """Residuals of new runs like these, one after another as in `runs`; float[replicates points]."""
    if len(residuals_by_run) == 1:
        return noise_model.residual_scale * _draw_blocks(residuals_by_run[0], noise_model.block_length, replicates, rng)
    levels = np.array([r.mean() for r in residuals_by_run])
    scaled_levels = (levels - levels.mean()) * math.sqrt(len(residuals_by_run) / (len(residuals_by_run) - 1))
    residuals_per_run = [
        noise_model.residual_scale * _draw_blocks(r - level, noise_model.block_length, replicates, rng)
        + rng.choice(scaled_levels, (replicates, 1))
        for r, level in zip(residuals_by_run, levels, strict=True)
    ]
    return np.concatenate(residuals_per_run, axis=1)


def _draw_blocks(residuals: FloatArray, block_length: int, replicates: int, rng: np.random.Generator) -> FloatArray:
    """Blocks of one run, end to end, less their mean; float[replicates points]."""
    point_count = len(residuals)
    starts = rng.integers(0, point_count - block_length + 1, (replicates, math.ceil(point_count / block_length)))
    indices = (starts[..., None] + np.arange(block_length)).reshape(replicates, -1)[:, :point_count]
    windows = np.lib.stride_tricks.sliding_window_view(residuals, block_length)
    return residuals[indices] - windows.mean()
