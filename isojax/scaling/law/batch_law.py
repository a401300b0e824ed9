"""B_p against n at a fixed batch B = B_p n: n*(M), B_p* = B / n* (IsoCompute Playbook, arXiv:2603.12151, section 4.2,
Figs. 9, 18, 19). A monotone n*(M) is rejected where, in 90% of the replicates, it loses more than MONOTONE_COST of
reward on average over log M against the best n at each M. Only budgets that all cells reached count."""

from collections.abc import Sequence

import numpy as np

from isojax.scaling.curves.hill import FittedCurve
from isojax.scaling.curves.sweep_estimate import PosteriorSamples, SweepEstimate
from isojax.scaling.law.frontier import compute_frontier, crossover_rows, frontier_rows, spread_indices
from isojax.scaling.law.n_star_law import choose_law, fit_law, most_common_n_law
from isojax.scaling.result import FixedBatchFit, FrontierRow, NStarOfMFit
from isojax.scaling.tracks import FloatArray, group_by

MAX_LAW_POINTS = 40
MAX_OBSERVATIONS = 20  # that the law's correlated points are worth
MONOTONE_COST = 0.001
REJECTION_CONFIDENCE = 0.9


def fit_fixed_batches(estimate: SweepEstimate) -> tuple[FixedBatchFit, ...]:
    """One entry for each batch B with at least two cells, by rising B."""
    curves_by_B = group_by(estimate.curves, lambda c: c.B_p * c.n)
    return tuple(_fit_batch(B, group, estimate) for B, group in sorted(curves_by_B.items()) if len(group) > 1)


def _fit_batch(B: int, curves: Sequence[FittedCurve], estimate: SweepEstimate) -> FixedBatchFit:
    frontier, no_effect = compute_frontier(curves), estimate.no_effect
    cell_draws = None if estimate.draws is None else estimate.draws.for_cells([c.key for c in curves])
    points = [frontier.points[i] for i in spread_indices(len(frontier.points), 4 * MAX_LAW_POINTS)]
    return FixedBatchFit(
        B=B,
        frontier=frontier_rows(points, cell_draws),
        crossovers=() if no_effect else crossover_rows(frontier, cell_draws),
        n_star=_fit_n_star_of_M(B, points, cell_draws, no_effect, max(c.n for c in curves)),
    )


def _fit_n_star_of_M(
    B: int, points: Sequence[FrontierRow], draws: PosteriorSamples | None, no_effect: bool | None, n_largest: int
) -> NStarOfMFit:
    """n*(M): the form AICc prefers, falling ones too; flagged where every monotone one is rejected."""
    M, n = np.array([p.C for p in points]) / B, np.array([p.n for p in points])
    if no_effect:
        return NStarOfMFit(law=most_common_n_law(n), no_effect=True)
    if no_effect is None:
        return NStarOfMFit(law=fit_law(M, n, n_largest), no_effect=False)
    law_indices = spread_indices(len(M), MAX_LAW_POINTS)
    M, log2_n = M[law_indices], np.log2(n[law_indices])
    choice = choose_law(M, log2_n, n_largest, observations=min(len(M), MAX_OBSERVATIONS), falling=True)
    n_star = NStarOfMFit(law=choice.law, no_effect=False, aicc=choice.aicc)
    if draws is None:
        return n_star
    costs = monotone_cost(draws, M * B)
    is_rejected = float(np.mean(costs > MONOTONE_COST)) >= REJECTION_CONFIDENCE
    return n_star.model_copy(update={"monotone_rejected": is_rejected, "monotone_cost": float(np.median(costs))})


def monotone_cost(draws: PosteriorSamples, C: FloatArray) -> FloatArray:
    """float[Q]: the mean reward, over the C that all cells reached, that the best monotone n(C) loses to the best n."""
    reached_by_all = draws.is_measured(C).all(0)
    if not reached_by_all.any():
        return np.zeros(len(draws.R0))
    rewards = draws.rewards(C[reached_by_all])[:, np.argsort([n for _, n in draws.keys])]
    best_monotone_sum = np.maximum(best_nondecreasing_sum(rewards), best_nondecreasing_sum(rewards[:, ::-1]))
    return (rewards.max(1).sum(1) - best_monotone_sum) / rewards.shape[2]


def best_nondecreasing_sum(rewards: FloatArray) -> FloatArray:
    """float[Q]: the largest sum over G of R[q, j(g), g] (float[Q, J, G]) with j never falling."""
    best_sum = rewards[:, :, 0]
    for g in range(1, rewards.shape[2]):
        best_sum = np.maximum.accumulate(best_sum, axis=1) + rewards[:, :, g]
    return best_sum.max(1)
