"""Several sweeps in one figure (paper's Fig. 13): n*(C) and the frontier of each, with their intervals (`isojax compare
--out`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2
from typing import Any

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
from isojax.report.text import UNITS, format_compact

# Told apart without colour vision, and by their dashes in grey (Okabe and Ito's colours).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
N_STAR_OFFSET = 0.05  # lines of n* that coincide are drawn this far apart, in log2 n
JsonRow = Mapping[str, Any]


def comparison_figure(comparison: JsonRow) -> RenderedFigure:
    """Draw what `scaling.compare.compare` found."""
    fig = Figure(figsize=(12.5, 5.0), dpi=DPI, layout="constrained")
    n_star_ax, frontier_ax = (fig.add_subplot(1, 2, i + 1) for i in range(2))
    C_label = f"C ({UNITS[comparison['compute']]})"
    style_axes(n_star_ax, "the best n", C_label, "compute-optimal n")
    style_axes(frontier_ax, "the frontier", C_label, f"reward ({escape_label(comparison['metric'])})")
    runs = comparison["runs"]
    for i, row in enumerate(runs):
        _draw_n_star(n_star_ax, row, _line_style(i), (i - (len(runs) - 1) / 2) * N_STAR_OFFSET)
        _draw_frontier(frontier_ax, row, _line_style(i))
    ns = sorted({n for row in runs for n in row["n"]})
    label_log2_n(n_star_ax.yaxis, ns)
    n_star_ax.set_ylim(log2(ns[0]) - 0.4, log2(ns[-1]) + 0.4)
    _legend(fig, runs)
    return render_figure(fig)


def _line_style(i: int) -> dict[str, Any]:
    """The i-th sweep's line: colour and dashes, twelve different pairs."""
    return {"color": COLOURS[i % len(COLOURS)], "ls": DASHES[i % len(DASHES)], "lw": 2.2}


def _draw_n_star(ax: Axes, row: JsonRow, style: dict[str, Any], shift: float) -> None:
    """Steps over their interval, and where they level off; nothing where n makes no difference (the legend says so)."""
    if row["no_effect"]:
        return
    points = row["curve"]
    C = [p["C"] for p in points]
    if points[0]["n_low"] is not None:
        low, high = ([log2(p[key]) + shift for p in points] for key in ("n_low", "n_high"))
        ax.fill_between(C, low, high, step="mid", color=style["color"], alpha=0.16, lw=0, zorder=2)
    ax.plot(C, [log2(p["n"]) + shift for p in points], drawstyle="steps-mid", zorder=4, **style)
    saturation = row["saturation"]
    if saturation is not None and saturation["C"] is not None:
        ax.plot(
            [saturation["C"]],
            [log2(saturation["n"]) + shift],
            marker="D",
            ms=7,
            mfc="white",
            mec=style["color"],
            mew=1.6,
            zorder=6,
        )


def _draw_frontier(ax: Axes, row: JsonRow, style: dict[str, Any]) -> None:
    """The frontier's reward over its interval."""
    points = row["curve"]
    C = [p["C"] for p in points]
    if points[0]["low"] is not None:
        ax.fill_between(
            C, [p["low"] for p in points], [p["high"] for p in points], color=style["color"], alpha=0.18, lw=0, zorder=2
        )
    ax.plot(C, [p["reward"] for p in points], zorder=4, **style)


def _legend(fig: Figure, runs: Sequence[JsonRow]) -> None:
    legend_handles: list[Line2D | Patch] = []
    for i, row in enumerate(runs):
        no_effect_text = " (n makes no difference)" if row["no_effect"] else ""
        overfitting_text = ", ".join(f"n = {o['n']} from {format_compact(o['C'])}" for o in row["overfitting"])
        legend_text = (
            escape_label(row["label"])
            + no_effect_text
            + (f" (overfits: {overfitting_text})" if overfitting_text else "")
        )
        legend_handles.append(Line2D([], [], label=legend_text, **_line_style(i)))
    if any(row["curve"][0]["low"] is not None for row in runs):
        legend_handles.append(Patch(color=INK, alpha=0.16, lw=0, label="90% intervals"))
    if any(row["saturation"] and row["saturation"]["C"] is not None for row in runs):
        legend_handles.append(
            Line2D([], [], marker="D", ls="", color=INK, mfc="white", mew=1.6, ms=7, label="n* levels off")
        )
    legend_below(fig, min(len(legend_handles), 4), legend_handles, handlelength=2.4)
