"""How much the reward depends on n and on B_p at one budget (paper's Fig. 10)."""

from collections.abc import Sequence
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from isojax.core.nouns import RunRecord
from isojax.report import canvas
from isojax.report.fit_views import CurveRewards, all_n
from isojax.report.wording import compute_unit, format_compact, format_interval, format_reward
from isojax.scaling.curves.hill import FittedCurve
from isojax.scaling.result import FitResult

C_TOLERANCE = 1 + 1e-9


def sensitivity_figure(fits: Sequence[FitResult], runs: Sequence[RunRecord]) -> Figure | None:
    """Fitted reward at the largest shared C: against n for each B_p (left) and against B_p for each n (right), where
    several were run.
    """
    fit, sensitivity = fits[0], fits[0].sensitivity
    if sensitivity is None or not (sensitivity.over_n or sensitivity.over_B_p):
        return None
    panels = [(x, spread) for x, spread in (("n", sensitivity.over_n), ("B_p", sensitivity.over_B_p)) if spread]
    fig, axes = canvas.panel_grid(len(panels), height=4.2)
    for ax, (x_name, spread) in zip(axes, panels, strict=True):
        _draw_lines(ax, fit, sensitivity.C, "n" if x_name == "n" else "B_p")
        label = "n" if x_name == "n" else "$B_p$"
        range_text = format_reward(spread.spread) + format_interval((spread.low, spread.high))
        canvas.style_axes(ax, f"Over {label}: range {range_text}", label, "", log_x=False)
        ax.legend(frameon=False, fontsize=8.5, ncols=2)
    C_text = f"C = {format_compact(sensitivity.C)} {compute_unit(fit)}"
    axes[0].set_ylabel(f"reward ({canvas.escape_label(fit.metric)}) at {C_text}", fontsize=10, color=canvas.INK)
    return fig


def _draw_lines(ax: Axes, fit: FitResult, C: float, x_name: Literal["n", "B_p"]) -> None:
    """The rewards of the cells that were measured at C, against n with a line for each B_p, or the other way round; a
    dot and its interval for each cell.
    """
    curves, colours = CurveRewards(fit), canvas.n_palette(all_n(fit))
    bands = curves.bands([C])
    lines: dict[int, list[FittedCurve]] = {}
    for curve in sorted(fit.curves, key=lambda curve: curve.key):
        if curve.C_low / C_TOLERANCE <= C <= curve.C_high * C_TOLERANCE:
            lines.setdefault(curve.B_p if x_name == "n" else curve.n, []).append(curve)
    for i, (value, cells) in enumerate(sorted(lines.items())):
        x = [cell.n if x_name == "n" else cell.B_p for cell in cells]
        rewards = [float(curves.reward_at(cell.key, C)) for cell in cells]
        if x_name == "n":
            dashes = canvas.DASHES[i % len(canvas.DASHES)]
            ax.plot(x, rewards, lw=1.4, color=canvas.MUTED, ls=dashes, label=f"$B_p$ = {value}")
        else:
            ax.plot(x, rewards, lw=1.4, color=colours[value], label=f"n = {value}")
        ax.scatter(x, rewards, c=[colours[cell.n] for cell in cells], s=34, ec="white", lw=0.6, zorder=4)
        for at, cell in zip(x, cells, strict=True):
            if cell.key in bands:
                ax.plot([at, at], bands[cell.key], color=colours[cell.n], lw=1.2, alpha=0.8, zorder=3)
    ax.set_xscale("log", base=2)
    values = {cell.n if x_name == "n" else cell.B_p for cells in lines.values() for cell in cells}
    ax.xaxis.set_major_locator(FixedLocator(sorted(values)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
