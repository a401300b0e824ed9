"""The frontier (paper's Figs. 6 and 22): validation reward against C, a panel for each B_p and one for all of them
together.

Departs from the paper: n has one palette in every figure (viridis by log2 n, readable without colour vision and in
grey), the frontier carries its interval, and so does each crossover; an end that the data do not determine is an arrow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from math import log10
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from isojax.core.nouns import RunRecord
from isojax.report.canvas import (
    DASHES,
    HALO,
    INK,
    MUTED,
    darken,
    escape_label,
    is_first_column,
    n_palette,
    panel_grid,
    style_axes,
)
from isojax.report.fit_views import FitDocument, FittedCurves, cell_key, frontier_views, interval_level, run_evaluations
from isojax.report.text import compute_unit, format_compact, format_percent, format_reward

JOINT_TITLE = "joint: best over $B_p$ and $n$"
BASE_DASHES = (0, (4, 3))


def frontier_figure(fits: Sequence[FitDocument], runs: Sequence[RunRecord]) -> Figure:
    """Evaluations, fitted curves and the frontier with its interval and crossovers."""
    fit, curves = fits[0], FittedCurves(fits[0])
    ordered_views = sorted(frontier_views(fit), key=lambda v: v.B_p is None)  # the joint panel last
    fig, axes = panel_grid(len(ordered_views), height=4.6)
    colours = n_palette([run["n"] for run in fit["runs"]])
    for ax, view in zip(axes, ordered_views, strict=True):
        is_joint = view.B_p is None
        _draw_runs(ax, fit, [r for r in runs if r.cell.B_p in view.B_ps], colours, faint=is_joint)
        for row in (row for row in fit["curves"] if row["B_p"] in view.B_ps):
            C = np.geomspace(row["C_low"], row["C_high"], 200)
            style = DASHES[view.B_ps.index(row["B_p"]) % len(DASHES)] if is_joint else "-"
            width, alpha = (1.1, 0.75) if is_joint else (1.7, 0.95)
            ax.plot(
                C,
                curves.reward_at(cell_key(row), C),
                color=colours[row["n"]],
                lw=width,
                ls=style,
                alpha=alpha,
                zorder=3,
            )
        title = JOINT_TITLE if is_joint else f"$B_p$ = {view.B_p}"
        style_axes(
            ax,
            title,
            f"C ({compute_unit(fit)})",
            f"validation reward ({escape_label(fit['metric'])})" if is_first_column(ax) else "",
        )
    low, high = _reward_range(fit, runs)
    for ax, view in zip(axes, ordered_views, strict=True):
        ax.set_ylim(low, high)
        if fit["base_reward"] is not None:
            ax.axhline(fit["base_reward"], color=MUTED, lw=0.9, ls=BASE_DASHES, zorder=1)
        _draw_frontier(ax, view.summary, colours)
        _draw_crossovers(ax, view.summary, interval_level(fit) is not None)
        _label_segments(ax, view.summary, colours, name_B_p=view.B_p is None)
    _legend(fig, fit, colours, ordered_views[-1].B_ps if len(ordered_views[-1].B_ps) > 1 else ())
    return fig


def _reward_range(fit: FitDocument, runs: Sequence[RunRecord]) -> tuple[float, float]:
    """The rewards shown, with room below for the crossovers' labels and above for the segments' names."""
    rewards = [y for run in runs for _, _, y in run_evaluations(run, fit)] + [p["reward"] for p in fit["frontier"]]
    rewards += [fit["base_reward"]] if fit["base_reward"] is not None else []
    low, high = min(rewards), max(rewards)
    reward_span = (high - low) or 0.1
    return low - 0.16 * reward_span, high + 0.14 * reward_span


def _draw_runs(ax: Axes, fit: FitDocument, runs: Sequence[RunRecord], colours: Mapping[int, str], faint: bool) -> None:
    """A thin line for each seed, a dot for the mean of the seeds at each value of the shared grid of C."""
    cells: dict[tuple[int, int], list[RunRecord]] = defaultdict(list)
    for run in runs:
        cells[run.cell.B_p, run.cell.n].append(run)
    for (_, n), seeds in cells.items():
        values_by_target: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for run in seeds:
            points = run_evaluations(run, fit)
            for target, C, y in points:
                values_by_target[target].append((C, y))
            if not faint:
                ax.plot(
                    [C for _, C, _ in points], [y for _, _, y in points], color=colours[n], lw=0.5, alpha=0.3, zorder=1
                )
        means = np.array([np.mean(values_by_target[target], axis=0) for target in sorted(values_by_target)]).reshape(
            -1, 2
        )
        crowded = len(means) > 40
        size, alpha, order = (8, 0.3, 2) if faint or crowded else (15, 0.8, 6)
        ax.scatter(means[:, 0], means[:, 1], s=size, color=colours[n], ec="white", lw=0.5, alpha=alpha, zorder=order)


def _draw_frontier(ax: Axes, summary: FitDocument, colours: Mapping[int, str]) -> None:
    """The envelope, thick and coloured by n*(C), over its interval."""
    C, y = (np.array([p[name] for p in summary["frontier"]]) for name in ("C", "reward"))
    points_with_interval = [p for p in summary["frontier"] if p.get("low") is not None]
    if points_with_interval:
        low, high = ([p[name] for p in points_with_interval] for name in ("low", "high"))
        ax.fill_between([p["C"] for p in points_with_interval], low, high, color=INK, alpha=0.22, lw=0, zorder=2.5)
    points = np.stack([C, y], axis=1)
    ax.plot(C, y, color=INK, lw=4.6, zorder=4, solid_capstyle="round")
    pairs = [points[i : i + 2] for i in range(len(points) - 1)]
    coloured_segments = LineCollection(
        pairs, colors=[colours[p["n"]] for p in summary["frontier"][1:]], linewidths=3.0, capstyle="round", zorder=5
    )
    ax.add_collection(coloured_segments, autolim=False)


def _draw_crossovers(ax: Axes, summary: FitDocument, with_intervals: bool) -> None:
    """A diamond where one n overtakes another, its interval as a bar (an arrow where an end is open), its C in
    words.
    """
    log_C, y = np.log10([p["C"] for p in summary["frontier"]]), [p["reward"] for p in summary["frontier"]]
    left_edge, right_edge = ax.get_xlim()
    axis_decades = log10(right_edge / left_edge)
    label_end = -np.inf  # labels reach to here, log10 C
    for crossover in summary["crossovers"]:
        C = crossover["C"]
        crossover_reward = float(np.interp(log10(C), log_C, y))
        label_on_left = log10(C) - 0.045 * axis_decades > label_end
        label_end = log10(C) + (0 if label_on_left else 0.045 * axis_decades)
        ax.axvline(C, color=MUTED, lw=0.8, ls=(0, (1, 2)), zorder=1)
        if with_intervals:
            low, high = crossover["low"], crossover["high"]
            ends = (left_edge if low is None else low, right_edge if high is None else high)
            for end, value, mark in ((ends[0], low, "<"), (ends[1], high, ">")):
                ax.plot(
                    [end, C],
                    [crossover_reward, crossover_reward],
                    color=INK,
                    lw=1.3 if value is not None else 0.8,
                    zorder=6.5,
                    solid_capstyle="butt",
                )
                ax.plot(
                    [end],
                    [crossover_reward],
                    marker="|" if value is not None else mark,
                    ms=7,
                    mec=INK,
                    mfc=INK,
                    mew=1.3,
                    zorder=6.5,
                    clip_on=False,
                )
        ax.plot([C], [crossover_reward], marker="D", ms=6.5, mfc="white", mec=INK, mew=1.4, zorder=7)
        ax.annotate(
            f"{crossover['n_low']}→{crossover['n_high']} at {format_compact(C)}", (C, 0), xycoords=("data", "axes fraction"),
            xytext=(-3 if label_on_left else 3, 5), textcoords="offset points", rotation=90, ha="right" if label_on_left else "left", va="bottom", fontsize=8,
            color=INK, path_effects=HALO, zorder=7,
        )  # fmt: skip
    ax.set_xlim(left_edge, right_edge)


def _label_segments(ax: Axes, summary: FitDocument, colours: Mapping[int, str], name_B_p: bool) -> None:
    """n (and B_p) beside each stretch of the frontier that is long enough to carry them."""
    log_C, y = np.log10([p["C"] for p in summary["frontier"]]), [p["reward"] for p in summary["frontier"]]
    axis_decades = np.diff(np.log10(ax.get_xlim()))[0]
    for n, segments in groupby(summary["segments"], key=lambda seg: seg["n"]):
        stretch: list[Mapping[str, Any]] = list(segments)
        low, high = log10(stretch[0]["C_low"]), log10(stretch[-1]["C_high"])
        if high - low < (0.12 if name_B_p else 0.05) * axis_decades:
            continue
        B_ps = [B_p for B_p, _ in groupby(seg["B_p"] for seg in stretch)]
        text = f"n = {n}" + (
            "\n$B_p$ = " + (", ".join(map(str, B_ps)) if len(B_ps) < 4 else "various") if name_B_p else ""
        )
        ax.annotate(
            text, (10 ** ((low + high) / 2), float(np.interp((low + high) / 2, log_C, y))), xytext=(-7, 7),
            textcoords="offset points", ha="right", va="bottom", fontsize=9, fontweight="bold", linespacing=1.15,
            color=darken(colours[n]), path_effects=HALO, zorder=8,
        )  # fmt: skip


def _legend(fig: Figure, fit: FitDocument, colours: Mapping[int, str], B_ps: Sequence[int]) -> None:
    """Rows below the panels: the values of n; what the marks mean; the joint panel's line styles."""
    base_reward, confidence_level = fit["base_reward"], interval_level(fit)
    mark_handles: list[Line2D | Patch] = [
        Line2D([], [], color=INK, lw=5, label="frontier (colour: n*)"),
        Line2D([], [], marker="D", ls="", mfc="white", mec=INK, mew=1.4, label="crossover"),
        Line2D([], [], marker="o", ls="", color=MUTED, ms=4, label="evaluation (seeds' mean)"),
        Line2D([], [], color=MUTED, lw=0.6, label="one seed"),
    ]
    mark_handles += (
        []
        if confidence_level is None
        else [Patch(color=INK, alpha=0.22, lw=0, label=f"{format_percent(confidence_level)} interval")]
    )
    mark_handles += (
        []
        if base_reward is None
        else [Line2D([], [], color=MUTED, lw=0.9, ls=BASE_DASHES, label=f"base policy, {format_reward(base_reward)}")]
    )
    n_handles: list[Line2D | Patch] = [Line2D([], [], color=c, lw=3, label=f"n = {n}") for n, c in colours.items()]
    style_handles: list[Line2D | Patch] = [
        Line2D([], [], color=MUTED, lw=1.3, ls=DASHES[i % len(DASHES)], label=f"joint panel: $B_p$ = {b}")
        for i, b in enumerate(B_ps)
    ]
    max_columns = int(fig.get_figwidth() / 1.9)  # inches a column
    rows = [
        row[i : i + max_columns]
        for row in (n_handles, mark_handles, style_handles)
        for i in range(0, len(row), max_columns)
    ]
    columns = max(len(row) for row in rows)
    empty_handle = Line2D([], [], ls="", label=" ")
    padded = [row + [empty_handle] * (columns - len(row)) for row in rows]
    by_column = [
        handle for column in zip(*padded, strict=True) for handle in column
    ]  # a legend fills its columns first
    fig.legend(
        handles=by_column,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=9,
        handlelength=2.2,
        columnspacing=1.3,
    )
