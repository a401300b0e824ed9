"""B_p against n at a fixed batch B = B_p n (paper's Figs. 9, 18, 19), where a budget is M = C / B
updates, with n*(M) and B_p*(M) = B / n*(M).

Departs from the paper: all B side by side, a law only where not rejected, intervals; where an
update samples several batches, C / B counts batches, of which M updates are made."""

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
from isojax.report.figures import report_figure
from isojax.report.fit_views import BandRow, all_n, frontier_band, n_stretches, thin
from isojax.scaling.curves.hill import curve_reward
from isojax.scaling.law.n_star_law import log2_n_star
from isojax.scaling.result import FitResult, FittedCurve, FixedBatchFit

MAX_BATCHES = 4
MIN_LABELLED_SHARE = 0.08  # of the frontier's points: a shorter stretch has no room for its n


@report_figure(
    position=3,
    alt_text="Reward against updates M at fixed batches B = B_p n, with the best cell on top; "
    "n*(M) and B_p*(M) below.",
    caption="At a fixed batch B the budget is a number of updates M: "
    "which split of B into problems and rollouts per problem leads, and when.",
)
def fixed_batch_figure(fit: FitResult, runs: Sequence[RunRecord]) -> Figure | None:
    """How to split a fixed batch of B = B_p n rollouts into problems and rollouts per problem: a
    column for each B, with reward against the updates M above and the best n and B_p at each M
    below. None where no B was measured with several cells."""
    batches = _shown_batches(fit)
    if not batches:
        return None

    colours = canvas.n_palette(all_n(fit))
    fig = canvas.new_figure(max(7.0, 4.9 * len(batches)), 7.0)
    grid = fig.add_gridspec(2, len(batches), height_ratios=[1.5, 1.0])

    # The y label stands at the first column alone, that of B_p at the last.
    reward_label = f"validation reward ({canvas.escape_label(fit.metric)})"
    C_label = "C / B (batches)" if fit.has_dynamic_sampling else "M (updates)"
    first_reward_ax: Axes | None = None
    for i, batch in enumerate(batches):
        is_first = i == 0
        is_last = i == len(batches) - 1
        curves = _curves_of(fit, batch)

        # rewards above, which share y
        reward_ax = fig.add_subplot(grid[0, i], sharey=first_reward_ax)
        first_reward_ax = first_reward_ax or reward_ax
        _draw_rewards(reward_ax, curves, batch, colours)
        canvas.style_axes(reward_ax, f"B = {batch.B}", "", reward_label if is_first else "")

        # n*(M) below, with the M of the rewards above
        n_star_ax = fig.add_subplot(grid[1, i], sharex=reward_ax)
        canvas.style_axes(n_star_ax, "", C_label, "compute-optimal n" if is_first else "")
        _draw_n_star_of_M(n_star_ax, batch, colours)
        ns = sorted(curve.n for curve in curves)
        _label_n_and_B_p(n_star_ax, batch.B, ns, "$B_p^* = B / n^*$" if is_last else "")

        reward_ax.tick_params(labelleft=is_first)
        reward_ax.tick_params(which="both", labelbottom=False)

    shown_n = {curve.n for batch in batches for curve in _curves_of(fit, batch)}
    handles = canvas.n_handles({n: colour for n, colour in colours.items() if n in shown_n})
    handles.append(Line2D([], [], color=canvas.LAW_COLOUR, lw=2, label="fitted law $n^*(M)$"))
    columns = min(len(handles), 3 + 2 * len(batches))
    canvas.legend_below(fig, columns, handles, handlelength=1.8)
    return fig


def _shown_batches(fit: FitResult) -> list[FixedBatchFit]:
    """The B with the most cells, of equals the largest, in rising order."""
    cells = Counter(curve.B_p * curve.n for curve in fit.curves)
    with_frontier = [batch for batch in fit.by_B if len(batch.frontier) > 1]
    by_cells = sorted(with_frontier, key=lambda batch: (-cells[batch.B], -batch.B))
    return sorted(by_cells[:MAX_BATCHES], key=lambda batch: batch.B)


def _curves_of(fit: FitResult, batch: FixedBatchFit) -> list[FittedCurve]:
    """The curves of the cells with B_p n = B."""
    return [curve for curve in fit.curves if curve.B_p * curve.n == batch.B]


def _draw_rewards(
    ax: Axes, curves: Sequence[FittedCurve], batch: FixedBatchFit, colours: Mapping[int, str]
) -> None:
    """Draw the fitted curves of all cells of one B against M, and over them the frontier, the best
    reward at each M, thick, with its interval. `colours`: by n."""
    B = batch.B
    for curve in curves:
        C = np.geomspace(curve.C_low, curve.C_high, 160)
        ax.plot(C / B, curve_reward(curve, C), color=colours[curve.n], lw=1.4, zorder=3)

    points = batch.frontier
    band = [BandRow(C / B, low, high) for C, low, high in frontier_band(points)]
    canvas.fill_band(ax, band, color=canvas.INK, alpha=0.22, zorder=2)

    # A stretch of the frontier that one n leads is in its colour, and labelled if it is long.
    label_place = {"xytext": (-6, 6), "textcoords": "offset points", "ha": "right"}
    label_style = {
        "fontsize": 8.5,
        "fontweight": "bold",
        "color": canvas.INK,
        "path_effects": canvas.HALO,
        "zorder": 7,
    }
    for stretch in n_stretches([point.n for point in points]):
        M = [point.C / B for point in stretch.points_of(points)]
        rewards = [point.reward for point in stretch.points_of(points)]
        ax.plot(M, rewards, color=canvas.INK, lw=5.2, zorder=4, solid_capstyle="round")
        ax.plot(M, rewards, color=colours[stretch.n], lw=3.4, zorder=5, solid_capstyle="round")

        if stretch.last - stretch.first > MIN_LABELLED_SHARE * len(points):
            middle = points[(stretch.first + stretch.last) // 2]
            position = (middle.C / B, middle.reward)
            ax.annotate(f"n = {stretch.n}", position, **label_place, **label_style)


def _draw_n_star_of_M(ax: Axes, batch: FixedBatchFit, colours: Mapping[int, str]) -> None:
    """Draw the best n at each M as dots, a bar for the interval of each M at which it changes, and
    the law fitted to it. Where n clearly both rises and falls, no such law is right, and a note
    stands in its place. The y axis is log2 n; `colours`: by n."""
    B = batch.B
    points = thin(batch.frontier)
    M = [point.C / B for point in points]
    log2_n = [log2(point.n) for point in points]
    dot_colours = [colours[point.n] for point in points]
    ax.scatter(M, log2_n, c=dot_colours, s=34, ec=canvas.MUTED, lw=0.4, zorder=4)

    # A bar from low to high, the interval of the C at which n_low gives way to n_high.
    for crossover in batch.crossovers:
        if crossover.low is None or crossover.high is None:
            continue
        height = (log2(crossover.n_low) + log2(crossover.n_high)) / 2
        ends = [crossover.low / B, crossover.high / B]
        ax.plot(ends, [height, height], color=canvas.INK, lw=1.2, marker="|", ms=6, zorder=3)

    if batch.n_star.monotone_rejected:
        note = "a law that only rises is rejected here"
        ax.set_title(note, loc="right", fontsize=8.5, color=canvas.LAW_COLOUR)
    else:
        M_grid = np.geomspace(M[0], M[-1], 200)
        law = log2_n_star(batch.n_star.law, M_grid)
        ax.plot(M_grid, law, color=canvas.LAW_COLOUR, lw=2, zorder=3)


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
