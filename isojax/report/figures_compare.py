"""Several sweeps in one figure (paper's Fig. 13): n*(C) and the frontier of each, with their intervals (`isojax compare --out`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter

from isojax.report.canvas import DASHES, DPI, INK, Drawing, frame, label, rendered
from isojax.report.words import compact, unit

# Told apart without colour vision, and by their dashes in grey (Okabe and Ito's colours).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
APART = 0.05  # lines of n* that coincide are drawn this far apart, in log2 n
Row = Mapping[str, Any]


def compared(found: Row) -> Drawing:
    """Draw what `scaling.compare.compare` found."""
    fig = Figure(figsize=(12.5, 5.0), dpi=DPI, layout="constrained")
    left, right = (fig.add_subplot(1, 2, i + 1) for i in range(2))
    frame(left, "the best n", f"C ({unit(found)})", "compute-optimal n")
    frame(right, "the frontier", f"C ({unit(found)})", f"reward ({label(found['metric'])})")
    runs = found["runs"]
    for i, row in enumerate(runs):
        _n_star(left, row, _style(i), (i - (len(runs) - 1) / 2) * APART)
        _frontier(right, row, _style(i))
    ns = sorted({n for row in runs for n in row["n"]})
    left.yaxis.set_major_locator(FixedLocator([log2(n) for n in ns]))
    left.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{2**y:g}"))
    left.set_ylim(log2(ns[0]) - 0.4, log2(ns[-1]) + 0.4)
    _legend(fig, runs)
    return rendered(fig)


def _style(i: int) -> dict[str, Any]:
    """The i-th sweep's line: colour and dashes, twelve different pairs."""
    return {"color": COLOURS[i % len(COLOURS)], "ls": DASHES[i % len(DASHES)], "lw": 2.2}


def _n_star(ax: Axes, row: Row, style: dict[str, Any], shift: float) -> None:
    """Steps over their interval, and where they level off; nothing where n makes no difference (the legend says so)."""
    if row["no_effect"]:
        return
    points = row["curve"]
    C = [p["C"] for p in points]
    if points[0]["n_low"] is not None:
        low, high = ([log2(p[key]) + shift for p in points] for key in ("n_low", "n_high"))
        ax.fill_between(C, low, high, step="mid", color=style["color"], alpha=0.16, lw=0, zorder=2)
    ax.plot(C, [log2(p["n"]) + shift for p in points], drawstyle="steps-mid", zorder=4, **style)
    s = row["saturation"]
    if s is not None and s["C"] is not None:
        ax.plot([s["C"]], [log2(s["n"]) + shift], marker="D", ms=7, mfc="white", mec=style["color"], mew=1.6, zorder=6)


def _frontier(ax: Axes, row: Row, style: dict[str, Any]) -> None:
    """The frontier's reward over its interval."""
    points = row["curve"]
    C = [p["C"] for p in points]
    if points[0]["low"] is not None:
        ax.fill_between(C, [p["low"] for p in points], [p["high"] for p in points], color=style["color"], alpha=0.18, lw=0, zorder=2)
    ax.plot(C, [p["reward"] for p in points], zorder=4, **style)


def _legend(fig: Figure, runs: Sequence[Row]) -> None:
    marks: list[Line2D | Patch] = []
    for i, row in enumerate(runs):
        flat = " (n makes no difference)" if row["no_effect"] else ""
        over = ", ".join(f"n = {o['n']} from {compact(o['C'])}" for o in row["overfitting"])
        words = label(row["label"]) + flat + (f" (overfits: {over})" if over else "")
        marks.append(Line2D([], [], label=words, **_style(i)))
    if any(row["curve"][0]["low"] is not None for row in runs):
        marks.append(Patch(color=INK, alpha=0.16, lw=0, label="90% intervals"))
    if any(row["saturation"] and row["saturation"]["C"] is not None for row in runs):
        marks.append(Line2D([], [], marker="D", ls="", color=INK, mfc="white", mew=1.6, ms=7, label="n* levels off"))
    fig.legend(handles=marks, loc="outside lower center", ncols=min(len(marks), 4), frameon=False, fontsize=9, handlelength=2.4)
