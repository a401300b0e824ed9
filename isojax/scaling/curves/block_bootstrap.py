"""Moving-block bootstrap of residuals (Künsch 1989) around a fitted curve, for one run or several seeds of it.

Residuals of a fit are smaller and less autocorrelated than the noise, because the curve has followed some of it. The
noise is modelled as AR(1) with correlation rho, which is q = (1 + rho) / (1 - rho) times as strong at low frequencies
as white noise of the same variance. This corrects both effects:

- k smooth parameters absorb k q / N of the variance, so the residuals have the autocorrelation
  (rho - k q / N) / (1 - k q / N), from which rho is estimated;
- blocks of length l preserve only the covariances within them, less the k l / N that the fit has absorbed, so the
  residuals are scaled up.

Several seeds are each drawn as a level plus blocks of residuals around it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isojax.scaling.validation_metrics import FloatArray

RHO_MAX = 0.9
MAX_LOST_SHARE = 0.6  # the most of the variance that a fit to few points is taken to absorb
MIN_BLOCKS_PER_RUN = 4


@dataclass(frozen=True)
class NoiseModel:
    """The noise of a run's evaluations, estimated from residuals."""

    sd: float
    rho: float  # correlation of neighbouring evaluations, >= 0
    block_length: int  # of the bootstrap, in points
    residual_scale: float  # by how much the bootstrap scales residuals up


def estimate_noise(residuals_by_run: Sequence[FloatArray], parameter_count: int) -> NoiseModel:
    """The noise of which the fit of a curve left these residuals, those of each seed by rising C."""
    run_count, point_count = len(residuals_by_run), sum(map(len, residuals_by_run))
    centred = [r - r.mean() for r in residuals_by_run] if run_count > 1 else list(residuals_by_run)
    fitted_degrees = parameter_count + run_count - 1
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
    kept_variance = max(kept_covariance - fitted_degrees * block_length / point_count, 1 - MAX_LOST_SHARE)
    sd = math.sqrt(sum_of_squares / point_count / (1 - lost_share))
    return NoiseModel(sd, rho, block_length, 1 / math.sqrt(kept_variance))


def _fit_ar1(autocorrelation: float, fitted_share: float, point_count: int) -> tuple[float, float]:
    """(rho, the share of variance that the fit absorbed): rho is its mean under the likelihood on [0, RHO_MAX]."""
    grid = np.linspace(0, RHO_MAX, 91)
    lost_share = np.minimum(fitted_share * (1 + grid) / (1 - grid), MAX_LOST_SHARE)
    expected = np.maximum.accumulate((grid - lost_share) / (1 - lost_share))
    likelihood = np.exp(-0.5 * point_count * (autocorrelation - expected) ** 2 / (1 - grid**2))
    rho = float(np.average(grid, weights=likelihood))
    return rho, float(np.interp(rho, grid, lost_share))


def bootstrap_residuals(
    residuals_by_run: Sequence[FloatArray], noise: NoiseModel, replicates: int, rng: np.random.Generator
) -> FloatArray:
    """Residuals of new runs like these, run after run; float[replicates points]."""
    run_count = len(residuals_by_run)
    if run_count == 1:
        return noise.residual_scale * _draw_blocks(residuals_by_run[0], noise.block_length, replicates, rng)
    levels = np.array([r.mean() for r in residuals_by_run])
    scaled_levels = (levels - levels.mean()) * math.sqrt(run_count / (run_count - 1))
    residuals_per_run = [
        noise.residual_scale * _draw_blocks(r - level, noise.block_length, replicates, rng)
        + rng.choice(scaled_levels, (replicates, 1))
        for r, level in zip(residuals_by_run, levels, strict=True)
    ]
    return np.concatenate(residuals_per_run, axis=1)


def _draw_blocks(residuals: FloatArray, block_length: int, replicates: int, rng: np.random.Generator) -> FloatArray:
    """Blocks of one run's residuals, end to end, minus their expectation; float[replicates points]."""
    point_count = len(residuals)
    windows = np.lib.stride_tricks.sliding_window_view(residuals, block_length)
    starts = rng.integers(0, len(windows), (replicates, math.ceil(point_count / block_length)))
    return windows[starts].reshape(replicates, -1)[:, :point_count] - windows.mean()
