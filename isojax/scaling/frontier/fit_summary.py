"""The frontier, its crossovers, segments and law of some cells, as the JSON of fit.json, with intervals where there are
replicates.

The joint fit and each B_p alone are such parts. In hierarchical mode the law is chosen among forms.FORMS for the
replicates' mean log2 n* at LAW_POINTS budgets, weighted by their variance and that of a grid of n that steps by factors
(a uniform error of one step).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from isojax.scaling.checks import fit_flags as fit_flags
from isojax.scaling.curves.fitted_curve import FittedCurve
from isojax.scaling.curves.posterior_samples import PosteriorSamples, crossover_interval, frontier_band, log2_best_n
from isojax.scaling.frontier.envelope import Frontier, compute_frontier
from isojax.scaling.frontier.frontier_evidence import FrontierSegment, TracksByCell, segment_evidence
from isojax.scaling.intervals import central_interval
from isojax.scaling.law.n_star_law import Law, LawChoice, choose_law, fit_law
from isojax.scaling.validation_metrics import FloatArray

MAX_LAW_POINTS = 24
BAND_POINTS = 40


def frontier_summary(
    curves: Sequence[FittedCurve],
    cells: TracksByCell,
    metric: str,
    draws: PosteriorSamples | None,
    hierarchical: bool,
    no_effect: bool | None,
    flag_prefix: str = "",
) -> tuple[dict[str, Any], list[str]]:
    """The frontier and law of some curves as JSON, and their flags.

    Args:
        cells: the runs of each (B_p, n). draws: replicates of these curves; None: no intervals.
        hierarchical: choose the law's form by AICc (else the paper's sigmoid through a running average).
        no_effect: whether n makes no difference (the law is then constant, and curves that differ by nothing cross
        nowhere).
        where: opens each flag.
    """
    fitted_frontier: Frontier = compute_frontier(curves)
    evidence = segment_evidence(fitted_frontier, cells, metric)
    measured_n = {n for _, n in cells}
    cell_draws = None if draws is None else draws.for_cells([c.key for c in curves])
    law, n_star_json = _fit_n_star(
        fitted_frontier, cell_draws, max(measured_n), hierarchical, bool(no_effect), _count_targets(cells)
    )
    summary = {
        "frontier": _frontier_json(fitted_frontier, cell_draws),
        "crossovers": [] if no_effect else _crossovers_json(fitted_frontier, cell_draws, hierarchical),
        "segments": [_segment_json(s, i, fitted_frontier) for i, s in enumerate(evidence)],
        "n_star": n_star_json,
    }
    return summary, fit_flags.frontier_flags(fitted_frontier, evidence, law, measured_n, bool(no_effect), flag_prefix)


def _count_targets(cells: TracksByCell) -> int:
    """Different values of C at which cells were evaluated (targets of the shared grid)."""
    return len({p.target for seeds in cells.values() for t in seeds for p in t.run.points if p.rollouts > 0})


def _frontier_json(frontier: Frontier, draws: PosteriorSamples | None) -> list[dict[str, Any]]:
    no_interval: dict[str, Any] = {"low": None, "high": None, "n_probability": None}
    band = (
        [no_interval] * len(frontier.points) if draws is None else frontier_band(draws, [p.C for p in frontier.points])
    )
    return [{**asdict(p), **b} for p, b in zip(frontier.points, band, strict=True)]


def _crossovers_json(frontier: Frontier, draws: PosteriorSamples | None, hierarchical: bool) -> list[dict[str, Any]]:
    """Changes of n; in hierarchical mode only those where two measured curves cross, not those where one's data end."""
    rows, stretches_by_C = (
        [],
        {s.C_low: (a, s) for a, s in zip(frontier.stretches, frontier.stretches[1:], strict=False)},
    )
    for c in frontier.crossovers:
        if hierarchical and not c.crossing:
            continue
        before, after = stretches_by_C[c.C]
        low = high = None
        if draws is not None:
            low, high = crossover_interval(draws, (before.B_p, before.n), (after.B_p, after.n), c.C)
        rows.append({"n_low": c.n_low, "n_high": c.n_high, "C": c.C, "low": low, "high": high})
    return rows


