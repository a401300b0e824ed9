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
data (PosteriorSamples.departure_sd; upwards and downwards, DEPARTURES_DOWN_UP)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from isojax.core.nouns import Interval
from isojax.scaling.curves.condensed_runs import bin_indices, condense_run
from isojax.scaling.curves.hill import STRETCHED_TAIL, curve_reward, progress_gradient
from isojax.scaling.curves.sweep_estimate import MAX_EXTRAPOLATION, SweepEstimate
from isojax.scaling.evaluation_noise import noise_sd
from isojax.scaling.intervals import LEVEL
from isojax.scaling.result import HILL_TAIL, ForecastTrial, ResidualCorrection
from isojax.scaling.tracks import (
    FloatArray,
    RewardPath,
    RunTrack,
    TracksByCell,
    as_float64,
    select_points,
)

# A peak has to gain this much of twice the log likelihood, and its fall has to be this many
# standard errors steep.
MIN_PEAK_GAIN = 14.0
MIN_FALL_Z = 3.3
MIN_POINTS_AFTER_PEAK = 4
GRID_EXPONENTS = (0.4, 0.6, 0.8, 1.0, 1.3, 1.7, 2.2)
RIDGE = 1e-9  # keeps a gain or a fall that no point shows from being infinite

CORRELATION_DECADES = 0.3
AMPLITUDES = (0.003, 0.005, 0.008, 0.012, 0.018, 0.025, 0.035, 0.05)
MIN_CORRECTION_GAIN = 10.0  # of twice the log likelihood, for one fitted number
# less is rounding, and two seeds at one C would make the covariance singular
MIN_EVALUATION_SD = 1e-6
KNOT_DECADES = 0.2
# Residuals of a cell, all seeds together, from which on means of them are taken, and of how many
# parts of its range in log C.
MAX_CORRECTION_POINTS = 256
CORRECTION_BINS = 96

MIN_RANGE = 8.0  # of C_max over the smallest C measured, for a trial
MIN_VISIBLE = 4  # evaluations that a run needs below the limit
# Standard deviation of a departure at four times the data, without what a trial adds, as a share of
# the best gain.
PRIOR_SHARE = 0.05
TRIAL_DRAWS = 100  # of the trial's fit
ROUNDING = 1e-9  # of reward: where no reward has noise, an error of this size is none


def find_peak(seeds: Sequence[RewardPath], base_reward: float | None) -> float | None:
    """log10 C where the cell's reward starts to fall, or None; base_reward is that at C = 0, None:
    the lowest seen."""
    points = _cell_points(seeds, base_reward)
    log10_C = points.log10_C
    if len(log10_C) < 3 * MIN_POINTS_AFTER_PEAK + len(seeds):
        return None

    candidates = np.quantile(np.unique(log10_C), np.linspace(0.3, 0.9, 16))
    candidates = np.unique(
        candidates[[(log10_C > c).sum() >= MIN_POINTS_AFTER_PEAK for c in candidates]]
    )
    grids = [_curve_grid(tail, log10_C) for tail in (HILL_TAIL, STRETCHED_TAIL)]
    rss_without_peak = min(_best_grid_fit(grid, points, None).rss for grid in grids)
    peak_fits = [_best_grid_fit(grid, points, peak) for peak in candidates for grid in grids]
    if not peak_fits:
        return None

    best = min(peak_fits, key=lambda fit: fit.rss)
    noise_variance = max(noise_sd([t.R[t.C > 0] for t in seeds]) ** 2, 1e-18)
    degrees_of_freedom = max(1.0, float(points.count.sum()) - 4 - len(seeds))
    residual_variance = max(noise_variance, best.rss / degrees_of_freedom)
    is_significant = (
        best.fall > MIN_FALL_Z * np.sqrt(best.fall_variance * residual_variance)
        and rss_without_peak - best.rss > MIN_PEAK_GAIN * residual_variance
    )
    return best.peak if is_significant else None


@dataclass(frozen=True)
class _CellPoints:
    """The evaluations of a cell at C > 0, condensed, run after run."""

    log10_C: FloatArray  # [points]
    reward: FloatArray  # [points], above the base policy's
    count: FloatArray  # [points], the evaluations of each point
    run_starts: NDArray[np.intp]  # [runs], the first point of each run
    scatter: float  # the sum of squares of the evaluations around their points

    def sum_by_run(self, values: FloatArray) -> FloatArray:
        """float[..., points] -> float[..., runs], each evaluation counted."""
        return as_float64(np.add.reduceat(values * self.count, self.run_starts, axis=-1))


