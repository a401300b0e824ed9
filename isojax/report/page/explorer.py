"""What to run at a budget, and the interactive part of the page that shows it. An answer is what `isojax recommend`
answers, or, for other units of C, what leads the frontier. Python makes every number, an answer for each of about 150
budgets and every view; page.js looks them up, and calculates only M = floor(C / (B_p n)) for the budget typed."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex

from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.report.canvas import log2_positions, n_palette
from isojax.report.fit_views import B_p_of_view, all_n, frontier_views, interval_level, measured_budget
from isojax.report.page import charts
from isojax.report.wording import UNITS, Bounds, format_percent, format_range, format_reward, join_list, n_shares
from isojax.scaling.allocate.recommend import recommend
from isojax.scaling.result import FitResult, FrontierFit

EDGE = 1 + 1e-9  # budgets this close to the end of the frontier belong to it
MIN_SHOWN_REGRET = 0.0005


def answer_row(fit: FitResult, C: float, B_p: int | None = None) -> dict[str, Any]:
    """What to run with a budget of C > 0, in the fit's unit, with B_p held fixed or free: numbers and, in `words`, what
    to know of them. {"C", "why"} where there is no answer; M, the number of updates, only where C counts rollouts."""
    if fit.compute != "rollouts":
        return _frontier_answer(fit, C, B_p)
    try:
        best = recommend(fit, C, fix=None if B_p is None else {"B_p": B_p}, with_details=False)
    except InputError as e:
        return {"C": C, "why": str(e)}
    n, interval = best.allocation.n, best.interval or (None, None)
    row = _worded_row(C, n, best.allocation.B_p, best.expected_reward, interval, best.n_probability)
    equal_n = [other for other in best.equal_n if other != n]
    sentences = [f"One new run will measure {format_range(best.prediction_interval)}."] * bool(best.prediction_interval)
    sentences.append(row["words"])
    if best.regret is not None and best.regret >= MIN_SHOWN_REGRET:
        loss = format_reward(best.regret)
        sentences.append(f"The expected loss against the best measured cell is {loss} of reward.")
    if equal_n:
        sentences.append(f"As good within the tolerance: n = {join_list(equal_n)}.")
    words = " ".join(filter(None, sentences))
    return row | {"M": best.allocation.M, "extrapolated": best.extrapolated, "words": words}


def _frontier_answer(fit: FitResult, C: float, B_p: int | None) -> dict[str, Any]:
    frontier = next((view.frontier for view in frontier_views(fit) if view.B_p == B_p), fit.joint.frontier)
    if not frontier[0].C / EDGE <= C <= frontier[-1].C * EDGE:
        return {"C": C, "why": "C is outside the measured frontier; fit in rollouts to look beyond it."}
    point = min(frontier, key=lambda point: abs(np.log(point.C / C)))
    return _worded_row(C, point.n, point.B_p, point.reward, (point.low, point.high), point.n_probability)


def _worded_row(
    C: float, n: int, B_p: int, reward: float, interval: Bounds, n_probability: Mapping[int, float] | None
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
        "probabilities": n_shares(shares),
        "extrapolated": False,
        "words": f"P(n = {n} is the best) = {format_percent(round(shares.get(n, 0.0), 2))}." if shares else "",
    }


def budget_grid(fit: FitResult, count: int = 150) -> list[float]:
    """About `count` budgets of three digits, evenly in log C, from the smallest measured C to 4 times the largest."""
    C_low = min(curve.C_low for curve in fit.curves)
    C_high = 4 * max(run.C_max for run in fit.runs)
    rounded = [float(f"{C:.3g}") for C in np.geomspace(C_low, C_high, count)]
    budgets = [C_low, *(C for C in rounded if C_low < C < C_high), measured_budget(fit), C_high]
    return sorted({C if fit.compute == "device_hours" else float(round(C)) for C in budgets})


def page_data(fits: Sequence[FitResult], runs: Sequence[RunRecord], with_charts: bool) -> dict[str, Any]:
    """What page.js reads; with the charts' traces where they can be drawn."""
    ns = sorted({n for fit in fits for n in all_n(fit)})
    dark_colours = {n: to_hex(colormaps["viridis"](0.42 + 0.56 * share)) for n, share in log2_positions(ns).items()}
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
        content |= {"cells": [*charts.cell_traces(fit, runs)], "layouts": charts.layouts(fit, runs)}
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
        content |= {"frontier": charts.frontier_traces(fit, view), "law": charts.law_traces(view)}
    return content


def json_for_script(content: dict[str, Any]) -> str:
    """JSON that can stand inside a script element: no `<`, `>` or `&`, ASCII only (so no U+2028 either)."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
