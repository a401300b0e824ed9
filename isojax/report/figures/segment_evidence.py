"""The evidence for each segment of the frontier: its lead over its rival, with the error of that lead."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from isojax.core.nouns import RunRecord
from isojax.report.canvas import DPI, GRID_COLOUR, INK, MUTED, escape_label, n_palette, style_axes
from isojax.report.fit_views import FitDocument, frontier_views
from isojax.report.text import MIN_Z, format_compact, segment_verdict


def evidence_figure(fits: Sequence[FitDocument], runs: Sequence[RunRecord]) -> Figure | None:
    """Each segment's lead over its rival, +-2 standard errors; None where no segment has one."""
    del runs
    fit = fits[0]
    segment_groups = [
        ("joint" if view.B_p is None else f"$B_p$ = {view.B_p}", view.summary["segments"])
        for view in frontier_views(fit)
    ]
    rows = [
        (name, seg)
        for name, segments in segment_groups
        for seg in segments
        if seg["lead"] is not None and seg["se"] is not None
    ]
    if not rows:
        return None
    colours = n_palette([run["n"] for run in fit["runs"]])
    fig = Figure(figsize=(10, 1.3 + 0.34 * len(rows)), dpi=DPI, layout="constrained")
    ax = fig.add_subplot()
    ax.axvline(0, color=MUTED, lw=1, zorder=1)
    labels = []
    for i, (name, seg) in enumerate(rows):
        holds, colour = segment_verdict(seg)[0], colours[seg["n"]]
        ax.errorbar(
            [seg["lead"]], [i], xerr=[2 * seg["se"]], fmt="o" if holds else "s", ms=7, color=colour, mfc=colour if holds else "white",
            mew=1.6, elinewidth=2.2, capsize=3, zorder=3,
        )  # fmt: skip
        cell_text = f"n = {seg['n']}, $B_p$ = {seg['B_p']}" if name == "joint" else f"n = {seg['n']}"
        labels.append(f"{name}:  {cell_text}  ({format_compact(seg['C_low'])}–{format_compact(seg['C_high'])})")
        if i and rows[i - 1][0] != name:
            ax.axhline(i - 0.5, color=GRID_COLOUR, lw=1.2, zorder=0)
    style_axes(
        ax,
        "",
        f"lead in {escape_label(fit['metric'])} over the closest neighbour where it is clearest, ±2 standard errors",
        "",
        log_x=False,
    )
    ax.set_yticks(range(len(rows)), labels, fontsize=9, color=INK)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.grid(visible=False, axis="y")
    legend_handles = [
        Line2D(
            [], [], marker="o", ls="", color=INK, ms=7, label=f"holds (.2 decade, {MIN_Z:g} standard errors, measured)"
        )
    ]
    legend_handles += [Line2D([], [], marker="s", ls="", color=INK, mfc="white", mew=1.6, ms=7, label="not shown")]
    fig.legend(handles=legend_handles, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return fig
