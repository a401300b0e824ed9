"""A fit as numbers ready to draw: its frontiers, its curves' rewards and intervals, its runs'
evaluations. What a figure and the page's charts have in common is calculated here, once."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

import numpy as np

from isojax.core.nouns import RunRecord
from isojax.report.wording import format_percent, n_shares
from isojax.scaling.allocate.curve_ensemble import CurveEnsemble
from isojax.scaling.comparison import BudgetRow
from isojax.scaling.intervals import central_band
from isojax.scaling.law.frontier import spread_indices
from isojax.scaling.result import FitResult, FrontierFit, FrontierRow, ScheduleRow
from isojax.scaling.tracks import FloatArray, fixed_runs, group_by, make_track

T = TypeVar("T")
CellKey = tuple[int, int]  # (B_p, n)

# The thickness of a ribbon of P(n is best) at probability 1, in doublings of n: under 1, so that
# the ribbons of n and 2n do not touch.
RIBBON_DOUBLINGS = 0.9
RIBBON_POINTS = 90


class Evaluation(NamedTuple):
    """A run's validation reward at C, in the fit's unit."""

    target: int  # the value of the grid of C, shared by all runs, that this evaluation stands for
    C: float
    reward: float


class SeedMean(NamedTuple):
    """The means over a cell's runs at one value of the shared grid of C, and how many runs there
    are."""

    C: float
    reward: float
    seeds: int


class BandRow(NamedTuple):
    """A band from low to high at x."""

    x: float
    low: float
    high: float


class Stretch(NamedTuple):
    """Points first, ..., last of a frontier, that one n leads."""

    n: int
    first: int
    last: int

    def points_of(self, points: Sequence[T]) -> Sequence[T]:
        """The stretch's own among the frontier's points."""
        return points[self.first : self.last + 1]


# The frontiers of a fit.


def frontier_views(fit: FitResult) -> list[FrontierFit]:
    """The joint frontier, and that of each B_p that was measured with several n.

    Of a fit of one B_p, the frontier of that B_p alone."""
    if len(fit.by_B_p) < 2:
        return list(fit.by_B_p)
    all_B_p = [curve.B_p for curve in fit.curves]
    return [fit.joint, *(view for view in fit.by_B_p if all_B_p.count(view.B_p or 0) > 1)]


def B_p_of_view(fit: FitResult, view: FrontierFit) -> tuple[int, ...]:
    """The B_p that a frontier is over, rising: all for the joint one."""
    if view.B_p is not None:
        return (view.B_p,)
    return tuple(sorted({curve.B_p for curve in fit.curves}))


def schedules_of_view(fit: FitResult, view: FrontierFit) -> list[ScheduleRow]:
    """The runs whose B_p or n changed along C, those with a point to draw.

    The joint view shows them, or the only one; that of one B_p among several does not."""
    shows_them = view.B_p is None or len(frontier_views(fit)) == 1
    return [row for row in fit.schedules if row.points] if shows_them else []


def frontier_reward_at(view: FrontierFit, C: float) -> float:
    """The frontier's reward at C, between its points along log C."""
    log_C = np.log10([point.C for point in view.frontier])
    rewards = [point.reward for point in view.frontier]
    return float(np.interp(np.log10(C), log_C, rewards))


def frontier_band(points: Iterable[FrontierRow | BudgetRow]) -> list[BandRow]:
    """The interval of a frontier's reward over C, at those of its points that have one."""
    return [
        BandRow(point.C, point.low, point.high)
        for point in points
        if point.low is not None and point.high is not None
    ]


def n_stretches(ns: Sequence[int]) -> list[Stretch]:
    """The stretches of one n each, of a frontier whose points have these n.

    A stretch starts at the last point of the one before it, so that a line drawn through each has
    no gap."""
    stretches = []
    start = 0
    for n, points in groupby(ns):
        end = start + len(list(points))
        stretches.append(Stretch(n, first=max(0, start - 1), last=end - 1))
        start = end
    return stretches


def thin(points: Sequence[T], max_points: int = 48) -> list[T]:
    """At most `max_points` of the points, evenly spaced, both ends included."""
    return [points[i] for i in spread_indices(len(points), max_points)]


