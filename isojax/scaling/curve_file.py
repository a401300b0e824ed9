"""`isojax curve`: one run's curve from two columns of a file, what it says beyond the points it was fitted to, and how far to trust it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isojax.scaling.metrics import FloatArray
from isojax.scaling.project import Solution
from isojax.scaling.single import (
    BAND_POINTS,
    HUBER,
    LEVEL,
    MIN_POINTS,
    Fit,
    Runs,
    band,
    bootstrap_words,
    fit_curve,
    intervals,
    replicates,
    values,
)
from isojax.scaling.tables import Table, blank, column, numbers, read_table, unique_rows, where
from isojax.types import InputError

FEW_POINTS = 10
LAST = 3  # distinct C whose mean is "at the end"
RHO_NOTED = 0.5
OUTLIER = 4.0  # standard deviations
WIDE = 0.5  # an interval of A wider than this share of the gain measured does not determine it


@dataclass(frozen=True)
class Read:
    """What a file holds: the points, the seeds' names, how many rows had no reward."""

    runs: Runs
    names: tuple[str, ...]
    without_reward: int


def fit_curve_file(
    path: Path, x: str, y: str, below: float | None = None, filters: Sequence[str] = (), group: str | None = None
) -> tuple[dict[str, Any], Read]:
    """Fit a curve to two columns of a file.

    Args:
        path: CSV, TSV or JSON lines. x: column of compute >= 0. y: column of rewards; rows where it is empty are left out.
        below: fit points with x <= below only, and compare the curve with those beyond.
        filters: "COL=VALUE", rows to keep.
        group: column that tells seeds of one configuration apart; all share one curve.

    Returns:
        R0, A, B, C_mid, intervals {name: [low, high]} (None: open end), bootstrap, points, seeds, rmse, noise {sd, autocorrelation},
        at_bounds, determined (whether A is), band [{C, reward, low, high}], beyond (errors are curve minus measured; None without `below`)
        and flags; and what was read.

    Raises:
        InputError: too few points, none beyond `below`, or whatever `tables` refuses, with file and line.
    """
    read = _read(where(read_table(path), filters), x, y, group)
    runs = read.runs
    inside = np.ones(len(runs.C), dtype=bool) if below is None else runs.C <= below
    fitted = runs.at(inside)
    _enough(path, x, runs, fitted, below)
    fit = fit_curve(fitted)
    drawn = replicates(fit, fitted)
    found = intervals(drawn, fit.axis)
    residual = fitted.R - fit.solution.fit[0]
    determined = _determined(found["A"], fit, fitted)
    grid = np.geomspace(runs.C[runs.C > 0].min(), runs.C.max(), BAND_POINTS)
    columns = band(fit, drawn, grid)
    document = {
        "kind": "curve",
        "file": str(path),
        "x": x,
        "y": y,
        "where": list(filters),
        "group": group,
        "fit_below": below,
        **fit.parameters,
        "intervals": found,
        "bootstrap": bootstrap_words(fit, len(read.names)),
        "points": len(fitted.C),
        "seeds": len(read.names),
        "rmse": float(np.sqrt(np.mean(residual**2))),
        "noise": {"sd": fit.noise.sd, "autocorrelation": fit.noise.rho},
        "at_bounds": list(fit.at_bounds),
        "determined": determined,
        "band": [dict(zip(columns, map(float, row), strict=True)) for row in zip(*columns.values(), strict=True)],
        "beyond": None if below is None else _beyond(fit.solution, drawn, runs.at(~inside)),
        "flags": _flags(fit, fitted, found, determined, read, y),
    }
    return document, read


def _read(table: Table, x: str, y: str, group: str | None) -> Read:
    """The points of a table, sorted by seed and compute."""
    column(table, x)
    column(table, y)
    rows = tuple(row for row in table.rows if not blank(row.values.get(y)))
    if not rows:
        raise InputError(f"{table.path}: {y} is empty in all {len(table.rows)} rows; expected a reward in some. Give another --y.")
    kept = Table(table.path, table.columns, rows, table.header)
    C, R = numbers(kept, x, at_least=0), numbers(kept, y)
    labels = ["" if group is None else str(row.values.get(column(kept, group))) for row in rows]
    try:
        unique_rows(kept, (x,) if group is None else (group, x))
    except InputError as e:
        hint = " Where the file holds several seeds, say which column tells them apart with --group." if group is None else ""
        raise InputError(f"{e}{hint}") from e
    names = tuple(dict.fromkeys(labels))
    run = np.array([names.index(label) for label in labels])
    order = np.lexsort((C, run))
    return Read(Runs(C[order], R[order], run[order]), names, len(table.rows) - len(rows))


