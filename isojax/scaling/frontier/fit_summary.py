"""The frontier of some cells with its crossovers, segments and law n*(C), and their intervals if there are replicates.

All cells together have such a frontier, and so have the cells of each B_p. In hierarchical mode the form of the law is
chosen among law_forms.FORMS, for the replicates' mean log2 n* at MAX_LAW_POINTS budgets, weighted by their variance and
by that of a grid of n that steps by factors (a uniform error of one step).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from isojax.scaling.checks.fit_flags import frontier_flags
from isojax.scaling.curves.hill import FittedCurve
from isojax.scaling.curves.posterior_samples import (
    PosteriorSamples,
    crossover_interval,
    frontier_band,
    log2_best_n,
)
from isojax.scaling.frontier.envelope import Frontier, compute_frontier
from isojax.scaling.frontier.frontier_evidence import FrontierSegment, TracksByCell, segment_evidence
from isojax.scaling.intervals import central_interval
from isojax.scaling.law.n_star_law import Law, choose_law, fit_law
from isojax.scaling.result import (
    CrossoverRow,
    FitFlag,
    FrontierFit,
    FrontierRow,
    NeighbourCell,
    NStarBandRow,
    NStarFit,
    NStarIntervals,
    SegmentRow,
)
from isojax.scaling.validation_metrics import FloatArray

MAX_LAW_POINTS = 24
BAND_POINTS = 40


@dataclass(frozen=True)
class FrontierOptions:
    """What the mode of the fit says about its frontiers.

    Attributes:
        metric: the fitted metric.
        hierarchical: choose the law's form by AICc (else the paper's sigmoid through a running average).
        no_effect: whether n makes no difference; the law is then constant, and curves that differ by nothing cross
            nowhere.
    """

    metric: str
    hierarchical: bool
    no_effect: bool


def fit_frontier(
    curves: Sequence[FittedCurve],
    cells: TracksByCell,
    draws: PosteriorSamples | None,
    options: FrontierOptions,
    B_p: int | None = None,
) -> tuple[FrontierFit, list[FitFlag]]:
    """The frontier and law of some curves, and their flags.

    Args:
        cells: the runs of each (B_p, n).
        draws: replicates of these curves; None: no intervals.
        B_p: the one whose cells these are; None for all cells.
    """
    fitted_frontier: Frontier = compute_frontier(curves)
    evidence = segment_evidence(fitted_frontier, cells, options.metric)
    measured_n = {n for _, n in cells}
    cell_draws = None if draws is None else draws.for_cells([c.key for c in curves])
    n_star = _fit_n_star(fitted_frontier, cell_draws, max(measured_n), options, _count_targets(cells))
    flags = frontier_flags(fitted_frontier, evidence, n_star.law, measured_n, options.no_effect)
    frontier_fit = FrontierFit(
        B_p=B_p,
        frontier=_frontier_rows(fitted_frontier, cell_draws),
        crossovers=() if options.no_effect else _crossover_rows(fitted_frontier, cell_draws, options.hierarchical),
        segments=tuple(_segment_row(s, i, fitted_frontier) for i, s in enumerate(evidence)),
        n_star=n_star,
    )
    return frontier_fit, flags


def _count_targets(cells: TracksByCell) -> int:
    """Different values of C at which cells were evaluated (targets of the shared grid)."""
    return len({p.target for seeds in cells.values() for t in seeds for p in t.run.points if p.rollouts > 0})


def _frontier_rows(frontier: Frontier, draws: PosteriorSamples | None) -> tuple[FrontierRow, ...]:
    if draws is None:
        return tuple(FrontierRow(**asdict(p)) for p in frontier.points)
    band = frontier_band(draws, [p.C for p in frontier.points])
    return tuple(FrontierRow(**asdict(p), **row) for p, row in zip(frontier.points, band, strict=True))


def _crossover_rows(frontier: Frontier, draws: PosteriorSamples | None, hierarchical: bool) -> tuple[CrossoverRow, ...]:
    """Changes of n; in hierarchical mode only those where two measured curves cross, not those where one's data end."""
    stretches_by_C = {after.C_low: (before, after) for before, after in pairwise(frontier.stretches)}
    rows = []
    for c in frontier.crossovers:
        if hierarchical and not c.crossing:
            continue
        before, after = stretches_by_C[c.C]
        low = high = None
        if draws is not None:
            low, high = crossover_interval(draws, (before.B_p, before.n), (after.B_p, after.n), c.C)
        rows.append(CrossoverRow(n_low=c.n_low, n_high=c.n_high, C=c.C, low=low, high=high))
    return tuple(rows)


