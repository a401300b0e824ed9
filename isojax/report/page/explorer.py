"""The interactive part of the page: choose metric, fit, B_p and budget; see the answer and where it lies in the charts.

Python makes every number: an answer for each of about 150 budgets and every view (`advice`), the charts' traces
(`charts`). page.js looks them up. The one thing it calculates is M = floor(C / (B_p n)) for the exact budget typed.
Without scripts the section stays hidden.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from matplotlib import colormaps
from matplotlib.colors import to_hex

from isojax.core.nouns import RunRecord
from isojax.report.canvas import log2_positions, n_palette
from isojax.report.fit_views import FitDocument, FrontierView, frontier_views, interval_level
from isojax.report.page import charts
from isojax.report.page.advice import Advice, advise, budget_grid, with_draw_arrays
from isojax.report.page.markup import Html
from isojax.report.text import compute_unit, format_compact, format_percent, format_reward

MODES = {"paper": "as in the paper", "hierarchical": "hierarchical"}


def page_data(fits: Sequence[FitDocument], runs: Sequence[RunRecord], with_charts: bool) -> dict[str, Any]:
    """What page.js reads; with the charts' traces where they can be drawn."""
    ns = sorted({run["n"] for fit in fits for run in fit["runs"]})
    dark_colours = {n: to_hex(colormaps["viridis"](0.42 + 0.56 * share)) for n, share in log2_positions(ns).items()}
    return {
        "fits": [_fit_data(fit, runs, with_charts) for fit in fits],
        "colours": {"light": n_palette(ns), "dark": dark_colours},
    }


def _fit_data(fit: FitDocument, runs: Sequence[RunRecord], with_charts: bool) -> dict[str, Any]:
    fit_with_arrays, confidence_level = with_draw_arrays(fit), interval_level(fit)
    names = {
        "metric": fit["metric"],
        "mode": MODES.get(fit["mode"], fit["mode"]),
        "unit": compute_unit(fit),
        "level": format_percent(confidence_level) if confidence_level else "",
    }
    content = {**names, "views": [_view_data(fit_with_arrays, view, with_charts) for view in frontier_views(fit)]}
    return content | (
        {"cells": charts.cell_traces(fit, runs), "layouts": charts.layouts(fit, runs)} if with_charts else {}
    )


def _view_data(fit: FitDocument, view: FrontierView, with_charts: bool) -> dict[str, Any]:
    name = "the best of all" if view.B_p is None else str(view.B_p)
    fixed_B_p = view.B_p if len(fit["by_B_p"]) > 1 else None
    content = {
        "name": name,
        "B_p": view.B_p,
        "B_ps": view.B_ps,
        "rows": [_answer_row(advise(fit, C, fixed_B_p), fit) for C in budget_grid(fit)],
    }
    return content | (
        {"frontier": charts.frontier_traces(fit, view), "law": charts.law_traces(fit, view)} if with_charts else {}
    )


def _answer_row(advice: Advice, fit: FitDocument) -> dict[str, Any]:
    """One budget's answer, worded."""
    if advice.n is None:
        return {"C": advice.C, "text": format_compact(advice.C), "why": advice.no_answer_reason}
    n_probability_rows = [
        [n, format_percent(round(share, 2)), round(share, 3)]
        for n, share in sorted(advice.n_probability.items())
        if share >= 0.005
    ]
    has_interval = advice.low is not None and advice.high is not None
    regret = format_reward(advice.regret) if advice.regret is not None and advice.regret >= 0.0005 else ""
    return {
        "C": advice.C, "text": format_compact(advice.C), "n": advice.n, "B_p": advice.B_p, "M": advice.M, "y": advice.reward, "low": advice.low, "high": advice.high,
        "reward": format_reward(advice.reward), "interval": f"{format_reward(advice.low)} to {format_reward(advice.high)}" if has_interval else "",
        "run": f"{format_reward(advice.new_run_low)} to {format_reward(advice.new_run_high)}" if advice.new_run_low is not None else "", "chances": n_probability_rows,
        "sure": format_percent(round(advice.n_probability.get(advice.n, 0.0), 2)) if advice.n_probability else "", "beyond": advice.extrapolated,
        "equal": ", ".join(str(n) for n in advice.equal_n if n != advice.n), "regret": regret, "M_known": advice.M is not None,
    }  # fmt: skip


def json_for_script(content: dict[str, Any]) -> str:
    """JSON that can stand inside a script element: no `<`, `>` or `&`, ASCII only (so no U+2028 either)."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def load_script() -> str:
    """page.js."""
    return files("isojax.report.page").joinpath("page.js").read_text(encoding="utf-8").replace("\r\n", "\n")


def budget_section(with_charts: bool) -> Html:
    """The controls and the places that page.js fills."""
    chart_html = (
        '<div class="charts"><div id="chart-reward" class="chart" role="img" aria-label="Reward against compute"></div>'
        '<div id="chart-law" class="chart" role="img" aria-label="Compute-optimal n against compute"></div></div>'
    )
    missing_html = (
        '<p class="soft">For charts that answer the pointer install the extra <code>isojax[report]</code> (plotly) and run '
        "<code>isojax report</code> again; the figures below are the same, fixed.</p>"
    )
    return Html(f"""<section id="budget" class="explore" aria-labelledby="budget-title" hidden>
<h2 id="budget-title">Choose a budget</h2>
<div class="controls">
<label>Metric <select id="metric"></select></label>
<label>Fit <select id="mode"></select></label>
<label>B_p <select id="B_p"></select></label>
</div>
<div class="controls">
<label class="wide"><span>Budget C (<span class="unit"></span>)</span>
<input id="slider" type="range" min="0" step="1"></label>
<label>exactly <input id="exact" type="number" min="0" step="any" inputmode="decimal" aria-describedby="hint"></label>
</div>
<p id="hint" class="soft"></p>
<dl id="answer" class="tiles">
<div><dt>n*: rollouts a problem</dt><dd id="out-n"></dd></div>
<div><dt>B_p: problems a batch</dt><dd id="out-B_p"></dd></div>
<div><dt>M: updates</dt><dd id="out-M"></dd></div>
<div><dt>expected <span id="out-metric"></span></dt><dd id="out-reward"></dd></div>
</dl>
<p id="out-status"></p>
<div id="out-chances" class="chances"></div>
<p id="spoken" class="unseen" role="status" aria-live="polite"></p>
{chart_html if with_charts else missing_html}
</section>
<noscript><p class="soft">Scripts are off: the figures and tables below hold the same answers for five budgets.</p></noscript>""")
