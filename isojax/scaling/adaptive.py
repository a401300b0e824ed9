"""Where a sweep's next rollouts tell most about n*(C): the policy behind `sweep.strategy: frontier` (docs/laws.md, Adaptive sweeps).

Each (B_p, n) is first trained a little way. Then, round by round, the joint fit (debiased.py) draws all curves from their posterior, and
each draw has a best n of its own at each of LEVELS values of C. The doubt at a C is how far, in steps of the grid of n, the draws' best n
lie from the one n that is nearest to them all. For each run that could go on, and each further seed, the draws themselves say what it may
measure; an outcome makes the draws near it likelier, and the doubt that is left is averaged over outcomes. What takes away most doubt a
rollout comes first (the knowledge gradient: Frazier, Powell and Dayanik, 2009)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isojax.scaling import debiased
from isojax.scaling.estimate import Estimate, Options
from isojax.scaling.fit_inputs import tracks
from isojax.scaling.metrics import FloatArray, by_cell
from isojax.scaling.records_filter import BIN_WIDTH
from isojax.types import Cell, InputError, RunRecord

SPAN, LEVELS = 16, 9  # n*(C) is sought from budget / SPAN to the budget, at so many values of C
FIRST = 4  # evaluations at C > 0 that every run has before anything is decided by it
STRIDE = 1.7  # a run that goes on does so at least to this many times its C: fewer rounds, each with more to learn from
WORTH = 0.1  # a step that takes away less doubt a rollout than this part of the best step's waits
TRIFLE = 1e-4  # doubt that is worth no rollout, in steps of n
REPLICATES = 100
DEALS = 4  # of the promises to other draws, which show what a useless evaluation seems to tell
MAY_LEAD = 0.05  # an n goes on if it is best in so many of the draws further on
LAG = 8  # no (B_p, n) is left so many times behind the longest run: curves promise, they do not measure

Possible = tuple[Cell, int, int]  # cell, target, the rollouts it takes


@dataclass(frozen=True)
class Step:
    """Train `cell` to C = target, which takes `cost` more rollouts, and takes away `gain` of the doubt (steps of n, mean over levels)."""

    cell: Cell
    target: int
    cost: int
    gain: float

    @property
    def worth(self) -> float:
        """Doubt taken away a rollout."""
        return self.gain / self.cost


@dataclass(frozen=True)
class Frontier:
    """The policy of one sweep: what it asks for follows from the sweep and its records alone, so a killed sweep goes on where it was.

    Attributes:
        cells: every (B_p, n, seed) that may be run.
        grid: the values of C at which a run is evaluated; the last is the budget of n*(C).
        rollouts: spent in all, at most; None: half of what the whole grid takes.
        metric: the reward that makes an n the best.
        width: cells of a round, at most; None: as many as there are (B_p, n).

    Raises:
        InputError: a cell has fewer than FIRST evaluations within the grid, or the first round alone takes more than `rollouts`.
    """

    cells: Sequence[Cell]
    grid: Sequence[int]
    rollouts: int | None = None
    metric: str = "avg@4"
    width: int | None = None

    def __post_init__(self) -> None:
        cell = max(self.cells, key=lambda c: c.B)
        if (count := len(self._evaluations(cell))) < FIRST:
            raise InputError(
                f"sweep.strategy=frontier: {cell.name} has {count} evaluations up to C = {self.grid[-1]}, expected at least {FIRST}. Raise "
                "sweep.budget, lower cell.eval.start or cell.eval.ratio, or take smaller B_p or n."
            )
        needed = sum(_cost(seeds[0], self._first(seeds[0])) for seeds in self._seeds({}).values())
        if needed > self.allowed:
            given = f"{self.allowed}{' (half of the grid)' if self.rollouts is None else ''}"
            raise InputError(
                f"sweep.rollouts: given {given}, expected at least {needed}, which the first round takes to begin every (B_p, n). "
                "Raise it or sweep.budget, or take fewer B_p or n."
            )

    def next(self, runs: Sequence[RunRecord]) -> list[tuple[Cell, int]]:
        """What to run next, side by side: cells, longest first, and the C of `grid` that each is to be trained to; [] at the end.

        A run may be part way to a target, and goes on from there. One that failed is not asked for again; what it measured counts.

        Raises:
            InputError: records that cannot be fitted.
        """
        seeds = self._seeds({r.cell: r for r in runs if r.failed})
        C = {r.cell: r.points[-1].rollouts for r in runs if r.points}
        left = self.allowed - sum(C.values())
        wanted = self._begin(seeds, C, left)
        if not wanted and (possible := self._open(seeds, C, left)):
            wanted = self._round(self._steps(runs, possible, C), self._behind(possible, C), C, left)
        return sorted(wanted, key=lambda w: (C.get(w[0], 0) - w[1], w[0]))

    def summary(self, runs: Sequence[RunRecord]) -> dict[str, Any]:
        """Rollouts allowed and spent, what the whole grid takes, the part of that which was saved, and how far each (B_p, n) went: the
        runs begun, their largest C and rollouts in all."""
        spent, rows = sum(r.points[-1].rollouts for r in runs if r.points), []
        for B_p, n in sorted({(c.B_p, c.n) for c in self.cells}):
            C = [r.points[-1].rollouts for r in runs if r.points and (r.cell.B_p, r.cell.n) == (B_p, n)]
            rows.append({"B_p": B_p, "n": n, "runs": sum(c > 0 for c in C), "C": max(C, default=0), "rollouts": sum(C)})
        return {"allowed": self.allowed, "spent": spent, "grid": self.whole, "saved": 1 - spent / self.whole, "cells": rows}

    @property
    def whole(self) -> int:
        """Rollouts that the whole grid takes."""
        return sum(_cost(cell, self.grid[-1]) for cell in self.cells)

    @property
    def allowed(self) -> int:
        """Rollouts that may be spent in all."""
        return self.whole // 2 if self.rollouts is None else self.rollouts

    @cached_property
    def levels(self) -> list[int]:
        """The values of C, of the grid, at which n* is sought; rising."""
        at = np.array([g for g in self.grid if g > 0])
        sought = np.geomspace(at[-1] / SPAN, at[-1], LEVELS)
        return sorted({int(at[np.abs(np.log(at / C)).argmin()]) for C in sought})

    def _evaluations(self, cell: Cell) -> list[int]:
        """The targets C > 0 that a run's evaluations answer: of those that one update reaches, the largest."""
        return list({math.ceil(g / cell.B): g for g in self.grid if g > 0}.values())

    def _first(self, cell: Cell) -> int:
        """The target up to which a run is trained before anything is decided by it."""
        return max(self.levels[0], self._evaluations(cell)[FIRST - 1])

    def _seeds(self, failed: Mapping[Cell, RunRecord]) -> dict[tuple[int, int], list[Cell]]:
        """The cells of each (B_p, n), by rising seed, less those that failed."""
        found: dict[tuple[int, int], list[Cell]] = {}
        for cell in sorted(set(self.cells) - set(failed)):
            found.setdefault((cell.B_p, cell.n), []).append(cell)
        return found

    def _begin(self, seeds: Mapping[tuple[int, int], Sequence[Cell]], C: Mapping[Cell, int], left: int) -> list[tuple[Cell, int]]:
        """A run of each (B_p, n) of which none, failed or not, has come to where decisions start; as many as `left` pays for."""
        begun, wanted = {(c.B_p, c.n) for c in C if C[c] >= self._first(c)}, []
        for cell in [own[0] for key, own in seeds.items() if key not in begun]:
            if (cost := _cost(cell, self._first(cell)) - C.get(cell, 0)) <= left:
                wanted.append((cell, self._first(cell)))
                left -= cost
        return wanted

    def _estimate(self, runs: Sequence[RunRecord]) -> Estimate:
        """Draws of all curves. Equal n are not pooled: early on no data tell them apart, which is doubt, not an answer."""
        told = [r for r in runs if r.points and r.points[-1].rollouts >= self._first(r.cell)]
        options = Options(BIN_WIDTH, REPLICATES, 0, None, pool=False)
        return debiased.estimate(by_cell(tracks(told, self.metric, "rollouts")), self.metric, options)

    def _open(self, seeds: Mapping[tuple[int, int], Sequence[Cell]], C: Mapping[Cell, int], left: int) -> list[Possible]:
        """What `left` rollouts could pay for: each begun run, and the next seed of each (B_p, n), to each level."""
        found = []
        for own in seeds.values():
            begun = sum(C.get(cell, 0) > 0 for cell in own)
            for cell, target in product(own[: begun + 1], self.levels):
                at = C.get(cell, 0)
                far = target >= max(STRIDE * at, self._first(cell)) or target == self.levels[-1]
                cost = _cost(cell, target) - at
                if far and 0 < cost <= left:
                    found.append((cell, target, cost))
        return found

    def _steps(self, runs: Sequence[RunRecord], possible: Sequence[Possible], C: Mapping[Cell, int]) -> list[Step]:
        """What each possible step would take away of the doubt."""
        found = self._estimate(runs)
        if found.draws is None or found.intervals is None or found.noise_sd is None:
            raise InputError(f"the runs give no curve ({found.left_out}); expected {FIRST} evaluations of each. Look at their ledgers.")
        draws = replace(found.draws, shift=np.zeros_like(found.draws.shift))  # all runs are evaluated on the same problems
        R = draws.rewards(self.levels)
        doubt = Doubt(R, np.array([n for _, n in draws.keys]), math.hypot(found.intervals["run_sd"], found.noise_sd))
        places, levels = {key: j for j, key in enumerate(draws.keys)}, np.array(self.levels)
        steps = []
        for cell, target, cost in possible:
            j, at = places.get((cell.B_p, cell.n)), C.get(cell, 0)
            within = levels > at if at else levels <= target
            if j is not None and doubt.leads[j, within].max() >= MAY_LEAD:
                steps.append(Step(cell, target, cost, doubt.taken_by(R[:, j, self.levels.index(target)])))
        return steps

    def _behind(self, possible: Sequence[Possible], C: Mapping[Cell, int]) -> list[Possible]:
        """The next step of the longest run of each (B_p, n), shortest first."""
        longest = {(c.B_p, c.n): c for c in sorted(C, key=lambda c: (C[c], -c.seed))}
        found: dict[Cell, Possible] = {}
        for step in possible:
            if longest.get((step[0].B_p, step[0].n)) == step[0]:
                found.setdefault(step[0], step)
        return sorted(found.values(), key=lambda step: (step[1], step[0]))

    def _round(self, steps: Sequence[Step], behind: Sequence[Possible], C: Mapping[Cell, int], left: int) -> list[tuple[Cell, int]]:
        """What lags too far behind, then the most worthwhile step of each cell, as many as `left` pays for; if none is worth anything,
        what is furthest behind: the curves may be wrong where nothing was measured."""
        width = self.width or len({(c.B_p, c.n) for c in self.cells})
        worthwhile = sorted((s for s in steps if s.gain > TRIFLE), key=lambda s: (-s.worth, s.cell, s.target))
        lagging = [step for step in behind if C[step[0]] * LAG < max(C.values())]
        if not worthwhile and not lagging:
            lagging = [step for step in behind if step[1] == behind[0][1]]
        chosen = [(s.cell, s.target, s.cost) for s in worthwhile if s.worth >= WORTH * worthwhile[0].worth]
        wanted: dict[Cell, int] = {}
        for cell, target, cost in (*lagging, *chosen):
            if len(wanted) < width and cell not in wanted and cost <= left:
                wanted[cell] = target
                left -= cost
        return list(wanted.items())


