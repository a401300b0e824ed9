"""What to run at a budget, and the interactive part of the page that shows it. An answer is what `isojax recommend`
answers, or, for other units of C, what leads the frontier. Python makes every number, an answer for each of about 150
budgets and every view; page.js looks them up, and calculates only M = floor(C / (B_p n)) for the budget typed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import Template
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex

from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.report.canvas import log2_positions, n_palette
from isojax.report.fit_views import B_p_of_view, all_n, frontier_views, interval_level, measured_budget
from isojax.report.page import charts
from isojax.report.page.markup import Html, read_page_file
from isojax.report.wording import (
    Bounds,
    compute_unit,
    format_compact,
    format_percent,
    format_range,
    format_reward,
    join_commas,
)
from isojax.scaling.allocate.recommend import recommend
from isojax.scaling.result import FitResult, FrontierFit

EDGE = 1 + 1e-9  # budgets this close to the end of the frontier belong to it
NO_INTERVAL = (None, None)


@dataclass(frozen=True)
class Advice:
    """An answer for one budget."""

    C: float  # the budget, in the fit's unit
    n: int | None = None  # None where there is no answer, for `no_answer_reason`
    B_p: int | None = None
    M: int | None = None  # updates, floor(C / (B_p n)); None where C does not count rollouts
    reward: float | None = None  # to expect
    interval: Bounds = NO_INTERVAL  # of the expected reward
    new_run: Bounds = NO_INTERVAL  # of what one new run will measure
    extrapolated: bool = False  # whether C is beyond the data of the recommended cell
    n_probability: Mapping[int, float] = field(default_factory=dict)  # P(n is best), by n; empty where unknown
    regret: float | None = None  # expected loss of reward against the best measured cell; None where unknown
    equal_n: tuple[int, ...] = ()  # the n that do as well, within the data's errors
    no_answer_reason: str = ""


def advise(fit: FitResult, C: float, B_p: int | None = None) -> Advice:
    """What to run with a budget of C > 0, in the fit's unit; B_p: to hold fixed, None leaves it free."""
    if fit.compute != "rollouts":
        return _advise_on_frontier(fit, C, B_p)
    try:
        recommendation = recommend(fit, C, fix=None if B_p is None else {"B_p": B_p}, with_measured_cells=False)
    except InputError as e:
        return Advice(C, no_answer_reason=str(e))
    return Advice(
        C,
        n=recommendation.allocation.n,
        B_p=recommendation.allocation.B_p,
        M=recommendation.allocation.M,
        reward=recommendation.expected_reward,
        interval=recommendation.interval or NO_INTERVAL,
        new_run=recommendation.prediction_interval or NO_INTERVAL,
        extrapolated=recommendation.extrapolated,
        n_probability=recommendation.n_probability or {},
        regret=recommendation.regret,
        equal_n=tuple(n for n in recommendation.equal_n if n != recommendation.allocation.n),
    )


def _advise_on_frontier(fit: FitResult, C: float, B_p: int | None) -> Advice:
    """The measured frontier's answer at the nearest of its points."""
    frontier = next((view.frontier for view in frontier_views(fit) if view.B_p == B_p), fit.joint.frontier)
    if not frontier[0].C / EDGE <= C <= frontier[-1].C * EDGE:
        return Advice(C, no_answer_reason="C is outside the measured frontier; fit in rollouts to look beyond it.")
    point = frontier[int(np.argmin([abs(np.log(point.C / C)) for point in frontier]))]
    return Advice(
        C,
        n=point.n,
        B_p=point.B_p,
        reward=point.reward,
        interval=(point.low, point.high),
        n_probability=point.n_probability or {},
    )


def budget_grid(fit: FitResult, count: int = 150) -> list[float]:
    """About `count` budgets of three digits, evenly in log C, from the smallest measured C to 4 times the largest."""
    C_low = min(curve.C_low for curve in fit.curves)
    C_high = 4 * max(run.C_max for run in fit.runs)
    rounded = [float(f"{C:.3g}") for C in np.geomspace(C_low, C_high, count)]
    budgets = [C_low, *(C for C in rounded if C_low < C < C_high), measured_budget(fit), C_high]
    is_integer = fit.compute != "device_hours"
    return sorted({float(round(C)) if is_integer else C for C in budgets})


