"""How good are fit and recommendation on sweeps whose curves are not the fitter's? Five parts, each
a fit of simulated sweeps of known law (benchmarks/foreign_forms.py):

    python benchmarks/foreign_worlds.py            120 worlds of 14 forms; 2 minutes on one core
    python benchmarks/foreign_worlds.py --risky    48 worlds that invite promises too high
    python benchmarks/foreign_worlds.py --small    24 small sweeps: does the stated regret hold?
    python benchmarks/foreign_worlds.py --stable   300 stable sweeps, no counts: called stable?
    python benchmarks/foreign_worlds.py --advice   40 sweeps: halting marks, the run to measure next
    python benchmarks/foreign_worlds.py --read FILE [FILE ...]   tables of files that --out wrote

A world's budgets are 10 within the measured range, for the frontier, and 1, 2 and 4 times its
largest measured C, for `isojax.recommend`. The truth is the world's law: the expected reward of a
new run on new problems (with counts) or the curve (a plain metric), after the updates that the
budget affords. It does not stop at a peak. "Best measured" is the cell whose last evaluations,
averaged over seeds, are highest. With --advice, 20 new runs of each recommended cell pass its
halting marks, and the run to measure next is simulated and fitted with the others; half of these
sweeps have the fit's own form. One JSON line per world on standard output or in --out, tables on
standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from foreign_forms import (
    FITTED,
    FORMS,
    METRIC,
    RISKS,
    SAMPLES,
    Key,
    World,
    random_world,
    risky_world,
    small_world,
    stable_world,
)
from foreign_tables import TIMES, print_tables
from rich.console import Console
from rich.progress import track

import isojax
from isojax.core.errors import InputError
from isojax.core.nouns import Allocation, Cell, RunRecord
from isojax.scaling.allocate.recommendation import Recommendation
from isojax.scaling.result import FitResult

BUDGETS_IN_RANGE = 10
RUNS_PAST_MARKS = 20  # of each recommended cell
POINTS_OF_A_CURVE = 3  # the evaluations that a cell on the frontier has at least
# the parts and their sweeps; a new part comes last, since its position draws the worlds
PARTS = {"worlds": 120, "small": 24, "stable": 300, "advice": 40, "risky": 48}
Line = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One world to judge. The random numbers of part, seed and number draw it."""

    part: str  # of PARTS
    seed: int
    number: int
    replicates: int  # draws of its fit


def frontier_cases(world: World, fit: FitResult) -> list[Line]:
    """The frontier's interval at budgets in range, against the best true reward of the cells
    measured there."""
    measured: dict[Key, list[int]] = {}  # the C of a cell's evaluations
    for B_p, n in world.curves:
        C_of_cell = [M * B_p * n for M in world.updates((B_p, n)) if M > 0]
        if len(C_of_cell) >= POINTS_OF_A_CURVE:
            measured[B_p, n] = C_of_cell

    rows = fit.joint.frontier
    log_C = np.log([row.C for row in rows])
    lows = [row.low for row in rows]
    highs = [row.high for row in rows]
    cases = []
    for x in np.linspace(log_C[0], log_C[-1], BUDGETS_IN_RANGE):
        C = float(np.exp(x))
        # .1% of slack: the ends of the range are themselves evaluations
        cells = [key for key, at in measured.items() if at[0] <= C * 1.001 and C <= at[-1] * 1.001]
        case = {"C": C, "truth": max(world.reward(key, C) for key in cells)}
        case["low"] = float(np.interp(x, log_C, lows))
        case["high"] = float(np.interp(x, log_C, highs))
        cases.append(case)
    return cases


def best_measured(runs: Sequence[RunRecord]) -> Key:
    last: dict[Key, list[float]] = {}
    for run in runs:
        last.setdefault((run.cell.B_p, run.cell.n), []).append(run.points[-1].metrics[METRIC])
    return max(last, key=lambda key: float(np.mean(last[key])))


def nearest(world: World, B_p: int, n: int) -> Key:
    """The world's cell (B_p, n), or the one whose n, and then B_p, is nearest in doublings."""

    def distance(key: Key) -> float:
        return abs(np.log2(key[0] / B_p)) + 10 * abs(np.log2(key[1] / n))

    return min(world.curves, key=distance)


