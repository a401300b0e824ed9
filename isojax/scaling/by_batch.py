"""B_p against n at a fixed batch B = B_p n (IsoCompute Playbook, arXiv:2603.12151, section 4.2, Figs. 9, 18, 19): n*(M), B_p* = B / n*.

The paper fits a sigmoid in M on Easy and finds no monotone law on Hard. Here the law may fall, and whether any monotone n*(M) can hold is
tested in units of reward: in each replicate the best monotone path through the measured n (either way, by dynamic programming) is
compared with the best path of all. If in 90% of replicates monotony costs more than MONOTONE_COST of reward on average over log M, it is
rejected, and the law is the sequence of n that lead. Only budgets count that all cells reached: a cell that ended early proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from isojax.scaling.curves import Curve
from isojax.scaling.draws import Draws, best, crossover_interval, interval
from isojax.scaling.frontier import frontier
from isojax.scaling.law import choose_law, fit_law
from isojax.scaling.metrics import FloatArray
from isojax.scaling.parts import commonest, law_json

POINTS = 40
MONOTONE_COST = 0.001
CONFIDENCE = 0.9


def by_B(curves: Sequence[Curve], draws: Draws | None, no_effect: bool | None) -> list[dict[str, Any]]:
    """One entry for each batch B with at least two cells, by rising B. no_effect: whether n makes no difference; None in mode "paper",
    which cannot say and fits its sigmoid."""
    groups: dict[int, list[Curve]] = {}
    for c in curves:
        groups.setdefault(c.B_p * c.n, []).append(c)
    return [_entry(B, group, draws, no_effect) for B, group in sorted(groups.items()) if len(group) > 1]


def _entry(B: int, curves: Sequence[Curve], draws: Draws | None, no_effect: bool | None) -> dict[str, Any]:
    found = frontier(curves)
    own = None if draws is None else draws.of([c.key for c in curves])
    keep = np.unique(np.linspace(0, len(found.points) - 1, 4 * POINTS).round().astype(int))
    points = [found.points[i] for i in keep]
    C = np.array([p.C for p in points])
    spans = [(None, None)] * len(C) if own is None else [interval(column) for column in best(own, C)[0].T]
    rows = [
        {"M": p.C / B, "C": p.C, "reward": p.reward, "n": p.n, "B_p": p.B_p, "low": low, "high": high}
        for p, (low, high) in zip(points, spans, strict=True)
    ]
    crossings = []
    for c in (c for c in found.crossovers if c.crossing and not no_effect):
        low = high = None
        if own is not None:
            low, high = crossover_interval(own, (B // c.n_low, c.n_low), (B // c.n_high, c.n_high), c.C)
        crossings.append({"n_low": c.n_low, "n_high": c.n_high, "M": c.C / B, "C": c.C, "low": low, "high": high})
    return {"B": B, "frontier": rows, "crossovers": crossings, "n_star_M": _law(C / B, [p.n for p in points], own, no_effect, curves)}


def _law(M: FloatArray, n: Sequence[int], draws: Draws | None, no_effect: bool | None, curves: Sequence[Curve]) -> dict[str, Any]:
    """n*(M): the form AICc prefers, falling ones too; "non-monotone" where every monotone one is rejected."""
    n_largest, ns = max(c.n for c in curves), np.log2(n)
    at = np.unique(np.linspace(0, len(M) - 1, POINTS).round().astype(int))
    untested = {"x": "log10 M", "monotone_rejected": False, "monotone_cost": None}
    if no_effect:
        return law_json(commonest(n), no_effect=True) | untested
    if no_effect is None:
        return law_json(fit_law(M, n, n_largest)) | untested
    choice = choose_law(M[at], ns[at], n_largest, observations=min(len(at), 20), falling=True)
    if draws is None:
        return law_json(choice.law, choice) | untested
    B = curves[0].B_p * curves[0].n
    cost = monotone_cost(draws, M[at] * B)
    rejected = float(np.mean(cost > MONOTONE_COST)) >= CONFIDENCE
    content = law_json(choice.law, choice)
    if rejected:
        content["form"] = "non-monotone"
    return content | {"x": "log10 M", "monotone_rejected": rejected, "monotone_cost": float(np.median(cost))}


def monotone_cost(draws: Draws, C: FloatArray) -> FloatArray:
    """float[Q]: the mean reward, over those C that all cells reached, that the best monotone n(C), rising or falling, loses against the
    best n at each C."""
    shared = draws.measured(C).all(0)
    if not shared.any():
        return np.zeros(len(draws.R0))
    R = draws.rewards(C[shared])[:, np.argsort([n for _, n in draws.keys])]
    rising = np.maximum(_best_path(R), _best_path(R[:, ::-1]))
    return (R.max(1).sum(1) - rising) / R.shape[2]


def _best_path(R: FloatArray) -> FloatArray:
    """float[Q]: the largest sum over G of R[q, j(g), g] (float[Q, J, G]) with j never falling."""
    value = R[:, :, 0]
    for g in range(1, R.shape[2]):
        value = np.maximum.accumulate(value, axis=1) + R[:, :, g]
    return value.max(1)
