"""The frontier of some cells with its crossovers, segments and law n*(C), and their intervals if there are replicates.

All cells together have such a frontier, and so have the cells of each B_p. Where the mode can say whether n makes a
difference, the form of the law is chosen among law_forms.FORMS, for the replicates' mean log2 n* at MAX_LAW_POINTS
budgets, weighted by their variance and by that of a grid of n that steps by factors (a uniform error of one step).
Mode "paper" cannot say, and fits its sigmoid through a running average.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from isojax.scaling.checks.fit_flags import frontier_flags
from isojax.scaling.curves.posterior_samples import (
    PosteriorSamples,
    crossover_interval,
    frontier_band,
    log2_best_n,
)
from isojax.scaling.estimate import SweepEstimate
from isojax.scaling.frontier.envelope import Frontier, compute_frontier, spread_indices
from isojax.scaling.frontier.frontier_evidence import segment_evidence
from isojax.scaling.intervals import central_interval
from isojax.scaling.law.n_star_law import Law, choose_law, fit_law
from isojax.scaling.result import (
    CrossoverRow,
    FitFlag,
    FrontierFit,
    FrontierRow,
    NStarBandRow,
    NStarFit,
    NStarIntervals,
)
from isojax.scaling.validation_metrics import FloatArray, TracksByCell

MAX_LAW_POINTS = 24
BAND_POINTS = 40


def fit_frontier(
    estimate: SweepEstimate, all_cells: TracksByCell, metric: str, B_p: int | None = None
) -> tuple[FrontierFit, list[FitFlag]]:
    """The frontier and law of all curves, or of those of one B_p, and their flags."""
    curves = [c for c in estimate.curves if B_p in (None, c.B_p)]
    cells = {key: seeds for key, seeds in all_cells.items() if B_p in (None, key[0])}
    frontier = compute_frontier(curves)
    segments = segment_evidence(frontier, cells, metric)
    measured_n = {n for _, n in cells}
    draws = None if estimate.draws is None else estimate.draws.for_cells([c.key for c in curves])
    crossovers = crossover_rows(frontier, draws, uncrossed_too=estimate.no_effect is None)
    n_star = _fit_n_star(frontier, draws, estimate.no_effect, max(measured_n), _count_targets(cells))
    flags = list(frontier_flags(frontier, segments, n_star.law, measured_n, n_star.no_effect))
    frontier_fit = FrontierFit(
        B_p=B_p,
        frontier=frontier_rows(frontier.points, draws),
        crossovers=() if estimate.no_effect else crossovers,  # curves that differ by nothing cross nowhere
        segments=segments,
        n_star=n_star,
    )
    return frontier_fit, flags


def _count_targets(cells: TracksByCell) -> int:
    """Different values of C at which cells were evaluated (targets of the shared grid)."""
    return len({p.target for seeds in cells.values() for t in seeds for p in t.run.points if p.rollouts > 0})


def frontier_rows(points: Sequence[FrontierRow], draws: PosteriorSamples | None) -> tuple[FrontierRow, ...]:
    """The points with the intervals that replicates give."""
    if draws is None:
        return tuple(points)
    band = frontier_band(draws, [p.C for p in points])
    return tuple(p.model_copy(update=row) for p, row in zip(points, band, strict=True))


def crossover_rows(
    frontier: Frontier, draws: PosteriorSamples | None, uncrossed_too: bool = False
) -> tuple[CrossoverRow, ...]:
    """Changes of n where two measured curves cross, and where the data of one end only if `uncrossed_too`."""
    changes = [(a, b) for a, b in pairwise(frontier.stretches) if a.n != b.n]
    rows = []
    for c, (before, after) in zip(frontier.crossovers, changes, strict=True):
        if c.crossing or uncrossed_too:
            low = high = None
            if draws is not None:
                low, high = crossover_interval(draws, (before.B_p, before.n), (after.B_p, after.n), c.C)
            rows.append(CrossoverRow(n_low=c.n_low, n_high=c.n_high, C=c.C, low=low, high=high))
    return tuple(rows)


def most_common_n_law(n: ArrayLike) -> Law:
    """Where n makes no difference: constant at the n that the frontier has most often, int[points]."""
    values, counts = np.unique(n, return_counts=True)
    return Law("constant", 0.0, 0.0, None, float(np.log2(values[counts.argmax()])))


def _fit_n_star(
    frontier: Frontier, draws: PosteriorSamples | None, no_effect: bool | None, n_largest: int, target_count: int
) -> NStarFit:
    C, n = np.array([p.C for p in frontier.points]), np.array([p.n for p in frontier.points])
    if no_effect is None:
        return NStarFit(law=fit_law(C, n, n_largest), no_effect=False)
    band = None if draws is None else _n_star_band(draws, C[spread_indices(len(C), BAND_POINTS)])
    if no_effect:
        return NStarFit(law=most_common_n_law(n), no_effect=True, band=band)
    law_indices = spread_indices(len(C), MAX_LAW_POINTS)
    observations = min(target_count, len(law_indices))
    log2_n, variance, intervals = np.log2(n[law_indices]), None, None
    if draws is not None:
        log2_n_replicates = log2_best_n(draws, C[law_indices])
        log2_n = log2_n_replicates.mean(0)
        variance = log2_n_replicates.var(0) + _grid_step(n) ** 2 / 12
        intervals = _n_star_intervals(log2_n_replicates)
    choice = choose_law(C[law_indices], log2_n, n_largest, variance, observations)
    return NStarFit(law=choice.law, no_effect=False, aicc=choice.aicc, band=band, intervals=intervals)


def _grid_step(n: FloatArray) -> float:
    """The typical step of the frontier's n, in log2."""
    values = np.unique(n)
    return float(np.median(np.diff(np.log2(values)))) if len(values) > 1 else 1.0


def _n_interval(log2_n: FloatArray) -> tuple[float, float]:
    """The interval of n over replicates of log2 n, float[Q], all finite."""
    low, high = central_interval(log2_n)
    return 2 ** (low or 0.0), 2 ** (high or 0.0)


def _n_star_band(draws: PosteriorSamples, C: FloatArray) -> tuple[NStarBandRow, ...]:
    """90% of the replicates' best n at some budgets."""
    intervals = [_n_interval(column) for column in log2_best_n(draws, C).T]
    return tuple(NStarBandRow(C=at, low=low, high=high) for at, (low, high) in zip(C.tolist(), intervals, strict=True))


def _n_star_intervals(log2_n_replicates: FloatArray) -> NStarIntervals:
    """90% intervals of the best n at the ends and the middle of the measured range. The law's own parameters trade off
    against one another: an interval for each would say less."""
    middle = log2_n_replicates.shape[1] // 2
    return NStarIntervals(
        n_at_low_C=_n_interval(log2_n_replicates[:, 0]),
        n_at_middle_C=_n_interval(log2_n_replicates[:, middle]),
        n_at_high_C=_n_interval(log2_n_replicates[:, -1]),
    )
