"""The compute-optimal frontier: at each C the cell whose curve is highest, among the cells that
have data there (IsoCompute Playbook, arXiv:2603.12151, section 4.1, Fig. 6).

A stretch is a range of C in which one cell leads. A stretch shorter than MIN_DECADES is noise: it
is given to the neighbouring cell that loses the least reward there, if that cell was measured to
within MIN_DECADES of all of it (cells end at slightly different C). The replicates of the curves
give the intervals of the frontier's rewards and of its crossovers.

Runs whose n changes along C are compared with the best fixed n at each C (`compare_schedules`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

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
LUCK_SEED = 3  # of the random deviations of a schedule's runs
_SEARCH_PER_DECADE = 40  # values of C at which a replicate's crossings are sought


@dataclass(frozen=True)
class FrontierStretch:
    """A range of C over which one cell holds the frontier."""

    n: int
    B_p: int
    C_low: float
    C_high: float
    # Whether two curves cross at C_low. Otherwise the data of one cell begin or end there, so that
    # nothing was compared.
    from_crossing: bool = False


@dataclass(frozen=True)
class Frontier:
    """The frontier as points of a grid of C, and as stretches of one leading cell each; both by
    rising C."""

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
    """The frontier of one or more cells: which cell's curve is highest at each C of a grid.

    curves: one for each cell (B_p, n), at least one. Only cells with data near a C count there. Of
    cells with equal rewards the one with the smaller n leads, then that with the smaller B_p."""
    ordered_curves = sorted(curves, key=lambda c: (c.n, c.B_p))  # argmax takes the first of equals
    C = _frontier_grid(ordered_curves)
    log10_C = np.log10(C)
    # [curves, grid]: rewards where each cell has data, to within rounding (1e-9 decades) or within
    # MIN_DECADES, else -inf. Grid points at which no cell has data are left out.
    measured_rewards = np.stack([_measured_reward(c, log10_C, 1e-9) for c in ordered_curves])
    covered = np.isfinite(measured_rewards.max(0))
    C = C[covered]
    log10_C = log10_C[covered]
    measured_rewards = measured_rewards[:, covered]
    nearly_measured = np.stack([_measured_reward(c, log10_C, MIN_DECADES) for c in ordered_curves])

    # The winner at each grid point, an index of ordered_curves. As long as all cells are tied at
    # their start, before the grid point `start`, it is the one that leads first after that.
    tied = _tied_start(ordered_curves, C, nearly_measured)
    start = tied if tied < len(C) else 0
    winner = _merge_brief_stretches(
        log10_C[start:], nearly_measured[:, start:], measured_rewards[:, start:].argmax(0)
    )
    winner = np.concatenate([np.full(start, winner[0]), winner])

    winning_curves = [ordered_curves[i] for i in winner]
    points = tuple(
        FrontierRow(
            C=float(C[i]),
            reward=float(curve_reward(curve, C[i])),
            n=curve.n,
            B_p=curve.B_p,
            tied=i < tied,
        )
        for i, curve in enumerate(winning_curves)
    )
    return Frontier(points, _stretches(winning_curves, winner, C, log10_C, start))


def _frontier_grid(curves: Sequence[FittedCurve]) -> FloatArray:
    """Budgets evenly spaced in log C over the range that any cell measured."""
    C_low = min(c.C_low for c in curves)
    C_high = max(c.C_high for c in curves)
    grid_size = int(np.ceil(GRID_POINTS_PER_DECADE * np.log10(C_high / C_low))) + 1
    return np.geomspace(C_low, C_high, max(2, grid_size))


def _stretches(
    winning_curves: Sequence[FittedCurve],
    winner: NDArray[np.intp],
    C: FloatArray,
    log10_C: FloatArray,
    start: int,
) -> tuple[FrontierStretch, ...]:
    """The stretches of a frontier: the range of C of each winner in turn, by rising C.

    The winner is the cell with the highest reward. For each point of the grid C (float[grid],
    rising), winning_curves has its curve and winner, int[grid], its index among all curves. The
    first stretch begins at the grid point `start`, before which all cells are tied (there the
    winner must be that at `start`)."""
    spans = _runs_of_winner(winner)

    # Where one winner gives way to the next, between two grid points: where their curves cross, or
    # where the data of one end.
    takeovers = []
    for span in spans[:-1]:
        last = span.stop - 1
        takeovers.append(
            _takeover(
                winning_curves[last], winning_curves[span.stop], log10_C[last], log10_C[span.stop]
            )
        )

    starts = [_Takeover(float(C[start]), is_crossing=False), *takeovers]
    ends = [*(takeover.C for takeover in takeovers), float(C[-1])]
    stretches = []
    for span, begin, end in zip(spans, starts, ends, strict=True):
        curve = winning_curves[span.start]
        stretches.append(FrontierStretch(curve.n, curve.B_p, begin.C, end, begin.is_crossing))
    return tuple(stretches)


def _tied_start(curves: Sequence[FittedCurve], C: FloatArray, rewards: FloatArray) -> int:
    """How many grid points, from the smallest C on, have no leader as no cell has begun to rise.

    There every measured cell is at the reward with which all began, or less than one correct
    rollout of an evaluation from it. 0 where no curve has a flat start (a first part at one
    reward); all have the same level. C: the grid, float[grid], rising; rewards: float[curves,
    grid], -inf where not measured."""
    flat_starts = [c.flat_start for c in curves]
    first = next((flat for flat in flat_starts if flat is not None), None)
    if first is None:
        return 0

    # The C up to which each cell stays flat: 0 without a flat start, no limit where it never rises,
    # otherwise the last evaluation that shows the level of the start.
    flat_to = []
    for flat in flat_starts:
        if flat is None:
            flat_to.append(0.0)
        elif flat.C_rise is None:
            flat_to.append(np.inf)
        else:
            flat_to.append(flat.C_flat)

    # [curves, grid]; 1e-9: C_flat may be a grid point, but for rounding
    is_flat = C[None, :] <= np.array(flat_to)[:, None] * (1 + 1e-9)
    is_near = np.abs(rewards - first.level) < first.step
    is_unmeasured = ~np.isfinite(rewards)
    no_cell_rose = (is_flat | is_near | is_unmeasured).all(0)
    return len(C) if no_cell_rose.all() else int(no_cell_rose.argmin())


def _measured_reward(curve: FittedCurve, log10_C: FloatArray, slack_decades: float) -> FloatArray:
    """The curve's reward at each grid point, float[grid]; -inf at those more than slack_decades
    (factors of 10 of C) outside the range of C that the cell measured."""
    from_low = log10_C >= np.log10(curve.C_low) - slack_decades
    to_high = log10_C <= np.log10(curve.C_high) + slack_decades
    return np.where(from_low & to_high, curve_reward(curve, 10**log10_C), -np.inf)


class _Span(NamedTuple):
    """Grid points, from `start` to before `stop`."""

    start: int
    stop: int


def _runs_of_winner(winner: NDArray[np.intp]) -> list[_Span]:
    """The spans of consecutive grid points with the same winner."""
    # + 1: the first grid point after each change.
    changes = (np.flatnonzero(np.diff(winner)) + 1).tolist()
    return [_Span(start, stop) for start, stop in pairwise([0, *changes, len(winner)])]


def _merge_brief_stretches(
    log10_C: FloatArray, rewards: FloatArray, winner: NDArray[np.intp]
) -> NDArray[np.intp]:
    """The winner at each grid point, after stretches shorter than MIN_DECADES went to a neighbour.

    A stretch is a range of C with one winner. winner: int[grid], indices of curves; rewards:
    float[curves, grid], -inf where a cell was not measured to within MIN_DECADES."""
    winner = winner.copy()
    # A grid point covers log10 C from halfway to the point before to halfway to the next.
    edges = np.concatenate([log10_C[:1], (log10_C[1:] + log10_C[:-1]) / 2, log10_C[-1:]])

    # Each merge makes its neighbour longer. So merge one stretch at a time, the briefest first,
    # until none is brief, or no brief one has a neighbour with data there.
    while True:
        spans = _runs_of_winner(winner)
        lengths = [float(edges[span.stop] - edges[span.start]) for span in spans]
        brief_spans = [i for i in range(len(spans)) if lengths[i] < MIN_DECADES]
        for i in sorted(brief_spans, key=lambda i: (lengths[i], i)):
            heir = _cheapest_neighbour(spans, i, winner, rewards)
            if heir is not None:
                winner[spans[i].start : spans[i].stop] = heir
                break
        else:
            return winner


def _cheapest_neighbour(
    spans: Sequence[_Span], i: int, winner: NDArray[np.intp], rewards: FloatArray
) -> int | None:
    """To which cell the i-th span is given with the least loss of reward: an index of curves.

    It is the winner of the span before or after it. None where neither has finite rewards over all
    of the i-th span, that is, data to within MIN_DECADES. winner: int[grid]; rewards: float[curves,
    grid]."""
    grid_points = slice(spans[i].start, spans[i].stop)
    winner_rewards = rewards[winner[spans[i].start], grid_points]
    costs = []
    for j in (i - 1, i + 1):
        if not 0 <= j < len(spans):
            continue
        neighbour = int(winner[spans[j].start])
        neighbour_rewards = rewards[neighbour, grid_points]
        if np.isfinite(neighbour_rewards).all():
            costs.append((float(np.sum(winner_rewards - neighbour_rewards)), neighbour))
    return min(costs)[1] if costs else None


class _Takeover(NamedTuple):
    """The C at which one cell takes the lead from another, that is, where a stretch begins."""

    C: float
    is_crossing: bool  # the curves cross there; else the data of one end or begin


def _takeover(
    earlier: FittedCurve, later: FittedCurve, log10_C_low: float, log10_C_high: float
) -> _Takeover:
    """Where the later winner takes the lead from the earlier one: where their curves cross.

    log10_C_low and log10_C_high: the neighbouring grid points between which the lead changes; where
    the curves do not cross there, halfway between them."""

    def earlier_lead(x: float) -> float:
        """The reward of `earlier` less that of `later`, at x = log10 C."""
        return float(curve_reward(earlier, 10**x) - curve_reward(later, 10**x))

    overlap_start = float(np.log10(max(earlier.C_low, later.C_low)))
    overlap_end = float(np.log10(min(earlier.C_high, later.C_high)))
    a = max(log10_C_low, overlap_start)
    b = min(log10_C_high, overlap_end)
    if a < b and earlier_lead(a) * earlier_lead(b) < 0:
        crossing = root_scalar(earlier_lead, bracket=(a, b)).root
        return _Takeover(float(10**crossing), is_crossing=True)

    C = float(10 ** ((log10_C_low + log10_C_high) / 2))
    # Where a brief stretch was merged, the winner changes a little off the crossing. It counts as
    # one if both cells have data there and the later one leads at the end of these.
    both_measured = overlap_start <= np.log10(C) <= overlap_end
    return _Takeover(C, is_crossing=bool(both_measured and earlier_lead(overlap_end) < 0))


def frontier_rows(
    points: Sequence[FrontierRow], draws: PosteriorSamples | None
) -> tuple[FrontierRow, ...]:
    """The frontier's points, with intervals of their rewards and the probability of each n to lead.

    Both are by the replicates (draws); without these the points are unchanged. The interval is that
    of the leading cell's reward, not that of the best cell in each replicate, which would be too
    high: among equal cells it picks the luckiest. A probability is rounded to 4 digits; n that
    never lead have none. draws: their cells include all those of the points."""
    if draws is None:
        return tuple(points)

    C = [p.C for p in points]
    rewards = draws.rewards(C)  # [Q replicates, J cells, G points]
    shares = n_shares(draws, rewards, draws.is_measured(C, slack=MIN_DECADES))
    rows = []
    for g, p in enumerate(points):
        leader = draws.keys.index((p.B_p, p.n))
        low, high = central_interval(rewards[:, leader, g])
        n_probability = {n: round(share, 4) for n, share in shares[g].items() if share > 0}
        rows.append(p.model_copy(update={"low": low, "high": high, "n_probability": n_probability}))
    return tuple(rows)


def n_shares(
    draws: PosteriorSamples, rewards: FloatArray, measured: NDArray[np.bool_]
) -> list[dict[int, float]]:
    """The probability of each n to be the best, at each of G budgets: a dict {n: share} for each.

    The share is that of the draws. rewards: float[Q draws, J cells, G], cells in the order of
    draws.keys; measured: bool[J, G], the cells that compete. Where several n are equal in a draw,
    they share it."""
    cell_n = np.array([n for _, n in draws.keys])
    all_n = np.unique(cell_n)
    is_best = draws.is_best(rewards, measured, axis=1)
    n_is_best = np.stack([is_best[:, cell_n == n].any(1) for n in all_n], axis=1)  # [Q, n, G]
    shares = (n_is_best / n_is_best.sum(1, keepdims=True)).mean(0)
    return [dict(zip(all_n.tolist(), of_budget.tolist(), strict=True)) for of_budget in shares.T]


def crossover_rows(
    frontier: Frontier, draws: PosteriorSamples | None, uncrossed_too: bool = False
) -> tuple[CrossoverRow, ...]:
    """The C at which the frontier's n changes because two curves cross, by rising C.

    They have intervals where there are draws. uncrossed_too: also where n changes because data
    begin or end."""
    rows = []
    for before, after in frontier.changes_of_n:
        if not after.from_crossing and not uncrossed_too:
            continue
        low, high = None, None
        if draws is not None:
            low, high = crossover_interval(draws, before, after)
        rows.append(CrossoverRow(n_low=before.n, n_high=after.n, C=after.C_low, low=low, high=high))
    return tuple(rows)


def crossover_interval(
    draws: PosteriorSamples, before: FrontierStretch, after: FrontierStretch
) -> OpenInterval:
    """The interval (low, high) of the C at which the cell of `after` overtakes that of `before`.

    It is that of the replicates, within the range of C that both measured; an open end is None, and
    both ends where they share no range. Of several crossings in a replicate the one nearest to that
    of the fitted curves (after.C_low) counts. A replicate without a crossing counts as -inf where
    `after` leads at the end of the range, and as +inf where it does not."""
    pair = draws.for_cells([(before.B_p, before.n), (after.B_p, after.n)])
    log10_C_from = float(np.log10(pair.C_low.max()))
    log10_C_to = float(np.log10(pair.C_high.min()))
    if not log10_C_from < log10_C_to:
        return None, None

    # lead, [Q, grid]: of the cell of `after` (index 1 of the pair), which overtakes where the lead
    # turns positive.
    grid_points = max(8, int(np.ceil(_SEARCH_PER_DECADE * (log10_C_to - log10_C_from))) + 1)
    log10_C = np.linspace(log10_C_from, log10_C_to, grid_points)
    R = pair.rewards(10**log10_C)
    lead = R[:, 1] - R[:, 0]
    before_step = lead[:, :-1]
    after_step = lead[:, 1:]
    crosses = (before_step <= 0) & (after_step > 0)

    # Between two grid points the lead is interpolated linearly in log C.
    span = np.maximum(np.abs(before_step) + np.abs(after_step), 1e-300)
    fraction = np.abs(before_step) / span
    crossings = np.where(crosses, log10_C[:-1] + fraction * np.diff(log10_C), np.inf)
    nearest = np.abs(crossings - np.log10(after.C_low)).argmin(1)
    nearest_crossing = crossings[np.arange(len(crossings)), nearest]

    without_crossing = np.where(lead[:, -1] > 0, -np.inf, np.inf)
    low, high = central_interval(np.where(crosses.any(1), nearest_crossing, without_crossing))
    return None if low is None else 10**low, None if high is None else 10**high


def spread_indices(length: int, count: int) -> NDArray[np.intp]:
    """At most `count` of the indices 0 .. length - 1, evenly spread, both ends included."""
    return np.unique(np.linspace(0, length - 1, count).round().astype(int))


def compare_schedules(
    estimate: SweepEstimate, runs: Sequence[RunRecord], metric: str, compute: str
) -> tuple[ScheduleRow, ...]:
    """Each schedule (runs whose n changes along C) against the best fixed n, by name.

    A row has the mean of the schedule's seeds, at the C at which fixed cells have data too. runs:
    those with a schedule only; metric: such as "avg@4"; compute: the unit of C, such as
    "rollouts"."""
    tracks = build_tracks(runs, metric, compute) if runs else ()
    by_name = group_by(tracks, lambda track: track.run.cell.schedule)
    return tuple(
        _compare_schedule(estimate, name, seeds) for name, seeds in sorted(by_name.items())
    )


def _compare_schedule(estimate: SweepEstimate, name: str, seeds: Sequence[RunTrack]) -> ScheduleRow:
    """One schedule's mean reward against the highest curve of the fixed cells, at each C.

    These are the C at which all its seeds were evaluated and a fixed cell has data. name: the
    schedule's; seeds: its runs, at least one."""
    # A target is the budget C for which an evaluation was made, the same for all seeds, while the
    # rollouts by then may differ a little.
    # target 0, the base policy, is left out: it is the same for all
    shared = [evaluation for target, evaluation in evaluations_by_target(seeds).items() if target]
    C = np.array([evaluation.C for evaluation in shared])
    rewards = np.array([evaluation.R for evaluation in shared])

    # [points, cells], also without any point; points at which no fixed cell has data are left out
    curves = estimate.curves
    measured = np.array(
        [[c.C_low <= x <= c.C_high * (1 + 1e-9) for c in curves] for x in C], dtype=bool
    ).reshape(-1, len(curves))
    is_comparable = measured.any(1)
    C = C[is_comparable]
    rewards = rewards[is_comparable]
    measured = measured[is_comparable]

    fixed_rewards = np.where(measured, np.array([curve_reward(c, C) for c in curves]).T, -np.inf)
    best = fixed_rewards.argmax(1)
    points = []
    for i, cell in enumerate(best.tolist()):
        point = SchedulePoint(
            C=float(C[i]),
            reward=float(rewards[i]),
            best_fixed=float(fixed_rewards[i, cell]),
            n=curves[cell].n,
            B_p=curves[cell].B_p,
        )
        points.append(point)

    gains = np.array([p.reward - p.best_fixed for p in points])
    first_cell = seeds[0].run.cell
    return ScheduleRow(
        name=name,
        stages=schedule_text(first_cell.stages, first_cell.n_max),
        seeds=tuple(track.run.cell.seed for track in seeds),
        evaluations=tuple(len(track.C) for track in seeds),
        points=tuple(points),
        gain=float(gains.mean()) if len(gains) else None,
        interval=_gain_interval(estimate, C, rewards, len(seeds)) if len(gains) else None,
    )


