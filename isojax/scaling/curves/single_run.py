"""One run's Hill curve (hill.py) through all its points, or through those of several seeds, with intervals.

Departures from ScaleRL (arXiv:2510.13786): no early point is skipped, R0 is fitted, the loss is Huber's at 1.345
standard deviations, and A <= 1 and R0 >= 0 hold only where all rewards are in [0, 1].

Intervals: a moving-block bootstrap of the residuals (Künsch 1989). The noise is AR(1) with correlation rho, at low
frequencies q = (1 + rho) / (1 - rho) times as strong as white noise. k smooth parameters absorb k q / N of the
variance, which leaves the residuals the autocorrelation (rho - k q / N) / (1 - k q / N): rho is estimated from it.
Blocks keep the covariances within them less the k l / N absorbed, so residuals are scaled up. Seeds get a level plus
blocks around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isojax.scaling.curves import varpro
from isojax.scaling.intervals import LEVEL, REPLICATES, SEED, Interval, central_band, central_interval
from isojax.scaling.tracks import FloatArray

PARAMETER_NAMES = ("R0", "A", "exponent", "C_mid")
MIN_POINTS = 5  # distinct C: one more than there are parameters
HUBER_THRESHOLD_SD = 1.345  # standard deviations: 95% as efficient as squares on Gaussian noise
BAND_POINTS = 120
OPEN_SHARE = 0.05  # an end of an interval is open where this share of replicates is at a bound
RHO_MAX = 0.9
MAX_LOST_SHARE = 0.6  # the most of the variance that a fit to few points is taken to absorb
MIN_BLOCKS_PER_RUN = 4
_REPLICATE_TOLERANCE = 1e-7


@dataclass(frozen=True)
class RunPoints:
    """Points of one run or of several seeds, sorted by run and C."""

    C: FloatArray  # [points]
    R: FloatArray  # [points]
    run_index: NDArray[np.intp]  # [points]

    def select(self, mask: NDArray[np.bool_]) -> RunPoints:
        """The points in `mask`."""
        return RunPoints(self.C[mask], self.R[mask], self.run_index[mask])

    def split_by_run(self, values: FloatArray) -> list[FloatArray]:
        """float[points] split into the values of each run."""
        return [values[self.run_index == i] for i in np.unique(self.run_index)]


@dataclass(frozen=True)
class NoiseModel:
    """The noise of a run's evaluations, estimated from residuals."""

    sd: float
    rho: float  # correlation of neighbouring evaluations, >= 0
    block_length: int  # of the bootstrap, in points
    residual_scale: float  # by how much the bootstrap scales residuals up


@dataclass(frozen=True)
class SingleRunFit:
    """A fitted curve."""

    parameters: dict[str, float]  # by PARAMETER_NAMES
    solution: varpro.VarproSolution  # the same as the solver has it, of one data set
    space: varpro.SearchSpace  # what was searched
    residual_clip: float  # where Huber's loss turns linear
    noise: NoiseModel
    at_bounds: tuple[str, ...]  # parameters that the points do not determine


def fit_single_run(points: RunPoints) -> SingleRunFit:
    """The curve of least Huber loss through points of at least MIN_POINTS distinct C >= 0."""
    rewards_bounded = bool(np.all((points.R >= 0) & (points.R <= 1)))
    space = varpro.search_space(points.C, (0.0, 1.0) if rewards_bounded else None)
    least_squares = varpro.fit_least_squares(space, points.R)
    degrees_of_freedom = max(len(points.R) - len(PARAMETER_NAMES), 1)
    median_residual = float(np.median(np.abs(points.R - least_squares.fitted_rewards[0])))
    robust_sd = 1.4826 * median_residual * np.sqrt(len(points.R) / degrees_of_freedom)
    residual_clip = HUBER_THRESHOLD_SD * max(robust_sd, 1e-6 * float(np.ptp(points.R)), 1e-12)
    influence = varpro.huber_influence(residual_clip)
    solution = varpro.fit_robust(space, points.R[None], least_squares.phi, influence)
    residuals = points.split_by_run(points.R - solution.fitted_rewards[0])
    return SingleRunFit(
        parameters={name: float(getattr(solution, name)[0]) for name in PARAMETER_NAMES},
        solution=solution,
        space=space,
        residual_clip=residual_clip,
        noise=estimate_noise(residuals, len(PARAMETER_NAMES)),
        at_bounds=varpro.parameters_at_bounds(solution, space),
    )


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


def bootstrap_replicates(fit: SingleRunFit, points: RunPoints) -> varpro.VarproSolution:
    """The curve refitted to runs drawn around it, from the curve itself or from a better corner of the grid."""
    residuals = points.split_by_run(points.R - fit.solution.fitted_rewards[0])
    drawn_residuals = bootstrap_residuals(residuals, fit.noise, REPLICATES, np.random.default_rng(SEED))
    R = fit.solution.fitted_rewards + drawn_residuals
    starts = np.concatenate([fit.solution.phi, varpro.start_grid(fit.space)])
    best_start = varpro.corner_errors(fit.space, R, starts).argmin(-1)
    influence = varpro.huber_influence(fit.residual_clip * fit.noise.residual_scale)
    return varpro.fit_robust(fit.space, R, starts[best_start], influence, _REPLICATE_TOLERANCE)


def parameter_intervals(bootstrap: varpro.VarproSolution, space: varpro.SearchSpace) -> dict[str, Interval]:
    """parameter -> its interval; an end that many replicates push to a bound is open, None."""
    hits = varpro.bound_hits(bootstrap, space)
    intervals: dict[str, Interval] = {}
    for name in PARAMETER_NAMES:
        low, high = central_interval(getattr(bootstrap, name))
        at_lower, at_upper = hits.get(name, (np.zeros(1), np.zeros(1)))
        low_is_open, high_is_open = at_lower.mean() >= OPEN_SHARE, at_upper.mean() >= OPEN_SHARE
        intervals[name] = (None if low_is_open else low, None if high_is_open else high)
    return intervals


def curve_band(fit: SingleRunFit, bootstrap: varpro.VarproSolution, C: FloatArray) -> dict[str, FloatArray]:
    """The curve at C and its interval: {"C", "reward", "low", "high"}, float[points] each."""
    low, high = central_band(varpro.evaluate_solution(bootstrap, C))
    return {"C": C, "reward": varpro.evaluate_solution(fit.solution, C)[0], "low": low, "high": high}


def describe_bootstrap(fit: SingleRunFit, seed_count: int) -> dict[str, Any]:
    """How the intervals were made, for JSON."""
    method = f"moving blocks of {fit.noise.block_length} residuals" + (
        f" within each of {seed_count} seeds, and the seeds' levels" if seed_count > 1 else ""
    )
    return {"level": LEVEL, "replicates": REPLICATES, "seed": SEED, "method": method}
