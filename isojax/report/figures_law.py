"""n*(C) (paper's Figs. 7 and 21) and the evidence for each segment of the frontier.

Departs from the paper: the law carries its interval and is dashed beyond the measured budgets; below it stands how often each n was the
best one in the bootstrap, P(n best); and each segment's lead over its rival is shown with its error.
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

from isojax.report.canvas import DPI, GRID, INK, LAW, SOFT, frame, label, palette
from isojax.report.figures_frontier import JOINT
from isojax.report.reading import Fit, View, law, level, thinned, views
from isojax.report.words import MIN_Z, compact, percent, unit, verdict
from isojax.types import RunRecord

BEYOND = 4.0  # the law is drawn to this many times the measured budget


def n_star(fits: Sequence[Fit], runs: Sequence[RunRecord]) -> Figure:
    """The frontier's n against C, coloured by reward, with the fitted law, and P(n best) below: joint and for each B_p."""
    del runs
    fit, shown = fits[0], views(fits[0])
    ns = sorted({run["n"] for run in fit["runs"]})
    chances = any(_chances(view.part) for view in shown)
    columns = min(3, len(shown)) if len(shown) != 4 else 2
    rows = -(-len(shown) // columns)
    size = ({1: 10.0, 2: 12.0}.get(columns, 14.4), rows * (5.6 if chances else 4.0) + 0.5)
    fig = Figure(figsize=size, dpi=DPI, layout="constrained")
    grid = fig.add_gridspec(rows * 2, columns, height_ratios=[3.0, 1.3] * rows) if chances else fig.add_gridspec(rows, columns)
    rewards = [p["reward"] for view in shown for p in view.part["frontier"]]
    norm = Normalize(min(rewards), max(rewards))
    laws: list[Axes] = []
    for i, view in enumerate(shown):
        row, column = divmod(i, columns)
        ax = fig.add_subplot(grid[row * 2 if chances else row, column], sharey=laws[0] if laws else None)
        laws.append(ax)
        title = JOINT if view.B_p is None else f"$B_p$ = {view.B_p}"
        frame(ax, title, "" if chances else f"C ({unit(fit)})", "compute-optimal n" if column == 0 else "")
        ax.tick_params(labelleft=column == 0)
        _draw_law(ax, view, norm)
        if chances:
            _draw_chances(fig.add_subplot(grid[row * 2 + 1, column], sharex=ax), fit, view, palette(ns), first=column == 0)
            ax.tick_params(which="both", labelbottom=False)
    _n_axis(laws[0], ns)
    bar = fig.colorbar(ScalarMappable(norm, "cividis"), ax=laws, pad=0.015, aspect=30)
    bar.set_label(f"reward on the frontier ({label(fit['metric'])})", color=INK, fontsize=9)
    bar.ax.tick_params(labelsize=8.5, labelcolor=SOFT, length=0)
    _legend(fig, fit, ns, chances)
    return fig


def _n_axis(ax: Axes, ns: Sequence[int]) -> None:
    """log2 n, labelled with the measured n."""
    low, high = log2(ns[0]), log2(ns[-1])
    ax.set_ylim(low - 0.4, high + 0.3 * max(high - low, 1))
    ax.yaxis.set_major_locator(FixedLocator([log2(n) for n in ns]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{2**y:g}"))


def _draw_law(ax: Axes, view: View, norm: Normalize) -> None:
    """Frontier points, the fitted law with its interval (dashed where nothing was measured) and its parameters."""
    points, n_star = thinned(view.part["frontier"]), view.part["n_star"]
    first, last = points[0]["C"], points[-1]["C"]
    end = last * BEYOND
    band = [p for p in n_star.get("band") or () if p["low"] > 0 and first <= p["C"] <= end]
    if band:
        low, high = (np.log2([p[name] for p in band]) for name in ("low", "high"))
        ax.fill_between([p["C"] for p in band], low, high, color=LAW, alpha=0.14, lw=0, zorder=2)
    ax.scatter(
        [p["C"] for p in points], [log2(p["n"]) for p in points], c=[p["reward"] for p in points], cmap="cividis", norm=norm,
        s=36, edgecolors=SOFT, linewidths=0.4, zorder=4,
    )  # fmt: skip
    for grid, style in ((np.geomspace(first, last, 300), "-"), (np.geomspace(last, end, 100), (0, (3, 2)))):
        ax.plot(grid, law(n_star, np.log10(grid)), color=LAW, lw=2.2, ls=style, zorder=3)
    ax.axvspan(last, end, color=GRID, alpha=0.6, lw=0, zorder=0)
    ax.text(
        (last * end) ** 0.5, 0.03, "not measured", transform=ax.get_xaxis_transform(), rotation=90, ha="center", va="bottom",
        fontsize=8, color=SOFT,
    )  # fmt: skip
    ax.set_xlim(first / 1.2, end)
    ax.text(
        0.03, 0.96, _parameters(n_star), transform=ax.transAxes, va="top", fontsize=8.5, color=INK, linespacing=1.35,
        bbox={"facecolor": "white", "edgecolor": GRID, "boxstyle": "round,pad=0.4"}, zorder=6,
    )  # fmt: skip


def _parameters(n_star: Mapping[str, Any]) -> str:
    """The law's parameters, a line for each."""
    if n_star.get("no_effect"):
        return "$n$ makes no difference here"
    if n_star["form"] == "constant":
        return f"constant: $n^*$ = {2 ** n_star['b']:.3g}"
    names = {"L": "$L$", "k": "$k$", "log10_C0": "$\\log_{10} C_0$", "b": "$b$"}
    used = [name for name in names if not (n_star["form"] == "linear" and name == "L")]
    return "\n".join(f"{names[name]} = {n_star[name]:.2f}" for name in used)


def _chances(part: Fit) -> list[Mapping[str, Any]]:
    """The frontier's points that say how likely each n is the best there."""
    return [p for p in part["frontier"] if p.get("n_probability")]


def _draw_chances(ax: Axes, fit: Fit, view: View, colours: Mapping[int, str], first: bool) -> None:
    """P(n best) against C: bands of n, stacked from the smallest."""
    points = _chances(view.part)
    frame(ax, "", f"C ({unit(fit)})", "P(n best)" if first else "")
    if points:
        shares = [[p["n_probability"].get(str(n), 0.0) for p in points] for n in colours]
        ax.stackplot([p["C"] for p in points], shares, colors=list(colours.values()), lw=0)
    ax.set_ylim(0, 1)
    ax.set_yticks([0, 0.5, 1])
    ax.tick_params(labelleft=first)


def _legend(fig: Figure, fit: Fit, ns: Sequence[int], chances: bool) -> None:
    at = level(fit)
    marks: list[Line2D | Patch] = [Line2D([], [], color=LAW, lw=2.2, label="fitted law $n^*(C)$")]
    marks += [] if at is None else [Patch(color=LAW, alpha=0.14, lw=0, label=f"{percent(at)} interval of $n^*$")]
    marks += [Patch(color=colour, label=f"n = {n}") for n, colour in palette(ns).items()] if chances else []
    fig.legend(handles=marks, loc="outside lower center", ncols=min(len(marks), 10), frameon=False, fontsize=9, handlelength=1.8)


def evidence(fits: Sequence[Fit], runs: Sequence[RunRecord]) -> Figure | None:
    """Each segment's lead over its rival, +-2 standard errors; None where no segment has one."""
    del runs
    fit = fits[0]
    groups = [("joint" if view.B_p is None else f"$B_p$ = {view.B_p}", view.part["segments"]) for view in views(fit)]
    rows = [(name, seg) for name, segments in groups for seg in segments if seg["lead"] is not None and seg["se"] is not None]
    if not rows:
        return None
    colours = palette([run["n"] for run in fit["runs"]])
    fig = Figure(figsize=(10, 1.3 + 0.34 * len(rows)), dpi=DPI, layout="constrained")
    ax = fig.add_subplot()
    ax.axvline(0, color=SOFT, lw=1, zorder=1)
    labels = []
    for i, (name, seg) in enumerate(rows):
        holds, colour = verdict(seg)[0], colours[seg["n"]]
        ax.errorbar(
            [seg["lead"]], [i], xerr=[2 * seg["se"]], fmt="o" if holds else "s", ms=7, color=colour, mfc=colour if holds else "white",
            mew=1.6, elinewidth=2.2, capsize=3, zorder=3,
        )  # fmt: skip
        pair = f"n = {seg['n']}, $B_p$ = {seg['B_p']}" if name == "joint" else f"n = {seg['n']}"
        labels.append(f"{name}:  {pair}  ({compact(seg['C_low'])}–{compact(seg['C_high'])})")
        if i and rows[i - 1][0] != name:
            ax.axhline(i - 0.5, color=GRID, lw=1.2, zorder=0)
    frame(ax, "", f"lead in {label(fit['metric'])} over the closest neighbour where it is clearest, ±2 standard errors", "", log=False)
    ax.set_yticks(range(len(rows)), labels, fontsize=9, color=INK)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.grid(visible=False, axis="y")
    marks = [Line2D([], [], marker="o", ls="", color=INK, ms=7, label=f"holds (.2 decade, {MIN_Z:g} standard errors, measured)")]
    marks += [Line2D([], [], marker="s", ls="", color=INK, mfc="white", mew=1.6, ms=7, label="not shown")]
    fig.legend(handles=marks, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return fig
