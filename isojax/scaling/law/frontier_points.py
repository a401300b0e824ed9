"""The law n*(C) from frontier points alone: a table with columns n and rollouts, such as the points of a published
figure.

In mode "hierarchical" every point counts once, as it is: no running average (points of a figure have often gone through
one already, and a second would only blur them), form by AICc, 90% intervals by a bootstrap over points with the form
held. Mode "paper" is the published procedure, a running average and a sigmoid, without intervals. Both say what the
points cannot carry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from isojax.core.errors import InputError
from isojax.core.table_files import read_table
from isojax.core.tabular import DataTable, check_unique_rows, filter_rows, float_column, is_blank
from isojax.scaling.law.law_forms import FORMS, Law, LawPoints
from isojax.scaling.law.n_star_law import LawChoice, choose_law, fit_law, log2_n_star, n_star
from isojax.scaling.validation_metrics import FloatArray

N_COLUMN, ROLLOUTS_COLUMN = "n", "rollouts"
MODES = ("hierarchical", "paper")
LEVEL, REPLICATES, SEED = 0.9, 500, 0
BAND_POINTS = 60
# A parameter that fewer than this many distinct n stand for hangs on single ones.
MIN_DISTINCT_N_PER_PARAMETER = 2
# Another form with at least this Akaike weight is not told apart.
RIVAL_WEIGHT = 0.1
MAX_SETTING_VALUES = 20  # a text column with more is a label of each row, not a setting
SETTING_COLUMNS = ("B_p", "B", "seed")  # numbers that tell settings apart, as text does
_LAW_FIELDS = ("form", "L", "k", "log10_C0", "b")


def fit_points_file(path: Path, filters: Sequence[str] = (), mode: str = "hierarchical") -> dict[str, Any]:
    """Fit the law to a file of frontier points.

    Args:
        path: CSV, TSV or JSON lines with columns n (>= 1) and rollouts (> 0); others only serve `filters`.
        filters: "COL=VALUE", rows to keep.
        mode: "hierarchical" or "paper".

    Returns:
        n_star as in fit.json (band: the 90% interval of n*), plus points, distinct_n {n: points}, C_low, C_high, rmse
        (of log2 n), weights (Akaike's, form -> weight), leave_one_out [{n, points, form, L, k, log10_C0, b}: the law
        without one n's points] and flags.

    Raises:
        InputError: an unknown mode, or whatever `tables` refuses, with file and line.
    """
    if mode not in MODES:
        raise InputError(f"mode {mode!r} is not known; expected one of {', '.join(MODES)}.")
    table = filter_rows(read_table(path), filters)
    n, C = float_column(table, N_COLUMN, minimum=1), float_column(table, ROLLOUTS_COLUMN, exclusive_minimum=0)
    setting_columns = _setting_columns(table)
    check_unique_rows(table, (N_COLUMN, ROLLOUTS_COLUMN, *setting_columns))
    order = np.lexsort((n, C))
    n, C = n[order], C[order]
    document = _fit_points(C, n, mode)
    document["flags"] = _mixture_flags(table, setting_columns, filters) + document["flags"]
    return {"kind": "points", "file": str(path), "where": list(filters), "mode": mode, **document}


def _fit_points(C: FloatArray, n: FloatArray, mode: str) -> dict[str, Any]:
    """The law, its intervals and flags for points sorted by C."""
    log2_n, choice, intervals, leave_one_out = np.log2(n), None, None, []
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
        method = f"case bootstrap: points drawn with replacement, form {law.form} held"
        intervals = {"level": LEVEL, "replicates": REPLICATES, "seed": SEED, "method": method}
        leave_one_out = _leave_one_out(law, C, log2_n)
    return {
        "points": len(C),
        "distinct_n": {f"{v:g}": int((n == v).sum()) for v in np.unique(n)},
        "C_low": float(C[0]),
        "C_high": float(C[-1]),
        "n_star": {**_law_parameters(law), **n_star_json},
        "weights": choice.weights if choice else None,
        "rmse": float(np.sqrt(np.mean((log2_n_star(law, C) - log2_n) ** 2))),
        "intervals": intervals,
        "leave_one_out": leave_one_out,
        "flags": _fit_flags(C, n, law, choice, leave_one_out),
    }


def _law_parameters(law: Law) -> dict[str, Any]:
    return {name: getattr(law, name) for name in _LAW_FIELDS}


def _parameter_names(law: Law) -> tuple[str, ...]:
    """The parameters that are numbers of the law; the line's log10_C0 is where its points lie, not what they say."""
    return {"constant": ("b",), "linear": ("k", "b")}.get(law.form, _LAW_FIELDS[1:])


def _refit(law: Law, C: FloatArray, log2_n: FloatArray, log2_n_cap: float) -> Law:
    """The same form through other points; a line keeps its middle, so that b means the same."""
    fitted = FORMS[law.form].fit(LawPoints(np.log10(C), log2_n, np.ones_like(C), log2_n_cap), False)
    if law.form != "linear" or law.log10_C0 is None:
        return fitted
    return replace(fitted, b=float(log2_n_star(fitted, 10**law.log10_C0)), log10_C0=law.log10_C0)


def _bootstrap_laws(law: Law, C: FloatArray, log2_n: FloatArray) -> list[Law]:
    """The form through points drawn with replacement; a draw of one single point twice over, which carries no slope, is
    drawn again.
    """
    rng, log2_n_cap, laws = np.random.default_rng(SEED), float(log2_n.max()) + 1, []
    while len(laws) < REPLICATES:
        resampled = rng.integers(0, len(C), len(C))
        if law.form == "constant" or np.ptp(C[resampled]) > 0:
            laws.append(_refit(law, C[resampled], log2_n[resampled], log2_n_cap))
    return laws


def _parameter_intervals(law: Law, refitted_laws: Sequence[Law]) -> dict[str, list[float]]:
    return {
        name: _central_interval(np.array([getattr(d, name) for d in refitted_laws])) for name in _parameter_names(law)
    }


def _central_interval(values: FloatArray) -> list[float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return [float(low), float(high)]


def _n_star_band(refitted_laws: Sequence[Law], C: FloatArray) -> list[dict[str, float]]:
    C_grid = np.geomspace(C[0], C[-1], BAND_POINTS) if C[-1] > C[0] else C[:1]
    n_values = np.array([n_star(law, C_grid) for law in refitted_laws])
    lows, highs = np.quantile(n_values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return [
        {"C": float(c), "low": float(low), "high": float(high)}
        for c, low, high in zip(C_grid, lows, highs, strict=True)
    ]


def _leave_one_out(law: Law, C: FloatArray, log2_n: FloatArray) -> list[dict[str, Any]]:
    """The same form without the points of one n, for each n: what hangs on it."""
    rows = []
    for log2_n_left_out in np.unique(log2_n):
        is_kept = log2_n != log2_n_left_out
        if law.form == "constant" or len(np.unique(C[is_kept])) < FORMS[law.form].parameter_count:
            continue
        fitted = _refit(law, C[is_kept], log2_n[is_kept], float(log2_n.max()) + 1)
        rows.append({"n": float(2**log2_n_left_out), "points": int((~is_kept).sum()), **_law_parameters(fitted)})
    return rows


def _setting_columns(table: DataTable) -> list[str]:
    """The columns that tell settings apart: text, and what is known to be one."""

    def is_text(name: str) -> bool:
        values = [row.values.get(name) for row in table.rows]
        return all(isinstance(v, str) and not _is_number(v) for v in values if not is_blank(v))

    return [c for c in table.columns if c not in (N_COLUMN, ROLLOUTS_COLUMN) and (c in SETTING_COLUMNS or is_text(c))]


def _mixture_flags(table: DataTable, setting_columns: Sequence[str], filters: Sequence[str]) -> list[str]:
    """Several settings in one law."""
    flags = []
    filtered_columns = {text.partition("=")[0].strip() for text in filters}
    for name in (s for s in setting_columns if s not in filtered_columns):
        values = [str(row.values.get(name)) for row in table.rows if not is_blank(row.values.get(name))]
        distinct_values = list(dict.fromkeys(values))
        if 1 < len(distinct_values) <= min(MAX_SETTING_VALUES, len(values) // 2):
            flags.append(
                f"the points mix {name} = {', '.join(distinct_values)} in one law; --where {name}={distinct_values[0]} takes one of them"
            )
    return flags


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _fit_flags(
    C: FloatArray, n: FloatArray, law: Law, choice: LawChoice | None, leave_one_out: Sequence[Mapping[str, Any]]
) -> list[str]:
    distinct_n = np.unique(n)
    if len(distinct_n) == 1:
        return [
            f"all {len(n)} points have n = {distinct_n[0]:g}: n*(C) is taken as constant, and no other n was seen to lose"
        ]
    flags = [*_support_flags(n, law, leave_one_out), *_form_flags(C, n, law, choice), *_extrapolation_flags(C, n, law)]
    if choice is not None and len(n) > len(distinct_n):
        flags.append(
            "AICc and the intervals take the points as independent; those of one n come from the same runs, so both may claim too much"
        )
    return flags


def _support_flags(n: FloatArray, law: Law, leave_one_out: Sequence[Mapping[str, Any]]) -> list[str]:
    """Few distinct n, and which of them carries most."""
    distinct_n, parameter_count = np.unique(n), FORMS[law.form].parameter_count
    flags = []
    if len(distinct_n) < MIN_DISTINCT_N_PER_PARAMETER * parameter_count and parameter_count > 1:
        listed = ", ".join(f"{v:g}" for v in distinct_n)
        text = f"only {len(distinct_n)} distinct n ({listed}) carry the {parameter_count} parameters of n*(C)"
        values_by_parameter = (
            {name: [row[name] for row in leave_one_out] for name in _parameter_names(law)} if leave_one_out else {}
        )
        parameter_ranges = ", ".join(
            f"{name} {min(values):.3g} to {max(values):.3g}" for name, values in values_by_parameter.items()
        )
        flags.append(f"{text}; without one or another of them: {parameter_ranges}" if parameter_ranges else text)
    return flags


def _form_flags(C: FloatArray, n: FloatArray, law: Law, choice: LawChoice | None) -> list[str]:
    """A form that the points hardly prefer, falls of n, parameters at bounds."""
    flags, weights, aicc_scores = [], choice.weights if choice else {}, choice.aicc if choice else {}
    if law.form == "constant":
        flags.append(
            f"no form is better supported than a constant, n = {2**law.b:.3g}: the points do not show n to change with C"
        )
    for name, weight in weights.items():
        if name != law.form and weight >= RIVAL_WEIGHT:
            flags.append(
                f"{law.form} and {name} are hardly told apart (Akaike weights {weights[law.form]:.2f} and {weight:.2f})"
            )
    unsupported_forms = [name for name, score in aicc_scores.items() if score is None]
    if unsupported_forms:
        flags.append(
            f"the points are too few for {' and '.join(unsupported_forms)}: {len(np.unique(n))} distinct n, {len(np.unique(C))} distinct C"
        )
    falling_pairs = [(a, b) for a, b in pairwise(range(len(n))) if n[b] < n[a]]
    if falling_pairs:
        a, b = max(falling_pairs, key=lambda ab: n[ab[0]] / n[ab[1]])
        times = "once" if len(falling_pairs) == 1 else f"{len(falling_pairs)} times, most"
        flags.append(
            f"n falls as C rises {times} from {n[a]:g} at C = {C[a]:.4g} to {n[b]:g} at C = {C[b]:.4g}: a rising law averages that"
        )
    values = {"L": law.L, "k": law.k, "C0": 10**law.log10_C0 if law.log10_C0 is not None else float("nan")}
    at_bounds = ", ".join(f"{name} = {values[name]:.4g}" for name in law.at_bounds)
    return flags + ([f"n*(C) has {at_bounds} at its bound; the points do not determine it"] if at_bounds else [])


def _extrapolation_flags(C: FloatArray, n: FloatArray, law: Law) -> list[str]:
    """What the law says beyond its points."""
    flags = []
    if n[-1] == n.max():
        flags.append(
            f"the points end at their largest n ({n.max():g}): that n*(C) levels off there holds only if larger n were tried"
        )
    if law.form == "sigmoid" and law.log10_C0 is not None and not C[0] <= 10**law.log10_C0 <= C[-1]:
        flags.append(
            f"the law reaches beyond its points: its middle C0 = {10**law.log10_C0:.4g} lies outside {C[0]:.4g} to {C[-1]:.4g}"
        )
    n_saturation, n_at_end = 2 ** (law.b + law.L), float(n_star(law, C[-1]))
    if law.form == "sigmoid" and n_saturation > 2**0.5 * n_at_end:
        flags.append(
            f"the law reaches beyond its points: it saturates at n = {n_saturation:.3g}, but has come to {n_at_end:.3g} where they end"
        )
    return flags
