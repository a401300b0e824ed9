"""The page's two charts as plotly traces and layouts: reward against C, and n*(C). plotly.js draws them; every number is made here.

Colours are left to the page, which knows whether it is light or dark: a trace's `meta` says what it stands for, {"n": 8} or
{"role": "law"}. Text from logs is escaped, because plotly reads some HTML in labels.
"""

from __future__ import annotations

import html
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from typing import Any

import numpy as np

from isojax.report.reading import Curves, Fit, View, evaluations, key, law, level, stretches, thinned
from isojax.report.words import between, compact, crossing, percent, reward, unit
from isojax.types import RunRecord

Trace = dict[str, Any]
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
CURVE_POINTS, FRONTIER_POINTS, CELL_POINTS = 44, 90, 36
REACH = 4.0


def bundle() -> str | None:
    """plotly.js, whole; None where plotly (extra report) is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        return None
    return get_plotlyjs().replace("\r\n", "\n")


def label(text: str) -> str:
    """Text from a log as plotly's: what it would read as HTML is escaped."""
    return html.escape(text if len(text) <= 60 else text[:59] + "…", quote=False)


def _round(values: Any, digits: int = 5) -> list[float]:
    """Floats of few digits: the page need not carry sixteen."""
    return [float(f"{x:.{digits}g}") for x in np.asarray(values, dtype=np.float64)]


