"""`isojax watch`, replayed on runs whose end is known, looked at in steps of 5%. One JSON line for
each kind of run:

    python benchmarks/watch_replay.py --runs-per-form 10        simulated runs, foreign_forms.py
    python benchmarks/watch_replay.py --file runs.csv           columns run, rollouts and reward
    python benchmarks/watch_replay.py --ledger runs/NAME        runs of isojax

inside: the share of runs whose interval holds the end at all looks. For simulated runs the end is
the true reward, else the mean of the last three evaluations. Goals lie GOAL_STEPS below and above
the end. false_stops: of goals that the run reaches, those for which it was stopped; right_stops: of
the others. saved: the share of all rollouts that stops save; lost: the reward that stops lose, the
end less the last evaluation seen, a mean over all runs and goals. goals: the same of each goal,
less the end.
"""

import argparse
import csv
import json
from pathlib import Path

import numpy as np
from foreign_forms import GROWTHS

from isojax.runs.ledger import default_metric, read_runs
from isojax.scaling.run_watch import RunWatch

STEP = 0.05
GOAL_STEPS = (-0.05, -0.02, -0.005, 0.02, 0.05, 0.1)  # of reward, added to the end
GOAL_COLUMNS = ("stopped", "saved", "lost")
Run = tuple[np.ndarray, np.ndarray, float]  # C, R, the reward at the end


def simulated_run(rng: np.random.Generator, form: str) -> Run:
    """20 to 80 evaluations, evenly spaced in C, by 100 to 1,600 problems."""
    growth, R0 = GROWTHS[form](rng), rng.uniform(0, 0.6)
    A = rng.uniform(R0 + 0.1, 0.95)
    end = 10 ** rng.uniform(0.3, 1.7)
    count = int(rng.integers(20, 81))
    x = np.linspace(0, end, count + 1)
    truth = np.clip(R0 + (A - R0) * growth(x), 0.001, 0.999)
    noise = 0.8 * np.sqrt(truth * (1 - truth) / 10 ** rng.uniform(2, 3.2))
    return 1e4 * x, np.clip(rng.normal(truth, noise), 0, 1), float(truth[-1])


def measured_run(C: np.ndarray, R: np.ndarray) -> Run:
    return C, R, float(R[-3:].mean())


def file_runs(path: Path) -> list[Run]:
    points: dict[str, list[tuple[float, float]]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            points.setdefault(row["run"], []).append((float(row["rollouts"]), float(row["reward"])))
    return [measured_run(*np.array(sorted(run)).T) for run in points.values()]


def ledger_runs(path: Path) -> list[Run]:
    runs = read_runs([path])
    metric = default_metric(runs)
    columns = [
        np.array([(p.rollouts, p.metrics[metric]) for p in run.points], float).T for run in runs
    ]
    return [measured_run(C, R) for C, R in columns]


def replay(run: Run) -> list[dict[str, float]]:
    """A row for each goal; none for a run that allows no forecast."""
    C, R, end = run
    watch = RunWatch(float(C[-1]))

    # A look after each STEP of the run, with the evaluations up to it.
    counts = [int((share * C[-1] >= C).sum()) for share in np.arange(STEP, 1, STEP)]
    looked = [(count, watch.update(C[:count], R[:count])) for count in counts if count]
    intervals = [look.interval for _, look in looked if look.interval is not None]
    if not intervals:
        return []

    inside = all(low <= end <= high for low, high in intervals)
    rows = []
    for step in GOAL_STEPS:
        watch.goal = end + step
        # The looks are kept, so a goal costs no further fit.
        stops = [n for n, _ in looked if watch.update(C[:n], R[:n]).advice == "stop"]
        last = stops[0] if stops else len(C)
        rows.append(
            {
                "goal": step,
                "inside": inside,
                "stopped": bool(stops),
                "saved": 1 - C[last - 1] / C[-1],
                "lost": end - R[last - 1] if stops else 0.0,
                "width": intervals[-1][1] - intervals[-1][0],
            }
        )
    return rows


def summary(kind: str, runs: list[Run]) -> dict[str, object]:
    replayed = [rows for run in runs if (rows := replay(run))]
    rows = [row for run_rows in replayed for row in run_rows]
    line: dict[str, object] = {
        "benchmark": "watch_replay",
        "kind": kind,
        "runs": len(runs),
        "forecast": len(replayed),
    }
    if not rows:
        return line

    def mean(key: str, selected: list[dict[str, float]]) -> float:
        return round(float(np.mean([row[key] for row in selected])), 3)

    # Goals above the end of the run are missed: to stop for them is right.
    reached = [row for row in rows if row["goal"] <= 0]
    missed = [row for row in rows if row["goal"] > 0]
    falsely = [any(row["stopped"] for row in run if row["goal"] <= 0) for run in replayed]
    goals = []
    for goal in sorted({row["goal"] for row in rows}):
        of_goal = [row for row in rows if row["goal"] == goal]
        goals.append({"goal": goal} | {key: mean(key, of_goal) for key in GOAL_COLUMNS})
    return {
        **line,
        "inside": mean("inside", [run[0] for run in replayed]),
        "width": mean("width", rows),
        "false_stops": mean("stopped", reached),
        "right_stops": mean("stopped", missed),
        "runs_falsely_stopped": round(float(np.mean(falsely)), 3),
        "saved": mean("saved", rows),
        "lost": mean("lost", rows),
        "goals": goals,
    }


def main() -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs-per-form", type=int, default=10, help="simulated runs of each form")
    parser.add_argument(
        "--forms", nargs="*", default=list(GROWTHS), help="of foreign_forms.py; all by default"
    )
    parser.add_argument("--seed", type=int, default=0, help="another one draws other runs")
    parser.add_argument("--file", type=Path, help="a CSV of runs, instead of simulated ones")
    parser.add_argument("--ledger", type=Path, help="a sweep of isojax, instead of simulated runs")
    arguments = parser.parse_args()

    if arguments.file is not None:
        print(json.dumps(summary(arguments.file.name, file_runs(arguments.file))))
        return
    if arguments.ledger is not None:
        print(json.dumps(summary(arguments.ledger.name, ledger_runs(arguments.ledger))))
        return
    runs: list[Run] = []
    for form in arguments.forms:
        number = list(GROWTHS).index(form)
        for i in range(arguments.runs_per_form):
            rng = np.random.default_rng([arguments.seed, number, i])
            runs.append(simulated_run(rng, form))
    print(json.dumps(summary("simulated", runs)))


if __name__ == "__main__":
    main()
