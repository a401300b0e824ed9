"""The evidence for each segment of the frontier: its lead over its rival, with the error of that lead."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from isojax.core.nouns import RunRecord
from isojax.report import canvas
from isojax.report.fit_views import all_n, frontier_views
from isojax.report.wording import MIN_DECADES, MIN_Z, format_compact, segment_verdict
from isojax.scaling.result import FitResult, FrontierFit, SegmentRow


def evidence_figure(fit: FitResult, runs: Sequence[RunRecord]) -> Figure | None:
    """Each segment's lead over its rival, +-2 standard errors; None where no segment has one."""
    rows = [(view, segment) for view in frontier_views(fit) for segment in view.segments if segment.se is not None]
    rows = [(view, segment) for view, segment in rows if segment.lead is not None]
    if not rows:
        return None
    colours = canvas.n_palette(all_n(fit))
    fig = canvas.new_figure(10, 1.3 + 0.34 * len(rows))
    ax = fig.add_subplot()
    ax.axvline(0, color=canvas.MUTED, lw=1, zorder=1)
    for i, (view, segment) in enumerate(rows):
        holds, colour = segment_verdict(segment)[0], colours[segment.n]
        style = {"ms": 7, "mew": 1.6, "elinewidth": 2.2, "capsize": 3, "zorder": 3, "color": colour}
        fill, marker = (colour, "o") if holds else ("white", "s")
        ax.errorbar([segment.lead or 0.0], [i], xerr=[2 * (segment.se or 0.0)], fmt=marker, mfc=fill, **style)
        if i and rows[i - 1][0].B_p != view.B_p:
            ax.axhline(i - 0.5, color=canvas.GRID_COLOUR, lw=1.2, zorder=0)
    lead_text = f"lead in {canvas.escape_label(fit.metric)} over the closest neighbour where it is clearest"
    canvas.style_axes(ax, "", f"{lead_text}, ±2 standard errors", "", log_x=False)
    labels = [_segment_label(view, segment) for view, segment in rows]
    ax.set_yticks(range(len(rows)), labels, fontsize=9, color=canvas.INK)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.grid(visible=False, axis="y")
    held_label = f"holds (at least {MIN_DECADES} decade, {MIN_Z:g} standard errors, measured)"
    mark = {"ls": "", "color": canvas.INK, "ms": 7}
    held = Line2D([], [], marker="o", label=held_label, **mark)
    not_shown = Line2D([], [], marker="s", mfc="white", mew=1.6, label="not shown", **mark)
    canvas.legend_below(fig, 2, [held, not_shown])
    return fig


def _segment_label(view: FrontierFit, segment: SegmentRow) -> str:
    """The frontier, the cell and the range of C of a segment."""
    C_range = f"{format_compact(segment.C_low)}–{format_compact(segment.C_high)}"
    if view.B_p is None:
        return f"joint:  n = {segment.n}, $B_p$ = {segment.B_p}  ({C_range})"
    return f"$B_p$ = {view.B_p}:  n = {segment.n}  ({C_range})"
