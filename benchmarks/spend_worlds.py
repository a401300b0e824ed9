"""How much reward does `isojax spend` lose against the best fixed n, on worlds whose curves are not
its model's?

    python benchmarks/spend_worlds.py                  112 worlds of foreign_forms.py; 3 minutes
    python benchmarks/spend_worlds.py --seed 8 --worlds 28

The budget of a world is its largest measured C, at its smallest B_p. The policy
(isojax/scaling/spending.py) sees noisy evaluations alone, a factor of 1.25 of C apart, of pilots
and of one run whose n it chooses. In these worlds what a policy learns next depends on its reward
alone. A run whose reward is above what an n reaches falls back to that under this n in half of the
worlds, and stays in the others. regret: the reward that the best fixed n of the world has after the
whole budget, known to an oracle, less that of the run. expected: whether the run's reward lies in
the interval that was stated when its last n was chosen. One JSON line for each world.
"""

from __future__ import annotations

import argparse
import json
import math
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
from foreign_forms import FORMS, METRIC, SAMPLES, World, random_world
from rich.console import Console
from rich.progress import track
from scipy.special import expit

from isojax.core.nouns import Cell, EvalPoint, Leg, RunRecord
from isojax.scaling.spending import SpendPolicy

EVALUATION_RATIO, EVALUATIONS = 1.25, 22
CURVE_POINTS = 6000


class SimulatedRun:
    """A run that goes on from its reward, with any n of its world."""

    def __init__(self, world: World, cell: Cell, rng: np.random.Generator, falls_back: bool):
        self.world, self.cell, self.rng, self.falls_back = world, cell, rng, falls_back
        keys = [key for key in world.curves if key[0] == cell.B_p]
        self.C_grid = np.concatenate([[0.0], np.geomspace(1, 50 * world.C_end, CURVE_POINTS)])
        self.curves = {
            key[1]: np.maximum.accumulate(world.curves[key].reward(self.C_grid)) for key in keys
        }
        self.reward = self.base_reward = float(next(iter(self.curves.values()))[0])
        self.highest = max(float(curve[-1]) for curve in self.curves.values())
        self.luck = rng.normal(0, world.run_sd)
        self.points = [self.evaluate(0, 0)]

    def train(self, n: int, C_end: int) -> None:
        """Whole updates until C_end, then an evaluation."""
        last, B = self.points[-1], self.cell.B_p * n
        updates = math.ceil((C_end - last.rollouts) / B)
        curve = self.curves[n]
        if self.reward < curve[-1]:
            i = int(np.searchsorted(curve, self.reward, "right")) - 1
            rise = curve[i + 1] - curve[i]
            share = (self.reward - curve[i]) / rise if rise > 0 else 0.0
            C_now = self.C_grid[i] + share * (self.C_grid[i + 1] - self.C_grid[i])
            self.reward = float(np.interp(C_now + updates * B, self.C_grid, curve))
        elif self.falls_back:
            C_mid = np.interp((curve[0] + curve[-1]) / 2, curve, self.C_grid)
            self.reward = float(
                curve[-1] + (self.reward - curve[-1]) * 0.5 ** (updates * B / C_mid)
            )
        self.points.append(self.evaluate(last.M + updates, last.rollouts + updates * B))

    def evaluate(self, M: int, C: int) -> EvalPoint:
        world = self.world
        progress = (self.reward - self.base_reward) / (self.highest - self.base_reward)
        reward = float(np.clip(self.reward + self.luck * progress, 0.0005, 0.9995))
        if world.difficulties.size:
            solve_rates = expit(world.levels(np.array([reward]))[0] + world.difficulties)
            measured = float(self.rng.binomial(SAMPLES, solve_rates).mean() / SAMPLES)
        else:
            sd = 2 * world.noise_sd * np.sqrt(reward * (1 - reward))
            measured = float(np.clip(reward + self.rng.normal(0, sd), 0, 1))
        return EvalPoint(target=C, M=M, rollouts=C, tokens=0, metrics={METRIC: measured})

    @property
    def record(self) -> RunRecord:
        return RunRecord(self.cell, tuple(self.points))


def spend(world: World, rng: np.random.Generator, falls_back: bool) -> dict[str, Any]:
    """One budget spent in a world."""
    budget = int(world.C_end)
    B_p = min(key[0] for key in world.curves)
    all_n = sorted(key[1] for key in world.curves if key[0] == B_p)
    C_grid = [0, *(round(budget / EVALUATION_RATIO**k) for k in range(EVALUATIONS, -1, -1))]
    cells = [Cell.of_spend(B_p, n) for n in all_n]
    policy = SpendPolicy(cells, C_grid, budget, METRIC)
    runs: dict[Cell, SimulatedRun] = {}
    legs: list[Leg] = []

    def go(leg: Leg) -> None:
        run = runs.setdefault(leg.cell, SimulatedRun(world, leg.cell, rng, falls_back))
        run.train(leg.n, leg.C_end)
        legs.append(leg)

    for leg in policy.pilots():
        go(leg)
    num_pilots = len(legs)
    while (leg := policy.next_leg([run.record for run in runs.values()], legs)) is not None:
        go(leg)

    last = legs[-1]
    reward = runs[last.cell].reward
    fixed = {n: world.at_budget((B_p, n), budget) for n in all_n}
    spent = sum(run.points[-1].rollouts for run in runs.values())
    return {
        "form": world.form,
        "pilots": [leg.n for leg in legs[:num_pilots]],
        "n": [leg.n for leg in legs[num_pilots:]],
        "spent": spent / budget,
        "reward": reward,
        "fixed": fixed,
        "regret": max(fixed.values()) - reward,
        "regret_of_random_n": max(fixed.values()) - sum(fixed.values()) / len(fixed),
        "covered": last.interval is not None and last.interval[0] <= reward <= last.interval[1],
    }


def spend_in_world(case: tuple[int, int]) -> dict[str, Any]:
    """case: (seed, number of the world)."""
    _, number = case
    rng = np.random.default_rng(case)
    forms = list(FORMS)
    world = random_world(rng, forms[number % len(forms)])
    return spend(world, rng, falls_back=number // len(forms) % 2 == 0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=8, help="another one draws other worlds")
    parser.add_argument("--worlds", type=int, default=112, help="eight of each form by default")
    arguments = parser.parse_args()

    cases = [(arguments.seed, number) for number in range(arguments.worlds)]
    with ProcessPoolExecutor() as pool:
        results = pool.map(spend_in_world, cases)
        rows = list(track(results, "spending", len(cases), console=Console(stderr=True)))
    for row in rows:
        print(json.dumps(row), flush=True)

    regrets = np.array([row["regret"] for row in rows])
    summary = {
        "worlds": len(rows),
        "mean_regret": round(float(regrets.mean()), 4),
        "se": round(float(regrets.std() / np.sqrt(len(rows))), 4),
        "worst": round(float(regrets.max()), 3),
        "regret_of_random_n": round(float(np.mean([row["regret_of_random_n"] for row in rows])), 4),
        "spent": round(float(np.mean([row["spent"] for row in rows])), 3),
        "covered": round(float(np.mean([row["covered"] for row in rows])), 2),
    }
    by_form = {}
    for form in FORMS:
        of_form = [row["regret"] for row in rows if row["form"] == form]
        if of_form:
            by_form[form] = round(float(np.mean(of_form)), 3)
    print(json.dumps({**summary, "by_form": by_form}))


if __name__ == "__main__":
    main()