def _gain_interval(
    estimate: SweepEstimate, C: FloatArray, rewards: FloatArray, num_seeds: int
) -> Interval | None:
    """The interval of a schedule's mean gain over the best fixed n; None without draws.

    It combines the spread of the best fixed curve over the draws with how far the schedule's runs
    may be off by chance. C, rewards: float[points], the schedule's, at least one; num_seeds: how
    many runs the rewards are the mean of."""
    if estimate.draws is None or estimate.intervals is None:
        return None

    values = estimate.draws.curves_at(C[:, None])  # [points, replicates, cells]
    # [points, 1, cells]; no slack: cells count within their data only
    is_measured = estimate.draws.is_measured(C, slack=0.0).T[:, None]
    best_fixed = np.where(is_measured, values, -np.inf).max(-1).mean(0)  # [replicates]

    # The deviation of a run from its expectation is the same at all its points, so that only more
    # seeds average it out; the noise of an evaluation is averaged over the points too.
    run_sd = estimate.intervals.run_sd / np.sqrt(num_seeds)
    noise_sd = estimate.intervals.noise_sd / np.sqrt(num_seeds * len(C))
    rng = np.random.default_rng(LUCK_SEED)
    deviation = rng.normal(0, float(np.hypot(run_sd, noise_sd)), len(best_fixed))
    # Where nothing was learnt, all curves are equal, flat at A, and the schedule's reward is as
    # uncertain as that of the fixed cells.
    if estimate.is_flat:
        deviation = rng.permutation(best_fixed - estimate.curves[0].A)
    low, high = central_band(rewards.mean() - best_fixed + deviation)
    return float(low), float(high)
