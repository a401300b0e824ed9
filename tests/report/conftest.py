"""A made-up sweep as in the paper: n = 4 leads small budgets, 8 and then 16 larger ones. Its fit is
written by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.report.page.html_page import write_report
from isojax.scaling.result import FitFlag, FitResult, FlaggedRun, HealthFlag, RunHealth
from tests.report.chromium import start_browser

BASE, C_MAX, METRIC = 0.24, 250_000, "avg@4"
LAW = {"form": "sigmoid", "L": 2.2, "k": 3.1, "log10_C0": 4.25, "b": 1.9}
SHAPES = {
    2: (0.60, 1.6, 1500),
    4: (0.655, 1.3, 2500),
    8: (0.70, 1.15, 4800),
    16: (0.745, 1.05, 10_500),
    32: (0.76, 1.0, 26_000),
}
# The larger n of a paper-scale sweep, and how much later its B_p learn.
LARGE_SHAPES = {
    n: (0.76 + 0.01 * k, 1.0, 26_000 * 2.2**k) for k, n in enumerate((64, 128, 256, 512), 1)
}
DELAYS = {8: 1.0, 16: 1.12, 32: 1.4, 64: 1.9, 128: 2.6, 256: 3.6}
REPLICATES = 40
# Text as a hostile log may hold it: in a flag, in files, in a metric's name.
BAD = "<script>alert('x')</script>"
EVIL = "<img src=x onerror=alert(1)></script><script>window.pwned=1</script>"


def _value(row: dict[str, Any], C: Any) -> Any:
    return row["R0"] + (row["A"] - row["R0"]) / (1 + (row["C_mid"] / C) ** row["exponent"])


def _curve(B_p: int, n: int, hierarchical: bool) -> dict[str, Any]:
    A, exponent, C_mid = (SHAPES | LARGE_SHAPES)[n]
    A, C_mid = A + 0.004 * (B_p == 16), C_mid * DELAYS[B_p]
    known = {
        "A_interval": (A - 0.015, A + 0.018),
        "exponent_interval": (exponent - 0.1, exponent + 0.1),
        "C_mid_interval": (C_mid * 0.9, C_mid * 1.1),
    }
    return {
        "B_p": B_p,
        "n": n,
        "R0": BASE,
        "A": A,
        "exponent": exponent,
        "C_mid": C_mid,
        "C_low": 1024.0,
        "C_high": float(C_MAX),
        "points": 12,
        "rmse": 0.008,
        "determined": n < 32,
        "C_peak": None,
        **(known if hierarchical else {}),
        "tail": 1.0,
    }


def _chances(values: Any) -> Any:
    """P(best) of each curve, as if each had an error of .004; [curves, points]."""
    weights = np.exp((values - values.max(0)) / 0.004)
    return weights / weights.sum(0)


def _frontier(
    curves: list[dict[str, Any]], hierarchical: bool
) -> tuple[Any, Any, list[dict[str, Any]]]:
    grid = np.geomspace(1024, C_MAX, 143)
    values = np.stack([_value(row, grid) for row in curves])
    best, chances = values.argmax(0), _chances(values)
    ns = sorted({row["n"] for row in curves})
    points = []
    for i, (C, b) in enumerate(zip(grid, best, strict=True)):
        y = float(values[b, i])
        shares = {
            n: round(float(sum(chances[j, i] for j, row in enumerate(curves) if row["n"] == n)), 4)
            for n in ns
        }
        known = (
            {"low": y - 0.007, "high": y + 0.009, "n_probability": shares}
            if hierarchical
            else {"low": None, "high": None, "n_probability": None}
        )
        points.append(
            {"C": float(C), "reward": y, "n": curves[b]["n"], "B_p": curves[b]["B_p"], **known}
        )
    return grid, best, points


def _envelope(
    curves: list[dict[str, Any]], hierarchical: bool, B_p: int | None = None
) -> dict[str, Any]:
    grid, best, points = _frontier(curves, hierarchical)
    cuts = [0, *(int(i) + 1 for i in np.flatnonzero(np.diff(best))), len(grid) - 1]
    segments, crossovers = [], []
    for k, (a, b) in enumerate(pairwise(cuts)):
        row, low, high = curves[best[a]], float(grid[a]), float(grid[b])
        ends = {
            "C_low": low,
            "C_high": high,
            "decades": float(np.log10(high / low)),
            "at_C": (low * high) ** 0.5,
        }
        near = [
            {"n": curves[best[i]]["n"], "B_p": curves[best[i]]["B_p"]}
            for i in (a - 1, b)
            if 0 <= i < len(grid) - 1
        ]
        lead = {
            "neighbours": near,
            "measured_for_neighbours": bool(near),
            "lead": 0.012 + 0.004 * k,
            "se": 0.004 + 0.003 * (k == 0),
        }
        censored = {"censored_low": a == 0, "censored_high": b == len(grid) - 1}
        segments.append(
            {
                "n": row["n"],
                "B_p": row["B_p"],
                **ends,
                **lead,
                "z": lead["lead"] / lead["se"],
                **censored,
            }
        )
        if k and curves[best[a - 1]]["n"] != row["n"]:
            known = (
                (low / 1.2, None if len(crossovers) == 1 else low * 1.25)
                if hierarchical
                else (None, None)
            )
            crossovers.append(
                {
                    "n_low": curves[best[a - 1]]["n"],
                    "n_high": row["n"],
                    "C": low,
                    "low": known[0],
                    "high": known[1],
                }
            )
    return {
        "B_p": B_p,
        "frontier": points,
        "crossovers": crossovers,
        "segments": segments,
        "n_star": _law(grid) if hierarchical else {"law": LAW, "no_effect": False},
    }


def _law(grid: Any) -> dict[str, Any]:
    exact = 2 ** (
        LAW["b"] + LAW["L"] / (1 + np.exp(-LAW["k"] * (np.log10(grid) - LAW["log10_C0"])))
    )
    band = [
        {"C": float(C), "low": float(n) * 0.75, "high": float(n) * 1.3}
        for C, n in zip(grid[::8], exact[::8], strict=True)
    ]
    aicc = {"constant": 41.2, "linear": 12.9, "sigmoid": 4.1}
    return {"law": LAW, "aicc": aicc, "no_effect": False, "band": band}


def _by_B(curves: list[dict[str, Any]], hierarchical: bool) -> list[dict[str, Any]]:
    """One entry for each B = B_p n of at least two cells."""
    result = []
    for B in sorted({row["B_p"] * row["n"] for row in curves}):
        specific = [row for row in curves if row["B_p"] * row["n"] == B]
        if len(specific) < 2:
            continue
        envelope = _envelope(specific, hierarchical)
        constant = {"form": "constant", "L": 0.0, "k": 0.0, "log10_C0": None, "b": 3.0}
        law = {"law": constant, "no_effect": False, "monotone_rejected": B == 128}
        lines = {name: envelope[name] for name in ("frontier", "crossovers")}
        result.append({"B": B, **lines, "n_star": law})
    return result


def _draws(curves: list[dict[str, Any]]) -> dict[str, Any]:
    rng = np.random.default_rng(11)
    wide = {"A": 0.006, "exponent": 0.04, "C_mid": 0.04}
    drawn = {
        name: [
            [
                float(row[name] * (1 + e * (name != "A")) + e * (name == "A"))
                for e in rng.normal(0, sd, REPLICATES)
            ]
            for row in curves
        ]
        for name, sd in wide.items()
    }
    shared = {
        "R0": [float(BASE + e) for e in rng.normal(0, 0.002, REPLICATES)],
        "tail": [1.0] * REPLICATES,
    }
    shared["shift"] = [[0.0] * REPLICATES] * 2
    shared["departure_sd"] = 0.01
    return {"cells": [[row["B_p"], row["n"]] for row in curves], **drawn, **shared}


def _runs(curves: list[dict[str, Any]], seeds: int, metric: str) -> list[RunRecord]:
    rng, runs = np.random.default_rng(7), []
    targets = [int(1024 * 1.3**k) for k in range(22)]
    for row in curves:
        for seed in range(seeds):
            points = [EvalPoint(0, 0, 0, 0, {metric: BASE})]
            B = row["B_p"] * row["n"]
            for M, target in {-(-t // B): t for t in targets if t <= C_MAX}.items():
                y = float(_value(row, target) + rng.normal(0, 0.011))
                points.append(
                    EvalPoint(
                        target,
                        M,
                        M * B,
                        4 * M * B,
                        {metric: y},
                        train={"reward": y + 0.02 + target / 4e6},
                    )
                )
            hours = tuple(p.rollouts / 5e7 for p in points)
            runs.append(
                RunRecord(
                    Cell(row["B_p"], row["n"], 1000 + seed), tuple(points), device_hours=hours
                )
            )
    return runs


def _joint(curves: list[dict[str, Any]], hierarchical: bool) -> dict[str, Any]:
    """What only hierarchical mode finds, or None in the paper's mode."""
    known = {
        "level": 0.9,
        "replicates": REPLICATES,
        "seed": 0,
        "run_sd": 0.0101,
        "noise_sd": 0.011,
        "problems": 300,
        "method": "bootstrap over seeds and problems",
        "acceptance": 0.8,
        "r_hat": [1.0, 1.0],
    }
    known["run_sd_source"] = "estimated from the seeds (7 degrees of freedom)"
    diagnostics = {
        "reduced_chi_square": 1.07,
        "autocorrelation": 0.18,
        "degrees_of_freedom": 211,
        "ties": [{"n": [8, 16], "C_low": 9e3, "C_high": 1.4e4}],
    }
    over_n = {"spread": 0.092, "low": 0.071, "high": 0.113, "shared_value": 16, "cells": 5}
    over_B_p = {"spread": 0.019, "low": 0.004, "high": 0.03, "shared_value": 8, "cells": 2}
    sensitivity = {"C": float(C_MAX), "over_n": over_n, "over_B_p": over_B_p}
    overfits = (curves[0]["B_p"], curves[0]["n"]) == (8, 2)
    flag = {
        "B_p": 8,
        "n": 2,
        "seed": 1000,
        "C": 60e3,
    }
    return {
        "intervals": known if hierarchical else None,
        "draws": _draws(curves) if hierarchical else None,
        "sensitivity": sensitivity if len({c["B_p"] for c in curves}) > 1 else None,
        "diagnostics": diagnostics,
        "forecast": None,
        "referee": [],
        "overfitting": [flag | {"reason": "validation falls by .05"}] if overfits else [],
    }


