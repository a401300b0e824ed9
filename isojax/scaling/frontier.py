"""The compute-optimal frontier: the upper envelope of the fitted curves (IsoCompute Playbook, arXiv:2603.12151, section 4.1, Fig. 6).

Each curve counts only inside its measured range, on a grid of C even in log C. Two curves that nearly touch swap places over a hair's
breadth; a stretch shorter than `min_decades` is given to the neighbouring stretch whose own curve loses the least reward there, shortest
stretch first, if that curve was measured to within `min_decades` of all of it (cells end at slightly different C, since B_p n differs);
otherwise it stays. The frontier's reward there is that neighbour's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import root_scalar

from isojax.scaling.curves import Curve, reward
from isojax.scaling.metrics import FloatArray

PER_DECADE = 60
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

    crossing: whether two curves cross there, both measured; else the data of n_low end or those of n_high begin, and nothing was compared.
    """

    n_low: int
    n_high: int
    C: float
    crossing: bool = True


@dataclass(frozen=True)
class Stretch:
    """A range of C over which one cell holds the frontier."""

    n: int
    B_p: int
    C_low: float
    C_high: float


@dataclass(frozen=True)
class Frontier:
    """Points by rising C; the stretches of their cells; crossovers where n (not B_p alone) changes."""

    points: tuple[FrontierPoint, ...]
    stretches: tuple[Stretch, ...]
    crossovers: tuple[Crossover, ...]


def _stretches(winner: NDArray[np.intp]) -> list[tuple[int, int]]:
    """[start, stop) of each run of one winner."""
    cuts = [0, *(np.flatnonzero(np.diff(winner)) + 1).tolist(), len(winner)]
    return list(pairwise(cuts))


def _merge(x: FloatArray, table: FloatArray, winner: NDArray[np.intp], min_decades: float) -> NDArray[np.intp]:
    """The winner at each grid point once brief stretches are gone. table: float[curves, grid], -inf where not (nearly) measured."""
    winner = winner.copy()
    edges = np.concatenate([x[:1], (x[1:] + x[:-1]) / 2, x[-1:]])
    while True:
        spans = _stretches(winner)
        brief = sorted((edges[b] - edges[a], i) for i, (a, b) in enumerate(spans) if edges[b] - edges[a] < min_decades)
        for _, i in brief:
            a, b = spans[i]
            near = [int(winner[spans[j][0]]) for j in (i - 1, i + 1) if 0 <= j < len(spans)]
            costs = [(float(np.sum(table[winner[a], a:b] - table[c, a:b])), c) for c in near if np.isfinite(table[c, a:b]).all()]
            if costs:
                winner[a:b] = min(costs)[1]
                break
        else:
            return winner


def _change(low: Curve, high: Curve, x_low: float, x_high: float) -> tuple[float, bool]:
    """C at which `high` takes over from `low` between two grid points (log10), and whether by crossing it: their root, else the
    midpoint."""

    def lead(x: float) -> float:
        return float(reward(low, 10**x) - reward(high, 10**x))

    begin, end = np.log10(max(low.C_low, high.C_low)), np.log10(min(low.C_high, high.C_high))
    a, b = max(x_low, float(begin)), min(x_high, float(end))
    if a < b and lead(a) * lead(b) < 0:
        return float(10 ** root_scalar(lead, bracket=(a, b)).root), True
    C = float(10 ** ((x_low + x_high) / 2))
    # Merged stretches swap a little beside their crossing: it counts if both were measured and `high` is ahead further on.
    return C, bool(begin <= np.log10(C) <= end and lead(float(end)) < 0)


def frontier(curves: Sequence[Curve], per_decade: int = PER_DECADE, min_decades: float = MIN_DECADES) -> Frontier:
    """The upper envelope of at least one curve.

    Equal rewards go to the smaller n, then the smaller B_p. Grid points where no curve was measured are left out.

    Args:
        per_decade: grid points a decade of C (at least; the ends of the measured range are grid points).
        min_decades: stretches shorter than this are merged.
    """
    ordered = sorted(curves, key=lambda c: (c.n, c.B_p))
    C_low, C_high = min(c.C_low for c in ordered), max(c.C_high for c in ordered)
    C = np.geomspace(C_low, C_high, max(2, int(np.ceil(per_decade * np.log10(C_high / C_low))) + 1))
    x = np.log10(C)
    measured = np.stack([_measured(c, x, 1e-9) for c in ordered])
    known = np.isfinite(measured.max(0))
    C, x, measured = C[known], x[known], measured[:, known]
    nearly = np.stack([_measured(c, x, min_decades) for c in ordered])
    winner = _merge(x, nearly, measured.argmax(0), min_decades)
    cells = [ordered[i] for i in winner]
    points = tuple(FrontierPoint(float(v), float(reward(c, v)), c.n, c.B_p) for v, c in zip(C, cells, strict=True))
    spans = _stretches(winner)
    changes = [_change(cells[b - 1], cells[b], x[b - 1], x[b]) for _, b in spans[:-1]]
    ends = [float(C[0]), *(at for at, _ in changes), float(C[-1])]
    stretches = tuple(Stretch(cells[a].n, cells[a].B_p, ends[i], ends[i + 1]) for i, (a, _) in enumerate(spans))
    crossovers = tuple(
        Crossover(a.n, b.n, b.C_low, crossing) for (a, b), (_, crossing) in zip(pairwise(stretches), changes, strict=True) if a.n != b.n
    )
    return Frontier(points, stretches, crossovers)


def _measured(curve: Curve, x: FloatArray, slack: float) -> FloatArray:
    """float[grid]: the curve's reward at log10 C = x, -inf more than `slack` decades outside its measured range."""
    inside = (x >= np.log10(curve.C_low) - slack) & (x <= np.log10(curve.C_high) + slack)
    return np.where(inside, reward(curve, 10**x), -np.inf)
