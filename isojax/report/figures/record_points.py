"""The record-breaking points of one run (paper's Figs. 5 and 15): what mode `paper` fits, and the bias of that."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from isojax.core.nouns import RunRecord
from isojax.report.canvas import LAW_COLOUR, MUTED, escape_label, n_palette, panel_grid, style_axes
from isojax.report.fit_views import FitDocument, FittedCurves, cell_key, interval_level, run_evaluations
from isojax.report.text import compute_unit, format_percent
from isojax.scaling.curves.record_breaking import BIN_WIDTH, record_breaking_indices


def record_breaking_figure(fits: Sequence[FitDocument], runs: Sequence[RunRecord]) -> Figure | None:
    """One run's evaluations with the record-breaking ones marked and its cell's fitted curve: what the paper's mode
    keeps, and its bias.
    """
    fit = fits[0]
    frontier_end = fit["frontier"][-1]
    rows, curves = {cell_key(row): row for row in fit["curves"]}, FittedCurves(fit)
    runs_of_cell = [run for run in runs if (run.cell.B_p, run.cell.n) == (frontier_end["B_p"], frontier_end["n"])]
    if not runs_of_cell or cell_key(frontier_end) not in rows:
        return None
    run, row = max(runs_of_cell, key=lambda r: (len(r.points), -r.cell.seed)), rows[cell_key(frontier_end)]
    points = run_evaluations(run, fit)
    C, y = np.array([C for _, C, _ in points]), np.array([y for _, _, y in points])
    record_indices = record_breaking_indices(y)
    fig, (ax,) = panel_grid(1, height=4.4)
    colour = n_palette([r["n"] for r in fit["runs"]])[run.cell.n]
    grid = np.geomspace(row["C_low"], row["C_high"], 200)
    bands = curves.bands(grid)
    if bands:
        at = format_percent(interval_level(fit) or 0.0)
        ax.fill_between(
            grid, *bands[cell_key(row)], color=colour, alpha=0.18, lw=0, zorder=1, label=f"{at} interval of the curve"
        )
    ax.plot(
        grid,
        curves.reward_at(cell_key(row), grid),
        color=colour,
        lw=2,
        zorder=2,
        label=f"fitted curve (mode {fit['mode']})",
    )
    ax.plot(C, y, color=MUTED, lw=0.6, zorder=2)
    ax.scatter(C, y, s=14, color=MUTED, zorder=3, label="every evaluation")
    ax.scatter(
        C[record_indices],
        y[record_indices],
        s=52,
        facecolors="none",
        edgecolors=LAW_COLOUR,
        linewidths=1.5,
        zorder=4,
        label=f"record (bins of {BIN_WIDTH})",
    )
    title = f"$B_p$ = {run.cell.B_p}, n = {run.cell.n}, seed {run.cell.seed}: {len(record_indices)} of {len(y)} evaluations break the record"
    style_axes(ax, title, f"C ({compute_unit(fit)})", f"validation reward ({escape_label(fit['metric'])})")
    fig.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return fig
