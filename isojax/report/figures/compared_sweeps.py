"""Several sweeps in one figure (paper's Fig. 13): n*(C) and the frontier of each, with their intervals (`isojax compare
--out`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from isojax.report.canvas import (
    DASHES,
    DPI,
    INK,
    RenderedFigure,
    escape_label,
    label_log2_n,
    legend_below,
    render_figure,
    style_axes,
)
from isojax.report.wording import UNITS, format_compact
from isojax.scaling.comparison import SweepComparison, SweepSummary
from isojax.scaling.validation_metrics import FloatArray

# Distinct without colour vision, and by their dashes in grey (Okabe and Ito's colours).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
N_STAR_OFFSET = 0.05  # lines of n* that coincide are drawn this far apart, in log2 n


def comparison_figure(comparison: SweepComparison) -> RenderedFigure:
    """Draw a comparison (scaling/compare.py)."""
    fig = Figure(figsize=(12.5, 5.0), dpi=DPI, layout="constrained")
    n_star_ax, frontier_ax = (fig.add_subplot(1, 2, i + 1) for i in range(2))
    C_label = f"C ({UNITS[comparison.compute]})"
    style_axes(n_star_ax, "the best n", C_label, "compute-optimal n")
    style_axes(frontier_ax, "the frontier", C_label, f"reward ({escape_label(comparison.metric)})")
    sweeps = comparison.sweeps
    for i, sweep in enumerate(sweeps):
        _draw_n_star(n_star_ax, sweep, _line_style(i), (i - (len(sweeps) - 1) / 2) * N_STAR_OFFSET)
        _draw_frontier(frontier_ax, sweep, _line_style(i))
    ns = sorted({n for sweep in sweeps for n in sweep.n})
    label_log2_n(n_star_ax.yaxis, ns)
    n_star_ax.set_ylim(log2(ns[0]) - 0.4, log2(ns[-1]) + 0.4)
    _legend(fig, sweeps)
    return render_figure(fig)


def _line_style(i: int) -> dict[str, Any]:
    """The i-th sweep's line: colour and dashes, twelve different pairs."""
    return {"color": COLOURS[i % len(COLOURS)], "ls": DASHES[i % len(DASHES)], "lw": 2.2}


def _draw_n_star(ax: Axes, sweep: SweepSummary, style: dict[str, Any], shift: float) -> None:
    """Steps over their interval, and where they level off; nothing where n makes no difference (the legend says it)."""
    if sweep.no_effect:
        return
    points = sweep.curve
    C = [p.C for p in points]
    if points[0].n_low is not None:
        low, high = (np.log2(n) + shift for n in _bounds([(p.n_low, p.n_high) for p in points]))
        ax.fill_between(C, low, high, step="mid", color=style["color"], alpha=0.16, lw=0, zorder=2)
    ax.plot(C, [log2(p.n) + shift for p in points], drawstyle="steps-mid", zorder=4, **style)
    saturation = sweep.saturation
    if saturation is not None and saturation.C is not None:
        ax.plot(
            [saturation.C],
            [log2(saturation.n) + shift],
            marker="D",
            ms=7,
            mfc="white",
            mec=style["color"],
            mew=1.6,
            zorder=6,
        )


def _draw_frontier(ax: Axes, sweep: SweepSummary, style: dict[str, Any]) -> None:
    """The frontier's reward over its interval."""
    points = sweep.curve
    C = [p.C for p in points]
    if points[0].low is not None:
        low, high = _bounds([(p.low, p.high) for p in points])
        ax.fill_between(C, low, high, color=style["color"], alpha=0.18, lw=0, zorder=2)
    ax.plot(C, [p.reward for p in points], zorder=4, **style)


def _bounds(intervals: Sequence[tuple[float | None, float | None]]) -> tuple[FloatArray, FloatArray]:
    """The lower and upper ends of intervals, float[points] each; NaN where there is none."""
    low, high = np.array(intervals, dtype=np.float64).T
    return low, high


def _legend(fig: Figure, sweeps: Sequence[SweepSummary]) -> None:
    legend_handles: list[Line2D | Patch] = []
    for i, sweep in enumerate(sweeps):
        no_effect_text = " (n makes no difference)" if sweep.no_effect else ""
        overfitting_text = ", ".join(f"n = {o.n} from {format_compact(o.C)}" for o in sweep.overfitting)
        legend_text = (
            escape_label(sweep.label)
            + no_effect_text
            + (f" (overfits: {overfitting_text})" if overfitting_text else "")
        )
        legend_handles.append(Line2D([], [], label=legend_text, **_line_style(i)))
    if any(sweep.curve[0].low is not None for sweep in sweeps):
        legend_handles.append(Patch(color=INK, alpha=0.16, lw=0, label="90% intervals"))
    if any(sweep.saturation and sweep.saturation.C is not None for sweep in sweeps):
        legend_handles.append(
            Line2D([], [], marker="D", ls="", color=INK, mfc="white", mew=1.6, ms=7, label="n* levels off")
        )
    legend_below(fig, min(len(legend_handles), 4), legend_handles, handlelength=2.4)
