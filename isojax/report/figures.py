"""The paper's figures (arXiv:2603.12151), as PNG bytes: the frontier (Figs. 6 and 22), n*(C) (Figs. 7 and 21) and each segment's lead.

Departs from the paper: n has one palette in every figure (viridis by log2 n, readable without colour vision and in grey), crossovers
carry their C, the law is dashed beyond the measured budgets, and the lead over each rival is shown with its error. Figures are built
from objects (no pyplot), so that drawing leaves no state behind and runs in any thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from math import log2, log10
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter

from isojax.report.canvas import DASHES, DPI, GRID, HALO, INK, LAW, SOFT, darker, first_column, frame, palette, panels, png
from isojax.report.words import MIN_Z, compact, reward, unit, verdict
from isojax.scaling.curves import hill
from isojax.scaling.law import Law, log2_n_star
from isojax.scaling.metrics import track
from isojax.types import RunRecord

Fit = Mapping[str, Any]
JOINT = "joint: best over $B_p$ and $n$"
BASE = (0, (4, 3))
BEYOND = 4.0  # the law is drawn to this many times the measured budget


def evaluations(run: RunRecord, fit: Fit) -> list[tuple[int, float, float]]:
    """(target, C, reward) of a run's evaluations after the base policy's, C in the fit's unit."""
    axes = track(run, fit["metric"], fit["compute"])
    return [(p.target, float(C), float(R)) for p, C, R in zip(run.points, axes.C, axes.R, strict=True) if C > 0]


def frontier(fit: Fit, runs: Sequence[RunRecord]) -> bytes:
    """Validation reward against C: a panel for each B_p and, where there are several, one for the joint frontier."""
    every = [row["B_p"] for row in fit["by_B_p"]]
    views = [(f"$B_p$ = {row['B_p']}", row, [row["B_p"]]) for row in fit["by_B_p"]]
    views += [(JOINT, fit, every)] if len(views) > 1 else []
    fig, axes = panels(len(views), height=4.6)
    colours = palette([run["n"] for run in fit["runs"]])
    for ax, (title, _, B_ps) in zip(axes, views, strict=True):
        joint = len(B_ps) > 1
        _draw_runs(ax, fit, [r for r in runs if r.cell.B_p in B_ps], colours, faint=joint)
        for row in (row for row in fit["curves"] if row["B_p"] in B_ps):
            C = np.geomspace(row["C_low"], row["C_high"], 200)
            style = DASHES[B_ps.index(row["B_p"]) % len(DASHES)] if joint else "-"
            y = hill(C, row["R0"], row["A"], row["B"], row["C_mid"])
            width, alpha = (1.1, 0.75) if joint else (1.7, 0.95)
            ax.plot(C, y, color=colours[row["n"]], lw=width, ls=style, alpha=alpha, zorder=3)
        frame(ax, title, f"C ({unit(fit)})", f"validation reward ({fit['metric']})" if first_column(ax) else "")
    low, high = _reward_range(fit, runs)
    for ax, (_, view, B_ps) in zip(axes, views, strict=True):
        ax.set_ylim(low, high)
        if fit["base_reward"] is not None:
            ax.axhline(fit["base_reward"], color=SOFT, lw=0.9, ls=BASE, zorder=1)
        _draw_frontier(ax, view, colours, name_B_p=len(B_ps) > 1)
    _legend(fig, colours, every if len(every) > 1 else [], fit["base_reward"])
    return png(fig)


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
        size, alpha, order = (8, 0.3, 2) if faint else (15, 0.8, 6)
        ax.scatter(means[:, 0], means[:, 1], s=size, color=colours[n], ec="white", lw=0.5, alpha=alpha, zorder=order)


