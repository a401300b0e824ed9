"""The page's two charts as plotly traces and layouts. The page chooses the colours, as it knows whether it is light or
dark: a trace's `meta` names what it shows. Text is escaped, because plotly reads some HTML in labels."""

import html
from collections.abc import Iterable, Iterator, Sequence
from math import log10
from typing import Any

import numpy as np

from isojax.core.nouns import RunRecord
from isojax.report import fit_views, wording
from isojax.report.wording import format_compact, format_interval, format_reward
from isojax.scaling.allocate.curve_ensemble import load_ensemble
from isojax.scaling.curves.hill import curve_reward
from isojax.scaling.law.n_star_law import log2_n_star
from isojax.scaling.result import FitResult, FrontierFit, FrontierRow

PlotlyTrace = dict[str, Any]
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
CURVE_POINTS, FRONTIER_POINTS, CELL_POINTS, LAW_POINTS = 44, 90, 36, 60


def plotly_bundle() -> str | None:
    """plotly.js, whole; None where plotly (extra report) is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        return None
    return get_plotlyjs().replace("\r\n", "\n")


def _round_digits(values: Iterable[float]) -> list[float]:
    """Floats of five digits: the page need not carry sixteen."""
    return [float(f"{x:.5g}") for x in values]


def _trace(mode: str, x: Iterable[float], y: Iterable[float], hover: Sequence[str], **options: Any) -> PlotlyTrace:
    """A line or markers with a text for each point; none where `hover` is empty."""
    texts = {"hovertext": list(hover), "hoverinfo": "text"} if hover else {"hoverinfo": "skip"}
    return {"type": "scatter", "mode": mode, "x": _round_digits(x), "y": _round_digits(y), **texts, **options}


def cell_traces(fit: FitResult, runs: Sequence[RunRecord]) -> Iterator[dict[str, Any]]:
    """{"B_p", "trace"}: each cell's fitted curve and its evaluations (the seeds' mean)."""
    ensemble, B_ps = load_ensemble(fit), sorted({curve.B_p for curve in fit.curves})
    seeds_by_cell = fit_views.runs_by_cell(runs)
    for i, curve in enumerate(ensemble.curves):
        C = np.geomspace(curve.C_low, curve.C_high, CURVE_POINTS)
        y, band = curve_reward(curve, C), fit_views.curve_band(ensemble, i, C)
        intervals = [(None, None)] * len(C) if band is None else list(zip(*band, strict=True))
        cell_name = f"n = {curve.n}, B_p = {curve.B_p}"
        hover = [
            f"{cell_name}<br>C = {format_compact(c)}: {format_reward(reward)}{format_interval(interval)}"
            for c, reward, interval in zip(C, y, intervals, strict=True)
        ]
        legend = {"legendgroup": f"n{curve.n}", "name": f"n = {curve.n}", "meta": {"n": curve.n}}
        line = {"width": 1.6, "dash": DASHES[B_ps.index(curve.B_p) % len(DASHES)]}
        evaluations = _evaluation_trace(fit, seeds_by_cell.get(curve.key, []), cell_name)
        evaluations |= {**legend, "opacity": 0.55, "showlegend": False}
        fitted = _trace("lines", C, y, hover, line=line, **legend)
        yield from ({"B_p": curve.B_p, "trace": trace} for trace in (fitted, evaluations))


def _evaluation_trace(fit: FitResult, seeds: Sequence[RunRecord], cell_name: str) -> PlotlyTrace:
    rows = fit_views.thin(fit_views.seed_means(seeds, fit), CELL_POINTS)
    hover = [
        f"{cell_name}<br>C = {format_compact(C)}: measured {format_reward(y)}"
        + (f", mean of {count} seeds" if count > 1 else "")
        for C, y, count in rows
    ]
    return _trace("markers", [C for C, _, _ in rows], [y for _, y, _ in rows], hover, marker={"size": 5})


def _band_trace(rows: Sequence[tuple[float, float, float]], **meta: Any) -> PlotlyTrace:
    x, low, high = (list(column) for column in zip(*rows, strict=True))
    outline = _trace("lines", [*x, *reversed(x)], [*low, *reversed(high)], [])
    return outline | {"fill": "toself", "line": {"width": 0}, "showlegend": False, "meta": meta}


def frontier_traces(fit: FitResult, view: FrontierFit) -> list[PlotlyTrace]:
    """The frontier's band, its stretches by n, its crossovers, and the runs whose n changed on the way."""
    points = fit_views.thin(view.frontier, FRONTIER_POINTS)
    with_interval = [(p.C, p.low, p.high) for p in points if p.low is not None]
    traces = [_band_trace(with_interval, role="band")] if with_interval else []
    for n, first, last in fit_views.n_stretches([point.n for point in points]):
        stretch = points[first : last + 1]
        hover = [_frontier_text(p) for p in stretch]
        line = {"width": 6, "simplify": False}
        trace = _trace("lines", [p.C for p in stretch], [p.reward for p in stretch], hover, line=line, meta={"n": n})
        traces.append(trace | {"showlegend": False})
    for row in fit_views.schedules_of_view(fit, view):
        name, C, y = html.escape(row.name, quote=False), [p.C for p in row.points], [p.reward for p in row.points]
        text = f"<b>{name}: {row.stages}</b><br>C = "
        hover = [f"{text}{format_compact(p.C)}: measured {format_reward(p.reward)}" for p in row.points]
        style = {"line": {"width": 1.4, "dash": "dot"}, "marker": {"size": 5, "line": {"width": 1}}}
        traces.append(_trace("lines+markers", C, y, hover, **style, name=name, meta={"role": "schedule"}))
    return [*traces, _crossover_trace(fit, view)] if view.crossovers else traces


