"""How a cell's points depart from a rising curve. A fall (overfitting, IsoCompute Playbook,
arXiv:2603.12151, section 5.2) from C_peak on a line in log C must explain them better than every
rising shape, by more than chance; points beyond are left out, and the curve is held flat there,
because a run may be stopped early. A smooth correction of the residuals inside the measured range,
a Gaussian process over log10 C with correlation length CORRELATION_DECADES and one amplitude, is
used only if it explains more than chance.

How far to trust curves beyond their data is tried on the sweep itself: `try_forecast` hides
evaluations above a part of the largest C, fits the rest, and compares what was hidden with what the
curves predict. How far predictions miss, more than noise and the curves' own uncertainty explain,
adds to PRIOR_SHARE of the best gain in the size of the departures that every draw gets beyond its
data (PosteriorSamples.departure_sd)."""

from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np

from isojax.scaling.curves.hill import STRETCHED_TAIL, curve_reward, progress_gradient
from isojax.scaling.curves.sweep_estimate import MAX_EXTRAPOLATION, SweepEstimate
from isojax.scaling.evaluation_noise import noise_sd
from isojax.scaling.intervals import LEVEL
from isojax.scaling.result import HILL_TAIL, ForecastTrial, ResidualCorrection
from isojax.scaling.tracks import FloatArray, RunTrack, TracksByCell, select_points

# A peak has to gain this much of twice the log likelihood, and its fall has to be this many
# standard errors steep.
MIN_PEAK_GAIN = 14.0
MIN_FALL_Z = 3.3
MIN_POINTS_AFTER_PEAK = 4
GRID_EXPONENTS = (0.4, 0.6, 0.8, 1.0, 1.3, 1.7, 2.2)

CORRELATION_DECADES = 0.3
AMPLITUDES = (0.003, 0.005, 0.008, 0.012, 0.018, 0.025, 0.035, 0.05)
MIN_CORRECTION_GAIN = 10.0  # of twice the log likelihood, for one fitted number
# less is rounding, and two seeds at one C would make the covariance singular
MIN_EVALUATION_SD = 1e-6
KNOT_DECADES = 0.2

MIN_RANGE = 8.0  # of C_max over the smallest C measured, for a trial
MIN_VISIBLE = 4  # evaluations that a run needs below the limit
# Standard deviation of a departure at four times the data, without what a trial adds, as a share of
# the best gain.
PRIOR_SHARE = 0.05
TRIAL_DRAWS = 100  # of the trial's fit
ROUNDING = 1e-9  # of reward: where no reward has noise, an error of this size is none


