"""The learning curve of one configuration from two columns of a file (`isojax fit-curve`), with
intervals, flags, and how far off it is beyond the points to which it was fitted.

Points that only show noise around one reward have a flat curve instead (`_FlatCurve`)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from isojax.core.errors import InputError
from isojax.core.table_checks import check_unique_rows, filter_rows, float_column, require_column
from isojax.core.table_files import read_table
from isojax.core.tabular import DataTable
from isojax.scaling.curves.flat_sweep import evaluation_sd, level_draws
from isojax.scaling.curves.single_run import (
    METHOD,
    MIN_POINTS,
    PARTICLES,
    RunPoints,
    RunPosterior,
    find_reward_range,
    flat_posterior,
)
from isojax.scaling.evaluation_size import SAME_REWARD, size_by_step
from isojax.scaling.intervals import LEVEL, SEED, TAILS, central_band, central_interval
from isojax.scaling.learning import MIN_OF_ONE_RUN, NothingLearnt, describe, shows_something
from isojax.scaling.mixed_settings import describe_mixtures
from isojax.scaling.run_forecast import (
    MAX_INTERVAL_SHARE,
    fit_to_peak,
    is_autocorrelated,
    is_determined,
    median_curve,
    median_gain,
    prediction_errors,
)
from isojax.scaling.tracks import FloatArray

SETTINGS = ("n", "B_p", "B")  # columns that should have one value each along a curve
FEW_POINTS = 10  # with fewer, the prior decides much of the curve, which is flagged
BAND_POINTS = 120  # values of C at which the curve and its interval are tabulated
PERCENT = 100.0  # rewards from 0 to this, some above 1, may be percentages


@dataclass(frozen=True)
class CurveFilePoints:
    """The points that a file holds."""

    points: RunPoints  # in order of seed, then of compute
    seed_names: tuple[str, ...]  # in the order of the file; ("",) without a column of seeds
    rows_without_reward: int  # these were left out


class FittedCurveFile(NamedTuple):
    """A curve as a document of plain values, and the points of the file."""

    document: dict[str, Any]
    data: CurveFilePoints


def fit_curve_file(
    path: Path,
    x_column: str,
    y_column: str,
    below: float | None = None,
    filters: Sequence[str] = (),
    group: str | None = None,
) -> FittedCurveFile:
    """Fit a learning curve to two columns of a file: x_column with compute, y_column with rewards.

    x_column: such as "rollouts", numbers >= 0. y_column: such as "avg@4", numbers or blank.
    path: CSV, TSV or JSON lines.
    below: fit only the points with x <= below, and compare the curve with the others.
    filters: rows to keep, such as ["model=7b"].
    group: the column that tells the seeds of the configuration apart; all seeds share one curve.

    Gives the points that were read, and a document of plain values (exponent, C_mid and tail are
    None for points that only show noise around one reward):
    - kind ("curve"), file, x, y, where (the filters), group, fit_below: what was asked for;
    - nothing_learnt: of such points, what was seen, a sentence; "" for others;
    - R0, A, exponent, C_mid, tail: of the curve nearest to the mean of the draws;
    - intervals: {name: [low, high]}, of the draws, of all of these but the tail;
    - C_peak: where the reward starts to fall; points beyond are left out. None where it does not;
    - draws, points, seeds, rmse, noise {sd, autocorrelation}, departure_sd;
    - determined: whether the data determine A;
    - band: the curve, [{C, reward, low, high}];
    - trial: what the first quarter predicts of the rest; None with too few points;
    - beyond: errors (curve minus measured) of the points above `below`; None without it.
      interval_at_end there includes the noise of the evaluations at the end;
    - flags: sentences.

    InputError for too few points, none above `below`, or a file that cannot be used, with its
    line."""
    table = filter_rows(read_table(path), filters)
    settings = [name for name in SETTINGS if name in table.columns]
    mixtures = list(describe_mixtures(table, settings, filters, "curve"))

    data = _read_points(table, x_column, y_column, group, mixtures)
    points = data.points
    in_fit = np.ones(len(points.C), dtype=bool) if below is None else points.C <= below
    fitted_points = points.select(in_fit)
    _require_enough_points(path, x_column, points, fitted_points, below)

    flat = _find_flat(fitted_points, y_column)
    if flat is None:
        posterior, trial = fit_to_peak(fitted_points)
    else:
        posterior, trial = _flat_posterior(flat, fitted_points), None

    beyond = None
    if below is not None:
        beyond = dict(vars(prediction_errors(posterior, points.select(~in_fit))))
    document: dict[str, Any] = {
        "kind": "curve",
        "file": str(path),
        "x": x_column,
        "y": y_column,
        "where": list(filters),
        "group": group,
        "fit_below": below,
        **_describe_fit(posterior, data, fitted_points),
        "trial": trial,
        "beyond": beyond,
        "nothing_learnt": "" if flat is None else flat.nothing.text,
    }
    if flat is None:
        flags = _flags(posterior, fitted_points, document, data.rows_without_reward)
    else:
        document |= _describe_flat(flat, document)
        flags = _flat_flags(flat, y_column, data.rows_without_reward)
    document["flags"] = [*mixtures, *flags]
    return FittedCurveFile(document, data)


@dataclass(frozen=True)
class _FlatCurve:
    """The curve of points that only show noise around one reward."""

    nothing: NothingLearnt  # its numbers are in [0, 1]
    reward_range: tuple[float, float]  # the file's rewards that count as 0 and 1 there

    def to_reward(self, value: float) -> float:
        """A number in [0, 1] on the scale of the file."""
        low, high = self.reward_range
        return low + (high - low) * value


def _find_flat(points: RunPoints, y_column: str) -> _FlatCurve | None:
    """The flat curve of points that show no learning; None where they show some.

    Fewer than MIN_OF_ONE_RUN points, which could hardly show any, count as flat only if all are
    equal. y_column: what the reward is called, such as "avg@4"."""
    # Rewards that are not in [0, 1] are scaled to it, as percentages where they may be such.
    # The range is (0.0, 1.0) where all rewards are in it, otherwise one that is wider than theirs.
    low, high = find_reward_range(points.R)
    is_unit_range = low == 0.0 and high == 1.0
    if not is_unit_range and points.R.min() >= 0 and points.R.max() <= PERCENT:
        low, high = 0.0, PERCENT
    unit_rewards = (points.R - low) / (high - low)

    runs = replace(points, R=unit_rewards).by_seed()
    size = size_by_step(*[run.R for run in runs])
    is_constant = np.ptp(unit_rewards) <= SAME_REWARD
    if len(points.C) < MIN_OF_ONE_RUN and not is_constant:
        return None
    if shows_something([runs], size):  # the runs of one cell
        return None

    reward_range = (low, high)
    nothing = describe(
        runs, size, y_column, opening="nothing was learnt", causes=(), reward_range=reward_range
    )
    return _FlatCurve(nothing, reward_range)


def _flat_posterior(flat: _FlatCurve, points: RunPoints) -> RunPosterior:
    """Draws of a curve that stays at one reward, as uncertain as an evaluation is."""
    levels = level_draws(flat.nothing, PARTICLES)
    C_range = (float(points.C[points.C > 0].min()), float(points.C.max()))
    noise_sd = evaluation_sd(flat.nothing)
    return flat_posterior(C_range, levels, noise_sd, points.seeds, flat.reward_range)


def _describe_flat(flat: _FlatCurve, document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the document that are different for a flat curve, to overwrite them.

    Its reward is the mean of all points everywhere, and it has no exponent and no C_mid. document:
    that of `fit_curve_file`, without flags."""
    level = flat.to_reward(flat.nothing.level)
    rollouts = f"{flat.nothing.size.rollouts:,.0f} rollouts"
    method = f"one reward, as uncertain as an evaluation of {rollouts} leaves it"

    changed: dict[str, Any] = {
        "R0": level,
        "A": level,
        "exponent": None,
        "C_mid": None,
        "tail": None,
        "intervals": document["intervals"] | {"exponent": (None, None), "C_mid": (None, None)},
        "determined": False,
        "draws": document["draws"] | {"method": method},
    }

    if document["beyond"] is not None:
        at_end = np.clip(document["beyond"]["interval_at_end"], *flat.reward_range).tolist()
        changed["beyond"] = document["beyond"] | {
            "predicted_at_end": level,
            "interval_at_end": at_end,
        }
    return changed


