"""How long do a fit and its recommendations take? Fit 40 runs of 200 evaluations, ask for 150
budgets, print one JSON line.

    python benchmarks/fit_speed.py                       500 replicates
    python benchmarks/fit_speed.py --replicates 100      fewer
    python benchmarks/fit_speed.py --log 500x2000        a made log of 500 runs of 2,000 evaluations

--log: rewards alone, evaluated at evenly spaced updates as trainers log them; large batches have
fewer updates, and so fewer evaluations. It prints the fit's time and peak_mb, the most memory that
the process had.

seconds: wall clock of the whole fit, records in memory; cpu_seconds: of all its threads. A fit
without replicates takes 200 draws for its mean curves all the same; ms_a_replicate divides the
whole by the replicates. paper_cpu_seconds: of a fit in mode "paper". ms_a_recommendation: processor
time of one of the report's 150 budgets.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the worlds are in tests/scaling

from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.scaling.allocate.recommend import recommend
from isojax.scaling.curves.sweep_estimate import FitOptions
from isojax.scaling.fit import fit, fit_all_runs
from isojax.scaling.result import FitResult
from tests.scaling.synthetic import world
from tests.scaling.synthetic_curves import Hill

N = (4, 8, 16, 32, 64)
B_P = (16, 32, 64, 128)
SEEDS, EVALUATIONS, BUDGETS = 2, 200, 150
# even the largest cell, 8192 rollouts per update, reaches each target at an update of its own
START = 320_000
BUDGET = 64_000_000
LOG_BUDGET = 2_000_000
ROLLOUTS_OF_EVALUATION = 2048  # of a made log


def _curve(B_p: int, n: int) -> Hill:
    """Larger n: a higher plateau, later; B_p matters little."""
    level = math.log2(n)
    return Hill(
        0.25, 0.4 + 0.04 * level, 1.2, 225_000 * 1.7**level * (1 + 0.02 * math.log2(B_p / 16))
    )


def _sweep(problems: int) -> list[RunRecord]:
    ratio = (BUDGET / START) ** (1 / (EVALUATIONS - 1))
    sweep = world(
        B_p=B_P,
        n=N,
        seeds=SEEDS,
        problems=problems,
        run_sd=0.01,
        start=START,
        ratio=ratio,
        budget=BUDGET,
        curve=_curve,
    )
    return sweep.runs


def _made_log(run_count: int, evaluations: int) -> list[RunRecord]:
    """Runs of the cells in turn, then of further seeds, each with at most so many evaluations."""
    rng = np.random.default_rng(0)
    runs = []
    for i in range(run_count):
        n = N[i % len(N)]
        B_p = B_P[i // len(N) % len(B_P)]
        cell = Cell(B_p, n, seed=i // (len(N) * len(B_P)))

        last_update = LOG_BUDGET / cell.B
        M = np.unique(np.linspace(0, last_update, evaluations).round().astype(int))
        curve = Hill(0.1, 0.55 + 0.05 * math.log2(n), 1.1, 1e5 * (n / 8) ** 0.7)
        C = M * cell.B
        correct = rng.binomial(ROLLOUTS_OF_EVALUATION, curve.at(C))
        rewards = correct / ROLLOUTS_OF_EVALUATION

        points = tuple(
            EvalPoint(target=c, M=m, rollouts=c, tokens=8 * c, metrics={"val_acc": reward})
            for m, c, reward in zip(M.tolist(), C.tolist(), rewards.tolist(), strict=True)
        )
        runs.append(RunRecord(cell, points, source=cell.name))
    return runs


def _time_log(size: str, replicates: int) -> dict[str, Any]:
    """The line for a made log of this size, such as "500x2000"."""
    run_count, evaluations = map(int, size.split("x"))
    runs = _made_log(run_count, evaluations)
    seconds, cpu, _ = _seconds(lambda: fit(runs, options=FitOptions(replicates=replicates)))
    return {
        "benchmark": "fit_speed",
        "log": size,
        "runs": len(runs),
        "evaluations": sum(len(r.points) for r in runs),
        "replicates": replicates,
        "cores": len(os.sched_getaffinity(0)),
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def _seconds(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """(wall clock, processor time, what `work` gave)."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return time.perf_counter() - wall, time.process_time() - cpu, result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replicates", type=int, default=500)
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--log", metavar="RUNSxEVALUATIONS", help="such as 40x200 or 500x2000")
    inputs = parser.parse_args()
    if inputs.log:
        print(json.dumps(_time_log(inputs.log, inputs.replicates)))
        return
    runs = _sweep(inputs.problems)

    def fit_sweep(**options: Any) -> FitResult:
        return fit_all_runs(runs, "avg@4", options=FitOptions(**options))

    seconds, cpu, result = _seconds(lambda: fit_sweep(replicates=inputs.replicates))
    without = _seconds(lambda: fit_sweep(replicates=0))[0]
    paper = _seconds(lambda: fit_sweep(mode="paper"))[1]
    budgets = np.geomspace(2 * START, BUDGET, BUDGETS).tolist()
    recommendations = _seconds(lambda: [recommend(result, C, with_details=False) for C in budgets])[
        1
    ]
    line = {
        "benchmark": "fit_speed",
        "runs": len(runs),
        "evaluations": sum(len(r.points) for r in runs),
        "replicates": inputs.replicates,
        "cores": len(os.sched_getaffinity(0)),
    }
    line |= {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),
        "seconds_without_replicates": round(without, 2),
        "paper_cpu_seconds": round(paper, 2),
        "ms_a_recommendation": round(1000 * recommendations / BUDGETS, 1),
    }
    line["ms_a_replicate"] = (
        round(1000 * seconds / inputs.replicates, 1) if inputs.replicates else None
    )
    print(json.dumps(line))


if __name__ == "__main__":
    main()