def find_peak(seeds: Sequence[RunTrack], base_reward: float | None) -> float | None:
    """log10 C where the cell's reward starts to fall, or None; base_reward is that at C = 0, None:
    the lowest seen."""
    rewards_by_run = [t.R[t.C > 0] for t in seeds]
    log10_C = np.concatenate([np.log10(t.C[t.C > 0]) for t in seeds])
    rewards = np.concatenate(rewards_by_run)
    if len(log10_C) < 3 * MIN_POINTS_AFTER_PEAK + len(seeds):
        return None
    run_one_hot = np.repeat(np.eye(len(seeds)), [len(r) for r in rewards_by_run], axis=0)
    rewards_above_floor = rewards - (
        base_reward if base_reward is not None else float(rewards.min())
    )
    candidates = np.quantile(np.unique(log10_C), np.linspace(0.3, 0.9, 16))
    candidates = np.unique(
        candidates[[(log10_C > c).sum() >= MIN_POINTS_AFTER_PEAK for c in candidates]]
    )
    tails = (HILL_TAIL, STRETCHED_TAIL)
    rss_without_peak = min(
        _best_grid_fit(tail, log10_C, rewards_above_floor, run_one_hot, None)[0] for tail in tails
    )
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
    tail: float,
    log10_C: FloatArray,
    rewards_above_floor: FloatArray,
    run_one_hot: FloatArray,
    peak: float | None,
) -> tuple[float, float, float]:
    """(residual sum of squares, fall per decade, its variance for unit noise) of the best curve of
    a grid."""
    mid_grid = np.linspace(log10_C.min() - 0.5, log10_C.max() + 0.7, 18)
    mids, ln_exponents = np.meshgrid(mid_grid, np.log(GRID_EXPONENTS), indexing="ij")
    log10_C_capped = log10_C if peak is None else np.minimum(log10_C, peak)
    # [grid, points]
    s = progress_gradient(log10_C_capped, mids.reshape(-1, 1), ln_exponents.reshape(-1, 1), tail)[0]
    design = s[:, :, None] * run_one_hot  # a gain for each run, and one fall
    if peak is not None:
        fall = np.broadcast_to(-np.maximum(log10_C - peak, 0)[:, None], (*s.shape, 1))
        design = np.concatenate([design, fall], axis=2)
    normal_matrix = np.einsum("gpi,gpj->gij", design, design) + 1e-9 * np.eye(design.shape[2])
    normal_rhs = np.einsum("gpi,p->gi", design, rewards_above_floor)
    coefficients = np.linalg.solve(normal_matrix, normal_rhs[..., None])[..., 0]
    rss = (rewards_above_floor**2).sum() - (coefficients * normal_rhs).sum(1)
    best = int(rss.argmin())
    return (
        float(rss[best]),
        float(coefficients[best, -1]),
        float(np.linalg.inv(normal_matrix[best])[-1, -1]),
    )


def fit_corrections(
    log10_C: Sequence[FloatArray], residuals: Sequence[FloatArray], evaluation_sd: float
) -> list[ResidualCorrection | None]:
    """A correction for each cell, or None for all, from the residuals at C > 0 of each cell, its
    seeds together."""
    if evaluation_sd <= 0 or not log10_C:
        return [None] * len(log10_C)
    evaluation_sd = max(evaluation_sd, MIN_EVALUATION_SD)
    gains = np.zeros(len(AMPLITUDES))
    for x, r in zip(log10_C, residuals, strict=True):
        eigenvalues, eigenvectors = np.linalg.eigh(_correlation(x, x))
        squared_projections = ((eigenvectors.T @ r) / evaluation_sd) ** 2
        signal_to_noise = (
            np.outer(np.square(AMPLITUDES), np.maximum(eigenvalues, 0)) / evaluation_sd**2
        )
        explained = squared_projections * signal_to_noise / (1 + signal_to_noise)
        gains += (explained - np.log1p(signal_to_noise)).sum(1)
    if gains.max() < MIN_CORRECTION_GAIN:
        return [None] * len(log10_C)
    amplitude = AMPLITUDES[int(gains.argmax())]
    return [
        _posterior_correction(x, r, amplitude, evaluation_sd)
        for x, r in zip(log10_C, residuals, strict=True)
    ]


def _correlation(a: FloatArray, b: FloatArray) -> FloatArray:
    """float[len(a), len(b)], the prior correlation of a correction at two log10 C."""
    return np.exp(-0.5 * ((a[:, None] - b[None, :]) / CORRELATION_DECADES) ** 2)


def _posterior_correction(
    log10_C: FloatArray, residuals: FloatArray, amplitude: float, evaluation_sd: float
) -> ResidualCorrection:
    knots = np.linspace(
        log10_C.min(), log10_C.max(), max(2, int(np.ceil(np.ptp(log10_C) / KNOT_DECADES)) + 1)
    )
    cross_covariance = amplitude**2 * _correlation(knots, log10_C)
    covariance = amplitude**2 * _correlation(log10_C, log10_C) + evaluation_sd**2 * np.eye(
        len(log10_C)
    )
    solutions = np.linalg.solve(covariance, np.column_stack([residuals, cross_covariance.T]))
    mean = cross_covariance @ solutions[:, 0]
    variance = amplitude**2 - np.einsum("kp,pk->k", cross_covariance, solutions[:, 1:])
    sd = np.sqrt(np.maximum(variance, 0.0))
    return ResidualCorrection(tuple(knots.tolist()), tuple(mean.tolist()), tuple(sd.tolist()))


