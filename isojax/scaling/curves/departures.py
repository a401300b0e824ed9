"""How a cell's points depart from a rising curve. A fall (overfitting, IsoCompute Playbook, arXiv:2603.12151, section
5.2) from C_peak on a line in log C must explain them better than every rising shape, by more than chance; points beyond
are left out, and the curve is held flat there, because a run may be stopped early. A smooth correction of the residuals
inside the measured range, a Gaussian process over log10 C with correlation length CORRELATION_DECADES and one
amplitude, is used only if it explains more than chance."""

from collections.abc import Sequence

import numpy as np

from isojax.scaling.curves.hill import HILL_TAIL, STRETCHED_TAIL, ResidualCorrection, progress_gradient
from isojax.scaling.tracks import FloatArray, RunTrack, noise_sd

# A peak has to gain this much of twice the log likelihood, and its fall has to be this many standard errors steep.
MIN_PEAK_GAIN = 14.0
MIN_FALL_Z = 3.3
MIN_POINTS_AFTER_PEAK = 4
GRID_EXPONENTS = (0.4, 0.6, 0.8, 1.0, 1.3, 1.7, 2.2)

CORRELATION_DECADES = 0.3
AMPLITUDES = (0.003, 0.005, 0.008, 0.012, 0.018, 0.025, 0.035, 0.05)
MIN_CORRECTION_GAIN = 10.0  # of twice the log likelihood, for one fitted number
MIN_EVALUATION_SD = 1e-6  # less is rounding, and two seeds at one C would make the covariance singular
KNOT_DECADES = 0.2


def find_peak(seeds: Sequence[RunTrack], base_reward: float | None) -> float | None:
    """log10 C where the cell's reward starts to fall, or None; base_reward is that at C = 0, None: the lowest seen."""
    rewards_by_run = [t.R[t.C > 0] for t in seeds]
    log10_C = np.concatenate([np.log10(t.C[t.C > 0]) for t in seeds])
    rewards = np.concatenate(rewards_by_run)
    if len(log10_C) < 3 * MIN_POINTS_AFTER_PEAK + len(seeds):
        return None
    run_one_hot = np.repeat(np.eye(len(seeds)), [len(r) for r in rewards_by_run], axis=0)
    rewards_above_floor = rewards - (base_reward if base_reward is not None else float(rewards.min()))
    candidates = np.quantile(np.unique(log10_C), np.linspace(0.3, 0.9, 16))
    candidates = np.unique(candidates[[(log10_C > c).sum() >= MIN_POINTS_AFTER_PEAK for c in candidates]])
    tails = (HILL_TAIL, STRETCHED_TAIL)
    rss_without_peak = min(_best_grid_fit(tail, log10_C, rewards_above_floor, run_one_hot, None)[0] for tail in tails)
    peak_fits = [
        (*_best_grid_fit(tail, log10_C, rewards_above_floor, run_one_hot, peak), peak)
        for peak in candidates
        for tail in tails
    ]
    if not peak_fits:
        return None
    rss, fall, fall_variance, peak = min(peak_fits, key=lambda f: f[0])
    noise_variance = max(noise_sd(rewards_by_run) ** 2, 1e-18)
    residual_variance = max(noise_variance, rss / max(1, len(log10_C) - 4 - len(seeds)))
    is_significant = (
        fall > MIN_FALL_Z * np.sqrt(fall_variance * residual_variance)
        and rss_without_peak - rss > MIN_PEAK_GAIN * residual_variance
    )
    return float(peak) if is_significant else None


def _best_grid_fit(
    tail: float, log10_C: FloatArray, rewards_above_floor: FloatArray, run_one_hot: FloatArray, peak: float | None
) -> tuple[float, float, float]:
    """(residual sum of squares, fall per decade, its variance for unit noise) of the best curve of a grid."""
    mids, ln_exponents = np.meshgrid(
        np.linspace(log10_C.min() - 0.5, log10_C.max() + 0.7, 18), np.log(GRID_EXPONENTS), indexing="ij"
    )
    log10_C_capped = log10_C if peak is None else np.minimum(log10_C, peak)
    s = progress_gradient(log10_C_capped, mids.reshape(-1, 1), ln_exponents.reshape(-1, 1), tail)[0]  # [grid, points]
    design = s[:, :, None] * run_one_hot  # a gain for each run, and one fall
    if peak is not None:
        fall = np.broadcast_to(-np.maximum(log10_C - peak, 0)[:, None], (*s.shape, 1))
        design = np.concatenate([design, fall], axis=2)
    normal_matrix = np.einsum("gpi,gpj->gij", design, design) + 1e-9 * np.eye(design.shape[2])
    normal_rhs = np.einsum("gpi,p->gi", design, rewards_above_floor)
    coefficients = np.linalg.solve(normal_matrix, normal_rhs[..., None])[..., 0]
    rss = (rewards_above_floor**2).sum() - (coefficients * normal_rhs).sum(1)
    best = int(rss.argmin())
    return float(rss[best]), float(coefficients[best, -1]), float(np.linalg.inv(normal_matrix[best])[-1, -1])


def fit_corrections(
    log10_C: Sequence[FloatArray], residuals: Sequence[FloatArray], evaluation_sd: float
) -> list[ResidualCorrection | None]:
    """A correction for each cell, or None for all, from the residuals at C > 0 of each cell, its seeds together."""
    if evaluation_sd <= 0 or not log10_C:
        return [None] * len(log10_C)
    evaluation_sd = max(evaluation_sd, MIN_EVALUATION_SD)
    gains = np.zeros(len(AMPLITUDES))
    for x, r in zip(log10_C, residuals, strict=True):
        eigenvalues, eigenvectors = np.linalg.eigh(_correlation(x, x))
        squared_projections = ((eigenvectors.T @ r) / evaluation_sd) ** 2
        signal_to_noise = np.outer(np.square(AMPLITUDES), np.maximum(eigenvalues, 0)) / evaluation_sd**2
        explained = squared_projections * signal_to_noise / (1 + signal_to_noise)
        gains += (explained - np.log1p(signal_to_noise)).sum(1)
    if gains.max() < MIN_CORRECTION_GAIN:
        return [None] * len(log10_C)
    amplitude = AMPLITUDES[int(gains.argmax())]
    return [_posterior_correction(x, r, amplitude, evaluation_sd) for x, r in zip(log10_C, residuals, strict=True)]


def _correlation(a: FloatArray, b: FloatArray) -> FloatArray:
    """float[len(a), len(b)], the prior correlation of a correction at two log10 C."""
    return np.exp(-0.5 * ((a[:, None] - b[None, :]) / CORRELATION_DECADES) ** 2)


def _posterior_correction(
    log10_C: FloatArray, residuals: FloatArray, amplitude: float, evaluation_sd: float
) -> ResidualCorrection:
    knots = np.linspace(log10_C.min(), log10_C.max(), max(2, int(np.ceil(np.ptp(log10_C) / KNOT_DECADES)) + 1))
    cross_covariance = amplitude**2 * _correlation(knots, log10_C)
    covariance = amplitude**2 * _correlation(log10_C, log10_C) + evaluation_sd**2 * np.eye(len(log10_C))
    solutions = np.linalg.solve(covariance, np.column_stack([residuals, cross_covariance.T]))
    mean = cross_covariance @ solutions[:, 0]
    variance = amplitude**2 - np.einsum("kp,pk->k", cross_covariance, solutions[:, 1:])
    sd = np.sqrt(np.maximum(variance, 0.0))
    return ResidualCorrection(tuple(knots.tolist()), tuple(mean.tolist()), tuple(sd.tolist()))