def make_sweep(
    B_ps: tuple[int, ...] = (8, 16),
    ns: tuple[int, ...] = tuple(SHAPES),
    seeds: int = 2,
    mode: str = "hierarchical",
    metric: str = METRIC,
) -> tuple[FitResult, list[RunRecord]]:
    """(fit, runs) of a sweep whose truth is SHAPES plus noise."""
    hierarchical = mode == "hierarchical"
    curves = [_curve(B_p, n, hierarchical) for B_p in B_ps for n in ns]
    runs = _runs(curves, seeds, metric)
    finals = [
        {
            "B_p": run.cell.B_p,
            "n": run.cell.n,
            "seed": run.cell.seed,
            "points": len(run.points),
            "C_max": float(run.points[-1].rollouts),
            "final_reward": run.points[-1].metrics[metric],
        }
        for run in runs
    ]
    document = {
        "mode": mode,
        "metric": metric,
        "compute": "rollouts",
        "base_reward": BASE,
        "runs": finals,
        "curves": curves,
        "by_B_p": [
            _envelope([row for row in curves if row["B_p"] == b], hierarchical, b) for b in B_ps
        ],
        "by_B": _by_B(curves, hierarchical),
        "stability": [{"B_p": b, "stable": True, "reason": ""} for b in B_ps],
        "flags": [],
        "joint": _envelope(curves, hierarchical),
        **_joint(curves, hierarchical),
    }
    return FitResult.model_validate(document), runs


