"""Posterior draws of all curves with the shape's tail, each of TAIL_PRIOR by its probability; each cell's mean curve is
the one closest in reward from the start of its data to MEAN_CURVE_REACH times the end of all data.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from isojax.scaling.curves.hierarchical import Scales, find_mode, minus_two_log_posterior, predict_rewards
from isojax.scaling.curves.hierarchical_prior import NOISELESS_SD, PackedSweep, ShapeFit, estimate_run_sd, fit_shape
from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.hmc import run_hmc_chains
from isojax.scaling.estimate import FitOptions
from isojax.scaling.tracks import FloatArray, autocorrelation, difference_sd

# tail -> prior probability: ScaleRL's sigmoid as likely as all others together.
TAIL_PRIOR = {1.0: 0.5, 0.75: 0.1, 0.5: 0.1, 0.25: 0.1, 0.0: 0.2}
MIN_TAIL_PROBABILITY = 0.01
CHAINS_PER_CHUNK = 50  # so many fit into a processor cache, and progress is reported after each chunk
DEFAULT_DRAW_COUNT = 200  # behind the mean curves where no intervals are wanted
MEAN_CURVE_REACH = 6.0
MAX_AUTOCORRELATION = 0.8
_GRID_POINTS = 32


@dataclass(frozen=True)
class CurvePosterior:
    """All curves given the evaluations."""

    theta: FloatArray  # [Q, J, 3], (A, log10 C_mid, ln exponent) of each draw
    R0: FloatArray  # [Q]
    tail: FloatArray  # [Q]
    mean_curves: FloatArray  # [J, 4], (A, log10 C_mid, ln exponent, tail) of each cell
    scales: Scales  # at the likeliest mode
    run_sd_from: str  # where its run_sd comes from
    evaluation_sd: float  # of one evaluation, from the differences of neighbours


def fit_all_tails(packed: PackedSweep, stated_run_sd: float | None) -> tuple[list[ShapeFit], FloatArray]:
    """(the mode of each tail, the likeliest first, all under the scales of the best one; their probabilities)."""
    shape_fits = [fit_shape(tail, packed, stated_run_sd) for tail in TAIL_PRIOR]
    best_fit = min(shape_fits, key=lambda f: f.scales.noise_sd)
    scales = best_fit.scales
    shape_fits = [
        ShapeFit(f.tail, find_mode(f.tail, packed.data, f.state, scales, iterations=200), scales, best_fit.run_sd_from)
        for f in shape_fits
    ]
    costs = np.array([minus_two_log_posterior(f.tail, packed.data, f.state, scales) for f in shape_fits])
    tail_weights = np.array(list(TAIL_PRIOR.values())) * np.exp(-0.5 * (costs - costs.min()))
    order = np.argsort(-tail_weights, kind="stable")
    return [shape_fits[i] for i in order], tail_weights[order] / tail_weights.sum()


def sample_posterior(
    packed: PackedSweep, shape_fits: list[ShapeFit], tail_probabilities: FloatArray, options: FitOptions
) -> CurvePosterior:
    """options.replicates draws (DEFAULT_DRAW_COUNT where that is 0) of what `fit_all_tails` found, and mean curves."""
    best_fit, data = shape_fits[0], packed.data
    mode_residuals = data.y - predict_rewards(best_fit.tail, data, best_fit.state)
    residuals_by_run = [mode_residuals[run][data.weight[run] > 0] for run in np.ndindex(data.weight.shape[:2])]
    draw_count = options.replicates or DEFAULT_DRAW_COUNT
    if best_fit.scales.noise_sd < NOISELESS_SD:
        theta = np.repeat(best_fit.state.theta[None], draw_count, axis=0)
        R0, tail = np.full(draw_count, best_fit.state.R0), np.full(draw_count, best_fit.tail)
    else:
        noise_sd = best_fit.scales.noise_sd * np.sqrt(_variance_inflation(residuals_by_run))
        scales = replace(best_fit.scales, noise_sd=noise_sd)
        shape_fits = [
            replace(f, scales=scales, state=find_mode(f.tail, data, f.state, scales, iterations=200))
            for f in shape_fits
        ]
        *_, degrees_of_freedom = estimate_run_sd(best_fit.tail, data, shape_fits[0].state, noise_sd, options.run_sd)
        theta, R0, tail = _sample_tails(shape_fits, tail_probabilities, packed, degrees_of_freedom, options)
    return CurvePosterior(
        theta=theta,
        R0=R0,
        tail=tail,
        mean_curves=np.array([_mean_curve(theta[:, j], R0, tail, packed, j) for j in range(len(packed.keys))]),
        scales=best_fit.scales,
        run_sd_from=best_fit.run_sd_from,
        evaluation_sd=difference_sd(residuals_by_run),
    )


def _sample_tails(
    shape_fits: list[ShapeFit],
    tail_probabilities: FloatArray,
    packed: PackedSweep,
    degrees_of_freedom: float,
    options: FitOptions,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(theta, R0, tail) of the draws; degrees_of_freedom: of the run-to-run standard deviation."""
    rng, draw_count = np.random.default_rng(options.seed), options.replicates or DEFAULT_DRAW_COUNT
    kept_probabilities = np.where(tail_probabilities >= MIN_TAIL_PROBABILITY, tail_probabilities, 0.0)
    draws_per_tail = rng.multinomial(draw_count, kept_probabilities / kept_probabilities.sum())
    chunks, drawn_count = [], 0
    for f, tail_draw_count in zip(shape_fits, draws_per_tail, strict=True):
        for chunk_start in range(0, int(tail_draw_count), CHAINS_PER_CHUNK):
            chunk_size = min(CHAINS_PER_CHUNK, int(tail_draw_count) - chunk_start)
            relative_variance = degrees_of_freedom / rng.chisquare(degrees_of_freedom, chunk_size)
            run_sds = f.scales.run_sd * np.sqrt(relative_variance)
            theta, R0 = run_hmc_chains(packed.data, f, run_sds, rng)
            chunks.append((theta, R0, np.full(chunk_size, f.tail)))
            drawn_count += chunk_size
            if options.on_progress is not None:
                options.on_progress(drawn_count, draw_count)
    theta, R0, tail = (np.concatenate(part) for part in zip(*chunks, strict=True))
    return theta, R0, tail


