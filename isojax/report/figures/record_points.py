"""The record-breaking points of one run (paper's Figs. 5 and 15): what mode `paper` fits, and the bias of that."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from isojax.core.nouns import RunRecord
from isojax.report.canvas import LAW_COLOUR, MUTED, escape_label, legend_below, n_palette, panel_grid, style_axes
from isojax.report.fit_views import CurveRewards, all_n, interval_level, run_evaluations
from isojax.report.wording import compute_unit, format_percent
from isojax.scaling.curves.paper_mode import BIN_WIDTH, record_breaking_indices
from isojax.scaling.result import FitResult


def record_breaking_figure(fits: Sequence[FitResult], runs: Sequence[RunRecord]) -> Figure | None:
    """One run's evaluations with the record-breaking ones marked and its cell's fitted curve."""
    fit = fits[0]
    end = fit.joint.frontier[-1]
    curve = next((curve for curve in fit.curves if curve.key == (end.B_p, end.n)), None)
    runs_of_cell = [run for run in runs if (run.cell.B_p, run.cell.n) == (end.B_p, end.n)]
    if not runs_of_cell or curve is None:
        return None
    run = max(runs_of_cell, key=lambda run: (len(run.points), -run.cell.seed))
    evaluations = run_evaluations(run, fit)
    C, y = np.array([C for _, C, _ in evaluations]), np.array([y for _, _, y in evaluations])
    records = record_breaking_indices(y)
    fig, (ax,) = panel_grid(1, height=4.4)
    colour, curves = n_palette(all_n(fit))[run.cell.n], CurveRewards(fit)
    grid = np.geomspace(curve.C_low, curve.C_high, 200)
    bands = curves.bands(grid)
    if bands:
        label = f"{format_percent(interval_level(fit) or 0.0)} interval of the curve"
        ax.fill_between(grid, *bands[curve.key], color=colour, alpha=0.18, lw=0, zorder=1, label=label)
    fitted_rewards = curves.reward_at(curve.key, grid)
    ax.plot(grid, fitted_rewards, color=colour, lw=2, zorder=2, label=f"fitted curve (mode {fit.mode})")
    ax.plot(C, y, color=MUTED, lw=0.6, zorder=2)
    ax.scatter(C, y, s=14, color=MUTED, zorder=3, label="every evaluation")
    ring = {"s": 52, "facecolors": "none", "edgecolors": LAW_COLOUR, "linewidths": 1.5, "zorder": 4}
    ax.scatter(C[records], y[records], label=f"record (bins of {BIN_WIDTH})", **ring)
    cell_text = f"$B_p$ = {run.cell.B_p}, n = {run.cell.n}, seed {run.cell.seed}"
    title = f"{cell_text}: {len(records)} of {len(y)} evaluations break the record"
    style_axes(ax, title, f"C ({compute_unit(fit)})", f"validation reward ({escape_label(fit.metric)})")
    legend_below(fig, 4)
    return fig
