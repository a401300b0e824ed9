"""The frontier (paper's Figs. 6 and 22): validation reward against C, a panel for each B_p and one
for all together. Departs from the paper: one palette of n, intervals of the frontier and of
crossovers, arrows for open ends."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from math import log10

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from isojax.core.nouns import RunRecord
from isojax.report import canvas, fit_views
from isojax.report.wording import UNITS, format_compact, format_reward, metric_phrase
from isojax.scaling.curves.hill import curve_reward
from isojax.scaling.result import CrossoverRow, FitResult, FrontierFit, ScheduleRow

BASE_DASHES = (0, (4, 3))
FEWER_SEEDS = "of fewer seeds: others ended before"
LEGEND_INCHES = 1.9  # the width of a column of the legend
Colours = Mapping[int, str]


def frontier_figure(fit: FitResult, runs: Sequence[RunRecord]) -> Figure:
    """Evaluations, fitted curves and the frontier with its interval and crossovers."""
    # the joint panel last
    views = sorted(fit_views.frontier_views(fit), key=lambda view: view.B_p is None)
    fig, axes = canvas.panel_grid(len(views), height=4.6)
    colours = canvas.n_palette(fit_views.all_n(fit))
    reward_label = f"reward ({canvas.escape_label(metric_phrase(fit.metric))})"
    for i, (ax, view) in enumerate(zip(axes, views, strict=True)):
        B_ps = fit_views.B_p_of_view(fit, view)
        _draw_runs(
            ax, fit, [run for run in runs if run.cell.B_p in B_ps], colours, faint=view.B_p is None
        )
        _draw_curves(ax, fit, view, colours)
        _draw_schedules(ax, fit_views.schedules_of_view(fit, view))
        is_first_column = i % canvas.grid_columns(len(views)) == 0
        title, C_label = canvas.view_title(view.B_p), f"C ({UNITS[fit.compute]})"
        canvas.style_axes(ax, title, C_label, reward_label if is_first_column else "")
    low, high = fit_views.reward_range(fit, runs)
    span = (high - low) or 0.1
    # Room below for the crossovers' labels and above for the segments' names; the panels share y.
    axes[0].set_ylim(low - 0.16 * span, high + 0.14 * span)
    for ax, view in zip(axes, views, strict=True):
        if fit.base_reward is not None:
            ax.axhline(fit.base_reward, color=canvas.MUTED, lw=0.9, ls=BASE_DASHES, zorder=1)
        _draw_frontier(ax, view, colours)
        _draw_crossovers(ax, view, with_intervals=fit.intervals is not None)
        _label_segments(ax, view)
    B_ps = fit_views.B_p_of_view(fit, views[-1])
    _legend(fig, fit, colours, B_ps if len(B_ps) > 1 else ())
    return fig


def _draw_runs(
    ax: Axes, fit: FitResult, runs: Sequence[RunRecord], colours: Colours, faint: bool
) -> None:
    """A thin line for each seed, a dot for the mean of the seeds at each value of the shared grid
    of C."""
    for (_, n), seeds in fit_views.runs_by_cell(runs).items():
        for run in seeds if not faint else ():
            C_and_y = zip(*((C, y) for _, C, y in fit_views.run_evaluations(run, fit)), strict=True)
            ax.plot(*C_and_y, color=colours[n], lw=0.5, alpha=0.3, zorder=1)
        means = fit_views.seed_means(seeds, fit)
        size, alpha, order = (8, 0.3, 2) if faint or len(means) > 40 else (15, 0.8, 6)
        dots = {"s": size, "lw": 0.5, "alpha": alpha, "zorder": order}
        of_all = [(C, y) for C, y, count in means if count == len(seeds)]
        of_some = [(C, y) for C, y, count in means if count < len(seeds)]
        if of_all:
            ax.scatter(*zip(*of_all, strict=True), color=colours[n], ec="white", **dots)
        if of_some:  # a run ended before the others
            style = {
                **dots,
                "facecolors": "white",
                "edgecolors": colours[n],
                "lw": 0.9,
                "label": FEWER_SEEDS,
            }
            ax.scatter(*zip(*of_some, strict=True), **style)


def _draw_curves(ax: Axes, fit: FitResult, view: FrontierFit, colours: Colours) -> None:
    B_ps = fit_views.B_p_of_view(fit, view)
    for curve in fit.curves:
        if curve.B_p not in B_ps:
            continue
        C = np.geomspace(curve.C_low, curve.C_high, 200)
        style = {"ls": "-", "lw": 1.7, "alpha": 0.95}
        if view.B_p is None:
            dashes = canvas.DASHES[B_ps.index(curve.B_p) % len(canvas.DASHES)]
            style = {"ls": dashes, "lw": 1.1, "alpha": 0.75}
        ax.plot(C, curve_reward(curve, C), color=colours[curve.n], zorder=3, **style)


def _draw_schedules(ax: Axes, schedules: Sequence[ScheduleRow]) -> None:
    for row in schedules:
        C, rewards = [p.C for p in row.points], [p.reward for p in row.points]
        ax.plot(C, rewards, color=canvas.INK, lw=1.2, ls=":", marker="o", ms=2.5, zorder=6)
        end = {"xytext": (-2, 8), "textcoords": "offset points", "ha": "right", "zorder": 8}
        name = canvas.escape_label(row.name)
        ax.annotate(
            name,
            (C[-1], rewards[-1]),
            fontsize=8,
            color=canvas.INK,
            path_effects=canvas.HALO,
            **end,
        )


def _draw_frontier(ax: Axes, view: FrontierFit, colours: Colours) -> None:
    points = np.array([(p.C, p.reward) for p in view.frontier])
    with_interval = [
        (p.C, p.low, p.high) for p in view.frontier if p.low is not None and p.high is not None
    ]
    canvas.fill_band(ax, with_interval, color=canvas.INK, alpha=0.22, zorder=2.5)
    ax.plot(points[:, 0], points[:, 1], color=canvas.INK, lw=4.6, zorder=4, solid_capstyle="round")
    pairs = [points[i : i + 2] for i in range(len(points) - 1)]
    colour_of_pair = [colours[p.n] for p in view.frontier[1:]]
    lines = LineCollection(pairs, colors=colour_of_pair, linewidths=3.0, capstyle="round", zorder=5)
    ax.add_collection(lines, autolim=False)


def _draw_crossovers(ax: Axes, view: FrontierFit, with_intervals: bool) -> None:
    """A diamond where one n overtakes another, its interval as a bar, its C in words."""
    left_edge, right_edge = ax.get_xlim()
    label_width = 0.045 * log10(right_edge / left_edge)  # in decades
    label_end = -np.inf  # labels reach to here, log10 C
    for crossover in view.crossovers:
        C, reward = crossover.C, fit_views.frontier_reward_at(view, crossover.C)
        label_on_left = log10(C) - label_width > label_end
        label_end = log10(C) + (0 if label_on_left else label_width)
        ax.axvline(C, color=canvas.MUTED, lw=0.8, ls=(0, (1, 2)), zorder=1)
        if with_intervals:
            _draw_interval(ax, crossover, reward, (left_edge, right_edge))
        ax.plot([C], [reward], marker="D", ms=6.5, mfc="white", mec=canvas.INK, mew=1.4, zorder=7)
        side, offset = ("right", -3) if label_on_left else ("left", 3)
        text_position = {
            "xycoords": ("data", "axes fraction"),
            "xytext": (offset, 5),
            "textcoords": "offset points",
        }
        style = {
            "rotation": 90,
            "fontsize": 8,
            "color": canvas.INK,
            "path_effects": canvas.HALO,
            "zorder": 7,
        }
        label = f"{crossover.n_low}→{crossover.n_high} at {format_compact(C)}"
        ax.annotate(label, (C, 0), ha=side, va="bottom", **text_position, **style)
    ax.set_xlim(left_edge, right_edge)


def _draw_interval(
    ax: Axes, crossover: CrossoverRow, reward: float, edges: tuple[float, float]
) -> None:
    """A bar to each end of a crossover's interval; a thin arrow to the edge of the panel where an
    end is open."""
    ink = canvas.INK
    for bound, edge, arrow in ((crossover.low, edges[0], "<"), (crossover.high, edges[1], ">")):
        end, marker, width = (edge, arrow, 0.8) if bound is None else (bound, "|", 1.3)
        ax.plot(
            [end, crossover.C],
            [reward, reward],
            color=ink,
            lw=width,
            zorder=6.5,
            solid_capstyle="butt",
        )
        ax.plot(
            [end],
            [reward],
            marker=marker,
            ms=7,
            mec=ink,
            mfc=ink,
            mew=1.3,
            zorder=6.5,
            clip_on=False,
        )


def _label_segments(ax: Axes, view: FrontierFit) -> None:
    """n (and B_p in the joint panel) next to each stretch of the frontier that is long enough to
    carry the label."""
    axis_decades = np.diff(np.log10(ax.get_xlim()))[0]
    min_share = 0.12 if view.B_p is None else 0.05
    text_position = {
        "xytext": (-7, 7),
        "textcoords": "offset points",
        "ha": "right",
        "va": "bottom",
        "zorder": 8,
    }
    style = {"fontsize": 9, "fontweight": "bold", "linespacing": 1.15, "path_effects": canvas.HALO}
    for n, segments_of_n in groupby(view.segments, key=lambda segment: segment.n):
        segments = list(segments_of_n)
        low, high = log10(segments[0].C_low), log10(segments[-1].C_high)
        if high - low < min_share * axis_decades:
            continue
        label = f"n = {n}"
        if view.B_p is None:
            B_ps = [B_p for B_p, _ in groupby(segment.B_p for segment in segments)]
            label += "\n$B_p$ = " + (", ".join(map(str, B_ps)) if len(B_ps) < 4 else "various")
        middle = 10 ** ((low + high) / 2)
        point = middle, fit_views.frontier_reward_at(view, middle)
        ax.annotate(label, point, color=canvas.INK, **text_position, **style)


def _legend(fig: Figure, fit: FitResult, colours: Colours, B_ps: Sequence[int]) -> None:
    handles: list[Line2D | Patch] = [
        *canvas.n_handles(colours),
        Line2D([], [], color=canvas.INK, lw=5, label="frontier (colour: n*)"),
        Line2D([], [], marker="D", ls="", mfc="white", mec=canvas.INK, mew=1.4, label="crossover"),
        Line2D(
            [], [], marker="o", ls="", color=canvas.MUTED, ms=4, label="evaluation (seeds' mean)"
        ),
        Line2D([], [], color=canvas.MUTED, lw=0.6, label="one seed"),
    ]
    if any(artist.get_label() == FEWER_SEEDS for ax in fig.axes for artist in ax.collections):
        handles.append(
            Line2D(
                [], [], marker="o", ls="", mfc="white", mec=canvas.MUTED, ms=4, label=FEWER_SEEDS
            )
        )
    if level := fit_views.interval_level(fit):
        handles.append(Patch(color=canvas.INK, alpha=0.22, lw=0, label=f"{level} interval"))
    if fit.base_reward is not None:
        label = f"base policy, {format_reward(fit.base_reward)}"
        handles.append(Line2D([], [], color=canvas.MUTED, lw=0.9, ls=BASE_DASHES, label=label))
    for B_p, dashes in zip(B_ps, canvas.DASHES * len(B_ps), strict=False):
        handles.append(
            Line2D(
                [], [], color=canvas.MUTED, lw=1.3, ls=dashes, label=f"joint panel: $B_p$ = {B_p}"
            )
        )
    max_columns = int(fig.get_figwidth() / LEGEND_INCHES)
    canvas.legend_below(
        fig, min(len(handles), max_columns), handles, handlelength=2.2, columnspacing=1.3
    )
