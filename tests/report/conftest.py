"""A made-up sweep with the paper's picture in it: n = 4 leads small budgets, 8 and then 16 larger ones. The fit is written by hand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from isojax.types import Cell, EvalPoint, RunRecord

BASE, C_MAX, METRIC = 0.24, 250_000, "avg@4"
LAW = {"form": "sigmoid", "L": 2.2, "k": 3.1, "log10_C0": 4.25, "b": 1.9}
SHAPES = {2: (0.60, 1.6, 1500), 4: (0.655, 1.3, 2500), 8: (0.70, 1.15, 4800), 16: (0.745, 1.05, 10_500), 32: (0.76, 1.0, 26_000)}


def _value(row: dict[str, Any], C: Any) -> Any:
    return row["R0"] + (row["A"] - row["R0"]) / (1 + (row["C_mid"] / C) ** row["B"])


def _curve(B_p: int, n: int) -> dict[str, Any]:
    A, B, C_mid = SHAPES[n]
    worse = {8: 1.0, 16: 1.12, 32: 1.4}[B_p]
    return {
        "B_p": B_p,
        "n": n,
        "R0": BASE,
        "A": A + 0.004 * (B_p == 16),
        "B": B,
        "C_mid": C_mid * worse,
        "C_low": 1024.0,
        "C_high": float(C_MAX),
        "points": 12,
        "rmse": 0.008,
    }


def _envelope(curves: list[dict[str, Any]]) -> dict[str, Any]:
    grid = np.geomspace(1024, C_MAX, 201)
    values = np.stack([_value(row, grid) for row in curves])
    best = values.argmax(0)
    frontier = [
        {"C": float(C), "reward": float(values[b, i]), "n": curves[b]["n"], "B_p": curves[b]["B_p"]}
        for i, (C, b) in enumerate(zip(grid, best, strict=True))
    ]
    cuts = [0, *(int(i) + 1 for i in np.flatnonzero(np.diff(best))), len(grid) - 1]
    segments, crossovers = [], []
    for k, (a, b) in enumerate(pairwise(cuts)):
        row, low, high = curves[best[a]], float(grid[a]), float(grid[b])
        ends = {"C_low": low, "C_high": high, "decades": float(np.log10(high / low)), "at_C": (low * high) ** 0.5}
        near = [{"n": curves[best[i]]["n"], "B_p": curves[best[i]]["B_p"]} for i in (a - 1, b) if 0 <= i < len(grid) - 1]
        lead = {"neighbours": near, "measured_for_neighbours": bool(near), "lead": 0.012 + 0.004 * k, "se": 0.004 + 0.003 * (k == 0)}
        segments.append({"n": row["n"], "B_p": row["B_p"], **ends, **lead, "z": lead["lead"] / lead["se"]})
        if k and curves[best[a - 1]]["n"] != row["n"]:
            crossovers.append({"n_low": curves[best[a - 1]]["n"], "n_high": row["n"], "C": low})
    return {"frontier": frontier, "crossovers": crossovers, "segments": segments, "n_star": dict(LAW)}


def make_sweep(
    B_ps: tuple[int, ...] = (8, 16), ns: tuple[int, ...] = tuple(SHAPES), seeds: int = 2
) -> tuple[dict[str, Any], list[RunRecord]]:
    """(fit, runs) of a sweep whose truth is SHAPES plus noise."""
    rng = np.random.default_rng(7)
    curves = [_curve(B_p, n) for B_p in B_ps for n in ns]
    targets = [int(1024 * 1.3**k) for k in range(22)]
    runs = []
    for row in curves:
        for seed in range(seeds):
            points = [EvalPoint(0, 0, 0, 0, {METRIC: BASE})]
            for target in (t for t in targets if t <= C_MAX):
                B = row["B_p"] * row["n"]
                M = -(-target // B)
                points.append(EvalPoint(target, M, M * B, 4 * M * B, {METRIC: float(_value(row, target) + rng.normal(0, 0.011))}))
            runs.append(
                RunRecord(Cell(row["B_p"], row["n"], 1000 + seed), tuple(points), device_hours=tuple(p.rollouts / 5e7 for p in points))
            )
    ends = [(r.cell, len(r.points), r.points[-1]) for r in runs]
    finals = [
        {"B_p": c.B_p, "n": c.n, "seed": c.seed, "points": count, "C_max": float(p.rollouts), "final": p.metrics[METRIC]}
        for c, count, p in ends
    ]
    fit = {
        "schema": 1, "mode": "paper", "metric": METRIC, "compute": "rollouts", "base_reward": BASE, "runs": finals, "curves": curves,
        "by_B_p": [{"B_p": b, **_envelope([row for row in curves if row["B_p"] == b])} for b in B_ps],
        "stability": [{"B_p": b, "stable": True, "reason": ""} for b in B_ps], "flags": [], **_envelope(curves),
    }  # fmt: skip
    return fit, runs


@pytest.fixture(name="make_sweep", scope="session")
def _make_sweep() -> Callable[..., tuple[dict[str, Any], list[RunRecord]]]:
    return make_sweep
