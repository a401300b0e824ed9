"""One training problem (paper's Appendix H): suboptimality against updates, and against what they cost (`isojax bandit --out`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from isojax.report.canvas import DPI, INK, LAW, SOFT, Drawing, frame, palette, rendered

Z90 = 1.645


def rates(found: Mapping[str, Any]) -> Drawing:
    """Draw what `isojax bandit --json` prints: {"curves": [...], "exact": {...}, "limit": t * suboptimality of equal wrong arms, ...}."""
    fig = Figure(figsize=(12.5, 5.2), dpi=DPI, layout="constrained")
    left = fig.add_subplot(1, 2, 1)
    right = fig.add_subplot(1, 2, 2, sharey=left)
    frame(left, "the rate: what an update buys", "updates t", "suboptimality")
    frame(right, "the budget: what a rollout buys", "C = n t (rollouts)", "")
    left.set_yscale("log")
    colours = palette([row["n"] for row in found["curves"]])
    for row in found["curves"]:
        for ax, x in ((left, row["t"]), (right, row["C"])):
            _line(ax, x, row, colours[row["n"]])
    exact = found["exact"]
    left.plot(exact["t"], exact["suboptimality"], color=INK, lw=1.6, ls=(0, (1.2, 1.6)), zorder=5)
    ends = np.array([exact["t"][-1] / 100, exact["t"][-1]])
    left.plot(ends, 0.6 * found["limit"] / ends, color=LAW, lw=1.6, ls=(0, (5, 2)), zorder=5)
    right.tick_params(labelleft=False)
    marks: list[Line2D | Patch] = [Line2D([], [], color=colours[row["n"]], lw=2, label=f"n = {row['n']}") for row in found["curves"]]
    marks.append(Line2D([], [], color=INK, lw=1.6, ls=(0, (1.2, 1.6)), label="exact gradient"))
    marks.append(Line2D([], [], color=LAW, lw=1.6, ls=(0, (5, 2)), label="slope -1"))
    marks.append(Patch(color=SOFT, alpha=0.3, lw=0, label="90% of the mean"))
    fig.legend(handles=marks, loc="outside lower center", ncols=min(len(marks), 10), frameon=False, fontsize=9, handlelength=2.2)
    return rendered(fig)


def _line(ax: Axes, x: list[int], row: Mapping[str, Any], colour: str) -> None:
    """The mean over repetitions and its interval, taken on the log scale so that it stays positive."""
    mean, error = np.array(row["suboptimality"]), np.array(row["error"])
    factor = np.exp(Z90 * error / mean)
    ax.fill_between(x, mean / factor, mean * factor, color=colour, alpha=0.2, lw=0, zorder=2)
    ax.plot(x, mean, color=colour, lw=2, zorder=4)
