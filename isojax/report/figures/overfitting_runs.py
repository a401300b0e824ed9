"""Training reward against validation reward of the runs that are flagged for overfitting (paper's section 5.2, Figs. 12
and 13).
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from isojax.core.nouns import Cell, RunRecord
from isojax.report import canvas
from isojax.report.fit_views import run_evaluations
from isojax.report.wording import compute_unit, format_compact, format_reward
from isojax.scaling.checks.stability import OverfittedRun
from isojax.scaling.result import FitResult

MAX_RUNS = 6


def overfitting_figure(fits: Sequence[FitResult], runs: Sequence[RunRecord]) -> Figure | None:
    """Training reward (rising) against validation (falling) of the flagged runs, at most MAX_RUNS of them."""
    fit = fits[0]
    overfitted = {Cell(row.B_p, row.n, row.seed): row for row in fit.overfitting}
    flagged_runs = [run for run in runs if run.cell in overfitted and _training_rewards(run, fit)][:MAX_RUNS]
    if not flagged_runs:
        return None
    fig, axes = canvas.panel_grid(len(flagged_runs), height=3.6)
    for i, (ax, run) in enumerate(zip(axes, flagged_runs, strict=True)):
        _draw_run(ax, fit, run, overfitted[run.cell])
        title = f"$B_p$ = {run.cell.B_p}, n = {run.cell.n}, seed {run.cell.seed}"
        canvas.style_axes(ax, title, f"C ({compute_unit(fit)})", "reward" if i == 0 else "")
        ax.margins(y=0.22)
    canvas.legend_below(fig, 2, axes[0].get_legend_handles_labels()[0])
    return fig


def _draw_run(ax: Axes, fit: FitResult, run: RunRecord, overfitted: OverfittedRun) -> None:
    """Both rewards of one run, and from where on they part."""
    training, validation = _training_rewards(run, fit), [(C, y) for _, C, y in run_evaluations(run, fit)]
    ax.plot(*zip(*training, strict=True), color=canvas.LAW_COLOUR, lw=1.4, ls=canvas.DASHES[1], label="training")
    label = f"validation ({canvas.escape_label(fit.metric)})"
    ax.plot(*zip(*validation, strict=True), color=canvas.INK, lw=1.6, marker="o", ms=3, label=label)
    ax.axvline(overfitted.C, color=canvas.MUTED, lw=1, ls=canvas.DASHES[2])
    training_ends = f"{format_reward(overfitted.train_from)} → {format_reward(overfitted.train_to)}"
    validation_ends = f"{format_reward(overfitted.validation_from)} → {format_reward(overfitted.validation_to)}"
    text = f"from C = {format_compact(overfitted.C)}: training {training_ends},\nvalidation {validation_ends}"
    ax.text(0.03, 0.03, text, transform=ax.transAxes, fontsize=8, color=canvas.INK, va="bottom")


def _training_rewards(run: RunRecord, fit: FitResult) -> list[tuple[float, float]]:
    """(C, training reward) of a run's evaluations, C in the fit's unit; the reward is the mean since the evaluation
    before.
    """
    C_by_target = {target: C for target, C, _ in run_evaluations(run, fit)}
    evaluated = [point for point in run.points if point.target in C_by_target and "reward" in point.train]
    return [(C_by_target[point.target], point.train["reward"]) for point in evaluated]
