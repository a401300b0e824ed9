"""The interactive part of the page: choose metric, fit, B_p and budget; see the answer and where it lies in the charts.

Python makes every number: an answer for each of about 150 budgets and every view (`advice`), the charts' traces (`charts`). page.js looks
them up. The one thing it calculates is M = floor(C / (B_p n)) for the exact budget typed. Without scripts the section stays hidden.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from matplotlib import colormaps
from matplotlib.colors import to_hex

from isojax.report import charts
from isojax.report.advice import Advice, advise, budgets, prepared
from isojax.report.canvas import palette, spread
from isojax.report.markup import Raw
from isojax.report.reading import Fit, View, level, views
from isojax.report.words import compact, percent, reward, unit
from isojax.types import RunRecord

MODES = {"paper": "as in the paper", "debiased": "debiased"}


def data(fits: Sequence[Fit], runs: Sequence[RunRecord], drawn: bool) -> dict[str, Any]:
    """What page.js reads; with the charts' traces where they can be drawn."""
    ns = sorted({run["n"] for fit in fits for run in fit["runs"]})
    dark = {n: to_hex(colormaps["viridis"](0.42 + 0.56 * share)) for n, share in spread(ns).items()}
    return {"fits": [_fit(fit, runs, drawn) for fit in fits], "colours": {"light": palette(ns), "dark": dark}}


def _fit(fit: Fit, runs: Sequence[RunRecord], drawn: bool) -> dict[str, Any]:
    ready, at = prepared(fit), level(fit)
    names = {"metric": fit["metric"], "mode": MODES.get(fit["mode"], fit["mode"]), "unit": unit(fit), "level": percent(at) if at else ""}
    content = {**names, "views": [_view(ready, view, drawn) for view in views(fit)]}
    return content | ({"cells": charts.cells(fit, runs), "layouts": charts.layouts(fit, runs)} if drawn else {})


def _view(fit: Fit, view: View, drawn: bool) -> dict[str, Any]:
    name = "the best of all" if view.B_p is None else str(view.B_p)
    fixed = view.B_p if len(fit["by_B_p"]) > 1 else None
    content = {"name": name, "B_p": view.B_p, "B_ps": view.B_ps, "rows": [_row(advise(fit, C, fixed), fit) for C in budgets(fit)]}
    return content | ({"frontier": charts.frontier(fit, view), "law": charts.law_traces(fit, view)} if drawn else {})


def _row(a: Advice, fit: Fit) -> dict[str, Any]:
    """One budget's answer, worded."""
    if a.n is None:
        return {"C": a.C, "text": compact(a.C), "why": a.why}
    chances = [[n, percent(round(share, 2)), round(share, 3)] for n, share in sorted(a.chances.items()) if share >= 0.005]
    known = a.low is not None and a.high is not None
    regret = reward(a.regret) if a.regret is not None and a.regret >= 0.0005 else ""
    return {
        "C": a.C, "text": compact(a.C), "n": a.n, "B_p": a.B_p, "M": a.M, "y": a.reward, "low": a.low, "high": a.high,
        "reward": reward(a.reward), "interval": f"{reward(a.low)} to {reward(a.high)}" if known else "",
        "run": f"{reward(a.run_low)} to {reward(a.run_high)}" if a.run_low is not None else "", "chances": chances,
        "sure": percent(round(a.chances.get(a.n, 0.0), 2)) if a.chances else "", "beyond": a.beyond,
        "equal": ", ".join(str(n) for n in a.equal_n if n != a.n), "regret": regret, "M_known": a.M is not None,
    }  # fmt: skip


def embedded(content: dict[str, Any]) -> str:
    """JSON that can stand inside a script element: no `<`, `>` or `&`, ASCII only (so no U+2028 either)."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def script() -> str:
    """page.js."""
    return files("isojax.report").joinpath("page.js").read_text(encoding="utf-8").replace("\r\n", "\n")


def section(drawn: bool) -> Raw:
    """The controls and the places that page.js fills."""
    chart = (
        '<div class="charts"><div id="chart-reward" class="chart" role="img" aria-label="Reward against compute"></div>'
        '<div id="chart-law" class="chart" role="img" aria-label="Compute-optimal n against compute"></div></div>'
    )
    missing = (
        '<p class="soft">For charts that answer the pointer install the extra <code>isojax[report]</code> (plotly) and run '
        "<code>isojax report</code> again; the figures below are the same, fixed.</p>"
    )
    return Raw(f"""<section id="budget" class="explore" aria-labelledby="budget-title" hidden>
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
{chart if drawn else missing}
</section>
<noscript><p class="soft">Scripts are off: the figures and tables below hold the same answers for five budgets.</p></noscript>""")
