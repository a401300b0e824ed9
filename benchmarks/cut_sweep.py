"""How good are the forecasts of a real sweep that was cut? The evaluations up to each C are fitted;
the others test what the fit says of them, and which n it recommends for the largest C measured, at
most 4 times that of the fit:

    python benchmarks/cut_sweep.py runs/quickstart --at 35000 70000

A reward counts as measured at a budget where its evaluation took between .7 of the budget and all
of it; the mean over a cell's runs. "regret" is what the recommended n loses against the n with the
highest mean: it is too high, because the highest of noisy means is too high. "time_error" is by how
much the hours of the whole run are predicted too high, as a share of them (the mean over runs), by
the clocks of the evaluations up to C; null where runs have no times. One JSON line per cut on
standard output.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import isojax
from isojax.core.nouns import RunRecord
from isojax.runs.ledger import default_metric
from isojax.scaling.allocate.curve_ensemble import load_ensemble
from isojax.scaling.curves.sweep_estimate import MAX_EXTRAPOLATION
from isojax.scaling.tracks import select_points

NEAR = 0.7  # the share of a budget from which on an evaluation counts as made at it


def up_to(run: RunRecord, C: float) -> RunRecord:
    """The run's evaluations up to C."""
    return select_points(run, slice(sum(p.rollouts <= C for p in run.points)))


def mean_rewards(runs: Sequence[RunRecord], metric: str, C: float) -> dict[int, float]:
    """The mean measured reward of each n near C."""
    rewards: dict[int, list[float]] = {}
    for run in runs:
        near = [p.metrics[metric] for p in run.points if NEAR * C <= p.rollouts <= C]
        rewards.setdefault(run.cell.n, []).extend(near)
    return {n: float(np.mean(values)) for n, values in rewards.items() if values}


def judge_cut(runs: Sequence[RunRecord], metric: str, C: float, replicates: int) -> dict[str, Any]:
    """The forecasts of a fit of the evaluations up to C, against the evaluations beyond it."""
    result = isojax.fit(
        [up_to(r, C) for r in runs], metric, options=isojax.FitOptions(replicates=replicates)
    )
    ensemble = load_ensemble(result)
    index = {curve.key: i for i, curve in enumerate(ensemble.curves)}

    errors, inside, time_errors = [], [], []
    for run in runs:
        i = index.get((run.cell.B_p, run.cell.n))
        if i is None:  # a cell that was cut too short has no curve
            continue
        end = run.points[-1].rollouts
        hours = ensemble.predict_hours(i, end).of_devices
        if hours is not None and run.device_hours and end > C:
            time_errors.append(hours / run.device_hours[-1] - 1)
        for point in run.points:
            if point.rollouts <= C:
                continue
            reward = point.metrics[metric]
            predicted, interval = ensemble.predict_new_run(i, point.rollouts)
            errors.append(predicted - reward)
            inside.append(interval is not None and interval[0] <= reward <= interval[1])

    # The largest C at which every n was measured, as far as a fit of the cut sweep goes.
    all_n = {run.cell.n for run in runs}
    ends = [max(r.points[-1].rollouts for r in runs if r.cell.n == n) for n in all_n]
    budget = min(*ends, int(MAX_EXTRAPOLATION * max(run.C_max for run in result.runs)))
    advice = isojax.recommend(result, budget)
    measured = mean_rewards(runs, metric, budget)
    return {
        "cut": C,
        "hidden": len(errors),
        "inside": round(float(np.mean(inside)), 3),
        "mean_error": round(float(np.mean(errors)), 4),
        "mean_absolute_error": round(float(np.mean(np.abs(errors))), 4),
        "time_error": round(float(np.mean(time_errors)), 3) if time_errors else None,
        "budget": budget,
        "n": advice.allocation.n,
        "n_probability": {n: round(p, 2) for n, p in (advice.n_probability or {}).items()},
        "measured": {n: round(reward, 4) for n, reward in sorted(measured.items())},
        "regret": round(max(measured.values()) - measured[advice.allocation.n], 4),
        "stated_regret": advice.regret_interval,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, nargs="+", help="sweep folders or ledgers")
    parser.add_argument(
        "--at", type=float, nargs="+", required=True, metavar="C", help="the rollouts to cut at"
    )
    parser.add_argument("--replicates", type=int, default=500, help="draws of each fit")
    arguments = parser.parse_args()
    runs = isojax.read_runs(arguments.run)
    metric = default_metric(runs)
    for C in arguments.at:
        print(json.dumps(judge_cut(runs, metric, C, arguments.replicates)), flush=True)


if __name__ == "__main__":
    main()
