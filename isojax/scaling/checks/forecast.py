"""How far to trust a sweep's curves beyond its data: a trial on the sweep itself. The evaluations above a part of the
largest C are hidden, the rest is fitted, and what was hidden is compared with what the curves predict. How far
predictions miss, more than noise and the curves' own uncertainty explain, adds to PRIOR_SHARE of the best gain in the
size of the departures that every draw gets beyond its data (PosteriorSamples.departure_sd).
"""

from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from isojax.scaling.curves.hill import curve_reward
from isojax.scaling.curves.sweep_estimate import MAX_EXTRAPOLATION, SweepEstimate
from isojax.scaling.intervals import LEVEL
from isojax.scaling.result import ForecastTrial
from isojax.scaling.tracks import RunTrack, TracksByCell, select_points

MIN_RANGE = 8.0  # of C_max over the smallest C measured, for a trial
MIN_VISIBLE = 4  # evaluations that a run needs below the limit
# Standard deviation of a departure at four times the data, without what a trial adds, as a share of the best gain.
PRIOR_SHARE = 0.05
TRIAL_DRAWS = 100  # of the trial's fit
ROUNDING = 1e-9  # of reward: where no reward has noise, an error of this size is none


def try_forecast(
    cells: TracksByCell, estimate: SweepEstimate, refit: Callable[[TracksByCell], SweepEstimate]
) -> ForecastTrial | None:
    """The trial, or the prior where no part of the data can be hidden; None without draws. `refit` fits a part."""
    if estimate.draws is None:
        return None
    best_reward = max(float(curve_reward(c, c.C_high)) for c in estimate.curves)
    prior_sd = PRIOR_SHARE * max(best_reward - float(np.mean(estimate.draws.R0)), 0.0)
    C_limit = max(float(t.C[-1]) for seeds in cells.values() for t in seeds) / MAX_EXTRAPOLATION
    visible = _visible_part(cells, C_limit)
    errors = _trial_errors(cells, C_limit, refit, visible) if visible else []
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
        inside=float(np.mean(np.abs(error) <= NormalDist().inv_cdf(0.5 + LEVEL / 2) * chance_sd + ROUNDING)),
    )


def _visible_part(cells: TracksByCell, C_limit: float) -> TracksByCell:
    """The runs up to C_limit, those with at least MIN_VISIBLE evaluations; empty where less than MIN_RANGE is seen."""
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
    cells: TracksByCell, C_limit: float, refit: Callable[[TracksByCell], SweepEstimate], visible: TracksByCell
) -> list[tuple[float, float, int]]:
    """Of each cell with a curve by the visible part: (predicted less measured reward, the mean over evaluations in the
    upper half of the hidden decades; its sd by the curve's own uncertainty and noise; how many evaluations)."""
    estimate = refit(visible)
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
        chance_variance = predicted.var() + noise.noise_sd**2 / len(C) + noise.run_sd**2 / seeds_hidden
        errors.append((float(predicted.mean() - R.mean()), float(np.sqrt(chance_variance)), len(C)))
    return errors