@pytest.fixture(name="make_sweep", scope="session")
def _make_sweep() -> Callable[..., tuple[FitResult, list[RunRecord]]]:
    return make_sweep


@pytest.fixture(name="made", scope="session")
def _made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FitResult]:
    """(folder, main fit) of a written report: three fits, one by a metric of hostile name; and a
    config."""
    folder = tmp_path_factory.mktemp("runs") / "demo"
    fit, runs = make_sweep()
    flag = FitFlag(code="never_leads", severity="warning", text=f"n = 32 never leads {BAD}")
    fit = fit.model_copy(update={"flags": (flag,)})
    folder.mkdir()
    (folder / "config.yaml").write_text(f"name: demo\nnote: {BAD}\n", encoding="utf-8")
    both = [_with_panel(_with_metric(run, EVIL, METRIC)) for run in runs]
    write_report(folder, [fit, make_sweep(mode="paper")[0], make_sweep(metric=EVIL)[0]], both)
    return folder, fit


@pytest.fixture(name="made_large", scope="session")
def _made_large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a paper-scale sweep's report: 6 B_p x 9 n, 3 seeds, 24 warnings and notes, 9
    broken runs."""
    folder = tmp_path_factory.mktemp("runs") / "large-sweep-of-a-paper"
    fit, runs = make_sweep(tuple(DELAYS), (*SHAPES, *LARGE_SHAPES), seeds=3)
    text = (
        "fitted up to C = 1.2e+04 alone, the curves predict the rest with a mean error of +0.015 "
        "of reward, and more"
    )
    flags = tuple(
        FitFlag(code="tie", severity=("warning", "info")[i % 2], text=f"{i}: {text}")
        for i in range(24)
    )
    broken = (
        HealthFlag(
            "collapse",
            61_440,
            "reward falls from 0.612 to 0.034 and stays there, entropy is 0.0021",
        ),
    )
    health = RunHealth(runs=tuple(FlaggedRun(8, 2, 1000 + i, 9, 250e3, broken) for i in range(9)))
    folder.mkdir()
    (folder / "config.yaml").write_text("name: large\n" * 60, encoding="utf-8")
    write_report(folder, [fit.model_copy(update={"flags": flags, "health": health})], runs)
    return folder


@pytest.fixture(name="browser", scope="session")
def _browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from start_browser(tmp_path_factory.mktemp("chromium"))


def _with_panel(run: RunRecord) -> RunRecord:
    """The run with 50 training problems evaluated too, as likely solved as its reward says, and
    with its entropy."""
    rng = np.random.default_rng(run.cell.n)
    points = [
        dataclasses.replace(
            p,
            samples=4,
            extra={"panel": tuple(rng.binomial(4, p.metrics[METRIC], 50).tolist())},
            train={**p.train, "entropy": 0.5 - 0.1 * i / len(run.points)} if i else {},
        )
        for i, p in enumerate(run.points)
    ]
    return dataclasses.replace(run, points=tuple(points))


def _with_metric(run: RunRecord, new: str, old: str) -> RunRecord:
    """The run with one more metric, equal to one it has."""
    points = [
        dataclasses.replace(p, metrics={**p.metrics, new: p.metrics[old]}) for p in run.points
    ]
    return dataclasses.replace(run, points=tuple(points))
