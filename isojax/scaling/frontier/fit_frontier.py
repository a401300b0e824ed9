"""The frontier of all cells, or of the cells of one B_p, with its crossovers, segments and law n*(C). A segment is
where one n holds the frontier; its lead over the cells before and after is a paired difference on the same problems, at
the target where the smallest z over them is largest, which favours the winner.
"""

import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from isojax.scaling import result
from isojax.scaling.checks.fit_flags import frontier_flags
from isojax.scaling.curves.posterior_samples import PosteriorSamples, crossover_interval, frontier_band, log2_best_n
from isojax.scaling.estimate import SweepEstimate
from isojax.scaling.frontier.envelope import Frontier, FrontierStretch, compute_frontier, spread_indices
from isojax.scaling.intervals import central_interval
from isojax.scaling.law.n_star_law import Law, choose_law, fit_law
from isojax.scaling.result import FrontierRow
from isojax.scaling.tracks import (
    FloatArray,
    PairedDifference,
    TracksByCell,
    evaluations_by_target,
    paired_lead,
)

MAX_LAW_POINTS = 24
BAND_POINTS = 40


def fit_frontier(
    estimate: SweepEstimate, all_cells: TracksByCell, metric: str, B_p: int | None = None
) -> tuple[result.FrontierFit, list[result.FitFlag]]:
    """The frontier and law of all curves, or of those of one B_p, and their flags."""
    curves = [c for c in estimate.curves if B_p in (None, c.B_p)]
    cells = {key: seeds for key, seeds in all_cells.items() if B_p in (None, key[0])}
    frontier = compute_frontier(curves)
    segments = segment_evidence(frontier, cells, metric)
    measured_n = {n for _, n in cells}
    draws = None if estimate.draws is None else estimate.draws.for_cells([c.key for c in curves])
    crossovers = crossover_rows(frontier, draws, uncrossed_too=estimate.no_effect is None)
    targets = {p.target for seeds in cells.values() for t in seeds for p in t.run.points if p.rollouts > 0}
    n_star = _fit_n_star(frontier, draws, estimate.no_effect, max(measured_n), len(targets))
    flags = list(frontier_flags(frontier, segments, n_star.law, measured_n, n_star.no_effect))
    frontier_fit = result.FrontierFit(
        B_p=B_p,
        frontier=frontier_rows(frontier.points, draws),
        crossovers=() if estimate.no_effect else crossovers,  # curves that differ by nothing cross nowhere
        segments=segments,
        n_star=n_star,
    )
    return frontier_fit, flags


def frontier_rows(points: Sequence[FrontierRow], draws: PosteriorSamples | None) -> tuple[FrontierRow, ...]:
    """The points with the intervals that replicates give."""
    if draws is None:
        return tuple(points)
    band = frontier_band(draws, [p.C for p in points])
    return tuple(p.model_copy(update=row) for p, row in zip(points, band, strict=True))


def crossover_rows(
    frontier: Frontier, draws: PosteriorSamples | None, uncrossed_too: bool = False
) -> tuple[result.CrossoverRow, ...]:
    """Changes of n where two measured curves cross, and where the data of one end only if `uncrossed_too`."""
    changes = [(a, b) for a, b in pairwise(frontier.stretches) if a.n != b.n]
    rows = []
    for c, (before, after) in zip(frontier.crossovers, changes, strict=True):
        if c.crossing or uncrossed_too:
            low = high = None
            if draws is not None:
                low, high = crossover_interval(draws, (before.B_p, before.n), (after.B_p, after.n), c.C)
            rows.append(result.CrossoverRow(n_low=c.n_low, n_high=c.n_high, C=c.C, low=low, high=high))
    return tuple(rows)


def most_common_n_law(n: ArrayLike) -> Law:
    """Where n makes no difference: constant at the n that the frontier has most often, int[points]."""
    values, counts = np.unique(n, return_counts=True)
    return Law("constant", 0.0, 0.0, None, float(np.log2(values[counts.argmax()])))


