"""The recipes, and the paper's ablations of them, at the quickstart's scale: hours of a cluster
become minutes of one core.

An arm is a sweep of its own, as `isojax launch` runs it, of some seeds; all arms of the same
problems share one base policy. One JSON line for each (arm, B_p, n) on standard output, a table and
progress on standard error; lines and figure are written to DIR/EXPERIMENT/, next to the runs:

    python benchmarks/ablations.py recipes               every recipe of configs/recipes
    python benchmarks/ablations.py fig3 fig4 fig25 fig26     figures of the paper
    python benchmarks/ablations.py fig3 --resume         go on with what was interrupted
    python benchmarks/ablations.py recipes --arms ppo,cispo --budget 20000    some arms, shorter

ablation_arms.py has the arms of each.

Of a line: `base` and `final`, validation reward of the base policy and, the mean over seeds, that
of the last quarter of the evaluations (as in `isojax lr-search`), `se` its standard error over
seeds; `gains`, final - base of each seed; `fall`, the best evaluation less the last, the largest of
the seeds'; `flags`, which runs broke (isojax/scaling/checks/run_health.py); entropy, kl, grad_norm,
response_length and zero_variance, means over seeds in the last interval of training; `curve`, [C,
mean reward, its spread over seeds] of each evaluation. Where values of n are compared, one more
line an arm says which n is best at each C.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ablation_arms import EVALUATIONS, EXPERIMENTS, SCALE, Arm, Experiment
from rich.console import Console
from rich.table import Table

from isojax.core.atomic_files import write_bytes, write_text
from isojax.core.config import Config, load_config, save_config
from isojax.core.errors import InputError, RunFailed
from isojax.core.nouns import RunRecord
from isojax.launch.lr_search import score_curve
from isojax.launch.planner import resolve_sweep_sizes
from isojax.launch.resume import BASE_FOLDER
from isojax.launch.sweep_status import CONFIG_FILE
from isojax.runs.ledger import RECORDS_FILE, default_metric, read_runs
from isojax.scaling.checks.run_health import health_flags
from isojax.scaling.reward_metric import metric_value

LINES = "lines.jsonl"
TRAINING = ("entropy", "kl", "grad_norm", "response_length", "zero_variance")
OF_THE_BASE = ("task", "model", "base", "data", "prompt", "verifier", "sampling", "precision")
console = Console(stderr=True)
Line = dict[str, Any]


def config_of(arm: Arm, folder: Path, seeds: int, budget: int | None) -> Config:
    """The sweep of an arm, in `folder`/NAME."""
    config = load_config(["quickstart", *arm.configs], [*SCALE, *EVALUATIONS, *arm.overrides])
    sweep = config.sweep.model_copy(update={"seeds": seeds})
    if budget:
        sweep = sweep.model_copy(update={"budget": budget})
    run_settings = config.run.model_copy(update={"dir": str(folder)})
    return config.model_copy(update={"name": arm.folder, "sweep": sweep, "run": run_settings})


def share_base(config: Config, below: Path) -> None:
    """Begin the sweep with the base policy and problems of another one `below` with the same
    settings of them, where there is one.
    """
    from isojax.launch.local.setup import resolve_config, start_jax

    folder = Path(config.run.dir) / config.name
    if (folder / CONFIG_FILE).exists():
        return

    start_jax(config)
    config = resolve_config(config)
    for path in sorted(below.glob(f"*/*/{CONFIG_FILE}")):
        other = load_config(str(path)).cell
        if all(getattr(other, key) == getattr(config.cell, key) for key in OF_THE_BASE):
            # The config is written last: without it, a copy that was interrupted is made again.
            shutil.rmtree(folder / BASE_FOLDER, ignore_errors=True)
            shutil.copytree(path.parent / BASE_FOLDER, folder / BASE_FOLDER)
            sweep = resolve_sweep_sizes(config.sweep, 1, config.cell)
            save_config(config.model_copy(update={"sweep": sweep}), folder / CONFIG_FILE)
            return


def run(arm: Arm, config: Config, below: Path) -> list[Line]:
    """Run an arm (or what is left of it): a line for each of its (B_p, n)."""
    from isojax.launch.local.local_runner import launch

    share_base(config, below)
    failed: list[str] = []
    try:
        launch(config, resume=True, dry_run=False)
    except RunFailed as e:  # the other arms go on, and the line tells
        failed = [line.strip() for line in str(e).splitlines()[1:]]

    ledgers = sorted((Path(config.run.dir) / config.name).glob(f"cells/*/{RECORDS_FILE}"))
    with_evaluations = [path.parent for path in ledgers if path.read_bytes().count(b"\n") > 1]
    seeds_of_cell: dict[tuple[int, int], list[RunRecord]] = {}
    for record in read_runs(with_evaluations):
        seeds_of_cell.setdefault((record.cell.B_p, record.cell.n), []).append(record)
    return [line_of(arm, seeds_of_cell[cell], failed) for cell in sorted(seeds_of_cell)]


def line_of(arm: Arm, runs: Sequence[RunRecord], failed: Sequence[str]) -> Line:
    """What came of the seeds of one (B_p, n)."""
    metric = default_metric(runs)
    curves = [[(p.rollouts, metric_value(p, metric, r.source)) for p in r.points] for r in runs]
    bases = [curve[0][1] for curve in curves]
    finals = [score_curve(curve) for curve in curves]
    gains = [final - base for final, base in zip(finals, bases, strict=True)]
    falls = [max(reward for _, reward in curve) - curve[-1][1] for curve in curves]
    C_end, _ = curves[0][-1]

    cell = runs[0].cell
    failed_of_cell = [text for text in failed if text.startswith(f"{cell.B_p}x{cell.n}-")]
    flags = [f"{r.cell.name}: {flag}" for r in runs for flag in health_flags(r)]
    last_training = [r.points[-1].train for r in runs]
    return {
        "arm": arm.label,
        "panel": arm.panel,
        "B_p": cell.B_p,
        "n": cell.n,
        "seeds": len(runs),
        "metric": metric,
        "base": float(np.mean(bases)),
        "final": float(np.mean(finals)),
        "se": float(np.std(finals, ddof=1) / len(finals) ** 0.5) if len(finals) > 1 else None,
        "gains": gains,
        "min_gain": min(gains),
        "fall": max(falls),
        "C": C_end,
        "flags": [*failed_of_cell, *flags],
        **{key: mean_of([t[key] for t in last_training if key in t]) for key in TRAINING},
        "curve": curve_of(curves),
        "series": {key: series_of(runs, key) for key in ("entropy", "kl")},
    }


def curve_of(curves: Sequence[Sequence[tuple[int, float]]]) -> list[list[float]]:
    """[C, mean, standard deviation] over seeds, as far as all of them went."""
    count = min(map(len, curves))
    rewards = np.array([[reward for _, reward in curve[:count]] for curve in curves])
    spread = rewards.std(0, ddof=1) if len(curves) > 1 else np.zeros(count)
    return [
        [C, float(m), float(s)]
        for (C, _), m, s in zip(curves[0], rewards.mean(0), spread, strict=False)
    ]


def series_of(runs: Sequence[RunRecord], key: str) -> list[list[float]]:
    """[C, mean over seeds] of a metric of training, where all seeds have it."""
    rows = [[p for p in r.points if p.rollouts > 0] for r in runs]
    return [
        [points[0].rollouts, float(np.mean([p.train[key] for p in points]))]
        for points in zip(*rows, strict=False)
        if all(key in p.train for p in points)
    ]


def best_n(lines: Sequence[Line]) -> list[Line]:
    """Of each arm, at the C of every evaluation of its largest n: the n with the highest mean
    reward (linear in log C between evaluations), and those within two standard errors of it, of the
    difference."""
    results = []
    for panel, arm in dict.fromkeys((line["panel"], line["arm"]) for line in lines):
        of_arm = [line for line in lines if line["panel"] == panel and line["arm"] == arm]
        seeds = {line["n"]: line["seeds"] for line in of_arm}
        curves = {}  # n -> [evaluations, (C, mean, standard deviation over seeds)]
        for line in of_arm:
            curves[line["n"]] = np.array([point for point in line["curve"] if point[0] > 0])

        rows = []
        for C in curves[max(curves)][:, 0]:
            begun = {n: curve for n, curve in curves.items() if curve[0, 0] <= C}
            mean = {n: interpolate(curve, C, column=1) for n, curve in begun.items()}
            spread = {n: interpolate(curve, C, column=2) for n, curve in begun.items()}
            best = max(mean, key=lambda n: mean[n])
            near = []
            for n in mean:
                se_of_difference = np.hypot(spread[best], spread[n]) / seeds[n] ** 0.5
                if mean[best] - mean[n] <= 2 * se_of_difference:
                    near.append(n)
            rewards = {str(n): reward for n, reward in mean.items()}
            rows.append({"C": int(C), "n": best, "near": near, "rewards": rewards})
        results.append({"panel": panel, "arm": arm, "best_n": rows})
    return results


def interpolate(curve: np.ndarray, C: float, column: int) -> float:
    """A column of a curve at C, linear in log C between evaluations."""
    return float(np.interp(np.log(C), np.log(curve[:, 0]), curve[:, column]))


def mean_of(values: Sequence[float]) -> float | None:
    """None of nothing."""
    return float(np.mean(values)) if values else None


def show(title: str, lines: Sequence[Line]) -> None:
    """The table of an experiment."""
    headings = {
        "base": "base",
        "final": "final",
        "se": "s.e.",
        "min_gain": "gain",
        "fall": "fall",
        "entropy": "entropy",
        "kl": "KL",
        "grad_norm": "gradient",
        "response_length": "length",
    }
    table = Table(title=title, title_justify="left")
    table.add_column("", overflow="fold")
    table.add_column("arm", overflow="fold")
    for heading in ("B_p x n", *headings.values()):
        table.add_column(heading, justify="right", overflow="fold")
    table.add_column("flags", overflow="fold")

    for line in lines:
        figures = ["-" if line[key] is None else f"{line[key]:.3f}" for key in headings]
        cell = f"{line['B_p']} x {line['n']}"
        flags = str(len(line["flags"]) or "")
        table.add_row(line["panel"], line["arm"], cell, *figures, flags)
    console.print(table)
    console.print(
        "gain: the smallest of any seed; fall: from the best evaluation to the last, the largest "
        "of any seed",
        highlight=False,
    )
    for line in lines:
        for flag in line["flags"]:
            console.print(
                f"  {line['panel']} {line['arm']} {flag}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )


def compare(
    name: str, experiment: Experiment, arms: Sequence[Arm], settings: argparse.Namespace
) -> None:
    """Run the arms of an experiment and write what came of them."""
    from ablation_figures import draw

    folder = settings.dir / name
    lines: list[Line] = []
    began = time.monotonic()
    for i, arm in enumerate(arms):
        left = ""
        if i:
            seconds_per_arm = (time.monotonic() - began) / i
            left = f", {seconds_per_arm * (len(arms) - i) / 60:.1f} min left"
        console.rule(f"{name}: arm {i + 1} of {len(arms)}, {arm.panel} {arm.label}{left}")
        for line in run(arm, config_of(arm, folder, settings.seeds, settings.budget), settings.dir):
            lines.append({"benchmark": "ablations", "experiment": name, **line})
            print(json.dumps(lines[-1], allow_nan=False), flush=True)
        write_text(folder / LINES, "".join(json.dumps(line) + "\n" for line in lines))

    write_bytes(folder / f"{name}.png", draw(experiment, lines).png)
    show(experiment.title, lines)
    for result in best_n(lines) if experiment.by_n else []:
        print(json.dumps({"benchmark": "ablations", "experiment": name, **result}), flush=True)
        for row in result["best_n"]:
            rewards = ", ".join(f"n = {n}: {reward:.3f}" for n, reward in row["rewards"].items())
            output = (
                f"{result['panel']} {result['arm']}, C = {row['C']:,}: best n = {row['n']}, "
                f"not distinguishable from it: {row['near']}; {rewards}"
            )
            console.print(output, highlight=False, markup=False, soft_wrap=True)
    console.print(f"figure: {folder / name}.png", highlight=False, soft_wrap=True)


def chosen(name: str, words: str | None) -> list[Arm]:
    """The arms that --arms names, by label or folder; all where it is not given."""
    arms = EXPERIMENTS[name].arms
    wanted = set(words.split(",")) if words else set()
    known = {arm.label for arm in arms} | {arm.folder for arm in arms}
    if wanted - known:
        raise InputError(
            f"--arms: {name} has no {sorted(wanted - known)}; "
            f"expected some of {[arm.folder for arm in arms]}."
        )
    return [arm for arm in arms if not wanted or wanted & {arm.label, arm.folder}]


def main() -> int:
    """Run every experiment that is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "experiments",
        nargs="+",
        choices=EXPERIMENTS,
        metavar="EXPERIMENT",
        help=", ".join(EXPERIMENTS),
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs of each cell")
    parser.add_argument(
        "--dir", type=Path, default=Path("runs/ablations"), help="where runs and figures go"
    )
    parser.add_argument("--budget", type=int, help="rollouts per cell, instead of each arm's own")
    parser.add_argument("--arms", help="A,B: only these arms")
    parser.add_argument("--resume", action="store_true", help="go on with what is in the folder")
    arguments = parser.parse_args()

    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    try:
        # All arms are checked before the first of them trains for minutes.
        todo = {name: chosen(name, arguments.arms) for name in arguments.experiments}
        for name, arms in todo.items():
            for arm in arms:
                config_of(arm, arguments.dir / name, arguments.seeds, arguments.budget)
            if not arguments.resume and (arguments.dir / name).exists():
                raise InputError(
                    f"{arguments.dir / name} holds runs already; go on with them by --resume, "
                    "or choose another --dir."
                )

        for name, arms in todo.items():
            compare(name, EXPERIMENTS[name], arms, arguments)
    except InputError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
