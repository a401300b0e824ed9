"""The frontier (paper's Figs. 6 and 22): validation reward against C, a panel for each B_p and one
for all together.

Departs from the paper: one palette of n, intervals of the frontier and of crossovers, arrows for
open ends."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from math import inf, log10
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from isojax.core.nouns import RunRecord
from isojax.report import canvas, fit_views
from isojax.report.figures import report_figure
from isojax.report.wording import UNITS, format_compact, format_reward, metric_phrase
from isojax.scaling.curves.hill import curve_reward
from isojax.scaling.result import CrossoverRow, FitResult, FrontierFit, ScheduleRow

BASE_DASHES = (0, (4, 3))
FEWER_SEEDS = "of fewer seeds: others ended before"
MANY_DOTS = 40  # of one cell: more are drawn small and faint
LABEL_SHARE = 0.045  # of the axis's decades: the width of a crossover's label, which stands upright
LEGEND_INCHES = 1.9  # the width of a column of the legend

Colours = Mapping[int, str]  # of each n


@report_figure(
    position=1,
    alt_text="Validation reward against C on a log axis, with fitted curves for each n, "
    "the frontier and its crossovers.",
    caption="Validation reward against compute. "
    "Dots: evaluations, averaged over seeds; thin lines: the fitted curve of each n. "
    "The thick line is the frontier, the best reward that any fitted curve reaches at that C, "
    "coloured by the n that reaches it, over its interval. "
    "Diamonds mark where one n overtakes another, bars the interval of that C; "
    "an arrow is an end that the data do not determine.",
)
def frontier_figure(fit: FitResult, runs: Sequence[RunRecord]) -> Figure:
    """Reward against C: the runs' evaluations, the fitted curve of each cell, and the frontier, the
    best reward at each C, with its interval and its crossovers, where one n overtakes another. A
    panel for each B_p, and one for all together, the joint panel, last."""
    # the joint panel last
    views = sorted(fit_views.frontier_views(fit), key=lambda view: view.B_p is None)
    fig, axes = canvas.panel_grid(len(views), height=4.6)
    colours = canvas.n_palette(fit_views.all_n(fit))

    # What was measured and fitted: it decides each panel's range of C.
    reward_label = f"reward ({canvas.escape_label(metric_phrase(fit.metric))})"
    C_label = f"C ({UNITS[fit.compute]})"
    for i, (ax, view) in enumerate(zip(axes, views, strict=True)):
        B_ps = fit_views.B_p_of_view(fit, view)
        runs_of_view = [run for run in runs if run.cell.B_p in B_ps]
        _draw_runs(ax, fit, runs_of_view, colours, faint=view.B_p is None)
        _draw_curves(ax, fit, view, colours)
        _draw_schedules(ax, fit_views.schedules_of_view(fit, view))

        is_first_column = i % canvas.grid_columns(len(views)) == 0
        y_label = reward_label if is_first_column else ""
        canvas.style_axes(ax, canvas.view_title(view.B_p), C_label, y_label)

    # Room below for the crossovers' labels and above for the segments' names; the panels share y.
    low, high = fit_views.reward_range(fit, runs)
    span = (high - low) or 0.1
    axes[0].set_ylim(low - 0.16 * span, high + 0.14 * span)

    # What is placed by the axes' ranges, which are final from here on.
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
    """Draw the evaluations of runs: a thin line for each seed, and a dot for the mean of a cell's
    seeds at each value of the shared grid of C, open where some of the seeds had ended. `faint`:
    small dots and no lines, for the joint panel, which would be too full."""
    for (_, n), seeds in fit_views.runs_by_cell(runs).items():
        if not faint:
            for run in seeds:
                evaluations = fit_views.run_evaluations(run, fit)
                C = [evaluation.C for evaluation in evaluations]
                rewards = [evaluation.reward for evaluation in evaluations]
                ax.plot(C, rewards, color=colours[n], lw=0.5, alpha=0.3, zorder=1)

        means = fit_views.seed_means(seeds, fit)
        dots: dict[str, Any] = {"s": 15, "alpha": 0.8, "zorder": 6}
        if faint or len(means) > MANY_DOTS:
            dots = {"s": 8, "alpha": 0.3, "zorder": 2}

        # filled dots
        of_all = [mean for mean in means if mean.seeds == len(seeds)]
        if of_all:
            style = {"color": colours[n], "ec": "white", "lw": 0.5}
            ax.scatter([m.C for m in of_all], [m.reward for m in of_all], **style, **dots)

        # open dots
        of_some = [mean for mean in means if mean.seeds < len(seeds)]
        if of_some:
            # _legend looks for the label
            style = {
                "facecolors": "white",
                "edgecolors": colours[n],
                "lw": 0.9,
                "label": FEWER_SEEDS,
            }
            ax.scatter([m.C for m in of_some], [m.reward for m in of_some], **style, **dots)


def _draw_curves(ax: Axes, fit: FitResult, view: FrontierFit, colours: Colours) -> None:
    """Each cell's fitted curve; in the joint panel thinner, dashed by B_p."""
    B_ps = fit_views.B_p_of_view(fit, view)
    for curve in fit.curves:
        if curve.B_p not in B_ps:
            continue

        style = {"ls": "-", "lw": 1.7, "alpha": 0.95}
        if view.B_p is None:
            dashes = canvas.DASHES[B_ps.index(curve.B_p) % len(canvas.DASHES)]
            style = {"ls": dashes, "lw": 1.1, "alpha": 0.75}

        C = np.geomspace(curve.C_low, curve.C_high, 200)
        ax.plot(C, curve_reward(curve, C), color=colours[curve.n], zorder=3, **style)


