"""Draws from the posterior of all curves, including the shape's tail, and the mean curves.

A short run does not show how its curve approaches the plateau, but the prediction at four times the compute depends on
it. So no single shape is chosen: each tail of TAIL_PRIOR gets draws in proportion to its posterior probability. The
mean over the draws is again described by one curve per cell, the one closest in reward from the start of its data to
MEAN_CURVE_REACH times the end of all data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from isojax.scaling.curves.hierarchical import Scales, find_mode, minus_two_log_posterior, predict_rewards
from isojax.scaling.curves.hierarchical_prior import NOISELESS_SD, PackedSweep, ShapeFit, estimate_run_sd, fit_shape
from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.hmc import run_hmc_chains
from isojax.scaling.estimate import EstimationOptions
from isojax.scaling.validation_metrics import FloatArray

# tail -> prior probability: ScaleRL's sigmoid as likely as all others together.
TAIL_PRIOR = {1.0: 0.5, 0.75: 0.1, 0.5: 0.1, 0.25: 0.1, 0.0: 0.2}
MIN_TAIL_PROBABILITY = 0.01
CHAINS_PER_CHUNK = 50  # so many fit into a processor cache, and progress is reported after each chunk
DEFAULT_DRAW_COUNT = 200  # behind the mean curves where no intervals are wanted
MEAN_CURVE_REACH = 6.0
_GRID_POINTS = 32


@dataclass(frozen=True)
class CurvePosterior:
    """All curves given the evaluations.

    Attributes:
        theta: float[Q, J, 3] = (A, log10 C_mid, ln exponent). R0, tail: float[Q].
        mean_curves: float[J, 4] = (A, log10 C_mid, ln exponent, tail) of each cell's mean curve.
        e: float[J, S], the run effects at the likeliest mode.
        scales: standard deviations at that mode. run_sd_from: where its run_sd comes from, in words.
        evaluation_sd: standard deviation of one evaluation, from the differences of neighbours.
    """

    theta: FloatArray
    R0: FloatArray
    tail: FloatArray
    mean_curves: FloatArray
    e: FloatArray
    scales: Scales
    run_sd_from: str
    evaluation_sd: float


def fit_all_tails(packed: PackedSweep, stated_run_sd: float | None) -> tuple[list[ShapeFit], FloatArray]:
    """(the mode of each tail, the likeliest first, all under the scales of the likeliest; their posterior
    probabilities).
    """
    shape_fits = [fit_shape(tail, packed, stated_run_sd) for tail in TAIL_PRIOR]
    best_fit = min(shape_fits, key=lambda f: f.scales.noise_sd)
    states = [find_mode(f.tail, packed.data, f.state, best_fit.scales, iterations=200) for f in shape_fits]
    costs = np.array(
        [
            minus_two_log_posterior(f.tail, packed.data, s, best_fit.scales)
            for f, s in zip(shape_fits, states, strict=True)
        ]
    )
    tail_weights = np.array(list(TAIL_PRIOR.values())) * np.exp(-0.5 * (costs - costs.min()))
    order = np.argsort(-tail_weights, kind="stable")
    ranked_fits = [
        replace(shape_fits[i], state=states[i], scales=best_fit.scales, run_sd_from=best_fit.run_sd_from) for i in order
    ]
    return ranked_fits, tail_weights[order] / tail_weights.sum()


def sample_posterior(
    packed: PackedSweep, shape_fits: list[ShapeFit], tail_probabilities: FloatArray, options: EstimationOptions
) -> CurvePosterior:
    """options.replicates draws (DEFAULT_DRAW_COUNT where that is 0) and the mean curves.

    shape_fits, tail_probabilities: as `fit_all_tails` returns them.
    """
    best_fit, data = shape_fits[0], packed.data
    mode_residuals = (data.y - predict_rewards(best_fit.tail, data, best_fit.state)) * data.weight
    evaluation_sd = _neighbour_sd(mode_residuals, packed)
    draw_count = options.replicates or DEFAULT_DRAW_COUNT
    if best_fit.scales.noise_sd < NOISELESS_SD:
        theta, R0, tail = (
            np.repeat(best_fit.state.theta[None], draw_count, axis=0),
            np.full(draw_count, best_fit.state.R0),
            np.full(draw_count, best_fit.tail),
        )
    else:
        scales = replace(
            best_fit.scales, noise_sd=best_fit.scales.noise_sd * np.sqrt(_variance_inflation(mode_residuals, packed))
        )
        shape_fits = [
            replace(f, scales=scales, state=find_mode(f.tail, data, f.state, scales, iterations=200))
            for f in shape_fits
        ]
        theta, R0, tail = _sample_tails(shape_fits, tail_probabilities, packed, draw_count, options)
    return CurvePosterior(
        theta,
        R0,
        tail,
        _mean_curves(theta, R0, tail, packed),
        best_fit.state.e,
        best_fit.scales,
        best_fit.run_sd_from,
        evaluation_sd,
    )


def _sample_tails(
    shape_fits: list[ShapeFit],
    tail_probabilities: FloatArray,
    packed: PackedSweep,
    draw_count: int,
    options: EstimationOptions,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    rng, best_fit = np.random.default_rng(options.seed), shape_fits[0]
    _, _, degrees_of_freedom = estimate_run_sd(
        best_fit.tail, packed.data, best_fit.state, best_fit.scales.noise_sd, options.run_sd
    )
    kept_probabilities = np.where(tail_probabilities >= MIN_TAIL_PROBABILITY, tail_probabilities, 0.0)
    draws_per_tail = rng.multinomial(draw_count, kept_probabilities / kept_probabilities.sum())
    chunks, drawn_count = [], 0
    for shape_fit, tail_draw_count in zip(shape_fits, draws_per_tail, strict=True):
        for chunk_start in range(0, int(tail_draw_count), CHAINS_PER_CHUNK):
            chunk_size = min(CHAINS_PER_CHUNK, int(tail_draw_count) - chunk_start)
            run_sds = shape_fit.scales.run_sd * np.sqrt(
                degrees_of_freedom / rng.chisquare(degrees_of_freedom, chunk_size)
            )
            theta, R0 = run_hmc_chains(shape_fit.tail, packed.data, shape_fit.state, shape_fit.scales, run_sds, rng)
            chunks.append((theta, R0, np.full(chunk_size, shape_fit.tail)))
            drawn_count += chunk_size
            if options.on_progress is not None:
                options.on_progress(drawn_count, draw_count)
    theta, R0, tail = (np.concatenate(part) for part in zip(*chunks, strict=True))
    return theta, R0, tail


def _neighbour_sd(mode_residuals: FloatArray, packed: PackedSweep) -> float:
    """Standard deviation of one evaluation, from the differences of neighbouring residuals, float[J, S, P]: no smooth
    curve could explain these.
    """
    both_recorded = (packed.data.weight[..., 1:] > 0) & (packed.data.weight[..., :-1] > 0)
    differences = (mode_residuals[..., 1:] - mode_residuals[..., :-1])[both_recorded]
    return float(np.sqrt(np.mean(differences**2) / 2)) if len(differences) else 0.0


def _variance_inflation(mode_residuals: FloatArray, packed: PackedSweep) -> float:
    """By how much the variance of a mean of neighbouring evaluations exceeds that of independent ones, (1 + rho) / (1 -
    rho). Runs drift, or curves have another shape; a fit that ignores this has too narrow intervals.
    """
    has_point = packed.data.weight > 0
    both_recorded = has_point[..., 1:] & has_point[..., :-1]
    autocorrelation = (
        float(
            np.mean((mode_residuals[..., 1:] * mode_residuals[..., :-1])[both_recorded])
            / max(float(np.mean(mode_residuals[has_point] ** 2)), 1e-30)
        )
        if both_recorded.any()
        else 0.0
    )
    autocorrelation = min(autocorrelation, 0.8)
    return (
        (1 + autocorrelation) / (1 - autocorrelation)
        if autocorrelation > max(0.1, 2 / np.sqrt(max(1, both_recorded.sum())))
        else 1.0
    )


def _mean_curves(theta: FloatArray, R0: FloatArray, tail: FloatArray, packed: PackedSweep) -> FloatArray:
    """float[J, 4]: for each cell the curve nearest to the mean of its draws."""
    mean_curves = []
    for j in range(theta.shape[1]):
        log10_C = packed.data.x[j][(packed.data.weight[j] > 0) & np.isfinite(packed.data.x[j])]
        C = np.geomspace(10 ** log10_C.min(), MEAN_CURVE_REACH * 10**packed.data.x_high, _GRID_POINTS)
        A, mid, lnB = theta[:, j, 0], theta[:, j, 1], theta[:, j, 2]
        mean_rewards = curve_value(
            C, R0[:, None], A[:, None], np.exp(lnB)[:, None], 10 ** mid[:, None], tail[:, None]
        ).mean(0)
        start_parameters = np.array([A.mean(), mid.mean(), lnB.mean(), tail.mean()])

        def residual(parameters: FloatArray, C: FloatArray = C, mean_rewards: FloatArray = mean_rewards) -> FloatArray:
            return (
                curve_value(C, R0.mean(), parameters[0], np.exp(parameters[2]), 10 ** parameters[1], parameters[3])
                - mean_rewards
            )

        bounds: Any = (
            [0.0, start_parameters[1] - 3, start_parameters[2] - 3, 0.0],
            [1.0, start_parameters[1] + 3, start_parameters[2] + 3, 1.0],
        )
        if np.ptp(tail) == 0 and np.abs(residual(start_parameters)).max() < 1e-9:
            mean_curves.append(start_parameters)
            continue
        mean_curves.append(
            least_squares(
                residual, np.clip(start_parameters, bounds[0], bounds[1]), bounds=bounds, x_scale=[0.1, 0.3, 0.3, 0.5]
            ).x
        )
    return np.array(mean_curves)


def mean_curve_residuals(posterior: CurvePosterior, packed: PackedSweep) -> FloatArray:
    """float[J, S, P]: evaluations minus the mean curves and the run effects; 0 where there is no point."""
    point_residuals = np.zeros_like(packed.data.y)
    R0 = float(posterior.R0.mean())
    for j, (A, mid, lnB, tail) in enumerate(posterior.mean_curves):
        with np.errstate(over="ignore"):
            has_compute = np.isfinite(packed.data.x[j])
            C = 10 ** np.where(has_compute, packed.data.x[j], packed.data.x_low)
        s = curve_value(C, 0.0, 1.0, np.exp(lnB), 10**mid, tail) * has_compute
        fitted = R0 + (A - R0) * s
        run_effects = _run_effects(packed.data.y[j] - fitted, s, packed.data.weight[j], posterior)
        point_residuals[j] = (packed.data.y[j] - fitted - run_effects[:, None] * s) * packed.data.weight[j]
    return point_residuals


def _run_effects(
    point_residuals: FloatArray, s: FloatArray, weight: FloatArray, posterior: CurvePosterior
) -> FloatArray:
    """float[S]: the run effects that explain these residuals, shrunk by their prior."""
    information = (weight * s * s).sum(-1) / max(posterior.scales.noise_sd, 1e-12) ** 2
    return (
        (weight * s * point_residuals).sum(-1)
        / max(posterior.scales.noise_sd, 1e-12) ** 2
        / (information + 1 / max(posterior.scales.run_sd, 1e-9) ** 2)
    )
