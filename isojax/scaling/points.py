"""The law n*(C) from frontier points alone: a table with columns n and rollouts, such as the points of a published figure.

In mode "debiased" every point counts once, as it is: no running average (points of a figure have often gone through one already, and a
second would only blur them), form by AICc, 90% intervals by a bootstrap over points with the form held. Mode "paper" is the published
procedure, a running average and a sigmoid, without intervals. Both say what the points cannot carry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from isojax.scaling.forms import FORMS, Law, Points
from isojax.scaling.law import Choice, choose_law, fit_law, log2_n_star, n_star
from isojax.scaling.metrics import FloatArray
from isojax.scaling.tables import Table, blank, numbers, read_table, unique_rows, where
from isojax.types import InputError

N, ROLLOUTS = "n", "rollouts"
MODES = ("debiased", "paper")
LEVEL, REPLICATES, SEED = 0.9, 500, 0
BAND_POINTS = 60
# A parameter that fewer than this many distinct n stand for hangs on single ones.
DISTINCT_FOR_A_PARAMETER = 2
# Another form with at least this Akaike weight is not told apart.
RIVAL_WEIGHT = 0.1
MOST_VALUES = 20  # a text column with more is a label of each row, not a setting
SETTINGS = ("B_p", "B", "seed")  # numbers that tell settings apart, as text does
_FIELDS = ("form", "L", "k", "log10_C0", "b")


def fit_points_file(path: Path, filters: Sequence[str] = (), mode: str = "debiased") -> dict[str, Any]:
    """Fit the law to a file of frontier points.

    Args:
        path: CSV, TSV or JSON lines with columns n (>= 1) and rollouts (> 0); others only serve `filters`.
        filters: "COL=VALUE", rows to keep.
        mode: "debiased" or "paper".

    Returns:
        n_star as in fit.json (band: the 90% interval of n*), plus points, distinct_n {n: points}, C_low, C_high, rmse (of log2 n),
        weights (Akaike's, form -> weight), leave_one_out [{n, points, form, L, k, log10_C0, b}: the law without one n's points] and flags.

    Raises:
        InputError: an unknown mode, or whatever `tables` refuses, with file and line.
    """
    if mode not in MODES:
        raise InputError(f"mode {mode!r} is not known; expected one of {', '.join(MODES)}.")
    table = where(read_table(path), filters)
    n, C = numbers(table, N, at_least=1), numbers(table, ROLLOUTS, above=0)
    settings = _settings(table)
    unique_rows(table, (N, ROLLOUTS, *settings))
    order = np.lexsort((n, C))
    n, C = n[order], C[order]
    document = _fit(C, n, mode)
    document["flags"] = _mixture_flags(table, settings, filters) + document["flags"]
    return {"kind": "points", "file": str(path), "where": list(filters), "mode": mode, **document}


def _fit(C: FloatArray, n: FloatArray, mode: str) -> dict[str, Any]:
    """The law, its intervals and flags for points sorted by C."""
    y, choice, intervals, left_out = np.log2(n), None, None, []
    n_json: dict[str, Any] = {"aicc": None, "intervals": None, "no_effect": False, "band": None}
    if mode == "paper":
        law = fit_law(C, n, float(n.max()))
    else:
        choice = choose_law(C, y, float(n.max()))
        law = choice.law
        draws = _bootstrap(law, C, y)
        n_json |= {"aicc": choice.aicc, "intervals": _intervals(law, draws), "band": _band(draws, C)}
        words = f"case bootstrap: points drawn with replacement, form {law.form} held"
        intervals = {"level": LEVEL, "replicates": REPLICATES, "seed": SEED, "method": words}
        left_out = _leave_one_out(law, C, y)
    return {
        "points": len(C),
        "distinct_n": {f"{v:g}": int((n == v).sum()) for v in np.unique(n)},
        "C_low": float(C[0]),
        "C_high": float(C[-1]),
        "n_star": {**_parameters(law), **n_json},
        "weights": choice.weights if choice else None,
        "rmse": float(np.sqrt(np.mean((log2_n_star(law, C) - y) ** 2))),
        "intervals": intervals,
        "leave_one_out": left_out,
        "flags": _flags(C, n, law, choice, left_out),
    }


def _parameters(law: Law) -> dict[str, Any]:
    return {name: getattr(law, name) for name in _FIELDS}


def _names(law: Law) -> tuple[str, ...]:
    """The parameters that are numbers of the law; the line's log10_C0 is where its points lie, not what they say."""
    return {"constant": ("b",), "linear": ("k", "b")}.get(law.form, _FIELDS[1:])