def _enough(path: Path, x: str, runs: Runs, fitted: Runs, below: float | None) -> None:
    """Refuse what four parameters cannot be fitted to, and a hold-out that holds nothing."""
    distinct, positive = len(np.unique(fitted.C)), len(np.unique(fitted.C[fitted.C > 0]))
    if distinct < MIN_POINTS or positive < MIN_POINTS - 1:
        limit = "" if below is None else f" with {x} <= {below:g}"
        raise InputError(
            f"{path} has {distinct} distinct {x}{limit}, {positive} of them above 0; expected at least {MIN_POINTS} for a curve of four "
            f"parameters. Evaluate more often{'' if below is None else ', or raise --fit-below'}."
        )
    if below is not None and len(fitted.C) == len(runs.C):
        raise InputError(f"{path}: no point lies beyond --fit-below {below:g}, the last {x} is {runs.C.max():g}; expected less than that.")


def _determined(A: Sequence[float | None], fit: Fit, fitted: Runs) -> bool:
    """Whether the plateau is known to within half of the gain that was measured."""
    low, high = A
    if low is None or high is None or fit.solution.G[0] == 0:
        return False
    ends = values(fit.solution, np.array([fitted.C[fitted.C > 0].min(), fitted.C.max()]))[0]
    return high - low <= WIDE * max(float(ends[1]) - fit.parameters["R0"], 0.0)


def _beyond(solution: Solution, drawn: Solution, held: Runs) -> dict[str, Any]:
    """The curve against the points it was not fitted to."""
    error = values(solution, held.C)[0] - held.R
    last = held.C >= np.unique(held.C)[-LAST:][0]

    def at_end(found: Solution) -> FloatArray:
        return values(found, held.C[last]).mean(-1)

    low, high = np.quantile(at_end(drawn), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {
        "points": len(held.C),
        "mean_error": float(error.mean()),
        "mean_absolute_error": float(np.abs(error).mean()),
        "max_absolute_error": float(np.abs(error).max()),
        "predicted_at_end": float(at_end(solution)[0]),
        "interval_at_end": [float(low), float(high)],
        "measured_at_end": float(held.R[last].mean()),
    }


def _flags(fit: Fit, fitted: Runs, found: dict[str, list[float | None]], determined: bool, read: Read, y: str) -> list[str]:
    flags, p = [], fit.parameters
    if read.without_reward:
        flags.append(f"{read.without_reward} rows without {y} are left out")
    if fit.solution.G[0] == 0:
        return [*flags, f"the reward does not rise: the best curve is the constant {p['R0']:.4g}, and B and C_mid say nothing"]
    if not determined:
        end = fitted.C.max()
        done = (values(fit.solution, np.array([end]))[0, 0] - p["R0"]) / fit.solution.G[0]
        low, high = ("open" if v is None else f"{v:.3g}" for v in found["A"])
        flags.append(
            f"the plateau is not determined: A = {p['A']:.3g} with interval {low} to {high}; at C = {end:.4g} the curve has made "
            f"{done:.0%} of its gain, read it only where measured"
        )
    low, high = (v if v is not None else np.inf for v in found["R0"])
    if fitted.C.min() > 0 and high - low > WIDE * fit.solution.G[0]:
        flags.append(f"R0 is not determined ({low:.3g} to {high:.3g}): no point at C = 0 shows where the run began")
    stuck = ", ".join(f"{name} = {p[name]:.4g}" for name in fit.at_bounds)
    if stuck:
        flags.append(f"{stuck} at its bound, not determined by the data")
    if len(fitted.C) < FEW_POINTS:
        flags.append(f"only {len(fitted.C)} points for four parameters: the intervals rest on few residuals")
    if fit.axis.range is None:
        flags.append(f"{y} is not within [0, 1]: R0 and A have no bounds")
    if fit.noise.rho > RHO_NOTED:
        flags.append(f"residuals are autocorrelated (about {fit.noise.rho:.1f}): the noise is slow, or the run has another form than this")
    far = np.abs(fitted.R - fit.solution.fit[0]) > OUTLIER * max(fit.clip / HUBER, 1e-9)
    if far.any():
        at = ", ".join(f"{c:.4g}" for c in fitted.C[far][:5])
        flags.append(
            f"{int(far.sum())} point(s) lie more than {OUTLIER:g} standard deviations off the curve and count as if nearer: at {at}"
        )
    return flags
