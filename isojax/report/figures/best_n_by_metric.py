"""The best n by metric at the largest C, for each B_p (paper's Fig. 8): do best@k (coverage) and worst@k (robustness)
want the same n?
"""

from collections.abc import Sequence
from math import log2

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from isojax.core.nouns import RunRecord
from isojax.report import canvas, fit_views
from isojax.report.wording import compute_unit, format_compact, format_reward
from isojax.scaling.result import FitResult, FrontierRow

MAX_METRICS = 6


def best_n_figure(fits: Sequence[FitResult], runs: Sequence[RunRecord]) -> Figure | None:
    """A group of bars for each B_p, a bar for each metric: the n of the frontier's end, its likely range, and the
    reward there.
    """
    fits = comparable_fits(fits)[:MAX_METRICS]
    if len(fits) < 2:
        return None
    ns = sorted({n for fit in fits for n in fit_views.all_n(fit)})
    ends_by_fit = [_frontier_ends(fit) for fit in fits]
    groups = sorted({B_p for ends in ends_by_fit for B_p in ends}, key=lambda B_p: B_p or 0)
    fig = canvas.new_figure(max(7.0, 1.6 + 0.62 * len(fits) * len(groups) + 0.6 * len(groups)), 4.6)
    ax = fig.add_subplot()
    bar_width, floor = 0.8 / len(fits), log2(ns[0]) - 1
    colours = canvas.sequential_colours("cividis", len(fits))
    for i, (fit, ends) in enumerate(zip(fits, ends_by_fit, strict=True)):
        for group, B_p in enumerate(groups):
            if B_p in ends:
                x, end = group + (i - (len(fits) - 1) / 2) * bar_width, ends[B_p]
                label = canvas.escape_label(fit.metric) if group == 0 else None
                ax.bar(x, log2(end.n) - floor, bar_width * 0.92, bottom=floor, color=colours[i], label=label)
                _draw_likely_range(ax, x, end, fit_views.interval_level(fit))
    C_max = max(end.C for ends in ends_by_fit for end in ends.values())
    title = f"best n at C = {format_compact(C_max)} {compute_unit(fits[0])}, with its reward"
    canvas.style_axes(ax, title, "$B_p$", "n", log_x=False)
    ax.set_xticks(range(len(groups)), ["best of all" if B_p is None else str(B_p) for B_p in groups])
    ax.set_ylim(floor, log2(ns[-1]) + 0.7)
    canvas.label_log2_n(ax.yaxis, ns)
    ax.grid(visible=False, axis="x")
    canvas.legend_below(fig, len(fits))
    return fig


def _frontier_ends(fit: FitResult) -> dict[int | None, FrontierRow]:
    """B_p -> the frontier's last point; the joint frontier's where no B_p was measured with several n."""
    views = fit_views.single_B_p_views(fit) or fit_views.frontier_views(fit)
    return {view.B_p: view.frontier[-1] for view in views}


def _draw_likely_range(ax: Axes, x: float, end: FrontierRow, level: float | None) -> None:
    """A whisker over the likely n, and the reward above it."""
    low, high = likely_n_range(end, level)
    if low < high:
        ax.plot([x, x], [log2(low), log2(high)], color=canvas.INK, lw=1.4, marker="_", ms=7, zorder=4)
    top = log2(max(high, end.n)) + 0.08
    ax.text(x, top, format_reward(end.reward), ha="center", va="bottom", fontsize=8, color=canvas.MUTED)


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
    if not point.n_probability or level is None:
        return point.n, point.n
    ns = sorted(point.n_probability)
    shares = np.array([point.n_probability[n] for n in ns])
    tail = (1 - level) / 2
    low = int(np.argmax(np.cumsum(shares) > tail))
    high = len(ns) - 1 - int(np.argmax(np.cumsum(shares[::-1]) > tail))
    return ns[low], ns[high]
