"""Which runs of an adaptive sweep to train next, and how far (`sweep.strategy: adaptive`;
docs/laws.md, Adaptive sweeps).

The sweep goes in rounds. A step trains one run, new or begun, to one C. After each round the curves
of all cells are fitted, with draws from their posterior. The steps of the next round are those that
are expected to make n*(C) most certain per rollout (knowledge gradient: Frazier et al. 2009)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isojax.core.errors import InputError
from isojax.core.nouns import Cell, RunRecord
from isojax.scaling.curves import fit_hierarchical
from isojax.scaling.curves.sweep_estimate import FitOptions, PosteriorSamples
from isojax.scaling.tracks import FloatArray, build_tracks, group_by, group_by_cell

# n*(C) is sought from budget / BUDGET_SPAN to the budget, at N_LEVELS values of C, the levels.
BUDGET_SPAN = 16
N_LEVELS = 9
INITIAL_EVALUATIONS = 4  # evaluations at C > 0 that every run has before anything is decided by it
# a run is extended at least to this many times its C: fewer rounds, more to learn in each
MIN_EXTENSION = 1.7
# A step that removes less uncertainty per rollout than this part of what the best one removes is
# left to a later round.
MIN_RELATIVE_WORTH = 0.1
# A step that removes less uncertainty than this, in steps of n, is never trained.
MIN_GAIN = 1e-4
REPLICATES = 100  # draws of the curves
# Random orders of the draws, from which follows what an evaluation seems to reveal by chance.
N_PERMUTATIONS = 4
MIN_P_BEST = 0.05  # an n continues if it is best in this share of the draws at some larger budget
# no (B_p, n) stays so many times behind the longest run: a curve predicts, only a run measures
MAX_LAG = 8


@dataclass(frozen=True)
class SweepStep:
    """Train the run `cell` to C = target."""

    cell: Cell
    target: int
    cost: int  # rollouts that this takes beyond those that the run has had
    # Uncertainty of n*(C) that the step is expected to remove, per rollout; in steps of the
    # measured n (NStarUncertainty), averaged over the levels of C.
    worth: float = 0.0


@dataclass(frozen=True)
class AdaptivePolicy:
    """Decides what to train next in one sweep, from the fields below and the sweep's records alone.
    InputError where a cell would have fewer than INITIAL_EVALUATIONS evaluations, or where the
    first round takes more than `total_rollouts`."""

    cells: Sequence[Cell]  # every (B_p, n, seed) that may be run
    C_grid: Sequence[int]  # where a run is evaluated; the last is the budget of n*(C)
    # spent in all, at most; None: half of what the whole grid takes
    total_rollouts: int | None = None
    metric: str = "avg@4"  # the reward that makes an n the best

    def __post_init__(self) -> None:
        """Refuse a grid with too few evaluations, or a budget too small to begin every (B_p, n)."""
        # The largest cell takes the fewest updates to a budget, and so has the fewest evaluations.
        largest_cell = max(self.cells, key=lambda c: c.B)
        count = len(self._evaluation_targets(largest_cell))
        if count < INITIAL_EVALUATIONS:
            received = f"{largest_cell.name} has {count} evaluations up to C = {self.C_grid[-1]}"
            fix = (
                "Raise sweep.budget, lower cell.eval.start or cell.eval.ratio, "
                "or take smaller B_p or n."
            )
            raise InputError(
                where="sweep.strategy=adaptive",
                found=received,
                expected=f"at least {INITIAL_EVALUATIONS}",
                fix=fix,
            )

        # The first seed of each (B_p, n); () as no run has failed yet.
        first_cells = [seeds[0] for seeds in self._seeds_by_cell(()).values()]
        first_round_rollouts = sum(
            cell.rollouts_to_reach(self._first_target(cell)) for cell in first_cells
        )
        if first_round_rollouts > self.allowed_rollouts:
            half_text = " (half of the grid)" if self.total_rollouts is None else ""
            needed = f"{first_round_rollouts}, which the first round takes to begin every (B_p, n)"
            fix = "Raise it or sweep.budget, or take fewer B_p or n."
            raise InputError(
                where="sweep.total_rollouts",
                found=f"given {self.allowed_rollouts}{half_text}",
                expected=f"at least {needed}",
                fix=fix,
            )

    def next_round(self, runs: Sequence[RunRecord]) -> list[tuple[Cell, int]]:
        """The runs to train at the same time and the C to train each to, by the records so far.

        The run with the most to do comes first; [] when the sweep is over. Example:
        [(Cell(B_p=8, n=16, seed=0), 40960)]. Runs that failed are not trained further. runs: the
        records of this sweep, those of failed runs too."""
        seeds_by_cell = self._seeds_by_cell([r.cell for r in runs if r.failure_reason])
        C_reached = {r.cell: r.points[-1].rollouts for r in runs if r.points}
        rollouts_left = self.allowed_rollouts - sum(C_reached.values())
        # So many runs at most are trained in a round: one for each (B_p, n), on average.
        max_cells = len({(c.B_p, c.n) for c in self.cells})

        # As long as some (B_p, n) has too few evaluations for a curve, such cells come first.
        first_steps = self._first_steps(seeds_by_cell, C_reached)
        targets = _affordable_targets(first_steps, rollouts_left, max_cells)
        if not targets:
            possible_steps = list(self._possible_steps(seeds_by_cell, C_reached, rollouts_left))
            if possible_steps:
                worthwhile_steps = self._worthwhile_steps(runs, possible_steps, C_reached)
                ordered_steps = _order_steps(worthwhile_steps, possible_steps, C_reached)
                targets = _affordable_targets(ordered_steps, rollouts_left, max_cells)

        def longest_first(item: tuple[Cell, int]) -> tuple[int, Cell]:
            """Sorting key of a cell and its target: minus the rollouts from C_reached to there."""
            cell, target = item
            return C_reached.get(cell, 0) - target, cell

        return sorted(targets.items(), key=longest_first)

    def summary(self, runs: Sequence[RunRecord]) -> dict[str, Any]:
        """How the sweep's rollouts were spent, to be written as JSON.

        {"allowed", "spent", "grid": rollouts, of the whole grid the last; "saved": the part of the
        grid that was not spent; "cells": [{"B_p", "n", "runs": how many were trained, "C": of the
        longest, "rollouts": of all of them}, ...]}."""
        evaluated_runs = [r for r in runs if r.points]
        runs_by_cell = group_by(evaluated_runs, lambda r: (r.cell.B_p, r.cell.n))
        rows = []
        for B_p, n in sorted({(c.B_p, c.n) for c in self.cells}):
            C_of_runs = [r.points[-1].rollouts for r in runs_by_cell.get((B_p, n), [])]
            rows.append(
                {
                    "B_p": B_p,
                    "n": n,
                    "runs": sum(C > 0 for C in C_of_runs),
                    "C": max(C_of_runs, default=0),
                    "rollouts": sum(C_of_runs),
                }
            )

        spent = sum(r.points[-1].rollouts for r in evaluated_runs)
        return {
            "allowed": self.allowed_rollouts,
            "spent": spent,
            "grid": self.grid_rollouts,
            "saved": 1 - spent / self.grid_rollouts,
            "cells": rows,
        }

    @property
    def grid_rollouts(self) -> int:
        """Rollouts that the whole grid would take: each seed of each cell to the budget."""
        return sum(cell.rollouts_to_reach(self.C_grid[-1]) for cell in self.cells)

    @property
    def allowed_rollouts(self) -> int:
        """Rollouts that the sweep may spend in all; without total_rollouts half of the grid."""
        return self.grid_rollouts // 2 if self.total_rollouts is None else self.total_rollouts

    @cached_property
    def C_levels(self) -> list[int]:
        """The values of C at which n*(C) is sought: values of the grid of evaluations, rising, at
        most N_LEVELS, evenly spread in log C."""
        positive_C_grid = np.array([C for C in self.C_grid if C > 0])
        budget = positive_C_grid[-1]
        C_sought = np.geomspace(budget / BUDGET_SPAN, budget, N_LEVELS)
        # for each the value of the grid that is nearest in log C; two may share one
        nearest = [np.abs(np.log(positive_C_grid / C)).argmin() for C in C_sought]
        return sorted({int(positive_C_grid[i]) for i in nearest})

    def _evaluation_targets(self, cell: Cell) -> list[int]:
        """The values of the grid of C that a run of this cell is evaluated for, rising, without 0.

        Where one update passes several of them, a single evaluation serves the largest."""
        target_by_update = {math.ceil(C / cell.B): C for C in self.C_grid if C > 0}
        return list(target_by_update.values())

    def _first_target(self, cell: Cell) -> int:
        """The C from which on a run of this cell counts in decisions.

        It then has at least INITIAL_EVALUATIONS evaluations, and has reached the lowest of the
        values of C at which n*(C) is sought (C_levels)."""
        return max(self.C_levels[0], self._evaluation_targets(cell)[INITIAL_EVALUATIONS - 1])

    def _seeds_by_cell(self, failed: Sequence[Cell]) -> dict[tuple[int, int], list[Cell]]:
        """The seeds of each (B_p, n) that have not failed, all in rising order."""
        return group_by(sorted(set(self.cells) - set(failed)), lambda cell: (cell.B_p, cell.n))

    def _first_steps(
        self,
        seeds_by_cell: Mapping[tuple[int, int], Sequence[Cell]],
        C_reached: Mapping[Cell, int],
    ) -> list[SweepStep]:
        """The steps that train the first seed of each (B_p, n) to its first target (_first_target).

        There is none for a (B_p, n) of which a run has reached it; one that got there and failed
        later counts, since its curve is known. seeds_by_cell: the runs that have not failed, by
        (B_p, n), seeds in rising order; C_reached: rollouts of each run that was evaluated."""
        started_cells = {
            (cell.B_p, cell.n) for cell, C in C_reached.items() if C >= self._first_target(cell)
        }
        steps = []
        for key, seeds in seeds_by_cell.items():
            if key in started_cells:
                continue

            cell = seeds[0]
            target = self._first_target(cell)
            cost = cell.rollouts_to_reach(target) - C_reached.get(cell, 0)
            steps.append(SweepStep(cell, target, cost))
        return steps

    def _possible_steps(
        self,
        seeds_by_cell: Mapping[tuple[int, int], Sequence[Cell]],
        C_reached: Mapping[Cell, int],
        rollouts_left: int,
    ) -> Iterator[SweepStep]:
        """All steps that `rollouts_left` could pay for, of one run by rising target.

        They train each run that has begun, and the next seed of each (B_p, n), to each level (value
        of C at which n*(C) is sought) that is MIN_EXTENSION times its C or more. seeds_by_cell and
        C_reached as in _first_steps."""
        for cell_seeds in seeds_by_cell.values():
            started_count = sum(C_reached.get(cell, 0) > 0 for cell in cell_seeds)
            for cell in cell_seeds[: started_count + 1]:
                C_now = C_reached.get(cell, 0)
                shortest_target = max(MIN_EXTENSION * C_now, self._first_target(cell))
                for target in self.C_levels:
                    cost = cell.rollouts_to_reach(target) - C_now
                    # The last level is the budget: a run may go there, however near it is.
                    is_far_enough = target >= shortest_target or target == self.C_levels[-1]
                    if is_far_enough and 0 < cost <= rollouts_left:
                        yield SweepStep(cell, target, cost)

    def _worthwhile_steps(
        self,
        runs: Sequence[RunRecord],
        possible_steps: Sequence[SweepStep],
        C_reached: Mapping[Cell, int],
    ) -> list[SweepStep]:
        """The steps that are expected to make n*(C) more certain, each with its `worth`.

        The highest worth comes first. Each (B_p, n) counts by its curve; cells of equal n are not
        pooled, since too few data distinguish them early on. possible_steps: their targets are
        C_levels; C_reached: rollouts of each run that was evaluated."""
        model = self._fit(runs)
        reward_draws = model.draws.rewards(self.C_levels)  # [Q draws, J cells, L levels]
        uncertainty = NStarUncertainty(
            reward_draws, np.array([n for _, n in model.draws.keys]), model.measurement_sd
        )
        column_of_cell = {key: j for j, key in enumerate(model.draws.keys)}
        C_levels = np.array(self.C_levels)

        worthwhile_steps = []
        for step in possible_steps:
            j = column_of_cell.get((step.cell.B_p, step.cell.n))
            if j is None:  # no run of this (B_p, n) has come far enough for a curve
                continue

            # A cell that is unlikely to be best at any level for which this run still has
            # something to measure is not worth a rollout. These levels are all that are above
            # its C, which later steps reach; of a new run only those of this step.
            C_now = C_reached.get(step.cell, 0)
            levels_ahead = C_levels > C_now if C_now else C_levels <= step.target
            if uncertainty.p_best[j, levels_ahead].max() < MIN_P_BEST:
                continue

            at_target = reward_draws[:, j, self.C_levels.index(step.target)]
            gain = uncertainty.expected_reduction(at_target)
            if gain > MIN_GAIN:
                worthwhile_steps.append(replace(step, worth=gain / step.cost))
        return sorted(worthwhile_steps, key=lambda s: (-s.worth, s.cell, s.target))

    def _fit(self, runs: Sequence[RunRecord]) -> "_SweepModel":
        """Fit the curves of all runs that have reached their first target (_first_target).

        InputError where they give no curve."""
        usable_runs = [
            r for r in runs if r.points and r.points[-1].rollouts >= self._first_target(r.cell)
        ]
        cells = group_by_cell(build_tracks(usable_runs, self.metric, "rollouts"))
        estimate = fit_hierarchical.estimate(cells, self.metric, FitOptions(replicates=REPLICATES))
        if estimate.draws is None or estimate.intervals is None or estimate.noise_sd is None:
            raise InputError(
                found=f"the runs give no curve ({estimate.unfitted_cells})",
                expected=f"{INITIAL_EVALUATIONS} evaluations of each",
                fix="Look at their ledgers.",
            )
        return _SweepModel(
            # `shift` is what a choice of other validation problems would add to the rewards of each
            # draw: 0, since all runs are evaluated on the same ones.
            draws=replace(estimate.draws, shift=np.zeros_like(estimate.draws.shift)),
            measurement_sd=math.hypot(estimate.intervals.run_sd, estimate.noise_sd),
        )


@dataclass(frozen=True)
class _SweepModel:
    """The curves of a sweep so far, and how far what one run measures is from its curve."""

    draws: PosteriorSamples
    measurement_sd: float


def _order_steps(
    worthwhile_steps: Sequence[SweepStep],
    possible_steps: Sequence[SweepStep],
    C_reached: Mapping[Cell, int],
) -> list[SweepStep]:
    """The steps to train next, the most important first.

    First come the cells whose longest run is MAX_LAG times shorter than the longest of all; then
    the worthwhile steps, unless their worth is below MIN_RELATIVE_WORTH of the highest. Where there
    are neither, the runs that are furthest behind continue: the curves, which call no step
    worthwhile, may be wrong. worthwhile_steps: by falling worth; possible_steps: of one run by
    rising target, at least one; C_reached: rollouts of each run that was evaluated."""
    # The longest run of each (B_p, n), of equally long ones the smaller seed: later ones in this
    # order overwrite earlier ones.
    longest_runs = {
        (c.B_p, c.n): c for c in sorted(C_reached, key=lambda c: (C_reached[c], -c.seed))
    }
    next_steps: dict[Cell, SweepStep] = {}  # the shortest step of each of these runs
    for step in possible_steps:
        if longest_runs.get((step.cell.B_p, step.cell.n)) == step.cell:
            next_steps.setdefault(step.cell, step)
    longest_run_steps = sorted(next_steps.values(), key=lambda s: (s.target, s.cell))

    lagging_steps = [
        s for s in longest_run_steps if C_reached[s.cell] * MAX_LAG < max(C_reached.values())
    ]
    if not worthwhile_steps and not lagging_steps:
        return [s for s in longest_run_steps if s.target == longest_run_steps[0].target]

    steps = lagging_steps
    for step in worthwhile_steps:
        if step.worth >= MIN_RELATIVE_WORTH * worthwhile_steps[0].worth:
            steps.append(step)
    return steps


def _affordable_targets(
    steps: Sequence[SweepStep], rollouts_left: int, max_cells: int
) -> dict[Cell, int]:
    """The target C of each run whose step is taken: the steps in order, as far as rollouts last.

    At most one step of each run is taken and `max_cells` in all. A step that costs more than what
    is left is passed over; cheaper ones after it may still be taken."""
    targets: dict[Cell, int] = {}
    for step in steps:
        if len(targets) < max_cells and step.cell not in targets and step.cost <= rollouts_left:
            targets[step.cell] = step.target
            rollouts_left -= step.cost
    return targets


class NStarUncertainty:
    """How uncertain the best n is at each of several C (levels), by draws of the cells' rewards,
    and by how much one more evaluation would lower that.

    The uncertainty at a level: choose the n whose expected distance from a draw's best n is
    smallest; the uncertainty is this distance, in steps between the measured n (from 4 to 16 of
    measured 4, 8, 16 is 2). It is 0 where all draws agree.

    Arguments: reward_draws float[Q draws, J cells, L levels]; n int[J], of each cell;
    measurement_sd, the standard deviation of what one run measures around its curve."""

    def __init__(
        self, reward_draws: FloatArray, n: NDArray[np.int64], measurement_sd: float
    ) -> None:
        """Tabulates the best n of each draw and level; the arguments are those of the class."""
        # For each draw and level, which cell is best, and which of the measured n that is.
        num_draws, num_cells, _ = reward_draws.shape
        distinct_n, n_index = np.unique(n, return_inverse=True)
        n_steps = np.arange(len(distinct_n))
        best_cell = reward_draws.argmax(1)  # [Q, L]
        # [J, L], the share of draws in which each cell is best
        self.p_best = (best_cell[:, None] == np.arange(num_cells)[:, None]).mean(0)
        # [Q, L, n]
        self._best_n_one_hot = (n_index[best_cell][..., None] == n_steps).astype(np.float64)
        self._n_distance = np.abs(n_steps[:, None] - n_steps).astype(np.float64)  # [n, n]

        # What the effect of one more evaluation is estimated with: an error of it for each draw,
        # and random orders of the draws, which show how much it would seem to reveal by chance.
        self._measurement_sd = max(measurement_sd, 1e-6)
        rng = np.random.default_rng(0)
        self._measurement_noise = self._measurement_sd * rng.standard_normal(num_draws)
        self._permutations = [rng.permutation(num_draws) for _ in range(N_PERMUTATIONS)]

    def _uncertainty(self, draw_weights: FloatArray) -> FloatArray:
        """The uncertainty, averaged over levels, with these weights of the draws:
        float[..., Q], each row of sum 1 -> float[...]."""
        best_n_probability = np.tensordot(draw_weights, self._best_n_one_hot, 1)  # [..., L, n]
        expected_distance = best_n_probability @ self._n_distance
        return expected_distance.min(-1).mean(-1)

    def expected_reduction(self, predicted_rewards: FloatArray) -> float:
        """How much less uncertain the best n is expected to be after one more evaluation.

        predicted_rewards: float[Q], those that the draws predict for this evaluation. Left out is
        the part that even an evaluation that reveals nothing seems to gain, by chance; so the
        result may be negative. Its unit is that of the uncertainty, steps of the measured n."""
        # In row q, draw q is the truth, and is measured with noise. The weights of the row: how
        # well each draw explains that measurement, by a normal likelihood.
        # [Q, Q]: the truth, then the draw that is weighed
        measured = predicted_rewards[:, None] + self._measurement_noise[:, None]
        z = (measured - predicted_rewards) / self._measurement_sd
        draw_weights = np.exp(-0.5 * (z**2 - (z**2).min(1, keepdims=True)))
        draw_weights = draw_weights / draw_weights.sum(1, keepdims=True)

        # Among finitely many draws even weights that have nothing to do with the draws' best n, as
        # those of permuted draws, lower the uncertainty: that much is chance.
        by_chance = np.mean(
            [self._uncertainty(draw_weights[:, order]).mean() for order in self._permutations]
        )
        return float(by_chance - self._uncertainty(draw_weights).mean())
