"""How long does a fit take? Fit 40 runs of 200 evaluations in mode "hierarchical" and print one JSON line.

    python benchmarks/fit_speed.py                       500 replicates
    python benchmarks/fit_speed.py --replicates 100      fewer

seconds: wall clock of the whole fit, records in memory; cpu_seconds: of all its threads. A fit without replicates takes
200 draws for its mean curves all the same; ms_a_replicate divides the whole by the replicates.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the worlds are in tests/scaling

from isojax.scaling.curves.sweep_estimate import FitOptions
from isojax.scaling.fit import fit_all_runs
from tests.scaling.synthetic import world
from tests.scaling.synthetic_curves import Hill

N = (4, 8, 16, 32, 64)
B_P = (16, 32, 64, 128)
SEEDS, EVALUATIONS = 2, 200
START, BUDGET = (
    320_000,
    64_000_000,
)  # even the largest cell, 8192 rollouts per update, reaches each target at an update of its own


def _curve(B_p: int, n: int) -> Hill:
    """Larger n: a higher plateau, later; B_p matters little."""
    level = math.log2(n)
    return Hill(0.25, 0.4 + 0.04 * level, 1.2, 225_000 * 1.7**level * (1 + 0.02 * math.log2(B_p / 16)))


def _seconds(replicates: int, problems: int) -> tuple[float, float, int, int]:
    """(wall, cpu seconds, runs, evaluations in all)."""
    ratio = (BUDGET / START) ** (1 / (EVALUATIONS - 1))
    sweep = world(
        B_p=B_P, n=N, seeds=SEEDS, problems=problems, run_sd=0.01, start=START, ratio=ratio, budget=BUDGET, curve=_curve
    )
    wall, cpu = time.perf_counter(), time.process_time()
    fit_all_runs(sweep.runs, "avg@4", options=FitOptions(replicates=replicates))
    spent = time.perf_counter() - wall, time.process_time() - cpu
    return *spent, len(sweep.runs), sum(len(r.points) for r in sweep.runs)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicates", type=int, default=500)
    parser.add_argument("--problems", type=int, default=300)
    inputs = parser.parse_args()
    seconds, cpu, runs, points = _seconds(inputs.replicates, inputs.problems)
    without = _seconds(0, inputs.problems)[0]
    line = {
        "benchmark": "fit_speed",
        "runs": runs,
        "evaluations": points,
        "replicates": inputs.replicates,
        "cores": len(os.sched_getaffinity(0)),
    }
    line |= {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),
        "seconds_without_replicates": round(without, 2),
    }
    line["ms_a_replicate"] = round(1000 * seconds / inputs.replicates, 1) if inputs.replicates else None
    print(json.dumps(line))


if __name__ == "__main__":
    main()
