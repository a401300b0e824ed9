"""Runs whose n changes along C, against the best fixed n, in a world whose curves are known."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

import isojax
from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.core.schedule import parse_schedule
from isojax.scaling.result import FitResult
from tests.refusals import refused
from tests.scaling.synthetic import world

STAGES = parse_schedule("16x2, 16x8 from 4000")


def scheduled(runs: list[RunRecord], gain: float, seed: int = 0) -> RunRecord:
    """A run that is better than the best fixed run by this gain, wherever one was measured."""
    by_C: dict[int, list[EvalPoint]] = {}
    for run in runs:
        for point in run.points:
            by_C.setdefault(point.target, []).append(point)
    points = []
    for target, at_C in sorted(by_C.items()):
        best = max(point.metrics["avg@4"] for point in at_C)
        points.append(
            EvalPoint(
                target, target // 32, target, 0, {"avg@4": min(best + gain * (target > 0), 1.0)}
            )
        )
    return RunRecord(Cell(16, 2, seed, "grow", STAGES), tuple(points))  # type: ignore[arg-type]


OPTIONS = isojax.FitOptions(replicates=60)


@cache
def fixed_runs_and_fit() -> tuple[list[RunRecord], FitResult]:
    runs = [replace(run, cell_hash="") for run in world(seeds=2, problems=400, n=(2, 8, 32)).runs]
    return runs, isojax.fit(runs, "avg@4", options=OPTIONS)


@pytest.mark.parametrize("gain", [0.05, -0.08])
def test_the_gain_over_the_best_fixed_n(gain: float) -> None:
    runs, fixed_alone = fixed_runs_and_fit()
    fit = isojax.fit(
        [*runs, scheduled(runs, gain), scheduled(runs, gain, seed=1)], "avg@4", options=OPTIONS
    )
    (row,) = fit.schedules
    assert (row.name, row.seeds, row.stages) == ("grow", (0, 1), "16x2, 16x8 from 4000")
    assert (
        row.gain == pytest.approx(gain, abs=0.025) and row.interval[0] < row.gain < row.interval[1]
    )
    # schedules move no curve
    assert fit.curves == fixed_alone.curves and fit.joint == fixed_alone.joint
    assert {point.n for point in row.points} <= {2, 8, 32} and len(row.points) > 5


def test_evaluations_of_one_target_are_compared_with_the_cells_that_were_measured_there() -> None:
    """Seeds whose n changes at other C pass a target at other C; the cell of n = 8 begins late."""
    runs = [replace(run, cell_hash="") for run in world(seeds=2, problems=100, n=(2, 8)).runs]
    late = [r if r.cell.n == 2 else replace(r, points=(r.points[0], *r.points[5:])) for r in runs]
    seeds = [scheduled(runs, 0.05), scheduled(runs, 0.05, seed=1)]
    points = tuple(replace(p, rollouts=p.rollouts + 16 * (p.rollouts > 0)) for p in seeds[1].points)
    seeds[1] = replace(seeds[1], points=points)
    (row,) = isojax.fit(
        [*late, *seeds], "avg@4", options=isojax.FitOptions(replicates=20)
    ).schedules
    first_C = min(p.rollouts for r in late if r.cell.n == 8 for p in r.points if p.rollouts)
    assert len(row.points) == len(points) - 1 and row.interval is not None
    assert {p.n for p in row.points if first_C > p.C} == {2} and row.points[0].C == points[
        1
    ].rollouts - 8


def test_schedules_alone_make_no_law() -> None:
    runs = list(world(seeds=1, problems=100, n=(2, 8)).runs)
    with refused():
        isojax.fit([scheduled(runs, 0.0)], "avg@4")
