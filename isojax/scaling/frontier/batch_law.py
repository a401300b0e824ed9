"""B_p against n at a fixed batch B = B_p n (IsoCompute Playbook, arXiv:2603.12151, section 4.2, Figs. 9, 18, 19):
n*(M), B_p* = B / n*.

The paper fits a sigmoid in M on Easy and finds no monotone law on Hard. Here the law may fall, and whether any monotone
n*(M) can hold is tested in units of reward: in each replicate the best monotone path through the measured n (either
way, by dynamic programming) is compared with the best path of all. If in 90% of replicates monotony costs more than
MONOTONE_COST of reward on average over log M, it is rejected, and the law is the sequence of n that lead. Only budgets
count that all cells reached: a cell that ended early proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isojax.scaling.curves.hill import FittedCurve
from isojax.scaling.curves.posterior_samples import PosteriorSamples, best_cells, crossover_interval
from isojax.scaling.frontier.envelope import Frontier, FrontierPoint, compute_frontier
from isojax.scaling.frontier.fit_summary import most_common_n_law
from isojax.scaling.intervals import central_interval
from isojax.scaling.law.n_star_law import choose_law, fit_law
from isojax.scaling.result import FixedBatchCrossover, FixedBatchFit, FixedBatchRow, NStarOfMFit
from isojax.scaling.validation_metrics import FloatArray

MAX_LAW_POINTS = 40
MONOTONE_COST = 0.001
REJECTION_CONFIDENCE = 0.9


def fit_fixed_batches(
    curves: Sequence[FittedCurve], draws: PosteriorSamples | None, no_effect: bool | None
) -> tuple[FixedBatchFit, ...]:
    """One entry for each batch B with at least two cells, by rising B.

    Args:
        draws: replicates of the curves; None: no intervals.
        no_effect: whether n makes no difference; None in mode "paper", which cannot say and fits its sigmoid.
    """
    curves_by_B: dict[int, list[FittedCurve]] = {}
    for c in curves:
        curves_by_B.setdefault(c.B_p * c.n, []).append(c)
    return tuple(_fit_batch(B, group, draws, no_effect) for B, group in sorted(curves_by_B.items()) if len(group) > 1)


def _fit_batch(
    B: int, curves: Sequence[FittedCurve], draws: PosteriorSamples | None, no_effect: bool | None
) -> FixedBatchFit:
    frontier = compute_frontier(curves)
    cell_draws = None if draws is None else draws.for_cells([c.key for c in curves])
    point_indices = np.unique(np.linspace(0, len(frontier.points) - 1, 4 * MAX_LAW_POINTS).round().astype(int))
    points = [frontier.points[i] for i in point_indices]
    M = np.array([p.C for p in points]) / B
    return FixedBatchFit(
        B=B,
        frontier=_frontier_rows(B, points, cell_draws),
        crossovers=() if no_effect else _crossover_rows(B, frontier, cell_draws),
        n_star=_fit_n_star_of_M(M, [p.n for p in points], cell_draws, no_effect, curves),
    )


def _frontier_rows(
    B: int, points: Sequence[FrontierPoint], draws: PosteriorSamples | None
) -> tuple[FixedBatchRow, ...]:
    intervals = [(None, None)] * len(points)
    if draws is not None:
        intervals = [central_interval(column) for column in best_cells(draws, [p.C for p in points])[0].T]
    return tuple(
        FixedBatchRow(M=p.C / B, C=p.C, reward=p.reward, n=p.n, B_p=p.B_p, low=low, high=high)
        for p, (low, high) in zip(points, intervals, strict=True)
    )


def _crossover_rows(B: int, frontier: Frontier, draws: PosteriorSamples | None) -> tuple[FixedBatchCrossover, ...]:
    rows = []
    for c in (c for c in frontier.crossovers if c.crossing):
        low = high = None
        if draws is not None:
            low, high = crossover_interval(draws, (B // c.n_low, c.n_low), (B // c.n_high, c.n_high), c.C)
        rows.append(FixedBatchCrossover(n_low=c.n_low, n_high=c.n_high, M=c.C / B, C=c.C, low=low, high=high))
    return tuple(rows)


def _fit_n_star_of_M(
    M: FloatArray,
    n: Sequence[int],
    draws: PosteriorSamples | None,
    no_effect: bool | None,
    curves: Sequence[FittedCurve],
) -> NStarOfMFit:
    """n*(M): the form AICc prefers, falling ones too; flagged where every monotone one is rejected."""
    if no_effect:
        return NStarOfMFit(law=most_common_n_law(n), no_effect=True)
    n_largest, log2_n = max(c.n for c in curves), np.log2(n)
    if no_effect is None:
        return NStarOfMFit(law=fit_law(M, n, n_largest), no_effect=False)
    law_indices = np.unique(np.linspace(0, len(M) - 1, MAX_LAW_POINTS).round().astype(int))
    choice = choose_law(
        M[law_indices], log2_n[law_indices], n_largest, observations=min(len(law_indices), 20), falling=True
    )
    if draws is None:
        return NStarOfMFit(law=choice.law, no_effect=False, aicc=choice.aicc)
    monotone_costs = monotone_cost(draws, M[law_indices] * curves[0].B_p * curves[0].n)
    return NStarOfMFit(
        law=choice.law,
        no_effect=False,
        aicc=choice.aicc,
        monotone_rejected=float(np.mean(monotone_costs > MONOTONE_COST)) >= REJECTION_CONFIDENCE,
        monotone_cost=float(np.median(monotone_costs)),
    )


def monotone_cost(draws: PosteriorSamples, C: FloatArray) -> FloatArray:
    """float[Q]: the mean reward, over those C that all cells reached, that the best monotone n(C), rising or falling,
    loses against the best n at each C."""
    reached_by_all = draws.is_measured(C).all(0)
    if not reached_by_all.any():
        return np.zeros(len(draws.R0))
    rewards = draws.rewards(C[reached_by_all])[:, np.argsort([n for _, n in draws.keys])]
    best_monotone_sum = np.maximum(_best_nondecreasing_sum(rewards), _best_nondecreasing_sum(rewards[:, ::-1]))
    return (rewards.max(1).sum(1) - best_monotone_sum) / rewards.shape[2]


def _best_nondecreasing_sum(rewards: FloatArray) -> FloatArray:
    """float[Q]: the largest sum over G of R[q, j(g), g] (float[Q, J, G]) with j never falling."""
    best_sum = rewards[:, :, 0]
    for g in range(1, rewards.shape[2]):
        best_sum = np.maximum.accumulate(best_sum, axis=1) + rewards[:, :, g]
    return best_sum.max(1)
