"""How far a sweep's rewards would shift if other validation problems had been drawn.

All runs and checkpoints are evaluated on the same problems, so the choice of problems moves every curve alike and does
not affect the comparison of two n. A replicate resamples the N problems with replacement. The shift of all evaluations
is approximated by shift(R) = R (1 - R) (a + b R), which is 0 at R = 0 and R = 1, where problems cannot differ. Least
squares over all evaluations gives a and b, so the noise of single evaluations averages out.
"""

from __future__ import annotations

import numpy as np

from isojax.scaling.curves.hierarchical_prior import PackedSweep
from isojax.scaling.validation_metrics import FloatArray, as_float64, correct_counts, metric_per_problem

MAX_METRIC_ROUNDING = 5e-4  # a recorded metric further from that of its counts was not computed from them


def sample_problem_shifts(contributions: FloatArray, replicates: int, rng: np.random.Generator) -> FloatArray:
    """(a, b) of each replicate, float[Q, 2]; contributions as `problem_contributions` gives them."""
    N = contributions.shape[1]
    return (rng.multinomial(N, np.full(N, 1 / N), size=replicates) / N - 1 / N) @ contributions.T


def apply_problem_shift(shifts: FloatArray, R: FloatArray) -> FloatArray:
    """Rewards R, float[..., Q, cells], on each replicate's problems; shifts float[Q, 2] are its (a, b)."""
    a, b = shifts[:, 0, None], shifts[:, 1, None]
    R_clipped = np.clip(R, 0.0, 1.0)
    return R + R_clipped * (1 - R_clipped) * (a + b * R_clipped)


def problem_contributions(packed: PackedSweep, metric: str, fitted_rewards: FloatArray) -> FloatArray | None:
    """float[2, N]: what each of the N problems contributes to (a, b); None unless every evaluation has the counts from
    which its metric was computed.

    fitted_rewards: float[J, S, P], the curves' rewards at the evaluations.
    """
    rewards_per_problem = []
    evaluations = [pair for seeds in packed.tracks for t in seeds for pair in zip(t.run.points, t.R, strict=True)]
    for point, recorded_reward in evaluations:
        counts = correct_counts(point, metric)
        problem_rewards = metric_per_problem(counts, point.samples, metric) if counts else None
        if problem_rewards is None or abs(float(problem_rewards.mean()) - recorded_reward) > MAX_METRIC_ROUNDING:
            return None
        rewards_per_problem.append(problem_rewards)
    R = np.clip(fitted_rewards[packed.has_point], 0.0, 1.0)
    basis = (R * (1 - R))[:, None] * np.stack([np.ones_like(R), R], axis=1)
    return as_float64(np.linalg.pinv(basis) @ np.stack(rewards_per_problem))