def recommendation_case(
    world: World, runs: Sequence[RunRecord], fit: FitResult, times: int, rng: np.random.Generator
) -> Line:
    """The recommendation for a budget of `times` the largest measured C, against the truth."""
    budget = times * world.C_end
    try:
        advice = isojax.recommend(fit, budget, with_details=False)
    except InputError as error:
        return {"times": times, "refused": str(error)}
    if advice.interval is None or advice.prediction_interval is None:
        return {"times": times, "refused": "the recommendation has no interval"}

    allocation = advice.allocation
    key = nearest(world, allocation.B_p, allocation.n)
    truth = world.reward(key, allocation.C)
    rewards_of_new_run, _ = world.measure(rng, key, np.array([allocation.C]))
    low, high = advice.interval
    new_low, new_high = advice.prediction_interval

    best = world.best(budget)
    best_reward = world.at_budget(best, budget)
    probabilities = (advice.n_probability or {}).items()
    worst_equal = min(world.at_budget(k, budget) for k in equal_cells(world, advice, key))
    return {
        "times": times,
        "C": budget,
        "chosen": list(key),
        "best": list(best),
        "expected": advice.expected_reward,
        "cell": {"truth": truth, "low": low, "high": high},
        "new_run": {"truth": float(rewards_of_new_run[0]), "low": new_low, "high": new_high},
        "n_probability": [[n, stated, n == best[1]] for n, stated in probabilities],
        "regret": best_reward - truth,
        "regret_high": advice.regret_interval[1] if advice.regret_interval else None,
        "regret_best_measured": best_reward - world.at_budget(best_measured(runs), budget),
        "warning": "uncertain_forecast" in {risk.code for risk in advice.risks},
        "no_effect": advice.no_effect,
        "equal_n_regret": best_reward - worst_equal,
    }


def equal_cells(world: World, advice: Recommendation, chosen: Key) -> list[Key]:
    """The cells at the recommended B_p whose n is said to be equal to the recommended one, and that
    one."""
    B_p, _ = chosen
    equal = [key for key in world.curves if key[0] == B_p and key[1] in advice.equal_n]
    return [chosen, *equal]


def judge_worlds(
    world: World, runs: Sequence[RunRecord], fit: FitResult, rng: np.random.Generator
) -> Line:
    return {
        "frontier": frontier_cases(world, fit),
        "recommended": [recommendation_case(world, runs, fit, times, rng) for times in TIMES],
    }


def judge_small(
    world: World, runs: Sequence[RunRecord], fit: FitResult, rng: np.random.Generator
) -> Line:
    return {"recommended": [recommendation_case(world, runs, fit, 1, rng)]}


def judge_stable(
    world: World, runs: Sequence[RunRecord], fit: FitResult, rng: np.random.Generator
) -> Line:
    """`problems`: the noise of the metric is that of so many."""
    reasons = [row.reason for row in fit.stability if not row.stable]
    return {"problems": round(1 / (4 * SAMPLES * world.noise_sd**2)), "unstable": reasons}


def judge_advice(
    world: World, runs: Sequence[RunRecord], fit: FitResult, rng: np.random.Generator
) -> Line:
    return {"recommended": [advice_case(world, runs, fit, times, rng) for times in TIMES]}


def advice_case(
    world: World, runs: Sequence[RunRecord], fit: FitResult, times: int, rng: np.random.Generator
) -> Line:
    """How many new runs the halting marks stop, and the regret before and after the run to measure
    next."""
    budget = times * world.C_end
    try:
        advice = isojax.recommend(fit, budget)
    except InputError as error:
        return {"times": times, "refused": str(error)}

    # New runs of the recommended cell, evaluated at its marks.
    key = (advice.allocation.B_p, advice.allocation.n)
    C_of_marks = np.array([mark.C for mark in advice.halting_marks])
    stop_below = np.array([mark.stop_below for mark in advice.halting_marks])
    stopped = []
    if advice.halting_marks:
        for _ in range(RUNS_PAST_MARKS):
            rewards, _ = world.measure(rng, key, C_of_marks)
            stopped.append(bool((rewards < stop_below).any()))
    if advice.next_run is None:
        return {"times": times, "stopped": stopped, "next": None}

    # The run to measure next, fitted with the others.
    run = advice.next_run.allocation
    refit = isojax.fit([*runs, next_record(world, run, rng)], METRIC, options=fit_options(fit))
    after = isojax.recommend(refit, budget, extrapolate=True)
    next_run = {
        "cost": run.C / budget,
        "stated": [advice.next_run.regret_before, advice.next_run.regret_after],
        "stated_by_refit": after.regret,
        "true": [true_regret(world, budget, advice), true_regret(world, budget, after)],
    }
    return {"times": times, "stopped": stopped, "next": next_run}


def next_record(world: World, run: Allocation, rng: np.random.Generator) -> RunRecord:
    """A new seed of a cell, evaluated as the others and, with the last step of their grid, up to
    the run's end."""
    last = world.targets[-1]
    step = last / world.targets[-2]
    steps_beyond = np.log(max(run.C / last, 1)) / np.log(step)
    beyond = last * step ** np.arange(1, 1 + steps_beyond)
    grid = np.array([*world.targets, *beyond])
    targets = np.array([*grid[grid < run.C], run.C])

    longer = replace(world, targets=targets, ends={(run.B_p, run.n): float(run.C)})
    return longer.run(rng, Cell(run.B_p, run.n, world.seeds))


def fit_options(fit: FitResult) -> isojax.FitOptions:
    return isojax.FitOptions(replicates=fit.intervals.replicates if fit.intervals else 0)


def true_regret(world: World, budget: int, advice: Recommendation) -> float:
    key = nearest(world, advice.allocation.B_p, advice.allocation.n)
    return world.at_budget(world.best(budget), budget) - world.reward(key, advice.allocation.C)


