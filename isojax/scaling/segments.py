"""Does an n on the frontier stand on data? The winner's paired lead over the cells that hold the frontier before and after it.

A segment is where one n holds the frontier; which B_p it does so with may change inside. All cells are evaluated at the same targets of
C, on the same validation problems, so a lead is a paired difference at one target. Of
the targets within a segment the one is reported at which the smallest z over the neighbours is largest: choosing it favours the winner.
Each cell answers a target at its first update reaching it, so a cell of large B_p n has spent up to one update more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from isojax.scaling.metrics import Difference, Track, paired_difference, right_answers
from isojax.types import EvalPoint

if TYPE_CHECKING:  # health.py is loaded by every run, which the fitters are not
    from isojax.scaling.frontier import Frontier, Stretch

Cells = Mapping[tuple[int, int], Sequence[Track]]


@dataclass(frozen=True)
class Segment:
    """Where one n holds the frontier, and its evidence.

    Attributes:
        B_p: the one that holds most of it.
        decades: log10(C_high / C_low).
        neighbours: (n, B_p) of the cells that hold the frontier just before and just after.
        measured_for_neighbours: whether all neighbours and the winner were evaluated at a common target within the segment.
        lead, se, z: paired lead over the closest neighbour at the best such target; None where nothing can be paired (z too if se is 0).
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


def at_targets(seeds: Sequence[Track]) -> dict[int, tuple[list[EvalPoint], float]]:
    """For each target that all seeds of a cell answered: their evaluations, and the mean of their compute."""
    maps = [{p.target: (p, float(c)) for p, c in zip(t.run.points, t.C, strict=True)} for t in seeds]
    common = sorted(set.intersection(*(set(m) for m in maps)))
    return {t: ([m[t][0] for m in maps], float(np.mean([m[t][1] for m in maps]))) for t in common}


def compare(a: Sequence[EvalPoint], b: Sequence[EvalPoint], metric: str) -> Difference | None:
    """The paired difference of two lists of evaluations (one a seed); None without counts of one common number of samples.

    Raises:
        InputError: counts of different validation sets.
    """
    samples = {p.samples for p in (*a, *b)}
    right_a, right_b = ([right_answers(p, metric) for p in points] for points in (a, b))
    if len(samples) != 1 or not all([*right_a, *right_b]):
        return None
    return paired_difference(right_a, right_b, samples.pop(), metric)


def _evidence(held: Sequence[Stretch], neighbours: Sequence[tuple[int, int]], cells: Cells, metric: str) -> Segment:
    """The evidence for one n, which holds the consecutive stretches `held`, against the cells (n, B_p) beside them."""
    rivals = [at_targets(cells[B_p, n]) for n, B_p in neighbours]
    best: tuple[float, Difference, float] | None = None
    measured = False
    for stretch in held:
        for target, (points, C) in at_targets(cells[stretch.B_p, stretch.n]).items():
            inside = stretch.C_low * (1 - 1e-9) <= C <= stretch.C_high * (1 + 1e-9)
            if not rivals or not inside or any(target not in r for r in rivals):
                continue
            measured = True
            found = [compare(points, r[target][0], metric) for r in rivals]
            leads = [d for d in found if d is not None]
            if len(leads) < len(found):
                continue
            closest = min(leads, key=lambda d: d.z)
            if best is None or closest.z > best[0]:
                best = closest.z, closest, C
    C_low, C_high = held[0].C_low, held[-1].C_high
    longest = max(held, key=lambda s: s.C_high / s.C_low)
    head = (longest.n, longest.B_p, C_low, C_high, math.log10(C_high / C_low), tuple(neighbours), measured)
    if best is None:
        return Segment(*head)
    z, lead, C = best
    return Segment(*head, lead.mean, lead.se, z if math.isfinite(z) else None, C)


def segments(frontier: Frontier, cells: Cells, metric: str) -> tuple[Segment, ...]:
    """The evidence for each n of a frontier: consecutive stretches of one n are one segment, whatever their B_p.

    Args:
        cells: the runs of each (B_p, n).
        metric: the fitted metric; leads need one that follows from right answers (`parse_metric`), and those to be recorded.

    Raises:
        InputError: counts of different validation sets.
    """
    held = [list(stretches) for _, stretches in groupby(frontier.stretches, key=lambda s: s.n)]
    found = []
    for i, here in enumerate(held):
        beside = [*(held[i - 1][-1:] if i else []), *(held[i + 1][:1] if i + 1 < len(held) else [])]
        found.append(_evidence(here, list(dict.fromkeys((o.n, o.B_p) for o in beside)), cells, metric))
    return tuple(found)