def _draw_schedules(ax: Axes, schedules: Sequence[ScheduleRow]) -> None:
    """The runs whose n changed on the way: a dotted line, and its name at the end."""
    name_style = {"fontsize": 8, "color": canvas.INK, "path_effects": canvas.HALO, "zorder": 8}
    name_place = {"xytext": (-2, 8), "textcoords": "offset points", "ha": "right"}
    for row in schedules:
        C = [point.C for point in row.points]
        rewards = [point.reward for point in row.points]
        ax.plot(C, rewards, color=canvas.INK, lw=1.2, ls=":", marker="o", ms=2.5, zorder=6)

        name = canvas.escape_label(row.name)
        ax.annotate(name, (C[-1], rewards[-1]), **name_place, **name_style)


def _draw_frontier(ax: Axes, view: FrontierFit, colours: Colours) -> None:
    """Dark below and coloured by n above, so that it stands out from the curves and tells n."""
    band = fit_views.frontier_band(view.frontier)
    canvas.fill_band(ax, band, color=canvas.INK, alpha=0.22, zorder=2.5)

    points = np.array([(point.C, point.reward) for point in view.frontier])
    ax.plot(points[:, 0], points[:, 1], color=canvas.INK, lw=4.6, zorder=4, solid_capstyle="round")

    # each piece between two points in the colour of the n that it leads to
    pieces = [points[i : i + 2] for i in range(len(points) - 1)]
    piece_colours = [colours[point.n] for point in view.frontier[1:]]
    lines = LineCollection(pieces, colors=piece_colours, linewidths=3.0, capstyle="round", zorder=5)
    ax.add_collection(lines, autolim=False)


def _draw_crossovers(ax: Axes, view: FrontierFit, with_intervals: bool) -> None:
    """Draw a frontier's crossovers: a diamond where one n overtakes another, the interval of that C
    as a bar, and a label "8→16 at 20k" at the foot of the panel. `with_intervals`: the fit has
    them."""
    x_range = ax.get_xlim()
    label_width = LABEL_SHARE * log10(x_range[1] / x_range[0])  # in decades
    labels_end = -inf  # labels reach to here, log10 C

    label_style = {
        "rotation": 90,
        "va": "bottom",
        "fontsize": 8,
        "color": canvas.INK,
        "path_effects": canvas.HALO,
        "zorder": 7,
    }
    for crossover in view.crossovers:
        C = crossover.C
        reward = fit_views.frontier_reward_at(view, C)
        ax.axvline(C, color=canvas.MUTED, lw=0.8, ls=(0, (1, 2)), zorder=1)
        if with_intervals:
            _draw_interval(ax, crossover, reward, x_range)
        ax.plot([C], [reward], marker="D", ms=6.5, mfc="white", mec=canvas.INK, mew=1.4, zorder=7)

        # Left of its line at the foot of the panel, or right of it where the last label is in the
        # way.
        is_left = log10(C) - label_width > labels_end
        labels_end = log10(C) if is_left else log10(C) + label_width
        place = {
            "xycoords": ("data", "axes fraction"),
            "textcoords": "offset points",
            "xytext": (-3, 5) if is_left else (3, 5),
            "ha": "right" if is_left else "left",
        }
        label = f"{crossover.n_low}→{crossover.n_high} at {format_compact(C)}"
        ax.annotate(label, (C, 0), **place, **label_style)

    # intervals may reach beyond the data
    ax.set_xlim(*x_range)


