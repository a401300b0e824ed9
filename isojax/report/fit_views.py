"""A fit as numbers ready to draw: its frontiers, its curves' rewards and intervals, its runs'
evaluations."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from isojax.core.nouns import RunRecord
from isojax.report.wording import format_percent, n_shares
from isojax.scaling.allocate.curve_ensemble import CurveEnsemble
from isojax.scaling.intervals import central_band
from isojax.scaling.law.frontier import spread_indices
from isojax.scaling.result import FitResult, FrontierFit, ScheduleRow
from isojax.scaling.tracks import FloatArray, fixed_runs, group_by, make_track

CellKey = tuple[int, int]  # (B_p, n)
# a ribbon's thickness at P(best) = 1: ribbons of n and 2n do not touch
RIBBON_DOUBLINGS = 0.9
RIBBON_POINTS = 90


def frontier_views(fit: FitResult) -> list[FrontierFit]:
    """The joint frontier, and that of each B_p that was measured with several n; of one B_p alone
    its own."""
    if len(fit.by_B_p) < 2:
        return list(fit.by_B_p)
    all_B_p = [curve.B_p for curve in fit.curves]
    return [fit.joint, *(view for view in fit.by_B_p if all_B_p.count(view.B_p or 0) > 1)]


def B_p_of_view(fit: FitResult, view: FrontierFit) -> tuple[int, ...]:
    return tuple(sorted({curve.B_p for curve in fit.curves})) if view.B_p is None else (view.B_p,)


def schedules_of_view(fit: FitResult, view: FrontierFit) -> list[ScheduleRow]:
    """The runs whose B_p or n changed along C, which the last view shows, of all B_p; those with a
    point to draw."""
    return [
        row
        for row in fit.schedules
        if row.points and (view.B_p is None or len(frontier_views(fit)) == 1)
    ]


def all_n(fit: FitResult) -> list[int]:
    """Every n that was run, rising."""
    return sorted({run.n for run in fit.runs})


def interval_level(fit: FitResult) -> str:
    """The intervals' level, such as 90%; "" where the fit has none."""
    return "" if fit.intervals is None else format_percent(fit.intervals.level)


def measured_budget(fit: FitResult) -> float:
    """The smallest end of a run near the largest: runs stop at the first update that reaches the
    budget."""
    C_ends = [run.C_max for run in fit.runs]
    return min(C for C in C_ends if C >= 0.95 * max(C_ends))


def curve_band(
    ensemble: CurveEnsemble, i: int, C: FloatArray
) -> tuple[FloatArray, FloatArray] | None:
    """The interval (low, high) of cell i's curve at C > 0, float[points] each; None where the fit
    has no replicates."""
    return central_band(ensemble.sampled_rewards(C)[..., i].T) if ensemble.replicates else None


def fitted_runs(fit: FitResult, runs: Iterable[RunRecord]) -> list[RunRecord]:
    """The runs that a fit used: no run with a schedule, and none that it left out as broken."""
    fitted_cells = {(run.B_p, run.n, run.seed) for run in fit.runs}
    return [
        run for run in fixed_runs(runs) if (run.cell.B_p, run.cell.n, run.cell.seed) in fitted_cells
    ]


def run_evaluations(run: RunRecord, fit: FitResult) -> list[tuple[int, float, float]]:
    """(target, C, reward) of a run's evaluations after the base policy's, C in the fit's unit."""
    track = make_track(run, fit.metric, fit.compute)
    evaluations = zip(track.run.points, track.C, track.R, strict=True)
    return [(point.target, float(C), float(R)) for point, C, R in evaluations if C > 0]


def runs_by_cell(runs: Iterable[RunRecord]) -> dict[CellKey, list[RunRecord]]:
    """(B_p, n) -> its runs, one for each seed."""
    return group_by(runs, lambda run: (run.cell.B_p, run.cell.n))


def seed_means(seeds: Sequence[RunRecord], fit: FitResult) -> list[tuple[float, float, int]]:
    """(C, reward, runs) at each value of the shared grid of C: the means over a cell's runs, and
    how many there are."""
    evaluations = (evaluation for run in seeds for evaluation in run_evaluations(run, fit))
    by_target = sorted(group_by(evaluations, lambda evaluation: evaluation[0]).items())
    return [(*np.mean(rows, axis=0)[1:].tolist(), len(rows)) for _, rows in by_target]


def reward_range(fit: FitResult, runs: Sequence[RunRecord]) -> tuple[float, float]:
    rewards = [y for run in runs for _, _, y in run_evaluations(run, fit)] + [
        p.reward for p in fit.joint.frontier
    ]
    rewards += [point.reward for row in fit.schedules for point in row.points]
    rewards += [] if fit.base_reward is None else [fit.base_reward]
    return min(rewards), max(rewards)


def n_stretches(ns: Sequence[int]) -> list[tuple[int, int, int]]:
    """(n, first, last) of each stretch of one n; it starts at the last point of the stretch
    before."""
    stretches, start = [], 0
    for n, points in groupby(ns):
        end = start + len(list(points))
        stretches.append((n, max(0, start - 1), end - 1))
        start = end
    return stretches


def thin(points: Sequence[Any], max_points: int = 48) -> list[Any]:
    """At most `max_points` of the points, evenly spaced, both ends included."""
    return [points[i] for i in spread_indices(len(points), max_points)]


def probability_ribbons(view: FrontierFit) -> dict[int, list[tuple[float, float, float]]]:
    """n -> (C, low, high): a ribbon around n, on a log axis as thick as P(n is best), for each n
    that may be best."""
    points = [(p.C, p.n_probability) for p in thin(view.frontier, RIBBON_POINTS) if p.n_probability]
    ns = sorted({n for _, shares in points for n, _, _ in n_shares(shares)})
    factors = {
        n: [(C, 2 ** (RIBBON_DOUBLINGS / 2 * shares.get(n, 0.0))) for C, shares in points]
        for n in ns
    }
    return {n: [(C, n / factor, n * factor) for C, factor in rows] for n, rows in factors.items()}


def frontier_reward_at(view: FrontierFit, C: float) -> float:
    """The frontier's reward at C, between its points along log C."""
    return float(
        np.interp(
            np.log10(C), np.log10([p.C for p in view.frontier]), [p.reward for p in view.frontier]
        )
    )
