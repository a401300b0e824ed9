"""Does an n on the frontier stand on data? The winner's paired lead over the cells that hold the frontier before and
after it.

A segment is where one n holds the frontier; which B_p it does so with may change inside. All cells are evaluated at the
same targets of C, on the same validation problems, so a lead is a paired difference at one target. Of
the targets within a segment the one is reported at which the smallest z over the neighbours is largest: choosing it
favours the winner. Each cell answers a target at its first update reaching it, so a cell of large B_p n has spent up to
one update more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from isojax.core.nouns import EvalPoint
from isojax.scaling.validation_metrics import PairedDifference, RunTrack, correct_counts, paired_difference

if TYPE_CHECKING:  # scaling/checks/run_health.py is loaded by every run, which the fitters are not
    from isojax.scaling.frontier.envelope import Frontier, FrontierStretch

TracksByCell = Mapping[tuple[int, int], Sequence[RunTrack]]


@dataclass(frozen=True)
class FrontierSegment:
    """Where one n holds the frontier, and its evidence.

    Attributes:
        B_p: the one that holds most of it.
        decades: log10(C_high / C_low).
        neighbours: (n, B_p) of the cells that hold the frontier just before and just after.
        measured_for_neighbours: whether all neighbours and the winner were evaluated at a common target within the
        segment.
        lead, se, z: paired lead over the closest neighbour at the best such target; None where nothing can be paired (z
        too if se is 0).
        at_C: the winner's compute there, the mean over its seeds.
    """

    n: int
    B_p: int
    C_low: float
    C_high: float
    decades: float
    neighbours: tuple[tuple[int, int], ...]
    measured_for_neighbours: bool
    lead: float | None = None
    se: float | None = None
    z: float | None = None
    at_C: float | None = None


def evaluations_by_target(seeds: Sequence[RunTrack]) -> dict[int, tuple[list[EvalPoint], float]]:
    """For each target that all seeds of a cell answered: their evaluations, and the mean of their compute."""
    maps_by_seed = [{p.target: (p, float(c)) for p, c in zip(t.run.points, t.C, strict=True)} for t in seeds]
    common_targets = sorted(set.intersection(*(set(m) for m in maps_by_seed)))
    return {
        t: ([m[t][0] for m in maps_by_seed], float(np.mean([m[t][1] for m in maps_by_seed]))) for t in common_targets
    }


def paired_lead(
    evaluations_a: Sequence[EvalPoint], evaluations_b: Sequence[EvalPoint], metric: str
) -> PairedDifference | None:
    """The paired difference of two lists of evaluations (one a seed); None without counts of one common number of
    samples.

    Raises:
        InputError: counts of different validation sets.
    """
    sample_counts = {p.samples for p in (*evaluations_a, *evaluations_b)}
    correct_a, correct_b = ([correct_counts(p, metric) for p in points] for points in (evaluations_a, evaluations_b))
    if len(sample_counts) != 1 or not all([*correct_a, *correct_b]):
        return None
    return paired_difference(correct_a, correct_b, sample_counts.pop(), metric)


def _evidence_for_n(
    stretches: Sequence[FrontierStretch], neighbours: Sequence[tuple[int, int]], cells: TracksByCell, metric: str
) -> FrontierSegment:
    """The evidence for one n, which holds the consecutive `stretches`, against the neighbouring cells (n, B_p)."""
    rival_evaluations = [evaluations_by_target(cells[B_p, n]) for n, B_p in neighbours]
    best_lead: tuple[float, PairedDifference, float] | None = None
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
            if best_lead is None or closest.z > best_lead[0]:
                best_lead = closest.z, closest, C
    C_low, C_high = stretches[0].C_low, stretches[-1].C_high
    longest_stretch = max(stretches, key=lambda s: s.C_high / s.C_low)
    common_fields = (
        longest_stretch.n,
        longest_stretch.B_p,
        C_low,
        C_high,
        math.log10(C_high / C_low),
        tuple(neighbours),
        has_common_target,
    )
    if best_lead is None:
        return FrontierSegment(*common_fields)
    z, lead, C = best_lead
    return FrontierSegment(*common_fields, lead.mean, lead.se, z if math.isfinite(z) else None, C)


def segment_evidence(frontier: Frontier, cells: TracksByCell, metric: str) -> tuple[FrontierSegment, ...]:
    """The evidence for each n of a frontier: consecutive stretches of one n are one segment, whatever their B_p.

    Args:
        cells: the runs of each (B_p, n).
        metric: the fitted metric; leads need one that follows from right answers (`parse_metric`), and those to be
        recorded.

    Raises:
        InputError: counts of different validation sets.
    """
    stretches_by_n = [list(stretches) for _, stretches in groupby(frontier.stretches, key=lambda s: s.n)]
    evidence = []
    for i, own_stretches in enumerate(stretches_by_n):
        adjacent_stretches = [
            *(stretches_by_n[i - 1][-1:] if i else []),
            *(stretches_by_n[i + 1][:1] if i + 1 < len(stretches_by_n) else []),
        ]
        evidence.append(
            _evidence_for_n(own_stretches, list(dict.fromkeys((o.n, o.B_p) for o in adjacent_stretches)), cells, metric)
        )
    return tuple(evidence)
