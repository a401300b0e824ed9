"""n*(C) (paper's Figs. 7 and 21).

Departs from the paper: the interval of the best measured n is shown, the law is dashed beyond the measured budgets and
left out where the frontier has two values of n only; P(n best), the share of replicates in which each n is the best
one, is drawn below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from isojax.core.nouns import RunRecord
from isojax.report.canvas import (
    DPI,
    GRID_COLOUR,
    INK,
    LAW_COLOUR,
    MUTED,
    escape_label,
    fill_band,
    label_log2_n,
    legend_below,
    n_palette,
    style_axes,
)
from isojax.report.figures.reward_frontier import JOINT_TITLE
from isojax.report.fit_views import all_n, frontier_views, interval_level, thin
from isojax.report.wording import LAW_PARAMETERS, compute_unit, format_percent, law_is_drawn
from isojax.scaling.law.n_star_law import log2_n_star
from isojax.scaling.result import FitResult, FrontierFit, FrontierRow

LAW_REACH = 4.0  # the law is drawn to this many times the measured budget
PARAMETER_LABELS = {"L": "$L$", "k": "$k$", "log10_C0": "$\\log_{10} C_0$", "b": "$b$"}


def n_star_figure(fits: Sequence[FitResult], runs: Sequence[RunRecord]) -> Figure:
    """The frontier's n against C, coloured by reward, with the fitted law, and P(n best) below: joint and for each
    B_p.
    """
    del runs
    fit, views = fits[0], frontier_views(fits[0])
    ns = all_n(fit)
    has_probabilities = any(_points_with_probabilities(view) for view in views)
    columns = min(3, len(views)) if len(views) != 4 else 2
    rows = -(-len(views) // columns)
    size = ({1: 10.0, 2: 12.0}.get(columns, 14.4), rows * (5.6 if has_probabilities else 4.0) + 0.5)
    fig = Figure(figsize=size, dpi=DPI, layout="constrained")
    heights = [3.0, 1.3] * rows if has_probabilities else [1.0] * rows
    grid = fig.add_gridspec(len(heights), columns, height_ratios=heights)
    rewards = [point.reward for view in views for point in view.frontier]
    norm = Normalize(min(rewards), max(rewards))
    law_axes: list[Axes] = []
    for i, view in enumerate(views):
        row, column = divmod(i, columns)
        law_row = row * 2 if has_probabilities else row
        ax = fig.add_subplot(grid[law_row, column], sharey=law_axes[0] if law_axes else None)
        law_axes.append(ax)
        title = JOINT_TITLE if view.B_p is None else f"$B_p$ = {view.B_p}"
        x_label = "" if has_probabilities else f"C ({compute_unit(fit)})"
        style_axes(ax, title, x_label, "compute-optimal n" if column == 0 else "")
        ax.tick_params(labelleft=column == 0)
        _draw_n_star(ax, view, norm)
        if has_probabilities:
            probability_ax = fig.add_subplot(grid[law_row + 1, column], sharex=ax)
            _draw_n_probability(probability_ax, fit, view, n_palette(ns), is_first_column=column == 0)
            ax.tick_params(which="both", labelbottom=False)
    _n_axis(law_axes[0], ns)
    colour_bar = fig.colorbar(ScalarMappable(norm, "cividis"), ax=law_axes, pad=0.015, aspect=30)
    colour_bar.set_label(f"reward on the frontier ({escape_label(fit.metric)})", color=INK, fontsize=9)
    colour_bar.ax.tick_params(labelsize=8.5, labelcolor=MUTED, length=0)
    _legend(fig, fit, ns, has_probabilities)
    return fig


def _n_axis(ax: Axes, ns: Sequence[int]) -> None:
    """log2 n, labelled with the measured n."""
    low, high = log2(ns[0]), log2(ns[-1])
    ax.set_ylim(low - 0.4, high + 0.3 * max(high - low, 1))
    label_log2_n(ax.yaxis, ns)


def _draw_n_star(ax: Axes, view: FrontierFit, norm: Normalize) -> None:
    """Frontier points over the interval of the best n, the fitted law and its parameters."""
    points, n_star = thin(view.frontier), view.n_star
    first, last = points[0].C, points[-1].C
    C_end = last * LAW_REACH
    rows = [row for row in n_star.band or () if row.low > 0 and first <= row.C <= C_end]
    band = [(row.C, log2(row.low), log2(row.high)) for row in rows]
    fill_band(ax, band, color=LAW_COLOUR, alpha=0.14, zorder=2)
    C, log2_n, rewards = (list(column) for column in zip(*((p.C, log2(p.n), p.reward) for p in points), strict=True))
    dots = {"s": 36, "edgecolors": MUTED, "linewidths": 0.4, "zorder": 4}
    ax.scatter(C, log2_n, c=rewards, cmap="cividis", norm=norm, **dots)
    if law_is_drawn(view):
        for grid, dashes in ((np.geomspace(first, last, 300), "-"), (np.geomspace(last, C_end, 100), (0, (3, 2)))):
            ax.plot(grid, log2_n_star(n_star.law, grid), color=LAW_COLOUR, lw=2.2, ls=dashes, zorder=3)
    ax.axvspan(last, C_end, color=GRID_COLOUR, alpha=0.6, lw=0, zorder=0)
    beyond = {"rotation": 90, "ha": "center", "va": "bottom", "fontsize": 8, "color": MUTED}
    ax.text((last * C_end) ** 0.5, 0.03, "not measured", transform=ax.get_xaxis_transform(), **beyond)
    ax.set_xlim(first / 1.2, C_end)
    box = {"facecolor": "white", "edgecolor": GRID_COLOUR, "boxstyle": "round,pad=0.4"}
    style = {"va": "top", "fontsize": 8.5, "color": INK, "linespacing": 1.35, "bbox": box, "zorder": 6}
    ax.text(0.03, 0.96, _law_text(view), transform=ax.transAxes, **style)


def _law_text(view: FrontierFit) -> str:
    """The law's parameters, a line for each."""
    law = view.n_star.law
    if view.n_star.no_effect:
        return "$n$ makes no difference here"
    if not law_is_drawn(view):
        return "two values of $n$:\ntoo few for a law"
    if law.form == "constant":
        return f"constant: $n^*$ = {2**law.b:.3g}"
    return "\n".join(f"{PARAMETER_LABELS[name]} = {getattr(law, name):.2f}" for name in LAW_PARAMETERS[law.form])


