"""Does a run whose n grows beat every fixed n at equal C? From the ledgers of one sweep that has
both:

    isojax launch quickstart name=growing sweep.seeds=5 sweep.seed=200 'sweep.B_p=[32]'
    'sweep.n=[2,4,8,16,32]' \\
        cell.rl.lr_scaling=constant cell.rl.learning_rate=5e-4 \
        'sweep.schedules={auto: "32x2 to 32x32 by gradient"}'
    python benchmarks/growing_n.py runs/growing

docs/growing-n-measured.md has the schedule half: "32x2 to 32x32 as C^0.5 from 2000" too, and, for
hard, `isojax launch hard` with 'sweep.n=[2]' and cell.rl.learning_rate=2.5e-4. Its seeds "7100 to
7104" are sweep.seed=7100 with sweep.seeds=5, whose runs have the names of 7100000 to 7100004.

One JSON line for each schedule. gains: at each C of the grid, its reward less that of the best
fixed n, chosen anew at each C (means over seeds). middle: the mean gain over the decade in the
middle of log C, with its standard error, by resampling seeds of every cell and validation problems
of all cells together 2,000 times. to_90: the rollouts to 90% of what the best fixed n gains until
its end, of the fixed n over those of the schedule, with a 90% interval.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from isojax.core.nouns import RunRecord
from isojax.runs.ledger import read_runs

RESAMPLES = 2000
SKIPPED = 2  # evaluations at the beginning, at which all runs still are the base policy


def solve_rates(runs: Sequence[RunRecord], targets: Sequence[int]) -> dict[str, np.ndarray]:
    """kind -> float[seeds, targets, problems], each problem's share of right answers; an evaluation
    answers all targets that one update reached."""
    rates: dict[str, list[np.ndarray]] = {}
    for run in runs:
        answered = np.array([point.target for point in run.points])
        rows = [np.array(p.counts) / p.samples for p in run.points]
        rates.setdefault(run.cell.kind, []).append(
            np.stack([rows[np.searchsorted(answered, t)] for t in targets])
        )
    return {kind: np.stack(of_seeds) for kind, of_seeds in rates.items()}


def first_C(C: np.ndarray, rewards: np.ndarray, reward: float) -> float:
    """Where a curve first has a reward, in log C between the evaluations; infinite where it has
    not."""
    rising = np.maximum.accumulate(rewards)
    if rising[-1] < reward:
        return np.inf
    i = int(np.argmax(rising >= reward))
    if i == 0:
        return float(C[0])
    share = (reward - rising[i - 1]) / (rising[i] - rising[i - 1])
    return float(np.exp((1 - share) * np.log(C[i - 1]) + share * np.log(C[i])))


class Comparison(NamedTuple):
    """A growing n against the best fixed n at each C."""

    gains: np.ndarray  # float[targets]
    middle: float  # the mean gain over the decade in the middle of log C
    ratio_to_90: float  # rollouts to 90% of what the best fixed n gains: fixed n over growing


def judge(
    fixed: Mapping[str, np.ndarray], growing: np.ndarray, C: np.ndarray, best: np.ndarray
) -> Comparison:
    """Of mean rewards, float[targets] each; `best`: the fixed kind at each C by its number."""
    curves = np.stack(list(fixed.values()))
    envelope = curves[best, np.arange(len(C))]
    gains = growing - envelope
    centre = (np.log10(C[0]) + np.log10(C[-1])) / 2
    middle = gains[np.abs(np.log10(C) - centre) <= 0.5].mean()

    goal = envelope[0] + 0.9 * (envelope[-1] - envelope[0])
    ratio = min(first_C(C, curve, goal) for curve in curves) / first_C(C, growing, goal)
    return Comparison(gains, float(middle), float(ratio))


def compare(fixed: Mapping[str, np.ndarray], growing: np.ndarray, C: np.ndarray) -> dict[str, Any]:
    """The row of one schedule, from float[seeds, targets, problems] each."""

    def mean(rates: np.ndarray) -> np.ndarray:
        return rates.mean((0, 2))

    means = {kind: mean(rates) for kind, rates in fixed.items()}
    best = np.stack(list(means.values())).argmax(0)
    measured = judge(means, mean(growing), C, best)

    # Seeds are drawn with replacement in each cell, problems for all cells together.
    rng = np.random.default_rng(0)
    problems = growing.shape[2]
    middles, ratios = [], []
    for _ in range(RESAMPLES):
        weights = rng.multinomial(problems, np.full(problems, 1 / problems)) / problems

        def resampled(rates: np.ndarray, weights: np.ndarray = weights) -> np.ndarray:
            seeds = rng.integers(0, len(rates), len(rates))
            return rates[seeds].mean(0) @ weights

        fixed_again = {kind: resampled(rates) for kind, rates in fixed.items()}
        drawn = judge(fixed_again, resampled(growing), C, best)
        middles.append(drawn.middle)
        ratios.append(drawn.ratio_to_90)
    se = float(np.std(middles))
    low, high = np.quantile(ratios, [0.05, 0.95])

    gains = measured.gains
    return {
        "best_fixed": dict(zip(map(int, C), np.array(list(means))[best].tolist(), strict=True)),
        "reward": dict(zip(map(int, C), np.round(mean(growing), 4).tolist(), strict=True)),
        "gains": dict(zip(map(int, C), np.round(gains, 4).tolist(), strict=True)),
        "worst": round(float(gains.min()), 4),
        "middle": round(measured.middle, 4),
        "se": round(se, 4),
        "z": round(measured.middle / se, 1),
        "to_90": [round(float(x), 3) for x in (measured.ratio_to_90, low, high)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="the folder of the sweep")
    parser.add_argument(
        "--against", nargs="*", help="the fixed cells, such as 32x4 32x8; all where none are named"
    )
    arguments = parser.parse_args()

    # The targets that every run reached, without the first few.
    runs = read_runs([arguments.run])
    all_targets = sorted({p.target for run in runs for p in run.points if p.target > 0})
    last = min(run.points[-1].target for run in runs)
    targets = [target for target in all_targets if target <= last][SKIPPED:]
    C = np.array(targets, dtype=float)

    rates = solve_rates(runs, targets)
    scheduled = {run.cell.kind for run in runs if run.cell.schedule}
    fixed = {kind: of_kind for kind, of_kind in rates.items() if kind not in scheduled}
    if arguments.against:
        fixed = {kind: of_kind for kind, of_kind in fixed.items() if kind in arguments.against}
    for kind in sorted(scheduled):
        seeds = {"seeds": len(rates[kind]), "fixed_seeds": {k: len(r) for k, r in fixed.items()}}
        print(json.dumps({"schedule": kind, **seeds, **compare(fixed, rates[kind], C)}), flush=True)


if __name__ == "__main__":
    main()
