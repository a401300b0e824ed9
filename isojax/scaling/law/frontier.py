"""The compute-optimal frontier: the upper envelope of the fitted curves, each inside its measured
range (IsoCompute Playbook, arXiv:2603.12151, section 4.1, Fig. 6). A stretch shorter than
MIN_DECADES goes to the neighbour that loses the least reward there, if that was measured to within
MIN_DECADES of all of it (cells end at slightly different C). The replicates of the curves give the
intervals of its rewards and of its crossovers. Runs whose n changes along C are compared with the
best fixed n at each C."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import root_scalar

from isojax.core.nouns import Interval, RunRecord
from isojax.core.schedule import schedule_text
from isojax.scaling.curves.hill import curve_reward
from isojax.scaling.curves.sweep_estimate import MIN_DECADES, PosteriorSamples, SweepEstimate
from isojax.scaling.intervals import central_band, central_interval
from isojax.scaling.result import (
    CrossoverRow,
    FittedCurve,
    FrontierRow,
    OpenInterval,
    SchedulePoint,
    ScheduleRow,
)
from isojax.scaling.tracks import (
    FloatArray,
    RunTrack,
    build_tracks,
    evaluations_by_target,
    group_by,
)

GRID_POINTS_PER_DECADE = 60  # at least; the ends of the measured range are grid points
LUCK_SEED = 3
_SEARCH_PER_DECADE = 40  # of a replicate's crossings


@dataclass(frozen=True)
class FrontierStretch:
    """A range of C over which one cell holds the frontier."""

    n: int
    B_p: int
    C_low: float
    C_high: float
    # curves cross at C_low; else the data of one end or begin there: nothing was compared
    from_crossing: bool = False


@dataclass(frozen=True)
class Frontier:
    """Points by rising C, and the stretches of their cells."""

    points: tuple[FrontierRow, ...]
    stretches: tuple[FrontierStretch, ...]

    @property
    def changes_of_n(self) -> list[tuple[FrontierStretch, FrontierStretch]]:
        """The stretches before and after each change of n (not of B_p alone), which usually, not
        always, rises."""
        return [
            (before, after) for before, after in pairwise(self.stretches) if before.n != after.n
        ]


def compute_frontier(curves: Sequence[FittedCurve]) -> Frontier:
    """The upper envelope of at least one curve; of equal rewards the smaller n, then the smaller
    B_p."""
    ordered_curves = sorted(curves, key=lambda c: (c.n, c.B_p))
    C_low = min(c.C_low for c in ordered_curves)
    C_high = max(c.C_high for c in ordered_curves)
    grid_size = int(np.ceil(GRID_POINTS_PER_DECADE * np.log10(C_high / C_low))) + 1
    C = np.geomspace(C_low, C_high, max(2, grid_size))
    log10_C = np.log10(C)
    measured_rewards = np.stack([_measured_reward(c, log10_C, 1e-9) for c in ordered_curves])
    covered = np.isfinite(measured_rewards.max(0))
    C = C[covered]
    log10_C = log10_C[covered]
    measured_rewards = measured_rewards[:, covered]
    nearly_measured = np.stack([_measured_reward(c, log10_C, MIN_DECADES) for c in ordered_curves])
    tied = _tied_start(ordered_curves, C, nearly_measured)
    start = tied if tied < len(C) else 0  # of what is led by one cell or another
    winner = _merge_brief_stretches(
        log10_C[start:], nearly_measured[:, start:], measured_rewards[:, start:].argmax(0)
    )
    # where none leads, the one that is first to
    winner = np.concatenate([np.full(start, winner[0]), winner])
    winning_curves = [ordered_curves[i] for i in winner]
    points = tuple(
        FrontierRow(C=at, reward=float(curve_reward(c, at)), n=c.n, B_p=c.B_p, tied=i < tied)
        for i, (at, c) in enumerate(zip(C.tolist(), winning_curves, strict=True))
    )
    spans = _runs_of_winner(winner)
    takeovers = [
        _takeover(winning_curves[b - 1], winning_curves[b], log10_C[b - 1], log10_C[b])
        for _, b in spans[:-1]
    ]
    starts = [(float(C[start]), False), *takeovers]
    ends = [*(at for at, _ in takeovers), float(C[-1])]
    stretches = tuple(
        FrontierStretch(winning_curves[a].n, winning_curves[a].B_p, start, end, from_crossing)
        for (a, _), (start, from_crossing), end in zip(spans, starts, ends, strict=True)
    )
    return Frontier(points, stretches)


def _tied_start(curves: Sequence[FittedCurve], C: FloatArray, rewards: FloatArray) -> int:
    """How many of the budgets C, from the smallest on, show no n to lead: every cell measured there
    still stands where all began, or has come less than one hit further. `rewards`: float[curves,
    grid], -inf where not measured."""
    flat_starts = [c.flat_start for c in curves]
    first = next((flat for flat in flat_starts if flat is not None), None)
    if first is None:
        return 0

    ends = [
        0.0 if flat is None else np.inf if flat.C_rise is None else flat.C_flat
        for flat in flat_starts
    ]
    stands = C[None, :] <= np.array(ends)[:, None] * (1 + 1e-9)
    is_near = np.abs(rewards - first.level) < first.step
    all_stand = (stands | is_near | ~np.isfinite(rewards)).all(0)
    return len(C) if all_stand.all() else int(all_stand.argmin())


def _measured_reward(curve: FittedCurve, log10_C: FloatArray, slack_decades: float) -> FloatArray:
    """float[grid]: the curve's reward, -inf more than `slack_decades` outside its measured
    range."""
    inside = (log10_C >= np.log10(curve.C_low) - slack_decades) & (
        log10_C <= np.log10(curve.C_high) + slack_decades
    )
    return np.where(inside, curve_reward(curve, 10**log10_C), -np.inf)


def _runs_of_winner(winner: NDArray[np.intp]) -> list[tuple[int, int]]:
    """[start, stop) of each run of one winner."""
    return list(pairwise([0, *(np.flatnonzero(np.diff(winner)) + 1).tolist(), len(winner)]))


def _merge_brief_stretches(
    log10_C: FloatArray, rewards: FloatArray, winner: NDArray[np.intp]
) -> NDArray[np.intp]:
    """The winner at each grid point without brief stretches; rewards float[curves, grid], -inf: not
    measured."""
    winner = winner.copy()
    edges = np.concatenate([log10_C[:1], (log10_C[1:] + log10_C[:-1]) / 2, log10_C[-1:]])
    while True:
        spans = _runs_of_winner(winner)
        lengths = [(edges[b] - edges[a], i) for i, (a, b) in enumerate(spans)]
        brief_spans = sorted((length, i) for length, i in lengths if length < MIN_DECADES)
        for _, i in brief_spans:
            a, b = spans[i]
            adjacent_cells = [
                int(winner[spans[j][0]]) for j in (i - 1, i + 1) if 0 <= j < len(spans)
            ]
            costs = [
                (float(np.sum(rewards[winner[a], a:b] - rewards[c, a:b])), c)
                for c in adjacent_cells
                if np.isfinite(rewards[c, a:b]).all()
            ]
            if costs:
                winner[a:b] = min(costs)[1]
                break
        else:
            return winner


def _takeover(
    earlier: FittedCurve, later: FittedCurve, log10_C_low: float, log10_C_high: float
) -> tuple[float, bool]:
    """C at which the later curve takes over between two grid points (root, else midpoint), and
    whether they cross."""

    def earlier_lead(x: float) -> float:
        return float(curve_reward(earlier, 10**x) - curve_reward(later, 10**x))

    overlap_start = float(np.log10(max(earlier.C_low, later.C_low)))
    overlap_end = float(np.log10(min(earlier.C_high, later.C_high)))
    a, b = max(log10_C_low, overlap_start), min(log10_C_high, overlap_end)
    if a < b and earlier_lead(a) * earlier_lead(b) < 0:
        return float(10 ** root_scalar(earlier_lead, bracket=(a, b)).root), True
    C = float(10 ** ((log10_C_low + log10_C_high) / 2))
    # Merged stretches swap a little off their crossing: it counts if both were measured and the
    # later one leads on.
    return C, bool(overlap_start <= np.log10(C) <= overlap_end and earlier_lead(overlap_end) < 0)


def frontier_rows(
    points: Sequence[FrontierRow], draws: PosteriorSamples | None
) -> tuple[FrontierRow, ...]:
    """The points with what replicates give: the interval of the leading cell's reward, and in which
    share of them each n leads. (The best of all cells in each replicate would be too high: among
    equal cells it picks the luckiest.)"""
    if draws is None:
        return tuple(points)
    C = [p.C for p in points]
    rewards = draws.rewards(C)
    shares = n_shares(draws, rewards, draws.is_measured(C, MIN_DECADES))
    rows = []
    for g, p in enumerate(points):
        low, high = central_interval(rewards[:, draws.keys.index((p.B_p, p.n)), g])
        n_probability = {n: round(share, 4) for n, share in shares[g].items() if share > 0}
        rows.append(p.model_copy(update={"low": low, "high": high, "n_probability": n_probability}))
    return tuple(rows)


def n_shares(
    draws: PosteriorSamples, rewards: FloatArray, measured: NDArray[np.bool_]
) -> list[dict[int, float]]:
    """For each of G budgets: n -> the share of draws in which it has the highest of rewards
    float[Q, J, G] of the cells measured there, bool[J, G]; equal n share a draw."""
    cell_n = np.array([n for _, n in draws.keys])
    all_n = np.unique(cell_n)
    is_best = draws.is_best(rewards, measured, axis=1)
    n_is_best = np.stack([is_best[:, cell_n == n].any(1) for n in all_n], axis=1)  # [Q, n, G]
    shares = (n_is_best / n_is_best.sum(1, keepdims=True)).mean(0)
    return [dict(zip(all_n.tolist(), of_budget.tolist(), strict=True)) for of_budget in shares.T]


def crossover_rows(
    frontier: Frontier, draws: PosteriorSamples | None, uncrossed_too: bool = False
) -> tuple[CrossoverRow, ...]:
    """Changes of n where two measured curves cross, and where the data of one end only if
    `uncrossed_too`."""
    rows = []
    for before, after in frontier.changes_of_n:
        if after.from_crossing or uncrossed_too:
            low, high = (None, None) if draws is None else crossover_interval(draws, before, after)
            rows.append(
                CrossoverRow(n_low=before.n, n_high=after.n, C=after.C_low, low=low, high=high)
            )
    return tuple(rows)


def crossover_interval(
    draws: PosteriorSamples, before: FrontierStretch, after: FrontierStretch
) -> OpenInterval:
    """Where a cell overtakes another within their data; of several crossings nearest to that of the
    fitted curves. A replicate in which it leads throughout counts as -inf, one in which it never
    leads as +inf."""
    pair = draws.for_cells([(before.B_p, before.n), (after.B_p, after.n)])
    log10_C_from = float(np.log10(pair.C_low.max()))
    log10_C_to = float(np.log10(pair.C_high.min()))
    if not log10_C_from < log10_C_to:
        return None, None
    grid_points = max(8, int(np.ceil(_SEARCH_PER_DECADE * (log10_C_to - log10_C_from))) + 1)
    log10_C = np.linspace(log10_C_from, log10_C_to, grid_points)
    R = pair.rewards(10**log10_C)
    lead = R[:, 1] - R[:, 0]
    crosses = (lead[:, :-1] <= 0) & (lead[:, 1:] > 0)
    fraction = np.abs(lead[:, :-1]) / np.maximum(np.abs(lead[:, :-1]) + np.abs(lead[:, 1:]), 1e-300)
    crossings = np.where(crosses, log10_C[:-1] + fraction * np.diff(log10_C), np.inf)
    nearest_crossing = crossings[
        np.arange(len(crossings)), np.abs(crossings - np.log10(after.C_low)).argmin(1)
    ]
    outside_range = np.where(lead[:, -1] > 0, -np.inf, np.inf)
    low, high = central_interval(np.where(crosses.any(1), nearest_crossing, outside_range))
    return None if low is None else 10**low, None if high is None else 10**high


def spread_indices(length: int, count: int) -> NDArray[np.intp]:
    """At most `count` of the indices 0 .. length - 1, evenly spread, both ends included."""
    return np.unique(np.linspace(0, length - 1, count).round().astype(int))


def compare_schedules(
    estimate: SweepEstimate, runs: Sequence[RunRecord], metric: str, compute: str
) -> tuple[ScheduleRow, ...]:
    """A row for each schedule, the mean of its seeds, at the evaluations that fixed cells were
    measured at too."""
    tracks = build_tracks(runs, metric, compute) if runs else ()
    by_name = group_by(tracks, lambda track: track.run.cell.schedule)
    return tuple(
        _compare_schedule(estimate, name, seeds) for name, seeds in sorted(by_name.items())
    )


def _compare_schedule(estimate: SweepEstimate, name: str, seeds: Sequence[RunTrack]) -> ScheduleRow:
    shared = evaluations_by_target(seeds)  # all seeds were evaluated there, at about the same C
    C, rewards = (
        np.array([(C, R) for target, (_, C, R) in shared.items() if target]).reshape(-1, 2).T
    )
    curves = estimate.curves
    measured = np.array(
        [[c.C_low <= x <= c.C_high * (1 + 1e-9) for c in curves] for x in C]
    ).reshape(-1, len(curves))
    C = C[measured.any(1)]
    rewards = rewards[measured.any(1)]
    measured = measured[measured.any(1)]
    reached = np.where(measured, np.array([curve_reward(c, C) for c in curves]).T, -np.inf)
    best = reached.argmax(1)
    points = [
        SchedulePoint(C=x, reward=r, best_fixed=values[i], n=curves[i].n, B_p=curves[i].B_p)
        for x, r, values, i in zip(
            C.tolist(), rewards.tolist(), reached.tolist(), best.tolist(), strict=True
        )
    ]
    gains = np.array([p.reward - p.best_fixed for p in points])
    return ScheduleRow(
        name=name,
        stages=schedule_text(seeds[0].run.cell.stages, seeds[0].run.cell.n_max),
        seeds=tuple(track.run.cell.seed for track in seeds),
        evaluations=tuple(len(track.C) for track in seeds),
        points=tuple(points),
        gain=float(gains.mean()) if len(gains) else None,
        interval=_gain_interval(estimate, C, rewards, len(seeds)) if len(gains) else None,
    )


def _gain_interval(
    estimate: SweepEstimate, C: FloatArray, rewards: FloatArray, num_seeds: int
) -> Interval | None:
    """Of the mean gain: the spread of the best fixed cells over the draws, and the luck of the
    schedule's runs."""
    if estimate.draws is None or estimate.intervals is None:
        return None
    values = estimate.draws.curves_at(C[:, None])  # [points, replicates, cells]
    is_measured = estimate.draws.is_measured(C, slack=0.0).T[:, None]
    fixed = np.where(is_measured, values, -np.inf).max(-1).mean(0)
    luck_sd = estimate.intervals.run_sd / np.sqrt(num_seeds)
    noise_sd = estimate.intervals.noise_sd / np.sqrt(num_seeds * len(C))
    rng = np.random.default_rng(LUCK_SEED)
    luck = rng.normal(0, float(np.hypot(luck_sd, noise_sd)), len(fixed))
    # the schedule's own reward is then as uncertain as that of the fixed cells
    if estimate.is_flat:
        luck = rng.permutation(fixed - estimate.curves[0].A)
    low, high = central_band(rewards.mean() - fixed + luck)
    return float(low), float(high)
