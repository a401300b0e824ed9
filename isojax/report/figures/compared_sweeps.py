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
from isojax.report.wording import UNITS, format_compact
from isojax.scaling.comparison import SweepComparison, SweepSummary

N_STAR_OFFSET = 0.05  # lines of n* that coincide are drawn this far from one another, in log2 n
SATURATION_MARK = {"marker": "D", "ms": 7, "mfc": "white", "mew": 1.6}


def comparison_figure(comparison: SweepComparison) -> canvas.RenderedFigure:
    fig = canvas.new_figure(12.5, 5.0)
    n_star_ax, frontier_ax = fig.add_subplot(1, 2, 1), fig.add_subplot(1, 2, 2)
    C_label = f"C ({UNITS[comparison.compute]})"
    canvas.style_axes(n_star_ax, "the best n", C_label, "compute-optimal n")
    canvas.style_axes(
        frontier_ax, "the frontier", C_label, f"reward ({canvas.escape_label(comparison.metric)})"
    )
    sweeps = comparison.sweeps
    for i, sweep in enumerate(sweeps):
        _draw_n_star(n_star_ax, sweep, _line_style(i), (i - (len(sweeps) - 1) / 2) * N_STAR_OFFSET)
        bounds = [
            (p.C, p.low, p.high) for p in sweep.curve if p.low is not None and p.high is not None
        ]
        canvas.fill_band(frontier_ax, bounds, color=_line_style(i)["color"], alpha=0.18, zorder=2)
        frontier_ax.plot(
            [p.C for p in sweep.curve], [p.reward for p in sweep.curve], zorder=4, **_line_style(i)
        )
    ns = sorted({n for sweep in sweeps for n in sweep.n})
    canvas.label_log2_n(n_star_ax.yaxis, ns)
    n_star_ax.set_ylim(log2(ns[0]) - 0.4, log2(ns[-1]) + 0.4)
    _legend(fig, sweeps)
    return canvas.render_figure(fig)


def _line_style(i: int) -> dict[str, Any]:
    colours, dashes = canvas.DISTINCT_COLOURS, canvas.DASHES
    return {"color": colours[i % len(colours)], "ls": dashes[i % len(dashes)], "lw": 2.2}


def _draw_n_star(ax: Axes, sweep: SweepSummary, style: dict[str, Any], shift: float) -> None:
    """Steps over their interval, and where they level off; nothing where n makes no difference (the
    legend says it)."""
    if sweep.no_effect:
        return
    n_bounds = [
        (p.C, p.n_low, p.n_high)
        for p in sweep.curve
        if p.n_low is not None and p.n_high is not None
    ]
    band = [(C, log2(low) + shift, log2(high) + shift) for C, low, high in n_bounds]
    canvas.fill_band(ax, band, step="mid", color=style["color"], alpha=0.16, zorder=2)
    C, steps = [p.C for p in sweep.curve], [log2(p.n) + shift for p in sweep.curve]
    ax.plot(C, steps, drawstyle="steps-mid", zorder=4, **style)
    if sweep.saturation is not None and sweep.saturation.C is not None:
        n = log2(sweep.saturation.n) + shift
        ax.plot([sweep.saturation.C], [n], mec=style["color"], zorder=6, **SATURATION_MARK)


def _legend(fig: Figure, sweeps: Sequence[SweepSummary]) -> None:
    handles: list[Line2D | Patch] = []
    for i, sweep in enumerate(sweeps):
        label = canvas.escape_label(sweep.label)
        if sweep.no_effect:
            label += " (n makes no difference)"
        if sweep.overfitting:
            label += f" (overfits: {', '.join(f'n = {o.n} from {format_compact(o.C)}' for o in sweep.overfitting)})"
        handles.append(Line2D([], [], label=label, **_line_style(i)))
    if any(sweep.curve[0].low is not None for sweep in sweeps):
        handles.append(Patch(color=canvas.INK, alpha=0.16, lw=0, label="90% intervals"))
    if any(sweep.saturation and sweep.saturation.C is not None for sweep in sweeps):
        handles.append(
            Line2D([], [], ls="", color=canvas.INK, label="n* levels off", **SATURATION_MARK)
        )
    canvas.legend_below(fig, min(len(handles), 4), handles, handlelength=2.4)
