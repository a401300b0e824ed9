"""How much the reward depends on n and on B_p at one budget (paper's Fig. 10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from isojax.core.nouns import RunRecord
from isojax.report.canvas import DASHES, INK, MUTED, escape_label, n_palette, panel_grid, style_axes
from isojax.report.fit_views import CellKey, CurveBand, CurveRewards, all_n
from isojax.report.wording import compute_unit, format_compact, format_interval, format_reward
from isojax.scaling.result import FitResult

C_TOLERANCE = 1 + 1e-9


@dataclass(frozen=True)
class CellReward:
    """A cell's fitted reward with its interval (low = high = reward without), and its colour."""

    B_p: int
    n: int
    reward: float
    low: float
    high: float
    colour: str


def sensitivity_figure(fits: Sequence[FitResult], runs: Sequence[RunRecord]) -> Figure | None:
    """Fitted reward at the largest shared C: against n for each B_p (left) and against B_p for each n (right), where
    several were run.
    """
    del runs
    fit, sensitivity = fits[0], fits[0].sensitivity
    if sensitivity is None:
        return None
    spreads = (("n", sensitivity.over_n), ("B_p", sensitivity.over_B_p))
    panels = [(symbol, spread) for symbol, spread in spreads if spread is not None]
    if not panels:
        return None
    cells = _rewards_at(fit, sensitivity.C)
    fig, axes = panel_grid(len(panels), height=4.2)
    for ax, (symbol, spread) in zip(axes, panels, strict=True):
        if symbol == "n":
            _draw_over_n(ax, cells)
        else:
            _draw_over_B_p(ax, cells)
        label = "n" if symbol == "n" else "$B_p$"
        range_text = format_reward(spread.spread) + format_interval((spread.low, spread.high))
        style_axes(ax, f"Over {label}: range {range_text}", label, "", log_x=False)
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_locator(FixedLocator(sorted({cell.n if symbol == "n" else cell.B_p for cell in cells})))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        ax.legend(frameon=False, fontsize=8.5, ncols=2)
    C_text = f"C = {format_compact(sensitivity.C)} {compute_unit(fit)}"
    axes[0].set_ylabel(f"reward ({escape_label(fit.metric)}) at {C_text}", fontsize=10, color=INK)
    return fig


def _rewards_at(fit: FitResult, C: float) -> list[CellReward]:
    """The cells that were measured at C, by (B_p, n)."""
    curves, colours = CurveRewards(fit), n_palette(all_n(fit))
    bands = curves.bands([C])
    cells = []
    for curve in sorted(fit.curves, key=lambda curve: curve.key):
        if not curve.C_low / C_TOLERANCE <= C <= curve.C_high * C_TOLERANCE:
            continue
        reward = float(curves.reward_at(curve.key, C))
        low, high = _interval(bands, curve.key, reward)
        cells.append(CellReward(curve.B_p, curve.n, reward, low, high, colours[curve.n]))
    return cells


def _interval(bands: Mapping[CellKey, CurveBand], cell: CellKey, reward: float) -> tuple[float, float]:
    if cell not in bands:
        return reward, reward
    low, high = bands[cell]
    return float(low[0]), float(high[0])


def _draw_over_n(ax: Axes, cells: Sequence[CellReward]) -> None:
    """A line for each B_p, against n."""
    for i, B_p in enumerate(sorted({cell.B_p for cell in cells})):
        row = [cell for cell in cells if cell.B_p == B_p]
        x = [cell.n for cell in row]
        ax.plot(x, [c.reward for c in row], color=MUTED, lw=1.4, ls=DASHES[i % len(DASHES)], label=f"$B_p$ = {B_p}")
        _draw_intervals(ax, x, row)


def _draw_over_B_p(ax: Axes, cells: Sequence[CellReward]) -> None:
    """A line for each n, against B_p."""
    for n in sorted({cell.n for cell in cells}):
        row = [cell for cell in cells if cell.n == n]
        x = [cell.B_p for cell in row]
        ax.plot(x, [cell.reward for cell in row], color=row[0].colour, lw=1.4, label=f"n = {n}")
        _draw_intervals(ax, x, row)


def _draw_intervals(ax: Axes, x: Sequence[int], cells: Sequence[CellReward]) -> None:
    """A dot and its interval for each cell."""
    ax.scatter(x, [c.reward for c in cells], c=[c.colour for c in cells], s=34, ec="white", lw=0.6, zorder=4)
    for at, cell in zip(x, cells, strict=True):
        ax.plot([at, at], [cell.low, cell.high], color=cell.colour, lw=1.2, alpha=0.8, zorder=3)