MIN_SHOWN_PROBABILITY = 0.005
MIN_SHOWN_REGRET = 0.0005


def page_data(fits: Sequence[FitResult], runs: Sequence[RunRecord], with_charts: bool) -> dict[str, Any]:
    """What page.js reads; with the charts' traces where they can be drawn."""
    ns = sorted({n for fit in fits for n in all_n(fit)})
    dark_colours = {n: to_hex(colormaps["viridis"](0.42 + 0.56 * share)) for n, share in log2_positions(ns).items()}
    return {
        "fits": [_fit_data(fit, runs, with_charts) for fit in fits],
        "colours": {"light": n_palette(ns), "dark": dark_colours},
    }


def _fit_data(fit: FitResult, runs: Sequence[RunRecord], with_charts: bool) -> dict[str, Any]:
    level = interval_level(fit)
    content = {
        "metric": fit.metric,
        "mode": "as in the paper" if fit.mode == "paper" else fit.mode,
        "unit": compute_unit(fit),
        "level": format_percent(level) if level else "",
        "views": [_view_data(fit, view, with_charts) for view in frontier_views(fit)],
    }
    if with_charts:
        content |= {"cells": charts.cell_traces(fit, runs), "layouts": charts.layouts(fit, runs)}
    return content


def _view_data(fit: FitResult, view: FrontierFit, with_charts: bool) -> dict[str, Any]:
    fixed_B_p = view.B_p if len(fit.by_B_p) > 1 else None
    content = {
        "name": "the best of all" if view.B_p is None else str(view.B_p),
        "B_p": view.B_p,
        "B_ps": B_p_of_view(fit, view),
        "rows": [_answer_row(advise(fit, C, fixed_B_p)) for C in budget_grid(fit)],
    }
    if with_charts:
        content |= {"frontier": charts.frontier_traces(fit, view), "law": charts.law_traces(fit, view)}
    return content


def _answer_row(advice: Advice) -> dict[str, Any]:
    """One budget's answer, worded."""
    row: dict[str, Any] = {"C": advice.C, "text": format_compact(advice.C)}
    if advice.n is None:
        return {**row, "why": advice.no_answer_reason}
    has_regret = advice.regret is not None and advice.regret >= MIN_SHOWN_REGRET
    n_probability = advice.n_probability
    return {
        **row,
        "n": advice.n,
        "B_p": advice.B_p,
        "M": advice.M,
        "M_known": advice.M is not None,
        "y": advice.reward,
        "low": advice.interval[0],
        "high": advice.interval[1],
        "reward": format_reward(advice.reward),
        "interval": "" if advice.interval == NO_INTERVAL else format_range(advice.interval),
        "new_run": "" if advice.new_run == NO_INTERVAL else format_range(advice.new_run),
        "probabilities": [
            [n, format_percent(round(share, 2)), round(share, 3)]
            for n, share in sorted(n_probability.items())
            if share >= MIN_SHOWN_PROBABILITY
        ],
        "probability": format_percent(round(n_probability.get(advice.n, 0.0), 2)) if n_probability else "",
        "extrapolated": advice.extrapolated,
        "equal_n": join_commas(advice.equal_n),
        "regret": format_reward(advice.regret) if has_regret else "",
    }


def json_for_script(content: dict[str, Any]) -> str:
    """JSON that can stand inside a script element: no `<`, `>` or `&`, ASCII only (so no U+2028 either)."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


CHARTS_HTML = (
    '<div class="charts"><div id="chart-reward" class="chart" role="img" aria-label="Reward against compute"></div>'
    '<div id="chart-law" class="chart" role="img" aria-label="Compute-optimal n against compute"></div></div>'
)
NO_CHARTS_HTML = (
    '<p class="soft">For interactive charts install the extra <code>isojax[report]</code> (plotly) and run '
    "<code>isojax report</code> again; the figures below show the same.</p>"
)


def budget_section(with_charts: bool) -> Html:
    """The controls and the places that page.js fills."""
    charts_html = CHARTS_HTML if with_charts else NO_CHARTS_HTML
    return Html(Template(read_page_file("budget.html")).substitute(charts=charts_html))
