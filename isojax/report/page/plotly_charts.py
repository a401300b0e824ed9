"""The page's two charts, reward and n* against C, as plotly's traces and layouts.

The page chooses the colours, as it knows whether it is light or dark: a trace's `meta` names what
it shows. Text is escaped, because plotly reads some HTML in labels."""

import html
from collections.abc import Iterable, Iterator, Sequence
from math import ceil, floor, log10
from typing import Any

import numpy as np

from isojax.core.nouns import RunRecord
from isojax.report import fit_views, wording
from isojax.report.fit_views import BandRow
from isojax.report.wording import (
    UNITS,
    Bounds,
    format_compact,
    format_interval,
    format_reward,
)
from isojax.scaling.allocate.curve_ensemble import CurveEnsemble, load_ensemble
from isojax.scaling.curves.hill import curve_reward
from isojax.scaling.law.n_star_law import log2_n_star
from isojax.scaling.result import FitResult, FrontierFit, FrontierRow, Law, ScheduleRow

PlotlyTrace = dict[str, Any]

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")

# The most points of each line: what the eye can tell apart, as every point is in the page's file.
CURVE_POINTS = 44
FRONTIER_POINTS = 90
CELL_POINTS = 36
LAW_POINTS = 60

MAX_DECADES_WITH_MINOR_LABELS = 3.5
MAX_METRIC_LENGTH = 60


def cell_traces(fit: FitResult, runs: Sequence[RunRecord]) -> Iterator[dict[str, Any]]:
    """For each cell, its fitted curve and its evaluations (the mean over its seeds) as plotly's
    traces, each in a dict {"B_p": ..., "trace": ...} by which the page can show one B_p alone."""
    ensemble = load_ensemble(fit)  # the fitted curve of each cell, with its replicates
    B_ps = sorted({curve.B_p for curve in fit.curves})
    seeds_by_cell = fit_views.runs_by_cell(runs)

    for i, curve in enumerate(ensemble.curves):
        dash = DASHES[B_ps.index(curve.B_p) % len(DASHES)]
        fitted = _curve_trace(ensemble, i, dash)
        evaluations = _evaluation_trace(fit, seeds_by_cell.get(curve.key, []), *curve.key)

        legend = {"legendgroup": f"n{curve.n}", "name": f"n = {curve.n}", "meta": {"n": curve.n}}
        # an n has one entry in the legend, by its curves
        evaluations |= legend | {"opacity": 0.55, "showlegend": False}
        yield {"B_p": curve.B_p, "trace": fitted | legend}
        yield {"B_p": curve.B_p, "trace": evaluations}


def frontier_traces(fit: FitResult, view: FrontierFit) -> list[PlotlyTrace]:
    """A frontier as plotly's traces, from the back to the front: the band of its interval, a thick
    line for each stretch that one n leads, the runs whose n changed on the way, and the crossovers,
    where one n overtakes another. `view`: the frontier, the joint one or that of one B_p."""
    points = fit_views.thin(view.frontier, FRONTIER_POINTS)
    traces = []
    band = fit_views.frontier_band(points)
    if band:
        traces.append(_band_trace(band, role="band"))

    for stretch in fit_views.n_stretches([point.n for point in points]):
        traces.append(_stretch_trace(stretch.n, stretch.points_of(points)))

    for schedule in fit_views.schedules_of_view(fit, view):
        traces.append(_schedule_trace(schedule))

    if view.crossovers:
        traces.append(_crossover_trace(fit, view))
    return traces


def law_traces(view: FrontierFit) -> list[PlotlyTrace]:
    """The chart of the best n at each C as plotly's traces: for each n a ribbon as thick as its
    probability to be the best, the fitted law n*(C), dashed beyond the data, and a dot for the n on
    the frontier."""
    ribbons = fit_views.probability_ribbons(view)
    traces = [_band_trace(ribbon, n=n, role="P(best)") for n, ribbon in ribbons.items()]

    points = fit_views.thin(view.frontier, LAW_POINTS)
    if wording.law_is_drawn(view):
        law = view.n_star.law
        C_last = points[-1].C
        traces.append(_law_trace(law, points[0].C, C_last, is_beyond=False))
        traces.append(_law_trace(law, C_last, wording.LAW_REACH * C_last, is_beyond=True))

    for n in sorted({point.n for point in points}):
        traces.append(_best_n_trace(n, [point for point in points if point.n == n]))
    return traces


