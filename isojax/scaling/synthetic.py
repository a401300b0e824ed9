"""Worlds with known curves, for testing the fitter: RunRecords drawn from R(C) = hill(C; R0, A, B, C_mid) of each (B_p, n).

Validation problem i has a difficulty u_i, the same in every run of a world, and at reward R the success rate
p_i = BetaInv(u_i; R kappa, (1 - R) kappa), so that the mean over problems is R; right answers are Binomial(samples, p_i). All cells are
evaluated on one shared grid of targets, each at its own first update reaching the target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv

from isojax.scaling.curves import hill
from isojax.scaling.metrics import FloatArray
from isojax.types import Cell, EvalPoint, InputError, RunRecord


@dataclass(frozen=True)
class Hill:
    """A true curve."""

    R0: float
    A: float
    B: float
    C_mid: float

    def at(self, C: float) -> float:
        """The true reward; R0 at C = 0."""
        return float(hill(C, self.R0, self.A, self.B, self.C_mid)) if C > 0 else self.R0


@dataclass(frozen=True)
class World:
    """Runs, and the curve each (B_p, n) was drawn from."""

    runs: tuple[RunRecord, ...]
    truth: dict[tuple[int, int], Hill]


def _rising(B_p: int, n: int) -> Hill:
    """Larger n: a higher plateau, later. Doubling n adds .04 to A and 1.8 times to C_mid, so n*(C) rises; B_p makes no difference."""
    level = math.log2(n)
    return Hill(0.3, 0.45 + 0.04 * level, 1.2, 1500 * 1.8**level)


def _same(B_p: int, n: int) -> Hill:
    """One curve for all: n makes no difference."""
    return Hill(0.3, 0.6, 1.2, 8000.0)


KINDS: dict[str, Callable[[int, int], Hill]] = {"hill": _rising, "same": _same}


def targets(start: int, ratio: float, budget: int) -> list[int]:
    """The shared grid of C: round(start * ratio^k) <= budget."""
    count = math.floor(math.log(budget / start) / math.log(ratio) + 1e-9) + 1
    return [round(start * ratio**k) for k in range(max(0, count))]


def _evaluations(B: int, grid: Sequence[int]) -> list[tuple[int, int]]:
    """(target, M): the first update reaching each target; of the targets that one update reaches, the largest."""
    found = {math.ceil(t / B): t for t in grid}
    return [(0, 0), *((t, M) for M, t in sorted(found.items()))]


def _counts(R: float, u: FloatArray, samples: int, spread: float | None, rng: np.random.Generator) -> tuple[int, ...]:
    R = min(max(R, 1e-6), 1 - 1e-6)
    p = np.full(len(u), R) if spread is None else betaincinv(R * spread, (1 - R) * spread, u)
    return tuple(int(c) for c in rng.binomial(samples, p))


def world(
    kind: str = "hill",
    *,
    B_p: Sequence[int] = (16,),
    n: Sequence[int] = (2, 4, 8, 16, 32),
    seeds: int = 2,
    seed: int = 0,
    problems: int = 300,
    samples: int = 4,
    spread: float | None = 4.0,
    start: int = 1024,
    ratio: float = 1.3,
    budget: int = 250_000,
    curve: Callable[[int, int], Hill] | None = None,
) -> World:
    """Runs of a sweep whose truth is known.

    Args:
        kind: "hill" (n* rises with C) or "same" (n makes no difference); ignored where `curve` is given.
        seed: of every draw; the same number gives the same world.
        problems, samples: validation problems, and rollouts of each. samples = 0: no noise, avg@4 is the true reward, no counts.
        spread: kappa, the concentration of success rates over problems; None: all problems alike.
        start, ratio, budget: the grid of targets, in rollouts.
        curve: (B_p, n) -> its true curve.

    Raises:
        InputError: an unknown kind.
    """
    if curve is None and kind not in KINDS:
        raise InputError(f"world {kind!r} is not known; expected one of {', '.join(KINDS)}.")
    truth_of, grid = curve or KINDS[kind], targets(start, ratio, budget)
    u = np.random.default_rng([seed, 0]).uniform(size=problems)
    truth = {(b, m): truth_of(b, m) for b in B_p for m in n}
    runs = []
    for (b, m), true in truth.items():
        for s in range(seeds):
            rng, points = np.random.default_rng([seed, 1, b, m, s]), []
            for target, M in _evaluations(b * m, grid):
                C, R = b * m * M, true.at(b * m * M)
                if samples == 0:
                    points.append(EvalPoint(target, M, C, 8 * C, {"avg@4": R}))
                    continue
                counts = _counts(R, u, samples, spread, rng)
                points.append(EvalPoint(target, M, C, 8 * C, {f"avg@{samples}": sum(counts) / (problems * samples)}, counts, samples))
            runs.append(RunRecord(Cell(b, m, s), tuple(points), f"synthetic/{b}x{m}-s{s}", (), "synthetic"))
    return World(tuple(runs), truth)
