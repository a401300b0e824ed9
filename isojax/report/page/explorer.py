"""What to run at a budget, and the interactive part of the page that shows it. An answer is what
`isojax recommend` answers, or, for other units of C, what leads the frontier. Python makes every
number, an answer for each of about 150 budgets and every view; page.js looks them up, and
calculates only M for the budget typed: floor(C / (B_p n)), by the batches of the nearest answer
where an update samples several.

The two charts are plotly traces and layouts. The page chooses the colours, as it knows whether it
is light or dark: a trace's `meta` names what it shows. Text is escaped, because plotly reads some
HTML in labels."""

import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil, floor, log10
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex

from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.report import fit_views, wording
from isojax.report.canvas import log2_positions, n_palette
from isojax.report.fit_views import (
    B_p_of_view,
    all_n,
    frontier_views,
    interval_level,
    measured_budget,
)
from isojax.report.wording import (
    UNITS,
    format_compact,
    format_interval,
    format_percent,
    format_range,
    format_reward,
)
from isojax.scaling.allocate.curve_ensemble import load_ensemble
from isojax.scaling.allocate.recommend import recommend
from isojax.scaling.curves.hill import curve_reward
from isojax.scaling.law.n_star_law import log2_n_star
from isojax.scaling.result import FitResult, FrontierFit, FrontierRow

PlotlyTrace = dict[str, Any]
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
CURVE_POINTS, FRONTIER_POINTS, CELL_POINTS, LAW_POINTS = 44, 90, 36, 60
MAX_DECADES_WITH_MINOR_LABELS = 3.5
EDGE = 1 + 1e-9  # budgets this close to the end of the frontier belong to it
MIN_SHOWN_REGRET = 0.0005


def answer_row(fit: FitResult, C: float, B_p: int | None = None) -> dict[str, Any]:
    """What to run with a budget of C > 0, in the fit's unit, with B_p held fixed or free: numbers
    and, in `words`, what to know of them. {"C", "why"} where there is no answer; M, the number of
    updates, only where C counts rollouts."""
    if fit.compute != "rollouts":
        return _frontier_answer(fit, C, B_p)
    try:
        best = recommend(fit, C, fix=None if B_p is None else {"B_p": B_p}, with_details=False)
    except InputError as e:
        return {"C": C, "why": str(e)}
    n, interval = best.allocation.n, best.interval or (None, None)
    row = _worded_row(C, n, best.allocation.B_p, best.expected_reward, interval, best.n_probability)
    equal_n = [other for other in best.equal_n if other != n]
    sentences = [f"One new run will measure {format_range(best.prediction_interval)}."] * bool(
        best.prediction_interval
    )
    sentences.append(row["words"])
    if best.regret is not None and best.regret >= MIN_SHOWN_REGRET:
        loss = format_reward(best.regret)
        sentences.append(f"The expected loss against the best measured cell is {loss} of reward.")
    if equal_n:
        sentences.append(f"As good within the tolerance: n = {wording.join_list(equal_n)}.")
    words = " ".join(filter(None, sentences))
    if best.tie:
        words = f"{wording.sentence_of(best.tie)} This is the smallest."
    if fit.nothing_learnt:
        words = "No run learnt anything, so no n is better than another: this is the smallest."
    if best.allocation.batches != 1.0:
        row |= {"batches": best.allocation.batches}
    return row | {"M": best.allocation.M, "extrapolated": best.extrapolated, "words": words}


def _frontier_answer(fit: FitResult, C: float, B_p: int | None) -> dict[str, Any]:
    frontier = next(
        (view.frontier for view in frontier_views(fit) if view.B_p == B_p), fit.joint.frontier
    )
    if not frontier[0].C / EDGE <= C <= frontier[-1].C * EDGE:
        return {
            "C": C,
            "why": "C is outside the measured frontier; fit in rollouts to look beyond it.",
        }
    point = min(frontier, key=lambda point: abs(np.log(point.C / C)))
    return _worded_row(
        C, point.n, point.B_p, point.reward, (point.low, point.high), point.n_probability
    )


def _worded_row(
    C: float,
    n: int,
    B_p: int,
    reward: float,
    interval: wording.Bounds,
    n_probability: Mapping[int, float] | None,
) -> dict[str, Any]:
    shares = n_probability or {}
    return {
        "C": C,
        "n": n,
        "B_p": B_p,
        "y": reward,
        "low": interval[0],
        "high": interval[1],
        "reward": format_reward(reward),
        "interval": "" if interval == (None, None) else format_range(interval),
        "probabilities": wording.every_n_share(shares),
        "extrapolated": False,
        "words": f"P(n = {n} is the best) = {format_percent(round(shares.get(n, 0.0), 2))}."
        if shares
        else "",
    }


