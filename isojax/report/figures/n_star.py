"""n*(C) (paper's Figs. 7 and 21) and the evidence for each segment of the frontier.

Departs from the paper: the law carries its interval and is dashed beyond the measured budgets; below it stands how
often each n was the best one in the bootstrap, P(n best); and each segment's lead over its rival is shown with its
error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter

from isojax.core.nouns import RunRecord
from isojax.report.canvas import DPI, GRID_COLOUR, INK, LAW_COLOUR, MUTED, escape_label, n_palette, style_axes
from isojax.report.figures.reward_frontier import JOINT_TITLE
from isojax.report.fit_views import FitDocument, FrontierView, evaluate_law, frontier_views, interval_level, thin
from isojax.report.text import compute_unit, format_percent

LAW_REACH = 4.0  # the law is drawn to this many times the measured budget


def n_star_figure(fits: Sequence[FitDocument], runs: Sequence[RunRecord]) -> Figure:
    """The frontier's n against C, coloured by reward, with the fitted law, and P(n best) below: joint and for each
    B_p.
    """
    del runs
    fit, drawn_views = fits[0], frontier_views(fits[0])
    ns = sorted({run["n"] for run in fit["runs"]})
    has_probabilities = any(_points_with_probabilities(view.summary) for view in drawn_views)
    columns = min(3, len(drawn_views)) if len(drawn_views) != 4 else 2
    rows = -(-len(drawn_views) // columns)
    size = ({1: 10.0, 2: 12.0}.get(columns, 14.4), rows * (5.6 if has_probabilities else 4.0) + 0.5)
    fig = Figure(figsize=size, dpi=DPI, layout="constrained")
    grid = (
        fig.add_gridspec(rows * 2, columns, height_ratios=[3.0, 1.3] * rows)
        if has_probabilities
        else fig.add_gridspec(rows, columns)
    )
    rewards = [p["reward"] for view in drawn_views for p in view.summary["frontier"]]
    norm = Normalize(min(rewards), max(rewards))
    law_axes: list[Axes] = []
    for i, view in enumerate(drawn_views):
        row, column = divmod(i, columns)
        ax = fig.add_subplot(
            grid[row * 2 if has_probabilities else row, column], sharey=law_axes[0] if law_axes else None
        )
        law_axes.append(ax)
        title = JOINT_TITLE if view.B_p is None else f"$B_p$ = {view.B_p}"
        style_axes(
            ax,
            title,
            "" if has_probabilities else f"C ({compute_unit(fit)})",
            "compute-optimal n" if column == 0 else "",
        )
        ax.tick_params(labelleft=column == 0)
        _draw_law(ax, view, norm)
        if has_probabilities:
            _draw_n_probability(
                fig.add_subplot(grid[row * 2 + 1, column], sharex=ax),
                fit,
                view,
                n_palette(ns),
                is_first_column=column == 0,
            )
            ax.tick_params(which="both", labelbottom=False)
    _n_axis(law_axes[0], ns)
    colour_bar = fig.colorbar(ScalarMappable(norm, "cividis"), ax=law_axes, pad=0.015, aspect=30)
    colour_bar.set_label(f"reward on the frontier ({escape_label(fit['metric'])})", color=INK, fontsize=9)
    colour_bar.ax.tick_params(labelsize=8.5, labelcolor=MUTED, length=0)
    _legend(fig, fit, ns, has_probabilities)
    return fig


def _n_axis(ax: Axes, ns: Sequence[int]) -> None:
    """log2 n, labelled with the measured n."""
    low, high = log2(ns[0]), log2(ns[-1])
    ax.set_ylim(low - 0.4, high + 0.3 * max(high - low, 1))
    ax.yaxis.set_major_locator(FixedLocator([log2(n) for n in ns]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{2**y:g}"))


def _draw_law(ax: Axes, view: FrontierView, norm: Normalize) -> None:
    """Frontier points, the fitted law with its interval (dashed where nothing was measured) and its parameters."""
    points, n_star = thin(view.summary["frontier"]), view.summary["n_star"]
    first, last = points[0]["C"], points[-1]["C"]
    C_end = last * LAW_REACH
    band = [p for p in n_star.get("band") or () if p["low"] > 0 and first <= p["C"] <= C_end]
    if band:
        low, high = (np.log2([p[name] for p in band]) for name in ("low", "high"))
        ax.fill_between([p["C"] for p in band], low, high, color=LAW_COLOUR, alpha=0.14, lw=0, zorder=2)
    ax.scatter(
        [p["C"] for p in points], [log2(p["n"]) for p in points], c=[p["reward"] for p in points], cmap="cividis", norm=norm,
        s=36, edgecolors=MUTED, linewidths=0.4, zorder=4,
    )  # fmt: skip
    for grid, style in ((np.geomspace(first, last, 300), "-"), (np.geomspace(last, C_end, 100), (0, (3, 2)))):
        ax.plot(grid, evaluate_law(n_star, np.log10(grid)), color=LAW_COLOUR, lw=2.2, ls=style, zorder=3)
    ax.axvspan(last, C_end, color=GRID_COLOUR, alpha=0.6, lw=0, zorder=0)
    ax.text(
        (last * C_end) ** 0.5, 0.03, "not measured", transform=ax.get_xaxis_transform(), rotation=90, ha="center", va="bottom",
        fontsize=8, color=MUTED,
    )  # fmt: skip
    ax.set_xlim(first / 1.2, C_end)
    ax.text(
        0.03, 0.96, _law_text(n_star), transform=ax.transAxes, va="top", fontsize=8.5, color=INK, linespacing=1.35,
        bbox={"facecolor": "white", "edgecolor": GRID_COLOUR, "boxstyle": "round,pad=0.4"}, zorder=6,
    )  # fmt: skip


def _law_text(n_star: Mapping[str, Any]) -> str:
    """The law's parameters, a line for each."""
    if n_star.get("no_effect"):
        return "$n$ makes no difference here"
    if n_star["form"] == "constant":
        return f"constant: $n^*$ = {2 ** n_star['b']:.3g}"
    names = {"L": "$L$", "k": "$k$", "log10_C0": "$\\log_{10} C_0$", "b": "$b$"}
    used = [name for name in names if not (n_star["form"] == "linear" and name == "L")]
    return "\n".join(f"{names[name]} = {n_star[name]:.2f}" for name in used)


