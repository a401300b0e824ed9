"""Numbers about a fit:
- whether the curves fit their points as well as the noise allows (`diagnose`);
- how much n matters against B_p (`reward_sensitivity`; IsoCompute Playbook, arXiv:2603.12151,
  Fig. 10);
- ties: ranges of C in which no n is clearly the best (`find_ties`);
- the evidence for each segment of a frontier, a range of C in which one n leads
  (`segment_evidence`): its lead over the cells that lead before and after, as a paired difference
  on the same problems. Of all evaluations in the range the one with the largest z is reported,
  which makes the lead look larger than it is."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isojax.scaling.curves.hill import MEASURED_TOLERANCE, curve_reward
from isojax.scaling.curves.sweep_estimate import PosteriorSamples, SweepEstimate, best_cells
from isojax.scaling.evaluation_noise import (
    PairedDifference,
    autocorrelation,
    paired_lead,
    reduced_chi_square,
)
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
from isojax.scaling.tracks import (
    SharedEvaluations,
    TracksByCell,
    evaluations_by_target,
    group_by,
)

TIE_LEVEL = 0.9  # an n leads alone where it is best in this share of the draws
TIE_POINTS = 40  # values of C at which ties are sought


def segment_evidence(
    frontier: Frontier, cells: TracksByCell, metric: str
) -> tuple[SegmentRow, ...]:
    """How well the measurements support each segment of a frontier, by rising C.

    A stretch is a range of C in which one cell leads; consecutive stretches of one n form one
    segment. It is censored at an end where data begin or end, and no curves cross: it might reach
    further. A lead is None where evaluations have no counts of right answers per problem. cells:
    the runs by (B_p, n), of all cells on the frontier; metric: such as "avg@4"."""
    stretches_by_n = [
        list(stretches) for _, stretches in groupby(frontier.stretches, key=lambda s: s.n)
    ]
    all_points = [p for seeds in cells.values() for track in seeds for p in track.run.points]
    has_counts = all(p.counts for p in all_points)
    leading_cells = {(s.B_p, s.n) for s in frontier.stretches}
    evaluations_of_cell = {cell: evaluations_by_target(cells[cell]) for cell in leading_cells}

    segments = []
    for i, stretches in enumerate(stretches_by_n):
        # The last stretch of the segment before and the first of the segment after; [] at the ends.
        before = stretches_by_n[i - 1][-1:] if i > 0 else []
        after = stretches_by_n[i + 1][:1] if i + 1 < len(stretches_by_n) else []
        neighbours = [
            NeighbourCell(n=n, B_p=B_p)
            for n, B_p in dict.fromkeys((s.n, s.B_p) for s in (*before, *after))
        ]
        C_low = stretches[0].C_low
        C_high = stretches[-1].C_high
        longest_stretch = max(stretches, key=lambda s: s.C_high / s.C_low)
        segment_lead = _best_lead(stretches, neighbours, evaluations_of_cell, metric)
        segment = SegmentRow(
            n=longest_stretch.n,
            B_p=longest_stretch.B_p,
            C_low=C_low,
            C_high=C_high,
            decades=math.log10(C_high / C_low),
            neighbours=tuple(neighbours),
            censored_low=not stretches[0].from_crossing,
            censored_high=not any(stretch.from_crossing for stretch in after),
            has_counts=has_counts,
            measured_for_neighbours=segment_lead.measured_for_neighbours,
            lead=segment_lead.lead,
            se=segment_lead.se,
            z=segment_lead.z,
            at_C=segment_lead.at_C,
        )
        segments.append(segment)
    return tuple(segments)


@dataclass(frozen=True)
class _SegmentLead:
    """The lead of one n over its neighbours; the fields are those of SegmentRow."""

    measured_for_neighbours: bool
    lead: float | None = None
    se: float | None = None
    z: float | None = None
    at_C: float | None = None


class _LeadAtC(NamedTuple):
    """How far a cell's evaluation at C was above its neighbours'."""

    difference: PairedDifference  # over the neighbour that is closest
    C: float


def _best_lead(
    stretches: Sequence[FrontierStretch],
    neighbours: Sequence[NeighbourCell],
    evaluations_of_cell: Mapping[tuple[int, int], Mapping[int, SharedEvaluations]],
    metric: str,
) -> _SegmentLead:
    """How far the leading cells of one segment were above the neighbouring cells, at best.

    A target is the budget C for which all runs were evaluated; the rollouts that a run had then
    (evaluations.C) may differ from it a little. At each target inside the segment at which the
    leader and all neighbours were evaluated, the lead is that over the closest neighbour, the one
    with the smallest z = mean / standard error. Of all targets the one with the largest z is given.

    The leads are None where there is no such target, or where evaluations have no counts of right
    answers per problem, without which they cannot be paired. measured_for_neighbours: whether there
    is a common target, with or without counts. stretches: those of the segment, by rising C;
    neighbours: the cells that lead just before and after it; evaluations_of_cell: of each (B_p, n)
    that leads somewhere, its evaluations by target."""
    if not neighbours:
        return _SegmentLead(measured_for_neighbours=False)

    rivals = [evaluations_of_cell[cell.B_p, cell.n] for cell in neighbours]
    leads: list[_LeadAtC] = []
    has_common_target = False
    for stretch in stretches:
        leader = evaluations_of_cell[stretch.B_p, stretch.n]
        for target, evaluations in leader.items():
            C = evaluations.C
            # 1e-9: a stretch may begin or end at an evaluation, but for rounding.
            is_inside = stretch.C_low * (1 - 1e-9) <= C <= stretch.C_high * (1 + 1e-9)
            if not is_inside or any(target not in rival for rival in rivals):
                continue

            has_common_target = True
            differences = [
                paired_lead(evaluations.points, rival[target].points, metric) for rival in rivals
            ]
            paired = [difference for difference in differences if difference is not None]
            if len(paired) == len(rivals):  # without counts no lead can be judged
                leads.append(_LeadAtC(min(paired, key=lambda difference: difference.z), C))

    if not leads:
        return _SegmentLead(measured_for_neighbours=has_common_target)

    best = max(leads, key=lambda lead: lead.difference.z)
    z = best.difference.z
    return _SegmentLead(
        measured_for_neighbours=True,
        lead=best.difference.mean,
        se=best.difference.se,
        z=z if math.isfinite(z) else None,
        at_C=best.C,
    )


def diagnose(estimate: SweepEstimate) -> FitDiagnostics:
    """How well the curves of a sweep fit, and in which ranges of C values of n are tied.

    They fit where the residuals are no larger than the scatter of the evaluations."""
    residuals = estimate.residuals
    degrees_of_freedom = None
    if residuals:
        degrees_of_freedom = sum(map(len, residuals)) - estimate.parameter_count
    return FitDiagnostics(
        reduced_chi_square=reduced_chi_square(residuals),
        autocorrelation=autocorrelation(residuals),
        degrees_of_freedom=degrees_of_freedom,
        ties=_tie_of_all(estimate.curves) if estimate.is_flat else find_ties(estimate.draws),
    )


def _tie_of_all(curves: Sequence[FittedCurve]) -> tuple[TiedRange, ...]:
    """The tie of all n over the whole range of C, for a sweep in which nothing was learnt; () with
    one n."""
    all_n = tuple(sorted({c.n for c in curves}))
    if len(all_n) < 2:
        return ()
    C_low = min(c.C_low for c in curves)
    C_high = max(c.C_high for c in curves)
    return (TiedRange(n=all_n, C_low=C_low, C_high=C_high),)


def reward_sensitivity(
    curves: Sequence[FittedCurve], draws: PosteriorSamples | None
) -> RewardSensitivity | None:
    """How much the reward differs between values of n, and between values of B_p, at one C.

    C is the largest that most cells reached. None for fewer than two cells; a spread is None where
    fewer than two of the cells measured at C can be compared. draws: for the spreads' intervals;
    None: no intervals."""
    if len(curves) < 2:
        return None

    # The median of the cells' ends; a little less, so that rounding leaves no cell out.
    C = float(np.median([c.C_high for c in curves])) * (1 - 1e-9)
    # Also cells that end a little before C (5%): a run's last evaluation may be below its budget.
    measured_curves = [c for c in curves if c.C_low <= C <= c.C_high * MEASURED_TOLERANCE]
    return RewardSensitivity(
        C=C,
        over_n=_reward_spread(measured_curves, held_fixed=lambda c: c.B_p, C=C, draws=draws),
        over_B_p=_reward_spread(measured_curves, held_fixed=lambda c: c.n, C=C, draws=draws),
    )


def _reward_spread(
    curves: Sequence[FittedCurve],
    held_fixed: Callable[[FittedCurve], int],
    C: float,
    draws: PosteriorSamples | None,
) -> RewardSpread | None:
    """The largest reward less the smallest, at C, among curves alike in `held_fixed`.

    held_fixed: such as `lambda c: c.B_p`: curves of one B_p are compared, which differ in n.
    The value that most curves have is taken, of equally frequent ones the smallest; None where it
    has one curve. draws: for the interval, low and high; None: no interval."""
    groups = group_by(sorted(curves, key=held_fixed), held_fixed)
    shared_value = max(groups, key=lambda value: len(groups[value]), default=0)
    group = groups.get(shared_value, [])
    if len(group) < 2:
        return None

    rewards = [float(curve_reward(c, C)) for c in group]
    low, high = None, None
    if draws is not None:
        reward_draws = draws.for_cells([c.key for c in group]).rewards([C])[:, :, 0]  # [Q, group]
        low, high = central_interval(np.ptp(reward_draws, axis=1))
    return RewardSpread(
        spread=float(np.ptp(rewards)),
        low=low,
        high=high,
        shared_value=shared_value,
        cells=len(group),
    )


def find_ties(draws: PosteriorSamples | None) -> tuple[TiedRange, ...]:
    """The ranges of C in which no n is best in a share TIE_LEVEL of the draws, by rising C.

    Each has the fewest n that together are best in that share. () without draws or with one n."""
    if draws is None or len({n for _, n in draws.keys}) < 2:
        return ()
    C = np.geomspace(draws.C_low.min(), draws.C_high.max(), TIE_POINTS)
    C = C[draws.is_measured(C).any(0)]
    cell_n = np.array([n for _, n in draws.keys])
    # best_cells gives the rewards and, second, the index of the best cell in each draw at each C.
    best_n = cell_n[best_cells(draws, C)[1]]  # [Q, C]

    # Neighbouring C at which the same n are tied form one range; one C alone is none.
    tied_n_at = [_leading_n(best_n[:, g]) for g in range(len(C))]
    ties = []
    for tied_n, group in groupby(range(len(C)), key=lambda g: tied_n_at[g]):
        indices = list(group)
        if len(tied_n) > 1 and len(indices) > 1:
            C_low = float(C[indices[0]])
            ties.append(TiedRange(n=tied_n, C_low=C_low, C_high=float(C[indices[-1]])))
    return tuple(ties)


def _leading_n(best_n: NDArray[np.int64]) -> tuple[int, ...]:
    """The fewest n that are best in TIE_LEVEL of the replicates together, rising.

    best_n: int[Q], the best n in each replicate."""
    values, counts = np.unique(best_n, return_counts=True)
    most_often_first = np.argsort(-counts)
    shares = np.cumsum(counts[most_often_first]) / len(best_n)
    n_count = int(np.searchsorted(shares, TIE_LEVEL)) + 1
    return tuple(sorted(values[most_often_first[:n_count]].tolist()))
