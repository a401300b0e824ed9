"""One run's curve, ScaleRL's R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B) (arXiv:2510.13786, eq. 1), through all its
points or those of several seeds, with intervals and, where it is fitted below some C only, its error beyond.

Departures from ScaleRL: all points count, no early one is skipped; R0 is fitted, a point at C = 0 (where R = R0)
counting like any other; Huber's loss at 1.345 standard deviations instead of squares; A <= 1 and R0 >= 0 hold only
where all rewards lie in [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isojax.scaling.curves.block_bootstrap import NoiseModel, bootstrap_residuals, estimate_noise
from isojax.scaling.curves.varpro import (
    ComputeAxis,
    VarproSolution,
    corner_errors,
    fit_huber,
    hill_progress,
    make_axis,
    start_grid,
)
from isojax.scaling.validation_metrics import FloatArray

BoolArray = NDArray[np.bool]

PARAMETER_NAMES = ("R0", "A", "B", "C_mid")
MIN_POINTS = 5  # distinct C: one more than there are parameters
START_COUNT = 8
HUBER_THRESHOLD_SD = 1.345  # standard deviations: 95% as efficient as squares on Gaussian noise
LEVEL, REPLICATES, SEED = 0.9, 500, 0
BAND_POINTS = 120
OPEN_SHARE = 0.05  # an end of an interval is open where this share of replicates lies at a bound
_REPLICATE_TOLERANCE = 1e-7


@dataclass(frozen=True)
class RunPoints:
    """Points of one run or several seeds of it: C, R float[points], sorted by run and C, and run int[points], 0, 1,
    ...
    """

    C: FloatArray
    R: FloatArray
    run_index: NDArray[np.intp]

    def select(self, mask: BoolArray) -> RunPoints:
        """Some of the points."""
        return RunPoints(self.C[mask], self.R[mask], self.run_index[mask])

    def split_by_run(self, values: FloatArray) -> list[FloatArray]:
        """values, float[points], of each run."""
        return [values[self.run_index == i] for i in np.unique(self.run_index)]


@dataclass(frozen=True)
class SingleRunFit:
    """A fitted curve: its parameters, the solution of the one data set, its axis, at which residual the loss turns
    linear, its noise.
    """

    parameters: dict[str, float]
    solution: VarproSolution
    axis: ComputeAxis
    residual_clip: float
    noise: NoiseModel
    at_bounds: tuple[str, ...]


def fit_single_run(points: RunPoints, starts: FloatArray | None = None) -> SingleRunFit:
    """The curve of least Huber loss.

    Args:
        runs: at least MIN_POINTS distinct C >= 0.
        starts: float[starts 2] of (ln B, log10 C_mid) to search from, instead of the best corners of a fixed grid.
    """
    rewards_bounded = bool(np.all((points.R >= 0) & (points.R <= 1)))
    axis = make_axis(points.C, (0.0, 1.0) if rewards_bounded else None)
    R = points.R[None]
    if starts is None:
        corners = start_grid(axis)
        starts = corners[np.argsort(corner_errors(axis, R, corners)[0], kind="stable")[:START_COUNT]]
    R_per_start = np.repeat(R, len(starts), 0)
    least_squares_fit = fit_huber(axis, R_per_start, starts)
    residual = (
        R[0]
        - least_squares_fit.fitted_rewards[
            int(((R_per_start - least_squares_fit.fitted_rewards) ** 2).sum(-1).argmin())
        ]
    )
    point_count = len(points.C)
    sd = 1.4826 * float(np.median(np.abs(residual))) * np.sqrt(point_count / max(point_count - len(PARAMETER_NAMES), 1))
    residual_clip = HUBER_THRESHOLD_SD * max(sd, 1e-6 * float(np.ptp(points.R)), 1e-12)
    huber_fit = fit_huber(axis, R_per_start, least_squares_fit.phi, residual_clip)
    abs_residual = np.abs(R_per_start - huber_fit.fitted_rewards)
    best_start = int(
        np.where(
            abs_residual <= residual_clip, 0.5 * abs_residual**2, residual_clip * (abs_residual - 0.5 * residual_clip)
        )
        .sum(-1)
        .argmin()
    )
    solution = VarproSolution(
        *(
            value[best_start : best_start + 1]
            for value in (huber_fit.phi, huber_fit.R0, huber_fit.G, huber_fit.fitted_rewards)
        )
    )
    noise_model = estimate_noise(points.split_by_run(R[0] - solution.fitted_rewards[0]), len(PARAMETER_NAMES))
    parameters = {name: float(value[0]) for name, value in _named_parameters(solution).items()}
    return SingleRunFit(parameters, solution, axis, residual_clip, noise_model, _at_bounds(solution, axis))


def _named_parameters(solution: VarproSolution) -> dict[str, FloatArray]:
    """Each parameter of each data set, float[R]."""
    values = (solution.R0, solution.R0 + solution.G, np.exp(solution.phi[:, 0]), 10 ** solution.phi[:, 1])
    return dict(zip(PARAMETER_NAMES, values, strict=True))


def _bound_hits(solution: VarproSolution, axis: ComputeAxis) -> dict[str, tuple[BoolArray, BoolArray]]:
    """parameter -> (which data sets have it at its lower bound, at its upper one). R0 = 0 is a reward, no failure."""
    bound_margin = 1e-3 * (axis.phi_upper - axis.phi_lower)
    at_lower, at_upper = solution.phi - axis.phi_lower < bound_margin, axis.phi_upper - solution.phi < bound_margin
    A_upper = np.inf if axis.reward_range is None else axis.reward_range[1]
    never = np.zeros(len(solution.G), dtype=bool)
    # Without a bound of its own, A is open where C_mid has gone as far as it may.
    A_high = (solution.R0 + solution.G >= A_upper - 1e-9) | at_upper[:, 1]
    return {"A": (never, A_high), "B": (at_lower[:, 0], at_upper[:, 0]), "C_mid": (at_lower[:, 1], at_upper[:, 1])}


def _at_bounds(solution: VarproSolution, axis: ComputeAxis) -> tuple[str, ...]:
    hits = _bound_hits(solution, axis)
    return tuple(name for name in PARAMETER_NAMES if name in hits and (hits[name][0][0] or hits[name][1][0]))


def evaluate_solution(solution: VarproSolution, C: FloatArray) -> FloatArray:
    """The curves of each data set at C >= 0, some of it > 0; float[points] -> float[R points]."""
    return solution.R0[:, None] + solution.G[:, None] * hill_progress(make_axis(C, None), solution.phi)


def bootstrap_replicates(
    fit: SingleRunFit, points: RunPoints, count: int = REPLICATES, seed: int = SEED
) -> VarproSolution:
    """The curve refitted to runs drawn around it by a moving-block bootstrap of its residuals."""
    rng = np.random.default_rng(seed)
    residuals = points.split_by_run(points.R - fit.solution.fitted_rewards[0])
    R = fit.solution.fitted_rewards + bootstrap_residuals(residuals, fit.noise, count, rng)
    corners = start_grid(fit.axis)
    errors_at_corners = corner_errors(fit.axis, R, corners)
    phi = np.repeat(fit.solution.phi, count, 0)
    errors_at_fit = corner_errors(fit.axis, R, fit.solution.phi)[:, 0]
    corner_is_better = errors_at_corners.min(-1) < errors_at_fit
    phi[corner_is_better] = corners[errors_at_corners.argmin(-1)[corner_is_better]]
    return fit_huber(fit.axis, R, phi, fit.residual_clip * fit.noise.residual_scale, _REPLICATE_TOLERANCE)


def parameter_intervals(bootstrap: VarproSolution, axis: ComputeAxis) -> dict[str, list[float | None]]:
    """parameter -> its interval; an end that many replicates push to a bound is open, None."""
    hits, interval_by_name = _bound_hits(bootstrap, axis), {}
    for name, value in _named_parameters(bootstrap).items():
        low, high = (float(v) for v in np.quantile(value, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
        low_is_open, high_is_open = (
            (float(h.mean()) >= OPEN_SHARE for h in hits[name]) if name in hits else (False, False)
        )
        interval_by_name[name] = [None if low_is_open else low, None if high_is_open else high]
    return interval_by_name


def curve_band(fit: SingleRunFit, bootstrap: VarproSolution, C: FloatArray) -> dict[str, FloatArray]:
    """The curve at C and its interval: {"C", "reward", "low", "high"}, float[points] each."""
    low, high = np.quantile(evaluate_solution(bootstrap, C), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return {"C": C, "reward": evaluate_solution(fit.solution, C)[0], "low": low, "high": high}


def describe_bootstrap(fit: SingleRunFit, seed_count: int) -> dict[str, Any]:
    """How the intervals were made, for JSON."""
    method = f"moving blocks of {fit.noise.block_length} residuals" + (
        f" within each of {seed_count} seeds, and the seeds' levels" if seed_count > 1 else ""
    )
    return {"level": LEVEL, "replicates": REPLICATES, "seed": SEED, "method": method}