def _cell_points(seeds: Sequence[RewardPath], base_reward: float | None) -> _CellPoints:
    runs = [condense_run(t.C, t.R).trained() for t in seeds]
    runs = [run for run in runs if len(run.x)]
    rewards = np.concatenate([run.y for run in runs])
    count = np.concatenate([run.count for run in runs])
    scatter = np.concatenate([run.scatter for run in runs])
    ends = np.cumsum([len(run.x) for run in runs])
    return _CellPoints(
        log10_C=np.concatenate([run.x for run in runs]),
        reward=rewards - (float(rewards.min()) if base_reward is None else base_reward),
        count=count,
        run_starts=np.concatenate([[0], ends[:-1]]),
        scatter=float((count * scatter).sum()),
    )


@dataclass(frozen=True)
class _GridFit:
    """The best curve of a grid, with a gain for each run and, where there is a peak, one fall."""

    rss: float  # residual sum of squares, of all evaluations
    peak: float | None  # log10 C
    fall: float = 0.0  # per decade beyond the peak
    fall_variance: float = 0.0  # for unit noise


@dataclass(frozen=True)
class _CurveGrid:
    """Curves of one tail, from which the best is taken."""

    tail: float
    mids: FloatArray  # [grid, 1], log10 C_mid
    ln_exponents: FloatArray  # [grid, 1]
    progress: FloatArray  # [grid, points], of each curve at the points of a cell

    def progress_at(self, log10_C: FloatArray) -> FloatArray:
        return progress_gradient(log10_C, self.mids, self.ln_exponents, self.tail)[0]


def _curve_grid(tail: float, log10_C: FloatArray) -> _CurveGrid:
    """The grid for points at log10_C, float[points]."""
    mid_grid = np.linspace(log10_C.min() - 0.5, log10_C.max() + 0.7, 18)
    mids, ln_exponents = (
        of_grid.reshape(-1, 1)
        for of_grid in np.meshgrid(mid_grid, np.log(GRID_EXPONENTS), indexing="ij")
    )
    # the runs of a cell are mostly evaluated at the same C
    distinct, index = np.unique(log10_C, return_inverse=True)
    progress = progress_gradient(distinct, mids, ln_exponents, tail)[0][:, index]
    return _CurveGrid(tail, mids, ln_exponents, progress)


def _best_grid_fit(grid: _CurveGrid, points: _CellPoints, peak: float | None) -> _GridFit:
    """By least squares for every curve of the grid, whose normal matrix is an arrow: each run has
    its own gain, and only the fall belongs to all."""
    log10_C = points.log10_C
    s = grid.progress  # [grid, points]
    if peak is not None:
        s = np.where(log10_C > peak, grid.progress_at(np.array([peak])), s)

    gain_precision = points.sum_by_run(s * s) + RIDGE  # [grid, runs]
    gain_rhs = points.sum_by_run(s * points.reward)
    total = float(points.sum_by_run(points.reward**2).sum()) + points.scatter
    rss = total - (gain_rhs**2 / gain_precision).sum(1)
    if peak is None:
        return _GridFit(float(rss.min()), None)

    # With the gains eliminated, one equation is left for the fall.
    beyond = -np.maximum(log10_C - peak, 0)
    cross = points.sum_by_run(s * beyond)
    fall_precision = float(points.sum_by_run(beyond**2).sum()) + RIDGE
    fall_precision = fall_precision - (cross**2 / gain_precision).sum(1)
    fall_rhs = float(points.sum_by_run(beyond * points.reward).sum())
    fall_rhs = fall_rhs - (cross * gain_rhs / gain_precision).sum(1)
    rss = rss - fall_rhs**2 / fall_precision
    best = int(rss.argmin())
    return _GridFit(
        rss=float(rss[best]),
        peak=float(peak),
        fall=float(fall_rhs[best] / fall_precision[best]),
        fall_variance=float(1 / fall_precision[best]),
    )


