"""How often the 90% intervals of `isojax fit-curve` hold the truth, on curves with known parameters and noise. One JSON
line:

    python benchmarks/curve_coverage.py                     300 curves of each kind
    python benchmarks/curve_coverage.py --curves 1000 --seed 7

Kinds: white noise (sd .01), AR(1) noise of the same sd (rho .3 and .6), and 2 or 3 seeds whose levels differ by as much
besides; 30 and 100 points a run over 2.5 decades, the last of them at 1 to 20 times C_mid. For A, and for R(C) at the
first, middle and last C and over all. Intervals whose end is open hold everything on that side; how many are is said.
"""

import argparse
import json
import time

import numpy as np

from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.single_run import (
    RunPoints,
    bootstrap_replicates,
    curve_band,
    fit_single_run,
    parameter_intervals,
)

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


def one(rng: np.random.Generator, points: int, rho: float, seeds: int, level: float) -> dict[str, float]:
    """One curve drawn and fitted: what its intervals hold."""
    R0, gain, B = rng.uniform(0.1, 0.4), rng.uniform(0.15, 0.4), rng.uniform(0.7, 1.8)
    C_mid = 10 ** rng.uniform(4, 5)
    end = C_mid * 10 ** rng.uniform(0, 1.3)
    C = np.concatenate([[0], np.geomspace(end / 10**2.5, end, points - 1)])
    truth = np.concatenate([[R0], curve_value(C[1:], R0, R0 + gain, B, C_mid)])
    noise = rng.normal(0, SD, (seeds, points))
    for i in range(1, points):
        noise[:, i] = rho * noise[:, i - 1] + np.sqrt(1 - rho**2) * noise[:, i]
    noise += rng.normal(0, level, (seeds, 1))
    runs = RunPoints(np.tile(C, seeds), (truth + noise).ravel(), np.repeat(np.arange(seeds), points))
    fit = fit_single_run(runs)
    drawn = bootstrap_replicates(fit, runs)
    low, high = parameter_intervals(drawn, fit.space)["A"]
    result = curve_band(fit, drawn, C)
    inside = (result["low"] <= truth) & (truth <= result["high"])
    A = R0 + gain
    held = (low is None or low <= A) and (high is None or A <= high)
    return {
        "A": held,
        "A_open": high is None,
        "R_first": inside[1],
        "R_middle": inside[points // 2],
        "R_last": inside[-1],
        "R": inside[1:].mean(),
    }


def main() -> None:
    """Draw, fit, count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    start, coverage = time.perf_counter(), {}
    for number, (kind, noise) in enumerate(KINDS.items()):
        for points in POINTS:
            rows = [
                one(np.random.default_rng([arguments.seed, number, points, i]), points, *noise)
                for i in range(arguments.curves)
            ]
            coverage[f"{kind}, {points} points"] = {
                key: round(float(np.mean([row[key] for row in rows])), 3) for key in rows[0]
            }
    seconds = (time.perf_counter() - start) / (arguments.curves * len(coverage))
    line = {"benchmark": "curve_coverage", "curves": arguments.curves, "seed": arguments.seed, "coverage": coverage}
    print(json.dumps({**line, "seconds_a_fit": round(seconds, 3)}))


if __name__ == "__main__":
    main()
