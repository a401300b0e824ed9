"""The law n*(C) from frontier points alone: a table with columns n and rollouts, such as the points of a published
figure.

In mode "hierarchical" every point counts once, without a running average: the points of a figure have often been
averaged already, and a second average would only blur them. The form is chosen by AICc, and 90% intervals come from a
bootstrap over points with the form held fixed. Mode "paper" is the published procedure, a running average and a
sigmoid, without intervals. Two values of n determine no slope, so no law is fitted to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from isojax.core.errors import InputError
from isojax.core.table_files import read_table
from isojax.core.tabular import check_unique_rows, filter_rows, float_column
from isojax.scaling.intervals import LEVEL, REPLICATES, SEED, central_band
from isojax.scaling.law.law_forms import FORMS, MIN_DISTINCT_N, Law, LawPoints
from isojax.scaling.law.n_star_law import LawChoice, choose_law, fit_law, log2_n_star, n_star
from isojax.scaling.law.point_flags import law_flags, mixture_flags, setting_columns, two_values_flag
from isojax.scaling.validation_metrics import FloatArray

N_COLUMN, ROLLOUTS_COLUMN = "n", "rollouts"
MODES = ("hierarchical", "paper")
BAND_POINTS = 60
_LAW_FIELDS = ("form", "L", "k", "log10_C0", "b")


def fit_points_file(path: Path, filters: Sequence[str] = (), mode: str = "hierarchical") -> dict[str, Any]:
    """Fit the law to a file of frontier points.

    Args:
        path: CSV, TSV or JSON lines with columns n (>= 1) and rollouts (> 0); others only serve `filters`.
        filters: "COL=VALUE", rows to keep.
        mode: "hierarchical" or "paper".

    Returns:
        n_star: the law's form, L, k, log10_C0 and b, with aicc, intervals of the parameters and band, the law's own 90%
        interval along C; None where there are two values of n. Also points, distinct_n {n: points}, C_low, C_high, rmse
        (of log2 n), weights (Akaike's, form -> weight), leave_one_out [{n, points, form, L, k, log10_C0, b}: the law
        without one n's points] and flags.

    Raises:
        InputError: an unknown mode, or a file that cannot be used, with its line.
    """
    if mode not in MODES:
        raise InputError(f"mode {mode!r} is not known; expected one of {', '.join(MODES)}.")
    table = filter_rows(read_table(path), filters)
    n, C = float_column(table, N_COLUMN, minimum=1), float_column(table, ROLLOUTS_COLUMN, exclusive_minimum=0)
    settings = setting_columns(table, (N_COLUMN, ROLLOUTS_COLUMN))
    check_unique_rows(table, (N_COLUMN, ROLLOUTS_COLUMN, *settings))
    order = np.lexsort((n, C))
    n, C = n[order], C[order]
    distinct_n = np.unique(n)
    document = {
        "kind": "points",
        "file": str(path),
        "where": list(filters),
        "mode": mode,
        "points": len(C),
        "distinct_n": {f"{v:g}": int((n == v).sum()) for v in distinct_n},
        "C_low": float(C[0]),
        "C_high": float(C[-1]),
    }
    document |= _no_law(C, n) if 1 < len(distinct_n) < MIN_DISTINCT_N else _fit_points(C, n, mode)
    document["flags"] = mixture_flags(table, settings, filters) + document["flags"]
    return document


def _no_law(C: FloatArray, n: FloatArray) -> dict[str, Any]:
    """The document's fields where two values of n determine no law."""
    absent = dict.fromkeys(("n_star", "weights", "rmse", "intervals"))
    return {**absent, "leave_one_out": [], "flags": [two_values_flag(C, n)]}


def _fit_points(C: FloatArray, n: FloatArray, mode: str) -> dict[str, Any]:
    """The law, its intervals and flags for points sorted by C."""
    log2_n = np.log2(n)
    choice: LawChoice | None = None
    intervals: dict[str, Any] | None = None
    leave_one_out: list[dict[str, Any]] = []
    n_star_json: dict[str, Any] = {"aicc": None, "intervals": None, "no_effect": False, "band": None}
    if mode == "paper":
        law = fit_law(C, n, float(n.max()))
    else:
        choice = choose_law(C, log2_n, float(n.max()))
        law = choice.law
        refitted_laws = _bootstrap_laws(law, C, log2_n)
        n_star_json |= {
            "aicc": choice.aicc,
            "intervals": _parameter_intervals(law, refitted_laws),
            "band": _n_star_band(refitted_laws, C),
        }
        method = f"case bootstrap: points drawn with replacement, form {law.form} held fixed"
        intervals = {"level": LEVEL, "replicates": REPLICATES, "seed": SEED, "method": method}
        leave_one_out = _leave_one_out(law, C, log2_n)
    return {
        "n_star": {**_law_parameters(law), **n_star_json},
        "weights": choice.weights if choice else None,
        "rmse": float(np.sqrt(np.mean((log2_n_star(law, C) - log2_n) ** 2))),
        "intervals": intervals,
        "leave_one_out": leave_one_out,
        "flags": law_flags(C, n, law, choice, _parameter_ranges(law, leave_one_out)),
    }


def _law_parameters(law: Law) -> dict[str, Any]:
    return {name: getattr(law, name) for name in _LAW_FIELDS}


def _parameter_names(law: Law) -> tuple[str, ...]:
    """The fitted parameters; the line's log10_C0 is the centre of its points, which is no parameter."""
    return {"constant": ("b",), "linear": ("k", "b")}.get(law.form, _LAW_FIELDS[1:])


def _refit(law: Law, C: FloatArray, log2_n: FloatArray, log2_n_cap: float) -> Law:
    """The same form through other points; a line keeps its centre, so that b means the same."""
    fitted = FORMS[law.form].fit(LawPoints(np.log10(C), log2_n, np.ones_like(C), log2_n_cap), False)
    if law.form != "linear" or law.log10_C0 is None:
        return fitted
    return replace(fitted, b=float(log2_n_star(fitted, 10**law.log10_C0)), log10_C0=law.log10_C0)


def _bootstrap_laws(law: Law, C: FloatArray, log2_n: FloatArray) -> list[Law]:
    """The form through points drawn with replacement; a draw of one C alone, which has no slope, is drawn again."""
    rng, log2_n_cap, laws = np.random.default_rng(SEED), float(log2_n.max()) + 1, []
    while len(laws) < REPLICATES:
        resampled = rng.integers(0, len(C), len(C))
        if law.form == "constant" or np.ptp(C[resampled]) > 0:
            laws.append(_refit(law, C[resampled], log2_n[resampled], log2_n_cap))
    return laws


def _parameter_intervals(law: Law, refitted_laws: Sequence[Law]) -> dict[str, list[float]]:
    names = _parameter_names(law)
    lows, highs = central_band(np.array([[getattr(refitted, name) for name in names] for refitted in refitted_laws]))
    return {name: [float(low), float(high)] for name, low, high in zip(names, lows, highs, strict=True)}


def _n_star_band(refitted_laws: Sequence[Law], C: FloatArray) -> list[dict[str, float]]:
    C_grid = np.geomspace(C[0], C[-1], BAND_POINTS) if C[-1] > C[0] else C[:1]
    lows, highs = central_band(np.array([n_star(law, C_grid) for law in refitted_laws]))
    rows = zip(C_grid, lows, highs, strict=True)
    return [{"C": float(c), "low": float(low), "high": float(high)} for c, low, high in rows]


def _leave_one_out(law: Law, C: FloatArray, log2_n: FloatArray) -> list[dict[str, Any]]:
    """The same form without the points of one n, for each n."""
    rows = []
    for log2_n_left_out in np.unique(log2_n):
        is_kept = log2_n != log2_n_left_out
        if law.form == "constant" or len(np.unique(C[is_kept])) < FORMS[law.form].parameter_count:
            continue
        fitted = _refit(law, C[is_kept], log2_n[is_kept], float(log2_n.max()) + 1)
        rows.append({"n": float(2**log2_n_left_out), "points": int((~is_kept).sum()), **_law_parameters(fitted)})
    return rows


def _parameter_ranges(law: Law, leave_one_out: Sequence[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """parameter -> its smallest and largest value when one n is left out; empty where none was."""
    if not leave_one_out:
        return {}
    values_by_name = {name: [row[name] for row in leave_one_out] for name in _parameter_names(law)}
    return {name: (min(values), max(values)) for name, values in values_by_name.items()}
