"""What simulations of one training problem say (benchmarks/bandit/simulate.py; paper's Appendix H): the rate, and the
best n for a budget.

Appendix H bounds the suboptimality after t updates by A / (n t) + B / t. It is an upper bound, so what is estimated is
the slope in log-log (-1 if the rate holds), not A and B.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from isojax.scaling.validation_metrics import FloatArray, as_float64

TAIL = 10.0  # the slope is that of t > updates / TAIL
POINTS = 60
SURE = 2.0  # standard errors between two n that count as apart


def grid(updates: int) -> list[int]:
    """About POINTS numbers of updates, evenly spaced in log t from 1 to `updates`."""
    return sorted({round(t) for t in np.geomspace(1, updates, POINTS)})


def slope(t: Sequence[int], values: FloatArray) -> tuple[float, float]:
    """Least-squares slope of log(mean suboptimality) over log t in the last decade of t, and its standard error.

    values: float[points, repetitions]. A repetition's points hang together, so the error is the jackknife's over
    repetitions.
    """
    tail = np.asarray(t) >= t[-1] / TAIL
    x = np.log(np.asarray(t)[tail])
    weight = (x - x.mean()) / np.sum((x - x.mean()) ** 2)
    total, R = values[tail].sum(1), values.shape[1]
    without = weight @ np.log((total[:, None] - values[tail]) / (R - 1))
    return float(weight @ np.log(total / R)), float(np.sqrt((R - 1) * np.var(without)))


def curve(n: int, t: Sequence[int], values: FloatArray, gap: float) -> dict[str, Any]:
    """One n: mean and standard error at each t, the tail's slope, t * suboptimality at the end, the share of
    repetitions that end lost.

    values: float[points, repetitions]; gap: what an arm that is not the best one costs. Lost: over half of it at the
    end.
    """
    mean, error = values.mean(1), values.std(1, ddof=1) / np.sqrt(values.shape[1])
    rate, rate_error = slope(t, values)
    return {
        "n": n, "t": list(t), "C": [n * x for x in t], "suboptimality": mean.tolist(), "error": error.tolist(), "slope": rate,
        "slope_error": rate_error, "t_suboptimality": t[-1] * float(mean[-1]), "t_suboptimality_error": t[-1] * float(error[-1]),
        "lost": float(np.mean(values[-1] > gap / 2)),
    }  # fmt: skip


def budgets(curves: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """[{"C", "at": {n: (suboptimality, standard error)}, "best_n", "tied"}]: up to three budgets, a factor 10 apart.

    Only budgets that every n measured, with one update at least. tied: the other n within SURE standard errors of the
    best one.
    """
    top = min(row["n"] * row["t"][-1] for row in curves)
    found = []
    for C in (top // 100, top // 10, top):
        if C >= max(row["n"] for row in curves):
            at = {row["n"]: _after(row, C // row["n"]) for row in curves}
            best = min(at, key=lambda n: at[n][0])
            tied = [n for n in at if n != best and at[n][0] - at[best][0] < SURE * np.hypot(at[n][1], at[best][1])]
            found.append({"C": C, "at": at, "best_n": best, "tied": tied})
    return found


def _after(row: Mapping[str, Any], t: int) -> tuple[float, float]:
    """Mean and standard error after t updates, between recorded ones by a line in log-log."""
    x = np.log(row["t"])
    mean, error = (as_float64(row[name]) for name in ("suboptimality", "error"))
    value = float(np.exp(np.interp(np.log(t), x, np.log(mean))))
    return value, value * float(np.interp(np.log(t), x, error / mean))
