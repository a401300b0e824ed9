"""Mode "hierarchical": every curve from all points, no filter; see hierarchical.py for the model and
hierarchical_prior.py for its scales.

Departures from the paper's procedure (records, one sigmoid per cell): all points count, so that noise is not mistaken
for progress; all cells share R0 and one run-to-run effect and lean on a joint surface over (n, B_p); each shape of
hill.py has draws in proportion to its probability; a reward that falls again ends its curve at the peak; where n makes
no difference, all n share one curve. The curves are posterior means; intervals come from posterior draws (hmc.py),
which also resample the validation problems (problem_resampling.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from isojax.scaling.curves.fitted_curve import FittedCurve
from isojax.scaling.curves.hierarchical import mask_points, progress_at_points
from isojax.scaling.curves.hierarchical_prior import Cells, PackedSweep, pack_sweep, pool_over_n
from isojax.scaling.curves.peaks import find_peak
from isojax.scaling.curves.posterior_samples import PosteriorSamples
from isojax.scaling.curves.problem_resampling import ProblemShifts, apply_problem_shift, estimate_problem_shifts
from isojax.scaling.curves.residual_correction import ResidualCorrection, fit_corrections
from isojax.scaling.curves.shape_average import CurvePosterior, fit_all_tails, mean_curve_residuals, sample_posterior
from isojax.scaling.estimate import EstimationOptions, SweepEstimate
from isojax.scaling.intervals import LEVEL, central_interval
from isojax.scaling.law.n_effect_test import has_no_n_effect
from isojax.scaling.result import IntervalSettings
from isojax.scaling.validation_metrics import FloatArray, RunTrack

MIN_POINTS = 3
# A plateau counts as determined where a curve has come this far on its way to it, and its interval is no wider than
# that.
DETERMINED_PROGRESS = 0.7
DETERMINED_WIDTH = 0.12


def estimate(cells: Cells, metric: str, options: EstimationOptions) -> SweepEstimate:
    """Curves, their replicates and whether n matters."""
    usable = {key: seeds for key, seeds in cells.items() if _unfitted_reason(seeds) is None}
    unfitted_cells = [(*key, _unfitted_reason(seeds) or "") for key, seeds in cells.items() if key not in usable]
    if not usable or sum((t.C > 0).sum() for seeds in usable.values() for t in seeds) <= MIN_POINTS:
        return SweepEstimate(
            [], unfitted_cells or [(*key, f"fewer than {MIN_POINTS + 1} points at C > 0") for key in cells]
        )
    packed = pack_sweep(usable)
    peaks = [find_peak(seeds, packed.base_reward) for seeds in packed.tracks]
    log10_C_peaks = np.array([np.inf if p is None else p for p in peaks])
    packed = replace(packed, data=mask_points(packed.data, packed.data.x <= log10_C_peaks[:, None, None] + 1e-12))
    shape_fits, tail_probabilities = fit_all_tails(packed, options.run_sd)
    is_n_irrelevant = options.allow_pooling and has_no_n_effect(packed, shape_fits[0])
    if is_n_irrelevant:
        packed = pool_over_n(packed)
        shape_fits, tail_probabilities = fit_all_tails(packed, options.run_sd)
    posterior = sample_posterior(packed, shape_fits, tail_probabilities, options)
    point_residuals = mean_curve_residuals(posterior, packed)
    residuals_by_cell = {key: _residuals_by_run(j, packed, point_residuals) for j, key in enumerate(packed.keys)}
    corrections = _fit_corrections(packed, point_residuals, posterior.evaluation_sd)
    problem_shifts = estimate_problem_shifts(packed, metric, packed.data.y - point_residuals)
    draws = (
        _posterior_samples(posterior, packed, problem_shifts, 10**log10_C_peaks, corrections, options)
        if options.replicates
        else None
    )
    curves = [
        _summarise_curve(j, posterior, packed, point_residuals, log10_C_peaks, draws, corrections[j])
        for j in range(len(packed.keys))
    ]
    intervals = _describe_intervals(posterior, problem_shifts, options) if options.replicates else None
    parameter_count = 1 + 2 * len(curves) + sum(len(t) for t in packed.tracks)
    return SweepEstimate(
        curves,
        unfitted_cells,
        draws,
        intervals,
        is_n_irrelevant,
        residuals_by_cell,
        posterior.scales.noise_sd,
        parameter_count,
    )


def _fit_corrections(
    packed: PackedSweep, point_residuals: FloatArray, evaluation_sd: float
) -> list[ResidualCorrection | None]:
    log10_C = [
        packed.data.x[j][(packed.data.weight[j] > 0) & np.isfinite(packed.data.x[j])] for j in range(len(packed.keys))
    ]
    return fit_corrections(
        log10_C,
        [np.concatenate(_residuals_by_run(j, packed, point_residuals)) for j in range(len(log10_C))],
        evaluation_sd,
    )


def _residuals_by_run(j: int, packed: PackedSweep, point_residuals: FloatArray) -> list[FloatArray]:
    """Residuals of each run of cell j at C > 0, those that were fitted."""
    usable = (packed.data.weight[j] > 0) & np.isfinite(packed.data.x[j])
    return [r[u] for r, u in zip(point_residuals[j], usable, strict=True) if u.any()]


def _unfitted_reason(seeds: Sequence[RunTrack]) -> str | None:
    """Why a cell has no curve."""
    points = sum(int((t.C > 0).sum()) for t in seeds)
    if points < MIN_POINTS:
        return f"{points} points at C > 0, at least {MIN_POINTS} needed"
    C_low, shortest = _measured_range(seeds)[0], min(float(t.C[-1]) for t in seeds)
    return None if 0 < C_low < shortest else "its seeds share no range of C > 0"


def _measured_range(seeds: Sequence[RunTrack]) -> tuple[float, float]:
    """From where all seeds of a cell have data, C > 0, to the end of the longest: the others' luck is part of the
    model.
    """
    return max(float(t.C[t.C > 0].min(initial=np.inf)) for t in seeds), max(float(t.C[-1]) for t in seeds)


def _posterior_samples(
    posterior: CurvePosterior,
    packed: PackedSweep,
    problem_shifts: ProblemShifts | None,
    C_peaks: FloatArray,
    corrections: Sequence[ResidualCorrection | None],
    options: EstimationOptions,
) -> PosteriorSamples:
    """The posterior draws, each with its own resampled problems."""
    draw_count = len(posterior.R0)
    shifts = (
        np.zeros((draw_count, 2))
        if problem_shifts is None
        else problem_shifts.sample(draw_count, np.random.default_rng([options.seed, 1]))
    )
    measured_ranges = np.array([_measured_range(seeds) for seeds in packed.tracks])
    B_and_C_mid = (np.exp(posterior.theta[:, :, 2]), 10 ** posterior.theta[:, :, 1])
    curve_parameters = (posterior.theta[:, :, 0], *B_and_C_mid, posterior.R0)
    return PosteriorSamples(
        posterior.tail,
        tuple(packed.keys),
        *curve_parameters,
        shifts,
        C_peaks,
        measured_ranges[:, 0],
        measured_ranges[:, 1],
        tuple(corrections),
    )


def _summarise_curve(
    j: int,
    posterior: CurvePosterior,
    packed: PackedSweep,
    point_residuals: FloatArray,
    log10_C_peaks: FloatArray,
    draws: PosteriorSamples | None,
    correction: ResidualCorrection | None,
) -> FittedCurve:
    A, mid, lnB, tail = (float(v) for v in posterior.mean_curves[j])
    B_p, n = packed.keys[j]
    has_point = packed.data.weight[j] > 0
    progress_reached = float(progress_at_points(tail, packed.data, posterior.mean_curves[:, :3])[0][j][has_point].max())
    interval_by_name = {}
    if draws is not None:
        draws_by_name = {
            "A": apply_problem_shift(draws.shift, draws.A),
            "exponent": draws.exponent,
            "C_mid": draws.C_mid,
        }
        interval_by_name = {name: central_interval(drawn[:, j]) for name, drawn in draws_by_name.items()}
    A_width = 0.0 if draws is None else float(np.ptp([v for v in interval_by_name["A"] if v is not None] or [0.0]))
    has_peak = bool(np.isfinite(log10_C_peaks[j]))
    return FittedCurve(
        B_p, n, float(posterior.R0.mean()), A, float(np.exp(lnB)), 10**mid, *_measured_range(packed.tracks[j]),
        points=int((has_point & np.isfinite(packed.data.x[j])).sum()),
        rmse=float(np.sqrt(np.mean(point_residuals[j][has_point] ** 2))),
        tail=tail,
        correction=correction,
        determined=not has_peak and progress_reached >= DETERMINED_PROGRESS and A_width <= DETERMINED_WIDTH,
        C_peak=float(10 ** log10_C_peaks[j]) if has_peak else None,
        A_interval=interval_by_name.get("A"),
        exponent_interval=interval_by_name.get("exponent"),
        C_mid_interval=interval_by_name.get("C_mid"),
    )  # fmt: skip


def _describe_intervals(
    posterior: CurvePosterior, problem_shifts: ProblemShifts | None, options: EstimationOptions
) -> IntervalSettings:
    """How the intervals were made."""
    problems_sentence = (
        f"the {problem_shifts.problem_count} validation problems are resampled, alike for all runs and checkpoints"
        if problem_shifts is not None
        else "no right answers of single problems are recorded, "
        "so the intervals hold for these validation problems, not for others"
    )
    return IntervalSettings(
        level=LEVEL,
        replicates=options.replicates,
        seed=options.seed,
        run_sd=posterior.scales.run_sd,
        run_sd_source=posterior.run_sd_from,
        noise_sd=posterior.evaluation_sd,
        problems=None if problem_shifts is None else problem_shifts.problem_count,
        method="draws of all curves from their posterior, each run's luck and the run-to-run effect's own uncertainty "
        f"included; {problems_sentence}",
    )
