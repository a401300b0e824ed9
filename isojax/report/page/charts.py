"""The page's two charts as plotly traces and layouts: reward against C, and n*(C). plotly.js draws them; every number
is made here.

Colours are left to the page, which knows whether it is light or dark: a trace's `meta` says what it stands for, {"n":
8} or
{"role": "law"}. Text from logs is escaped, because plotly reads some HTML in labels.
"""

from __future__ import annotations

import html
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import ceil, floor, log10
from typing import Any

import numpy as np

from isojax.core.nouns import RunRecord
from isojax.report.fit_views import (
    FitDocument,
    FittedCurves,
    FrontierView,
    cell_key,
    evaluate_law,
    interval_level,
    n_stretches,
    run_evaluations,
    thin,
)
from isojax.report.text import (
    compute_unit,
    format_compact,
    format_crossover,
    format_interval,
    format_percent,
    format_reward,
)

PlotlyTrace = dict[str, Any]
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
CURVE_POINTS, FRONTIER_POINTS, CELL_POINTS = 44, 90, 36
LAW_REACH = 4.0


def bundle() -> str | None:
    """plotly.js, whole; None where plotly (extra report) is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        return None
    return get_plotlyjs().replace("\r\n", "\n")


def escape_label(text: str) -> str:
    """Text from a log as plotly's: what it would read as HTML is escaped."""
    return html.escape(text if len(text) <= 60 else text[:59] + "…", quote=False)


def _round_digits(values: Any, digits: int = 5) -> list[float]:
    """Floats of few digits: the page need not carry sixteen."""
    return [float(f"{x:.{digits}g}") for x in np.asarray(values, dtype=np.float64)]