def _draw_frontier(ax: Axes, view: Fit, colours: Mapping[int, str], name_B_p: bool) -> None:
    """The envelope, thick and coloured by n*(C); crossovers and segments are named."""
    C = np.array([p["C"] for p in view["frontier"]])
    y = np.array([p["reward"] for p in view["frontier"]])
    points = np.stack([C, y], axis=1)
    ax.plot(C, y, color=INK, lw=5.6, zorder=4, solid_capstyle="round")
    pairs = [points[i : i + 2] for i in range(len(points) - 1)]
    parts = LineCollection(pairs, colors=[colours[p["n"]] for p in view["frontier"][1:]], linewidths=3.8, capstyle="round", zorder=5)
    ax.add_collection(parts, autolim=False)
    wide = np.diff(np.log10(ax.get_xlim()))[0]
    taken = -np.inf  # labels reach to here, log10 C
    for cross in view["crossovers"]:
        at = float(np.interp(log10(cross["C"]), np.log10(C), y))
        left = log10(cross["C"]) - 0.045 * wide > taken
        taken = log10(cross["C"]) + (0 if left else 0.045 * wide)
        ax.axvline(cross["C"], color=SOFT, lw=0.8, ls=(0, (1, 2)), zorder=1)
        ax.plot([cross["C"]], [at], marker="D", ms=6.5, mfc="white", mec=INK, mew=1.4, zorder=7)
        ax.annotate(
            f"{cross['n_low']}→{cross['n_high']} at {compact(cross['C'])}", (cross["C"], 0), xycoords=("data", "axes fraction"),
            xytext=(-3 if left else 3, 5), textcoords="offset points", rotation=90, ha="right" if left else "left", va="bottom", fontsize=8,
            color=INK, path_effects=HALO, zorder=7,
        )  # fmt: skip
    for n, segments in groupby(view["segments"], key=lambda seg: seg["n"]):
        stretch = list(segments)
        low, high = log10(stretch[0]["C_low"]), log10(stretch[-1]["C_high"])
        if high - low < (0.12 if name_B_p else 0.05) * wide:
            continue
        B_ps = [B_p for B_p, _ in groupby(seg["B_p"] for seg in stretch)]
        text = f"n = {n}" + ("\n$B_p$ = " + (", ".join(map(str, B_ps)) if len(B_ps) < 4 else "various") if name_B_p else "")
        ax.annotate(
            text, (10 ** ((low + high) / 2), float(np.interp((low + high) / 2, np.log10(C), y))), xytext=(-7, 7),
            textcoords="offset points", ha="right", va="bottom", fontsize=9, fontweight="bold", linespacing=1.15,
            color=darker(colours[n]), path_effects=HALO, zorder=8,
        )  # fmt: skip


def _legend(fig: Figure, colours: Mapping[int, str], B_ps: Sequence[int], base: float | None) -> None:
    """Rows below the panels: the values of n; what the marks mean; the joint panel's line styles."""
    rows = [[Line2D([], [], color=c, lw=3, label=f"n = {n}") for n, c in colours.items()]]
    rows += [
        [
            Line2D([], [], color=INK, lw=6, label="frontier (colour: n*)"),
            Line2D([], [], marker="D", ls="", mfc="white", mec=INK, mew=1.4, label="crossover"),
            Line2D([], [], marker="o", ls="", color=SOFT, ms=4, label="evaluation (seeds' mean)"),
            Line2D([], [], color=SOFT, lw=0.6, label="one seed"),
        ]
    ]
    rows[1] += [] if base is None else [Line2D([], [], color=SOFT, lw=0.9, ls=BASE, label=f"base policy, {reward(base)}")]
    rows += [
        [Line2D([], [], color=SOFT, lw=1.3, ls=DASHES[i % len(DASHES)], label=f"joint panel: $B_p$ = {b}") for i, b in enumerate(B_ps)]
    ]
    columns = max(len(row) for row in rows)
    blank = Line2D([], [], ls="", label=" ")
    padded = [row + [blank] * (columns - len(row)) for row in rows if row]
    by_column = [handle for column in zip(*padded, strict=True) for handle in column]  # a legend fills its columns first
    fig.legend(handles=by_column, loc="outside lower center", ncols=columns, frameon=False, fontsize=9, handlelength=2.2, columnspacing=1.3)


