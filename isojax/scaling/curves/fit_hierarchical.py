"""Mode "hierarchical", from tracks to curves: every curve from all points (the model is in
hierarchical.py, how it departs from the paper's procedure in docs/laws.md). The curves are
posterior means; intervals come from posterior draws, each on validation problems of its own."""

from dataclasses import replace

import numpy as np

from isojax.scaling.curves.departures import find_peak, fit_corrections
from isojax.scaling.curves.hierarchical import (
    PackedSweep,
    SweepArrays,
    pack_sweep,
)
from isojax.scaling.curves.hill import progress_gradient
from isojax.scaling.curves.posterior_draws import (
    CurvePosterior,
    mean_curve_residuals,
    sample_posterior,
)
from isojax.scaling.curves.posterior_mode import fit_all_tails, has_no_n_effect
from isojax.scaling.curves.sweep_estimate import (
    FitOptions,
    PosteriorSamples,
    SweepEstimate,
    apply_problem_shift,
)
from isojax.scaling.curves.unfitted import unfitted_reasons
from isojax.scaling.intervals import LEVEL, central_band, central_interval
from isojax.scaling.result import FittedCurve, IntervalSettings, ResidualCorrection
from isojax.scaling.reward_metric import correct_counts, metric_per_problem
from isojax.scaling.tracks import FloatArray, TracksByCell, as_float64

# A plateau is determined where a curve has come this far on its way to it and its interval is no
# wider than that.
DETERMINED_PROGRESS, DETERMINED_WIDTH = 0.7, 0.12
# a recorded metric further from that of its counts was not computed from them
MAX_METRIC_ROUNDING = 5e-4


def estimate(cells: TracksByCell, metric: str, options: FitOptions) -> SweepEstimate:
    """Curves, their replicates and whether n matters."""
    unfitted = unfitted_reasons(
        {key: [t.C[t.C > 0] for t in seeds] for key, seeds in cells.items()}
    )
    usable = {key: seeds for key, seeds in cells.items() if key not in unfitted}
    unfitted_cells = [(*key, reason) for key, reason in unfitted.items()]
    if not usable:
        return SweepEstimate([], unfitted_cells)
    packed, log10_C_peaks = _leave_out_falls(pack_sweep(usable))
    posterior = sample_posterior(packed, fit_all_tails(packed, options.run_sd), options)
    point_residuals = mean_curve_residuals(posterior, packed)
    trained = packed.data.trained
    corrections = fit_corrections(
        [x[t] for x, t in zip(packed.data.x, trained, strict=True)],
        [r[t] for r, t in zip(point_residuals, trained, strict=True)],
        posterior.evaluation_sd,
    )
    contributions = problem_contributions(packed, metric, packed.data.y - point_residuals)
    shift = np.zeros((len(posterior.R0), 2))
    if contributions is not None:
        rng = np.random.default_rng([options.seed, 1])
        shift = sample_problem_shifts(contributions, len(posterior.R0), rng)
    has_intervals = options.replicates > 0
    shift_of_intervals = shift if has_intervals else None
    curves = [
        _summarise_curve(
            j, posterior, packed, residuals, log10_C_peaks[j], correction, shift_of_intervals
        )
        for j, (residuals, correction) in enumerate(zip(point_residuals, corrections, strict=True))
    ]
    A, mid, lnB = np.moveaxis(posterior.theta, 2, 0)
    parameters = {
        "A": A,
        "exponent": np.exp(lnB),
        "C_mid": 10**mid,
        "R0": posterior.R0,
        "tail": posterior.tail,
    }
    problem_count = None if contributions is None else contributions.shape[1]
    return SweepEstimate(
        curves,
        unfitted_cells,
        draws=PosteriorSamples.of_curves(curves, shift=shift, **parameters)
        if has_intervals
        else None,
        intervals=_describe_intervals(posterior, problem_count, options) if has_intervals else None,
        no_effect=has_no_n_effect(packed, posterior.likeliest),
        residuals=[
            point_residuals[run][trained[run]]
            for run in np.ndindex(trained.shape[:2])
            if trained[run].any()
        ],
        noise_sd=posterior.likeliest.scales.noise_sd,
        parameter_count=1 + 2 * len(curves) + sum(map(len, packed.tracks)),
    )


def _leave_out_falls(packed: PackedSweep) -> tuple[PackedSweep, FloatArray]:
    """The sweep without the points beyond a peak, and log10 C of each cell's peak; inf where it has
    none."""
    peaks = [find_peak(seeds, packed.base_reward) for seeds in packed.tracks]
    log10_C_peaks = np.array([np.inf if peak is None else peak for peak in peaks])
    data = _up_to(log10_C_peaks, packed.data)
    condensed = data
    if packed.condensed is not packed.data:
        condensed = _up_to(log10_C_peaks, packed.condensed)
    return replace(packed, data=data, condensed=condensed), log10_C_peaks