def _variance_inflation(residuals_by_run: list[FloatArray]) -> float:
    """(1 + rho) / (1 - rho), by which correlation widens the variance of a mean: runs drift, or shapes differ."""
    neighbour_count = sum(max(len(r) - 1, 0) for r in residuals_by_run)
    rho = min(autocorrelation(residuals_by_run) or 0.0, MAX_AUTOCORRELATION)
    is_significant = rho > max(0.1, 2 / np.sqrt(max(1, neighbour_count)))
    return (1 + rho) / (1 - rho) if is_significant else 1.0


def _mean_curve(theta: FloatArray, R0: FloatArray, tail: FloatArray, packed: PackedSweep, j: int) -> FloatArray:
    """float[4]: the curve nearest to the mean of cell j's draws, theta float[Q, 3]."""
    C_start = 10 ** packed.data.x[j][packed.data.trained[j]].min()
    C = np.geomspace(C_start, MEAN_CURVE_REACH * 10**packed.data.x_high, _GRID_POINTS)
    A, mid, lnB = theta.T[:, :, None]
    mean_rewards = curve_value(C, R0[:, None], A, np.exp(lnB), 10**mid, tail[:, None]).mean(0)

    def residual(parameters: FloatArray) -> FloatArray:
        A, mid, lnB, tail = parameters
        return curve_value(C, R0.mean(), A, np.exp(lnB), 10**mid, tail) - mean_rewards

    start = np.append(theta.mean(0), tail.mean())
    if np.ptp(tail) == 0 and np.abs(residual(start)).max() < 1e-9:
        return start
    lower = np.array([0.0, start[1] - 3, start[2] - 3, 0.0])
    upper = np.array([1.0, start[1] + 3, start[2] + 3, 1.0])
    scale = np.array([0.1, 0.3, 0.3, 0.5])
    return least_squares(residual, np.clip(start, lower, upper), bounds=(lower, upper), x_scale=scale).x


def mean_curve_residuals(posterior: CurvePosterior, packed: PackedSweep) -> FloatArray:
    """float[J, S, P]: evaluations minus the mean curves and the run effects; 0 where there is no point."""
    A, mid, lnB, tail = posterior.mean_curves.T[:, :, None, None]
    has_compute, R0 = np.isfinite(packed.data.x), float(posterior.R0.mean())
    C = 10 ** np.where(has_compute, packed.data.x, packed.data.x_low)
    s = curve_value(C, 0.0, 1.0, np.exp(lnB), 10**mid, tail) * has_compute
    weight, residuals = packed.data.weight, packed.data.y - R0 - (A - R0) * s
    # The run effects that explain these residuals, shrunk by their prior.
    noise_variance = max(posterior.scales.noise_sd, 1e-12) ** 2
    run_precision = 1 / max(posterior.scales.run_sd, 1e-9) ** 2
    information = (weight * s * s).sum(-1) / noise_variance
    e = (weight * s * residuals).sum(-1) / noise_variance / (information + run_precision)
    return (residuals - e[..., None] * s) * weight