def _points_with_probabilities(part: FitDocument) -> list[Mapping[str, Any]]:
    """The frontier's points that say how likely each n is the best there."""
    return [p for p in part["frontier"] if p.get("n_probability")]


def _draw_n_probability(
    ax: Axes, fit: FitDocument, view: FrontierView, colours: Mapping[int, str], is_first_column: bool
) -> None:
    """P(n best) against C: bands of n, stacked from the smallest."""
    points = _points_with_probabilities(view.summary)
    style_axes(ax, "", f"C ({compute_unit(fit)})", "P(n best)" if is_first_column else "")
    if points:
        shares = [[p["n_probability"].get(str(n), 0.0) for p in points] for n in colours]
        ax.stackplot([p["C"] for p in points], shares, colors=list(colours.values()), lw=0)
    ax.set_ylim(0, 1)
    ax.set_yticks([0, 0.5, 1])
    ax.tick_params(labelleft=is_first_column)


def _legend(fig: Figure, fit: FitDocument, ns: Sequence[int], has_probabilities: bool) -> None:
    confidence_level = interval_level(fit)
    legend_handles: list[Line2D | Patch] = [Line2D([], [], color=LAW_COLOUR, lw=2.2, label="fitted law $n^*(C)$")]
    legend_handles += (
        []
        if confidence_level is None
        else [Patch(color=LAW_COLOUR, alpha=0.14, lw=0, label=f"{format_percent(confidence_level)} interval of $n^*$")]
    )
    legend_handles += (
        [Patch(color=colour, label=f"n = {n}") for n, colour in n_palette(ns).items()] if has_probabilities else []
    )
    fig.legend(
        handles=legend_handles,
        loc="outside lower center",
        ncols=min(len(legend_handles), 10),
        frameon=False,
        fontsize=9,
        handlelength=1.8,
    )
