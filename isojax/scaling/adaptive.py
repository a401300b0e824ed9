"""The policy behind `sweep.strategy: adaptive` (docs/laws.md, Adaptive sweeps): next comes what
removes most uncertainty of n*(C) per rollout by posterior draws of all curves (knowledge gradient:
Frazier et al. 2009)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isojax.core.errors import InputError
from isojax.core.nouns import Cell, RunRecord
from isojax.scaling.curves import fit_hierarchical
from isojax.scaling.curves.sweep_estimate import FitOptions
from isojax.scaling.tracks import FloatArray, build_tracks, group_by, group_by_cell

# n*(C) is sought from budget / SPAN to the budget, at so many values of C
BUDGET_SPAN = 16
N_LEVELS = 9
INITIAL_EVALUATIONS = 4  # evaluations at C > 0 that every run has before anything is decided by it
# a run is extended at least to this many times its C: fewer rounds, more to learn in each
MIN_EXTENSION = 1.7
# a step that removes less uncertainty per rollout than this part of the best step's waits
MIN_RELATIVE_WORTH = 0.1
MIN_GAIN = 1e-4  # uncertainty that is worth no rollout, in steps of n
REPLICATES = 100
# of the predicted rewards among draws: what an evaluation seems to reveal by chance
N_PERMUTATIONS = 4
MIN_P_BEST = 0.05  # an n continues if it is best in this share of the draws at some larger budget
# no (B_p, n) stays so many times behind the longest run: a curve predicts, only a run measures
MAX_LAG = 8


@dataclass(frozen=True)
class SweepStep:
    """Train `cell` to C = target."""

    cell: Cell
    target: int
    cost: int  # rollouts that this takes
    # uncertainty of n* that it removes per rollout, in steps of n, mean over levels
    worth: float = 0.0


@dataclass(frozen=True)
class AdaptivePolicy:
    """The policy of one sweep: what it asks for follows from the sweep and its records alone.
    Refused where a cell has too few evaluations, or the first round takes more than
    `total_rollouts`."""

    cells: Sequence[Cell]  # every (B_p, n, seed) that may be run
    C_grid: Sequence[int]  # where a run is evaluated; the last is the budget of n*(C)
    # spent in all, at most; None: half of what the whole grid takes
    total_rollouts: int | None = None
    metric: str = "avg@4"  # the reward that makes an n the best

    def __post_init__(self) -> None:
        largest_cell = max(self.cells, key=lambda c: c.B)
        if (count := len(self._evaluation_targets(largest_cell))) < INITIAL_EVALUATIONS:
            received = f"{largest_cell.name} has {count} evaluations up to C = {self.C_grid[-1]}"
            fix = "Raise sweep.budget, lower cell.eval.start or cell.eval.ratio, or take smaller B_p or n."
            raise InputError(
                f"sweep.strategy=adaptive: {received}, expected at least {INITIAL_EVALUATIONS}. {fix}"
            )
        first_cells = [seeds[0] for seeds in self._seeds_by_cell(()).values()]
        first_round_rollouts = sum(
            cell.rollouts_to_reach(self._first_target(cell)) for cell in first_cells
        )
        if first_round_rollouts > self.allowed_rollouts:
            allowed_text = f"{self.allowed_rollouts}{' (half of the grid)' if self.total_rollouts is None else ''}"
            expected = f"at least {first_round_rollouts}, which the first round takes to begin every (B_p, n)"
            fix = "Raise it or sweep.budget, or take fewer B_p or n."
            raise InputError(
                f"sweep.total_rollouts: given {allowed_text}, expected {expected}. {fix}"
            )

    def next_round(self, runs: Sequence[RunRecord]) -> list[tuple[Cell, int]]:
        """Cells to run at the same time, longest first, and the C to train each to; [] at the end.
        None that failed."""
        seeds_by_cell = self._seeds_by_cell([r.cell for r in runs if r.failure_reason])
        C_reached = {r.cell: r.points[-1].rollouts for r in runs if r.points}
        rollouts_left = self.allowed_rollouts - sum(C_reached.values())
        max_cells = len({(c.B_p, c.n) for c in self.cells})
        # First a run of each (B_p, n) of which none, failed or not, has come to where decisions
        # start.
        started_cells = {(c.B_p, c.n) for c in C_reached if C_reached[c] >= self._first_target(c)}
        first_seeds = [seeds[0] for key, seeds in seeds_by_cell.items() if key not in started_cells]
        first_targets = {cell: self._first_target(cell) for cell in first_seeds}
        first_steps = [
            SweepStep(c, C, c.rollouts_to_reach(C) - C_reached.get(c, 0))
            for c, C in first_targets.items()
        ]
        targets = _affordable_targets(first_steps, rollouts_left, max_cells)
        if not targets:
            possible_steps = list(self._possible_steps(seeds_by_cell, C_reached, rollouts_left))
            if possible_steps:
                worthwhile_steps = self._worthwhile_steps(runs, possible_steps, C_reached)
                ordered_steps = _order_steps(worthwhile_steps, possible_steps, C_reached)
                targets = _affordable_targets(ordered_steps, rollouts_left, max_cells)
        return sorted(
            targets.items(), key=lambda item: (C_reached.get(item[0], 0) - item[1], item[0])
        )

    def summary(self, runs: Sequence[RunRecord]) -> dict[str, Any]:
        """Rollouts allowed, spent and of the whole grid, the part saved, and how far each (B_p, n)
        went."""
        spent, rows = sum(r.points[-1].rollouts for r in runs if r.points), []
        for B_p, n in sorted({(c.B_p, c.n) for c in self.cells}):
            C = [
                r.points[-1].rollouts
                for r in runs
                if r.points and (r.cell.B_p, r.cell.n) == (B_p, n)
            ]
            rows.append(
                {
                    "B_p": B_p,
                    "n": n,
                    "runs": sum(c > 0 for c in C),
                    "C": max(C, default=0),
                    "rollouts": sum(C),
                }
            )
        return {
            "allowed": self.allowed_rollouts,
            "spent": spent,
            "grid": self.grid_rollouts,
            "saved": 1 - spent / self.grid_rollouts,
            "cells": rows,
        }

    @property
    def grid_rollouts(self) -> int:
        return sum(cell.rollouts_to_reach(self.C_grid[-1]) for cell in self.cells)

    @property
    def allowed_rollouts(self) -> int:
        return self.grid_rollouts // 2 if self.total_rollouts is None else self.total_rollouts

    @cached_property
    def C_levels(self) -> list[int]:
        """The values of C, of the grid, at which n* is sought; rising."""
        positive_C_grid = np.array([g for g in self.C_grid if g > 0])
        C_sought = np.geomspace(positive_C_grid[-1] / BUDGET_SPAN, positive_C_grid[-1], N_LEVELS)
        return sorted(
            {int(positive_C_grid[np.abs(np.log(positive_C_grid / C)).argmin()]) for C in C_sought}
        )

    def _evaluation_targets(self, cell: Cell) -> list[int]:
        """The targets C > 0 that a run's evaluations answer: of those that one update reaches, the
        largest."""
        return list({math.ceil(g / cell.B): g for g in self.C_grid if g > 0}.values())

    def _first_target(self, cell: Cell) -> int:
        return max(self.C_levels[0], self._evaluation_targets(cell)[INITIAL_EVALUATIONS - 1])

    def _seeds_by_cell(self, failed: Sequence[Cell]) -> dict[tuple[int, int], list[Cell]]:
        return group_by(sorted(set(self.cells) - set(failed)), lambda cell: (cell.B_p, cell.n))

    def _possible_steps(
        self,
        seeds_by_cell: Mapping[tuple[int, int], Sequence[Cell]],
        C_reached: Mapping[Cell, int],
        rollouts_left: int,
    ) -> Iterator[SweepStep]:
        """What `rollouts_left` could pay for: each begun run, and the next seed of each (B_p, n),
        to each level."""
        for cell_seeds in seeds_by_cell.values():
            started_count = sum(C_reached.get(cell, 0) > 0 for cell in cell_seeds)
            for cell, target in product(cell_seeds[: started_count + 1], self.C_levels):
                C_now = C_reached.get(cell, 0)
                is_far_enough = target >= max(MIN_EXTENSION * C_now, self._first_target(cell))
                cost = cell.rollouts_to_reach(target) - C_now
                if (is_far_enough or target == self.C_levels[-1]) and 0 < cost <= rollouts_left:
                    yield SweepStep(cell, target, cost)

    def _worthwhile_steps(
        self,
        runs: Sequence[RunRecord],
        possible_steps: Sequence[SweepStep],
        C_reached: Mapping[Cell, int],
    ) -> list[SweepStep]:
        """The steps that remove uncertainty. Equal n are not pooled: early on, too few data
        distinguish them."""
        usable_runs = [
            r for r in runs if r.points and r.points[-1].rollouts >= self._first_target(r.cell)
        ]
        cells = group_by_cell(build_tracks(usable_runs, self.metric, "rollouts"))
        estimate = fit_hierarchical.estimate(cells, self.metric, FitOptions(replicates=REPLICATES))
        if estimate.draws is None or estimate.intervals is None or estimate.noise_sd is None:
            problem = f"the runs give no curve ({estimate.unfitted_cells})"
            raise InputError(
                f"{problem}; expected {INITIAL_EVALUATIONS} evaluations of each. Look at their ledgers."
            )
        # All runs are evaluated on the same problems.
        draws = replace(estimate.draws, shift=np.zeros_like(estimate.draws.shift))
        reward_draws = draws.rewards(self.C_levels)
        measurement_sd = math.hypot(estimate.intervals.run_sd, estimate.noise_sd)
        uncertainty = NStarUncertainty(
            reward_draws, np.array([n for _, n in draws.keys]), measurement_sd
        )
        cell_columns = {key: j for j, key in enumerate(draws.keys)}
        C_levels = np.array(self.C_levels)
        worthwhile_steps = []
        for step in possible_steps:
            j = cell_columns.get((step.cell.B_p, step.cell.n))
            C_now = C_reached.get(step.cell, 0)
            levels_ahead = C_levels > C_now if C_now else C_levels <= step.target
            if j is not None and uncertainty.p_best[j, levels_ahead].max() >= MIN_P_BEST:
                gain = uncertainty.expected_reduction(
                    reward_draws[:, j, self.C_levels.index(step.target)]
                )
                if gain > MIN_GAIN:
                    worthwhile_steps.append(replace(step, worth=gain / step.cost))
        return sorted(worthwhile_steps, key=lambda s: (-s.worth, s.cell, s.target))


def _order_steps(
    worthwhile_steps: Sequence[SweepStep],
    possible_steps: Sequence[SweepStep],
    C_reached: Mapping[Cell, int],
) -> list[SweepStep]:
    """What lags too far behind, then what is most worthwhile; if nothing is, the shortest: curves
    may be wrong."""
    longest_runs = {
        (c.B_p, c.n): c for c in sorted(C_reached, key=lambda c: (C_reached[c], -c.seed))
    }
    next_steps: dict[Cell, SweepStep] = {}  # of the longest run of each (B_p, n)
    for step in possible_steps:
        if longest_runs.get((step.cell.B_p, step.cell.n)) == step.cell:
            next_steps.setdefault(step.cell, step)
    longest_run_steps = sorted(next_steps.values(), key=lambda s: (s.target, s.cell))
    lagging_steps = [
        s for s in longest_run_steps if C_reached[s.cell] * MAX_LAG < max(C_reached.values())
    ]
    if not worthwhile_steps and not lagging_steps:
        return [s for s in longest_run_steps if s.target == longest_run_steps[0].target]
    return [
        *lagging_steps,
        *(s for s in worthwhile_steps if s.worth >= MIN_RELATIVE_WORTH * worthwhile_steps[0].worth),
    ]


def _affordable_targets(
    steps: Sequence[SweepStep], rollouts_left: int, max_cells: int
) -> dict[Cell, int]:
    """The target of the first step of each cell, where the rollouts that are left pay for it."""
    targets: dict[Cell, int] = {}
    for step in steps:
        if len(targets) < max_cells and step.cell not in targets and step.cost <= rollouts_left:
            targets[step.cell] = step.target
            rollouts_left -= step.cost
    return targets


class NStarUncertainty:
    """How little Q draws of the rewards of J cells at L levels, float[Q, J, L], agree on the best
    n, and how much of that an evaluation would take away; measurement_sd: of what one run measures
    around its curve."""

    def __init__(
        self, reward_draws: FloatArray, n: NDArray[np.int64], measurement_sd: float
    ) -> None:
        distinct_n, n_index = np.unique(n, return_inverse=True)
        n_steps = np.arange(len(distinct_n))
        best_cell = reward_draws.argmax(1)  # [Q, L]
        # [J, L], the share of draws in which each cell is best
        self.p_best = (best_cell[:, None] == np.arange(len(n))[:, None]).mean(0)
        # [Q, L, n]
        self._best_n_one_hot = (n_index[best_cell][..., None] == n_steps).astype(np.float64)
        self._n_distance = np.abs(n_steps[:, None] - n_steps).astype(np.float64)
        self._measurement_sd = max(measurement_sd, 1e-6)
        rng = np.random.default_rng(0)
        self._measurement_noise = self._measurement_sd * rng.standard_normal(len(reward_draws))
        self._permutations = [rng.permutation(len(reward_draws)) for _ in range(N_PERMUTATIONS)]

    def _uncertainty(self, draw_weights: FloatArray) -> FloatArray:
        """float[...]: the uncertainty where the draws count as float[..., Q] says."""
        return (
            (np.tensordot(draw_weights, self._best_n_one_hot, 1) @ self._n_distance)
            .min(-1)
            .mean(-1)
        )

    def expected_reduction(self, predicted_rewards: FloatArray) -> float:
        """The uncertainty that one run's evaluation, float[Q] by the draws, removes on average,
        less that by chance."""
        z = (
            predicted_rewards[:, None] + self._measurement_noise[:, None] - predicted_rewards
        ) / self._measurement_sd
        draw_weights = np.exp(-0.5 * (z**2 - (z**2).min(1, keepdims=True)))
        draw_weights = draw_weights / draw_weights.sum(1, keepdims=True)
        permuted_uncertainty = np.mean(
            [self._uncertainty(draw_weights[:, deal]).mean() for deal in self._permutations]
        )
        return float(permuted_uncertainty - self._uncertainty(draw_weights).mean())
