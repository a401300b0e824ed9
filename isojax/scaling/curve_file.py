"""One run's curve from two columns of a file, with intervals, flags, and its error beyond the fitted points."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from isojax.core.errors import InputError
from isojax.core.table_files import read_table
from isojax.core.tabular import DataTable, check_unique_rows, filter_rows, float_column, is_blank, require_column
from isojax.scaling.curves import single_run
from isojax.scaling.curves.single_run import RunPoints, SingleRunFit
from isojax.scaling.curves.varpro import VarproSolution, evaluate_solution
from isojax.scaling.intervals import Interval, central_interval
from isojax.scaling.tracks import FloatArray

FEW_POINTS = 10
END_POINTS = 3  # distinct C whose mean is "at the end"
RHO_FLAGGED = 0.5
MAX_INTERVAL_SHARE = 0.5  # an interval of A wider than this share of the gain measured does not determine it


@dataclass(frozen=True)
class CurveFilePoints:
    """What a file holds."""

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
    """Fit a curve to two columns of a file, compute >= 0 and rewards; of points with x <= `below` alone, where that is
    given, to compare it with those beyond. `filters`: "COL=VALUE", rows to keep; `group`: the column that names the
    seed of one configuration; all seeds share one curve.

    Returns R0, A, exponent, C_mid, intervals {name: [low, high]} (None: open end), bootstrap, points, seeds, rmse,
    noise {sd, autocorrelation}, at_bounds, determined (whether A is), band [{C, reward, low, high}], beyond (errors are
    curve minus measured; None without `below`) and flags; and what was read. InputError for too few points, none beyond
    `below`, or a file that cannot be used, with its line."""
    file_points = _read_points(filter_rows(read_table(path), filters), x_column, y_column, group)
    points = file_points.points
    in_fit = np.ones(len(points.C), dtype=bool) if below is None else points.C <= below
    fitted_points = points.select(in_fit)
    _require_enough_points(path, x_column, points, fitted_points, below)
    fit = single_run.fit_single_run(fitted_points)
    bootstrap = single_run.bootstrap_replicates(fit, fitted_points)
    request = {
        "kind": "curve",
        "file": str(path),
        "x": x_column,
        "y": y_column,
        "where": list(filters),
        "group": group,
        "fit_below": below,
    }
    document = request | _describe_fit(fit, bootstrap, file_points, fitted_points)
    document["beyond"] = None if below is None else _holdout_errors(fit.solution, bootstrap, points.select(~in_fit))
    document["flags"] = list(_flags(fit, fitted_points, document, file_points.rows_without_reward))
    return document, file_points


def _read_points(table: DataTable, x_column: str, y_column: str, group: str | None) -> CurveFilePoints:
    require_column(table, x_column)
    require_column(table, y_column)
    rows_with_reward = tuple(row for row in table.rows if not is_blank(row.values.get(y_column)))
    if not rows_with_reward:
        raise InputError(
            f"{table.source}: {y_column} is empty in all {len(table.rows)} rows; expected a reward in some. "
            "Give another --y."
        )
    reward_table = replace(table, rows=rows_with_reward)
    C, R = float_column(reward_table, x_column, minimum=0), float_column(reward_table, y_column)
    seed_labels = [
        "" if group is None else str(row.values.get(require_column(reward_table, group))) for row in rows_with_reward
    ]
    try:
        check_unique_rows(reward_table, (x_column,) if group is None else (group, x_column))
    except InputError as e:
        hint = " Where the file holds several seeds, name the column that distinguishes them with --group."
        raise InputError(f"{e}{hint if group is None else ''}") from e
    seed_names = tuple(dict.fromkeys(seed_labels))
    run_index = np.array([seed_names.index(label) for label in seed_labels])
    order = np.lexsort((C, run_index))
    points = RunPoints(C[order], R[order], run_index[order])
    return CurveFilePoints(points, seed_names, len(table.rows) - len(rows_with_reward))


def _require_enough_points(
    path: Path, x_column: str, points: RunPoints, fitted_points: RunPoints, below: float | None
) -> None:
    """Refuse what four parameters cannot be fitted to, and a hold-out that holds nothing."""
    distinct_C = np.unique(fitted_points.C)
    positive_count = int((distinct_C > 0).sum())
    if len(distinct_C) < single_run.MIN_POINTS or positive_count < single_run.MIN_POINTS - 1:
        condition = "" if below is None else f" with {x_column} <= {below:g}"
        raise InputError(
            f"{path} has {len(distinct_C)} distinct {x_column}{condition}, {positive_count} of them above 0; "
            f"expected at least {single_run.MIN_POINTS} for a curve of four parameters. "
            f"Evaluate more often{'' if below is None else ', or raise --fit-below'}."
        )
    if below is not None and len(fitted_points.C) == len(points.C):
        raise InputError(
            f"{path}: no point is beyond --fit-below {below:g}, the last {x_column} is {points.C.max():g}; "
            "expected less than that."
        )


def _describe_fit(
    fit: SingleRunFit, bootstrap: VarproSolution, file_points: CurveFilePoints, fitted_points: RunPoints
) -> dict[str, Any]:
    """The curve, its intervals and its residuals."""
    intervals = single_run.parameter_intervals(bootstrap, fit.space)
    residuals = fitted_points.R - fit.solution.fitted_rewards[0]
    C = file_points.points.C
    band = single_run.curve_band(fit, bootstrap, np.geomspace(C[C > 0].min(), C.max(), single_run.BAND_POINTS))
    return {
        **fit.parameters,
        "intervals": intervals,
        "bootstrap": single_run.describe_bootstrap(fit, len(file_points.seed_names)),
        "points": len(fitted_points.C),
        "seeds": len(file_points.seed_names),
        "rmse": float(np.sqrt(np.mean(residuals**2))),
        "noise": {"sd": fit.noise.sd, "autocorrelation": fit.noise.rho},
        "at_bounds": list(fit.at_bounds),
        "determined": _is_A_determined(intervals["A"], fit, fitted_points),
        "band": [dict(zip(band, map(float, row), strict=True)) for row in zip(*band.values(), strict=True)],
    }


def _is_A_determined(A_interval: Interval, fit: SingleRunFit, fitted_points: RunPoints) -> bool:
    """Whether the plateau is known to within half of the gain that was measured."""
    low, high = A_interval
    if low is None or high is None or fit.solution.G[0] == 0:
        return False
    end_reward = evaluate_solution(fit.solution, fitted_points.C.max(keepdims=True))[0, 0]
    return high - low <= MAX_INTERVAL_SHARE * max(float(end_reward) - fit.parameters["R0"], 0.0)


def _holdout_errors(solution: VarproSolution, bootstrap: VarproSolution, holdout: RunPoints) -> dict[str, Any]:
    errors = evaluate_solution(solution, holdout.C)[0] - holdout.R
    is_at_end = holdout.C >= np.unique(holdout.C)[-END_POINTS:][0]

    def mean_at_end(solutions: VarproSolution) -> FloatArray:
        return evaluate_solution(solutions, holdout.C[is_at_end]).mean(-1)

    return {
        "points": len(holdout.C),
        "mean_error": float(errors.mean()),
        "mean_absolute_error": float(np.abs(errors).mean()),
        "max_absolute_error": float(np.abs(errors).max()),
        "predicted_at_end": float(mean_at_end(solution)[0]),
        "interval_at_end": list(central_interval(mean_at_end(bootstrap))),
        "measured_at_end": float(holdout.R[is_at_end].mean()),
    }


def _flags(
    fit: SingleRunFit, fitted_points: RunPoints, document: Mapping[str, Any], rows_without_reward: int
) -> Iterator[str]:
    """What limits the curve of `document`."""
    gain, y_column, C = fit.solution.G[0], document["y"], fitted_points.C
    if rows_without_reward:
        yield f"{rows_without_reward} rows without {y_column} are left out"
    if gain == 0:
        text = f"the reward does not rise: the best curve is the constant {document['R0']:.4g}"
        yield f"{text}, and the exponent and C_mid say nothing"
        return
    if not document["determined"]:
        gain_share = (evaluate_solution(fit.solution, C.max(keepdims=True))[0, 0] - document["R0"]) / gain
        low, high = ("open" if v is None else f"{v:.3g}" for v in document["intervals"]["A"])
        yield (
            f"the plateau is not determined: A = {document['A']:.3g} with interval {low} to {high}; "
            f"at C = {C.max():.4g} the curve has made {gain_share:.0%} of its gain, read it only where measured"
        )
    low, high = (v if v is not None else np.inf for v in document["intervals"]["R0"])
    if C.min() > 0 and high - low > MAX_INTERVAL_SHARE * gain:
        yield f"R0 is not determined ({low:.3g} to {high:.3g}): no point at C = 0 shows where the run began"
    at_bounds = ", ".join(f"{name} = {document[name]:.4g}" for name in fit.at_bounds)
    if at_bounds:
        yield f"{at_bounds} at its bound, not determined by the data"
    if len(C) < FEW_POINTS:
        yield f"only {len(C)} points for four parameters: the intervals rest on few residuals"
    if fit.space.reward_range is None:
        yield f"{y_column} is not within [0, 1]: R0 and A have no bounds"
    if fit.noise.rho > RHO_FLAGGED:
        text = f"residuals are autocorrelated (about {fit.noise.rho:.1f})"
        yield f"{text}: the noise is slow, or the run has another form than this"
