"""Training by a server, against isojax's own sampler with the same config.

    python benchmarks/server_training.py --url http://localhost:8000 --weights DIR [--seeds 3]
        [--work DIR] CONFIG [OVERRIDES ...]

The server at the URL has been started with the model of CONFIG, which must be one run. For each
seed `isojax train` runs twice: by the server, and by isojax. The last line, JSON, compares the mean
reward of the rollouts of training, and that of the last evaluation, over the seeds: the difference,
and its standard error between pairs of runs. Of the server it also has the largest
`sampler_logp_gap` and `staleness_max` of a ledger. The exit code is 1 where a run fails or the
rewards differ by more than three standard errors."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]


def train(words: list[str], work: Path, name: str) -> list[dict[str, Any]]:
    """The evaluations of a run."""
    code = "import sys; from isojax.cli.app import main; sys.argv[0] = 'isojax'; main()"
    command = [sys.executable, "-c", code, "train", *words, f"name={name}", f"run.dir={work}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (ledger,) = work.glob(f"{name}/cells/*/records.jsonl")
    rows = map(json.loads, ledger.read_text().splitlines())
    return [row for row in rows if row["kind"] == "eval"]


def training_reward(rows: list[dict[str, Any]]) -> float:
    """The mean over all rollouts: each row has that of the rollouts since the one before."""
    rollouts = np.diff([row["rollouts"] for row in rows])
    rewards = [row["train"]["reward"] for row in rows[1:]]
    return float(np.average(rewards, weights=rollouts))


def last_evaluation(rows: list[dict[str, Any]]) -> float:
    return next(iter(rows[-1]["metrics"].values()))


def compare(by_server: list[float], own: list[float]) -> dict[str, float]:
    differences = np.subtract(by_server, own)
    seeds = len(differences)
    standard_error = float(differences.std(ddof=1) / np.sqrt(seeds)) if seeds > 1 else float("nan")
    return {
        "by server": round(float(np.mean(by_server)), 4),
        "by isojax": round(float(np.mean(own)), 4),
        "difference": round(float(differences.mean()), 4),
        "standard error": round(standard_error, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="+", metavar="CONFIG")
    parser.add_argument("--url", required=True)
    parser.add_argument("--weights", required=True, help="a folder that the server reads")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("server-training"))
    arguments = parser.parse_args()

    server = [
        "run.rollouts=server",
        f"run.server.url={arguments.url}",
        f"run.server.weights={arguments.weights}",
        "run.server.dtype=float32",
    ]
    runs_by_server, own_runs = [], []
    for seed in range(arguments.seeds):
        words = [*arguments.words, f"sweep.seed={seed}"]
        runs_by_server.append(train([*words, *server], arguments.work, f"server-{seed}"))
        own_runs.append(train(words, arguments.work, f"own-{seed}"))
        print(f"seed {seed} of {arguments.seeds} is done", file=sys.stderr)

    rewards = compare(
        *([training_reward(rows) for rows in runs] for runs in (runs_by_server, own_runs))
    )
    evaluations = compare(
        *([last_evaluation(rows) for rows in runs] for runs in (runs_by_server, own_runs))
    )
    metrics = [row["train"] for rows in runs_by_server for row in rows[1:]]
    result = {
        "updates": runs_by_server[0][-1]["M"],
        "training reward": rewards,
        "last evaluation": evaluations,
        "largest sampler_logp_gap": max(m["sampler_logp_gap"] for m in metrics),
        "largest staleness_max": max(m["staleness_max"] for m in metrics),
    }
    print(json.dumps(result))
    sys.exit(abs(rewards["difference"]) > 3 * rewards["standard error"])


if __name__ == "__main__":
    main()