def _draw_interval(
    ax: Axes, crossover: CrossoverRow, reward: float, x_range: tuple[float, float]
) -> None:
    """Draw a bar from a crossover to each end of its interval; where the data do not determine an
    end (None), a thin arrow to the edge of the panel. `reward`: the height of the bar; `x_range`:
    the panel's range of C."""
    ink = canvas.INK
    left_edge, right_edge = x_range
    for bound, edge, arrow in ((crossover.low, left_edge, "<"), (crossover.high, right_edge, ">")):
        end = edge if bound is None else bound
        width = 0.8 if bound is None else 1.3
        ax.plot(
            [end, crossover.C],
            [reward, reward],
            color=ink,
            lw=width,
            zorder=6.5,
            solid_capstyle="butt",
        )

        marker = arrow if bound is None else "|"
        marker_style = {"ms": 7, "mec": ink, "mfc": ink, "mew": 1.3}
        ax.plot([end], [reward], marker=marker, zorder=6.5, clip_on=False, **marker_style)


def _label_segments(ax: Axes, view: FrontierFit) -> None:
    """Write "n = 16" next to each stretch of the frontier that one n leads, if it is long enough
    for the label; in the joint panel also the B_p of its cells."""
    left_edge, right_edge = np.log10(ax.get_xlim())
    # shares of the panel's width that a label needs, with B_p and without
    min_share = 0.12 if view.B_p is None else 0.05
    min_decades = min_share * (right_edge - left_edge)

    place = {"xytext": (-7, 7), "textcoords": "offset points", "ha": "right", "va": "bottom"}
    style = {"fontsize": 9, "fontweight": "bold", "linespacing": 1.15, "path_effects": canvas.HALO}
    for n, segments_of_n in groupby(view.segments, key=lambda segment: segment.n):
        segments = list(segments_of_n)
        low = log10(segments[0].C_low)
        high = log10(segments[-1].C_high)
        if high - low < min_decades:
            continue

        label = f"n = {n}"
        if view.B_p is None:
            B_ps = [B_p for B_p, _ in groupby(segment.B_p for segment in segments)]
            label += "\n$B_p$ = " + (", ".join(map(str, B_ps)) if len(B_ps) < 4 else "various")

        middle = 10 ** ((low + high) / 2)
        point = (middle, fit_views.frontier_reward_at(view, middle))
        ax.annotate(label, point, color=canvas.INK, zorder=8, **place, **style)


def _legend(fig: Figure, fit: FitResult, colours: Colours, B_ps: Sequence[int]) -> None:
    """Add a legend with an entry for each kind of mark that the panels show. `B_ps`: those that the
    joint panel tells apart by dashes; () where there is one."""
    ink = canvas.INK
    muted = canvas.MUTED
    handles: list[Line2D | Patch] = [
        *canvas.n_handles(colours),
        Line2D([], [], color=ink, lw=5, label="frontier (colour: n*)"),
        Line2D([], [], marker="D", ls="", mfc="white", mec=ink, mew=1.4, label="crossover"),
        Line2D([], [], marker="o", ls="", color=muted, ms=4, label="evaluation (seeds' mean)"),
        Line2D([], [], color=muted, lw=0.6, label="one seed"),
    ]
    if any(artist.get_label() == FEWER_SEEDS for ax in fig.axes for artist in ax.collections):
        open_dot = {"marker": "o", "mfc": "white", "mec": muted, "ms": 4}
        handles.append(Line2D([], [], ls="", label=FEWER_SEEDS, **open_dot))

    level = fit_views.interval_level(fit)
    if level:
        handles.append(Patch(color=ink, alpha=0.22, lw=0, label=f"{level} interval"))

    if fit.base_reward is not None:
        label = f"base policy, {format_reward(fit.base_reward)}"
        handles.append(Line2D([], [], color=muted, lw=0.9, ls=BASE_DASHES, label=label))

    for i, B_p in enumerate(B_ps):
        dashes = canvas.DASHES[i % len(canvas.DASHES)]
        label = f"joint panel: $B_p$ = {B_p}"
        handles.append(Line2D([], [], color=muted, lw=1.3, ls=dashes, label=label))

    columns = min(len(handles), int(fig.get_figwidth() / LEGEND_INCHES))
    canvas.legend_below(fig, columns, handles, handlelength=2.2, columnspacing=1.3)