def probability_ribbons(view: FrontierFit) -> dict[int, list[BandRow]]:
    """n -> a ribbon around n along C, whose thickness shows the probability that this n is the best
    at that C; for each n that has one to speak of. On a log axis of n, a probability of 1 is
    RIBBON_DOUBLINGS doublings thick."""
    # (C, n -> P(n is the best)); a fit without replicates has no probabilities
    shares_at_C = [
        (point.C, point.n_probability)
        for point in thin(view.frontier, RIBBON_POINTS)
        if point.n_probability
    ]
    ns = sorted({shown.n for _, shares in shares_at_C for shown in n_shares(shares)})

    ribbons: dict[int, list[BandRow]] = {}
    for n in ns:
        ribbon = []
        for C, shares in shares_at_C:
            half_thickness = 2 ** (RIBBON_DOUBLINGS / 2 * shares.get(n, 0.0))  # a factor
            ribbon.append(BandRow(C, n / half_thickness, n * half_thickness))
        ribbons[n] = ribbon
    return ribbons


# What a fit says of all its runs.


def all_n(fit: FitResult) -> list[int]:
    """Every n that was run, rising."""
    return sorted({run.n for run in fit.runs})


def interval_level(fit: FitResult) -> str:
    """The intervals' level, such as 90%; "" where the fit has none."""
    return "" if fit.intervals is None else format_percent(fit.intervals.level)


def measured_budget(fit: FitResult) -> float:
    """The budget that the runs were given, as well as their ends tell it.

    Runs stop at the first update that reaches the budget, so the smallest end near the largest is
    the nearest to it."""
    C_ends = [run.C_max for run in fit.runs]
    return min(C for C in C_ends if C >= 0.95 * max(C_ends))


def curve_band(
    ensemble: CurveEnsemble, i: int, C: FloatArray
) -> tuple[FloatArray, FloatArray] | None:
    """The interval (low, high) of cell i's curve at C > 0, float[points] each; None where the fit
    has no replicates."""
    if not ensemble.replicates:
        return None
    sampled_rewards = ensemble.sampled_rewards(C)[..., i]  # [points, replicates]
    return central_band(sampled_rewards.T)


# The evaluations of runs.


def fitted_runs(fit: FitResult, runs: Iterable[RunRecord]) -> list[RunRecord]:
    """The runs that a fit used: no run with a schedule, and none that it left out as broken."""
    fitted_cells = {(run.B_p, run.n, run.seed) for run in fit.runs}
    return [
        run for run in fixed_runs(runs) if (run.cell.B_p, run.cell.n, run.cell.seed) in fitted_cells
    ]


def run_evaluations(run: RunRecord, fit: FitResult) -> list[Evaluation]:
    """A run's evaluations after the base policy's, whose C = 0 has no place on a log axis."""
    track = make_track(run, fit.metric, fit.compute)
    rows = zip(track.run.points, track.C, track.R, strict=True)
    return [Evaluation(point.target, float(C), float(reward)) for point, C, reward in rows if C > 0]


def runs_by_cell(runs: Iterable[RunRecord]) -> dict[CellKey, list[RunRecord]]:
    """(B_p, n) -> its runs, one for each seed."""
    return group_by(runs, lambda run: (run.cell.B_p, run.cell.n))


def seed_means(seeds: Sequence[RunRecord], fit: FitResult) -> list[SeedMean]:
    """The means over a cell's runs at each value of the shared grid of C, rising."""
    evaluations = (evaluation for run in seeds for evaluation in run_evaluations(run, fit))
    by_target = group_by(evaluations, lambda evaluation: evaluation.target)

    means = []
    for _, evaluations_there in sorted(by_target.items()):
        _, C, reward = np.mean(evaluations_there, axis=0).tolist()
        means.append(SeedMean(C, reward, seeds=len(evaluations_there)))
    return means


def reward_range(fit: FitResult, runs: Sequence[RunRecord]) -> tuple[float, float]:
    """The smallest and the largest reward that a chart of C and reward shows."""
    rewards = [evaluation.reward for run in runs for evaluation in run_evaluations(run, fit)]
    rewards += [point.reward for point in fit.joint.frontier]
    rewards += [point.reward for row in fit.schedules for point in row.points]
    if fit.base_reward is not None:
        rewards.append(fit.base_reward)
    return min(rewards), max(rewards)