def layouts(fit: FitResult, runs: Sequence[RunRecord]) -> dict[str, Any]:
    """The layouts of the two charts, {"reward": ..., "law": ...}, as plotly takes them: titles and
    ranges of the axes, and the legend. They are the same for every frontier of a fit, so that the
    axes stay in place when the reader changes B_p."""
    low_C = min(curve.C_low for curve in fit.curves)
    measured_to = max(run.C_max for run in fit.runs)
    high_C = wording.LAW_REACH * measured_to

    # the range of a log axis is in decades
    C_axis = {
        "type": "log",
        "range": [log10(low_C) - 0.04, log10(high_C) + 0.04],
        "title": {"text": f"C ({UNITS[fit.compute]})", "standoff": 6},
        **budget_ticks(low_C, high_C),
    }
    shared = {
        "hovermode": "closest",
        "margin": {"l": 56, "r": 12, "t": 34, "b": 48},
        "xaxis": C_axis,
        "legend": {
            "orientation": "h",
            "y": -0.22,
            "yanchor": "top",
            "x": 0,
            "groupclick": "togglegroup",
        },
    }

    # What page.js draws as shapes: where the data end, and the base policy, whose C = 0 has no
    # place on a log axis.
    base = None if fit.base_reward is None else round(fit.base_reward, 5)
    return {
        "reward": {
            **shared,
            "yaxis": _reward_axis(fit, runs),
            "meta": {"measured_to": measured_to, "base": base},
        },
        "law": {
            **shared,
            "yaxis": _n_axis(fit),
            "showlegend": False,
            "meta": {"measured_to": measured_to, "base": None},
        },
    }


def budget_ticks(low_C: float, high_C: float) -> dict[str, Any]:
    """plotly's ticks at 1, 2 and 5 times powers of ten, each labelled as a budget: 20k, where
    plotly's own is a 2."""
    exponents = range(floor(log10(low_C)), ceil(log10(high_C)) + 1)
    has_minor_labels = log10(high_C / low_C) < MAX_DECADES_WITH_MINOR_LABELS
    leading_digits = (1, 2, 5) if has_minor_labels else (1,)

    ticks = [digit * 10.0**exponent for exponent in exponents for digit in leading_digits]
    shown = [C for C in ticks if low_C * 0.9 <= C <= high_C * 1.1]
    return {"tickvals": shown, "ticktext": [format_compact(C) for C in shown]}


def _reward_axis(fit: FitResult, runs: Sequence[RunRecord]) -> dict[str, Any]:
    low, high = fit_views.reward_range(fit, runs)
    span = (high - low) or 0.1

    metric = fit.metric
    if len(metric) > MAX_METRIC_LENGTH:
        metric = metric[: MAX_METRIC_LENGTH - 1] + "…"
    title = html.escape(metric, quote=False)
    level = fit_views.interval_level(fit)
    if level:
        title += f" (bands: {level})"
    return {"range": [low - 0.06 * span, high + 0.1 * span], "title": {"text": title}}


def _n_axis(fit: FitResult) -> dict[str, Any]:
    ns = fit_views.all_n(fit)
    return {
        "type": "log",
        "tickvals": ns,
        "ticktext": [str(n) for n in ns],
        "range": [log10(ns[0] / 1.6), log10(ns[-1] * 2.2)],
        "title": {"text": "n"},
    }


def _curve_trace(ensemble: CurveEnsemble, i: int, dash: str) -> PlotlyTrace:
    """The fitted curve of cell i of the ensemble as a plotly line; its interval is only in the text
    that is shown at a point. `dash`: plotly's name of the line's dashes."""
    curve = ensemble.curves[i]
    C = np.geomspace(curve.C_low, curve.C_high, CURVE_POINTS)
    rewards = curve_reward(curve, C)

    # a fit without replicates has no band
    band = fit_views.curve_band(ensemble, i, C)
    intervals: list[Bounds] = [(None, None)] * CURVE_POINTS
    if band is not None:
        low, high = band
        intervals = list(zip(low, high, strict=True))

    hover = []
    for c, reward, interval in zip(C, rewards, intervals, strict=True):
        reward_text = f"{format_reward(reward)}{format_interval(interval)}"
        hover.append(f"{_cell_name(*curve.key)}<br>C = {format_compact(c)}: {reward_text}")
    return _trace("lines", C, rewards, hover, line={"width": 1.6, "dash": dash})


def _evaluation_trace(fit: FitResult, seeds: Sequence[RunRecord], B_p: int, n: int) -> PlotlyTrace:
    """The evaluations of a cell as plotly's markers, a dot for the mean of its seeds at each value
    of the grid of C. `seeds`: the cell's runs."""
    means = fit_views.thin(fit_views.seed_means(seeds, fit), CELL_POINTS)
    hover = []
    for mean in means:
        reward = format_reward(mean.reward)
        text = f"{_cell_name(B_p, n)}<br>C = {format_compact(mean.C)}: measured {reward}"
        if mean.seeds > 1:
            text += f", mean of {mean.seeds} seeds"
        hover.append(text)

    C = [mean.C for mean in means]
    rewards = [mean.reward for mean in means]
    return _trace("markers", C, rewards, hover, marker={"size": 5})