def _points_with_probabilities(view: FrontierFit) -> list[FrontierRow]:
    """The frontier's points that say how likely each n is the best there."""
    return [point for point in view.frontier if point.n_probability]


def _draw_n_probability(
    ax: Axes, fit: FitResult, view: FrontierFit, colours: Mapping[int, str], is_first_column: bool
) -> None:
    """P(n best) against C: bands of n, stacked from the smallest."""
    points = _points_with_probabilities(view)
    style_axes(ax, "", f"C ({compute_unit(fit)})", "P(n best)" if is_first_column else "")
    if points:
        shares = [[(point.n_probability or {}).get(n, 0.0) for point in points] for n in colours]
        ax.stackplot([point.C for point in points], shares, colors=list(colours.values()), lw=0)
    ax.set_ylim(0, 1)
    ax.set_yticks([0, 0.5, 1])
    ax.tick_params(labelleft=is_first_column)


def _legend(fig: Figure, fit: FitResult, ns: Sequence[int], has_probabilities: bool) -> None:
    level = interval_level(fit)
    handles: list[Line2D | Patch] = [Line2D([], [], color=LAW_COLOUR, lw=2.2, label="fitted law $n^*(C)$")]
    if level is not None:
        label = f"{format_percent(level)} interval of the best measured n"
        handles.append(Patch(color=LAW_COLOUR, alpha=0.14, lw=0, label=label))
    if has_probabilities:
        handles += [Patch(color=colour, label=f"n = {n}") for n, colour in n_palette(ns).items()]
    legend_below(fig, min(len(handles), 10), handles, handlelength=1.8)
