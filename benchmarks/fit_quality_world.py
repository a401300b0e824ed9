"""One world of fit_quality.py: fit it, fit it without the last 4x of compute, and compare what is
said with what is true.

Three baselines answer the same questions as the mode under test:

    paper          mode "paper": its frontier; beyond the data n by its law n*(C), the reward by that n's curve
    middle         always the middle n measured, its reward as last measured
    best_measured  the n whose mean over seeds is highest at the evaluation nearest below C; beyond the data at its last
    evaluation

In range, the true best n is the best among the cells measured at C; beyond it, among all cells of
the world.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))  # the worlds are in tests/scaling

from isojax.core.errors import InputError
from isojax.core.nouns import RunRecord
from isojax.scaling.allocate.recommend import recommend
from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.sweep_estimate import FitOptions
from isojax.scaling.fit import fit_all_runs
from isojax.scaling.law.n_star_law import log2_n_star
from isojax.scaling.result import FitResult
from isojax.scaling.tracks import FloatArray
from tests.scaling.synthetic import World, random_world

METRIC = "avg@4"
BUDGETS, HIDDEN = 25, 8
HOLD_OUT = 4.0


@dataclass(frozen=True)
class Answer:
    """n int[budgets] and reward float[budgets] at given budgets."""

    n: NDArray[np.int64]
    reward: FloatArray


@dataclass(frozen=True)
class Sums:
    """Intervals pooled over cases: how many, how many hold the truth, how many are closed, and the
    closed ones' widths in all.
    """

    cases: int = 0
    hits: int = 0
    closed: int = 0
    width: float = 0.0

    def with_case(self, true: float, low: float | None, high: float | None) -> Sums:
        """One case more; an end of None is open."""
        a, b = -math.inf if low is None else low, math.inf if high is None else high
        closed = math.isfinite(a) and math.isfinite(b)
        return Sums(
            self.cases + 1,
            self.hits + (a <= true <= b),
            self.closed + closed,
            self.width + (b - a if closed else 0.0),
        )


def cells_by_n(w: World) -> dict[int, tuple[int, int]]:
    """n -> (B_p, n), n rising. The worlds judged here have one B_p for each n."""
    return {n: (B_p, n) for B_p, n in sorted(w.truth, key=lambda key: key[1])}


def measured_range(w: World) -> tuple[float, float]:
    """From the first to the last evaluation of any cell."""
    return min(low for low, _ in w.measured.values()), max(high for _, high in w.measured.values())


def true_best(w: World, C: FloatArray, in_range: bool = True) -> Answer:
    """The best n and its reward at budgets C, over the cells measured there (or over all)."""
    cells, measured = cells_by_n(w), w.measured
    table = np.stack([w.reward(*key, C) for key in cells.values()])
    if in_range:
        inside = [
            (measured[key][0] <= C * (1 + 1e-9)) & (measured[key][1] * (1 + 1e-9) >= C)
            for key in cells.values()
        ]
        table = np.where(np.stack(inside), table, -np.inf)
    return Answer(np.array(list(cells))[table.argmax(0)], table.max(0))


def frontier_answer(document: FitResult, C: FloatArray) -> Answer:
    """The fitted frontier: n of the nearest point, reward interpolated over log C."""
    points = document.joint.frontier
    x, at = np.log([p.C for p in points]), np.log(C)
    nearest = np.abs(x[:, None] - at).argmin(0)
    return Answer(
        np.array([p.n for p in points])[nearest], np.interp(at, x, [p.reward for p in points])
    )


def law_n(document: FitResult, C: FloatArray, measured: Sequence[int]) -> NDArray[np.int64]:
    """The law's n*(C), the nearest of the measured n in doublings."""
    level = log2_n_star(document.joint.n_star.law, C)
    return np.array(measured)[np.abs(np.log2(measured)[:, None] - level).argmin(0)]


def raw_means(runs: Sequence[RunRecord]) -> dict[int, tuple[FloatArray, FloatArray]]:
    """n -> (C > 0, mean over seeds of the metric). All seeds of a cell are evaluated at the same
    C."""
    result = {}
    for n in sorted({r.cell.n for r in runs}):
        seeds = [
            [(p.rollouts, p.metrics[METRIC]) for p in r.points if p.rollouts]
            for r in runs
            if r.cell.n == n
        ]
        mean = np.array(seeds, dtype=np.float64).mean(0)
        result[n] = (mean[:, 0], mean[:, 1])
    return result


