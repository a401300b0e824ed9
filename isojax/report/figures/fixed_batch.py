"""How B_p enters: B_p against n at a fixed batch B = B_p n (paper's Figs. 9, 18, 19), and the sensitivity to each (Fig.
10).

At a fixed B a budget is a number of updates, M = C / B, so the law is one in M: n*(M), and with it B_p*(M) = B / n*(M).
Departs from the
paper: all values of B side by side, a law only where it is not rejected (n*(M) may fall and rise), intervals where the
fit has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from isojax.core.nouns import RunRecord
from isojax.report.canvas import (
    DPI,
    HALO,
    INK,
    LAW_COLOUR,
    MUTED,
    escape_label,
    n_palette,
    style_axes,
)
from isojax.report.fit_views import FitDocument, FittedCurves, cell_key, evaluate_law, n_stretches, thin

MAX_B_VALUES = 4


def fixed_batch_figure(fits: Sequence[FitDocument], runs: Sequence[RunRecord]) -> Figure | None:
    """A column for each B: reward against M with the best of the cells on top, n*(M) and B_p*(M) below."""
    del runs
    fit = fits[0]
    batches = _largest_batches(fit)
    if not batches:
        return None
    colours = n_palette([run["n"] for run in fit["runs"]])
    fig = Figure(figsize=(max(7.0, 4.9 * len(batches)), 7.0), dpi=DPI, layout="constrained")
    grid = fig.add_gridspec(2, len(batches), height_ratios=[1.5, 1.0])
    reward_axes: list[Axes] = []
    for i, row in enumerate(batches):
        reward_ax = fig.add_subplot(grid[0, i], sharey=reward_axes[0] if reward_axes else None)
        reward_axes.append(reward_ax)
        _draw_rewards(reward_ax, fit, row, colours)
        style_axes(
            reward_ax, f"B = {row['B']}", "", f"validation reward ({escape_label(fit['metric'])})" if i == 0 else ""
        )
        reward_ax.tick_params(labelleft=i == 0)
        n_star_ax = fig.add_subplot(grid[1, i], sharex=reward_ax)
        _draw_n_of_M(
            n_star_ax,
            row,
            _measured_n(fit, [row]),
            colours,
            "compute-optimal n" if i == 0 else "",
            "$B_p^* = B / n^*$" if i == len(batches) - 1 else "",
        )
        reward_ax.tick_params(which="both", labelbottom=False)
    legend_handles = [Line2D([], [], color=colours[n], lw=3, label=f"n = {n}") for n in _measured_n(fit, batches)]
    legend_handles += [Line2D([], [], color=LAW_COLOUR, lw=2, label="fitted law $n^*(M)$")]
    fig.legend(
        handles=legend_handles,
        loc="outside lower center",
        ncols=min(len(legend_handles), 3 + 2 * len(batches)),
        frameon=False,
        fontsize=9,
        handlelength=1.8,
    )
    return fig


def _largest_batches(fit: FitDocument) -> list[Mapping[str, Any]]:
    """The B of the most cells, at most MOST_B of them, by rising B."""
    cells = [c["B_p"] * c["n"] for c in fit["curves"]]
    most = sorted(
        (row for row in fit.get("by_B") or () if len(row["frontier"]) > 1),
        key=lambda row: (-cells.count(row["B"]), -row["B"]),
    )
    return sorted(most[:MAX_B_VALUES], key=lambda row: row["B"])


def _measured_n(fit: FitDocument, batches: Sequence[Mapping[str, Any]]) -> list[int]:
    """The n measured at any of these B."""
    return sorted({c["n"] for c in fit["curves"] if c["B_p"] * c["n"] in {batch["B"] for batch in batches}})


def _draw_rewards(ax: Axes, fit: FitDocument, batch: Mapping[str, Any], colours: Mapping[int, str]) -> None:
    """The curves of all cells of one B against M, the best of them thick over its interval."""
    B, points, curves = batch["B"], batch["frontier"], FittedCurves(fit)
    for row in (row for row in fit["curves"] if row["B_p"] * row["n"] == B):
        C = np.geomspace(row["C_low"], row["C_high"], 160)
        ax.plot(C / B, curves.reward_at(cell_key(row), C), color=colours[row["n"]], lw=1.4, zorder=3)
    points_with_interval = [p for p in points if p["low"] is not None]
    if points_with_interval:
        ax.fill_between(
            [p["M"] for p in points_with_interval],
            [p["low"] for p in points_with_interval],
            [p["high"] for p in points_with_interval],
            color=INK,
            alpha=0.22,
            lw=0,
            zorder=2,
        )
    for n, first, last in n_stretches(points):
        M, y = ([p[name] for p in points[first : last + 1]] for name in ("M", "reward"))
        ax.plot(M, y, color=INK, lw=5.2, zorder=4, solid_capstyle="round")
        ax.plot(M, y, color=colours[n], lw=3.4, zorder=5, solid_capstyle="round")
        middle = (first + last) // 2
        if last - first > 0.08 * len(points):
            ax.annotate(
                f"n = {n}", (points[middle]["M"], points[middle]["reward"]), xytext=(-6, 6), textcoords="offset points", ha="right",
                fontsize=8.5, fontweight="bold", color=INK, path_effects=HALO, zorder=7,
            )  # fmt: skip


def _draw_n_of_M(
    ax: Axes, batch: Mapping[str, Any], ns: Sequence[int], colours: Mapping[int, str], n_label: str, B_p_label: str
) -> None:
    """n* (left) and B_p* = B / n* (right) against M; the law unless a monotone one is rejected."""
    B, n_star, points = batch["B"], batch["n_star_M"], thin(batch["frontier"])
    style_axes(ax, "", "M (updates)", n_label)
    ax.scatter(
        [p["M"] for p in points],
        [log2(p["n"]) for p in points],
        c=[colours[p["n"]] for p in points],
        s=34,
        ec=MUTED,
        lw=0.4,
        zorder=4,
    )
    for crossover in batch["crossovers"]:
        ends = [M for M in (crossover["low"], crossover["high"]) if M is not None]
        height = (log2(crossover["n_low"]) + log2(crossover["n_high"])) / 2
        in_M = [C / B for C in ends]
        if len(in_M) == 2:
            ax.plot(in_M, [height, height], color=INK, lw=1.2, marker="|", ms=6, zorder=3)
    if n_star["form"] != "non-monotone":
        M = np.geomspace(batch["frontier"][0]["M"], batch["frontier"][-1]["M"], 200)
        ax.plot(
            M,
            evaluate_law(n_star, np.log10(M) if n_star.get("x", "log10 M") == "log10 M" else M),
            color=LAW_COLOUR,
            lw=2,
            zorder=3,
        )
    if n_star.get("monotone_rejected"):
        ax.set_title("a law that only rises is rejected here", loc="right", fontsize=8.5, color=LAW_COLOUR)
    ax.set_ylim(log2(ns[0]) - 0.6, log2(ns[-1]) + 0.6)
    ticks = FixedLocator([log2(n) for n in ns])
    ax.yaxis.set_major_locator(ticks)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{2**y:g}"))
    twin = ax.secondary_yaxis("right")
    twin.yaxis.set_major_locator(ticks)
    twin.yaxis.set_minor_locator(NullLocator())
    twin.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{B / 2**y:g}"))
    twin.set_ylabel(B_p_label, fontsize=9, color=MUTED)
    twin.tick_params(labelsize=9, color=MUTED, labelcolor=MUTED)
    twin.spines["right"].set_visible(False)
