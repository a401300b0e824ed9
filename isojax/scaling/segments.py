"""Does a stretch of the frontier stand on data? The winner's paired lead over the cells of the neighbouring stretches.

All cells are evaluated at the same targets of C, on the same validation problems, so a lead is a paired difference at one target. Of
the targets within a stretch the one is reported at which the smallest z over the neighbours is largest: choosing it favours the winner.
Each cell answers a target at its first update reaching it, so a cell of large B_p n has spent up to one update more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from isojax.scaling.frontier import Frontier, Stretch
from isojax.scaling.metrics import Difference, Track, paired_difference, parse_metric
from isojax.types import EvalPoint

Cells = Mapping[tuple[int, int], Sequence[Track]]


@dataclass(frozen=True)
class Segment:
    """A stretch of the frontier and its evidence.

    Attributes:
        decades: log10(C_high / C_low).
        neighbours: (n, B_p) of the stretches before and after.
        measured_for_neighbours: whether all neighbours and the winner were evaluated at a common target within the stretch.
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
    parsed, samples = parse_metric(metric), {p.samples for p in (*a, *b)}
    if parsed is None or len(samples) != 1 or not all(p.counts for p in (*a, *b)) or parsed[1] > min(samples):
        return None
    return paired_difference([p.counts for p in a], [p.counts for p in b], samples.pop(), metric)


def _evidence(stretch: Stretch, neighbours: Sequence[tuple[int, int]], cells: Cells, metric: str) -> Segment:
    winner = at_targets(cells[stretch.B_p, stretch.n])
    rivals = [at_targets(cells[B_p, n]) for n, B_p in neighbours]
    best: tuple[float, Difference, float] | None = None
    measured = False
    for target, (points, C) in winner.items():
        if not rivals or not stretch.C_low * (1 - 1e-9) <= C <= stretch.C_high * (1 + 1e-9) or any(target not in r for r in rivals):
            continue
        measured = True
        found = [compare(points, r[target][0], metric) for r in rivals]
        leads = [d for d in found if d is not None]
        if len(leads) < len(found):
            continue
        closest = min(leads, key=lambda d: d.z)
        if best is None or closest.z > best[0]:
            best = closest.z, closest, C
    decades = math.log10(stretch.C_high / stretch.C_low)
    head = (stretch.n, stretch.B_p, stretch.C_low, stretch.C_high, decades, tuple(neighbours), measured)
    if best is None:
        return Segment(*head)
    z, lead, C = best
    return Segment(*head, lead.mean, lead.se, z if math.isfinite(z) else None, C)


def segments(frontier: Frontier, cells: Cells, metric: str) -> tuple[Segment, ...]:
    """The evidence for each stretch of a frontier.

    Args:
        cells: the runs of each (B_p, n).
        metric: the fitted metric; leads need it to be avg@k, best@k or worst@k and the counts to be recorded.

    Raises:
        InputError: counts of different validation sets.
    """
    s = frontier.stretches
    sides = [[s[j] for j in (i - 1, i + 1) if 0 <= j < len(s)] for i in range(len(s))]
    unique = [list(dict.fromkeys((o.n, o.B_p) for o in near)) for near in sides]
    return tuple(_evidence(here, near, cells, metric) for here, near in zip(s, unique, strict=True))