def measured_answers(runs: Sequence[RunRecord], C: FloatArray) -> dict[str, Answer]:
    """The two baselines that fit nothing. A cell without an evaluation up to C gives its first."""
    means = raw_means(runs)
    n = np.array(list(means))
    values = np.stack(
        [R[np.maximum(np.searchsorted(c, C * (1 + 1e-9)) - 1, 0)] for c, R in means.values()]
    )  # [n, budgets]
    ended = np.stack(
        [(c[-1] * (1 + 1e-9) < C) | (c[0] > C * (1 + 1e-9)) for c, _ in means.values()]
    )
    i = np.where(ended, -np.inf, values).argmax(0)
    middle = len(n) // 2
    return {
        "middle": Answer(np.full(len(C), n[middle]), values[middle]),
        "best_measured": Answer(n[i], values[i, np.arange(len(C))]),
    }


def last_measured(runs: Sequence[RunRecord], budgets: int) -> dict[str, Answer]:
    """What the same two say at every budget beyond the data: the last evaluation of each n."""
    last = {n: float(R[-1]) for n, (_, R) in raw_means(runs).items()}
    selected = {
        "middle": list(last)[len(last) // 2],
        "best_measured": max(last, key=lambda n: last[n]),
    }
    return {
        name: Answer(np.full(budgets, n), np.full(budgets, last[n])) for name, n in selected.items()
    }


def _steps(a: Any, b: Any) -> NDArray[np.bool_]:
    """Whether two n are within a factor of two of each other."""
    return np.abs(np.log2(a) - np.log2(b)) <= 1 + 1e-9


def in_range(w: World, answers: Mapping[str, Answer], C: FloatArray) -> dict[str, dict[str, float]]:
    """For each method, at budgets C: the share of n within one step, and the mean error of the
    frontier's reward."""
    true = true_best(w, C)
    specific = np.array(
        [
            float(w.on_problems(*cells_by_n(w)[n], c))
            for n, c in zip(true.n.tolist(), C, strict=True)
        ]
    )
    return {
        name: {
            "n_right": float(_steps(a.n, true.n).mean()),
            "bias": float((a.reward - true.reward).mean()),
            "bias_on_problems": float((a.reward - specific).mean()),
        }
        for name, a in answers.items()
    }


def cut(runs: Sequence[RunRecord], C: float) -> list[RunRecord]:
    """The runs up to compute C; one without an evaluation at C > 0 there is left out."""
    short = [replace(r, points=tuple(p for p in r.points if p.rollouts <= C)) for r in runs]
    return [r for r in short if r.points and r.points[-1].rollouts > 0]


def extrapolated(document: FitResult, C: FloatArray) -> Answer:
    """The paper's way beyond the data: n of the law, reward of that n's curve (of the nearest n
    that has one)."""
    curves = {c.n: c for c in document.curves}
    n = law_n(document, C, sorted({r.n for r in document.runs}))
    nearest = [
        curves[min(curves, key=lambda m: abs(math.log2(m / specific)))] for specific in n.tolist()
    ]
    return Answer(
        n,
        np.array(
            [
                curve_value(x, c.R0, c.A, c.exponent, c.C_mid)
                for x, c in zip(C, nearest, strict=True)
            ]
        ),
    )


def held_out(w: World, answers: Mapping[str, Answer], C: FloatArray) -> dict[str, dict[str, float]]:
    """For each method over the hidden budgets C: the mean absolute error of the reward it promises
    against that of the truly best cell on the world's problems, the share of n within one step, the
    mean regret; and the same at the last of them, 4 times the compute seen."""
    cells, true = cells_by_n(w), true_best(w, C, in_range=False)
    reached = np.array(
        [float(w.on_problems(*cells[n], c)) for n, c in zip(true.n.tolist(), C, strict=True)]
    )
    result = {}
    for name, a in answers.items():
        got = np.array(
            [float(w.reward(*cells[n], c)) for n, c in zip(a.n.tolist(), C, strict=True)]
        )
        rows = {
            "error": np.abs(a.reward - reached),
            "within": _steps(a.n, true.n),
            "regret": np.maximum(0.0, true.reward - got),
        }
        result[name] = {k: float(v.mean()) for k, v in rows.items()} | {
            f"{k}_at_end": float(v[-1]) for k, v in rows.items()
        }
    return result


def frontier_coverage(w: World, document: FitResult, C: FloatArray) -> Sums:
    """The frontier's interval against the true best reward."""
    points, sums = document.joint.frontier, Sums()
    if points[0].low is None:
        return sums
    x, true = np.log([p.C for p in points]), true_best(w, C).reward
    low, high = (
        np.interp(np.log(C), x, ends)
        for ends in np.array([(p.low, p.high) for p in points], dtype=np.float64).T
    )
    for case in zip(true.tolist(), low.tolist(), high.tolist(), strict=True):
        sums = sums.with_case(*case)
    return sums


def true_crossing(w: World, a: int, b: int) -> float | None:
    """log10 of the compute at which the true curves of two n cross, if they cross exactly once in
    the world's range."""
    cells = cells_by_n(w)
    low, high = measured_range(w)
    x = np.linspace(math.log10(low), math.log10(high), 2001)
    lead = w.reward(*cells[a], 10**x) - w.reward(*cells[b], 10**x)
    at = np.flatnonzero(lead[:-1] * lead[1:] < 0)
    if len(at) != 1:
        return None
    i = at[0]
    return float(x[i] + (x[i + 1] - x[i]) * lead[i] / (lead[i] - lead[i + 1]))


def crossover_coverage(w: World, document: FitResult) -> Sums:
    """Intervals of crossovers, in log10 C."""
    sums = Sums()
    for c in document.joint.crossovers if document.intervals is not None else ():
        true = true_crossing(w, c.n_low, c.n_high)
        if true is not None:
            low, high = (None if end is None else math.log10(end) for end in (c.low, c.high))
            sums = sums.with_case(true, low, high)
    return sums


def plateau_coverage(w: World, document: FitResult, determined_only: bool) -> Sums:
    """Intervals of the curves' A."""
    sums = Sums()
    for c in document.curves if document.intervals is not None else ():
        if c.A_interval is not None and (c.determined or not determined_only):
            sums = sums.with_case(w.truth[c.B_p, c.n].A, *c.A_interval)
    return sums


def fitted(runs: Sequence[RunRecord], mode: str, replicates: int) -> tuple[FitResult, float]:
    """(fit.json's content, seconds)."""
    started = time.perf_counter()
    document = fit_all_runs(runs, METRIC, options=FitOptions(mode=mode, replicates=replicates))
    return document, time.perf_counter() - started


def judge(kind: str, seed: int, mode: str, replicates: int) -> dict[str, Any]:
    """All figures of one world, as one JSON object; where a fit refuses the world, `failed` says
    why.

    Args:
        kind, seed: of `random_world`. mode: the one to judge. replicates: of its bootstrap.
    """
    w = random_world(kind, seed)
    line: dict[str, Any] = {
        "kind": kind,
        "seed": seed,
        "mode": mode,
        "replicates": replicates,
        "failed": None,
    }
    try:
        return line | _figures(w, mode, replicates)
    except InputError as e:
        return line | {"failed": str(e)}


def _figures(w: World, mode: str, replicates: int) -> dict[str, Any]:
    C, C_max = np.geomspace(*measured_range(w), BUDGETS), measured_range(w)[1]
    shorter = cut(w.runs, C_max / HOLD_OUT)
    modes = list(dict.fromkeys([mode, "paper"]))
    fits = {m: fitted(w.runs, m, replicates) for m in modes}
    short_fits = {m: fitted(shorter, m, replicates) for m in modes}
    document = fits[mode][0]
    answers = {m: frontier_answer(d, C) for m, (d, _) in fits.items()} | measured_answers(w.runs, C)
    result = in_range(w, answers, C)
    for m, (d, seconds) in fits.items():
        law = law_n(d, C, list(cells_by_n(w)))
        result[m] |= {"law_right": float(_steps(law, true_best(w, C).n).mean()), "seconds": seconds}
    hidden = np.geomspace(C_max / HOLD_OUT, C_max, HIDDEN + 1)[1:]
    selected = [
        recommend(short_fits[mode][0], C, extrapolate=True, with_details=False)
        for C in hidden.tolist()
    ]
    promises = {
        mode: Answer(
            np.array([r.allocation.n for r in selected]),
            np.array([r.expected_reward for r in selected]),
        )
    }
    if mode != "paper":
        promises["paper"] = extrapolated(short_fits["paper"][0], hidden)
    promises |= last_measured(shorter, HIDDEN)
    ahead = Sums()
    for r, C_hidden in zip(selected, hidden.tolist(), strict=True):
        if r.interval is not None:
            true_reward = float(w.reward(r.allocation.B_p, r.allocation.n, C_hidden))
            ahead = ahead.with_case(true_reward, *r.interval)
    coverage = {
        "frontier": frontier_coverage(w, document, C),
        "crossovers": crossover_coverage(w, document),
        "A_determined": plateau_coverage(w, document, True),
        "A_all": plateau_coverage(w, document, False),
        "hold_out": ahead,
    }
    return {
        "cells": len(w.truth),
        "runs": len(w.runs),
        "in_range": result,
        "hold_out": held_out(w, promises, hidden),
        "coverage": {name: vars(sums) for name, sums in coverage.items()},
        "constant": document.joint.n_star.law.form == "constant",
        "no_effect": document.joint.n_star.no_effect,
        "monotone_rejected": any(batch.n_star.monotone_rejected for batch in document.by_B)
        if document.by_B
        else None,
    }