def cell_traces(fit: FitDocument, runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """[{"B_p", "trace"}]: each cell's fitted curve and its evaluations (the seeds' mean)."""
    curves, B_ps = FittedCurves(fit), sorted({row["B_p"] for row in fit["curves"]})
    traces = []
    for row in sorted(fit["curves"], key=lambda row: (row["n"], row["B_p"])):
        C = np.geomspace(row["C_low"], row["C_high"], CURVE_POINTS)
        y, bands = curves.reward_at(cell_key(row), C), curves.bands(C)
        low, high = bands.get(cell_key(row), (np.full(len(C), None), np.full(len(C), None)))
        cell_name = f"n = {row['n']}, B_p = {row['B_p']}"
        text = [
            f"{cell_name}<br>C = {format_compact(c)}: {format_reward(r)}{format_interval(a, b)}"
            for c, r, a, b in zip(C, y, low, high, strict=True)
        ]
        legend = {"legendgroup": f"n{row['n']}", "name": f"n = {row['n']}", "meta": {"n": row["n"]}}
        dash = DASHES[B_ps.index(row["B_p"]) % len(DASHES)]
        line = {
            "type": "scatter",
            "mode": "lines",
            "x": _round_digits(C),
            "y": _round_digits(y),
            "hovertext": text,
            "hoverinfo": "text",
        }
        traces.append({"B_p": row["B_p"], "trace": line | legend | {"line": {"width": 1.6, "dash": dash}}})
        evaluation_trace = _evaluation_trace(
            fit, [run for run in runs if (run.cell.B_p, run.cell.n) == cell_key(row)], cell_name
        )
        traces.append({"B_p": row["B_p"], "trace": evaluation_trace | legend | {"opacity": 0.55, "showlegend": False}})
    return traces


def _evaluation_trace(fit: FitDocument, seeds: Sequence[RunRecord], cell_name: str) -> PlotlyTrace:
    """A cell's evaluations, the mean of its seeds at each value of the shared grid of C."""
    values_by_target: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for run in seeds:
        for target, C, y in run_evaluations(run, fit):
            values_by_target[target].append((C, y))
    means = [
        (*np.mean(values_by_target[target], axis=0).tolist(), len(values_by_target[target]))
        for target in sorted(values_by_target)
    ]
    thinned_means = thin(means, CELL_POINTS) if means else []
    text = [
        f"{cell_name}<br>C = {format_compact(C)}: measured {format_reward(y)}"
        + (f", mean of {n} seeds" if n > 1 else "")
        for C, y, n in thinned_means
    ]
    x, y = (_round_digits([row[i] for row in thinned_means]) for i in (0, 1))
    return {
        "type": "scatter",
        "mode": "markers",
        "x": x,
        "y": y,
        "hovertext": text,
        "hoverinfo": "text",
        "marker": {"size": 5},
    }


def _band_trace(x: Sequence[float], low: Sequence[float], high: Sequence[float], role: str) -> PlotlyTrace:
    """A band as a closed line without hover."""
    shape = {
        "type": "scatter",
        "mode": "lines",
        "fill": "toself",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    return shape | {
        "x": _round_digits([*x, *reversed(x)]),
        "y": _round_digits([*low, *reversed(high)]),
        "meta": {"role": role},
    }


def frontier_traces(fit: FitDocument, view: FrontierView) -> list[PlotlyTrace]:
    """The frontier's band, its stretches by n, and its crossovers."""
    points = thin(view.summary["frontier"], FRONTIER_POINTS)
    points_with_interval = [p for p in points if p.get("low") is not None]
    traces = (
        [_band_trace(*([p[name] for p in points_with_interval] for name in ("C", "low", "high")), role="band")]
        if points_with_interval
        else []
    )
    for n, first, last in n_stretches(points):
        stretch_points = points[first : last + 1]
        text = [_frontier_text(p) for p in stretch_points]
        line = {
            "type": "scatter",
            "mode": "lines",
            "x": _round_digits([p["C"] for p in stretch_points]),
            "y": _round_digits([p["reward"] for p in stretch_points]),
        }
        traces.append(
            line
            | {
                "hovertext": text,
                "hoverinfo": "text",
                "line": {"width": 6, "simplify": False},
                "meta": {"n": n},
                "showlegend": False,
            }
        )
    return [*traces, *([_crossover_trace(fit, view.summary)] if view.summary["crossovers"] else [])]


def _frontier_text(point: Mapping[str, Any]) -> str:
    n_probability = point.get("n_probability")
    probability_text = (
        f"<br>P(n = {point['n']} is best) = {format_percent(n_probability.get(str(point['n']), 0.0))}"
        if n_probability
        else ""
    )
    value = f"{format_reward(point['reward'])}{format_interval(point.get('low'), point.get('high'))}"
    return f"<b>frontier: n = {point['n']}, B_p = {point['B_p']}</b><br>C = {format_compact(point['C'])}: {value}{probability_text}"


def _crossover_trace(fit: FitDocument, summary: FitDocument) -> PlotlyTrace:
    log_C, rewards = np.log10([p["C"] for p in summary["frontier"]]), [p["reward"] for p in summary["frontier"]]
    crossovers = summary["crossovers"]
    y = np.interp(np.log10([x["C"] for x in crossovers]), log_C, rewards)
    text = [f"<b>{x['n_low']} → {x['n_high']}</b><br>at C = {format_crossover(x, fit)}" for x in crossovers]
    errors_above = [0.0 if x.get("high") is None else x["high"] - x["C"] for x in crossovers]
    errors_below = [0.0 if x.get("low") is None else x["C"] - x["low"] for x in crossovers]
    error = {
        "type": "data",
        "symmetric": False,
        "array": _round_digits(errors_above),
        "arrayminus": _round_digits(errors_below),
        "thickness": 1.3,
        "width": 4,
    }
    marker = {"symbol": "diamond", "size": 10, "line": {"width": 1.6}}
    return {
        "type": "scatter", "mode": "markers", "x": _round_digits([x["C"] for x in crossovers]), "y": _round_digits(y), "error_x": error, "marker": marker,
        "hovertext": text, "hoverinfo": "text", "name": "crossover", "meta": {"role": "crossover"},
    }  # fmt: skip


def law_traces(fit: FitDocument, view: FrontierView) -> list[PlotlyTrace]:
    """n*(C): the frontier's n, the law with its band, dashed beyond the data."""
    points, n_star = thin(view.summary["frontier"], 60), view.summary["n_star"]
    band = [p for p in n_star.get("band") or () if p["low"] > 0]
    traces = [_band_trace(*([p[name] for p in band] for name in ("C", "low", "high")), role="law band")] if band else []
    first, last = points[0]["C"], points[-1]["C"]
    for low, high, dash in ((first, last, "solid"), (last, LAW_REACH * last, "dash")):
        C = np.geomspace(low, high, 60)
        n = 2 ** evaluate_law(n_star, np.log10(C))
        text = [
            f"law: n*({format_compact(c)}) = {m:.3g}" + ("" if dash == "solid" else "<br>beyond the data")
            for c, m in zip(C, n, strict=True)
        ]
        line = {
            "type": "scatter",
            "mode": "lines",
            "x": _round_digits(C),
            "y": _round_digits(n),
            "hovertext": text,
            "hoverinfo": "text",
        }
        traces.append(
            line
            | {
                "line": {"width": 2, "dash": dash},
                "meta": {"role": "law"},
                "name": "law n*(C)",
                "showlegend": dash == "solid",
            }
        )
    for n in sorted({p["n"] for p in points}):
        points_of_n = [p for p in points if p["n"] == n]
        dots = {
            "type": "scatter",
            "mode": "markers",
            "x": _round_digits([p["C"] for p in points_of_n]),
            "y": [n] * len(points_of_n),
            "marker": {"size": 7},
        }
        text = [_frontier_text(p) for p in points_of_n]
        traces.append(dots | {"hovertext": text, "hoverinfo": "text", "meta": {"n": n}, "showlegend": False})
    return traces


def layouts(fit: FitDocument, runs: Sequence[RunRecord]) -> dict[str, Any]:
    """{"reward": ..., "law": ...}: axes and ranges, the same for every view of a fit so that a change of view moves
    nothing else.
    """
    low, high = min(row["C_low"] for row in fit["curves"]), LAW_REACH * max(run["C_max"] for run in fit["runs"])
    rewards = [y for run in runs for _, _, y in run_evaluations(run, fit)] + [p["reward"] for p in fit["frontier"]]
    rewards += [fit["base_reward"]] if fit["base_reward"] is not None else []
    reward_range = (max(rewards) - min(rewards)) or 0.1
    ns = sorted({run["n"] for run in fit["runs"]})
    edges = (log10(low) - 0.04, log10(high) + 0.04)
    ticks = [
        lead * 10.0**k
        for k in range(floor(edges[0]), ceil(edges[1]))
        for lead in ((1, 2, 5) if edges[1] - edges[0] < 4 else (1,))
    ]
    x_axis = {
        "type": "log",
        "range": list(edges),
        "tickvals": ticks,
        "ticktext": [format_compact(C) for C in ticks],
        "title": {"text": f"C ({compute_unit(fit)})"},
    }
    n_axis = {
        "type": "log",
        "tickvals": ns,
        "ticktext": [str(n) for n in ns],
        "range": [log10(ns[0] / 1.5), log10(ns[-1] * 2.2)],
    }
    confidence_level = interval_level(fit)
    reward_title = escape_label(fit["metric"]) + (
        f" (bands: {format_percent(confidence_level)})" if confidence_level is not None else ""
    )
    shared_layout = {"hovermode": "closest", "margin": {"l": 56, "r": 12, "t": 12, "b": 48}, "xaxis": x_axis}
    legend = {"orientation": "h", "y": -0.22, "yanchor": "top", "x": 0, "groupclick": "togglegroup"}
    return {
        "reward": shared_layout
        | {
            "yaxis": {
                "range": [min(rewards) - 0.06 * reward_range, max(rewards) + 0.1 * reward_range],
                "title": {"text": reward_title},
            },
            "legend": legend,
        },
        "law": shared_layout | {"yaxis": n_axis | {"title": {"text": "n"}}, "legend": legend},
    }
