"""Does `sweep.strategy=adaptive` find n*(C) with half of the grid's rollouts? Sweeps simulated on
random worlds of known law.

    python benchmarks/adaptive.py                             5 worlds of each kind, with 1 seed and with 3: 50 sweeps
    python benchmarks/adaptive.py --kinds hill --worlds 20    20 worlds of one kind

50 sweeps take about 5 minutes. A round's runs are a world's full runs, revealed up to the targets
that the policy requests. The benchmark then compares the n of the fit's best curve (what `isojax
recommend` gives where B_p is stable) with the world's truly best n, at the policy's 9 budgets from
budget / 16 to the budget:

    n_right         share of (world, budget) pairs whose n is within one step of the grid of n;  exact: the same n
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

METRIC, EVALUATIONS, REPLICATES = "avg@4", 25, 200
Line = dict[str, Any]


def simulate(w: World, policy: AdaptivePolicy) -> tuple[list[RunRecord], int]:
    """The runs of a sweep that does what the policy asks for, and its rounds."""
    targets, rounds = dict[Cell, int](), 0
    while wanted := policy.next_round(w.trained(targets)):
        targets |= dict(wanted)
        rounds += 1
    return w.trained(targets), rounds


def judge(w: World, runs: Sequence[RunRecord], C: Sequence[int], whole: int) -> Line:
    """The fit of some runs against the truth at budgets C."""
    e = load_ensemble(fit_all_runs(runs, METRIC, options=FitOptions(replicates=REPLICATES)))
    selected = e.n[e.expected_rewards(C).argmax(1)].tolist()
    keys = sorted(w.truth, key=lambda key: key[1])
    ns, R = [n for _, n in keys], np.stack([w.reward(*key, C) for key in keys])
    best, ours = R.argmax(0), np.array([ns.index(n) for n in selected])
    off, lost = np.abs(ours - best), R.max(0) - R[ours, np.arange(len(C))]
    spent = sum(r.points[-1].rollouts for r in runs) / whole
    return {
        "n_right": float(np.mean(off <= 1)),
        "exact": float(np.mean(off == 0)),
        "worlds_right": float(np.all(off <= 1)),
        "regret": float(lost.mean()),
        "rollouts": spent,
    }


def world(case: tuple[str, int, int]) -> Line:
    """One simulated sweep. case: (kind, world seed, seeds of a cell)."""
    kind, seed, seeds = case
    w = random_world(kind, seed, seeds=seeds, unequal=False, evaluations=EVALUATIONS)
    cells = [r.cell for r in w.runs]
    grid = sorted({p.target for r in w.runs for p in r.points})
    policy, begin = AdaptivePolicy(cells, grid, metric=METRIC), time.perf_counter()
    runs, rounds = simulate(w, policy)
    seconds = (time.perf_counter() - begin) / rounds
    half = max(g for g in grid if g <= grid[-1] / 2)
    sweeps = {
        "frontier": runs,
        "grid": w.runs,
        "half_budget": w.trained(dict.fromkeys(cells, half)),
    }
    if seeds > 1:
        sweeps["one_seed"] = [r for r in w.runs if r.cell.seed == 0]
    result = {
        name: judge(w, specific, policy.C_levels, policy.grid_rollouts)
        for name, specific in sweeps.items()
    }
    return {
        "kind": kind,
        "seed": seed,
        "seeds": seeds,
        "rounds": rounds,
        "seconds_a_round": seconds,
        "sweeps": result,
    }


def summary(lines: Sequence[Line]) -> Line:
    """Means over worlds."""
    decided = [line for line in lines if line["kind"] != "same"]
    result: Line = {
        "worlds": len(lines),
        "rounds": float(np.mean([line["rounds"] for line in lines])),
    }
    result["seconds_a_round"] = float(np.median([line["seconds_a_round"] for line in lines]))
    for name in dict.fromkeys(name for line in lines for name in line["sweeps"]):
        of = {
            "n_right": decided,
            "exact": decided,
            "worlds_right": decided,
            "regret": lines,
            "rollouts": lines,
        }
        values = {
            figure: [line["sweeps"][name][figure] for line in specific if name in line["sweeps"]]
            for figure, specific in of.items()
        }
        result[name] = {k: round(float(np.mean(v)), 4) for k, v in values.items() if v}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", default=",".join(KINDS), help="of worlds")
    parser.add_argument(
        "--worlds", type=int, default=5, help="of each kind, and of each number of seeds"
    )
    parser.add_argument("--seeds", default="1,3", help="seeds of a cell")
    parser.add_argument("--first", type=int, default=0, help="the first world seed")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    a = parser.parse_args()
    worlds = range(a.first, a.first + a.worlds)
    seeds = [int(s) for s in a.seeds.split(",")]
    cases = [(kind, w, s) for kind in a.kinds.split(",") for w in worlds for s in seeds]
    lines = list[Line]()
    with contextlib.ExitStack() as stack:
        run = map if a.workers == 1 else stack.enter_context(ProcessPoolExecutor(a.workers)).map
        for line in run(world, cases):
            print(json.dumps(line), file=sys.stderr, flush=True)
            lines.append(line)
    groups = {
        f"{kind}, {s} seeds": [x for x in lines if (x["kind"], x["seeds"]) == (kind, s)]
        for kind in a.kinds.split(",")
        for s in seeds
    }
    print(
        json.dumps(
            {
                "benchmark": "adaptive",
                "all": summary(lines),
                **{name: summary(specific) for name, specific in groups.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
