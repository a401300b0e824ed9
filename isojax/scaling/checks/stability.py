"""Which B_p train stably, and which runs overfit (IsoCompute Playbook, arXiv:2603.12151, section
4.3, appendix C and section 5.2). The paper gives no test of stability; ours is in docs/laws.md."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from isojax.scaling.checks.run_health import TRAIN_REWARD, training_reward_fell
from isojax.scaling.tracks import (
    RunTrack,
    TracksByCell,
    evaluations_by_target,
    noise_sd,
    paired_lead,
    running_means,
)

LAST_EVALUATIONS = 3
MIN_DROP, Z_DROP = 0.05, 4.0  # in reward and in standard errors
MIN_EVALUATIONS = 10  # of a cell, whose scatter says how noisy they are where no counts do
OVERFITTING_WINDOW = 4  # evaluations averaged
# of training and of validation reward, to count as overfitting
MIN_CHANGE = 0.01
Z_CHANGE = 3.0


@dataclass(frozen=True)
class StabilityVerdict:
    """Whether all cells of a B_p train stably; if not, why."""

    B_p: int
    stable: bool
    reason: str = ""


@dataclass(frozen=True)
class OverfittedRun:
    """A run whose training reward rises while its validation reward falls, beyond C."""

    B_p: int
    n: int
    seed: int
    C: float
    reason: str


def assess_stability(
    cells: TracksByCell, metric: str, peaked_cells: Collection[tuple[int, int]] = ()
) -> tuple[StabilityVerdict, ...]:
    """One verdict for each B_p, rising. A fall past a fitted peak (peaked_cells) is overfitting,
    which stopping early avoids, unless the training reward falls too."""
    reasons: dict[int, list[str]] = {}
    for (B_p, n), seeds in sorted(cells.items()):
        is_overfitting = (B_p, n) in peaked_cells and not any(
            training_reward_fell(t.run) for t in seeds
        )
        reason = _broken_reason(seeds) or ("" if is_overfitting else _drop_reason(seeds, metric))
        reasons.setdefault(B_p, []).append(reason)
    return tuple(
        StabilityVerdict(B_p, not any(r), "; ".join(filter(None, r))) for B_p, r in reasons.items()
    )


def _broken_reason(seeds: Sequence[RunTrack]) -> str:
    """Why the first run that broke off, or had a training metric that is not finite, counts as
    unstable, else ""."""
    for run in (t.run for t in seeds):
        where = f"n={run.cell.n} seed {run.cell.seed}"
        if run.failure_reason:
            return f"{where}: {run.failure_reason}"
        for p in run.points:
            for name, value in sorted(p.train.items()):
                if not math.isfinite(value):
                    return f"{where}: {name} is {value} at C = {p.rollouts}"
    return ""


def _drop_reason(seeds: Sequence[RunTrack], metric: str) -> str:
    """Why a cell that fell counts as unstable, else ""."""
    evaluations_at = evaluations_by_target(seeds)
    if len(evaluations_at) < 2:
        return ""
    evaluations, _, rewards = zip(*evaluations_at.values(), strict=True)
    mean_rewards = np.array(rewards)
    width = min(LAST_EVALUATIONS, len(mean_rewards))
    means = running_means(mean_rewards, width)
    best_start = int(means.argmax())
    drop = float(means[best_start] - means[-1])
    windows = (
        evaluations[start : start + width] for start in (best_start, len(evaluations) - width)
    )
    best, last = ([p for points in window for p in points] for window in windows)
    paired = paired_lead(best, last, metric)
    scatter = noise_sd([mean_rewards]) if len(mean_rewards) >= MIN_EVALUATIONS else 0.0
    se = scatter * math.sqrt(2 / width) if paired is None else paired.se
    limit = max(MIN_DROP, Z_DROP * se)
    if drop <= limit:
        return ""
    below = f"{drop:.3f} below its best {means[best_start]:.3f} (limit {limit:.3f})"
    return f"n={seeds[0].run.cell.n} ends at {means[-1]:.3f}, {below}"


def find_overfitting(
    tracks: Sequence[RunTrack], validation_sd: float | None
) -> tuple[OverfittedRun, ...]:
    """Runs whose training reward rises while validation falls; validation_sd None: from each run's
    own scatter."""
    return tuple(run for t in tracks if (run := _overfitted_run(t, validation_sd)) is not None)


def _overfitted_run(track: RunTrack, validation_sd: float | None) -> OverfittedRun | None:
    training_rewards = np.array([p.train.get(TRAIN_REWARD, np.nan) for p in track.run.points])
    usable = np.isfinite(training_rewards) & (track.C > 0)
    C, R, training_rewards = track.C[usable], track.R[usable], training_rewards[usable]
    if len(R) < 3 * OVERFITTING_WINDOW:
        return None
    validation_means, training_means = (
        running_means(v, OVERFITTING_WINDOW) for v in (R, training_rewards)
    )
    peak = int(validation_means[: 1 - OVERFITTING_WINDOW].argmax())
    fall = float(validation_means[peak] - validation_means[-1])
    rise = float(training_means[-1] - training_means[peak])
    z = Z_CHANGE * math.sqrt(2 / OVERFITTING_WINDOW)
    validation_sd = noise_sd([R]) if validation_sd is None else validation_sd
    if fall <= max(z * validation_sd, MIN_CHANGE) or rise <= max(
        z * noise_sd([training_rewards]), MIN_CHANGE
    ):
        return None
    cell = track.run.cell
    return OverfittedRun(
        B_p=cell.B_p,
        n=cell.n,
        seed=cell.seed,
        C=float(C[peak + OVERFITTING_WINDOW // 2]),
        reason=f"training reward rises by {rise:.3f} while validation falls by {fall:.3f}",
    )
