"""The compute-optimal frontier: the upper envelope of the fitted curves (IsoCompute Playbook, arXiv:2603.12151, section
4.1, Fig. 6).

Each curve counts only inside its measured range, on a grid of C even in log C. Two curves that nearly touch swap places
over a hair's breadth; a stretch shorter than `min_decades` is given to the neighbouring stretch whose own curve loses
the least reward there, shortest stretch first, if that curve was measured to within `min_decades` of all of it (cells
end at slightly different C, since B_p n differs); otherwise it stays. The frontier's reward there is that neighbour's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import root_scalar

from isojax.scaling.curves.hill import FittedCurve, curve_reward
from isojax.scaling.validation_metrics import FloatArray

GRID_POINTS_PER_DECADE = 60
MIN_DECADES = 0.1  # about one evaluation apart: less was not measured


@dataclass(frozen=True)
class FrontierPoint:
    """The frontier's reward at compute C, and the cell that attains it."""

    C: float
    reward: float
    n: int
    B_p: int


@dataclass(frozen=True)
class Crossover:
    """Where the frontier's n changes, from n_low below C to n_high above (usually, not always, the larger).

    crossing: whether two curves cross there, both measured; else the data of n_low end or those of n_high begin, and
    nothing was compared.
    """

    n_low: int
    n_high: int
    C: float
    crossing: bool = True


@dataclass(frozen=True)
class FrontierStretch:
    """A range of C over which one cell holds the frontier."""

    n: int
    B_p: int
    C_low: float
    C_high: float


@dataclass(frozen=True)
class Frontier:
    """Points by rising C; the stretches of their cells; crossovers where n (not B_p alone) changes."""

    points: tuple[FrontierPoint, ...]
    stretches: tuple[FrontierStretch, ...]
    crossovers: tuple[Crossover, ...]


def _runs_of_winner(winner: NDArray[np.intp]) -> list[tuple[int, int]]:
    """[start, stop) of each run of one winner."""
    boundaries = [0, *(np.flatnonzero(np.diff(winner)) + 1).tolist(), len(winner)]
    return list(pairwise(boundaries))


def _merge_brief_stretches(
    log10_C: FloatArray, rewards: FloatArray, winner: NDArray[np.intp], min_decades: float
) -> NDArray[np.intp]:
    """The winner at each grid point once brief stretches are gone. table: float[curves, grid], -inf where not (nearly)
    measured.
    """
    winner = winner.copy()
    edges = np.concatenate([log10_C[:1], (log10_C[1:] + log10_C[:-1]) / 2, log10_C[-1:]])
    while True:
        spans = _runs_of_winner(winner)
        brief_spans = sorted(
            (edges[b] - edges[a], i) for i, (a, b) in enumerate(spans) if edges[b] - edges[a] < min_decades
        )
        for _, i in brief_spans:
            a, b = spans[i]
            adjacent_cells = [int(winner[spans[j][0]]) for j in (i - 1, i + 1) if 0 <= j < len(spans)]
            costs = [
                (float(np.sum(rewards[winner[a], a:b] - rewards[c, a:b])), c)
                for c in adjacent_cells
                if np.isfinite(rewards[c, a:b]).all()
            ]
            if costs:
                winner[a:b] = min(costs)[1]
                break
        else:
            return winner


def _takeover(
    earlier_curve: FittedCurve, later_curve: FittedCurve, log10_C_low: float, log10_C_high: float
) -> tuple[float, bool]:
    """C at which `high` takes over from `low` between two grid points (log10), and whether by crossing it: their root,
    else the midpoint."""

    def earlier_lead(x: float) -> float:
        return float(curve_reward(earlier_curve, 10**x) - curve_reward(later_curve, 10**x))

    overlap_start, overlap_end = (
        np.log10(max(earlier_curve.C_low, later_curve.C_low)),
        np.log10(min(earlier_curve.C_high, later_curve.C_high)),
    )
    a, b = max(log10_C_low, float(overlap_start)), min(log10_C_high, float(overlap_end))
    if a < b and earlier_lead(a) * earlier_lead(b) < 0:
        return float(10 ** root_scalar(earlier_lead, bracket=(a, b)).root), True
    C = float(10 ** ((log10_C_low + log10_C_high) / 2))
    # Merged stretches swap a little off their crossing: it counts if both were measured and `high` is ahead further
    # on.
    return C, bool(overlap_start <= np.log10(C) <= overlap_end and earlier_lead(float(overlap_end)) < 0)


def compute_frontier(
    curves: Sequence[FittedCurve], per_decade: int = GRID_POINTS_PER_DECADE, min_decades: float = MIN_DECADES
) -> Frontier:
    """The upper envelope of at least one curve.

    Equal rewards go to the smaller n, then the smaller B_p. Grid points where no curve was measured are left out.

    Args:
        per_decade: grid points per decade of C (at least; the ends of the measured range are grid points).
        min_decades: stretches shorter than this are merged.
    """
    ordered_curves = sorted(curves, key=lambda c: (c.n, c.B_p))
    C_low, C_high = min(c.C_low for c in ordered_curves), max(c.C_high for c in ordered_curves)
    C = np.geomspace(C_low, C_high, max(2, int(np.ceil(per_decade * np.log10(C_high / C_low))) + 1))
    log10_C = np.log10(C)
    measured_rewards = np.stack([_measured_reward(c, log10_C, 1e-9) for c in ordered_curves])
    covered = np.isfinite(measured_rewards.max(0))
    C, log10_C, measured_rewards = C[covered], log10_C[covered], measured_rewards[:, covered]
    nearly_measured = np.stack([_measured_reward(c, log10_C, min_decades) for c in ordered_curves])
    winner = _merge_brief_stretches(log10_C, nearly_measured, measured_rewards.argmax(0), min_decades)
    winning_curves = [ordered_curves[i] for i in winner]
    points = tuple(
        FrontierPoint(float(v), float(curve_reward(c, v)), c.n, c.B_p) for v, c in zip(C, winning_curves, strict=True)
    )
    spans = _runs_of_winner(winner)
    takeovers = [_takeover(winning_curves[b - 1], winning_curves[b], log10_C[b - 1], log10_C[b]) for _, b in spans[:-1]]
    stretch_ends = [float(C[0]), *(at for at, _ in takeovers), float(C[-1])]
    stretches = tuple(
        FrontierStretch(winning_curves[a].n, winning_curves[a].B_p, stretch_ends[i], stretch_ends[i + 1])
        for i, (a, _) in enumerate(spans)
    )
    crossovers = tuple(
        Crossover(a.n, b.n, b.C_low, crossing)
        for (a, b), (_, crossing) in zip(pairwise(stretches), takeovers, strict=True)
        if a.n != b.n
    )
    return Frontier(points, stretches, crossovers)


def _measured_reward(curve: FittedCurve, log10_C: FloatArray, slack_decades: float) -> FloatArray:
    """float[grid]: the curve's reward at log10 C = x, -inf more than `slack` decades outside its measured range."""
    inside = (log10_C >= np.log10(curve.C_low) - slack_decades) & (log10_C <= np.log10(curve.C_high) + slack_decades)
    return np.where(inside, curve_reward(curve, 10**log10_C), -np.inf)
