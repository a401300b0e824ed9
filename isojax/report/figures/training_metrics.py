"""Training metrics against C, for each n: entropy, KL, clip fraction, gradient norm, response length, shares of groups
and responses. scaling/checks/run_health.py flags runs by them; runs that the fit leaves out are not drawn.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from isojax.core.nouns import RunRecord
from isojax.report import canvas
from isojax.report.fit_views import FloatArray, all_n
from isojax.scaling.result import FitResult

# Training metrics in the order they are drawn, and their titles.
METRIC_TITLES = {
    "entropy": "entropy (nats per token)",
    "kl": "KL to the base policy",
    "grad_norm": "gradient norm",
    "clip_fraction": "clipped tokens",
    "sampler_logp_gap": "mean |log ratio|, trainer to sampler",
    "zero_variance": "groups without variance",
    "response_length": "response length (tokens)",
    "truncated": "responses cut off",
}
MAX_COLUMNS = 4


def metric_by_n(runs: Sequence[RunRecord], name: str) -> dict[int, tuple[FloatArray, FloatArray]]:
    """n -> (C, metric), the mean over seeds at each target that recorded it, C in rollouts; {} where it was always 0 or
    never recorded.
    """
    values_by_n_and_target: dict[int, dict[int, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for p in run.points:
            if p.rollouts and math.isfinite(p.train.get(name, math.nan)):
                values_by_n_and_target[run.cell.n][p.target].append((p.rollouts, p.train[name]))
    series_by_n = {}
    for n, targets in sorted(values_by_n_and_target.items()):
        means = np.array([np.mean(targets[t], axis=0) for t in sorted(targets)])
        series_by_n[n] = means[:, 0], means[:, 1]
    return series_by_n if any(y.any() for _, y in series_by_n.values()) else {}


def training_figure(fits: Sequence[FitResult], runs: Sequence[RunRecord]) -> Figure | None:
    """A panel for each metric that was recorded and is not 0 throughout, at the frontier's last B_p."""
    B_p = fits[0].joint.frontier[-1].B_p
    runs_of_B_p = [run for run in runs if run.cell.B_p == B_p]
    lines_by_metric = {name: lines for name in METRIC_TITLES if (lines := metric_by_n(runs_of_B_p, name))}
    if not lines_by_metric:
        return None
    count, columns = len(lines_by_metric), min(MAX_COLUMNS, len(lines_by_metric))
    rows = math.ceil(count / columns)
    fig = canvas.new_figure(max(9.0, 3.6 * columns), 2.9 * rows + 0.6)
    colours = canvas.n_palette(all_n(fits[0]))
    for i, (name, lines) in enumerate(lines_by_metric.items()):
        ax = fig.add_subplot(rows, columns, i + 1)
        for n, (C, y) in lines.items():
            ax.plot(C, y, color=colours[n], lw=1.6)
        canvas.style_axes(ax, METRIC_TITLES[name], "C (rollouts)" if i >= count - columns else "", "")
        ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]))
    canvas.legend_below(fig, len(colours), canvas.n_handles(colours), title=f"$B_p$ = {B_p}, means over seeds")
    return fig
