"""Where the cells of a sweep that learns begin: before its first right answer a run shows 0 of N at
every evaluation, and what a curve says there (1e-92, or what ten thousand rollouts would be needed
to see) says nothing of n. Up to there a cell stands at the level that its evaluations show, no
interval is narrower than k of N allows, and cells that stand at it are equal. So it is where all
begin at 1, or at another level that evaluations repeat exactly. (A sweep that stands at one level
to its end is in flat_sweep.py.)"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from isojax.scaling.curves.sweep_estimate import SweepEstimate
from isojax.scaling.evaluation_size import SAME_REWARD, EvaluationSize, evaluation_size
from isojax.scaling.result import FlatStart
from isojax.scaling.tracks import FloatArray, RunTrack, TracksByCell

# Evaluations at the level, to say that a cell stands there: of all its seeds together at 0 or 1,
# where right answers or wrong ones are missing; of each run at another level, which a few
# evaluations have by chance.
MIN_AT_BOUND, MIN_AT_LEVEL = 3, 4


def add_flat_starts(estimate: SweepEstimate, cells: TracksByCell, metric: str) -> SweepEstimate:
    """The estimate whose curves and draws stand at the level where their cells do."""
    size = evaluation_size([track for seeds in cells.values() for track in seeds], metric)
    starts = find_flat_starts(cells, size)
    curves = [replace(curve, flat_start=starts.get(curve.key)) for curve in estimate.curves]
    draws = estimate.draws
    if draws is not None:
        flat_starts = tuple(starts.get(key) for key in draws.keys) if starts else ()
        draws = replace(draws, flat_starts=flat_starts, rollouts=size.rollouts)
    return replace(estimate, curves=curves, draws=draws)


def find_flat_starts(
    cells: TracksByCell, size: EvaluationSize
) -> Mapping[tuple[int, int], FlatStart]:
    """Of the cells that have one; all begin at one level."""
    level = float(np.median([track.R[0] for seeds in cells.values() for track in seeds]))
    starts = {}
    for key, seeds in cells.items():
        C_flat, C_rise = _flat_range(seeds, level, size.step)
        if C_flat > 0:
            starts[key] = FlatStart(
                level, size.rollouts, C_flat, None if np.isinf(C_rise) else C_rise
            )
    return starts


def _flat_range(seeds: Sequence[RunTrack], level: float, step: float) -> tuple[float, float]:
    """C of the last evaluation of a cell's seeds at the level before the first one that is not, and
    C of that, infinite where there is none; (0, 0) of a cell that does not begin at the level."""
    is_bound = min(level, 1 - level) <= SAME_REWARD
    hit = step if is_bound else 0.0
    departures = [_first_departure(track.R, level, hit) for track in seeds]
    C_rise = min(
        (float(track.C[i]) for track, i in zip(seeds, departures, strict=True) if i < len(track.C)),
        default=np.inf,
    )

    at_level = [
        track.C[:i][track.C[:i] < C_rise] for track, i in zip(seeds, departures, strict=True)
    ]
    enough = (
        sum(map(len, at_level)) >= MIN_AT_BOUND
        if is_bound
        else min(map(len, at_level)) >= MIN_AT_LEVEL
    )
    C_flat = max((float(C[-1]) for C in at_level if len(C)), default=0.0)
    return (C_flat, C_rise) if enough else (0.0, 0.0)


def _first_departure(R: FloatArray, level: float, hit: float) -> int:
    """The first evaluation that leaves the level, their number where none does. A single hit is no
    departure, once."""
    is_off = np.abs(R - level) > SAME_REWARD
    off = np.flatnonzero(is_off).tolist()
    if (
        off
        and abs(R[off[0]] - level) <= hit * (1 + 1e-6)
        and not is_off[off[0] + 1 : off[0] + 2].any()
    ):
        off = off[1:]
    return off[0] if off else len(R)
