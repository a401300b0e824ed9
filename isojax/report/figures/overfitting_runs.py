"""Training reward against validation reward of the runs that are flagged for overfitting (paper's section 5.2, Figs. 12
and 13).
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from isojax.core.nouns import RunRecord
from isojax.report.canvas import INK, LAW_COLOUR, MUTED, escape_label, panel_grid, style_axes
from isojax.report.fit_views import FitDocument, run_evaluations
from isojax.report.text import compute_unit, format_compact, format_reward

MAX_RUNS = 6


def overfitting_figure(fits: Sequence[FitDocument], runs: Sequence[RunRecord]) -> Figure | None:
    """Training reward (rising) against validation (falling) of the runs that are flagged, at most MOST_RUNS of them."""
    fit = fits[0]
    overfitting_rows = {(row["B_p"], row["n"], row["seed"]): row for row in fit.get("overfitting") or ()}
    flagged_runs = [
        (run, overfitting_rows[run.cell.B_p, run.cell.n, run.cell.seed])
        for run in runs
        if _run_key(run) in overfitting_rows and _training_rewards(run, fit)
    ]
    if not flagged_runs:
        return None
    fig, axes = panel_grid(min(len(flagged_runs), MAX_RUNS), height=3.6)
    for i, (ax, (run, row)) in enumerate(zip(axes, flagged_runs, strict=False)):
        training, points = _training_rewards(run, fit), run_evaluations(run, fit)
        ax.plot(
            [C for C, _ in training],
            [y for _, y in training],
            color=LAW_COLOUR,
            lw=1.4,
            ls=(0, (5, 2)),
            label="training" if i == 0 else None,
        )
        ax.plot(
            [C for _, C, _ in points], [y for _, _, y in points], color=INK, lw=1.6, marker="o", ms=3,
            label=f"validation ({escape_label(fit['metric'])})" if i == 0 else None,
        )  # fmt: skip
        ax.axvline(row["C"], color=MUTED, lw=1, ls=(0, (1, 2)))
        text = f"from C = {format_compact(row['C'])}: training {format_reward(row['train_from'])} → {format_reward(row['train_to'])},\n"
        text += f"validation {format_reward(row['validation_from'])} → {format_reward(row['validation_to'])}"
        ax.text(0.03, 0.03, text, transform=ax.transAxes, fontsize=8, color=INK, va="bottom")
        style_axes(
            ax,
            f"$B_p$ = {run.cell.B_p}, n = {run.cell.n}, seed {run.cell.seed}",
            f"C ({compute_unit(fit)})",
            "reward" if i == 0 else "",
        )
        ax.margins(y=0.22)
    fig.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return fig


def _run_key(run: RunRecord) -> tuple[int, int, int]:
    return run.cell.B_p, run.cell.n, run.cell.seed


def _training_rewards(run: RunRecord, fit: FitDocument) -> list[tuple[float, float]]:
    """(C, training reward) of a run's evaluations, C in the fit's unit; the reward is the mean since the evaluation
    before.
    """
    C_by_target = {target: C for target, C, _ in run_evaluations(run, fit)}
    return [
        (C_by_target[p.target], p.train["reward"])
        for p in run.points
        if p.target in C_by_target and "reward" in p.train
    ]
