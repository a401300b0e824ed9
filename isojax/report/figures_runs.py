"""Single runs: the record-breaking points of one (paper's Figs. 5 and 15), and training against validation where overfitting is flagged
(section 5.2, Figs. 12 and 13)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from isojax.report.canvas import INK, LAW, SOFT, frame, label, palette, panels
from isojax.report.reading import Curves, Fit, evaluations, key, level
from isojax.report.words import compact, percent, reward, unit
from isojax.scaling.records_filter import BIN_WIDTH, record_breaking
from isojax.types import RunRecord

MOST_RUNS = 6


def records(fits: Sequence[Fit], runs: Sequence[RunRecord]) -> Figure | None:
    """One run's evaluations with the record-breaking ones marked and its cell's fitted curve: what the paper's mode keeps, and its bias."""
    fit = fits[0]
    end = fit["frontier"][-1]
    rows, curves = {key(row): row for row in fit["curves"]}, Curves(fit)
    leading = [run for run in runs if (run.cell.B_p, run.cell.n) == (end["B_p"], end["n"])]
    if not leading or key(end) not in rows:
        return None
    run, row = max(leading, key=lambda r: (len(r.points), -r.cell.seed)), rows[key(end)]
    points = evaluations(run, fit)
    C, y = np.array([C for _, C, _ in points]), np.array([y for _, _, y in points])
    kept = record_breaking(y)
    fig, (ax,) = panels(1, height=4.4)
    colour = palette([r["n"] for r in fit["runs"]])[run.cell.n]
    grid = np.geomspace(row["C_low"], row["C_high"], 200)
    bands = curves.bands(grid)
    if bands:
        at = percent(level(fit) or 0.0)
        ax.fill_between(grid, *bands[key(row)], color=colour, alpha=0.18, lw=0, zorder=1, label=f"{at} interval of the curve")
    ax.plot(grid, curves.at(key(row), grid), color=colour, lw=2, zorder=2, label=f"fitted curve (mode {fit['mode']})")
    ax.plot(C, y, color=SOFT, lw=0.6, zorder=2)
    ax.scatter(C, y, s=14, color=SOFT, zorder=3, label="every evaluation")
    ax.scatter(C[kept], y[kept], s=52, facecolors="none", edgecolors=LAW, linewidths=1.5, zorder=4, label=f"record (bins of {BIN_WIDTH})")
    title = f"$B_p$ = {run.cell.B_p}, n = {run.cell.n}, seed {run.cell.seed}: {len(kept)} of {len(y)} evaluations break the record"
    frame(ax, title, f"C ({unit(fit)})", f"validation reward ({label(fit['metric'])})")
    fig.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return fig


def overfitting(fits: Sequence[Fit], runs: Sequence[RunRecord]) -> Figure | None:
    """Training reward (rising) against validation (falling) of the runs that are flagged, at most MOST_RUNS of them."""
    fit = fits[0]
    flagged = {(row["B_p"], row["n"], row["seed"]): row for row in fit.get("overfitting") or ()}
    found = [(run, flagged[run.cell.B_p, run.cell.n, run.cell.seed]) for run in runs if _id(run) in flagged and _training(run, fit)]
    if not found:
        return None
    fig, axes = panels(min(len(found), MOST_RUNS), height=3.6)
    for i, (ax, (run, row)) in enumerate(zip(axes, found, strict=False)):
        training, points = _training(run, fit), evaluations(run, fit)
        ax.plot([C for C, _ in training], [y for _, y in training], color=LAW, lw=1.4, ls=(0, (5, 2)), label="training" if i == 0 else None)
        ax.plot(
            [C for _, C, _ in points], [y for _, _, y in points], color=INK, lw=1.6, marker="o", ms=3,
            label=f"validation ({label(fit['metric'])})" if i == 0 else None,
        )  # fmt: skip
        ax.axvline(row["C"], color=SOFT, lw=1, ls=(0, (1, 2)))
        words = f"from C = {compact(row['C'])}: training {reward(row['train_from'])} → {reward(row['train_to'])},\n"
        words += f"validation {reward(row['validation_from'])} → {reward(row['validation_to'])}"
        ax.text(0.03, 0.03, words, transform=ax.transAxes, fontsize=8, color=INK, va="bottom")
        frame(ax, f"$B_p$ = {run.cell.B_p}, n = {run.cell.n}, seed {run.cell.seed}", f"C ({unit(fit)})", "reward" if i == 0 else "")
        ax.margins(y=0.22)
    fig.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return fig


def _id(run: RunRecord) -> tuple[int, int, int]:
    return run.cell.B_p, run.cell.n, run.cell.seed


def _training(run: RunRecord, fit: Fit) -> list[tuple[float, float]]:
    """(C, training reward) of a run's evaluations, C in the fit's unit; the reward is the mean since the evaluation before."""
    at = {target: C for target, C, _ in evaluations(run, fit)}
    return [(at[p.target], p.train["reward"]) for p in run.points if p.target in at and "reward" in p.train]
