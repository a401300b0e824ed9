"""How often the 90% intervals of `isojax fit-curve` hold the truth. One JSON line for each kind of
curve:

    python benchmarks/curve_coverage.py                     20 curves of each kind
    python benchmarks/curve_coverage.py --curves 100 --seed 7 --kinds forms
    python benchmarks/curve_coverage.py --runs FILE.csv     columns run, rollouts and reward

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
from typing import NamedTuple

import numpy as np
from foreign_forms import GROWTHS
from scipy import stats

from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.single_run import RunPoints
from isojax.scaling.run_forecast import fit_to_peak, is_determined


class Noise(NamedTuple):
    """Of own curves: an AR(1) process for each seed, and a level of each seed besides."""

    rho: float
    seeds: int
    level_sd: float


KINDS = {
    "white": Noise(rho=0.0, seeds=1, level_sd=0.0),
    "ar1 .3": Noise(rho=0.3, seeds=1, level_sd=0.0),
    "ar1 .6": Noise(rho=0.6, seeds=1, level_sd=0.0),
    "2 seeds": Noise(rho=0.0, seeds=2, level_sd=0.01),
    "3 seeds": Noise(rho=0.0, seeds=3, level_sd=0.01),
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


def own_curve(rng: np.random.Generator, points: int, kind: Noise) -> Row:
    """One Hill curve drawn and fitted: what its intervals hold."""
    R0 = rng.uniform(0.1, 0.4)
    gain = rng.uniform(0.15, 0.4)
    exponent = rng.uniform(0.7, 1.8)
    C_mid = 10 ** rng.uniform(4, 5)
    end = C_mid * 10 ** rng.uniform(0, 1.3)
    C = np.concatenate([[0], np.geomspace(end / 10**2.5, end, points - 1)])
    truth = np.concatenate([[R0], curve_value(C[1:], R0, R0 + gain, exponent, C_mid)])

    noise = rng.normal(0, SD, (kind.seeds, points))
    for i in range(1, points):  # the same standard deviation at each point
        noise[:, i] = kind.rho * noise[:, i - 1] + np.sqrt(1 - kind.rho**2) * noise[:, i]
    noise += rng.normal(0, kind.level_sd, (kind.seeds, 1))

    seed_of_point = np.repeat(np.arange(kind.seeds), points)
    measured = (truth + noise).ravel()
    posterior, _ = fit_to_peak(
        RunPoints(np.tile(C, kind.seeds), measured, seed_of_point, kind.seeds)
    )
    R_inside = inside(posterior.rewards(C), truth)
    A_inside = float(inside(posterior.draws["A"], R0 + gain))
    row = {
        "A": A_inside,
        "R_first": R_inside[1],
        "R_middle": R_inside[points // 2],
        "R_last": R_inside[-1],
        "R": R_inside[1:].mean(),
    }
    if is_determined(posterior):
        row["A_if_determined"] = A_inside
    return row


class Forecasts(NamedTuple):
    """Of the end of one run: figures, and draws of the last true reward and of A."""

    row: Row
    last_true: np.ndarray
    A: np.ndarray


def forecast(C: np.ndarray, R: np.ndarray, part: float) -> Forecasts:
    """The last reward of one run, forecast from the evaluations up to a part of its C."""
    is_seen = part * C[-1] >= C
    run_index = np.zeros(len(C), dtype=int)
    posterior, _ = fit_to_peak(RunPoints(C, R, run_index).select(is_seen))
    last = RunPoints(C[-1:], R[-1:], run_index[-1:])
    low, high = np.quantile(posterior.evaluations(last)[:, 0], [0.05, 0.95])
    row = {
        "inside": float(low <= R[-1] <= high),
        "width": float(high - low),
        "score": score(low, high, R[-1]),
        "determined": float(is_determined(posterior)),
    }

    is_trained = is_seen & (C > 0)
    row |= line_forecast(np.log(C[is_trained]), R[is_trained], np.log(C[-1]), R[-1])
    return Forecasts(row, posterior.rewards(C[-1:])[:, 0], posterior.draws["A"])


def line_forecast(x: np.ndarray, y: np.ndarray, x_last: float, y_last: float) -> Row:
    """A straight line by least squares, and its prediction interval at x_last; nothing of fewer
    than three points."""
    if len(x) <= 2:
        return {}
    slope, level = np.polyfit(x, y, 1)
    sd = np.sqrt(((y - level - slope * x) ** 2).sum() / (len(x) - 2))
    leverage = 1 / len(x) + (x_last - x.mean()) ** 2 / ((x - x.mean()) ** 2).sum()
    half_width = stats.t.ppf(0.95, len(x) - 2) * sd * np.sqrt(1 + leverage)

    center = level + slope * x_last
    return {
        "line_inside": float(abs(y_last - center) <= half_width),
        "line_score": score(center - half_width, center + half_width, y_last),
    }


def form_curve(rng: np.random.Generator, form: str, part: float) -> Row | None:
    """One run of another form, forecast; None where the part holds too few evaluations."""
    growth = GROWTHS[form](rng)
    R0 = rng.uniform(0, 0.6)
    count = int(rng.integers(14, 61))
    A = rng.uniform(R0 + 0.1, 0.95)
    end = 10 ** rng.uniform(0.3, 1.7)

    # x: the evaluations' C, in units of the C at which half of the gain is reached
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

    forecasts = forecast(1e4 * x, R, part)
    A_inside = float(inside(forecasts.A, A))
    true_inside = float(inside(forecasts.last_true, truth[-1]))
    row = {**forecasts.row, "true_inside": true_inside, "A": A_inside}
    if row["determined"]:
        row["A_if_determined"] = A_inside
    return row


def file_rows(path: Path) -> list[Row]:
    """The runs of a file, forecast from each part."""
    runs: dict[str, list[tuple[float, float]]] = {}
    with path.open() as file:
        for line in csv.DictReader(file):
            runs.setdefault(line["run"], []).append(
                (float(line["rollouts"]), float(line["reward"]))
            )

    rows = []
    for points in runs.values():
        C, R = np.array(sorted(points)).T
        for part in PARTS:
            if len(np.unique(C[part * C[-1] >= C])) < MIN_VISIBLE:
                continue
            row = forecast(C, R, part).row
            if row["determined"]:
                row = {**row, "inside_if_determined": row["inside"]}
            rows.append(row)
    return rows


def summary(kind: str, rows: Iterable[Row], seconds: float) -> str:
    """Means of what each row holds, and the median width."""
    rows = list(rows)
    means = {}
    for key in dict.fromkeys(key for row in rows for key in row):
        values = [row[key] for row in rows if key in row]
        average = np.median if key == "width" else np.mean
        means[key] = round(float(average(values)), 3)
    line = {"benchmark": "curve_coverage", "kind": kind, "curves": len(rows), **means}
    return json.dumps({**line, "seconds_per_curve": round(seconds / max(len(rows), 1), 2)})


def main() -> None:
    """Draw, fit, count and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--curves", type=int, default=20, help="curves of each kind")
    parser.add_argument("--seed", type=int, default=0, help="another one draws other curves")
    parser.add_argument(
        "--kinds",
        choices=("own", "forms", "all"),
        default="all",
        help="own: Hill curves, as the fit has them; forms: those of foreign_forms.py",
    )
    parser.add_argument("--runs", type=Path, help="a file of runs, instead of simulated ones")
    arguments = parser.parse_args()

    if arguments.runs is not None:
        start = time.process_time()
        rows = file_rows(arguments.runs)
        print(summary(arguments.runs.name, rows, time.process_time() - start))
        return
    if arguments.kinds != "forms":
        judge_own_curves(arguments.seed, arguments.curves)
    if arguments.kinds != "own":
        judge_forms(arguments.seed, arguments.curves)


def judge_own_curves(seed: int, curves: int) -> None:
    """A line for each kind of noise and number of points."""
    for number, (kind, noise) in enumerate(KINDS.items()):
        for points in POINTS:
            start = time.process_time()
            rows = []
            for i in range(curves):
                rng = np.random.default_rng([seed, number, points, i])
                rows.append(own_curve(rng, points, noise))
            line = summary(f"{kind}, {points} points", rows, time.process_time() - start)
            print(line, flush=True)


def judge_forms(seed: int, curves: int) -> None:
    """A line for each form, and one for all."""
    start_of_all = time.process_time()
    rows_of_all = []
    for number, form in enumerate(GROWTHS):
        start = time.process_time()
        rows = []
        for i in range(curves):
            rng = np.random.default_rng([seed, 100 + number, i])
            row = form_curve(rng, form, PARTS[i % 2])
            if row is not None:
                rows.append(row)
        rows_of_all += rows
        print(summary(form, rows, time.process_time() - start), flush=True)
    if rows_of_all:
        print(summary("all forms", rows_of_all, time.process_time() - start_of_all), flush=True)


if __name__ == "__main__":
    main()