def try_forecast(
    cells: TracksByCell, estimate: SweepEstimate, refit: Callable[[TracksByCell], SweepEstimate]
) -> ForecastTrial | None:
    """The trial, or the prior where no part of the data can be hidden; None without draws. `refit`
    fits a part."""
    if estimate.draws is None:
        return None
    best_reward = max(float(curve_reward(c, c.C_high)) for c in estimate.curves)
    prior_sd = PRIOR_SHARE * max(best_reward - float(np.mean(estimate.draws.R0)), 0.0)
    C_limit = max(float(t.C[-1]) for seeds in cells.values() for t in seeds) / MAX_EXTRAPOLATION
    visible = _visible_part(cells, C_limit)
    errors = _trial_errors(cells, C_limit, refit(visible)) if visible else []
    if not errors:
        return ForecastTrial(departure_sd=prior_sd)
    error, chance_sd, evaluations = (np.array(column) for column in zip(*errors, strict=True))
    excess = float(np.mean(error**2 - chance_sd**2))
    return ForecastTrial(
        departure_sd=float(np.hypot(prior_sd, np.sqrt(max(excess, 0.0)))),
        C_limit=C_limit,
        evaluations=int(evaluations.sum()),
        mean_error=float(error.mean()),
        mean_absolute_error=float(np.abs(error).mean()),
        inside=float(
            np.mean(np.abs(error) <= NormalDist().inv_cdf(0.5 + LEVEL / 2) * chance_sd + ROUNDING)
        ),
    )


def _visible_part(cells: TracksByCell, C_limit: float) -> TracksByCell:
    """The runs up to C_limit, those with at least MIN_VISIBLE evaluations; empty where less than
    MIN_RANGE is seen."""
    visible: dict[tuple[int, int], list[RunTrack]] = {}
    for key, seeds in cells.items():
        for t in seeds:
            count = int((t.C <= C_limit).sum())
            if ((t.C > 0) & (t.C <= C_limit)).sum() >= MIN_VISIBLE:
                track = RunTrack(select_points(t.run, slice(count)), t.C[:count], t.R[:count])
                visible.setdefault(key, []).append(track)
    C_min = min((t.C[t.C > 0].min() for seeds in visible.values() for t in seeds), default=np.inf)
    return visible if C_limit * MAX_EXTRAPOLATION >= MIN_RANGE * C_min else {}


def _trial_errors(
    cells: TracksByCell, C_limit: float, estimate: SweepEstimate
) -> list[tuple[float, float, int]]:
    """Of each cell with a curve by the estimate of the visible part: (predicted less measured
    reward, the mean over evaluations in the upper half of the hidden decades; its sd by the curve's
    own uncertainty and noise; their number)."""
    if estimate.draws is None or estimate.intervals is None:
        return []
    draws, noise = estimate.draws, estimate.intervals
    errors, C_low = [], C_limit * np.sqrt(MAX_EXTRAPOLATION)
    for j, key in enumerate(draws.keys):
        hidden = [(t.C[t.C > C_low], t.R[t.C > C_low]) for t in cells[key]]
        C, R = (np.concatenate(part) for part in zip(*hidden, strict=True))
        if not len(C):
            continue
        predicted = draws.curves_at(C[:, None])[:, :, j].mean(0)  # [Q]
        seeds_hidden = sum(len(part) > 0 for part, _ in hidden)
        chance_variance = (
            predicted.var() + noise.noise_sd**2 / len(C) + noise.run_sd**2 / seeds_hidden
        )
        errors.append((float(predicted.mean() - R.mean()), float(np.sqrt(chance_variance)), len(C)))
    return errors
