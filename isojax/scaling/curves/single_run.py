"""One run's Hill curve (hill.py) through all its points, or through those of several seeds, with intervals.

Departures from ScaleRL (arXiv:2510.13786): all points count, no early one is skipped; R0 is fitted, a point at C = 0
(where R = R0) counting like any other; the loss is Huber's at 1.345 standard deviations instead of squares; A <= 1 and
R0 >= 0 hold only where all rewards are in [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isojax.scaling.curves.block_bootstrap import NoiseModel, bootstrap_residuals, estimate_noise
from isojax.scaling.curves.varpro import (
    SearchSpace,
    VarproSolution,
    best_corners,
    bound_hits,
    corner_errors,
    evaluate_solution,
    fit_from_starts,
    fit_robust,
    huber_loss,
    least_loss,
    parameters_at_bounds,
    search_space,
    squared_loss,
    start_grid,
)
from isojax.scaling.intervals import LEVEL, REPLICATES, SEED, Interval, central_band, central_interval
from isojax.scaling.validation_metrics import FloatArray

BoolArray = NDArray[np.bool]

PARAMETER_NAMES = ("R0", "A", "exponent", "C_mid")
MIN_POINTS = 5  # distinct C: one more than there are parameters
HUBER_THRESHOLD_SD = 1.345  # standard deviations: 95% as efficient as squares on Gaussian noise
BAND_POINTS = 120
OPEN_SHARE = 0.05  # an end of an interval is open where this share of replicates is at a bound
_REPLICATE_TOLERANCE = 1e-7


@dataclass(frozen=True)
class RunPoints:
    """Points of one run or of several seeds: C and R float[points], sorted by run and C, and the run's number
    int[points].
    """

    C: FloatArray
    R: FloatArray
    run_index: NDArray[np.intp]

    def select(self, mask: BoolArray) -> RunPoints:
        """The points in `mask`."""
        return RunPoints(self.C[mask], self.R[mask], self.run_index[mask])

    def split_by_run(self, values: FloatArray) -> list[FloatArray]:
        """float[points] split into the values of each run."""
        return [values[self.run_index == i] for i in np.unique(self.run_index)]


@dataclass(frozen=True)
class SingleRunFit:
    """A fitted curve.

    Attributes:
        parameters: name -> value. solution: the same as the solver has it, of one data set.
        space: what was searched. residual_clip: the residual at which the loss turns linear.
        noise: what the residuals say of it. at_bounds: parameters that the points do not determine.
    """

    parameters: dict[str, float]
    solution: VarproSolution
    space: SearchSpace
    residual_clip: float
    noise: NoiseModel
    at_bounds: tuple[str, ...]


def fit_single_run(points: RunPoints, starts: FloatArray | None = None) -> SingleRunFit:
    """The curve of least Huber loss.

    Args:
        points: at least MIN_POINTS distinct C >= 0.
        starts: float[starts 2] of (ln exponent, log10 C_mid) to search from, instead of the best corners of a grid.
    """
    rewards_bounded = bool(np.all((points.R >= 0) & (points.R <= 1)))
    space = search_space(points.C, (0.0, 1.0) if rewards_bounded else None)
    starts = best_corners(space, points.R) if starts is None else starts
    least_squares_fits = fit_from_starts(space, points.R, starts, squared_loss())
    least_squares_fit = least_loss(space, points.R, least_squares_fits, squared_loss())
    residual_clip = _residual_clip(points.R, points.R - least_squares_fit.fitted_rewards[0])
    loss = huber_loss(residual_clip)
    solution = least_loss(space, points.R, fit_from_starts(space, points.R, least_squares_fits.phi, loss), loss)
    residuals = points.split_by_run(points.R - solution.fitted_rewards[0])
    return SingleRunFit(
        parameters={name: float(value[0]) for name, value in _named_parameters(solution).items()},
        solution=solution,
        space=space,
        residual_clip=residual_clip,
        noise=estimate_noise(residuals, len(PARAMETER_NAMES)),
        at_bounds=parameters_at_bounds(solution, space),
    )


def _residual_clip(R: FloatArray, residuals: FloatArray) -> float:
    """Where Huber's loss turns linear, from a robust standard deviation of the residuals of least squares."""
    degrees_of_freedom = max(len(R) - len(PARAMETER_NAMES), 1)
    sd = 1.4826 * float(np.median(np.abs(residuals))) * np.sqrt(len(R) / degrees_of_freedom)
    return HUBER_THRESHOLD_SD * max(sd, 1e-6 * float(np.ptp(R)), 1e-12)


def _named_parameters(solution: VarproSolution) -> dict[str, FloatArray]:
    """Each parameter of each data set, float[R]."""
    values = (solution.R0, solution.A, solution.exponent, solution.C_mid)
    return dict(zip(PARAMETER_NAMES, values, strict=True))


def bootstrap_replicates(
    fit: SingleRunFit, points: RunPoints, count: int = REPLICATES, seed: int = SEED
) -> VarproSolution:
    """The curve refitted to runs drawn around it by a moving-block bootstrap of its residuals."""
    rng = np.random.default_rng(seed)
    residuals = points.split_by_run(points.R - fit.solution.fitted_rewards[0])
    R = fit.solution.fitted_rewards + bootstrap_residuals(residuals, fit.noise, count, rng)
    corners = start_grid(fit.space)
    errors_at_corners = corner_errors(fit.space, R, corners)
    phi = np.repeat(fit.solution.phi, count, 0)
    errors_at_fit = corner_errors(fit.space, R, fit.solution.phi)[:, 0]
    corner_is_better = errors_at_corners.min(-1) < errors_at_fit
    phi[corner_is_better] = corners[errors_at_corners.argmin(-1)[corner_is_better]]
    loss = huber_loss(fit.residual_clip * fit.noise.residual_scale)
    return fit_robust(fit.space, R, phi, loss, _REPLICATE_TOLERANCE)


def parameter_intervals(bootstrap: VarproSolution, space: SearchSpace) -> dict[str, Interval]:
    """parameter -> its interval; an end that many replicates push to a bound is open, None."""
    hits = bound_hits(bootstrap, space)
    intervals: dict[str, Interval] = {}
    for name, values in _named_parameters(bootstrap).items():
        low, high = central_interval(values)
        at_lower, at_upper = hits.get(name, (np.zeros(1), np.zeros(1)))
        low_is_open, high_is_open = at_lower.mean() >= OPEN_SHARE, at_upper.mean() >= OPEN_SHARE
        intervals[name] = (None if low_is_open else low, None if high_is_open else high)
    return intervals


def curve_band(fit: SingleRunFit, bootstrap: VarproSolution, C: FloatArray) -> dict[str, FloatArray]:
    """The curve at C and its interval: {"C", "reward", "low", "high"}, float[points] each."""
    low, high = central_band(evaluate_solution(bootstrap, C))
    return {"C": C, "reward": evaluate_solution(fit.solution, C)[0], "low": low, "high": high}


def describe_bootstrap(fit: SingleRunFit, seed_count: int) -> dict[str, Any]:
    """How the intervals were made, for JSON."""
    method = f"moving blocks of {fit.noise.block_length} residuals" + (
        f" within each of {seed_count} seeds, and the seeds' levels" if seed_count > 1 else ""
    )
    return {"level": LEVEL, "replicates": REPLICATES, "seed": SEED, "method": method}
