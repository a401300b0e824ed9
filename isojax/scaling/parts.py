"""The frontier, its crossovers, segments and law of some cells, as the JSON of fit.json, with intervals where there are replicates.

The joint fit and each B_p alone are such parts. In debiased mode the law is chosen among forms.FORMS for the replicates' mean log2 n* at
LAW_POINTS budgets, weighted by their variance and that of a grid of n that steps by factors (a uniform error of one step).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from isojax.scaling import flags as words
from isojax.scaling.curves import Curve
from isojax.scaling.draws import Draws, crossover_interval, frontier_band, interval, log2_n
from isojax.scaling.frontier import Frontier, frontier
from isojax.scaling.law import Choice, Law, choose_law, fit_law
from isojax.scaling.metrics import FloatArray
from isojax.scaling.segments import Cells, Segment, segments

LAW_POINTS = 24
BAND_POINTS = 40


def part(
    curves: Sequence[Curve], cells: Cells, metric: str, draws: Draws | None, debiased: bool, no_effect: bool | None, where: str = ""
) -> tuple[dict[str, Any], list[str]]:
    """The frontier and law of some curves as JSON, and their flags.

    Args:
        cells: the runs of each (B_p, n). draws: replicates of these curves; None: no intervals.
        debiased: choose the law's form by AICc (else the paper's sigmoid through a running average).
        no_effect: whether n makes no difference (the law is then constant, and curves that differ by nothing cross nowhere).
        where: opens each flag.
    """
    found: Frontier = frontier(curves)
    evidence = segments(found, cells, metric)
    measured = {n for _, n in cells}
    own = None if draws is None else draws.of([c.key for c in curves])
    law, content = _law(found, own, max(measured), debiased, bool(no_effect), _targets(cells))
    made = {
        "frontier": _frontier_json(found, own),
        "crossovers": [] if no_effect else _crossovers_json(found, own, debiased),
        "segments": [_segment_json(s, i, found) for i, s in enumerate(evidence)],
        "n_star": content,
    }
    return made, words.frontier_flags(found, evidence, law, measured, bool(no_effect), where)


def _targets(cells: Cells) -> int:
    """Different values of C at which cells were evaluated (targets of the shared grid)."""
    return len({p.target for seeds in cells.values() for t in seeds for p in t.run.points if p.rollouts > 0})


def _frontier_json(found: Frontier, draws: Draws | None) -> list[dict[str, Any]]:
    nothing: dict[str, Any] = {"low": None, "high": None, "n_probability": None}
    band = [nothing] * len(found.points) if draws is None else frontier_band(draws, [p.C for p in found.points])
    return [{**asdict(p), **b} for p, b in zip(found.points, band, strict=True)]


def _crossovers_json(found: Frontier, draws: Draws | None, debiased: bool) -> list[dict[str, Any]]:
    """Changes of n; in debiased mode only those where two measured curves cross, not those where one's data end."""
    rows, changes = [], {s.C_low: (a, s) for a, s in zip(found.stretches, found.stretches[1:], strict=False)}
    for c in found.crossovers:
        if debiased and not c.crossing:
            continue
        before, after = changes[c.C]
        low = high = None
        if draws is not None:
            low, high = crossover_interval(draws, (before.B_p, before.n), (after.B_p, after.n), c.C)
        rows.append({"n_low": c.n_low, "n_high": c.n_high, "C": c.C, "low": low, "high": high})
    return rows


def _segment_json(s: Segment, i: int, found: Frontier) -> dict[str, Any]:
    """The i-th segment; censored where it begins or ends with the data, its own or its neighbour's, not by a crossing."""
    changes = found.crossovers
    censored = {"low": i == 0 or not changes[i - 1].crossing, "high": i == len(changes) or not changes[i].crossing}
    return {**asdict(s), "neighbours": [{"n": n, "B_p": B_p} for n, B_p in s.neighbours], "censored": censored}


def law_json(law: Law, choice: Choice | None = None, no_effect: bool = False) -> dict[str, Any]:
    """A law as fit.json holds it."""
    core = {"form": law.form, "L": law.L, "k": law.k, "log10_C0": law.log10_C0, "b": law.b}
    return {**core, "aicc": None if choice is None else choice.aicc, "intervals": None, "no_effect": no_effect, "band": None}


def commonest(n: ArrayLike) -> Law:
    """Where n makes no difference: constant at the n that the frontier has most often, int[points]."""
    values, counts = np.unique(n, return_counts=True)
    return Law("constant", 0.0, 0.0, None, float(np.log2(values[counts.argmax()])))


def _law(found: Frontier, draws: Draws | None, n_largest: int, debiased: bool, no_effect: bool, targets: int) -> tuple[Law, dict[str, Any]]:
    C, n = np.array([p.C for p in found.points]), np.array([p.n for p in found.points])
    if not debiased:
        law = fit_law(C, n, n_largest)
        return law, law_json(law)
    if no_effect:
        law = commonest(n)
        return law, law_json(law, no_effect=True) | {"band": _band(draws, C)}
    at = np.unique(np.linspace(0, len(C) - 1, LAW_POINTS).round().astype(int))
    step = _grid_step(n)
    if draws is None:
        choice = choose_law(C[at], np.log2(n[at]), n_largest, observations=min(targets, len(at)))
        return choice.law, law_json(choice.law, choice)
    replicas = log2_n(draws, C[at])
    variance = replicas.var(0) + step**2 / 12
    choice = choose_law(C[at], replicas.mean(0), n_largest, variance, observations=min(targets, len(at)))
    return choice.law, law_json(choice.law, choice) | {"band": _band(draws, C), "intervals": _intervals(replicas)}


def _grid_step(n: FloatArray) -> float:
    """The typical step of the frontier's n, in log2."""
    values = np.unique(n)
    return float(np.median(np.diff(np.log2(values)))) if len(values) > 1 else 1.0


def _band(draws: Draws | None, C: FloatArray) -> list[dict[str, Any]] | None:
    """90% of the replicates' n* at some budgets."""
    if draws is None:
        return None
    at = C[np.unique(np.linspace(0, len(C) - 1, BAND_POINTS).round().astype(int))]
    spans = [interval(column) for column in log2_n(draws, at).T]
    return [{"C": float(c), "low": 2 ** (low or 0.0), "high": 2 ** (high or 0.0)} for c, (low, high) in zip(at, spans, strict=True)]


def _intervals(replicas: FloatArray) -> dict[str, Any]:
    """90% intervals of n* at the ends and the middle of the measured range. The law's own parameters trade off against one another: an
    interval for each would say less."""
    at = {"n_at_low_C": 0, "n_at_middle_C": replicas.shape[1] // 2, "n_at_high_C": -1}
    return {name: [2 ** (v or 0.0) for v in interval(replicas[:, i])] for name, i in at.items()}
