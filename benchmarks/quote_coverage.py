"""Does a new run reach a reward within what `isojax quote` says? The evaluations up to a quarter of
the largest C are fitted, and a reward is quoted that one of the fit's draws has in one of the cells
at the horizon. What came after the quarter must not choose the reward: with rewards between the
first and the last of the true curve, even the quote of a truth that is one of the fit's own draws
says .09 where .21 never have it.

    python benchmarks/quote_coverage.py                            60 sweeps of foreign_forms.py
    python benchmarks/quote_coverage.py --run runs/quickstart      each run of a sweep as a new one
    python benchmarks/quote_coverage.py --run runs/many --by-seed  each seed's runs are a sweep

A simulated run pays C where its expected reward on the sweep's problems, its own luck included,
first is the quoted one; a run of a sweep, where the mean of three evaluations is. One JSON line per
case on standard output, the summary on standard error: the share of the C paid inside the quoted
interval, and how often P(never) was right, by its fifths.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cut_sweep import up_to
from foreign_forms import FORMS, METRIC, World, random_world
from rich.progress import track

import isojax
from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.runs.ledger import default_metric
from isojax.scaling.allocate.curve_ensemble import CurveEnsemble, load_ensemble
from isojax.scaling.allocate.quote import QuotedCell, first_budgets, quote_cell
from isojax.scaling.curves.sweep_estimate import MAX_EXTRAPOLATION
from isojax.scaling.tracks import group_by

GRID = 2000
# of a sweep: few are within reach of the data, so that both ends of the interval are finite
REWARDS = 200
SMOOTHED = 3  # evaluations whose mean is a run's reward
Line = dict[str, Any]


def fit_quarter(runs: Sequence[RunRecord], metric: str, replicates: int) -> Any:
    """The fit of the evaluations up to a quarter of the largest C."""
    C = max(run.points[-1].rollouts for run in runs) / MAX_EXTRAPOLATION
    cut = [up_to(run, C) for run in runs]
    options = isojax.FitOptions(replicates=replicates)
    return isojax.fit([run for run in cut if len(run.points) > 2], metric, options=options)


def draw_reward(ensemble: CurveEnsemble, horizon: float, rng: np.random.Generator) -> float:
    """The reward at the horizon of one draw and one cell."""
    rewards = ensemble.sampled_at_cell_budgets(np.array([horizon]), on_sweep_problems=True)
    return float(rng.choice(rewards.ravel()))


def judge(cell: QuotedCell, reward: float, paid: float) -> Line:
    """One run's C against the quote of its cell; infinite: never."""
    low = math.inf if cell.low is None else cell.low
    high = math.inf if cell.high is None else cell.high
    return {
        "B_p": cell.B_p,
        "n": cell.n,
        "reward": round(reward, 4),
        "low": cell.low,
        "high": cell.high,
        "paid": paid if math.isfinite(paid) else None,
        "inside": low <= paid <= high,
        "p_never": cell.p_never,
        "never": math.isinf(paid),
    }


def world_cases(world: World, rng: np.random.Generator, replicates: int) -> Iterator[Line]:
    """A case of each n, of a new run."""
    fit = fit_quarter(world.runs(rng), METRIC, replicates)
    horizon = MAX_EXTRAPOLATION * max(run.C_max for run in fit.runs)
    reward = draw_reward(load_ensemble(fit), horizon, rng)
    C = np.geomspace(horizon / 1e4, horizon, GRID)
    for cell in isojax.quote(fit, reward).cells:
        curve = world.curves[cell.B_p, cell.n]
        run_effect = rng.normal(0, world.run_sd) * curve.progress(C)
        is_reached = world.on_problems(curve.reward(C) + run_effect) >= reward
        yield judge(cell, reward, first_C(C, is_reached))


def first_C(C: np.ndarray, is_reached: np.ndarray) -> float:
    """Infinite where it is never reached."""
    return float(C[is_reached.argmax()]) if is_reached.any() else math.inf


