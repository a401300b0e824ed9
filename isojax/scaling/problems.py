"""Other validation problems: how far a sweep's rewards would shift, had other problems been drawn.

All runs and checkpoints are evaluated on the same problems, so their luck is shared: it moves every curve alike and does not touch the
comparison of two n. A replicate draws the N problems anew with replacement; the shift of all evaluations is summed up as

    shift(R) = R (1 - R) (a + b R)

(nothing at 0 and 1, where problems cannot differ), by least squares over all evaluations, which leaves out the noise of single ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isojax.scaling.metrics import FloatArray, floats, per_problem, right_answers
from isojax.scaling.surface import Packed


@dataclass(frozen=True)
class Problems:
    """float[2, N]: what each of N problems adds to (a, b)."""

    share: FloatArray

    @property
    def count(self) -> int:
        """N."""
        return self.share.shape[1]

    def draw(self, replicates: int, rng: np.random.Generator) -> FloatArray:
        """float[Q, 2]: (a, b) of each replicate."""
        N = self.count
        return (rng.multinomial(N, np.full(N, 1 / N), size=replicates) / N - 1 / N) @ self.share.T


def shift(drawn: FloatArray, R: FloatArray) -> FloatArray:
    """float[..., Q, cells] rewards R moved to each replicate's problems; drawn float[Q, 2]."""
    a, b = drawn[:, 0, None], drawn[:, 1, None]
    inside = np.clip(R, 0.0, 1.0)
    return R + inside * (1 - inside) * (a + b * inside)


def problems(packed: Packed, metric: str, fitted: FloatArray) -> Problems | None:
    """From the right answers of each problem; None unless every evaluation has those that give the metric.

    Args:
        fitted: float[J, S, P], the curves' rewards at the evaluations.
    """
    rows = []
    for seeds in packed.tracks:
        for t in seeds:
            for p, r in zip(t.run.points, t.R, strict=True):
                right = right_answers(p, metric)
                if not right:
                    return None
                row = per_problem(right, p.samples, metric)
                if abs(float(row.mean()) - r) > 5e-4:  # the recorded metric is of something else
                    return None
                rows.append(row)
    R = np.clip(fitted[packed.recorded], 0.0, 1.0)
    basis = (R * (1 - R))[:, None] * np.stack([np.ones_like(R), R], axis=1)
    return Problems(floats(np.linalg.pinv(basis) @ np.stack(rows)))