def cells(fit: Fit, runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """[{"B_p", "trace"}]: each cell's fitted curve and its evaluations (the seeds' mean)."""
    curves, B_ps = Curves(fit), sorted({row["B_p"] for row in fit["curves"]})
    found = []
    for row in sorted(fit["curves"], key=lambda row: (row["n"], row["B_p"])):
        C = np.geomspace(row["C_low"], row["C_high"], CURVE_POINTS)
        y, bands = curves.at(key(row), C), curves.bands(C)
        low, high = bands.get(key(row), (np.full(len(C), None), np.full(len(C), None)))
        who = f"n = {row['n']}, B_p = {row['B_p']}"
        text = [f"{who}<br>C = {compact(c)}: {reward(r)}{between(a, b)}" for c, r, a, b in zip(C, y, low, high, strict=True)]
        group = {"legendgroup": f"n{row['n']}", "name": f"n = {row['n']}", "meta": {"n": row["n"]}}
        dash = DASHES[B_ps.index(row["B_p"]) % len(DASHES)]
        line = {"type": "scatter", "mode": "lines", "x": _round(C), "y": _round(y), "hovertext": text, "hoverinfo": "text"}
        found.append({"B_p": row["B_p"], "trace": line | group | {"line": {"width": 1.6, "dash": dash}}})
        dots = _dots(fit, [run for run in runs if (run.cell.B_p, run.cell.n) == key(row)], who)
        found.append({"B_p": row["B_p"], "trace": dots | group | {"opacity": 0.55, "showlegend": False}})
    return found


def _dots(fit: Fit, seeds: Sequence[RunRecord], who: str) -> Trace:
    """A cell's evaluations, the mean of its seeds at each value of the shared grid of C."""
    at: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for run in seeds:
        for target, C, y in evaluations(run, fit):
            at[target].append((C, y))
    means = [(*np.mean(at[target], axis=0).tolist(), len(at[target])) for target in sorted(at)]
    shown = thinned(means, CELL_POINTS) if means else []
    text = [f"{who}<br>C = {compact(C)}: measured {reward(y)}" + (f", mean of {n} seeds" if n > 1 else "") for C, y, n in shown]
    x, y = (_round([row[i] for row in shown]) for i in (0, 1))
    return {"type": "scatter", "mode": "markers", "x": x, "y": y, "hovertext": text, "hoverinfo": "text", "marker": {"size": 5}}


def _polygon(x: Sequence[float], low: Sequence[float], high: Sequence[float], role: str) -> Trace:
    """A band as a closed line without hover."""
    shape = {"type": "scatter", "mode": "lines", "fill": "toself", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    return shape | {"x": _round([*x, *reversed(x)]), "y": _round([*low, *reversed(high)]), "meta": {"role": role}}


def frontier(fit: Fit, view: View) -> list[Trace]:
    """The frontier's band, its stretches by n, and its crossovers."""
    points = thinned(view.part["frontier"], FRONTIER_POINTS)
    known = [p for p in points if p.get("low") is not None]
    found = [_polygon(*([p[name] for p in known] for name in ("C", "low", "high")), role="band")] if known else []
    for n, first, last in stretches(points):
        part = points[first : last + 1]
        text = [_frontier_text(p) for p in part]
        line = {"type": "scatter", "mode": "lines", "x": _round([p["C"] for p in part]), "y": _round([p["reward"] for p in part])}
        found.append(
            line | {"hovertext": text, "hoverinfo": "text", "line": {"width": 6, "simplify": False}, "meta": {"n": n}, "showlegend": False}
        )
    return [*found, *([_crossovers(fit, view.part)] if view.part["crossovers"] else [])]


def _frontier_text(p: Mapping[str, Any]) -> str:
    chances = p.get("n_probability")
    sure = f"<br>P(n = {p['n']} is best) = {percent(chances.get(str(p['n']), 0.0))}" if chances else ""
    value = f"{reward(p['reward'])}{between(p.get('low'), p.get('high'))}"
    return f"<b>frontier: n = {p['n']}, B_p = {p['B_p']}</b><br>C = {compact(p['C'])}: {value}{sure}"


def _crossovers(fit: Fit, part: Fit) -> Trace:
    log_C, rewards = np.log10([p["C"] for p in part["frontier"]]), [p["reward"] for p in part["frontier"]]
    found = part["crossovers"]
    y = np.interp(np.log10([x["C"] for x in found]), log_C, rewards)
    text = [f"<b>{x['n_low']} → {x['n_high']}</b><br>at C = {crossing(x, fit)}" for x in found]
    up = [0.0 if x.get("high") is None else x["high"] - x["C"] for x in found]
    down = [0.0 if x.get("low") is None else x["C"] - x["low"] for x in found]
    error = {"type": "data", "symmetric": False, "array": _round(up), "arrayminus": _round(down), "thickness": 1.3, "width": 4}
    marker = {"symbol": "diamond", "size": 10, "line": {"width": 1.6}}
    return {
        "type": "scatter", "mode": "markers", "x": _round([x["C"] for x in found]), "y": _round(y), "error_x": error, "marker": marker,
        "hovertext": text, "hoverinfo": "text", "name": "crossover", "meta": {"role": "crossover"},
    }  # fmt: skip


def law_traces(fit: Fit, view: View) -> list[Trace]:
    """n*(C): the frontier's n, the law with its band, dashed beyond the data."""
    points, n_star = thinned(view.part["frontier"], 60), view.part["n_star"]
    band = [p for p in n_star.get("band") or () if p["low"] > 0]
    found = [_polygon(*([p[name] for p in band] for name in ("C", "low", "high")), role="law band")] if band else []
    first, last = points[0]["C"], points[-1]["C"]
    for low, high, dash in ((first, last, "solid"), (last, REACH * last, "dash")):
        C = np.geomspace(low, high, 60)
        n = 2 ** law(n_star, np.log10(C))
        text = [f"law: n*({compact(c)}) = {m:.3g}" + ("" if dash == "solid" else "<br>beyond the data") for c, m in zip(C, n, strict=True)]
        line = {"type": "scatter", "mode": "lines", "x": _round(C), "y": _round(n), "hovertext": text, "hoverinfo": "text"}
        found.append(
            line | {"line": {"width": 2, "dash": dash}, "meta": {"role": "law"}, "name": "law n*(C)", "showlegend": dash == "solid"}
        )
    for n in sorted({p["n"] for p in points}):
        own = [p for p in points if p["n"] == n]
        dots = {"type": "scatter", "mode": "markers", "x": _round([p["C"] for p in own]), "y": [n] * len(own), "marker": {"size": 7}}
        text = [_frontier_text(p) for p in own]
        found.append(dots | {"hovertext": text, "hoverinfo": "text", "meta": {"n": n}, "showlegend": False})
    return found


def layouts(fit: Fit, runs: Sequence[RunRecord]) -> dict[str, Any]:
    """{"reward": ..., "law": ...}: axes and ranges, the same for every view of a fit so that a change of view moves nothing else."""
    low, high = min(row["C_low"] for row in fit["curves"]), REACH * max(run["C_max"] for run in fit["runs"])
    rewards = [y for run in runs for _, _, y in evaluations(run, fit)] + [p["reward"] for p in fit["frontier"]]
    rewards += [fit["base_reward"]] if fit["base_reward"] is not None else []
    room = (max(rewards) - min(rewards)) or 0.1
    ns = sorted({run["n"] for run in fit["runs"]})
    edges = (log10(low) - 0.04, log10(high) + 0.04)
    ticks = [lead * 10.0**k for k in range(floor(edges[0]), ceil(edges[1])) for lead in ((1, 2, 5) if edges[1] - edges[0] < 4 else (1,))]
    x = {
        "type": "log",
        "range": list(edges),
        "tickvals": ticks,
        "ticktext": [compact(C) for C in ticks],
        "title": {"text": f"C ({unit(fit)})"},
    }
    n_axis = {"type": "log", "tickvals": ns, "ticktext": [str(n) for n in ns], "range": [log10(ns[0] / 1.5), log10(ns[-1] * 2.2)]}
    at = level(fit)
    name = label(fit["metric"]) + (f" (bands: {percent(at)})" if at is not None else "")
    shared = {"hovermode": "closest", "margin": {"l": 56, "r": 12, "t": 12, "b": 48}, "xaxis": x}
    legend = {"orientation": "h", "y": -0.22, "yanchor": "top", "x": 0, "groupclick": "togglegroup"}
    return {
        "reward": shared
        | {"yaxis": {"range": [min(rewards) - 0.06 * room, max(rewards) + 0.1 * room], "title": {"text": name}}, "legend": legend},
        "law": shared | {"yaxis": n_axis | {"title": {"text": "n"}}, "legend": legend},
    }