class Doubt:
    """How little draws of all curves agree on the best n, and how much of that an evaluation would take away.

    Args:
        R: float[Q, J, L], rewards of Q draws of J cells at L levels. n: int[J]. sd: of what one run measures about its curve.
    """

    def __init__(self, R: FloatArray, n: NDArray[np.int64], sd: float) -> None:
        values, place = np.unique(n, return_inverse=True)
        steps = np.arange(len(values))
        first = R.argmax(1)  # [Q, L]
        self.leads = (first[:, None] == np.arange(len(n))[:, None]).mean(0)  # [J, L], the share of draws in which each cell is best
        self._best = (place[first][..., None] == steps).astype(np.float64)  # [Q, L, n]
        self._apart = np.abs(steps[:, None] - steps).astype(np.float64)
        self._sd = max(sd, 1e-6)
        rng = np.random.default_rng(0)
        self._luck = self._sd * rng.standard_normal(len(R))
        self._deals = [rng.permutation(len(R)) for _ in range(DEALS)]

    @property
    def now(self) -> float:
        """The doubt, mean over levels."""
        return float(self._left(np.full(len(self._best), 1 / len(self._best))))

    def _left(self, weight: FloatArray) -> FloatArray:
        """float[...]: the doubt where the draws count as float[..., Q] says."""
        return (np.tensordot(weight, self._best, 1) @ self._apart).min(-1).mean(-1)

    def taken_by(self, R: FloatArray) -> float:
        """The doubt that one run's evaluation would take away on average, where the draws promise float[Q].

        With finitely many draws even what tells nothing seems to tell something: the gain is that over the same promises dealt to
        other draws.
        """
        z = (R[:, None] + self._luck[:, None] - R) / self._sd
        weight = np.exp(-0.5 * (z**2 - (z**2).min(1, keepdims=True)))
        weight = weight / weight.sum(1, keepdims=True)
        useless = np.mean([self._left(weight[:, deal]).mean() for deal in self._deals])
        return float(useless - self._left(weight).mean())


def _cost(cell: Cell, target: int) -> int:
    """Rollouts of a run that is trained until its C reaches the target: whole updates."""
    return math.ceil(target / cell.B) * cell.B