def _flat_flags(flat: _FlatCurve, y_column: str, rows_without_reward: int) -> Iterator[str]:
    """What a reader of a flat curve must know: that it is one, and how noisy its points are."""
    yield flat.nothing.text
    size = flat.nothing.size
    yield f"one evaluation is taken to have {size.rollouts:,.0f} rollouts ({size.source})"
    if rows_without_reward:
        yield f"{rows_without_reward} rows without {y_column} are left out"


def _read_points(
    table: DataTable, x_column: str, y_column: str, group: str | None, mixtures: Sequence[str]
) -> CurveFilePoints:
    """The points of the rows that have a reward, sorted by seed and compute.

    group: the column of the seeds; None: one seed. mixtures: sentences on settings that differ
    between rows, to explain why one seed has two points at one x. InputError where a column is
    missing or has no number, no row has a reward, or a seed has two rows at one x."""
    require_column(table, x_column)
    require_column(table, y_column)
    rows_with_reward = table.rows.take(~table.rows.column(y_column).is_blank)
    if not len(rows_with_reward):
        raise InputError(
            where=table.source,
            found=f"{y_column} is empty in all {len(table.rows)} rows",
            expected="a reward in some",
            fix="Give another --y.",
        )

    reward_table = replace(table, rows=rows_with_reward)
    C = float_column(reward_table, x_column, minimum=0)
    R = float_column(reward_table, y_column)
    seed_labels = [""] * len(rows_with_reward)
    if group is not None:
        seed_labels = list(map(str, rows_with_reward.column(require_column(reward_table, group))))
    _require_one_row_per_point(reward_table, x_column, group, mixtures)

    # Seeds are numbered in the order in which the file names them.
    index_of_seed = {label: i for i, label in enumerate(dict.fromkeys(seed_labels))}
    seed_names = tuple(index_of_seed)
    run_index = np.array([index_of_seed[label] for label in seed_labels])
    order = np.lexsort((C, run_index))
    return CurveFilePoints(
        points=RunPoints(C[order], R[order], run_index[order], len(seed_names)),
        seed_names=seed_names,
        rows_without_reward=len(table.rows) - len(rows_with_reward),
    )