JUDGES = {
    "worlds": judge_worlds,
    "small": judge_small,
    "stable": judge_stable,
    "advice": judge_advice,
    "risky": judge_worlds,
}


def draw_world(part: str, rng: np.random.Generator, number: int) -> World:
    forms = list(FORMS)
    if part == "worlds":
        return random_world(rng, forms[number % len(forms)])
    if part == "advice":  # every other one has the fit's own form
        return random_world(rng, forms[number // 2 % len(forms)] if number % 2 else FITTED)
    if part == "risky":
        return risky_world(rng, RISKS[number % len(RISKS)])
    if part == "small":
        return small_world(rng)
    return stable_world(rng)


def one_world(case: Case) -> Line:
    """One world drawn, fitted and judged."""
    rng = np.random.default_rng([list(PARTS).index(case.part), case.seed, case.number])
    world = draw_world(case.part, rng, case.number)
    runs = world.runs(rng)
    line: Line = {
        "part": case.part,
        "seed": case.seed,
        "number": case.number,
        "form": world.form,
        "replicates": case.replicates,
        "counts": world.difficulties.size > 0,
        "seeds": world.seeds,
        "cells": len(world.curves),
        "evaluations": len(world.targets),
        "failed": None,
    }

    start = time.perf_counter()
    try:
        fit = isojax.fit(runs, METRIC, options=isojax.FitOptions(replicates=case.replicates))
    except InputError as error:
        return line | {"failed": str(error)}
    line["flags"] = [flag.code for flag in fit.flags if flag.severity != "info"]
    line["seconds"] = time.perf_counter() - start
    return line | JUDGES[case.part](world, runs, fit, rng)


def judged(cases: Sequence[Case], jobs: int) -> Iterator[Line]:
    """The lines of the cases, in their order, with a progress bar."""
    with contextlib.ExitStack() as stack:
        run = map
        if jobs > 1:
            spawn = multiprocessing.get_context("spawn")
            run = stack.enter_context(ProcessPoolExecutor(jobs, mp_context=spawn)).map
        console = Console(stderr=True)
        lines = run(one_world, cases)
        yield from track(lines, description=cases[0].part, total=len(cases), console=console)


def read_lines(files: Sequence[str]) -> list[Line]:
    """The lines of files that --out wrote."""
    lines: list[Line] = []
    seen = set[tuple[str, int, int]]()
    for file in files:
        for row, text in enumerate(Path(file).read_text().splitlines(), start=1):
            line = json.loads(text)
            if not {"part", "seed", "number"} <= line.keys():
                raise SystemExit(
                    f"{file}:{row}: no line of a world; expected a file that --out wrote"
                )
            name = (line["part"], line["seed"], line["number"])
            if name in seen:
                raise SystemExit(
                    f"{file}:{row}: world {name} stands in the files twice; leave out one of them"
                )
            seen.add(name)
            lines.append(line)
    return lines


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument(
        "--small", action="store_const", const="small", dest="part", help="small sweeps instead"
    )
    parts.add_argument(
        "--stable", action="store_const", const="stable", dest="part", help="stable sweeps instead"
    )
    parts.add_argument(
        "--advice",
        action="store_const",
        const="advice",
        dest="part",
        help="halting marks and next runs",
    )
    parts.add_argument(
        "--risky",
        action="store_const",
        const="risky",
        dest="part",
        help="worlds that invite promises too high",
    )
    parts.add_argument(
        "--read", nargs="+", metavar="FILE", help="simulate nothing: the tables of these files"
    )
    parser.add_argument(
        "--worlds",
        type=int,
        help=f"how many ({PARTS['worlds']}; "
        + ", ".join(f"{count} with --{part}" for part, count in list(PARTS.items())[1:])
        + ")",
    )
    parser.add_argument("--seed", type=int, default=0, help="another one draws other worlds")
    parser.add_argument("--replicates", type=int, default=500, help="draws of each fit")
    parser.add_argument("--jobs", type=int, default=1, help="processes; give each a core")
    parser.add_argument("--out", help="a new file for the JSON lines")
    arguments = parser.parse_args()
    if arguments.out and not arguments.read and Path(arguments.out).exists():
        parser.error(f"--out {arguments.out}: expected a file that does not exist yet")
    if arguments.replicates < 2:
        parser.error(
            f"--replicates {arguments.replicates}: expected at least 2, "
            "or no interval can be judged"
        )
    return arguments


def main() -> None:
    arguments = parse_arguments()
    if arguments.read:
        print_tables(read_lines(arguments.read))
        return

    part = arguments.part or "worlds"
    cases = [
        Case(part, arguments.seed, number, arguments.replicates)
        for number in range(arguments.worlds or PARTS[part])
    ]
    lines = list[Line]()
    with contextlib.ExitStack() as stack:
        out = sys.stdout
        if arguments.out:
            out = stack.enter_context(Path(arguments.out).open("x"))
        for line in judged(cases, arguments.jobs):
            print(json.dumps(line), file=out, flush=True)
            lines.append(line)
    print_tables(lines)


if __name__ == "__main__":
    main()
