"""The fit of a sweep that has one cell: a view of the draws of run_forecast.py, as `isojax
fit-curve` gives them for the same points.

With several cells each curve borrows what it does not show itself from the others
(fit_hierarchical.py). One cell has nobody to borrow from; there the model of a single curve knows
more, since its noise may be correlated and may have outliers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from isojax.scaling.curves.fit_hierarchical import (
    problem_contributions,
    problems_sentence,
    sample_problem_shifts,
)
from isojax.scaling.curves.hierarchical import pack_sweep
from isojax.scaling.curves.hill import curve_reward
from isojax.scaling.curves.single_run import METHOD, RunPoints, RunPosterior
from isojax.scaling.curves.sweep_estimate import (
    MAX_EXTRAPOLATION,
    FitOptions,
    PosteriorSamples,
    SweepEstimate,
    apply_problem_shift,
)
from isojax.scaling.curves.unfitted import unfitted_reasons
from isojax.scaling.intervals import LEVEL, central_interval
from isojax.scaling.result import FittedCurve, ForecastTrial, IntervalSettings
from isojax.scaling.run_forecast import TriedPosterior, fit_to_peak, is_determined
from isojax.scaling.tracks import FloatArray, RewardPath, TracksByCell


class OneCellFit(NamedTuple):
    """What `fit` needs of the curves."""

    estimate: SweepEstimate  # its draws depart from their curve beyond the data
    forecast: ForecastTrial | None  # None without draws


def is_one_cell(cells: TracksByCell) -> bool:
    """Whether only one cell (B_p, n) can carry a curve."""
    return len(cells) - len(_unfitted(cells)) == 1


def fit_one_cell(cells: TracksByCell, metric: str, options: FitOptions) -> OneCellFit:
    """The curve of the one cell that can carry one (`is_one_cell`), its draws and its trial."""
    unfitted = _unfitted(cells)
    ((key, seeds),) = ((key, seeds) for key, seeds in cells.items() if key not in unfitted)
    tried = fit_to_peak(points_of_seeds(seeds), options.run_sd, options.seed)
    posterior = tried.posterior
    curve = _fitted_curve(key, seeds, posterior)

    # What other validation problems would add, a shift for each draw.
    packed = pack_sweep({key: seeds})
    x = packed.data.x  # log10 C; -inf at C = 0
    is_trained = np.isfinite(x)
    fitted_rewards = np.where(
        is_trained, curve_reward(curve, 10 ** np.where(is_trained, x, 0.0)), curve.R0
    )
    contributions = problem_contributions(packed, metric, fitted_rewards)
    shift = np.zeros((len(posterior.draws["A"]), 2))
    if contributions is not None:
        rng = np.random.default_rng([options.seed, 1])
        shift = sample_problem_shifts(contributions, len(shift), rng)

    estimate = SweepEstimate(
        curves=[curve],
        unfitted_cells=[(*other, reason) for other, reason in unfitted.items()],
        no_effect=False,  # one n was measured
        residuals=_residuals(seeds, curve),
        noise_sd=float(np.median(posterior.noise_sd)),
        parameter_count=3 + len(seeds),  # A, exponent and C_mid; R0 or the level of each run
    )
    if not options.replicates:
        return OneCellFit(estimate, None)

    curve = _with_intervals(curve, posterior, shift)
    problem_count = None if contributions is None else contributions.shape[1]
    estimate = replace(
        estimate,
        curves=[curve],
        draws=_samples(curve, posterior, shift, options.replicates),
        intervals=_describe_intervals(posterior, len(seeds), problem_count, options),
    )
    if options.on_progress is not None:
        options.on_progress(options.replicates, options.replicates)
    return OneCellFit(estimate, _describe_trial(tried))


def points_of_seeds(seeds: Sequence[RewardPath]) -> RunPoints:
    """The evaluations of a cell's seeds as `isojax fit-curve` reads them from a file."""
    run_index = np.repeat(np.arange(len(seeds)), [len(track.C) for track in seeds])
    return RunPoints(
        C=np.concatenate([track.C for track in seeds]),
        R=np.concatenate([track.R for track in seeds]),
        run_index=run_index,
        seeds=len(seeds),
    )


def _unfitted(cells: TracksByCell) -> dict[tuple[int, int], str]:
    """Why cells have no curve, of those that have none."""
    return unfitted_reasons(
        {key: [track.C[track.C > 0] for track in seeds] for key, seeds in cells.items()}
    )


