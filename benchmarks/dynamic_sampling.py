"""Does dynamic sampling pay for the rollouts that it drops? DAPO with the zero-variance filter,
beside DAPO that replaces groups of equal rewards, at equal C and at equal M.

    python benchmarks/dynamic_sampling.py hard              the problems of configs/hard.yaml
    python benchmarks/dynamic_sampling.py smollm2_cpu       sums by SmolLM2-135M

smollm2_cpu needs the model: isojax model import smollm2.
Both arms train `--seeds` runs, and share one base policy. `filter` is
cell.rl.zero_variance_filter=[policy], `dynamic` cell.rl.dynamic_sampling=LIMIT besides. A reward is
the mean of a run's curve over the last quarter of its C; at equal M the curves are read at the
updates that the shorter of both runs of a seed has, over their last quarter. Differences are
dynamic - filter, paired by seed, with their standard error. One JSON line on standard output; with
--resume, finished runs are read."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from isojax.core.nouns import RunRecord
from isojax.runs.ledger import default_metric, read_runs
from isojax.scaling.reward_metric import metric_value

MAIN = "from isojax.cli.app import main; main()"
GRIDS = {
    "hard": [
        "sweep.B_p=[32]",
        "sweep.n=[8]",
        "sweep.budget=60000",
        "cell.eval.start=1000",
        "cell.eval.ratio=1.3",
    ],
    "smollm2_cpu": [
        "sweep.B_p=[16]",
        "sweep.n=[8]",
        "sweep.budget=3000",
        "cell.eval.start=384",
        "cell.eval.ratio=1.3",
        "run.cells_at_once=1",  # several at a time ran out of memory
    ],
}


def train(config: str, arm: str, arguments: argparse.Namespace) -> list[RunRecord]:
    """The runs of an arm, by seed."""
    words = [config, "recipes/dapo", *GRIDS[config], f"sweep.seeds={arguments.seeds}"]
    words += [f"name={config}-{arm}", f"run.dir={arguments.dir}", "--no-report"]
    if arm == "dynamic":
        words.append(f"cell.rl.dynamic_sampling={arguments.limit}")
        words.append(f"run.base_from={arguments.dir}/{config}-filter")
    if arguments.resume:
        words.append("--resume")

    subprocess.run([sys.executable, "-c", MAIN, "launch", *words], check=True, stdout=sys.stderr)
    return sorted(read_runs([arguments.dir / f"{config}-{arm}"]), key=lambda run: run.cell.seed)


def mean_reward(run: RunRecord, x: np.ndarray, start: float, end: float) -> float:
    """The mean of a run's curve over [start, end] of x, C or M at its evaluations, linear between
    them."""
    metric = default_metric([run])
    grid = np.linspace(start, end, 101)
    return float(np.interp(grid, x, [metric_value(point, metric) for point in run.points]).mean())


def compare(runs: dict[str, list[RunRecord]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for axis in ("C", "M"):
        rewards: dict[str, list[float]] = {arm: [] for arm in runs}
        for of_seed in zip(*runs.values(), strict=True):  # a run of each arm
            positions = []
            for run in of_seed:
                x = [p.rollouts if axis == "C" else p.M for p in run.points]
                positions.append(np.array(x, float))
            end = min(x[-1] for x in positions)
            for arm, run, x in zip(runs, of_seed, positions, strict=True):
                rewards[arm].append(mean_reward(run, x, 0.75 * end, end))

        difference = np.subtract(rewards["dynamic"], rewards["filter"])
        result[f"equal {axis}"] = {
            **{arm: round(float(np.mean(values)), 4) for arm, values in rewards.items()},
            "difference": round(float(difference.mean()), 4),
            "se": round(float(difference.std(ddof=1) / np.sqrt(len(difference))), 4),
        }

    for arm, of_arm in runs.items():
        last = [run.points[-1] for run in of_arm]
        result[arm] = {
            "C": round(np.mean([p.rollouts for p in last])),
            "M": round(np.mean([p.M for p in last])),
            "zero_variance": round(float(np.mean([p.train["zero_variance"] for p in last])), 3),
            "rollouts per update": round(float(np.mean([p.rollouts / p.M for p in last])), 1),
        }

    base = [metric_value(run.points[0], default_metric([run])) for run in runs["filter"]]
    result["base"] = round(float(np.mean(base)), 4)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", choices=GRIDS, help="the task and the model")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each arm")
    parser.add_argument(
        "--limit", type=int, default=4, help="batches of problems for an update, at most"
    )
    parser.add_argument(
        "--dir", type=Path, default=Path("runs/dynamic_sampling"), help="the folder of the runs"
    )
    parser.add_argument("--resume", action="store_true", help="go on with what is in the folder")
    arguments = parser.parse_args()

    # The arm `dynamic` begins from the base policy of `filter`, so that comes first.
    runs = {arm: train(arguments.config, arm, arguments) for arm in ("filter", "dynamic")}
    line = {"config": arguments.config, "seeds": arguments.seeds, "limit": arguments.limit}
    print(json.dumps({**line, **compare(runs)}))


if __name__ == "__main__":
    main()