def _refit(law: Law, C: FloatArray, y: FloatArray, cap: float) -> Law:
    """The same form through other points; a line keeps its middle, so that b means the same."""
    fitted = FORMS[law.form].fit(Points(np.log10(C), y, np.ones_like(C), cap), False)
    if law.form != "linear" or law.log10_C0 is None:
        return fitted
    return replace(fitted, b=float(log2_n_star(fitted, 10**law.log10_C0)), log10_C0=law.log10_C0)


def _bootstrap(law: Law, C: FloatArray, y: FloatArray) -> list[Law]:
    """The form through points drawn with replacement; a draw of one single point twice over, which carries no slope, is drawn again."""
    rng, cap, laws = np.random.default_rng(SEED), float(y.max()) + 1, []
    while len(laws) < REPLICATES:
        drawn = rng.integers(0, len(C), len(C))
        if law.form == "constant" or np.ptp(C[drawn]) > 0:
            laws.append(_refit(law, C[drawn], y[drawn], cap))
    return laws


def _intervals(law: Law, draws: Sequence[Law]) -> dict[str, list[float]]:
    return {name: _quantiles(np.array([getattr(d, name) for d in draws])) for name in _names(law)}


def _quantiles(values: FloatArray) -> list[float]:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return [float(low), float(high)]


def _band(draws: Sequence[Law], C: FloatArray) -> list[dict[str, float]]:
    grid = np.geomspace(C[0], C[-1], BAND_POINTS) if C[-1] > C[0] else C[:1]
    values = np.array([n_star(law, grid) for law in draws])
    lows, highs = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return [{"C": float(c), "low": float(low), "high": float(high)} for c, low, high in zip(grid, lows, highs, strict=True)]


def _leave_one_out(law: Law, C: FloatArray, y: FloatArray) -> list[dict[str, Any]]:
    """The same form without the points of one n, for each n: what hangs on it."""
    found = []
    for value in np.unique(y):
        kept = y != value
        if law.form == "constant" or len(np.unique(C[kept])) < FORMS[law.form].parameters:
            continue
        fitted = _refit(law, C[kept], y[kept], float(y.max()) + 1)
        found.append({"n": float(2**value), "points": int((~kept).sum()), **_parameters(fitted)})
    return found


def _settings(table: Table) -> list[str]:
    """The columns that tell settings apart: text, and what is known to be one."""

    def is_text(name: str) -> bool:
        values = [row.values.get(name) for row in table.rows]
        return all(isinstance(v, str) and not _is_number(v) for v in values if not blank(v))

    return [c for c in table.columns if c not in (N, ROLLOUTS) and (c in SETTINGS or is_text(c))]


