"""How often the 90% intervals of `isojax fit-curve` hold the truth. One JSON line for each kind of
curve:

    python benchmarks/curve_coverage.py                     20 curves of each kind
    python benchmarks/curve_coverage.py --curves 100 --seed 7 --kinds forms
    python benchmarks/curve_coverage.py --runs FILE.csv     runs of a file with the columns run, rollouts and reward

Own curves: Hill curves of 30 and 100 points over 2.5 decades, the last at 1 to 20 times C_mid, with
white noise (sd .01), AR(1) noise of the same sd (rho .3 and .6), and 2 or 3 seeds whose levels
differ by as much besides. Shares are of A, and of R(C) at the first, middle and last C and over
all.

Forms: the curves of foreign_forms.py, 14 to 60 evaluations, even in C or in log C, by 100 to 1,600
problems; the fit sees those up to a quarter or a half of the last C. Shares are of the last
measured reward, of the last true reward, and of A; `line` is a straight line in log C by least
squares with its prediction interval. The score of an interval (Winkler's) is its width, and 20
times the distance by which it misses: less is better. Runs of a file are forecast in the same way.
"""

import argparse
import csv
import json
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from foreign_forms import GROWTHS
from scipy import stats

from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.single_run import RunPoints
from isojax.scaling.run_forecast import fit_with_trial, is_determined

# kind -> (rho, seeds, standard deviation of their levels)
KINDS = {
    "white": (0.0, 1, 0.0),
    "ar1 .3": (0.3, 1, 0.0),
    "ar1 .6": (0.6, 1, 0.0),
    "2 seeds": (0.0, 2, 0.01),
    "3 seeds": (0.0, 3, 0.01),
}
POINTS = (30, 100)
SD = 0.01
PARTS = (0.25, 0.5)  # of the last C that a fit sees
MIN_VISIBLE = 3
Row = dict[str, float]


def inside(draws: np.ndarray, truth: np.ndarray | float) -> np.ndarray:
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    return (low <= truth) & (truth <= high)


def score(low: float, high: float, measured: float) -> float:
    return high - low + 20 * max(low - measured, measured - high, 0.0)


