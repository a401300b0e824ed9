"""The forecast of one run's reward beyond its evaluations: draws of its curve (the posterior),
which also depart from the curve beyond the data. How large the departures are is estimated by a
trial: the run's first quarter predicts its rest."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from isojax.scaling.curves.departures import MIN_VISIBLE, find_peak
from isojax.scaling.curves.single_run import (
    MAX_FITTED_POINTS,
    RunPoints,
    RunPosterior,
    sample_posterior,
)
from isojax.scaling.curves.sweep_estimate import MAX_EXTRAPOLATION
from isojax.scaling.intervals import SEED, central_band, central_interval
from isojax.scaling.tracks import FloatArray

END_POINTS = 3  # the reward at the end is the mean over so many last values of C
CLEAR_AUTOCORRELATION = 0.3  # of the noise: flagged where the interval is above it
# A is determined where its interval is at most this share of the measured gain.
MAX_INTERVAL_SHARE = 0.5
# The prior standard deviation of a departure, at four times the data, as a share of the gain.
DEPARTURE_SHARE = 0.04


@dataclass(frozen=True)
class PredictionErrors:
    """A curve against evaluations that it was not fitted to; errors are curve minus measured."""

    points: int
    mean_error: float
    mean_absolute_error: float
    max_absolute_error: float
    # Of the mean of the evaluations at the last END_POINTS values of C: its median, its interval
    # [low, high] and the measured one.
    predicted_at_end: float
    interval_at_end: list[float | None]
    measured_at_end: float


class TriedPosterior(NamedTuple):
    """Draws of a run's curve, and the trial that shows how far they may be wrong."""

    posterior: RunPosterior  # with departures beyond the data
    # {"C_limit": the C up to which the trial was fitted, **PredictionErrors of the points beyond};
    # None where the run is too short for a trial.
    trial: dict[str, Any] | None


def fit_to_peak(
    points: RunPoints, stated_run_sd: float | None = None, seed: int = SEED
) -> TriedPosterior:
    """`fit_with_trial` of the points up to a peak beyond which the reward falls by more than chance
    (overfitting, departures.py). The draws stay at the reward of the peak, because a run may be
    stopped there; without a peak these are all points.

    Rewards outside [0, 1] have no such fall."""
    unit_range = points.R.min() >= 0 and points.R.max() <= 1
    log10_peak = find_peak(points.by_seed(), points.base_reward) if unit_range else None
    if log10_peak is None:
        return fit_with_trial(points, stated_run_sd, seed)

    C_peak = 10**log10_peak
    tried = fit_with_trial(points.select(points.C <= C_peak * (1 + 1e-9)), stated_run_sd, seed)
    posterior = replace(tried.posterior, C_peak=C_peak, C_high=float(points.C.max()))
    return TriedPosterior(posterior, tried.trial)


def fit_with_trial(
    points: RunPoints, stated_run_sd: float | None = None, seed: int = SEED
) -> TriedPosterior:
    """Draws of a run's curve that depart from it beyond the data, and the trial of such forecasts.

    The trial is how well the points up to a quarter of the largest C predict the others. points: of
    one run or of several seeds, sorted by seed and C. stated_run_sd, seed: as of
    `sample_posterior`.

    The variance of the departures is the mean of two: that of a prior (by DEPARTURE_SHARE), and the
    squared error of the trial, as far as it exceeds what the trial's draws left open. Where no
    trial is possible it is the prior's."""
    posterior = sample_posterior(points, stated_run_sd, seed)
    prior_sd = DEPARTURE_SHARE * median_gain(posterior)

    C_limit = posterior.C_high / MAX_EXTRAPOLATION
    is_visible = points.C <= C_limit
    visible = points.select(is_visible)
    hidden = points.select(~is_visible)
    if len(np.unique(visible.C[visible.C > 0])) < MIN_VISIBLE:  # too few for a curve
        return TriedPosterior(replace(posterior, departure_sd=prior_sd), None)

    # The squared error at the end, less the variance of the prediction itself. Here the draws have
    # no departures; with those of the prior they give the errors of `trial`.
    tried = sample_posterior(visible, stated_run_sd, seed)
    at_end = last_points(hidden)
    # [draws], each the mean of new evaluations at the C of at_end, with their noise
    predicted = tried.evaluations(at_end).mean(-1)
    excess = (predicted.mean() - at_end.R.mean()) ** 2 - predicted.var()

    tried = replace(tried, departure_sd=DEPARTURE_SHARE * median_gain(tried))
    trial = {"C_limit": C_limit, **vars(prediction_errors(tried, hidden))}
    # Equal weights, since the trial is a single error.
    departure_sd = float(np.sqrt((prior_sd**2 + max(excess, 0.0)) / 2))
    return TriedPosterior(replace(posterior, departure_sd=departure_sd), trial)


def median_gain(posterior: RunPosterior) -> float:
    """The median, over the draws, of the reward at the last point less that at C = 0."""
    at_end = posterior.rewards(np.array([posterior.C_high]))[:, 0]
    return float(np.median(at_end - posterior.draws["R0"]))


def is_determined(posterior: RunPosterior) -> bool:
    """Whether the data determine the plateau A: its interval is at most half of the measured gain,
    and the residuals show no other form than the curve's."""
    low, high = central_band(posterior.draws["A"])
    is_narrow = high - low <= MAX_INTERVAL_SHARE * median_gain(posterior)
    return bool(is_narrow and not is_autocorrelated(posterior))


def is_autocorrelated(posterior: RunPosterior) -> bool:
    """Whether neighbouring evaluations clearly err to the same side."""
    low, _ = central_band(posterior.parameters.autocorrelation)
    return bool(low > CLEAR_AUTOCORRELATION)


def last_points(points: RunPoints) -> RunPoints:
    """The evaluations at the last END_POINTS values of C."""
    first_C_at_end = np.unique(points.C)[-END_POINTS:][0]
    return points.select(points.C >= first_C_at_end)


def median_curve(posterior: RunPosterior, C: FloatArray) -> FloatArray:
    """The median reward of the draws at C, float[points] -> float[points].

    At more than MAX_FITTED_POINTS different C it is interpolated between so many."""
    knots = np.unique(C)
    if len(knots) > MAX_FITTED_POINTS:
        knots = knots[np.linspace(0, len(knots) - 1, MAX_FITTED_POINTS).astype(int)]
    return np.interp(C, knots, np.median(posterior.rewards(knots), axis=0))


def prediction_errors(posterior: RunPosterior, hidden: RunPoints) -> PredictionErrors:
    """How far the draws of a curve are from points to which it was not fitted.

    hidden: at least one point. interval_at_end of the result includes the noise of these points."""
    errors = median_curve(posterior, hidden.C) - hidden.R
    at_end = last_points(hidden)
    end_rewards = posterior.evaluations(at_end).mean(-1)  # [draws], with noise
    return PredictionErrors(
        points=len(hidden.C),
        mean_error=float(errors.mean()),
        mean_absolute_error=float(np.abs(errors).mean()),
        max_absolute_error=float(np.abs(errors).max()),
        predicted_at_end=float(np.median(end_rewards)),
        interval_at_end=list(central_interval(end_rewards)),
        measured_at_end=float(at_end.R.mean()),
    )