def _mixture_flags(table: Table, settings: Sequence[str], filters: Sequence[str]) -> list[str]:
    """Several settings in one law."""
    flags = []
    filtered = {text.partition("=")[0].strip() for text in filters}
    for name in (s for s in settings if s not in filtered):
        values = [str(row.values.get(name)) for row in table.rows if not blank(row.values.get(name))]
        distinct = list(dict.fromkeys(values))
        if 1 < len(distinct) <= min(MOST_VALUES, len(values) // 2):
            flags.append(f"the points mix {name} = {', '.join(distinct)} in one law; --where {name}={distinct[0]} takes one of them")
    return flags


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _flags(C: FloatArray, n: FloatArray, law: Law, choice: Choice | None, left_out: Sequence[Mapping[str, Any]]) -> list[str]:
    ns = np.unique(n)
    if len(ns) == 1:
        return [f"all {len(n)} points have n = {ns[0]:g}: n*(C) is taken as constant, and no other n was seen to lose"]
    flags = [*_support_flags(n, law, left_out), *_form_flags(C, n, law, choice), *_end_flags(C, n, law)]
    if choice is not None and len(n) > len(ns):
        flags.append(
            "AICc and the intervals take the points as independent; those of one n come from the same runs, so both may claim too much"
        )
    return flags


def _support_flags(n: FloatArray, law: Law, left_out: Sequence[Mapping[str, Any]]) -> list[str]:
    """Few distinct n, and which of them carries most."""
    ns, need = np.unique(n), FORMS[law.form].parameters
    flags = []
    if len(ns) < DISTINCT_FOR_A_PARAMETER * need and need > 1:
        listed = ", ".join(f"{v:g}" for v in ns)
        text = f"only {len(ns)} distinct n ({listed}) carry the {need} parameters of n*(C)"
        spans = {name: [row[name] for row in left_out] for name in _names(law)} if left_out else {}
        without = ", ".join(f"{name} {min(values):.3g} to {max(values):.3g}" for name, values in spans.items())
        flags.append(f"{text}; without one or another of them: {without}" if without else text)
    return flags


def _form_flags(C: FloatArray, n: FloatArray, law: Law, choice: Choice | None) -> list[str]:
    """A form that the points hardly prefer, falls of n, parameters at bounds."""
    flags, weights, scores = [], choice.weights if choice else {}, choice.aicc if choice else {}
    if law.form == "constant":
        flags.append(f"no form is better supported than a constant, n = {2**law.b:.3g}: the points do not show n to change with C")
    for name, weight in weights.items():
        if name != law.form and weight >= RIVAL_WEIGHT:
            flags.append(f"{law.form} and {name} are hardly told apart (Akaike weights {weights[law.form]:.2f} and {weight:.2f})")
    few = [name for name, score in scores.items() if score is None]
    if few:
        flags.append(f"the points are too few for {' and '.join(few)}: {len(np.unique(n))} distinct n, {len(np.unique(C))} distinct C")
    falls = [(a, b) for a, b in pairwise(range(len(n))) if n[b] < n[a]]
    if falls:
        a, b = max(falls, key=lambda ab: n[ab[0]] / n[ab[1]])
        times = "once" if len(falls) == 1 else f"{len(falls)} times, most"
        flags.append(
            f"n falls as C rises {times} from {n[a]:g} at C = {C[a]:.4g} to {n[b]:g} at C = {C[b]:.4g}: a rising law averages that"
        )
    values = {"L": law.L, "k": law.k, "C0": 10**law.log10_C0 if law.log10_C0 is not None else float("nan")}
    stuck = ", ".join(f"{name} = {values[name]:.4g}" for name in law.at_bounds)
    return flags + ([f"n*(C) has {stuck} at its bound; the points do not determine it"] if stuck else [])


def _end_flags(C: FloatArray, n: FloatArray, law: Law) -> list[str]:
    """What the law says beyond its points."""
    flags = []
    if n[-1] == n.max():
        flags.append(f"the points end at their largest n ({n.max():g}): that n*(C) levels off there holds only if larger n were tried")
    if law.form == "sigmoid" and law.log10_C0 is not None and not C[0] <= 10**law.log10_C0 <= C[-1]:
        flags.append(f"the law reaches beyond its points: its middle C0 = {10**law.log10_C0:.4g} lies outside {C[0]:.4g} to {C[-1]:.4g}")
    top, seen = 2 ** (law.b + law.L), float(n_star(law, C[-1]))
    if law.form == "sigmoid" and top > 2**0.5 * seen:
        flags.append(f"the law reaches beyond its points: it saturates at n = {top:.3g}, but has come to {seen:.3g} where they end")
    return flags