def _require_one_row_per_point(
    table: DataTable, x_column: str, group: str | None, mixtures: Sequence[str]
) -> None:
    """InputError where a seed has two rows at one x, so that the file holds more than one curve.

    group: the column of the seeds, None for one seed; mixtures: hints for the message on columns by
    which several settings may be mixed in the file (describe_mixtures)."""
    key_columns = (x_column,) if group is None else (group, x_column)
    try:
        check_unique_rows(table, key_columns)
    except InputError as e:
        hints = list(mixtures)
        if group is None:
            hints.append(
                "Where the file holds several seeds, name the column that distinguishes them "
                "with --group."
            )
        # one hint is enough: several settings explain equal rows better than seeds do
        if not hints:
            raise
        hint = hints[0].removesuffix(".")
        raise e.with_fix(f"{hint[0].upper()}{hint[1:]}.") from e


def _require_enough_points(
    path: Path, x_column: str, points: RunPoints, fitted_points: RunPoints, below: float | None
) -> None:
    """InputError for too few points, or where `below` leaves no point to compare the curve with.

    points: all of the file; fitted_points: those with x <= below, all where it is None."""
    distinct_C = np.unique(fitted_points.C)
    positive_count = int((distinct_C > 0).sum())
    if len(distinct_C) < MIN_POINTS or positive_count < MIN_POINTS - 1:
        condition = "" if below is None else f" with {x_column} <= {below:g}"
        count = (
            f"{len(distinct_C)} distinct {x_column}{condition}, {positive_count} of them above 0"
        )
        fix = "Evaluate more often."
        if below is not None:
            fix = "Evaluate more often, or raise --fit-below."
        raise InputError(
            where=path,
            found=f"has {count}",
            expected=f"at least {MIN_POINTS}, {MIN_POINTS - 1} of them above 0",
            fix=fix,
        )

    if below is not None and len(fitted_points.C) == len(points.C):
        raise InputError(
            where=path,
            found=f"--fit-below {below:g}",
            expected=f"less than the last {x_column}, {points.C.max():g}",
        )