def _fitted_curve(
    key: tuple[int, int], seeds: Sequence[RewardPath], posterior: RunPosterior
) -> FittedCurve:
    """The mean curve, without intervals."""
    B_p, n = key
    mean = posterior.mean_curve()
    has_peak = bool(np.isfinite(posterior.C_peak))
    curve = FittedCurve(
        B_p=B_p,
        n=n,
        **vars(mean),
        # where all seeds have data
        C_low=max(float(track.C[track.C > 0].min(initial=np.inf)) for track in seeds),
        C_high=posterior.C_high,
        points=sum(int((track.C > 0).sum()) for track in seeds),
        rmse=0.0,
        determined=not has_peak and is_determined(posterior),
        C_peak=posterior.C_peak if has_peak else None,
    )
    rmse = float(np.sqrt(np.mean(np.concatenate(_residuals(seeds, curve)) ** 2)))
    return replace(curve, rmse=rmse)


def _residuals(seeds: Sequence[RewardPath], curve: FittedCurve) -> list[FloatArray]:
    """Measured less fitted reward of each seed at C > 0, up to the curve's peak."""
    C_peak = np.inf if curve.C_peak is None else curve.C_peak * (1 + 1e-9)
    parts = []
    for track in seeds:
        is_fitted = (track.C > 0) & (track.C <= C_peak)
        if is_fitted.any():
            parts.append(track.R[is_fitted] - curve_reward(curve, track.C[is_fitted]))
    return parts


def _with_intervals(curve: FittedCurve, posterior: RunPosterior, shift: FloatArray) -> FittedCurve:
    """With the intervals of its parameters, from all draws float[Q]; shift float[Q, 2]."""
    draws = posterior.draws
    return replace(
        curve,
        A_interval=central_interval(apply_problem_shift(shift, draws["A"][:, None])[:, 0]),
        exponent_interval=central_interval(draws["exponent"]),
        C_mid_interval=central_interval(draws["C_mid"]),
    )


def _samples(
    curve: FittedCurve, posterior: RunPosterior, shift: FloatArray, count: int
) -> PosteriorSamples:
    """`count` of the draws.

    They are evenly spaced in the order of the reward to which they lead, so that a few are spread
    as all are."""
    reach = np.array([MAX_EXTRAPOLATION * posterior.C_high])
    order = np.argsort(posterior.rewards(reach)[:, 0], kind="stable")
    picked = np.sort(order[((np.arange(count) + 0.5) * len(order) / count).astype(int)])
    draws = {name: values[picked] for name, values in posterior.draws.items()}
    return PosteriorSamples.of_curves(
        [curve],
        departure_sd=posterior.departure_sd,
        tail=posterior.parameters.tail[picked],
        A=draws["A"][:, None],
        exponent=draws["exponent"][:, None],
        C_mid=draws["C_mid"][:, None],
        R0=draws["R0"],
        shift=shift[picked],
    )


def _describe_intervals(
    posterior: RunPosterior, seeds: int, problem_count: int | None, options: FitOptions
) -> IntervalSettings:
    if options.run_sd is not None:
        source = "as stated"
    elif seeds > 1:
        source = f"drawn with the curve, from {seeds} seeds"
    else:
        source = "one run alone: the curve and its intervals are this run's"
    return IntervalSettings(
        level=LEVEL,
        replicates=options.replicates,
        seed=options.seed,
        run_sd=float(np.median(posterior.run_sd)),
        run_sd_source=source,
        noise_sd=float(np.median(posterior.noise_sd)),
        problems=problem_count,
        acceptance=None,
        r_hat=None,
        method=f"{METHOD}; {problems_sentence(problem_count)}",
    )


def _describe_trial(tried: TriedPosterior) -> ForecastTrial:
    departure_sd = tried.posterior.departure_sd
    assert departure_sd is not None  # fit_with_trial sets it
    if tried.trial is None:
        return ForecastTrial(departure_sd=departure_sd)

    trial = tried.trial
    low, high = trial["interval_at_end"]
    error = trial["predicted_at_end"] - trial["measured_at_end"]
    return ForecastTrial(
        departure_sd=departure_sd,
        C_limit=trial["C_limit"],
        evaluations=trial["points"],
        mean_error=error,
        mean_absolute_error=abs(error),
        inside=float(low <= trial["measured_at_end"] <= high),
    )
