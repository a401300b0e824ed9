"""The best n by metric at the largest C, for each B_p (paper's Fig. 8): do best@k (coverage) and worst@k (robustness)
want the same n?
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from isojax.core.nouns import RunRecord
from isojax.report.canvas import DPI, INK, MUTED, escape_label, label_log2_n, legend_below, style_axes
from isojax.report.fit_views import all_n, frontier_views, interval_level, single_B_p_views
from isojax.report.wording import compute_unit, format_compact, format_reward
from isojax.scaling.result import FitResult, FrontierRow

MAX_METRICS = 6


def best_n_figure(fits: Sequence[FitResult], runs: Sequence[RunRecord]) -> Figure | None:
    """A group of bars for each B_p, a bar for each metric: the n of the frontier's end, its likely range, and the
    reward there.
    """
    del runs
    fits = comparable_fits(fits)[:MAX_METRICS]
    if len(fits) < 2:
        return None
    ns = sorted({n for fit in fits for n in all_n(fit)})
    ends_by_fit = [_frontier_ends(fit) for fit in fits]
    groups = sorted({B_p for ends in ends_by_fit for B_p in ends}, key=lambda B_p: B_p or 0)
    width_in_inches = max(7.0, 1.6 + 0.62 * len(fits) * len(groups) + 0.6 * len(groups))
    fig = Figure(figsize=(width_in_inches, 4.6), dpi=DPI, layout="constrained")
    ax = fig.add_subplot()
    bar_width, floor = 0.8 / len(fits), log2(ns[0]) - 1
    for i, (fit, ends) in enumerate(zip(fits, ends_by_fit, strict=True)):
        colour = to_hex(colormaps["cividis"](0.08 + 0.84 * i / (len(fits) - 1)))
        for group, B_p in enumerate(groups):
            if B_p not in ends:
                continue
            x, end = group + (i - (len(fits) - 1) / 2) * bar_width, ends[B_p]
            label = escape_label(fit.metric) if group == 0 else None
            ax.bar(x, log2(end.n) - floor, bar_width * 0.92, bottom=floor, color=colour, label=label)
            _draw_likely_range(ax, x, end, interval_level(fit))
    C_max = max(end.C for ends in ends_by_fit for end in ends.values())
    C_text = f"{format_compact(C_max)} {compute_unit(fits[0])}"
    title = f"best n at C = {C_text}, with its reward"
    style_axes(ax, title, "$B_p$", "n", log_x=False)
    ax.set_xticks(range(len(groups)), ["best of all" if B_p is None else str(B_p) for B_p in groups])
    ax.set_ylim(floor, log2(ns[-1]) + 0.7)
    label_log2_n(ax.yaxis, ns)
    ax.grid(visible=False, axis="x")
    legend_below(fig, len(fits))
    return fig


def _frontier_ends(fit: FitResult) -> dict[int | None, FrontierRow]:
    """B_p -> the frontier's last point; the joint frontier's where no B_p was measured with several n."""
    return {view.B_p: view.frontier[-1] for view in single_B_p_views(fit) or frontier_views(fit)}


def _draw_likely_range(ax: Axes, x: float, end: FrontierRow, level: float | None) -> None:
    """A whisker over the likely n, and the reward above it."""
    low, high = likely_n_range(end, level)
    if low < high:
        ax.plot([x, x], [log2(low), log2(high)], color=INK, lw=1.4, marker="_", ms=7, zorder=4)
    top = log2(max(high, end.n)) + 0.08
    ax.text(x, top, format_reward(end.reward), ha="center", va="bottom", fontsize=8, color=MUTED)


def comparable_fits(fits: Sequence[FitResult]) -> list[FitResult]:
    """The fits of the main one's mode and compute, one for each metric."""
    fits_by_metric: dict[str, FitResult] = {}
    for fit in fits:
        if (fit.mode, fit.compute) == (fits[0].mode, fits[0].compute):
            fits_by_metric.setdefault(fit.metric, fit)
    return list(fits_by_metric.values())


def likely_n_range(point: FrontierRow, level: float | None) -> tuple[int, int]:
    """The smallest and largest n of the central interval of P(n best) at a frontier point; its n alone without
    probabilities.
    """
    probabilities = point.n_probability
    if not probabilities or level is None:
        return point.n, point.n
    tail = (1 - level) / 2

    def first_beyond_tail(ordered_n: list[int]) -> int:
        cumulative = 0.0
        for n in ordered_n:
            cumulative += probabilities[n]
            if cumulative > tail:
                return n
        return ordered_n[0]

    rising_n = sorted(probabilities)
    return first_beyond_tail(rising_n), first_beyond_tail(rising_n[::-1])
