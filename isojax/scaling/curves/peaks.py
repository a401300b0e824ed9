"""Where a cell's validation reward starts to fall (overfitting, IsoCompute Playbook, arXiv:2603.12151, section 5.2): a
curve that falls from C_peak on a line in log C must explain the points better than every rising shape, by more than
chance. Points beyond are left out, and the curve is held flat there: a run may be stopped early.
"""

from collections.abc import Sequence

import numpy as np

from isojax.scaling.curves.hill import HILL_TAIL, STRETCHED_TAIL, progress_gradient
from isojax.scaling.tracks import FloatArray, RunTrack, noise_sd

# A peak has to gain this much of twice the log likelihood, and its fall has to be this many standard errors steep.
MIN_LOG_LIKELIHOOD_GAIN = 14.0
MIN_FALL_Z = 3.3
MIN_POINTS_AFTER_PEAK = 4
GRID_EXPONENTS = (0.4, 0.6, 0.8, 1.0, 1.3, 1.7, 2.2)


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
        and rss_without_peak - rss > MIN_LOG_LIKELIHOOD_GAIN * residual_variance
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