def _describe_fit(
    posterior: RunPosterior, data: CurveFilePoints, fitted_points: RunPoints
) -> dict[str, Any]:
    """The fields of the document that follow from the draws of the curve (the posterior).

    They are the same whether it rises or is flat; they are listed in `fit_curve_file`. data: all
    points of the file; fitted_points: those to which the curve was fitted."""
    draws = posterior.draws
    is_fitted = fitted_points.C <= posterior.C_peak * (1 + 1e-9)
    seen = fitted_points.select(is_fitted)
    residuals = seen.R - median_curve(posterior, seen.C)

    return {
        **vars(posterior.mean_curve()),
        "C_peak": None if np.isinf(posterior.C_peak) else posterior.C_peak,
        "intervals": {name: central_interval(values) for name, values in draws.items()},
        "draws": {"level": LEVEL, "replicates": len(draws["A"]), "seed": SEED, "method": METHOD},
        "points": len(seen.C),
        "seeds": len(data.seed_names),
        "rmse": float(np.sqrt(np.mean(residuals**2))),
        "noise": {
            "sd": float(np.median(posterior.noise_sd)),
            "autocorrelation": float(np.median(posterior.parameters.autocorrelation)),
        },
        "determined": is_determined(posterior),
        "departure_sd": posterior.departure_sd,
        "band": _band(posterior, data.points.C),
    }


def _band(posterior: RunPosterior, C_of_points: FloatArray) -> list[dict[str, float]]:
    """The curve's median and interval at BAND_POINTS values of C: [{C, reward, low, high}, ...].

    They cover the range of all points of the file with C > 0, those held out too. C_of_points:
    float[points] of these."""
    C = np.geomspace(C_of_points[C_of_points > 0].min(), C_of_points.max(), BAND_POINTS)
    rewards = posterior.rewards(C)  # [draws, BAND_POINTS]
    reward = np.median(rewards, axis=0)
    low, high = central_band(rewards)
    return [
        {
            "C": float(C[i]),
            "reward": float(reward[i]),
            "low": float(low[i]),
            "high": float(high[i]),
        }
        for i in range(len(C))
    ]


def _flags(
    posterior: RunPosterior,
    fitted_points: RunPoints,
    document: Mapping[str, Any],
    rows_without_reward: int,
) -> Iterator[str]:
    """What a reader of a rising curve must know before believing it, a sentence each.

    It may be: parameters that the data do not determine, few points, rewards outside [0, 1],
    correlated residuals. document: that of `fit_curve_file`, without flags."""
    y_column = document["y"]
    C = fitted_points.C
    R = fitted_points.R
    gain = median_gain(posterior)
    if rows_without_reward:
        yield f"{rows_without_reward} rows without {y_column} are left out"

    if document["C_peak"] is not None:
        C_peak = f"C = {document['C_peak']:.4g}"
        left_out = len(C) - document["points"]
        text = f"the reward falls beyond {C_peak}: {left_out} points there are left out"
        yield f"{text}, and the curve takes the run as stopped at its peak"

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
        R0_range = f"R0 is not determined ({low:.3g} to {high:.3g})"
        yield f"{R0_range}: no point at C = 0 shows where the run began"

    if len(C) < FEW_POINTS:
        yield f"only {len(C)} points: the intervals rest largely on the prior"
    if R.min() < 0 or R.max() > 1:
        prior = "the prior keeps R0 and A within one range of the rewards around them"
        yield f"{y_column} is not within [0, 1]: {prior}"
    if is_autocorrelated(posterior):
        text = f"residuals are autocorrelated (about {document['noise']['autocorrelation']:.1f})"
        yield f"{text}: the noise is slow, or the run has another form than this"
