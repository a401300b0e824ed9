"""Small sweeps for tests of the fitter's parts: cells of known curves, packed as the hierarchical
model takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.scaling.curves.hierarchical import PackedSweep, pack_sweep
from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.sweep_estimate import FitOptions
from isojax.scaling.fit import fit_all_runs
from isojax.scaling.result import FitResult
from isojax.scaling.tracks import FloatArray, RunTrack, group_by_cell, make_track

# (B_p, n) -> (A, B, C_mid), R0 = .2: the law of tests.scaling.documents.
CURVES = {(16, 4): (0.6, 1.0, 2e3), (16, 16): (0.7, 1.0, 8e3), (16, 64): (0.72, 1.0, 6e4)}
R0 = 0.2


def fit(
    runs: Sequence[RunRecord], metric: str = "avg@4", compute: str = "rollouts", **options: Any
) -> FitResult:
    """The fit of all these runs, with these fields of FitOptions."""
    return fit_all_runs(runs, metric, compute, FitOptions(**options))


def run(
    B_p: int,
    n: int,
    seed: int,
    C: Sequence[float] | FloatArray,
    R: Sequence[float] | FloatArray,
    train: FloatArray | None = None,
) -> RunTrack:
    """One run as axes; C need not be whole multiples of B_p n."""
    rows = zip(C, R, np.full(len(R), np.nan) if train is None else train, strict=True)
    points = tuple(
        EvalPoint(
            i,
            i,
            round(c),
            8 * round(c),
            {"avg@4": float(r)},
            (),
            0,
            {} if np.isnan(t) else {"reward": float(t)},
        )
        for i, (c, r, t) in enumerate(rows)
    )
    return make_track(
        RunRecord(Cell(B_p, n, seed), points, f"{B_p}x{n}-s{seed}"), "avg@4", "rollouts"
    )


def sweep(
    curves: Mapping[tuple[int, int], tuple[float, float, float]] = CURVES,
    *,
    tail: float = 1.0,
    seeds: int = 2,
    points: int = 12,
    noise: float = 0.005,
    run_sd: float = 0.0,
    low: float = 1e3,
    high: float = 1e5,
    seed: int = 0,
) -> dict[tuple[int, int], list[RunTrack]]:
    """Evaluations at C = 0 and at `points` budgets even in log C, with normal noise and each run's
    luck in proportion to its progress.
    """
    rng, C = np.random.default_rng(seed), np.geomspace(low, high, points).round()
    result = []
    for (B_p, n), (A, B, mid) in curves.items():
        for s in range(seeds):
            luck = run_sd * rng.standard_normal()
            R = np.concatenate(
                [[R0], curve_value(C, R0, A + luck, B, mid, tail)]
            ) + noise * rng.standard_normal(points + 1)
            result.append(run(B_p, n, s, [0.0, *C], R.clip(0, 1)))
    return group_by_cell(result)


def packed(**more: Any) -> PackedSweep:
    """The same, packed."""
    return pack_sweep(sweep(**more))