def own_curve(rng: np.random.Generator, points: int, rho: float, seeds: int, level: float) -> Row:
    """One Hill curve drawn and fitted: what its intervals hold."""
    R0, gain, B = rng.uniform(0.1, 0.4), rng.uniform(0.15, 0.4), rng.uniform(0.7, 1.8)
    C_mid = 10 ** rng.uniform(4, 5)
    end = C_mid * 10 ** rng.uniform(0, 1.3)
    C = np.concatenate([[0], np.geomspace(end / 10**2.5, end, points - 1)])
    truth = np.concatenate([[R0], curve_value(C[1:], R0, R0 + gain, B, C_mid)])
    noise = rng.normal(0, SD, (seeds, points))
    for i in range(1, points):
        noise[:, i] = rho * noise[:, i - 1] + np.sqrt(1 - rho**2) * noise[:, i]
    noise += rng.normal(0, level, (seeds, 1))
    runs = RunPoints(
        np.tile(C, seeds), (truth + noise).ravel(), np.repeat(np.arange(seeds), points), seeds
    )
    posterior, _ = fit_with_trial(runs)
    held = inside(posterior.rewards(C), truth)
    A = float(inside(posterior.draws["A"], R0 + gain))
    return {
        "A": A,
        **({"A_if_determined": A} if is_determined(posterior) else {}),
        "R_first": held[1],
        "R_middle": held[points // 2],
        "R_last": held[-1],
        "R": held[1:].mean(),
    }


def forecast(C: np.ndarray, R: np.ndarray, part: float) -> tuple[Row, np.ndarray, np.ndarray]:
    """The last reward of one run, forecast from a part: (row, draws of the last true reward, draws
    of A)."""
    seen = part * C[-1] >= C
    run_index = np.zeros(len(C), dtype=int)
    posterior, _ = fit_with_trial(RunPoints(C, R, run_index).select(seen))
    last = RunPoints(C[-1:], R[-1:], run_index[-1:])
    low, high = np.quantile(posterior.evaluations(last)[:, 0], [0.05, 0.95])
    A = posterior.draws["A"]
    row = {
        "inside": float(low <= R[-1] <= high),
        "width": float(high - low),
        "score": score(low, high, R[-1]),
        "determined": float(is_determined(posterior)),
    }
    x, y = np.log(C[seen & (C > 0)]), R[seen & (C > 0)]
    if len(x) > 2:
        slope, level = np.polyfit(x, y, 1)
        sd = np.sqrt(((y - level - slope * x) ** 2).sum() / (len(x) - 2))
        distance = (np.log(C[-1]) - x.mean()) ** 2 / ((x - x.mean()) ** 2).sum()
        half_width = stats.t.ppf(0.95, len(x) - 2) * sd * np.sqrt(1 + 1 / len(x) + distance)
        center = level + slope * np.log(C[-1])
        row["line_inside"] = float(abs(R[-1] - center) <= half_width)
        row["line_score"] = score(center - half_width, center + half_width, R[-1])
    return row, posterior.rewards(C[-1:])[:, 0], A


def form_curve(rng: np.random.Generator, form: str, part: float) -> Row | None:
    """One run of another form, forecast; None where the part holds too few evaluations."""
    growth = GROWTHS[form](rng)
    R0 = rng.uniform(0, 0.6)
    count = int(rng.integers(14, 61))
    A, end = rng.uniform(R0 + 0.1, 0.95), 10 ** rng.uniform(0.3, 1.7)
    x = np.linspace(0, end, count + 1)[1:]
    if rng.random() < 0.4:
        x = np.geomspace(end / 10 ** rng.uniform(1.5, 2.5), end, count)
    if rng.random() < 0.5:
        x = np.append(0.0, x)
    truth = np.clip(R0 + (A - R0) * growth(x), 0.001, 0.999)
    problems = int(10 ** rng.uniform(2, 3.2))
    R = np.clip(rng.normal(truth, 0.8 * np.sqrt(truth * (1 - truth) / problems)), 0, 1)
    if (x <= part * end).sum() < MIN_VISIBLE:
        return None
    row, last_true, A_draws = forecast(1e4 * x, R, part)
    row["true_inside"] = float(inside(last_true, truth[-1]))
    row["A"] = float(inside(A_draws, A))
    if row["determined"]:
        row["A_if_determined"] = row["A"]
    return row


def file_rows(path: Path) -> list[Row]:
    """The runs of a file, forecast from each part."""
    runs: dict[str, list[tuple[float, float]]] = {}
    with path.open() as file:
        for line in csv.DictReader(file):
            runs.setdefault(line["run"], []).append(
                (float(line["rollouts"]), float(line["reward"]))
            )
    curves = [np.array(sorted(points)).T for points in runs.values()]
    rows = []
    for C, R in curves:
        for part in PARTS:
            if len(np.unique(C[part * C[-1] >= C])) >= MIN_VISIBLE:
                row, _, _ = forecast(C, R, part)
                rows.append(
                    row | ({"inside_if_determined": row["inside"]} if row["determined"] else {})
                )
    return rows


def summary(kind: str, rows: Iterable[Row], seconds: float) -> str:
    """Means of what each row holds, and the median width."""
    rows = list(rows)
    values = {
        key: [row[key] for row in rows if key in row]
        for key in dict.fromkeys(k for row in rows for k in row)
    }
    means = {
        key: round(float(np.median(v) if key == "width" else np.mean(v)), 3)
        for key, v in values.items()
    }
    line = {"benchmark": "curve_coverage", "kind": kind, "curves": len(rows), **means}
    return json.dumps({**line, "seconds_per_curve": round(seconds / max(len(rows), 1), 2)})


def main() -> None:
    """Draw, fit, count and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--curves", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", choices=("own", "forms", "all"), default="all")
    parser.add_argument("--runs", type=Path)
    arguments = parser.parse_args()
    start, all_forms = time.process_time(), []
    if arguments.runs is not None:
        print(summary(arguments.runs.name, file_rows(arguments.runs), time.process_time() - start))
        return
    draws = range(arguments.curves)
    for number, (kind, noise) in enumerate(KINDS.items()):
        for points in POINTS if arguments.kinds != "forms" else ():
            start = time.process_time()
            seeds = [[arguments.seed, number, points, i] for i in draws]
            rows = [own_curve(np.random.default_rng(seed), points, *noise) for seed in seeds]
            print(
                summary(f"{kind}, {points} points", rows, time.process_time() - start), flush=True
            )
    start_of_forms = time.process_time()
    for number, form in enumerate(GROWTHS if arguments.kinds != "own" else ()):
        start = time.process_time()
        seeds = [[arguments.seed, 100 + number, i] for i in draws]
        drawn = [
            form_curve(np.random.default_rng(seed), form, PARTS[i % 2])
            for i, seed in enumerate(seeds)
        ]
        rows = [row for row in drawn if row is not None]
        all_forms += rows
        print(summary(form, rows, time.process_time() - start), flush=True)
    if all_forms:
        print(summary("all forms", all_forms, time.process_time() - start_of_forms), flush=True)


if __name__ == "__main__":
    main()
