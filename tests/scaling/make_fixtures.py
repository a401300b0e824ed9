"""Writes fixtures/*.csv, what docs/laws.md is shown on: drawn from known laws, nobody's
measurements.

    python tests/scaling/make_fixtures.py

points.csv: at 36 C of each set, n is the power of two nearest to a law plus noise (sd .4 of log2
n); the law is log2 n* = 2 + L / (1 + exp(-5 (log10 C - 5.5))) with L = 6 for "easy", 4 for "hard".
run.csv: two seeds of R(C) = .2 + .4 / (1 + (3e4 / C)^1.1) with noise of sd .008. many.csv and
few.csv: a sweep over n with many training problems and one with few, the same but that few problems
make n = 64 overfit (paper's Fig. 13); 400 validation problems x 4 samples, run-to-run sd .005.
"""

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from isojax.scaling.curves.hill import curve_value
from isojax.scaling.law.n_star_law import log2_n_star
from isojax.scaling.result import Law
from tests.scaling.synthetic import world
from tests.scaling.synthetic_curves import Declining, Hill, TrueCurve

HERE = Path(__file__).parent / "fixtures"
SWEEP = {
    4: Hill(0.2, 0.50, 1.1, 4e3),
    16: Hill(0.2, 0.58, 1.1, 1.2e4),
    64: Hill(0.2, 0.66, 1.1, 4e4),
}
OVERFITTED = {**SWEEP, 64: Declining(SWEEP[64], 4.5e4, 0.12)}


def write(name: str, header: list[str], rows: list[list[object]]) -> None:
    """A CSV file."""
    with (HERE / name).open("w", newline="") as f:
        csv.writer(f, lineterminator="\n").writerows([header, *rows])


def write_sweep(name: str, curves: Mapping[int, TrueCurve], seed: int) -> None:
    """Two runs of each n at B_p = 16."""
    rows = []
    # problems alike: both sweeps start from one base reward
    noise = {"run_sd": 0.005, "problems": 400, "spread": None}
    for run in world(
        B_p=(16,),
        n=tuple(curves),
        seed=seed,
        ratio=1.45,
        budget=400_000,
        curve=lambda _, n: curves[n],
        **noise,
    ).runs:
        for p in run.points:
            trained = f"{p.train['reward']:.4f}" if p.M else ""
            rows.append(
                [run.cell.B_p, run.cell.n, run.cell.seed, p.M, f"{p.metrics['avg@4']:.5f}", trained]
            )
    write(name, ["B_p", "n", "seed", "step", "val_acc", "train_reward"], rows)


def main() -> None:
    """Draw and write all."""
    rng, rows = np.random.default_rng(0), []
    for label, law in (
        ("easy", Law("sigmoid", 6.0, 5.0, 5.5, 2.0)),
        ("hard", Law("sigmoid", 4.0, 5.0, 5.5, 2.0)),
    ):
        for C in np.geomspace(4e4, 3e6, 36):
            level = float(log2_n_star(law, C)) + rng.normal(0, 0.4)
            rows.append([label, int(2 ** max(round(level), 0)), round(C)])
    write("points.csv", ["set", "n", "rollouts"], rows)
    rows = []
    for seed in (0, 1):
        for step in (0, *np.unique(np.geomspace(4, 4000, 40).round()).astype(int)):
            C = 256 * int(step)
            reward = (curve_value(C, 0.2, 0.6, 1.1, 3e4) if C else 0.2) + rng.normal(0, 0.008)
            rows.append([seed, int(step), C, f"{reward:.4f}"])
    write("run.csv", ["seed", "step", "rollouts", "val_acc"], rows)
    write_sweep("many.csv", SWEEP, 0)
    write_sweep("few.csv", OVERFITTED, 1)


if __name__ == "__main__":
    main()
