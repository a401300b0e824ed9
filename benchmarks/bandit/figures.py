"""One training problem (paper's Appendix H): suboptimality against updates, and against what they cost (`isojax bandit
--out`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from isojax.report.canvas import (
    DPI,
    INK,
    LAW_COLOUR,
    MUTED,
    RenderedFigure,
    n_palette,
    render_figure,
    style_axes,
)

Z90 = 1.645


def suboptimality_figure(result: Mapping[str, Any]) -> RenderedFigure:
    """Draw what `isojax bandit --json` prints: {"curves": [...], "exact": {...}, "limit": t * suboptimality of equal
    wrong arms, ...}.
    """
    fig = Figure(figsize=(12.5, 5.2), dpi=DPI, layout="constrained")
    update_axes = fig.add_subplot(1, 2, 1)
    rollout_axes = fig.add_subplot(1, 2, 2, sharey=update_axes)
    style_axes(update_axes, "the rate: what an update buys", "updates t", "suboptimality")
    style_axes(rollout_axes, "the budget: what a rollout buys", "C = n t (rollouts)", "")
    update_axes.set_yscale("log")
    colours = n_palette([row["n"] for row in result["curves"]])
    for row in result["curves"]:
        for ax, x in ((update_axes, row["t"]), (rollout_axes, row["C"])):
            _draw_suboptimality(ax, x, row, colours[row["n"]])
    exact = result["exact"]
    update_axes.plot(exact["t"], exact["suboptimality"], color=INK, lw=1.6, ls=(0, (1.2, 1.6)), zorder=5)
    t_range = np.array([exact["t"][-1] / 100, exact["t"][-1]])
    update_axes.plot(t_range, 0.6 * result["limit"] / t_range, color=LAW_COLOUR, lw=1.6, ls=(0, (5, 2)), zorder=5)
    rollout_axes.tick_params(labelleft=False)
    marks: list[Line2D | Patch] = [
        Line2D([], [], color=colours[row["n"]], lw=2, label=f"n = {row['n']}") for row in result["curves"]
    ]
    marks.append(Line2D([], [], color=INK, lw=1.6, ls=(0, (1.2, 1.6)), label="exact gradient"))
    marks.append(Line2D([], [], color=LAW_COLOUR, lw=1.6, ls=(0, (5, 2)), label="slope -1"))
    marks.append(Patch(color=MUTED, alpha=0.3, lw=0, label="90% of the mean"))
    fig.legend(
        handles=marks,
        loc="outside lower center",
        ncols=min(len(marks), 10),
        frameon=False,
        fontsize=9,
        handlelength=2.2,
    )
    return render_figure(fig)


def _draw_suboptimality(ax: Axes, x: list[int], row: Mapping[str, Any], colour: str) -> None:
    """The mean over repetitions and its interval, taken on the log scale so that it stays positive."""
    mean, error = np.array(row["suboptimality"]), np.array(row["error"])
    factor = np.exp(Z90 * error / mean)
    ax.fill_between(x, mean / factor, mean * factor, color=colour, alpha=0.2, lw=0, zorder=2)
    ax.plot(x, mean, color=colour, lw=2, zorder=4)
