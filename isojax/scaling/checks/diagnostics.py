"""Numbers about a fit: whether the curves fit their points as well as the noise allows, how much n
matters against B_p (IsoCompute Playbook, arXiv:2603.12151, Fig. 10), where evaluations cannot tell
values of n from one another (ties), and the evidence for each segment of a frontier, where one n
holds it. Its lead over the cells before and after is a paired difference on the same problems, at
the target where the smallest z over them is largest, which favours the winner."""

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from isojax.scaling.curves.hill import MEASURED_TOLERANCE, curve_reward
from isojax.scaling.curves.sweep_estimate import PosteriorSamples, SweepEstimate, best_cells
from isojax.scaling.evaluation_noise import autocorrelation, paired_lead, reduced_chi_square
from isojax.scaling.intervals import central_interval
from isojax.scaling.law.frontier import Frontier, FrontierStretch
from isojax.scaling.result import (
    FitDiagnostics,
    FittedCurve,
    NeighbourCell,
    RewardSensitivity,
    RewardSpread,
    SegmentRow,
    TiedRange,
)
from isojax.scaling.tracks import TracksByCell, evaluations_by_target

TIE_LEVEL = 0.9
TIE_POINTS = 40


def segment_evidence(
    frontier: Frontier, cells: TracksByCell, metric: str
) -> tuple[SegmentRow, ...]:
    """The evidence for each n of a frontier (stretches of one n are one segment); leads need counts
    of the metric."""
    stretches_by_n = [
        list(stretches) for _, stretches in groupby(frontier.stretches, key=lambda s: s.n)
    ]
    has_counts = all(p.counts for seeds in cells.values() for t in seeds for p in t.run.points)
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
            censored_low=not stretches[0].from_crossing,
            censored_high=not any(stretch.from_crossing for stretch in after),
            has_counts=has_counts,
            **_best_lead(stretches, neighbours, cells, metric),
        )
        segments.append(segment)
    return tuple(segments)


def _best_lead(
    stretches: Sequence[FrontierStretch],
    neighbours: Sequence[tuple[int, int]],
    cells: TracksByCell,
    metric: str,
) -> dict[str, Any]:
    """The lead of one n, which holds the stretches, over the neighbouring cells (n, B_p): fields of
    SegmentRow."""
    rival_evaluations = [evaluations_by_target(cells[B_p, n]) for n, B_p in neighbours]
    leads_at_C, has_common_target = [], False
    for stretch in stretches:
        for target, (points, C, _) in evaluations_by_target(cells[stretch.B_p, stretch.n]).items():
            inside = stretch.C_low * (1 - 1e-9) <= C <= stretch.C_high * (1 + 1e-9)
            if (
                not rival_evaluations
                or not inside
                or any(target not in r for r in rival_evaluations)
            ):
                continue
            has_common_target = True
            differences = [paired_lead(points, r[target][0], metric) for r in rival_evaluations]
            paired_differences = [d for d in differences if d is not None]
            if len(paired_differences) == len(differences):
                leads_at_C.append((min(paired_differences, key=lambda d: d.z), C))
    if not leads_at_C:
        return {"measured_for_neighbours": has_common_target}
    lead, C = max(leads_at_C, key=lambda lead_at_C: lead_at_C[0].z)
    z = lead.z if math.isfinite(lead.z) else None
    return {"measured_for_neighbours": True, "lead": lead.mean, "se": lead.se, "z": z, "at_C": C}


def diagnose(estimate: SweepEstimate) -> FitDiagnostics:
    """Do the curves fit as well as the evaluations' own scatter allows, and where are values of n
    tied?"""
    residuals = estimate.residuals
    return FitDiagnostics(
        reduced_chi_square=reduced_chi_square(residuals),
        autocorrelation=autocorrelation(residuals),
        degrees_of_freedom=sum(map(len, residuals)) - estimate.parameter_count
        if residuals
        else None,
        ties=_tie_of_all(estimate.curves) if estimate.is_flat else find_ties(estimate.draws),
    )


def _tie_of_all(curves: Sequence[FittedCurve]) -> tuple[TiedRange, ...]:
    """Of a sweep that shows nothing, where no n leads at any C."""
    all_n = tuple(sorted({c.n for c in curves}))
    tie = TiedRange(
        n=all_n, C_low=min(c.C_low for c in curves), C_high=max(c.C_high for c in curves)
    )
    return (tie,) if len(all_n) > 1 else ()


def reward_sensitivity(
    curves: Sequence[FittedCurve], draws: PosteriorSamples | None
) -> RewardSensitivity | None:
    """The spread of reward over n and over B_p at the largest C that most cells reached; None for
    one cell."""
    if len(curves) < 2:
        return None
    C = float(np.median([c.C_high for c in curves])) * (1 - 1e-9)
    measured_curves = [c for c in curves if c.C_low <= C <= c.C_high * MEASURED_TOLERANCE]
    over_n = _reward_spread(measured_curves, lambda c: c.B_p, C, draws)
    return RewardSensitivity(
        C=C, over_n=over_n, over_B_p=_reward_spread(measured_curves, lambda c: c.n, C, draws)
    )


def _reward_spread(
    curves: Sequence[FittedCurve],
    shared: Callable[[FittedCurve], int],
    C: float,
    draws: PosteriorSamples | None,
) -> RewardSpread | None:
    """The spread of reward at C within the largest group of curves that share a value; None where
    none has two."""
    groups = {
        value: [c for c in curves if shared(c) == value]
        for value in sorted(set(map(shared, curves)))
    }
    # of equal groups the first
    shared_value = max(groups, key=lambda value: len(groups[value]), default=0)
    group = groups.get(shared_value, [])
    if len(group) < 2:
        return None
    rewards = [float(curve_reward(c, C)) for c in group]
    reward_draws = (
        np.zeros((0, 1))
        if draws is None
        else draws.for_cells([c.key for c in group]).rewards([C])[:, :, 0]
    )
    low, high = central_interval(np.ptp(reward_draws, axis=1))
    return RewardSpread(
        spread=float(np.ptp(rewards)),
        low=low,
        high=high,
        shared_value=shared_value,
        cells=len(group),
    )


def find_ties(draws: PosteriorSamples | None) -> tuple[TiedRange, ...]:
    """Ranges of C where no n leads in TIE_LEVEL of the replicates: the values of n that together
    do, by rising C."""
    if draws is None or len({n for _, n in draws.keys}) < 2:
        return ()
    C = np.geomspace(draws.C_low.min(), draws.C_high.max(), TIE_POINTS)
    C = C[draws.is_measured(C).any(0)]
    best_n = np.array([n for _, n in draws.keys])[best_cells(draws, C)[1]]
    tied_n_at_C: list[tuple[tuple[int, ...], float]] = []
    for g, at_C in enumerate(C.tolist()):
        values, counts = np.unique(best_n[:, g], return_counts=True)
        order = np.argsort(-counts)
        n_count = int(np.searchsorted(np.cumsum(counts[order]) / len(best_n), TIE_LEVEL)) + 1
        tied_n_at_C.append((tuple(sorted(values[order[:n_count]].tolist())), at_C))
    ranges = [
        (tied_n, [at_C for _, at_C in group])
        for tied_n, group in groupby(tied_n_at_C, key=lambda item: item[0])
    ]
    return tuple(
        TiedRange(n=tied_n, C_low=at[0], C_high=at[-1])
        for tied_n, at in ranges
        if len(tied_n) > 1 < len(at)
    )
