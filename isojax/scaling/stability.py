"""Which B_p train stably. B_p is mainly a stability knob (IsoCompute Playbook, arXiv:2603.12151, section 4.3 and appendix C).

The paper gives no test. Here a cell is unstable if it ends (mean of its last 3 evaluations, over seeds) below its own best running mean of
3 by more than max(.05, 4 SE), SE paired over validation problems where counts are recorded; or if a training metric was not finite.
A non-finite validation metric never comes this far: `metrics.track` refuses it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from isojax.scaling.metrics import TRAIN_REWARD, Track
from isojax.scaling.segments import Cells, at_targets, compare
from isojax.types import EvalPoint

LAST = 3
MIN_DROP = 0.05
Z_DROP = 4.0


@dataclass(frozen=True)
class Stability:
    """Whether all cells of a B_p train stably; if not, why."""

    B_p: int
    stable: bool
    reason: str = ""


def _non_finite(seeds: Sequence[Track]) -> str:
    for t in seeds:
        if t.run.failed:
            return f"n={t.run.cell.n} seed {t.run.cell.seed}: {t.run.failed}"
        for p in t.run.points:
            bad = [name for name, value in sorted(p.train.items()) if not math.isfinite(value)]
            if bad:
                return f"n={t.run.cell.n} seed {t.run.cell.seed}: {bad[0]} is {p.train[bad[0]]} at C = {p.rollouts}"
    return ""


def _drop(seeds: Sequence[Track], metric: str) -> str:
    """Why a cell that fell counts as unstable, else ""."""
    shared = at_targets(seeds)
    if len(shared) < 2:
        return ""
    value = {(id(t), p.target): r for t in seeds for p, r in zip(t.run.points, t.R, strict=True)}
    means = np.array([np.mean([value[id(t), target] for t in seeds]) for target in shared])
    width = min(LAST, len(means))
    smooth = np.convolve(means, np.full(width, 1 / width), mode="valid")
    best = int(smooth.argmax())
    drop = float(smooth[best] - smooth[-1])
    if drop <= MIN_DROP:
        return ""
    evaluations = [points for points, _ in shared.values()]

    def flat(start: int) -> list[EvalPoint]:
        return [p for points in evaluations[start : start + width] for p in points]

    found = compare(flat(best), flat(len(means) - width), metric)
    limit = max(MIN_DROP, Z_DROP * found.se if found is not None else 0.0)
    if drop <= limit:
        return ""
    return f"n={seeds[0].run.cell.n} ends at {smooth[-1]:.3f}, {drop:.3f} below its best {smooth[best]:.3f} (limit {limit:.3f})"


def _training_fell(seeds: Sequence[Track]) -> bool:
    """Whether the training reward of a run falls as well: then its policy broke, while overfitting would go on to raise it."""
    for t in seeds:
        train = np.array([p.train[TRAIN_REWARD] for p in t.run.points if TRAIN_REWARD in p.train])
        if len(train) <= LAST:
            continue
        smooth = np.convolve(train, np.full(LAST, 1 / LAST), mode="valid")
        bent = train[1:-1] - (train[:-2] + train[2:]) / 2
        noise = np.sqrt(np.median(bent**2) / (0.455 * 1.5))  # a median, which the fall itself does not move
        if smooth.max() - smooth[-1] > max(MIN_DROP, Z_DROP * np.sqrt(2 / LAST) * noise):
            return True
    return False


def stability(cells: Cells, metric: str, peaked: Collection[tuple[int, int]] = ()) -> tuple[Stability, ...]:
    """One verdict for each B_p, by rising B_p.

    Args:
        cells: the runs of each (B_p, n). metric: the fitted metric.
        peaked: cells whose fall past a peak the fit has described: overfitting, which stopping early mends, is no instability. It is one
            where the training reward falls too.

    Raises:
        InputError: counts of different validation sets within a cell.
    """
    reasons: dict[int, list[str]] = {}
    for (B_p, n), seeds in sorted(cells.items()):
        is_overfitting = (B_p, n) in peaked and not _training_fell(seeds)
        reasons.setdefault(B_p, []).append(_non_finite(seeds) or ("" if is_overfitting else _drop(seeds, metric)))
    return tuple(Stability(B_p, not any(r), "; ".join(x for x in r if x)) for B_p, r in reasons.items())