def _up_to(log10_C_peaks: FloatArray, data: SweepArrays) -> SweepArrays:
    """The points up to the peak of their cell, float[J]; the others have no weight."""
    before_peak = data.x <= log10_C_peaks[:, None, None] + 1e-12
    return replace(data, weight=data.weight * before_peak)


def problem_contributions(
    packed: PackedSweep, metric: str, fitted_rewards: FloatArray
) -> FloatArray | None:
    """float[2, N]: what each problem contributes to (a, b), by least squares over all evaluations,
    where the curves' rewards are float[J, S, P]; None unless each has the counts from which its
    metric was computed."""
    rewards_per_problem = []
    evaluations = [
        pair
        for seeds in packed.tracks
        for t in seeds
        for pair in zip(t.run.points, t.R, strict=True)
    ]
    for point, recorded_reward in evaluations:
        counts = correct_counts(point, metric)
        problem_rewards = metric_per_problem(counts, point.samples, metric) if counts else None
        if (
            problem_rewards is None
            or abs(float(problem_rewards.mean()) - recorded_reward) > MAX_METRIC_ROUNDING
        ):
            return None
        rewards_per_problem.append(problem_rewards)
    R = np.clip(fitted_rewards[packed.has_point], 0.0, 1.0)
    basis = (R * (1 - R))[:, None] * np.stack([np.ones_like(R), R], axis=1)
    return as_float64(np.linalg.pinv(basis) @ np.stack(rewards_per_problem))


def sample_problem_shifts(
    contributions: FloatArray, replicates: int, rng: np.random.Generator
) -> FloatArray:
    """(a, b) of each replicate, float[Q, 2]; contributions as `problem_contributions` gives
    them."""
    N = contributions.shape[1]
    return (rng.multinomial(N, np.full(N, 1 / N), size=replicates) / N - 1 / N) @ contributions.T


def problems_sentence(problem_count: int | None) -> str:
    """Whether intervals hold for other validation problems too; None: of none are counts known."""
    if problem_count is None:
        text = "no right answers of single problems are recorded"
        return f"{text}, so the intervals hold for these validation problems, not for others"
    text = f"the {problem_count} validation problems are resampled"
    return f"{text}, alike for all runs and checkpoints"


def _summarise_curve(
    j: int,
    posterior: CurvePosterior,
    packed: PackedSweep,
    residuals: FloatArray,
    log10_C_peak: float,
    correction: ResidualCorrection | None,
    shift: FloatArray | None,
) -> FittedCurve:
    """The mean curve of cell j, with intervals where there are shifts; residuals are float[S,
    P]."""
    A, mid, lnB, tail = posterior.mean_curves[j].tolist()
    B_p, n = packed.keys[j]
    has_point, has_peak = packed.data.weight[j] > 0, bool(np.isfinite(log10_C_peak))
    progress_reached = progress_gradient(packed.data.x[j][has_point], mid, lnB, tail)[0].max()
    determined = not has_peak and bool(progress_reached >= DETERMINED_PROGRESS)
    intervals = {}
    if shift is not None:
        draws_of_A = apply_problem_shift(shift, posterior.theta[:, :, 0])[:, j]
        intervals["A_interval"] = central_interval(draws_of_A)
        intervals["exponent_interval"] = central_interval(np.exp(posterior.theta[:, j, 2]))
        intervals["C_mid_interval"] = central_interval(10 ** posterior.theta[:, j, 1])
        determined &= bool(np.ptp(central_band(draws_of_A)) <= DETERMINED_WIDTH)
    return FittedCurve(
        B_p=B_p,
        n=n,
        R0=float(np.clip(posterior.R0.mean(), 0.0, 1.0)),  # its prior, a normal one, has no bounds
        A=A,
        exponent=float(np.exp(lnB)),
        C_mid=10**mid,
        # where all seeds have data
        C_low=max(float(t.C[t.C > 0].min(initial=np.inf)) for t in packed.tracks[j]),
        C_high=max(float(t.C[-1]) for t in packed.tracks[j]),
        points=int(packed.data.trained[j].sum()),
        rmse=float(np.sqrt(np.mean(residuals[has_point] ** 2))),
        tail=tail,
        correction=correction,
        determined=determined,
        C_peak=float(10**log10_C_peak) if has_peak else None,
        **intervals,
    )


def _describe_intervals(
    posterior: CurvePosterior, problem_count: int | None, options: FitOptions
) -> IntervalSettings:
    return IntervalSettings(
        level=LEVEL,
        replicates=options.replicates,
        seed=options.seed,
        run_sd=posterior.likeliest.scales.run_sd,
        run_sd_source=posterior.likeliest.run_sd_from,
        noise_sd=posterior.evaluation_sd,
        problems=problem_count,
        acceptance=posterior.acceptance,
        r_hat=posterior.r_hat,
        method=(
            "draws of all curves from their posterior, each run's luck and the run-to-run effect's "
            f"own uncertainty included; {problems_sentence(problem_count)}"
        ),
    )
