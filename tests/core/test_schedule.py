"""Schedules as text, and the arithmetic of cells whose B_p and n change along C."""

from __future__ import annotations

import math

import pytest

from isojax.core.nouns import Cell
from isojax.core.schedule import (
    FittedSchedule,
    GradientSchedule,
    Span,
    Stage,
    parse_schedule,
    schedule_text,
)
from tests.refusals import refused


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("32x4", [(0, 32, 4)]),
        ("32x4, 32x8 from 5000,64x16 from 1.5e4", [(0, 32, 4), (5000, 32, 8), (15000, 64, 16)]),
        (
            "32x2 to 32x16 as C^0.5 from 2000",
            [(0, 32, 2), (2000, 32, 4), (8000, 32, 8), (32000, 32, 16)],
        ),
        ("16x8 to 64x8 as C^1 from 500", [(0, 16, 8), (500, 32, 8), (1000, 64, 8)]),
        # the others are beyond any C
        ("32x2 to 32x16 as C^0.0005 from 10", [(0, 32, 2), (10, 32, 4)]),
    ],
)
def test_what_a_schedule_says(text: str, stages: list[tuple[int, int, int]]) -> None:
    parsed = parse_schedule(text)
    assert parsed == tuple(Stage(*stage) for stage in stages)
    assert parse_schedule(schedule_text(parsed)) == parsed


def test_a_schedule_by_gradient() -> None:
    assert parse_schedule("32x2 to 32x16 by gradient") == GradientSchedule(Stage(0, 32, 2), 16)
    assert schedule_text([Stage(0, 32, 2)], n_max=16) == "32x2 to 32x16 by gradient"
    cell = Cell(32, 2, 0, "auto", (Stage(0, 32, 2),), n_max=16)
    assert cell.pairs == ((32, 2), (32, 4), (32, 8), (32, 16)) and cell.spans == (
        Span(0, 0, 32, 2),
    )
    later = cell.with_stages([[0, 32, 2], [128, 32, 4]])
    assert (
        later.pairs == cell.pairs
        and (later.next_switch(0), later.next_switch(128)) == (128, None)
        and later.updates_to_reach(300) == 4
    )


def test_a_schedule_from_a_fit() -> None:
    assert parse_schedule("n*(2C) of runs/quickstart at B_p=32") == FittedSchedule(
        2.0, "runs/quickstart", 32
    )
    assert parse_schedule("n*(C) of a/fit.json at B_p = 8") == FittedSchedule(1.0, "a/fit.json", 8)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "32x4 at 500",
        "32x4 from 10",
        "32x4, 32x8 from 500, 32x2 from 500",
        "32x0",
        "32x2 to 32x12 as C^.5 from 100",
        "32x2 to 64x4 as C^.5 from 100",
        "32x4 to 32x2 as C^.5 from 100",
        "32x2 to 32x12 by gradient",
        "16x2 to 32x2 by gradient",
        "16x1 to 16x8 by gradient",
        "32x2 to 32x4 as C^0 from 100",
        "32x2 to 32x32 as C^10 from 4",
    ],
)
def test_what_is_no_schedule(text: str) -> None:
    with refused(where="schedule"):
        parse_schedule(text)


@pytest.mark.parametrize(
    "text",
    [
        "8x4",
        "8x2, 8x4 from 100, 16x4 from 290",
        "8x2, 8x4 from 10, 8x8 from 12, 8x16 from 400",
        "4x1, 5x7 from 1",
    ],
)
def test_a_cell_counts_as_a_run_does(text: str) -> None:
    """Against a run that takes one update after the other, with the newest stage whose C is
    reached."""
    stages = parse_schedule(text)
    assert not isinstance(stages, FittedSchedule | GradientSchedule)
    cell = Cell(stages[0].B_p, stages[0].n, 3, "grow", stages)
    C, reached, sizes = 0, [0], []
    while C < 1000:
        stage = next(stage for stage in reversed(stages) if stage.C <= C)
        C += stage.B_p * stage.n
        reached.append(C)
        sizes.append(stage[1:])
    for M, rollouts in enumerate(reached[:-1]):
        assert cell.rollouts_after(M) == rollouts and cell.span_at(M)[2:] == sizes[
            M
        ] == cell.pair_at(rollouts)
        switches = [m for m in range(M + 1, len(sizes)) if sizes[m] != sizes[m - 1]]
        switch, B = cell.next_switch(rollouts), sizes[M][0] * sizes[M][1]
        assert (switch is not None) == bool(switches)
        assert switch is None or M + math.ceil((switch - rollouts) / B) == switches[0]
        assert sum(span.B * updates for span, updates in cell.updates_by_span(M)) == rollouts
    for target in range(1000):
        M = next(M for M, rollouts in enumerate(reached) if rollouts >= target)
        assert (cell.updates_to_reach(target), cell.rollouts_to_reach(target)) == (M, reached[M])


def test_names() -> None:
    stages = (Stage(0, 8, 2), Stage(100, 8, 4))
    assert Cell(8, 2, 1).name == "8x2-s1" and Cell(8, 2, 1).pairs == ((8, 2),)
    assert Cell(8, 2, 1, "grow", stages).name == "grow-s1" and Cell(
        8, 2, 1, "grow", stages
    ).pairs == ((8, 2), (8, 4))
    assert sorted([Cell(8, 2, 0, "grow", stages), Cell(8, 2, 0)])[0] == Cell(8, 2, 0)