def _stretch_trace(n: int, points: Sequence[FrontierRow]) -> PlotlyTrace:
    """A thick line where n leads."""
    return _trace(
        "lines",
        [point.C for point in points],
        [point.reward for point in points],
        [_frontier_text(point) for point in points],
        line={"width": 6, "simplify": False},
        meta={"n": n},
        showlegend=False,
    )


def _schedule_trace(schedule: ScheduleRow) -> PlotlyTrace:
    """A run whose n changed on the way, as a dotted plotly line; the text at each point has its
    stages and its measured reward."""
    name = html.escape(schedule.name, quote=False)
    title = f"<b>{name}: {schedule.stages}</b>"
    hover = []
    for point in schedule.points:
        reward = format_reward(point.reward)
        hover.append(f"{title}<br>C = {format_compact(point.C)}: measured {reward}")

    return _trace(
        "lines+markers",
        [point.C for point in schedule.points],
        [point.reward for point in schedule.points],
        hover,
        line={"width": 1.4, "dash": "dot"},
        marker={"size": 5, "line": {"width": 1}},
        name=name,
        meta={"role": "schedule"},
    )


def _crossover_trace(fit: FitResult, view: FrontierFit) -> PlotlyTrace:
    """A frontier's crossovers as plotly's markers: a diamond where one n overtakes another, and a
    bar over the interval of that C; no bar towards an end that the data do not determine."""
    rows = view.crossovers
    hover = [
        f"<b>{row.n_low} → {row.n_high}</b><br>at C = {wording.format_crossover(row, fit)}"
        for row in rows
    ]

    # plotly wants the bars' lengths, not their ends
    above = [0.0 if row.high is None else row.high - row.C for row in rows]
    below = [0.0 if row.low is None else row.C - row.low for row in rows]
    bars = {
        "type": "data",
        "symmetric": False,
        "array": _round_digits(above),
        "arrayminus": _round_digits(below),
        "thickness": 1.3,
        "width": 4,
    }

    return _trace(
        "markers",
        [row.C for row in rows],
        [fit_views.frontier_reward_at(view, row.C) for row in rows],
        hover,
        error_x=bars,
        marker={"symbol": "diamond", "size": 10, "line": {"width": 1.6}},
        name="crossover",
        meta={"role": "crossover"},
    )


def _law_trace(law: Law, low_C: float, high_C: float, is_beyond: bool) -> PlotlyTrace:
    """The law n*(C) from low_C to high_C.

    `is_beyond`: nothing was measured there, so that the line is dashed. It has no entry in the
    legend, where the solid part stands for both.
    """
    budgets = np.geomspace(low_C, high_C, LAW_POINTS)
    n_star = 2 ** log2_n_star(law, budgets)

    note = "<br>beyond the data" if is_beyond else ""
    hover = []
    for C, n in zip(budgets, n_star, strict=True):
        hover.append(f"law: n*({format_compact(C)}) = {n:.3g}{note}")

    return _trace(
        "lines",
        budgets,
        n_star,
        hover,
        line={"width": 2, "dash": "dash" if is_beyond else "solid"},
        name="law n*(C)",
        showlegend=not is_beyond,
        meta={"role": "law"},
    )


def _best_n_trace(n: int, points: Sequence[FrontierRow]) -> PlotlyTrace:
    """A dot at each C where n leads."""
    return _trace(
        "markers",
        [point.C for point in points],
        [n] * len(points),
        [_frontier_text(point) for point in points],
        meta={"n": n},
        marker={"size": 7},
        showlegend=False,
    )


def _band_trace(rows: Sequence[BandRow], **meta: Any) -> PlotlyTrace:
    """A band as one closed outline: along its lower edge and back along the upper one."""
    x = [row.x for row in rows]
    low = [row.low for row in rows]
    high = [row.high for row in rows]
    outline_x = [*x, *reversed(x)]
    outline_y = [*low, *reversed(high)]
    style = {"fill": "toself", "line": {"width": 0}, "showlegend": False}
    return _trace("lines", outline_x, outline_y, [], **style, meta=meta)


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


def _cell_name(B_p: int, n: int) -> str:
    return f"n = {n}, B_p = {B_p}"


def _frontier_text(point: FrontierRow) -> str:
    """What a point of the frontier says: the cell that leads, its reward, and P(best) of each n."""
    reward = f"{format_reward(point.reward)}{format_interval((point.low, point.high))}"
    text = f"<b>frontier: {_cell_name(point.B_p, point.n)}</b>"
    text += f"<br>C = {format_compact(point.C)}: {reward}"
    if point.n_probability:
        shares = [f"n = {share.n} {share.text}" for share in wording.n_shares(point.n_probability)]
        text += f"<br>P(best): {', '.join(shares)}"
    return text


def _round_digits(values: Iterable[float]) -> list[float]:
    """Floats of five digits: the page need not carry sixteen."""
    return [float(f"{x:.5g}") for x in values]
