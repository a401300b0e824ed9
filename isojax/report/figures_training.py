"""How training went: entropy, KL, clip fraction, gradient norm, response length and shares of groups and responses against C, for each n.
What flags a run stands in scaling/health.py; flagged runs that were left out of the fit are not drawn."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from isojax.report.canvas import DPI, frame, palette
from isojax.report.reading import Fit, FloatArray
from isojax.types import RunRecord

# Training metrics in the order they are drawn, and their words.
SHOWN = {
    "entropy": "entropy (nats a token)",
    "kl": "KL to the base policy",
    "grad_norm": "gradient norm",
    "clip_fraction": "clipped tokens",
    "log_ratio": "mean |log ratio|, trainer to sampler",
    "zero_variance": "groups without variance",
    "response_length": "response length (tokens)",
    "truncated": "responses cut off",
}
COLUMNS = 4


def tracks(runs: Sequence[RunRecord], name: str) -> dict[int, tuple[FloatArray, FloatArray]]:
    """n -> (C, metric), the mean over seeds at each target that recorded it, C in rollouts; {} where it was always 0 or never recorded."""
    at: dict[int, dict[int, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for p in run.points:
            if p.rollouts and math.isfinite(p.train.get(name, math.nan)):
                at[run.cell.n][p.target].append((p.rollouts, p.train[name]))
    found = {}
    for n, targets in sorted(at.items()):
        means = np.array([np.mean(targets[t], axis=0) for t in sorted(targets)])
        found[n] = means[:, 0], means[:, 1]
    return found if any(y.any() for _, y in found.values()) else {}


def training(fits: Sequence[Fit], runs: Sequence[RunRecord]) -> Figure | None:
    """A panel for each metric that was recorded and is not 0 throughout, at the frontier's last B_p."""
    fit = fits[0]
    B_p = fit["frontier"][-1]["B_p"]
    own = [run for run in runs if run.cell.B_p == B_p]
    found = {name: lines for name in SHOWN if (lines := tracks(own, name))}
    if not found:
        return None
    rows = math.ceil(len(found) / COLUMNS)
    columns = min(COLUMNS, len(found))
    fig = Figure(figsize=(max(9.0, 3.6 * columns), 2.9 * rows + 0.6), dpi=DPI, layout="constrained")
    colours = palette([r["n"] for r in fit["runs"]])
    for i, (name, lines) in enumerate(found.items()):
        ax = fig.add_subplot(rows, columns, i + 1)
        for n, (C, y) in lines.items():
            ax.plot(C, y, color=colours[n], lw=1.6, label=f"n = {n}" if i == 0 else None)
        frame(ax, SHOWN[name], "C (rollouts)" if i >= len(found) - columns else "", "")
        ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]))
    fig.legend(loc="outside lower center", ncols=len(colours), frameon=False, fontsize=9, title=f"$B_p$ = {B_p}, means over seeds")
    return fig