def budget_grid(fit: FitResult, count: int = 150) -> list[float]:
    """About `count` budgets of three digits, evenly in log C, from the smallest measured C to 4
    times the largest."""
    C_low = min(curve.C_low for curve in fit.curves)
    C_high = 4 * max(run.C_max for run in fit.runs)
    rounded = [float(f"{C:.3g}") for C in np.geomspace(C_low, C_high, count)]
    budgets = [C_low, *(C for C in rounded if C_low < C < C_high), measured_budget(fit), C_high]
    return sorted({C if fit.compute == "device_hours" else float(round(C)) for C in budgets})


def page_data(
    fits: Sequence[FitResult], runs: Sequence[RunRecord], with_charts: bool
) -> dict[str, Any]:
    """What page.js reads; with the charts' traces where they can be drawn."""
    ns = sorted({n for fit in fits for n in all_n(fit)})
    dark_colours = {
        n: to_hex(colormaps["viridis"](0.42 + 0.56 * share))
        for n, share in log2_positions(ns).items()
    }
    return {
        "fits": [_fit_data(fit, runs, with_charts) for fit in fits],
        "colours": {"light": n_palette(ns), "dark": dark_colours},
    }


def _fit_data(fit: FitResult, runs: Sequence[RunRecord], with_charts: bool) -> dict[str, Any]:
    content = {
        "metric": fit.metric,
        "mode": "as in the paper" if fit.mode == "paper" else fit.mode,
        "unit": UNITS[fit.compute],
        "level": interval_level(fit),
        "views": [_view_data(fit, view, with_charts) for view in frontier_views(fit)],
    }
    if with_charts:
        content |= {"cells": [*cell_traces(fit, runs)], "layouts": layouts(fit, runs)}
    return content


def _view_data(fit: FitResult, view: FrontierFit, with_charts: bool) -> dict[str, Any]:
    fixed_B_p = view.B_p if len(fit.by_B_p) > 1 else None
    content = {
        "name": "the best of all" if view.B_p is None else str(view.B_p),
        "B_p": view.B_p,
        "B_ps": B_p_of_view(fit, view),
        "rows": [answer_row(fit, C, fixed_B_p) for C in budget_grid(fit)],
    }
    if with_charts:
        content |= {"frontier": frontier_traces(fit, view), "law": law_traces(view)}
    return content


