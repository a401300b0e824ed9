"""Does `sweep.strategy=adaptive` find n*(C) with half of the grid's rollouts? Sweeps simulated on
random worlds of known law.

    python benchmarks/adaptive.py                             50 sweeps: 5 worlds of each kind, with
                                                              1 seed and with 3
    python benchmarks/adaptive.py --kinds hill --worlds 20    20 worlds of one kind

50 sweeps take about 5 minutes. A round's runs are a world's full runs, revealed up to the targets
that the policy requests. The benchmark then compares the n of the fit's best curve (what `isojax
recommend` gives where B_p is stable) with the world's truly best n, at the policy's 9 budgets from
budget / 16 to the budget:

    n_right         share of (world, budget) pairs whose n is within one step of the grid of n
    exact           share whose n is the best one
    worlds_right    share of worlds with all 9 budgets right
    regret          true reward lost by the choice, mean
    rollouts        spent, as a share of what the grid takes

It does so for four sweeps: the policy's ("frontier"), the whole grid ("grid"), the grid with all
runs to half the budget ("half_budget"), and, where there are three seeds, the grid with one of them
("one_seed"). One JSON line on standard output, progress on standard error. In worlds where n makes
no difference ("same") every n is right, so these worlds enter only rollouts, rounds and regret."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the worlds are in tests/scaling

from isojax.core.nouns import Cell, RunRecord
from isojax.scaling.adaptive import AdaptivePolicy
from isojax.scaling.allocate.curve_ensemble import load_ensemble
from isojax.scaling.curves.sweep_estimate import FitOptions
from isojax.scaling.fit import fit_all_runs
from tests.scaling.synthetic import World, random_world
from tests.scaling.synthetic_kinds import KINDS

METRIC = "avg@4"
EVALUATIONS = 25  # of each run
REPLICATES = 200  # draws of each fit
Line = dict[str, Any]


@dataclass(frozen=True)
class Simulated:
    """A sweep that did what the policy asked for."""

    runs: list[RunRecord]
    rounds: int


def simulate(w: World, policy: AdaptivePolicy) -> Simulated:
    targets = dict[Cell, int]()
    rounds = 0
    while wanted := policy.next_round(w.trained(targets)):
        targets |= dict(wanted)
        rounds += 1
    return Simulated(w.trained(targets), rounds)


def judge(w: World, runs: Sequence[RunRecord], C: Sequence[int], whole: int) -> Line:
    """The fit of some runs against the truth at budgets C."""
    fit = fit_all_runs(runs, METRIC, options=FitOptions(replicates=REPLICATES))
    ensemble = load_ensemble(fit)
    n_of_fit = ensemble.n[ensemble.expected_rewards(C).argmax(1)].tolist()

    keys = sorted(w.truth, key=lambda key: key[1])
    grid_of_n = [n for _, n in keys]
    true_rewards = np.stack([w.reward(*key, C) for key in keys])  # [n, budgets]
    best = true_rewards.argmax(0)
    choice = np.array([grid_of_n.index(n) for n in n_of_fit])

    steps_off = np.abs(choice - best)
    regret = true_rewards.max(0) - true_rewards[choice, np.arange(len(C))]
    return {
        "n_right": float(np.mean(steps_off <= 1)),
        "exact": float(np.mean(steps_off == 0)),
        "worlds_right": float(np.all(steps_off <= 1)),
        "regret": float(regret.mean()),
        "rollouts": sum(run.points[-1].rollouts for run in runs) / whole,
    }


@dataclass(frozen=True)
class Case:
    """A world, and the seeds of each of its cells."""

    kind: str
    seed: int
    seeds: int


def judge_case(case: Case) -> Line:
    """One simulated sweep by the policy, and those that it is compared with."""
    w = random_world(case.kind, case.seed, seeds=case.seeds, unequal=False, evaluations=EVALUATIONS)
    cells = [run.cell for run in w.runs]
    grid = sorted({point.target for run in w.runs for point in run.points})
    policy = AdaptivePolicy(cells, grid, metric=METRIC)
    start = time.perf_counter()
    simulated = simulate(w, policy)
    seconds = time.perf_counter() - start

    half = max(target for target in grid if target <= grid[-1] / 2)
    sweeps = {
        "frontier": simulated.runs,
        "grid": w.runs,
        "half_budget": w.trained(dict.fromkeys(cells, half)),
    }
    if case.seeds > 1:
        sweeps["one_seed"] = [run for run in w.runs if run.cell.seed == 0]
    return {
        "kind": case.kind,
        "seed": case.seed,
        "seeds": case.seeds,
        "rounds": simulated.rounds,
        "seconds_a_round": seconds / simulated.rounds,
        "sweeps": {
            name: judge(w, runs, policy.C_levels, policy.grid_rollouts)
            for name, runs in sweeps.items()
        },
    }


def summary(lines: Sequence[Line]) -> Line:
    """Means over worlds."""
    result: Line = {
        "worlds": len(lines),
        "rounds": float(np.mean([line["rounds"] for line in lines])),
        "seconds_a_round": float(np.median([line["seconds_a_round"] for line in lines])),
    }

    # Where n makes no difference, every n is right, so that no choice can be judged.
    with_best_n = [line for line in lines if line["kind"] != "same"]
    lines_of_figure = {
        "n_right": with_best_n,
        "exact": with_best_n,
        "worlds_right": with_best_n,
        "regret": lines,
        "rollouts": lines,
    }
    for sweep in dict.fromkeys(name for line in lines for name in line["sweeps"]):
        means = {}
        for figure, counted in lines_of_figure.items():
            values = [line["sweeps"][sweep][figure] for line in counted if sweep in line["sweeps"]]
            if values:
                means[figure] = round(float(np.mean(values)), 4)
        result[sweep] = means
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kinds", default=",".join(KINDS), help="kinds of worlds, with commas between: %(default)s"
    )
    parser.add_argument(
        "--worlds", type=int, default=5, help="worlds of each kind and each number of seeds"
    )
    parser.add_argument("--seeds", default="1,3", help="numbers of seeds that a cell has")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first world")
    parser.add_argument("--workers", type=int, default=1, help="processes; give each a core")
    arguments = parser.parse_args()
    kinds = arguments.kinds.split(",")
    numbers_of_seeds = [int(number) for number in arguments.seeds.split(",")]
    cases = [
        Case(kind, arguments.first + i, seeds)
        for kind in kinds
        for i in range(arguments.worlds)
        for seeds in numbers_of_seeds
    ]

    lines = list[Line]()
    with contextlib.ExitStack() as stack:
        run = map
        if arguments.workers > 1:
            run = stack.enter_context(ProcessPoolExecutor(arguments.workers)).map
        for line in run(judge_case, cases):
            print(json.dumps(line), file=sys.stderr, flush=True)
            lines.append(line)

    result = {"benchmark": "adaptive", "all": summary(lines)}
    for kind in kinds:
        for seeds in numbers_of_seeds:
            group = [x for x in lines if x["kind"] == kind and x["seeds"] == seeds]
            result[f"{kind}, {seeds} seeds"] = summary(group)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
