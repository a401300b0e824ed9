"""One world of fit_quality.py: fit it, fit it without the last 4x of compute, and compare what is
said with what is true.

Three baselines answer the same questions as the mode under test:

    paper          mode "paper": its frontier; beyond the data n by its law n*(C), and the reward by
                   the curve of that n
    middle         always the middle n measured, its reward as last measured
    best_measured  the n whose mean over seeds is highest at the evaluation nearest below C; beyond
                   the data at its last evaluation

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
        low = -math.inf if low is None else low
        high = math.inf if high is None else high
        is_closed = math.isfinite(low) and math.isfinite(high)
        return Sums(
            cases=self.cases + 1,
            hits=self.hits + (low <= true <= high),
            closed=self.closed + is_closed,
            width=self.width + (high - low if is_closed else 0.0),
        )


def cells_by_n(w: World) -> dict[int, tuple[int, int]]:
    """n -> (B_p, n), n rising. The worlds judged here have one B_p for each n."""
    return {n: (B_p, n) for B_p, n in sorted(w.truth, key=lambda key: key[1])}


def measured_range(w: World) -> tuple[float, float]:
    """From the first to the last evaluation of any cell."""
    return min(low for low, _ in w.measured.values()), max(high for _, high in w.measured.values())


def true_best(w: World, C: FloatArray, in_range: bool = True) -> Answer:
    """The best n and its reward at budgets C, over the cells measured there (or over all)."""
    cells = cells_by_n(w)
    rewards = np.stack([w.reward(*key, C) for key in cells.values()])  # [n, budgets]
    if in_range:
        is_measured = []
        for key in cells.values():
            first, last = w.measured[key]
            is_measured.append((first <= C * (1 + 1e-9)) & (last * (1 + 1e-9) >= C))
        rewards = np.where(np.stack(is_measured), rewards, -np.inf)
    return Answer(np.array(list(cells))[rewards.argmax(0)], rewards.max(0))


def frontier_answer(document: FitResult, C: FloatArray) -> Answer:
    """The fitted frontier: n of the nearest point, reward interpolated over log C."""
    points = document.joint.frontier
    log_C_points = np.log([p.C for p in points])
    log_C = np.log(C)
    nearest = np.abs(log_C_points[:, None] - log_C).argmin(0)
    n = np.array([p.n for p in points])[nearest]
    return Answer(n, np.interp(log_C, log_C_points, [p.reward for p in points]))


def law_n(document: FitResult, C: FloatArray, measured: Sequence[int]) -> NDArray[np.int64]:
    """The law's n*(C), the nearest of the measured n in doublings."""
    level = log2_n_star(document.joint.n_star.law, C)
    return np.array(measured)[np.abs(np.log2(measured)[:, None] - level).argmin(0)]


def raw_means(runs: Sequence[RunRecord]) -> dict[int, tuple[FloatArray, FloatArray]]:
    """n -> (C > 0, mean over seeds of the metric). All seeds of a cell are evaluated at the same
    C."""
    result = {}
    for n in sorted({run.cell.n for run in runs}):
        curves_of_seeds = []
        for run in runs:
            if run.cell.n == n:
                trained = [point for point in run.points if point.rollouts]
                curves_of_seeds.append([(p.rollouts, p.metrics[METRIC]) for p in trained])
        mean = np.array(curves_of_seeds, dtype=np.float64).mean(0)  # [evaluations, (C, reward)]
        result[n] = (mean[:, 0], mean[:, 1])
    return result