def _fit_n_star(
    frontier: Frontier, draws: PosteriorSamples | None, no_effect: bool | None, n_largest: int, target_count: int
) -> result.NStarFit:
    """The law of the replicates' mean log2 n* at MAX_LAW_POINTS budgets, weighted by their variance plus that of the
    grid of n (a uniform error of one step); the paper's sigmoid in a mode that cannot say whether n matters.
    """
    C, n = np.array([p.C for p in frontier.points]), np.array([p.n for p in frontier.points])
    if no_effect is None:
        return result.NStarFit(law=fit_law(C, n, n_largest), no_effect=False)
    band = None if draws is None else _n_star_band(draws, C[spread_indices(len(C), BAND_POINTS)])
    if no_effect:
        return result.NStarFit(law=most_common_n_law(n), no_effect=True, band=band)
    law_indices = spread_indices(len(C), MAX_LAW_POINTS)
    observations = min(target_count, len(law_indices))
    log2_n, variance, intervals = np.log2(n[law_indices]), None, None
    if draws is not None:
        log2_n_replicates = log2_best_n(draws, C[law_indices])
        log2_n = log2_n_replicates.mean(0)
        steps = np.diff(np.log2(np.unique(n)))
        variance = log2_n_replicates.var(0) + (float(np.median(steps)) if len(steps) else 1.0) ** 2 / 12
        # The law's own parameters trade off against one another: an interval for each would say less.
        intervals = result.NStarIntervals(
            n_at_low_C=_n_interval(log2_n_replicates[:, 0]),
            n_at_middle_C=_n_interval(log2_n_replicates[:, len(law_indices) // 2]),
            n_at_high_C=_n_interval(log2_n_replicates[:, -1]),
        )
    choice = choose_law(C[law_indices], log2_n, n_largest, variance, observations)
    return result.NStarFit(law=choice.law, no_effect=False, aicc=choice.aicc, band=band, intervals=intervals)


def _n_interval(log2_n: FloatArray) -> tuple[float, float]:
    """The interval of n over replicates of log2 n, float[Q], all finite."""
    low, high = central_interval(log2_n)
    return 2 ** (low or 0.0), 2 ** (high or 0.0)


def _n_star_band(draws: PosteriorSamples, C: FloatArray) -> tuple[result.NStarBandRow, ...]:
    """90% of the replicates' best n at some budgets."""
    intervals = [_n_interval(column) for column in log2_best_n(draws, C).T]
    return tuple(
        result.NStarBandRow(C=at, low=low, high=high) for at, (low, high) in zip(C.tolist(), intervals, strict=True)
    )


def segment_evidence(frontier: Frontier, cells: TracksByCell, metric: str) -> tuple[result.SegmentRow, ...]:
    """The evidence for each n of a frontier (stretches of one n are one segment); leads need counts of the metric."""
    stretches_by_n = [list(stretches) for _, stretches in groupby(frontier.stretches, key=lambda s: s.n)]
    crossings = {c.C for c in frontier.crossovers if c.crossing}
    segments = []
    for i, stretches in enumerate(stretches_by_n):
        before = [group[-1] for group in stretches_by_n[max(i - 1, 0) : i]]
        after = [group[0] for group in stretches_by_n[i + 1 : i + 2]]
        neighbours = list(dict.fromkeys((s.n, s.B_p) for s in (*before, *after)))
        C_low, C_high = stretches[0].C_low, stretches[-1].C_high
        longest_stretch = max(stretches, key=lambda s: s.C_high / s.C_low)
        segment = result.SegmentRow(
            n=longest_stretch.n,
            B_p=longest_stretch.B_p,
            C_low=C_low,
            C_high=C_high,
            decades=math.log10(C_high / C_low),
            neighbours=tuple(result.NeighbourCell(n=n, B_p=B_p) for n, B_p in neighbours),
            censored_low=C_low not in crossings,
            censored_high=C_high not in crossings,
            **_best_lead(stretches, neighbours, cells, metric),
        )
        segments.append(segment)
    return tuple(segments)


def _best_lead(
    stretches: Sequence[FrontierStretch], neighbours: Sequence[tuple[int, int]], cells: TracksByCell, metric: str
) -> dict[str, Any]:
    """The lead of one n, which holds the stretches, over the neighbouring cells (n, B_p): fields of SegmentRow."""
    rival_evaluations = [evaluations_by_target(cells[B_p, n]) for n, B_p in neighbours]
    best: tuple[PairedDifference, float] | None = None
    has_common_target = False
    for stretch in stretches:
        for target, (points, C) in evaluations_by_target(cells[stretch.B_p, stretch.n]).items():
            inside = stretch.C_low * (1 - 1e-9) <= C <= stretch.C_high * (1 + 1e-9)
            if not rival_evaluations or not inside or any(target not in r for r in rival_evaluations):
                continue
            has_common_target = True
            differences = [paired_lead(points, r[target][0], metric) for r in rival_evaluations]
            paired_differences = [d for d in differences if d is not None]
            if len(paired_differences) < len(differences):
                continue
            closest = min(paired_differences, key=lambda d: d.z)
            if best is None or closest.z > best[0].z:
                best = closest, C
    if best is None:
        return {"measured_for_neighbours": has_common_target}
    lead, C = best
    z = lead.z if math.isfinite(lead.z) else None
    return {"measured_for_neighbours": True, "lead": lead.mean, "se": lead.se, "z": z, "at_C": C}
