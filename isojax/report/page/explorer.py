"""What the interactive part of the page reads (page.js), as one JSON document.

Python makes every number, an answer for each of about 150 budgets and every view; page.js looks
them up, and calculates only M for the budget typed: floor(C / (B_p n)), by the batches of the
nearest answer where an update samples several."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex

from isojax.core.nouns import RunRecord
from isojax.report.canvas import log2_positions, n_palette
from isojax.report.fit_views import (
    B_p_of_view,
    all_n,
    frontier_views,
    interval_level,
    measured_budget,
)
from isojax.report.page import plotly_charts
from isojax.report.page.budget_answers import answer_budget
from isojax.report.wording import UNITS
from isojax.scaling.result import FitResult, FrontierFit


def page_data(
    fits: Sequence[FitResult], runs: Sequence[RunRecord], with_charts: bool
) -> dict[str, Any]:
    """What page.js reads; with the charts' traces where they can be drawn."""
    ns = sorted({n for fit in fits for n in all_n(fit)})
    return {
        "fits": [_fit_data(fit, runs, with_charts) for fit in fits],
        "colours": {"light": n_palette(ns), "dark": _dark_palette(ns)},
    }


def _dark_palette(ns: Sequence[int]) -> dict[int, str]:
    """A colour for each n on a dark page: viridis without its darker part."""
    viridis = colormaps["viridis"]
    return {n: to_hex(viridis(0.42 + 0.56 * place)) for n, place in log2_positions(ns).items()}


def _fit_data(fit: FitResult, runs: Sequence[RunRecord], with_charts: bool) -> dict[str, Any]:
    """One fit as page.js reads it: its names and units, its frontiers with their answers, and, if
    `with_charts`, the charts' traces and layouts."""
    content = {
        "metric": fit.metric,
        "mode": "as in the paper" if fit.mode == "paper" else fit.mode,
        "unit": UNITS[fit.compute],
        "level": interval_level(fit),
        "views": [_view_data(fit, view, with_charts) for view in frontier_views(fit)],
    }
    if with_charts:
        content["cells"] = list(plotly_charts.cell_traces(fit, runs))
        content["layouts"] = plotly_charts.layouts(fit, runs)
    return content


def _view_data(fit: FitResult, view: FrontierFit, with_charts: bool) -> dict[str, Any]:
    """A frontier and the answers at each budget; of a sweep with one B_p, nothing is fixed."""
    fixed_B_p = view.B_p if len(fit.by_B_p) > 1 else None
    content = {
        "name": "the best of all" if view.B_p is None else str(view.B_p),
        "B_p": view.B_p,
        "B_ps": B_p_of_view(fit, view),
        "rows": [answer_budget(fit, C, fixed_B_p).to_json() for C in budget_grid(fit)],
    }
    if with_charts:
        content["frontier"] = plotly_charts.frontier_traces(fit, view)
        content["law"] = plotly_charts.law_traces(view)
    return content


def budget_grid(fit: FitResult, count: int = 150) -> list[float]:
    """About `count` budgets of three digits, evenly in log C, from the smallest measured C to 4
    times the largest."""
    C_low = min(curve.C_low for curve in fit.curves)
    C_high = 4 * max(run.C_max for run in fit.runs)
    three_digits = [float(f"{C:.3g}") for C in np.geomspace(C_low, C_high, count)]
    inside = [C for C in three_digits if C_low < C < C_high]

    budgets = [C_low, *inside, measured_budget(fit), C_high]
    if fit.compute != "device_hours":  # what is counted is whole
        budgets = [float(round(C)) for C in budgets]
    return sorted(set(budgets))


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