def n_star(fit: Fit, runs: Sequence[RunRecord]) -> bytes:
    """The frontier's n against C, coloured by reward, with the fitted law: joint and for each B_p."""
    del runs
    views = [(f"$B_p$ = {row['B_p']}", row) for row in fit["by_B_p"]]
    views = [(JOINT, fit), *views] if len(views) > 1 else views
    fig, axes = panels(len(views), height=4.0)
    rewards = [p["reward"] for _, view in views for p in view["frontier"]]
    norm = Normalize(min(rewards), max(rewards))
    for ax, (title, view) in zip(axes, views, strict=True):
        frame(ax, title, f"C ({unit(fit)})", "compute-optimal n" if first_column(ax) else "")
        _draw_law(ax, view, norm)
    ns = sorted({run["n"] for run in fit["runs"]})
    low, high = log2(ns[0]), log2(ns[-1])
    axes[0].set_ylim(low - 0.4, high + 0.3 * max(high - low, 1))
    axes[0].yaxis.set_major_locator(FixedLocator([log2(n) for n in ns]))
    axes[0].yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{2**y:g}"))
    bar = fig.colorbar(ScalarMappable(norm, "cividis"), ax=axes, pad=0.015, aspect=30, shrink=1 / max(1, len(axes) // 3), anchor=(0, 1))
    bar.set_label(f"reward on the frontier ({fit['metric']})", color=INK, fontsize=9)
    bar.ax.tick_params(labelsize=8.5, labelcolor=SOFT, length=0)
    return png(fig)


def _draw_law(ax: Axes, view: Fit, norm: Normalize) -> None:
    """Frontier points, the fitted law (dashed where nothing was measured) and its parameters."""
    points = _thinned(view["frontier"])
    first, last = points[0]["C"], points[-1]["C"]
    end = last * BEYOND
    law = Law(**{key: view["n_star"][key] for key in ("form", "L", "k", "log10_C0", "b")})
    ax.scatter(
        [p["C"] for p in points], [log2(p["n"]) for p in points], c=[p["reward"] for p in points], cmap="cividis", norm=norm,
        s=36, edgecolors=SOFT, linewidths=0.4, zorder=4,
    )  # fmt: skip
    for grid, style in ((np.geomspace(first, last, 300), "-"), (np.geomspace(last, end, 100), (0, (3, 2)))):
        ax.plot(grid, log2_n_star(law, grid), color=LAW, lw=2.2, ls=style, zorder=3)
    ax.axvspan(last, end, color=GRID, alpha=0.6, lw=0, zorder=0)
    ax.text(
        (last * end) ** 0.5,
        0.03,
        "not measured",
        transform=ax.get_xaxis_transform(),
        rotation=90,
        ha="center",
        va="bottom",
        fontsize=8,
        color=SOFT,
    )
    ax.set_xlim(first / 1.2, end)
    ax.text(
        0.03, 0.96, _parameters(view["n_star"]), transform=ax.transAxes, va="top", fontsize=8.5, color=INK, linespacing=1.35,
        bbox={"facecolor": "white", "edgecolor": GRID, "boxstyle": "round,pad=0.4"}, zorder=6,
    )  # fmt: skip


def _parameters(law: Mapping[str, Any]) -> str:
    if law["form"] == "constant":
        return f"constant: n* = {2 ** law['b']:.3g}"
    return f"$L$ = {law['L']:.2f}   $k$ = {law['k']:.2f}\n$\\log_{{10}} C_0$ = {law['log10_C0']:.2f}   $b$ = {law['b']:.2f}"


def _thinned(points: Sequence[Mapping[str, Any]], most: int = 48) -> list[Mapping[str, Any]]:
    """At most about `most` points, evenly, both ends kept."""
    return [points[i] for i in np.unique(np.linspace(0, len(points) - 1, most).round().astype(int))]


def evidence(fit: Fit, runs: Sequence[RunRecord]) -> bytes | None:
    """Each segment's lead over its rival, +-2 standard errors; None where no segment has one."""
    del runs
    groups = [(f"$B_p$ = {row['B_p']}", row["segments"]) for row in fit["by_B_p"]]
    groups = [("joint", fit["segments"]), *groups] if len(groups) > 1 else groups
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
    frame(
        ax,
        "",
        f"lead in {fit['metric']} over the closest neighbour where it is clearest, ±2 standard errors",
        "",
        log=False,
    )
    ax.set_yticks(range(len(rows)), labels, fontsize=9, color=INK)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.grid(visible=False, axis="y")
    marks = [Line2D([], [], marker="o", ls="", color=INK, ms=7, label=f"holds (.2 decade, {MIN_Z:g} standard errors, measured)")]
    marks += [Line2D([], [], marker="s", ls="", color=INK, mfc="white", mew=1.6, ms=7, label="not shown")]
    fig.legend(handles=marks, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return png(fig)