def measured_answers(runs: Sequence[RunRecord], C: FloatArray) -> dict[str, Answer]:
    """The two baselines that fit nothing. A cell without an evaluation up to C gives its first."""
    means = raw_means(runs)
    n = np.array(list(means))
    rewards, is_measured = [], []
    for C_measured, R in means.values():
        last_up_to_C = np.searchsorted(C_measured, C * (1 + 1e-9)) - 1
        rewards.append(R[np.maximum(last_up_to_C, 0)])
        begins_later = C_measured[0] > C * (1 + 1e-9)
        has_ended = C_measured[-1] * (1 + 1e-9) < C
        is_measured.append(~(begins_later | has_ended))
    reward = np.stack(rewards)  # [n, budgets]

    best = np.where(np.stack(is_measured), reward, -np.inf).argmax(0)
    middle = len(n) // 2
    return {
        "middle": Answer(np.full(len(C), n[middle]), reward[middle]),
        "best_measured": Answer(n[best], reward[best, np.arange(len(C))]),
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
    on_problems = rewards_on_problems(w, true.n, C)
    return {
        name: {
            "n_right": float(_steps(answer.n, true.n).mean()),
            "bias": float((answer.reward - true.reward).mean()),
            "bias_on_problems": float((answer.reward - on_problems).mean()),
        }
        for name, answer in answers.items()
    }


def rewards_on_problems(w: World, n: NDArray[np.int64], C: FloatArray) -> FloatArray:
    """The expected reward of each n at its budget on the world's own problems, float[budgets]."""
    cells = cells_by_n(w)
    return np.array(
        [float(w.on_problems(*cells[m], c)) for m, c in zip(n.tolist(), C, strict=True)]
    )


def cut(runs: Sequence[RunRecord], C: float) -> list[RunRecord]:
    """The runs up to compute C; one without an evaluation at C > 0 there is left out."""
    short = [replace(r, points=tuple(p for p in r.points if p.rollouts <= C)) for r in runs]
    return [r for r in short if r.points and r.points[-1].rollouts > 0]


def extrapolated(document: FitResult, C: FloatArray) -> Answer:
    """The paper's way beyond the data: n of the law, reward of that n's curve (of the nearest n
    that has one)."""
    curves = {curve.n: curve for curve in document.curves}
    n = law_n(document, C, sorted({run.n for run in document.runs}))

    rewards = []
    for n_of_law, budget in zip(n.tolist(), C, strict=True):
        distance = {m: abs(math.log2(m / n_of_law)) for m in curves}
        curve = curves[min(distance, key=lambda m: distance[m])]
        rewards.append(curve_value(budget, curve.R0, curve.A, curve.exponent, curve.C_mid))
    return Answer(n, np.array(rewards))


def held_out(w: World, answers: Mapping[str, Answer], C: FloatArray) -> dict[str, dict[str, float]]:
    """For each method over the hidden budgets C: the mean absolute error of the reward it promises
    against that of the truly best cell on the world's problems, the share of n within one step, the
    mean regret; and the same at the last of them, 4 times the compute seen."""
    cells = cells_by_n(w)
    true = true_best(w, C, in_range=False)
    best_on_problems = rewards_on_problems(w, true.n, C)

    result = {}
    for name, answer in answers.items():
        choices = zip(answer.n.tolist(), C, strict=True)
        reward_of_choice = np.array([float(w.reward(*cells[n], c)) for n, c in choices])
        by_budget = {
            "error": np.abs(answer.reward - best_on_problems),
            "within": _steps(answer.n, true.n),
            "regret": np.maximum(0.0, true.reward - reward_of_choice),
        }
        means = {figure: float(values.mean()) for figure, values in by_budget.items()}
        at_end = {f"{figure}_at_end": float(values[-1]) for figure, values in by_budget.items()}
        result[name] = means | at_end
    return result


def frontier_coverage(w: World, document: FitResult, C: FloatArray) -> Sums:
    """The frontier's interval against the true best reward."""
    points = document.joint.frontier
    sums = Sums()
    if points[0].low is None:  # a fit without draws has no intervals
        return sums

    log_C_points = np.log([p.C for p in points])
    ends = np.array([(p.low, p.high) for p in points], dtype=np.float64)
    low = np.interp(np.log(C), log_C_points, ends[:, 0])
    high = np.interp(np.log(C), log_C_points, ends[:, 1])
    true = true_best(w, C).reward
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
    sign_changes = np.flatnonzero(lead[:-1] * lead[1:] < 0)
    if len(sign_changes) != 1:
        return None

    i = sign_changes[0]  # between x[i] and x[i + 1], where the lead is taken as linear
    return float(x[i] + (x[i + 1] - x[i]) * lead[i] / (lead[i] - lead[i + 1]))


def crossover_coverage(w: World, document: FitResult) -> Sums:
    """Intervals of crossovers, in log10 C."""
    sums = Sums()
    if document.intervals is None:
        return sums
    for crossover in document.joint.crossovers:
        true = true_crossing(w, crossover.n_low, crossover.n_high)
        if true is None:
            continue
        low = None if crossover.low is None else math.log10(crossover.low)
        high = None if crossover.high is None else math.log10(crossover.high)
        sums = sums.with_case(true, low, high)
    return sums


def plateau_coverage(w: World, document: FitResult, determined_only: bool) -> Sums:
    """Intervals of the curves' A."""
    sums = Sums()
    if document.intervals is None:
        return sums
    for curve in document.curves:
        if curve.A_interval is not None and (curve.determined or not determined_only):
            low, high = curve.A_interval
            sums = sums.with_case(w.truth[curve.B_p, curve.n].A, low, high)
    return sums


@dataclass(frozen=True)
class TimedFit:
    """fit.json's content, and the seconds that it took."""

    document: FitResult
    seconds: float


def fitted(runs: Sequence[RunRecord], mode: str, replicates: int) -> TimedFit:
    started = time.perf_counter()
    document = fit_all_runs(runs, METRIC, options=FitOptions(mode=mode, replicates=replicates))
    return TimedFit(document, time.perf_counter() - started)


def judge(kind: str, seed: int, mode: str, replicates: int) -> dict[str, Any]:
    """All figures of one world, as one JSON object; where a fit refuses the world, `failed` says
    why.

    Args:
        kind: kind of world, as `random_world` has it.
        seed: of the world.
        mode: the mode to judge.
        replicates: draws of each fit.
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


def _in_range_figures(
    w: World, fits: Mapping[str, TimedFit], C: FloatArray
) -> dict[str, dict[str, float]]:
    """Of the fits by mode and of the two baselines that fit nothing, at budgets C."""
    answers = {mode: frontier_answer(fit.document, C) for mode, fit in fits.items()}
    figures = in_range(w, answers | measured_answers(w.runs, C), C)
    for mode, fit in fits.items():
        law = law_n(fit.document, C, list(cells_by_n(w)))
        figures[mode]["law_right"] = float(_steps(law, true_best(w, C).n).mean())
        figures[mode]["seconds"] = fit.seconds
    return figures


def _figures(w: World, mode: str, replicates: int) -> dict[str, Any]:
    first, C_max = measured_range(w)
    C = np.geomspace(first, C_max, BUDGETS)
    modes = list(dict.fromkeys([mode, "paper"]))
    fits = {m: fitted(w.runs, m, replicates) for m in modes}
    document = fits[mode].document

    # The last HOLD_OUT x of compute is hidden, and both modes are asked about it.
    shorter = cut(w.runs, C_max / HOLD_OUT)
    short_documents = {m: fitted(shorter, m, replicates).document for m in modes}
    hidden = np.geomspace(C_max / HOLD_OUT, C_max, HIDDEN + 1)[1:]
    recommendations = [
        recommend(short_documents[mode], budget, extrapolate=True, with_details=False)
        for budget in hidden.tolist()
    ]
    promises = {
        mode: Answer(
            np.array([r.allocation.n for r in recommendations]),
            np.array([r.expected_reward for r in recommendations]),
        )
    }
    if mode != "paper":
        promises["paper"] = extrapolated(short_documents["paper"], hidden)
    promises |= last_measured(shorter, HIDDEN)

    forecasts = Sums()
    for r, budget in zip(recommendations, hidden.tolist(), strict=True):
        if r.interval is not None:
            true_reward = float(w.reward(r.allocation.B_p, r.allocation.n, budget))
            forecasts = forecasts.with_case(true_reward, *r.interval)

    coverage = {
        "frontier": frontier_coverage(w, document, C),
        "crossovers": crossover_coverage(w, document),
        "A_determined": plateau_coverage(w, document, True),
        "A_all": plateau_coverage(w, document, False),
        "hold_out": forecasts,
    }
    monotone_rejected = None
    if document.by_B:
        monotone_rejected = any(batch.n_star.monotone_rejected for batch in document.by_B)
    return {
        "cells": len(w.truth),
        "runs": len(w.runs),
        "in_range": _in_range_figures(w, fits, C),
        "hold_out": held_out(w, promises, hidden),
        "coverage": {name: vars(sums) for name, sums in coverage.items()},
        "constant": document.joint.n_star.law.form == "constant",
        "no_effect": document.joint.n_star.no_effect,
        "monotone_rejected": monotone_rejected,
    }
