"""n*(C) and the frontier of several sweeps, with their intervals (paper's Fig. 13; `isojax compare
--out`)."""

from collections.abc import Sequence
from math import log2
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from isojax.report import canvas
from isojax.report.fit_views import BandRow, frontier_band
from isojax.report.wording import UNITS, format_compact
from isojax.scaling.comparison import SweepComparison, SweepSummary

N_STAR_OFFSET = 0.05  # lines of n* that coincide are drawn this far from one another, in log2 n
SATURATION_MARK = {"marker": "D", "ms": 7, "mfc": "white", "mew": 1.6}


def comparison_figure(comparison: SweepComparison) -> canvas.RenderedFigure:
    """The figure of `isojax compare`: on the left the best n at each C, n*(C), of every sweep; on
    the right the best reward at each C, its frontier. Each sweep has a colour and dashes."""
    fig = canvas.new_figure(12.5, 5.0)
    n_star_ax = fig.add_subplot(1, 2, 1)
    frontier_ax = fig.add_subplot(1, 2, 2)
    C_label = f"C ({UNITS[comparison.compute]})"
    reward_label = f"reward ({canvas.escape_label(comparison.metric)})"
    canvas.style_axes(n_star_ax, "the best n", C_label, "compute-optimal n")
    canvas.style_axes(frontier_ax, "the frontier", C_label, reward_label)

    # Lines of n* are moved apart a little, as several sweeps may have the same n.
    sweeps = comparison.sweeps
    middle = (len(sweeps) - 1) / 2
    for i, sweep in enumerate(sweeps):
        style = _line_style(i)
        _draw_n_star(n_star_ax, sweep, style, shift=(i - middle) * N_STAR_OFFSET)
        _draw_frontier(frontier_ax, sweep, style)

    ns = sorted({n for sweep in sweeps for n in sweep.n})
    canvas.label_log2_n(n_star_ax.yaxis, ns)
    n_star_ax.set_ylim(log2(ns[0]) - 0.4, log2(ns[-1]) + 0.4)
    _legend(fig, sweeps)
    return canvas.render_figure(fig)


def _line_style(i: int) -> dict[str, Any]:
    """The line of sweep i."""
    colours = canvas.DISTINCT_COLOURS
    dashes = canvas.DASHES
    return {"color": colours[i % len(colours)], "ls": dashes[i % len(dashes)], "lw": 2.2}


def _draw_n_star(ax: Axes, sweep: SweepSummary, style: dict[str, Any], shift: float) -> None:
    """Draw a sweep's best n at each C as steps, over the band of its interval, and a mark where it
    rises no more; nothing where n makes no difference, which the legend notes. The y axis is
    log2 n; `style`: of the line; `shift`: how far to move it up, in log2 n."""
    if sweep.no_effect:
        return

    band = [
        BandRow(point.C, log2(point.n_low) + shift, log2(point.n_high) + shift)
        for point in sweep.curve
        if point.n_low is not None and point.n_high is not None
    ]
    canvas.fill_band(ax, band, step="mid", color=style["color"], alpha=0.16, zorder=2)

    C = [point.C for point in sweep.curve]
    steps = [log2(point.n) + shift for point in sweep.curve]
    ax.plot(C, steps, drawstyle="steps-mid", zorder=4, **style)

    saturation = sweep.saturation
    if saturation is not None and saturation.C is not None:
        height = log2(saturation.n) + shift
        ax.plot([saturation.C], [height], mec=style["color"], zorder=6, **SATURATION_MARK)


def _draw_frontier(ax: Axes, sweep: SweepSummary, style: dict[str, Any]) -> None:
    """The best reward at each C over its interval."""
    band = frontier_band(sweep.curve)
    canvas.fill_band(ax, band, color=style["color"], alpha=0.18, zorder=2)

    C = [point.C for point in sweep.curve]
    rewards = [point.reward for point in sweep.curve]
    ax.plot(C, rewards, zorder=4, **style)


def _legend(fig: Figure, sweeps: Sequence[SweepSummary]) -> None:
    """Add a legend: each sweep's label, with a remark where n makes no difference or cells overfit,
    then what the band and the mark mean, where they are drawn."""
    handles: list[Line2D | Patch] = []
    for i, sweep in enumerate(sweeps):
        label = canvas.escape_label(sweep.label)
        if sweep.no_effect:
            label += " (n makes no difference)"
        if sweep.overfitting:
            cells = [f"n = {cell.n} from {format_compact(cell.C)}" for cell in sweep.overfitting]
            label += f" (overfits: {', '.join(cells)})"
        handles.append(Line2D([], [], label=label, **_line_style(i)))

    if any(sweep.curve[0].low is not None for sweep in sweeps):
        handles.append(Patch(color=canvas.INK, alpha=0.16, lw=0, label="90% intervals"))
    if any(sweep.saturation and sweep.saturation.C is not None for sweep in sweeps):
        mark = {**SATURATION_MARK, "ls": "", "color": canvas.INK}
        handles.append(Line2D([], [], label="n* levels off", **mark))
    canvas.legend_below(fig, min(len(handles), 4), handles, handlelength=2.4)
