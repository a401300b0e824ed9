"""Which B_p train stably. B_p is mainly a stability knob (IsoCompute Playbook, arXiv:2603.12151, section 4.3 and
appendix C).

The paper gives no test. Here a cell is unstable if it ends (mean of its last 3 evaluations, over seeds) below its own
best running mean of 3 by more than max(.05, 4 SE), SE paired over validation problems where counts are recorded; or if
a training metric was not finite. A non-finite validation metric never comes this far: `metrics.track` refuses it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from isojax.core.nouns import EvalPoint
from isojax.scaling.frontier.frontier_evidence import TracksByCell, evaluations_by_target, paired_lead
from isojax.scaling.validation_metrics import TRAIN_REWARD, RunTrack

LAST_EVALUATIONS = 3
MIN_DROP = 0.05
Z_DROP = 4.0


@dataclass(frozen=True)
class StabilityVerdict:
    """Whether all cells of a B_p train stably; if not, why."""

    B_p: int
    stable: bool
    reason: str = ""


def _nonfinite_reason(seeds: Sequence[RunTrack]) -> str:
    for t in seeds:
        if t.run.failure_reason:
            return f"n={t.run.cell.n} seed {t.run.cell.seed}: {t.run.failure_reason}"
        for p in t.run.points:
            nonfinite_names = [name for name, value in sorted(p.train.items()) if not math.isfinite(value)]
            if nonfinite_names:
                return (
                    f"n={t.run.cell.n} seed {t.run.cell.seed}: {nonfinite_names[0]} is "
                    f"{p.train[nonfinite_names[0]]} at C = {p.rollouts}"
                )
    return ""


def _drop_reason(seeds: Sequence[RunTrack], metric: str) -> str:
    """Why a cell that fell counts as unstable, else ""."""
    evaluations_at = evaluations_by_target(seeds)
    if len(evaluations_at) < 2:
        return ""
    reward_of = {(id(t), p.target): r for t in seeds for p, r in zip(t.run.points, t.R, strict=True)}
    mean_rewards = np.array([np.mean([reward_of[id(t), target] for t in seeds]) for target in evaluations_at])
    width = min(LAST_EVALUATIONS, len(mean_rewards))
    running_means = np.convolve(mean_rewards, np.full(width, 1 / width), mode="valid")
    best_start = int(running_means.argmax())
    drop = float(running_means[best_start] - running_means[-1])
    if drop <= MIN_DROP:
        return ""
    evaluations = [points for points, _ in evaluations_at.values()]

    def evaluations_from(start: int) -> list[EvalPoint]:
        return [p for points in evaluations[start : start + width] for p in points]

    difference = paired_lead(evaluations_from(best_start), evaluations_from(len(mean_rewards) - width), metric)
    limit = max(MIN_DROP, Z_DROP * difference.se if difference is not None else 0.0)
    if drop <= limit:
        return ""
    return (
        f"n={seeds[0].run.cell.n} ends at {running_means[-1]:.3f}, {drop:.3f} below its best "
        f"{running_means[best_start]:.3f} (limit {limit:.3f})"
    )


def _training_reward_fell(seeds: Sequence[RunTrack]) -> bool:
    """Whether the training reward of a run falls as well: then its policy broke, while overfitting would go on to raise
    it.
    """
    for t in seeds:
        training_rewards = np.array([p.train[TRAIN_REWARD] for p in t.run.points if TRAIN_REWARD in p.train])
        if len(training_rewards) <= LAST_EVALUATIONS:
            continue
        running_means = np.convolve(training_rewards, np.full(LAST_EVALUATIONS, 1 / LAST_EVALUATIONS), mode="valid")
        deviations = training_rewards[1:-1] - (training_rewards[:-2] + training_rewards[2:]) / 2
        noise_sd = np.sqrt(np.median(deviations**2) / (0.455 * 1.5))  # a median, which the fall itself does not move
        if running_means.max() - running_means[-1] > max(MIN_DROP, Z_DROP * np.sqrt(2 / LAST_EVALUATIONS) * noise_sd):
            return True
    return False


def assess_stability(
    cells: TracksByCell, metric: str, peaked_cells: Collection[tuple[int, int]] = ()
) -> tuple[StabilityVerdict, ...]:
    """One verdict for each B_p, by rising B_p.

    Args:
        cells: the runs of each (B_p, n). metric: the fitted metric.
        peaked_cells: cells whose fall past a peak the fit has described: overfitting, which stopping early avoids, is
            no instability. It is one where the training reward falls too.

    Raises:
        InputError: counts of different validation sets within a cell.
    """
    reasons: dict[int, list[str]] = {}
    for (B_p, n), seeds in sorted(cells.items()):
        is_overfitting = (B_p, n) in peaked_cells and not _training_reward_fell(seeds)
        reasons.setdefault(B_p, []).append(
            _nonfinite_reason(seeds) or ("" if is_overfitting else _drop_reason(seeds, metric))
        )
    return tuple(StabilityVerdict(B_p, not any(r), "; ".join(x for x in r if x)) for B_p, r in reasons.items())
