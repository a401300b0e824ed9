"""Runs whose n changes along C, against the best fixed n at each C."""

from collections.abc import Sequence

import numpy as np

from isojax.core.nouns import RunRecord
from isojax.core.schedule import schedule_text
from isojax.scaling.curves.hill import curve_reward
from isojax.scaling.curves.sweep_estimate import SweepEstimate
from isojax.scaling.intervals import central_band
from isojax.scaling.result import SchedulePoint, ScheduleRow
from isojax.scaling.tracks import FloatArray, RunTrack, build_tracks, group_by

NOISE_SEED = 3


def compare_schedules(
    estimate: SweepEstimate, runs: Sequence[RunRecord], metric: str, compute: str
) -> tuple[ScheduleRow, ...]:
    """A row for each schedule, the mean of its seeds, at the evaluations that fixed cells were measured at too."""
    tracks = build_tracks(runs, metric, compute) if runs else ()
    by_name = group_by(tracks, lambda track: track.run.cell.schedule)
    return tuple(_compare(estimate, name, seeds) for name, seeds in sorted(by_name.items()))


def _compare(estimate: SweepEstimate, name: str, seeds: Sequence[RunTrack]) -> ScheduleRow:
    targets = [[p.target for p in track.run.points] for track in seeds]
    by_seed = [dict(zip(x, zip(t.C, t.R, strict=True), strict=True)) for x, t in zip(targets, seeds, strict=True)]
    common = sorted(set.intersection(*map(set, by_seed)) - {0})  # all seeds were evaluated there, at about the same C
    C, rewards = np.array([[run[x] for x in common] for run in by_seed]).reshape(len(seeds), -1, 2).mean(0).T
    curves = estimate.curves
    measured = np.array([[c.C_low <= x <= c.C_high * (1 + 1e-9) for c in curves] for x in C]).reshape(-1, len(curves))
    C, rewards, measured = C[measured.any(1)], rewards[measured.any(1)], measured[measured.any(1)]
    reached = np.where(measured, np.array([curve_reward(c, C) for c in curves]).T, -np.inf)
    best = reached.argmax(1)
    points = [
        SchedulePoint(C=x, reward=r, best_fixed=values[i], n=curves[i].n, B_p=curves[i].B_p)
        for x, r, values, i in zip(C.tolist(), rewards.tolist(), reached.tolist(), best.tolist(), strict=True)
    ]
    gains = np.array([p.reward - p.best_fixed for p in points])
    return ScheduleRow(
        name=name,
        stages=schedule_text(seeds[0].run.cell.stages, seeds[0].run.cell.n_max),
        seeds=tuple(track.run.cell.seed for track in seeds),
        evaluations=tuple(len(track.C) for track in seeds),
        points=tuple(points),
        gain=float(gains.mean()) if len(gains) else None,
        interval=_interval(estimate, C, rewards, len(seeds)) if len(gains) else None,
    )


def _interval(
    estimate: SweepEstimate, C: FloatArray, rewards: FloatArray, num_seeds: int
) -> tuple[float, float] | None:
    """Of the mean gain: the spread of the best fixed cells over the draws, and the luck of the schedule's runs."""
    if estimate.draws is None or estimate.intervals is None:
        return None
    values = estimate.draws.curves_at(C[:, None])  # [points, replicates, cells]
    is_measured = estimate.draws.is_measured(C, slack=0.0).T[:, None]
    fixed = np.where(is_measured, values, -np.inf).max(-1).mean(0)
    luck_sd = estimate.intervals.run_sd / np.sqrt(num_seeds)
    noise_sd = estimate.intervals.noise_sd / np.sqrt(num_seeds * len(C))
    luck = np.random.default_rng(NOISE_SEED).normal(0, float(np.hypot(luck_sd, noise_sd)), len(fixed))
    low, high = central_band(rewards.mean() - fixed + luck)
    return float(low), float(high)
