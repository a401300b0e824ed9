"""One run's curve from two columns of a file, with intervals, flags, and its error beyond the
fitted points."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from isojax.core.errors import InputError
from isojax.core.table_checks import check_unique_rows, filter_rows, float_column, require_column
from isojax.core.table_files import read_table
from isojax.core.tabular import DataTable
from isojax.scaling.checks.evaluation_size import SAME_REWARD, size_by_step
from isojax.scaling.checks.learning import MIN_OF_ONE_RUN, NothingLearnt, describe, shows_something
from isojax.scaling.curves.departures import MIN_VISIBLE
from isojax.scaling.curves.flat_sweep import evaluation_sd, level_draws
from isojax.scaling.curves.single_run import (
    MAX_FITTED_POINTS,
    MIN_POINTS,
    PARTICLES,
    RunPoints,
    RunPosterior,
    find_reward_range,
    flat_posterior,
    sample_posterior,
)
from isojax.scaling.curves.sweep_estimate import MAX_EXTRAPOLATION
from isojax.scaling.intervals import LEVEL, SEED, TAILS, central_band, central_interval
from isojax.scaling.law.points_file import describe_mixtures
from isojax.scaling.tracks import FloatArray

SETTINGS = ("n", "B_p", "B")  # of which a curve has one value each
FEW_POINTS = 10
END_POINTS = 3  # distinct C whose mean is "at the end"
CLEAR_AUTOCORRELATION = 0.3  # of the noise: flagged where the interval is above it
# an interval of A wider than this share of the gain measured does not determine it
MAX_INTERVAL_SHARE = 0.5
# standard deviation of a departure at four times the data, as a share of the curve's gain
DEPARTURE_SHARE = 0.04
BAND_POINTS = 120
PERCENT = 100.0  # rewards from 0 to this, some above 1, may be percentages
METHOD = "posterior of the curve, its tail and the noise, by sequential Monte Carlo"


@dataclass(frozen=True)
class CurveFilePoints:
    points: RunPoints  # by seed and compute
    seed_names: tuple[str, ...]
    rows_without_reward: int


def fit_curve_file(
    path: Path,
    x_column: str,
    y_column: str,
    below: float | None = None,
    filters: Sequence[str] = (),
    group: str | None = None,
) -> tuple[dict[str, Any], CurveFilePoints]:
    """Fit a curve to two columns of a file, compute >= 0 and rewards; of points with x <= `below`
    alone, where that is given, to compare it with those beyond. `filters`: "COL=VALUE", rows to
    keep; `group`: the column that names the seed of one configuration; all seeds share one curve.

    Returns medians and intervals {name: [low, high]} of R0, A, exponent and C_mid, draws, points,
    seeds, rmse, noise {sd, autocorrelation}, determined (whether A is), departure_sd, band [{C,
    reward, low, high}], trial (what the first quarter predicts of the rest; None where it has too
    few points), beyond (errors are curve minus measured; None without `below`) and flags; and what
    was read. interval_at_end includes the noise of the evaluations at the end. InputError for too
    few points, none beyond `below`, or a file that cannot be used, with its line."""
    table = filter_rows(read_table(path), filters)
    mixtures = list(
        describe_mixtures(table, [x for x in SETTINGS if x in table.columns], filters, "curve")
    )
    file_points = _read_points(table, x_column, y_column, group, mixtures)
    points = file_points.points
    in_fit = np.ones(len(points.C), dtype=bool) if below is None else points.C <= below
    fitted_points = points.select(in_fit)
    _require_enough_points(path, x_column, points, fitted_points, below)
    flat = _find_flat(fitted_points, y_column)
    posterior, trial = (
        fit_with_trial(fitted_points)
        if flat is None
        else (_flat_posterior(flat, fitted_points), None)
    )
    document: dict[str, Any] = {
        "kind": "curve",
        "file": str(path),
        "x": x_column,
        "y": y_column,
        "where": list(filters),
        "group": group,
        "fit_below": below,
        **_describe_fit(posterior, file_points, fitted_points),
        "trial": trial,
        "beyond": None if below is None else _prediction_errors(posterior, points.select(~in_fit)),
    }
    document["nothing_learnt"] = "" if flat is None else flat.nothing.text
    if flat is None:
        document["flags"] = [
            *mixtures,
            *_flags(posterior, fitted_points, document, file_points.rows_without_reward),
        ]
    else:
        document |= _describe_flat(flat, document)
        document["flags"] = [
            *mixtures,
            *_flat_flags(flat, y_column, file_points.rows_without_reward),
        ]
    return document, file_points


@dataclass(frozen=True)
class _UnitRun:
    """One seed, its rewards in [0, 1]."""

    C: FloatArray
    R: FloatArray


@dataclass(frozen=True)
class _FlatCurve:
    """Points that show nothing."""

    nothing: NothingLearnt
    reward_range: tuple[float, float]  # of the rewards that it counts as 0 and 1

    def to_reward(self, value: float) -> float:
        low, high = self.reward_range
        return low + (high - low) * value


def _find_flat(points: RunPoints, y_column: str) -> _FlatCurve | None:
    """What points that show nothing stand at, of few points only where all are equal; None of any
    others."""
    low, high = reward_range = find_reward_range(points.R)
    if (low, high) != (0.0, 1.0) and points.R.min() >= 0 and points.R.max() <= PERCENT:
        low, high = reward_range = (0.0, PERCENT)
    unit_rewards = (points.R - low) / (high - low)
    seeds = [points.run_index == i for i in range(points.seeds)]
    runs = [_UnitRun(points.C[seed], unit_rewards[seed]) for seed in seeds if seed.any()]
    size = size_by_step(*[run.R for run in runs])
    is_constant = np.ptp(unit_rewards) <= SAME_REWARD
    if (len(points.C) < MIN_OF_ONE_RUN and not is_constant) or shows_something([runs], size):
        return None
    return _FlatCurve(
        describe(runs, size, y_column, "nothing was learnt", (), reward_range), reward_range
    )


def _flat_posterior(flat: _FlatCurve, points: RunPoints) -> RunPosterior:
    levels = level_draws(flat.nothing, PARTICLES)
    C_high = float(points.C.max())
    return flat_posterior(
        C_high, levels, evaluation_sd(flat.nothing), points.seeds, flat.reward_range
    )


def _describe_flat(flat: _FlatCurve, document: Mapping[str, Any]) -> dict[str, Any]:
    """A curve without a gain has no exponent and no C_mid; its reward is the mean of all points."""
    level = flat.to_reward(flat.nothing.level)
    intervals = document["intervals"] | {"exponent": (None, None), "C_mid": (None, None)}
    method = f"one reward, as uncertain as an evaluation of {flat.nothing.size.rollouts:,.0f} rollouts leaves it"
    changed: dict[str, Any] = {
        "R0": level,
        "A": level,
        "exponent": None,
        "C_mid": None,
        "intervals": intervals,
    }
    changed |= {"determined": False, "draws": document["draws"] | {"method": method}}
    if document["beyond"] is not None:
        at_end = np.clip(document["beyond"]["interval_at_end"], *flat.reward_range).tolist()
        changed["beyond"] = document["beyond"] | {
            "predicted_at_end": level,
            "interval_at_end": at_end,
        }
    return changed


def _flat_flags(flat: _FlatCurve, y_column: str, rows_without_reward: int) -> Iterator[str]:
    yield flat.nothing.text
    size = flat.nothing.size
    yield f"one evaluation is taken to have {size.rollouts:,.0f} rollouts ({size.source})"
    if rows_without_reward:
        yield f"{rows_without_reward} rows without {y_column} are left out"


def _read_points(
    table: DataTable, x_column: str, y_column: str, group: str | None, mixtures: Sequence[str]
) -> CurveFilePoints:
    require_column(table, x_column)
    require_column(table, y_column)
    rows_with_reward = table.rows.take(~table.rows.column(y_column).is_blank)
    if not len(rows_with_reward):
        problem = f"{table.source}: {y_column} is empty in all {len(table.rows)} rows"
        raise InputError(f"{problem}; expected a reward in some. Give another --y.")
    reward_table = replace(table, rows=rows_with_reward)
    C = float_column(reward_table, x_column, minimum=0)
    R = float_column(reward_table, y_column)
    seed_labels = [""] * len(rows_with_reward)
    if group is not None:
        seed_labels = list(map(str, rows_with_reward.column(require_column(reward_table, group))))
    try:
        check_unique_rows(reward_table, (x_column,) if group is None else (group, x_column))
    except InputError as e:
        hint = "Where the file holds several seeds, name the column that distinguishes them with --group."
        hints = [*mixtures, *([hint] if group is None else [])]
        raise InputError(" ".join([str(e), *hints[:1]])) from e
    index_of_seed = {label: i for i, label in enumerate(dict.fromkeys(seed_labels))}
    seed_names = tuple(index_of_seed)
    run_index = np.array([index_of_seed[label] for label in seed_labels])
    order = np.lexsort((C, run_index))
    points = RunPoints(C[order], R[order], run_index[order], len(seed_names))
    return CurveFilePoints(points, seed_names, len(table.rows) - len(rows_with_reward))


def _require_enough_points(
    path: Path, x_column: str, points: RunPoints, fitted_points: RunPoints, below: float | None
) -> None:
    """Refuse points that show no curve, and a hold-out that holds nothing."""
    distinct_C = np.unique(fitted_points.C)
    positive_count = int((distinct_C > 0).sum())
    if len(distinct_C) < MIN_POINTS or positive_count < MIN_POINTS - 1:
        condition = "" if below is None else f" with {x_column} <= {below:g}"
        raise InputError(
            f"{path} has {len(distinct_C)} distinct {x_column}{condition}, {positive_count} of them above 0; "
            f"expected at least {MIN_POINTS}, {MIN_POINTS - 1} of them above 0. "
            f"Evaluate more often{'' if below is None else ', or raise --fit-below'}."
        )
    if below is not None and len(fitted_points.C) == len(points.C):
        raise InputError(
            f"{path}: --fit-below {below:g}, expected less than the last {x_column}, {points.C.max():g}."
        )


def fit_with_trial(points: RunPoints) -> tuple[RunPosterior, dict[str, Any] | None]:
    """The posterior with departures beyond the data, and the trial: what the points up to a quarter
    of the largest C predict of the others. The departures' variance is the mean of a prior's, by
    DEPARTURE_SHARE, and of the trial's excess; the prior's alone where no trial is possible."""
    posterior = sample_posterior(points)
    prior_sd = DEPARTURE_SHARE * _median_gain(posterior)
    C_limit = posterior.C_high / MAX_EXTRAPOLATION
    is_visible = points.C <= C_limit
    visible, hidden = points.select(is_visible), points.select(~is_visible)
    if len(np.unique(visible.C[visible.C > 0])) < MIN_VISIBLE:
        return replace(posterior, departure_sd=prior_sd), None
    tried = sample_posterior(visible)
    at_end = _last_points(hidden)
    predicted = tried.evaluations(at_end).mean(-1)
    excess = (predicted.mean() - at_end.R.mean()) ** 2 - predicted.var()
    tried = replace(tried, departure_sd=DEPARTURE_SHARE * _median_gain(tried))
    trial = {"C_limit": C_limit, **_prediction_errors(tried, hidden)}
    # equal weights: the trial is one error
    departure_sd = float(np.sqrt((prior_sd**2 + max(excess, 0.0)) / 2))
    return replace(posterior, departure_sd=departure_sd), trial


def _median_gain(posterior: RunPosterior) -> float:
    return float(
        np.median(posterior.rewards(np.array([posterior.C_high]))[:, 0] - posterior.draws["R0"])
    )


def is_determined(posterior: RunPosterior) -> bool:
    """Whether the plateau is known to within half of the gain that was measured, by a curve of the
    right form."""
    low, high = central_band(posterior.draws["A"])
    is_narrow = high - low <= MAX_INTERVAL_SHARE * _median_gain(posterior)
    return bool(is_narrow and not _is_autocorrelated(posterior))


def _is_autocorrelated(posterior: RunPosterior) -> bool:
    low, _ = central_band(posterior.parameters.autocorrelation)
    return bool(low > CLEAR_AUTOCORRELATION)


def _last_points(points: RunPoints) -> RunPoints:
    return points.select(points.C >= np.unique(points.C)[-END_POINTS:][0])


def _describe_fit(
    posterior: RunPosterior, file_points: CurveFilePoints, fitted_points: RunPoints
) -> dict[str, Any]:
    draws = posterior.draws
    residuals = fitted_points.R - _median_curve(posterior, fitted_points.C)
    C = np.geomspace(
        file_points.points.C[file_points.points.C > 0].min(),
        file_points.points.C.max(),
        BAND_POINTS,
    )
    rewards = posterior.rewards(C)
    low, high = central_band(rewards)
    band = {"C": C, "reward": np.median(rewards, axis=0), "low": low, "high": high}
    return {
        **{name: float(np.median(values)) for name, values in draws.items()},
        "intervals": {name: central_interval(values) for name, values in draws.items()},
        "draws": {"level": LEVEL, "replicates": len(draws["A"]), "seed": SEED, "method": METHOD},
        "points": len(fitted_points.C),
        "seeds": len(file_points.seed_names),
        "rmse": float(np.sqrt(np.mean(residuals**2))),
        "noise": {
            "sd": float(np.median(posterior.noise_sd)),
            "autocorrelation": float(np.median(posterior.parameters.autocorrelation)),
        },
        "determined": is_determined(posterior),
        "departure_sd": posterior.departure_sd,
        "band": [
            dict(zip(band, map(float, row), strict=True))
            for row in zip(*band.values(), strict=True)
        ],
    }


def _median_curve(posterior: RunPosterior, C: FloatArray) -> FloatArray:
    """The median reward at C, between many points by interpolation."""
    knots = np.unique(C)
    if len(knots) > MAX_FITTED_POINTS:
        knots = knots[np.linspace(0, len(knots) - 1, MAX_FITTED_POINTS).astype(int)]
    return np.interp(C, knots, np.median(posterior.rewards(knots), axis=0))


def _prediction_errors(posterior: RunPosterior, hidden: RunPoints) -> dict[str, Any]:
    errors = _median_curve(posterior, hidden.C) - hidden.R
    at_end = _last_points(hidden)
    end_rewards = posterior.evaluations(at_end).mean(-1)
    return {
        "points": len(hidden.C),
        "mean_error": float(errors.mean()),
        "mean_absolute_error": float(np.abs(errors).mean()),
        "max_absolute_error": float(np.abs(errors).max()),
        "predicted_at_end": float(np.median(end_rewards)),
        "interval_at_end": list(central_interval(end_rewards)),
        "measured_at_end": float(at_end.R.mean()),
    }


def _flags(
    posterior: RunPosterior,
    fitted_points: RunPoints,
    document: Mapping[str, Any],
    rows_without_reward: int,
) -> Iterator[str]:
    y_column, C, R = document["y"], fitted_points.C, fitted_points.R
    gain = _median_gain(posterior)
    if rows_without_reward:
        yield f"{rows_without_reward} rows without {y_column} are left out"
    first, last = posterior.rewards(np.array([C.min(), C.max()])).T
    if np.quantile(last - first, TAILS[0]) < document["noise"]["sd"]:
        yield "the reward does not clearly rise: C_mid and the exponent say little"
    if not document["determined"]:
        gain_share = gain / max(document["A"] - document["R0"], 1e-12)
        low, high = document["intervals"]["A"]
        plateau = f"A = {document['A']:.3g} with interval {low:.3g} to {high:.3g}"
        progress = (
            f"at C = {C.max():.4g} the curve has made about {min(gain_share, 1):.0%} of its gain"
        )
        yield f"the plateau is not determined: {plateau}; {progress}"
    low, high = document["intervals"]["R0"]
    if C.min() > 0 and high - low > MAX_INTERVAL_SHARE * gain:
        yield f"R0 is not determined ({low:.3g} to {high:.3g}): no point at C = 0 shows where the run began"
    if len(C) < FEW_POINTS:
        yield f"only {len(C)} points: the intervals rest largely on the prior"
    if R.min() < 0 or R.max() > 1:
        yield f"{y_column} is not within [0, 1]: the prior keeps R0 and A within one range of the rewards around them"
    if _is_autocorrelated(posterior):
        text = f"residuals are autocorrelated (about {document['noise']['autocorrelation']:.1f})"
        yield f"{text}: the noise is slow, or the run has another form than this"