def simulated(count: int, seed: int, replicates: int) -> Iterator[Line]:
    numbers = track(range(count), description="worlds", disable=not sys.stderr.isatty())
    for number in numbers:
        rng = np.random.default_rng([seed, number])
        form = list(FORMS)[number % len(FORMS)]
        world = random_world(rng, form)
        try:
            for case in world_cases(world, rng, replicates):
                yield {"form": form, "number": number, **case}
        except InputError as error:  # a quarter of this sweep is too little for a fit
            yield {"form": form, "number": number, "refused": str(error)}


def measured(folder: Path, replicates: int, by_seed: bool) -> Iterator[Line]:
    """The cases of a sweep, or of each seed's runs of a constant n."""
    runs = [run for run in isojax.read_runs(folder) if not run.cell.schedule]
    for _, sweep in sorted(group_by(runs, lambda run: run.cell.seed if by_seed else 0).items()):
        yield from sweep_cases(sweep, replicates)


def sweep_cases(runs: Sequence[RunRecord], replicates: int) -> Iterator[Line]:
    """A case of each run of a sweep and each of REWARDS rewards, up to the last of its smoothed
    evaluations."""
    metric = default_metric(runs)
    ensemble = load_ensemble(fit_quarter(runs, metric, replicates))
    curves = {run.cell: smooth_curve(run, metric) for run in runs}
    ends = [curve.C[-1] for curve in curves.values()]
    horizon = min(MAX_EXTRAPOLATION * ensemble.C_measured_max, *ends)

    rng = np.random.default_rng(0)
    keys = [curve.key for curve in ensemble.curves]
    for _ in range(REWARDS):
        reward = draw_reward(ensemble, horizon, rng)
        C_of_draws = first_budgets(ensemble, reward, horizon)
        for cell, curve in curves.items():
            i = keys.index((cell.B_p, cell.n))
            quoted = quote_cell(ensemble, i, C_of_draws[:, i])
            paid = first_C(curve.C, (curve.reward >= reward) & (curve.C <= horizon))
            yield {"seed": cell.seed, **judge(quoted, reward, paid)}


class SmoothCurve(NamedTuple):
    """C, and the mean of SMOOTHED evaluations around it, float[points - SMOOTHED + 1] each."""

    C: np.ndarray
    reward: np.ndarray


def smooth_curve(run: RunRecord, metric: str) -> SmoothCurve:
    rewards = np.array([p.metrics[metric] for p in run.points])
    smooth = np.convolve(rewards, np.full(SMOOTHED, 1 / SMOOTHED), mode="valid")
    C = np.array([p.rollouts for p in run.points])
    return SmoothCurve(C[SMOOTHED // 2 :][: len(smooth)], smooth)


def summarise(lines: Sequence[Line]) -> None:
    """Coverage, and P(never) by fifths."""
    cases = [line for line in lines if "inside" in line]
    inside = np.mean([case["inside"] for case in cases])
    print(f"{len(cases)} cases, {len(lines) - len(cases)} refused", file=sys.stderr)
    print(f"inside the quoted interval: {inside:.2f}", file=sys.stderr)
    for fifth in range(5):
        part = [case for case in cases if fifth == min(int(5 * case["p_never"]), 4)]
        if part:
            stated = np.mean([case["p_never"] for case in part])
            seen = np.mean([float(case["never"]) for case in part])
            text = f"P(never) stated {stated:.2f}, seen {seen:.2f} in {len(part)} cases"
            print(text, file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, help="a sweep's folder, in place of simulated ones")
    parser.add_argument(
        "--by-seed", action="store_true", help="the runs of each seed are a sweep of their own"
    )
    parser.add_argument("--worlds", type=int, default=60, help="simulated sweeps")
    parser.add_argument("--seed", type=int, default=0, help="another one draws other sweeps")
    parser.add_argument("--replicates", type=int, default=500, help="draws of each fit")
    arguments = parser.parse_args()
    if arguments.run:
        cases = measured(arguments.run, arguments.replicates, arguments.by_seed)
    else:
        cases = simulated(arguments.worlds, arguments.seed, arguments.replicates)

    lines = []
    for line in cases:
        print(json.dumps(line), flush=True)
        lines.append(line)
    summarise(lines)


if __name__ == "__main__":
    main()
