"""What one run's evaluations say of its reward beyond them: the posterior of its curve, with
departures from any curve, as large as a trial on its own first quarter says."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from isojax.scaling.curves.departures import MIN_VISIBLE
from isojax.scaling.curves.single_run import (
    MAX_FITTED_POINTS,
    RunPoints,
    RunPosterior,
    sample_posterior,
)
from isojax.scaling.curves.sweep_estimate import MAX_EXTRAPOLATION
from isojax.scaling.intervals import central_band, central_interval
from isojax.scaling.tracks import FloatArray

END_POINTS = 3  # distinct C whose mean is "at the end"
CLEAR_AUTOCORRELATION = 0.3  # of the noise: flagged where the interval is above it
# an interval of A wider than this share of the gain measured does not determine it
MAX_INTERVAL_SHARE = 0.5
# standard deviation of a departure at four times the data, as a share of the curve's gain
DEPARTURE_SHARE = 0.04


@dataclass(frozen=True)
class PredictionErrors:
    """A curve against evaluations that it was not fitted to; errors are curve minus measured."""

    points: int
    mean_error: float
    mean_absolute_error: float
    max_absolute_error: float
    # of the mean of the evaluations at the last END_POINTS values of C
    predicted_at_end: float
    interval_at_end: list[float | None]
    measured_at_end: float


class TriedPosterior(NamedTuple):
    """A run's curve, and what its beginning would have predicted."""

    posterior: RunPosterior  # with departures beyond the data
    # C_limit, up to which the trial was fitted, and PredictionErrors beyond; None: not possible
    trial: dict[str, Any] | None


def fit_with_trial(points: RunPoints) -> TriedPosterior:
    """The posterior with departures beyond the data, and the trial: what the points up to a quarter
    of the largest C predict of the others. The departures' variance is the mean of a prior's, by
    DEPARTURE_SHARE, and of the trial's excess; the prior's alone where no trial is possible."""
    posterior = sample_posterior(points)
    prior_sd = DEPARTURE_SHARE * median_gain(posterior)

    C_limit = posterior.C_high / MAX_EXTRAPOLATION
    is_visible = points.C <= C_limit
    visible = points.select(is_visible)
    hidden = points.select(~is_visible)
    if len(np.unique(visible.C[visible.C > 0])) < MIN_VISIBLE:
        return TriedPosterior(replace(posterior, departure_sd=prior_sd), None)

    # How far the end is from what was predicted, beyond what the prediction itself left open.
    tried = sample_posterior(visible)
    at_end = last_points(hidden)
    predicted = tried.evaluations(at_end).mean(-1)
    excess = (predicted.mean() - at_end.R.mean()) ** 2 - predicted.var()

    tried = replace(tried, departure_sd=DEPARTURE_SHARE * median_gain(tried))
    trial = {"C_limit": C_limit, **vars(prediction_errors(tried, hidden))}
    # equal weights: the trial is one error
    departure_sd = float(np.sqrt((prior_sd**2 + max(excess, 0.0)) / 2))
    return TriedPosterior(replace(posterior, departure_sd=departure_sd), trial)


def median_gain(posterior: RunPosterior) -> float:
    """The median, over the draws, of the reward at the last point less that at C = 0."""
    at_end = posterior.rewards(np.array([posterior.C_high]))[:, 0]
    return float(np.median(at_end - posterior.draws["R0"]))


def is_determined(posterior: RunPosterior) -> bool:
    """Whether the plateau is known to within half of the gain that was measured, by a curve of the
    right form."""
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
    """The median reward at C, float[points]; between many points by interpolation."""
    knots = np.unique(C)
    if len(knots) > MAX_FITTED_POINTS:
        knots = knots[np.linspace(0, len(knots) - 1, MAX_FITTED_POINTS).astype(int)]
    return np.interp(C, knots, np.median(posterior.rewards(knots), axis=0))


def prediction_errors(posterior: RunPosterior, hidden: RunPoints) -> PredictionErrors:
    """A posterior against points that it has not seen; the interval includes their noise."""
    errors = median_curve(posterior, hidden.C) - hidden.R
    at_end = last_points(hidden)
    end_rewards = posterior.evaluations(at_end).mean(-1)
    return PredictionErrors(
        points=len(hidden.C),
        mean_error=float(errors.mean()),
        mean_absolute_error=float(np.abs(errors).mean()),
        max_absolute_error=float(np.abs(errors).max()),
        predicted_at_end=float(np.median(end_rewards)),
        interval_at_end=list(central_interval(end_rewards)),
        measured_at_end=float(at_end.R.mean()),
    )