def json_for_script(content: dict[str, Any]) -> str:
    """JSON that can stand inside a script element: no `<`, `>` or `&`, ASCII only (so no U+2028
    either)."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


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


def _trace(
    mode: str, x: Iterable[float], y: Iterable[float], hover: Sequence[str], **options: Any
) -> PlotlyTrace:
    """A line or markers with a text for each point; none where `hover` is empty."""
    texts = {"hovertext": list(hover), "hoverinfo": "text"} if hover else {"hoverinfo": "skip"}
    return {
        "type": "scatter",
        "mode": mode,
        "x": _round_digits(x),
        "y": _round_digits(y),
        **texts,
        **options,
    }


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
    return _trace(
        "markers", [C for C, _, _ in rows], [y for _, y, _ in rows], hover, marker={"size": 5}
    )


def _band_trace(rows: Sequence[tuple[float, float, float]], **meta: Any) -> PlotlyTrace:
    x, low, high = (list(column) for column in zip(*rows, strict=True))
    outline = _trace("lines", [*x, *reversed(x)], [*low, *reversed(high)], [])
    return outline | {"fill": "toself", "line": {"width": 0}, "showlegend": False, "meta": meta}


def frontier_traces(fit: FitResult, view: FrontierFit) -> list[PlotlyTrace]:
    """The frontier's band, its stretches by n, its crossovers, and the runs whose n changed on the
    way."""
    points = fit_views.thin(view.frontier, FRONTIER_POINTS)
    with_interval = [(p.C, p.low, p.high) for p in points if p.low is not None]
    traces = [_band_trace(with_interval, role="band")] if with_interval else []
    for n, first, last in fit_views.n_stretches([point.n for point in points]):
        stretch = points[first : last + 1]
        hover = [_frontier_text(p) for p in stretch]
        line = {"width": 6, "simplify": False}
        trace = _trace(
            "lines",
            [p.C for p in stretch],
            [p.reward for p in stretch],
            hover,
            line=line,
            meta={"n": n},
        )
        traces.append(trace | {"showlegend": False})
    for row in fit_views.schedules_of_view(fit, view):
        name = html.escape(row.name, quote=False)
        C = [p.C for p in row.points]
        y = [p.reward for p in row.points]
        text = f"<b>{name}: {row.stages}</b><br>C = "
        hover = [
            f"{text}{format_compact(p.C)}: measured {format_reward(p.reward)}" for p in row.points
        ]
        style = {"line": {"width": 1.4, "dash": "dot"}, "marker": {"size": 5, "line": {"width": 1}}}
        traces.append(
            _trace("lines+markers", C, y, hover, **style, name=name, meta={"role": "schedule"})
        )
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
    crossings = [
        (f"<b>{row.n_low} → {row.n_high}</b>", wording.format_crossover(row, fit))
        for row in view.crossovers
    ]
    hover = [f"{change}<br>at C = {C_text}" for change, C_text in crossings]
    above = [0.0 if row.high is None else row.high - row.C for row in view.crossovers]
    below = [0.0 if row.low is None else row.C - row.low for row in view.crossovers]
    sizes = {
        "array": _round_digits(above),
        "arrayminus": _round_digits(below),
        "thickness": 1.3,
        "width": 4,
    }
    marker = {"symbol": "diamond", "size": 10, "line": {"width": 1.6}}
    error = {"type": "data", "symmetric": False, **sizes}
    return _trace(
        "markers",
        C,
        y,
        hover,
        error_x=error,
        marker=marker,
        name="crossover",
        meta={"role": "crossover"},
    )


def law_traces(view: FrontierFit) -> list[PlotlyTrace]:
    """n*(C): the best measured n, P(best) of each as a ribbon, and the law, dashed beyond the
    data."""
    points, n_star = fit_views.thin(view.frontier, LAW_POINTS), view.n_star
    traces = [
        _band_trace(rows, n=n, role="P(best)")
        for n, rows in fit_views.probability_ribbons(view).items()
    ]
    first, last = points[0].C, points[-1].C
    ranges = (
        ((first, last, "solid"), (last, wording.LAW_REACH * last, "dash"))
        if wording.law_is_drawn(view)
        else ()
    )
    for low, high, dash in ranges:
        C = np.geomspace(low, high, LAW_POINTS)
        n = 2 ** log2_n_star(n_star.law, C)
        suffix = "" if dash == "solid" else "<br>beyond the data"
        hover = [
            f"law: n*({format_compact(c)}) = {value:.3g}{suffix}"
            for c, value in zip(C, n, strict=True)
        ]
        options = {"name": "law n*(C)", "showlegend": dash == "solid", "meta": {"role": "law"}}
        traces.append(_trace("lines", C, n, hover, line={"width": 2, "dash": dash}, **options))
    for n in sorted({point.n for point in points}):
        dots = [point for point in points if point.n == n]
        hover = [_frontier_text(point) for point in dots]
        trace = _trace(
            "markers", [point.C for point in dots], [n] * len(dots), hover, meta={"n": n}
        )
        traces.append(trace | {"marker": {"size": 7}, "showlegend": False})
    return traces


def layouts(fit: FitResult, runs: Sequence[RunRecord]) -> dict[str, Any]:
    """{"reward": ..., "law": ...}: axes and ranges, the same for every view of a fit."""
    ns = all_n(fit)
    n_range = [log10(ns[0] / 1.6), log10(ns[-1] * 2.2)]
    n_axis = {
        "type": "log",
        "tickvals": ns,
        "ticktext": [str(n) for n in ns],
        "range": n_range,
        "title": {"text": "n"},
    }
    low_C = min(curve.C_low for curve in fit.curves)
    measured_to = max(run.C_max for run in fit.runs)
    high_C = wording.LAW_REACH * measured_to
    C_title = {"text": f"C ({UNITS[fit.compute]})", "standoff": 6}
    C_axis = {
        "type": "log",
        "range": [log10(low_C) - 0.04, log10(high_C) + 0.04],
        "title": C_title,
        **budget_ticks(low_C, high_C),
    }
    low, high = fit_views.reward_range(fit, runs)
    span = (high - low) or 0.1
    level = interval_level(fit)
    metric = fit.metric if len(fit.metric) <= 60 else fit.metric[:59] + "…"
    reward_title = html.escape(metric, quote=False) + (f" (bands: {level})" if level else "")
    reward_axis = {"range": [low - 0.06 * span, high + 0.1 * span], "title": {"text": reward_title}}
    legend = {"orientation": "h", "y": -0.22, "yanchor": "top", "x": 0, "groupclick": "togglegroup"}
    margin = {"l": 56, "r": 12, "t": 34, "b": 48}
    shared = {"hovermode": "closest", "margin": margin, "xaxis": C_axis, "legend": legend}
    # What page.js draws as shapes: where the data end, and the base policy, whose C = 0 has no
    # place on a log axis.
    base = None if fit.base_reward is None else round(fit.base_reward, 5)
    return {
        "reward": {
            **shared,
            "yaxis": reward_axis,
            "meta": {"measured_to": measured_to, "base": base},
        },
        "law": {
            **shared,
            "yaxis": n_axis,
            "showlegend": False,
            "meta": {"measured_to": measured_to, "base": None},
        },
    }


def budget_ticks(low_C: float, high_C: float) -> dict[str, Any]:
    """plotly's ticks at 1, 2 and 5 times powers of ten, each labelled as a budget: 20k, where
    plotly's own is a 2."""
    exponents = range(floor(log10(low_C)), ceil(log10(high_C)) + 1)
    leading_digits = (1, 2, 5) if log10(high_C / low_C) < MAX_DECADES_WITH_MINOR_LABELS else (1,)
    ticks = [digit * 10.0**exponent for exponent in exponents for digit in leading_digits]
    shown = [C for C in ticks if low_C * 0.9 <= C <= high_C * 1.1]
    return {"tickvals": shown, "ticktext": [format_compact(C) for C in shown]}