def _segment_row(segment: FrontierSegment, index: int, frontier: Frontier) -> SegmentRow:
    """The i-th segment; censored where it begins or ends with the data, its own or its neighbour's, not by a
    crossing.
    """
    crossovers = frontier.crossovers
    return SegmentRow(
        **asdict(segment)
        | {
            "neighbours": tuple(NeighbourCell(n=n, B_p=B_p) for n, B_p in segment.neighbours),
            "censored_low": index == 0 or not crossovers[index - 1].crossing,
            "censored_high": index == len(crossovers) or not crossovers[index].crossing,
        }
    )


def most_common_n_law(n: ArrayLike) -> Law:
    """Where n makes no difference: constant at the n that the frontier has most often, int[points]."""
    values, counts = np.unique(n, return_counts=True)
    return Law("constant", 0.0, 0.0, None, float(np.log2(values[counts.argmax()])))


def _fit_n_star(
    frontier: Frontier,
    draws: PosteriorSamples | None,
    n_largest: int,
    options: FrontierOptions,
    target_count: int,
) -> NStarFit:
    C, n = np.array([p.C for p in frontier.points]), np.array([p.n for p in frontier.points])
    if not options.hierarchical:
        return NStarFit(law=fit_law(C, n, n_largest), no_effect=False)
    if options.no_effect:
        return NStarFit(law=most_common_n_law(n), no_effect=True, band=_n_star_band(draws, C))
    law_indices = np.unique(np.linspace(0, len(C) - 1, MAX_LAW_POINTS).round().astype(int))
    observations = min(target_count, len(law_indices))
    if draws is None:
        choice = choose_law(C[law_indices], np.log2(n[law_indices]), n_largest, observations=observations)
        return NStarFit(law=choice.law, no_effect=False, aicc=choice.aicc)
    log2_n_replicates = log2_best_n(draws, C[law_indices])
    variance = log2_n_replicates.var(0) + _grid_step(n) ** 2 / 12
    choice = choose_law(C[law_indices], log2_n_replicates.mean(0), n_largest, variance, observations=observations)
    return NStarFit(
        law=choice.law,
        no_effect=False,
        aicc=choice.aicc,
        band=_n_star_band(draws, C),
        intervals=_n_star_intervals(log2_n_replicates),
    )


def _grid_step(n: FloatArray) -> float:
    """The typical step of the frontier's n, in log2."""
    values = np.unique(n)
    return float(np.median(np.diff(np.log2(values)))) if len(values) > 1 else 1.0


def _n_interval(log2_n: FloatArray) -> tuple[float, float]:
    """The interval of n over replicates of log2 n, float[Q], all finite."""
    low, high = central_interval(log2_n)
    return 2 ** (low or 0.0), 2 ** (high or 0.0)


def _n_star_band(draws: PosteriorSamples | None, C: FloatArray) -> tuple[NStarBandRow, ...] | None:
    """90% of the replicates' best n at some budgets."""
    if draws is None:
        return None
    C_band = C[np.unique(np.linspace(0, len(C) - 1, BAND_POINTS).round().astype(int))]
    intervals = [_n_interval(column) for column in log2_best_n(draws, C_band).T]
    return tuple(NStarBandRow(C=float(c), low=low, high=high) for c, (low, high) in zip(C_band, intervals, strict=True))


def _n_star_intervals(log2_n_replicates: FloatArray) -> NStarIntervals:
    """90% intervals of the best n at the ends and the middle of the measured range. The law's own parameters trade off
    against one another: an interval for each would say less."""
    middle = log2_n_replicates.shape[1] // 2
    return NStarIntervals(
        n_at_low_C=_n_interval(log2_n_replicates[:, 0]),
        n_at_middle_C=_n_interval(log2_n_replicates[:, middle]),
        n_at_high_C=_n_interval(log2_n_replicates[:, -1]),
    )
