"""How much the reward depends on n and on B_p at one budget (paper's Fig. 10)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from isojax.core.nouns import RunRecord
from isojax.report.canvas import DASHES, INK, MUTED, escape_label, n_palette, panel_grid, style_axes
from isojax.report.fit_views import FitDocument, FittedCurves, cell_key
from isojax.report.text import compute_unit, format_compact, format_interval, format_reward


def sensitivity_figure(fits: Sequence[FitDocument], runs: Sequence[RunRecord]) -> Figure | None:
    """Fitted reward at the largest shared C: against n for each B_p (left) and against B_p for each n (right), where
    several were run.
    """
    del runs
    fit, spreads_at_C = fits[0], fits[0].get("sensitivity") or {}
    spreads = [name for name in ("over_n", "over_B_p") if spreads_at_C.get(name) is not None]
    if not spreads:
        return None
    rewards_by_cell = _rewards_at(fit, spreads_at_C["C"])
    fig, axes = panel_grid(len(spreads), height=4.2)
    colours, ns, B_ps = (
        n_palette([run["n"] for run in fit["runs"]]),
        sorted({n for _, n in rewards_by_cell}),
        sorted({B_p for B_p, _ in rewards_by_cell}),
    )
    for ax, name in zip(axes, spreads, strict=True):
        if name == "over_n":
            for i, B_p in enumerate(B_ps):
                points = [(n, *rewards_by_cell[B_p, n], colours[n]) for n in ns if (B_p, n) in rewards_by_cell]
                _draw_slice(ax, points, MUTED, DASHES[i % len(DASHES)], f"$B_p$ = {B_p}")
        else:
            for n in ns:
                _draw_slice(
                    ax,
                    [(B_p, *rewards_by_cell[B_p, n], colours[n]) for B_p in B_ps if (B_p, n) in rewards_by_cell],
                    colours[n],
                    "-",
                    f"n = {n}",
                )
        symbol, ticks = ("n", ns) if name == "over_n" else ("$B_p$", B_ps)
        range_text = format_reward(spreads_at_C[name]["range"]) + format_interval(
            spreads_at_C[name]["low"], spreads_at_C[name]["high"]
        )
        style_axes(ax, f"Over {symbol}: range {range_text}", symbol, "", log_x=False)
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_locator(FixedLocator(ticks))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        ax.legend(frameon=False, fontsize=8.5, ncols=2)
    axes[0].set_ylabel(
        f"reward ({escape_label(fit['metric'])}) at C = {format_compact(spreads_at_C['C'])} {compute_unit(fit)}",
        fontsize=10,
        color=INK,
    )
    return fig


def _rewards_at(fit: FitDocument, C: float) -> dict[tuple[int, int], tuple[float, float, float]]:
    """(reward, low, high) at C of the cells that were measured there; low = high = reward without intervals."""
    curves = FittedCurves(fit)
    bands = curves.bands([C])
    measured_cells = [
        cell_key(row) for row in fit["curves"] if row["C_low"] <= C * (1 + 1e-9) and C <= row["C_high"] * (1 + 1e-9)
    ]
    values = {cell: float(curves.reward_at(cell, C)) for cell in measured_cells}
    intervals = {
        cell: (float(bands[cell][0][0]), float(bands[cell][1][0])) if cell in bands else (y, y)
        for cell, y in values.items()
    }
    return {cell: (y, *intervals[cell]) for cell, y in values.items()}


def _draw_slice(
    ax: Axes, points: Sequence[tuple[int, float, float, float, str]], colour: str, style: Any, legend_text: str
) -> None:
    """Fitted rewards along n or B_p: (x, reward, low, high, the dot's colour) of each."""
    x, y, dot_colours = [p[0] for p in points], [p[1] for p in points], [p[4] for p in points]
    ax.plot(x, y, color=colour, lw=1.4, ls=style, zorder=2, label=legend_text)
    ax.scatter(x, y, c=dot_colours, s=34, ec="white", lw=0.6, zorder=4)
    for at, _, low, high, dot in points:
        ax.plot([at, at], [low, high], color=dot, lw=1.2, alpha=0.8, zorder=3)