def _frontier_text(point: FrontierRow) -> str:
    reward = f"{format_reward(point.reward)}{format_interval((point.low, point.high))}"
    text = f"<b>frontier: n = {point.n}, B_p = {point.B_p}</b><br>C = {format_compact(point.C)}: {reward}"
    if not point.n_probability:
        return text
    return f"{text}<br>P(best): {', '.join(f'n = {n} {text}' for n, text, _ in wording.n_shares(point.n_probability))}"


def _crossover_trace(fit: FitResult, view: FrontierFit) -> PlotlyTrace:
    C = [row.C for row in view.crossovers]
    y = [fit_views.frontier_reward_at(view, c) for c in C]
    hover = [
        f"<b>{row.n_low} → {row.n_high}</b><br>at C = {wording.format_crossover(row, fit)}" for row in view.crossovers
    ]
    above = [0.0 if row.high is None else row.high - row.C for row in view.crossovers]
    below = [0.0 if row.low is None else row.C - row.low for row in view.crossovers]
    sizes = {"array": _round_digits(above), "arrayminus": _round_digits(below), "thickness": 1.3, "width": 4}
    marker = {"symbol": "diamond", "size": 10, "line": {"width": 1.6}}
    error = {"type": "data", "symmetric": False, **sizes}
    return _trace("markers", C, y, hover, error_x=error, marker=marker, name="crossover", meta={"role": "crossover"})


def law_traces(view: FrontierFit) -> list[PlotlyTrace]:
    """n*(C): the best measured n, P(best) of each as a ribbon, and the law, dashed beyond the data."""
    points, n_star = fit_views.thin(view.frontier, LAW_POINTS), view.n_star
    traces = [_band_trace(rows, n=n, role="P(best)") for n, rows in fit_views.probability_ribbons(view).items()]
    first, last = points[0].C, points[-1].C
    ranges = ((first, last, "solid"), (last, wording.LAW_REACH * last, "dash")) if wording.law_is_drawn(view) else ()
    for low, high, dash in ranges:
        C = np.geomspace(low, high, LAW_POINTS)
        n = 2 ** log2_n_star(n_star.law, C)
        suffix = "" if dash == "solid" else "<br>beyond the data"
        hover = [f"law: n*({format_compact(c)}) = {value:.3g}{suffix}" for c, value in zip(C, n, strict=True)]
        options = {"name": "law n*(C)", "showlegend": dash == "solid", "meta": {"role": "law"}}
        traces.append(_trace("lines", C, n, hover, line={"width": 2, "dash": dash}, **options))
    for n in sorted({point.n for point in points}):
        dots = [point for point in points if point.n == n]
        hover = [_frontier_text(point) for point in dots]
        trace = _trace("markers", [point.C for point in dots], [n] * len(dots), hover, meta={"n": n})
        traces.append(trace | {"marker": {"size": 7}, "showlegend": False})
    return traces


def layouts(fit: FitResult, runs: Sequence[RunRecord]) -> dict[str, Any]:
    """{"reward": ..., "law": ...}: axes and ranges, the same for every view of a fit."""
    ns = fit_views.all_n(fit)
    n_range = [log10(ns[0] / 1.6), log10(ns[-1] * 2.2)]
    n_axis = {"type": "log", "tickvals": ns, "ticktext": [str(n) for n in ns], "range": n_range, "title": {"text": "n"}}
    low_C, high_C = min(curve.C_low for curve in fit.curves), wording.LAW_REACH * max(run.C_max for run in fit.runs)
    C_range = [log10(low_C) - 0.04, log10(high_C) + 0.04]
    C_title = {"text": f"C ({wording.UNITS[fit.compute]})", "standoff": 6}
    C_axis = {"type": "log", "range": C_range, "title": C_title, "dtick": "D2"}
    low, high = fit_views.reward_range(fit, runs)
    span = (high - low) or 0.1
    level = fit_views.interval_level(fit)
    metric = fit.metric if len(fit.metric) <= 60 else fit.metric[:59] + "…"
    reward_title = html.escape(metric, quote=False) + (f" (bands: {level})" if level else "")
    reward_axis = {"range": [low - 0.06 * span, high + 0.1 * span], "title": {"text": reward_title}}
    legend = {"orientation": "h", "y": -0.22, "yanchor": "top", "x": 0, "groupclick": "togglegroup"}
    margin = {"l": 56, "r": 12, "t": 34, "b": 48}
    shared = {"hovermode": "closest", "margin": margin, "xaxis": C_axis, "legend": legend}
    return {"reward": {**shared, "yaxis": reward_axis}, "law": {**shared, "yaxis": n_axis, "showlegend": False}}
