"""B_p against n at a fixed batch B = B_p n (paper's Figs. 9, 18, 19), where a budget is M = C / B
updates, with n*(M) and B_p*(M) = B / n*(M). Departs from the paper: all B side by side, a law only
where not rejected, intervals; where an update samples several batches, C / B counts batches, of
which M updates are made."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import log2

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from isojax.core.nouns import RunRecord
from isojax.report import canvas
from isojax.report.fit_views import all_n, n_stretches, thin
from isojax.scaling.curves.hill import FittedCurve, curve_reward
from isojax.scaling.law.n_star_law import log2_n_star
from isojax.scaling.result import FitResult, FixedBatchFit

MAX_BATCHES = 4


def fixed_batch_figure(fit: FitResult, runs: Sequence[RunRecord]) -> Figure | None:
    """A column for each B: reward against M with the best of the cells on top, n*(M) and B_p*(M)
    below."""
    cells = Counter(curve.B_p * curve.n for curve in fit.curves)
    by_cells = sorted(
        (b for b in fit.by_B if len(b.frontier) > 1), key=lambda b: (-cells[b.B], -b.B)
    )
    batches = sorted(by_cells[:MAX_BATCHES], key=lambda b: b.B)  # those of the most cells
    if not batches:
        return None
    colours = canvas.n_palette(all_n(fit))
    fig = canvas.new_figure(max(7.0, 4.9 * len(batches)), 7.0)
    grid = fig.add_gridspec(2, len(batches), height_ratios=[1.5, 1.0])
    C_label = "C / B (batches)" if fit.has_dynamic_sampling else "M (updates)"
    reward_axes: list[Axes] = []
    for i, batch in enumerate(batches):
        is_first, is_last = i == 0, i == len(batches) - 1
        ax = fig.add_subplot(grid[0, i], sharey=reward_axes[0] if reward_axes else None)
        reward_axes.append(ax)
        _draw_rewards(ax, fit.curves, batch, colours)
        reward_label = f"validation reward ({canvas.escape_label(fit.metric)})" if is_first else ""
        canvas.style_axes(ax, f"B = {batch.B}", "", reward_label)
        n_star_ax = fig.add_subplot(grid[1, i], sharex=ax)
        canvas.style_axes(n_star_ax, "", C_label, "compute-optimal n" if is_first else "")
        _draw_n_star_of_M(n_star_ax, batch, colours)
        ns = sorted(curve.n for curve in fit.curves if curve.B_p * curve.n == batch.B)
        _label_n_and_B_p(n_star_ax, batch.B, ns, "$B_p^* = B / n^*$" if is_last else "")
        ax.tick_params(labelleft=is_first)
        ax.tick_params(which="both", labelbottom=False)
    shown_B = {batch.B for batch in batches}
    shown_n = {curve.n for curve in fit.curves if curve.B_p * curve.n in shown_B}
    handles = canvas.n_handles({n: colour for n, colour in colours.items() if n in shown_n})
    handles.append(Line2D([], [], color=canvas.LAW_COLOUR, lw=2, label="fitted law $n^*(M)$"))
    canvas.legend_below(fig, min(len(handles), 3 + 2 * len(batches)), handles, handlelength=1.8)
    return fig


def _draw_rewards(
    ax: Axes, curves: Sequence[FittedCurve], batch: FixedBatchFit, colours: Mapping[int, str]
) -> None:
    """The curves of all cells of one B against M, the best of them thick over its interval."""
    B, points = batch.B, batch.frontier
    for curve in curves:
        if curve.B_p * curve.n == B:
            C = np.geomspace(curve.C_low, curve.C_high, 160)
            ax.plot(C / B, curve_reward(curve, C), color=colours[curve.n], lw=1.4, zorder=3)
    with_interval = [
        (p.C / B, p.low, p.high) for p in points if p.low is not None and p.high is not None
    ]
    canvas.fill_band(ax, with_interval, color=canvas.INK, alpha=0.22, zorder=2)
    label_style = {
        "fontsize": 8.5,
        "fontweight": "bold",
        "color": canvas.INK,
        "path_effects": canvas.HALO,
        "zorder": 7,
    }
    for n, first, last in n_stretches([p.n for p in points]):
        M = [p.C / B for p in points[first : last + 1]]
        y = [p.reward for p in points[first : last + 1]]
        ax.plot(M, y, color=canvas.INK, lw=5.2, zorder=4, solid_capstyle="round")
        ax.plot(M, y, color=colours[n], lw=3.4, zorder=5, solid_capstyle="round")
        middle = points[(first + last) // 2]
        if last - first > 0.08 * len(points):
            offset = {"xytext": (-6, 6), "textcoords": "offset points", "ha": "right"}
            ax.annotate(f"n = {n}", (middle.C / B, middle.reward), **offset, **label_style)


def _draw_n_star_of_M(ax: Axes, batch: FixedBatchFit, colours: Mapping[int, str]) -> None:
    """The best n against M, the intervals of its changes, and the law unless a monotone one is
    rejected."""
    B, points, n_star = batch.B, thin(batch.frontier), batch.n_star
    M, log2_n = [p.C / B for p in points], [log2(p.n) for p in points]
    ax.scatter(M, log2_n, c=[colours[p.n] for p in points], s=34, ec=canvas.MUTED, lw=0.4, zorder=4)
    for crossover in batch.crossovers:
        if crossover.low is not None and crossover.high is not None:
            height = (log2(crossover.n_low) + log2(crossover.n_high)) / 2
            ends = [crossover.low / B, crossover.high / B]
            ax.plot(ends, [height, height], color=canvas.INK, lw=1.2, marker="|", ms=6, zorder=3)
    if n_star.monotone_rejected:
        ax.set_title(
            "a law that only rises is rejected here",
            loc="right",
            fontsize=8.5,
            color=canvas.LAW_COLOUR,
        )
    else:
        grid = np.geomspace(M[0], M[-1], 200)
        ax.plot(grid, log2_n_star(n_star.law, grid), color=canvas.LAW_COLOUR, lw=2, zorder=3)


def _label_n_and_B_p(ax: Axes, B: int, ns: Sequence[int], B_p_label: str) -> None:
    """n* on the left axis, B_p* = B / n* on the right one."""
    ax.set_ylim(log2(ns[0]) - 0.6, log2(ns[-1]) + 0.6)
    canvas.label_log2_n(ax.yaxis, ns)
    twin = ax.secondary_yaxis("right")
    twin.yaxis.set_major_locator(FixedLocator([log2(n) for n in ns]))
    twin.yaxis.set_minor_locator(NullLocator())
    twin.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{B / 2**y:g}"))
    twin.set_ylabel(B_p_label, fontsize=9, color=canvas.MUTED)
    twin.tick_params(labelsize=9, color=canvas.MUTED, labelcolor=canvas.MUTED)
    twin.spines["right"].set_visible(False)
