"""The best n by metric at the largest C, for each B_p (paper's Fig. 8): do best@k (coverage) and worst@k (robustness)
want the same n?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2
from typing import Any

from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from isojax.core.nouns import RunRecord
from isojax.report.canvas import DPI, INK, MUTED, escape_label, style_axes
from isojax.report.fit_views import FitDocument, frontier_views, interval_level, single_B_p_views
from isojax.report.text import compute_unit, format_compact, format_reward

MAX_METRICS = 6


def best_n_figure(fits: Sequence[FitDocument], runs: Sequence[RunRecord]) -> Figure | None:
    """A group of bars for each B_p, a bar for each metric: the n of the frontier's end, its likely range, and the
    reward there.
    """
    del runs
    fits = comparable_fits(fits)[:MAX_METRICS]
    if len(fits) < 2:
        return None
    ns = sorted({run["n"] for fit in fits for run in fit["runs"]})
    # The joint frontier stands in where no B_p was measured with several n.
    views_per_fit = [single_B_p_views(fit) or frontier_views(fit) for fit in fits]
    B_p_groups = sorted({view.B_p for own in views_per_fit for view in own}, key=lambda B_p: B_p or 0)
    fig = Figure(
        figsize=(max(7.0, 1.6 + 0.62 * len(fits) * len(B_p_groups) + 0.6 * len(B_p_groups)), 4.6),
        dpi=DPI,
        layout="constrained",
    )
    ax = fig.add_subplot()
    width, floor = 0.8 / len(fits), log2(ns[0]) - 1
    for i, fit in enumerate(fits):
        ends = {view.B_p: view.summary["frontier"][-1] for view in views_per_fit[i]}
        colour = to_hex(colormaps["cividis"](0.08 + 0.84 * i / (len(fits) - 1)))
        for group, B_p in enumerate(B_p_groups):
            if B_p not in ends:
                continue
            x, end = group + (i - (len(fits) - 1) / 2) * width, ends[B_p]
            ax.bar(
                x,
                log2(end["n"]) - floor,
                width * 0.92,
                bottom=floor,
                color=colour,
                label=escape_label(fit["metric"]) if group == 0 else None,
            )
            low, high = likely_n_range(end, interval_level(fit))
            if low < high:
                ax.plot([x, x], [log2(low), log2(high)], color=INK, lw=1.4, marker="_", ms=7, zorder=4)
            ax.text(
                x,
                log2(max(high, end["n"])) + 0.08,
                format_reward(end["reward"]),
                ha="center",
                va="bottom",
                fontsize=8,
                color=MUTED,
            )
    C_max = max(view.summary["frontier"][-1]["C"] for own in views_per_fit for view in own)
    style_axes(
        ax,
        f"n of the highest reward at the largest C ({format_compact(C_max)} {compute_unit(fits[0])}); the reward stands above",
        "$B_p$",
        "n",
        log_x=False,
    )
    ax.set_xticks(range(len(B_p_groups)), ["best of all" if B_p is None else str(B_p) for B_p in B_p_groups])
    ax.set_ylim(floor, log2(ns[-1]) + 0.7)
    ax.yaxis.set_major_locator(FixedLocator([log2(n) for n in ns]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{2**y:g}"))
    ax.grid(visible=False, axis="x")
    fig.legend(loc="outside lower center", ncols=len(fits), frameon=False, fontsize=9)
    return fig


def comparable_fits(fits: Sequence[FitDocument]) -> list[FitDocument]:
    """The fits of the main one's mode and compute, one for each metric."""
    fits_by_metric: dict[str, FitDocument] = {}
    for fit in fits:
        if (fit["mode"], fit["compute"]) == (fits[0]["mode"], fits[0]["compute"]):
            fits_by_metric.setdefault(fit["metric"], fit)
    return list(fits_by_metric.values())


def likely_n_range(point: Mapping[str, Any], level: float | None) -> tuple[int, int]:
    """The smallest and largest n of the interval of level `at` of P(n best) at a frontier point; its n alone without
    probabilities.
    """
    n_probability = {int(n): p for n, p in (point.get("n_probability") or {}).items()}
    if not n_probability or level is None:
        return point["n"], point["n"]
    tail = (1 - level) / 2
    cumulative_below, cumulative_above, ns = 0.0, 0.0, sorted(n_probability)
    low, high = ns[0], ns[-1]
    for n in ns:
        cumulative_below += n_probability[n]
        if cumulative_below > tail:
            low = n
            break
    for n in reversed(ns):
        cumulative_above += n_probability[n]
        if cumulative_above > tail:
            high = n
            break
    return low, high
