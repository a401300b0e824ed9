"""The evidence for each segment of a frontier, where one n holds it. Its lead over the cells before and after is a
paired difference on the same problems, at the target where the smallest z over them is largest, which favours the
winner.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from isojax.scaling.law.frontier import Frontier, FrontierStretch
from isojax.scaling.result import NeighbourCell, SegmentRow
from isojax.scaling.tracks import PairedDifference, TracksByCell, evaluations_by_target, paired_lead


def segment_evidence(frontier: Frontier, cells: TracksByCell, metric: str) -> tuple[SegmentRow, ...]:
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
        segment = SegmentRow(
            n=longest_stretch.n,
            B_p=longest_stretch.B_p,
            C_low=C_low,
            C_high=C_high,
            decades=math.log10(C_high / C_low),
            neighbours=tuple(NeighbourCell(n=n, B_p=B_p) for n, B_p in neighbours),
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
