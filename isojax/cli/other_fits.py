"""The fits that a report shows in addition to the main one: other modes, metrics and training reward."""

from __future__ import annotations

from collections.abc import Sequence

from isojax.cli.saved_fits import fit_runs, warn
from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.scaling.fit_sweep import DEFAULT_MODE, FitOptions
from isojax.scaling.result import FitResult

MAX_OTHER_METRICS = 6
OTHER_REPLICATES = 200
# What an evaluation records of its rollouts besides rewards (train/metrics.py).
NON_REWARD_METRICS = {"parsed_fraction", "truncated", "verifier_failures"}


def other_fits(runs: Sequence[RunRecord], main_fit: FitResult) -> list[FitResult]:
    """The paper's procedure, best@k and worst@k where the counts give them, training reward, then other recorded
    metrics, the means of extra sets first. A view that these runs cannot give is left out with a warning.
    """
    fits = []
    for metric, mode in _views(runs, main_fit):
        options = FitOptions(mode, OTHER_REPLICATES, include_flagged=not main_fit.health.left_out)
        try:
            fits.append(fit_runs(runs, metric, main_fit.compute, options, f"fitting {metric} ({mode})"))
        except InputError as e:
            warn(f"the report has no view of {metric} ({mode}): {e}")
    return fits


def _views(runs: Sequence[RunRecord], main_fit: FitResult) -> list[tuple[str, str]]:
    """(metric, mode) of each; metrics that are not rewards (NON_REWARD_METRICS, of any set) are left out."""
    last_point = runs[0].points[-1]
    samples = min(point.samples for run in runs for point in run.points)
    views = [(main_fit.metric, "paper" if main_fit.mode != "paper" else DEFAULT_MODE)]
    if samples >= 2 and last_point.counts:
        views += [(f"{kind}@{samples}", DEFAULT_MODE) for kind in ("best", "worst")]
    if "reward" in last_point.train:
        views.append(("train/reward", DEFAULT_MODE))
    rewards = {name for name in last_point.metrics if name.rpartition("/")[2] not in NON_REWARD_METRICS}
    others = sorted(rewards - {metric for metric, _ in views}, key=lambda name: ("avg@" not in name, name))
    return views + [(name, DEFAULT_MODE) for name in others[:MAX_OTHER_METRICS]]
