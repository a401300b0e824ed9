"""The frontier (paper's Figs. 6 and 22): validation reward against C, a panel for each B_p and one for all of them together.

Departs from the paper: n has one palette in every figure (viridis by log2 n, readable without colour vision and in grey), the frontier
carries its interval, and so does each crossover; an end that the data do not determine is an arrow.
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

from isojax.report.canvas import DASHES, HALO, INK, SOFT, darker, first_column, frame, label, palette, panels
from isojax.report.reading import Curves, Fit, evaluations, key, level, views
from isojax.report.words import compact, percent, reward, unit
from isojax.types import RunRecord

JOINT = "joint: best over $B_p$ and $n$"
BASE = (0, (4, 3))


def frontier(fits: Sequence[Fit], runs: Sequence[RunRecord]) -> Figure:
    """Evaluations, fitted curves and the frontier with its interval and crossovers."""
    fit, curves = fits[0], Curves(fits[0])
    shown = sorted(views(fit), key=lambda v: v.B_p is None)  # the joint panel last
    fig, axes = panels(len(shown), height=4.6)
    colours = palette([run["n"] for run in fit["runs"]])
    for ax, view in zip(axes, shown, strict=True):
        joint = view.B_p is None
        _draw_runs(ax, fit, [r for r in runs if r.cell.B_p in view.B_ps], colours, faint=joint)
        for row in (row for row in fit["curves"] if row["B_p"] in view.B_ps):
            C = np.geomspace(row["C_low"], row["C_high"], 200)
            style = DASHES[view.B_ps.index(row["B_p"]) % len(DASHES)] if joint else "-"
            width, alpha = (1.1, 0.75) if joint else (1.7, 0.95)
            ax.plot(C, curves.at(key(row), C), color=colours[row["n"]], lw=width, ls=style, alpha=alpha, zorder=3)
        title = JOINT if joint else f"$B_p$ = {view.B_p}"
        frame(ax, title, f"C ({unit(fit)})", f"validation reward ({label(fit['metric'])})" if first_column(ax) else "")
    low, high = _reward_range(fit, runs)
    for ax, view in zip(axes, shown, strict=True):
        ax.set_ylim(low, high)
        if fit["base_reward"] is not None:
            ax.axhline(fit["base_reward"], color=SOFT, lw=0.9, ls=BASE, zorder=1)
        _draw_frontier(ax, view.part, colours)
        _draw_crossovers(ax, view.part, level(fit) is not None)
        _name_segments(ax, view.part, colours, name_B_p=view.B_p is None)
    _legend(fig, fit, colours, shown[-1].B_ps if len(shown[-1].B_ps) > 1 else ())
    return fig


def _reward_range(fit: Fit, runs: Sequence[RunRecord]) -> tuple[float, float]:
    """The rewards shown, with room below for the crossovers' labels and above for the segments' names."""
    seen = [y for run in runs for _, _, y in evaluations(run, fit)] + [p["reward"] for p in fit["frontier"]]
    seen += [fit["base_reward"]] if fit["base_reward"] is not None else []
    low, high = min(seen), max(seen)
    room = (high - low) or 0.1
    return low - 0.16 * room, high + 0.14 * room


def _draw_runs(ax: Axes, fit: Fit, runs: Sequence[RunRecord], colours: Mapping[int, str], faint: bool) -> None:
    """A thin line for each seed, a dot for the mean of the seeds at each value of the shared grid of C."""
    cells: dict[tuple[int, int], list[RunRecord]] = defaultdict(list)
    for run in runs:
        cells[run.cell.B_p, run.cell.n].append(run)
    for (_, n), seeds in cells.items():
        at: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for run in seeds:
            points = evaluations(run, fit)
            for target, C, y in points:
                at[target].append((C, y))
            if not faint:
                ax.plot([C for _, C, _ in points], [y for _, _, y in points], color=colours[n], lw=0.5, alpha=0.3, zorder=1)
        means = np.array([np.mean(at[target], axis=0) for target in sorted(at)]).reshape(-1, 2)
        crowded = len(means) > 40
        size, alpha, order = (8, 0.3, 2) if faint or crowded else (15, 0.8, 6)
        ax.scatter(means[:, 0], means[:, 1], s=size, color=colours[n], ec="white", lw=0.5, alpha=alpha, zorder=order)


def _draw_frontier(ax: Axes, part: Fit, colours: Mapping[int, str]) -> None:
    """The envelope, thick and coloured by n*(C), over its interval."""
    C, y = (np.array([p[name] for p in part["frontier"]]) for name in ("C", "reward"))
    known = [p for p in part["frontier"] if p.get("low") is not None]
    if known:
        low, high = ([p[name] for p in known] for name in ("low", "high"))
        ax.fill_between([p["C"] for p in known], low, high, color=INK, alpha=0.22, lw=0, zorder=2.5)
    points = np.stack([C, y], axis=1)
    ax.plot(C, y, color=INK, lw=4.6, zorder=4, solid_capstyle="round")
    pairs = [points[i : i + 2] for i in range(len(points) - 1)]
    parts = LineCollection(pairs, colors=[colours[p["n"]] for p in part["frontier"][1:]], linewidths=3.0, capstyle="round", zorder=5)
    ax.add_collection(parts, autolim=False)


def _draw_crossovers(ax: Axes, part: Fit, with_intervals: bool) -> None:
    """A diamond where one n overtakes another, its interval as a bar (an arrow where an end is open), its C in words."""
    log_C, y = np.log10([p["C"] for p in part["frontier"]]), [p["reward"] for p in part["frontier"]]
    left_edge, right_edge = ax.get_xlim()
    wide = log10(right_edge / left_edge)
    taken = -np.inf  # labels reach to here, log10 C
    for cross in part["crossovers"]:
        C = cross["C"]
        at = float(np.interp(log10(C), log_C, y))
        left = log10(C) - 0.045 * wide > taken
        taken = log10(C) + (0 if left else 0.045 * wide)
        ax.axvline(C, color=SOFT, lw=0.8, ls=(0, (1, 2)), zorder=1)
        if with_intervals:
            low, high = cross["low"], cross["high"]
            ends = (left_edge if low is None else low, right_edge if high is None else high)
            for end, value, mark in ((ends[0], low, "<"), (ends[1], high, ">")):
                ax.plot([end, C], [at, at], color=INK, lw=1.3 if value is not None else 0.8, zorder=6.5, solid_capstyle="butt")
                ax.plot([end], [at], marker="|" if value is not None else mark, ms=7, mec=INK, mfc=INK, mew=1.3, zorder=6.5, clip_on=False)
        ax.plot([C], [at], marker="D", ms=6.5, mfc="white", mec=INK, mew=1.4, zorder=7)
        ax.annotate(
            f"{cross['n_low']}→{cross['n_high']} at {compact(C)}", (C, 0), xycoords=("data", "axes fraction"),
            xytext=(-3 if left else 3, 5), textcoords="offset points", rotation=90, ha="right" if left else "left", va="bottom", fontsize=8,
            color=INK, path_effects=HALO, zorder=7,
        )  # fmt: skip
    ax.set_xlim(left_edge, right_edge)


def _name_segments(ax: Axes, part: Fit, colours: Mapping[int, str], name_B_p: bool) -> None:
    """n (and B_p) beside each stretch of the frontier that is long enough to carry them."""
    log_C, y = np.log10([p["C"] for p in part["frontier"]]), [p["reward"] for p in part["frontier"]]
    wide = np.diff(np.log10(ax.get_xlim()))[0]
    for n, segments in groupby(part["segments"], key=lambda seg: seg["n"]):
        stretch: list[Mapping[str, Any]] = list(segments)
        low, high = log10(stretch[0]["C_low"]), log10(stretch[-1]["C_high"])
        if high - low < (0.12 if name_B_p else 0.05) * wide:
            continue
        B_ps = [B_p for B_p, _ in groupby(seg["B_p"] for seg in stretch)]
        text = f"n = {n}" + ("\n$B_p$ = " + (", ".join(map(str, B_ps)) if len(B_ps) < 4 else "various") if name_B_p else "")
        ax.annotate(
            text, (10 ** ((low + high) / 2), float(np.interp((low + high) / 2, log_C, y))), xytext=(-7, 7),
            textcoords="offset points", ha="right", va="bottom", fontsize=9, fontweight="bold", linespacing=1.15,
            color=darker(colours[n]), path_effects=HALO, zorder=8,
        )  # fmt: skip


def _legend(fig: Figure, fit: Fit, colours: Mapping[int, str], B_ps: Sequence[int]) -> None:
    """Rows below the panels: the values of n; what the marks mean; the joint panel's line styles."""
    base, at = fit["base_reward"], level(fit)
    marks: list[Line2D | Patch] = [
        Line2D([], [], color=INK, lw=5, label="frontier (colour: n*)"),
        Line2D([], [], marker="D", ls="", mfc="white", mec=INK, mew=1.4, label="crossover"),
        Line2D([], [], marker="o", ls="", color=SOFT, ms=4, label="evaluation (seeds' mean)"),
        Line2D([], [], color=SOFT, lw=0.6, label="one seed"),
    ]
    marks += [] if at is None else [Patch(color=INK, alpha=0.22, lw=0, label=f"{percent(at)} interval")]
    marks += [] if base is None else [Line2D([], [], color=SOFT, lw=0.9, ls=BASE, label=f"base policy, {reward(base)}")]
    names: list[Line2D | Patch] = [Line2D([], [], color=c, lw=3, label=f"n = {n}") for n, c in colours.items()]
    styles: list[Line2D | Patch] = [
        Line2D([], [], color=SOFT, lw=1.3, ls=DASHES[i % len(DASHES)], label=f"joint panel: $B_p$ = {b}") for i, b in enumerate(B_ps)
    ]
    most = int(fig.get_figwidth() / 1.9)  # inches a column
    rows = [row[i : i + most] for row in (names, marks, styles) for i in range(0, len(row), most)]
    columns = max(len(row) for row in rows)
    blank = Line2D([], [], ls="", label=" ")
    padded = [row + [blank] * (columns - len(row)) for row in rows]
    by_column = [handle for column in zip(*padded, strict=True) for handle in column]  # a legend fills its columns first
    fig.legend(handles=by_column, loc="outside lower center", ncols=columns, frameon=False, fontsize=9, handlelength=2.2, columnspacing=1.3)