def fit_corrections(
    log10_C: Sequence[FloatArray], residuals: Sequence[FloatArray], evaluation_sd: float
) -> list[ResidualCorrection | None]:
    """A correction for each cell, or None for all, from the residuals at C > 0 of each cell, its
    seeds together."""
    if evaluation_sd <= 0 or not log10_C:
        return [None] * len(log10_C)
    evaluation_sd = max(evaluation_sd, MIN_EVALUATION_SD)
    cells = [_residual_means(x, r) for x, r in zip(log10_C, residuals, strict=True)]

    gains = np.zeros(len(AMPLITUDES))
    for cell in cells:
        # Divided by its standard deviation, each mean has unit noise.
        noise = evaluation_sd / np.sqrt(cell.count)
        correlation = _correlation(cell.log10_C, cell.log10_C) / np.outer(noise, noise)
        eigenvalues, eigenvectors = np.linalg.eigh(correlation)
        squared_projections = (eigenvectors.T @ (cell.residual / noise)) ** 2
        signal_to_noise = np.outer(np.square(AMPLITUDES), np.maximum(eigenvalues, 0))
        explained = squared_projections * signal_to_noise / (1 + signal_to_noise)
        gains += (explained - np.log1p(signal_to_noise)).sum(1)
    if gains.max() < MIN_CORRECTION_GAIN:
        return [None] * len(log10_C)

    amplitude = AMPLITUDES[int(gains.argmax())]
    return [_posterior_correction(cell, amplitude, evaluation_sd) for cell in cells]


@dataclass(frozen=True)
class _ResidualMeans:
    """The residuals of a cell, or means of many at about one C."""

    log10_C: FloatArray  # [points]
    residual: FloatArray  # [points]
    count: FloatArray  # [points], the evaluations of each
    log10_C_range: Interval  # of all residuals


def _residual_means(log10_C: FloatArray, residuals: FloatArray) -> _ResidualMeans:
    """The residuals as they are or, of more than MAX_CORRECTION_POINTS, means of them.

    Time grows with the cube of the number of points. A mean is over CORRECTION_BINS-ths of the
    cell's range in log C, within which a correction hardly changes."""
    log10_C_range = (float(log10_C.min()), float(log10_C.max()))
    if len(log10_C) <= MAX_CORRECTION_POINTS:
        return _ResidualMeans(log10_C, residuals, np.ones(len(log10_C)), log10_C_range)

    bins = bin_indices(log10_C, CORRECTION_BINS)
    count = np.bincount(bins).astype(np.float64)
    return _ResidualMeans(
        log10_C=np.bincount(bins, log10_C) / count,
        residual=np.bincount(bins, residuals) / count,
        count=count,
        log10_C_range=log10_C_range,
    )


def _correlation(a: FloatArray, b: FloatArray) -> FloatArray:
    """float[len(a), len(b)], the prior correlation of a correction at two log10 C."""
    return np.exp(-0.5 * ((a[:, None] - b[None, :]) / CORRELATION_DECADES) ** 2)


def _posterior_correction(
    cell: _ResidualMeans, amplitude: float, evaluation_sd: float
) -> ResidualCorrection:
    log10_C = cell.log10_C
    low, high = cell.log10_C_range
    knots = np.linspace(low, high, max(2, int(np.ceil((high - low) / KNOT_DECADES)) + 1))
    cross_covariance = amplitude**2 * _correlation(knots, log10_C)
    noise_variance = np.diag(evaluation_sd**2 / cell.count)
    covariance = amplitude**2 * _correlation(log10_C, log10_C) + noise_variance
    solutions = np.linalg.solve(covariance, np.column_stack([cell.residual, cross_covariance.T]))
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
    for key in draws.keys:
        hidden = [(t.C[t.C > C_low], t.R[t.C > C_low]) for t in cells[key]]
        C, R = (np.concatenate(part) for part in zip(*hidden, strict=True))
        if not len(C):
            continue
        # The runs of a cell are mostly evaluated at the same C.
        distinct_C, repeats = np.unique(C, return_counts=True)
        curves = draws.for_cells([key]).curves_at(distinct_C[:, None])[:, :, 0]  # [C, Q]
        predicted = repeats @ curves / len(C)
        seeds_hidden = sum(len(part) > 0 for part, _ in hidden)
        chance_variance = (
            predicted.var() + noise.noise_sd**2 / len(C) + noise.run_sd**2 / seeds_hidden
        )
        errors.append((float(predicted.mean() - R.mean()), float(np.sqrt(chance_variance)), len(C)))
    return errors