def _segment_json(segment: FrontierSegment, index: int, frontier: Frontier) -> dict[str, Any]:
    """The i-th segment; censored where it begins or ends with the data, its own or its neighbour's, not by a
    crossing.
    """
    crossovers = frontier.crossovers
    censored = {
        "low": index == 0 or not crossovers[index - 1].crossing,
        "high": index == len(crossovers) or not crossovers[index].crossing,
    }
    return {
        **asdict(segment),
        "neighbours": [{"n": n, "B_p": B_p} for n, B_p in segment.neighbours],
        "censored": censored,
    }


def law_json(law: Law, choice: LawChoice | None = None, no_effect: bool = False) -> dict[str, Any]:
    """A law as fit.json holds it."""
    parameters = {"form": law.form, "L": law.L, "k": law.k, "log10_C0": law.log10_C0, "b": law.b}
    return {
        **parameters,
        "aicc": None if choice is None else choice.aicc,
        "intervals": None,
        "no_effect": no_effect,
        "band": None,
    }


def most_common_n_law(n: ArrayLike) -> Law:
    """Where n makes no difference: constant at the n that the frontier has most often, int[points]."""
    values, counts = np.unique(n, return_counts=True)
    return Law("constant", 0.0, 0.0, None, float(np.log2(values[counts.argmax()])))


def _fit_n_star(
    frontier: Frontier,
    draws: PosteriorSamples | None,
    n_largest: int,
    hierarchical: bool,
    no_effect: bool,
    target_count: int,
) -> tuple[Law, dict[str, Any]]:
    C, n = np.array([p.C for p in frontier.points]), np.array([p.n for p in frontier.points])
    if not hierarchical:
        law = fit_law(C, n, n_largest)
        return law, law_json(law)
    if no_effect:
        law = most_common_n_law(n)
        return law, law_json(law, no_effect=True) | {"band": _n_star_band(draws, C)}
    law_indices = np.unique(np.linspace(0, len(C) - 1, MAX_LAW_POINTS).round().astype(int))
    grid_step = _grid_step(n)
    if draws is None:
        choice = choose_law(
            C[law_indices], np.log2(n[law_indices]), n_largest, observations=min(target_count, len(law_indices))
        )
        return choice.law, law_json(choice.law, choice)
    log2_n_replicates = log2_best_n(draws, C[law_indices])
    variance = log2_n_replicates.var(0) + grid_step**2 / 12
    choice = choose_law(
        C[law_indices], log2_n_replicates.mean(0), n_largest, variance, observations=min(target_count, len(law_indices))
    )
    return choice.law, law_json(choice.law, choice) | {
        "band": _n_star_band(draws, C),
        "intervals": _n_star_intervals(log2_n_replicates),
    }


def _grid_step(n: FloatArray) -> float:
    """The typical step of the frontier's n, in log2."""
    values = np.unique(n)
    return float(np.median(np.diff(np.log2(values)))) if len(values) > 1 else 1.0


def _n_star_band(draws: PosteriorSamples | None, C: FloatArray) -> list[dict[str, Any]] | None:
    """90% of the replicates' n* at some budgets."""
    if draws is None:
        return None
    C_band = C[np.unique(np.linspace(0, len(C) - 1, BAND_POINTS).round().astype(int))]
    intervals = [central_interval(column) for column in log2_best_n(draws, C_band).T]
    return [
        {"C": float(c), "low": 2 ** (low or 0.0), "high": 2 ** (high or 0.0)}
        for c, (low, high) in zip(C_band, intervals, strict=True)
    ]


def _n_star_intervals(log2_n_replicates: FloatArray) -> dict[str, Any]:
    """90% intervals of n* at the ends and the middle of the measured range. The law's own parameters trade off against
    one another: an interval for each would say less."""
    column_by_name = {"n_at_low_C": 0, "n_at_middle_C": log2_n_replicates.shape[1] // 2, "n_at_high_C": -1}
    return {
        name: [2 ** (v or 0.0) for v in central_interval(log2_n_replicates[:, i])] for name, i in column_by_name.items()
    }
