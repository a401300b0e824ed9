"""The panel of training problems: shares by hand, and which cells are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.report.figures.panel import compared_panels, panel_figure
from isojax.report.page import html_page
from isojax.scaling.result import FitResult, FlaggedRun, HealthFlag, RunHealth


def run(
    n: int, panels: list[tuple[int, list[int]]], seed: int = 0, B_p: int = 8, samples: int = 2
) -> RunRecord:
    """A run whose panel's correct answers at each target are given."""
    points = []
    for target, correct in panels:
        spent = (target, target // 10, target + n) if target else (0, 0, 0)
        points.append(
            EvalPoint(*spent, 0, {"avg@2": 0.5}, samples=samples, extra={"panel": tuple(correct)})
        )
    return RunRecord(Cell(B_p, n, seed), tuple(points))


@pytest.fixture(name="fit")
def _fit(make_sweep: Any) -> FitResult:
    """A fit of B_p = 8 with n = 2, 4 and 8."""
    return make_sweep(B_ps=(8,), ns=(2, 4, 8))[0]


RUNS = [
    run(2, [(0, [0, 0, 1, 1]), (100, [0, 0, 1, 2]), (200, [0, 0, 2, 2])]),
    run(2, [(0, [0, 0, 1, 1]), (100, [0, 1, 1, 2]), (200, [0, 1, 2, 2])], seed=1),
    run(4, [(0, [0, 0, 1, 1]), (200, [0, 0, 0, 0])]),
    run(8, [(0, [0, 0, 1, 1]), (100, [1, 1, 1, 1]), (200, [1, 1, 2, 2]), (400, [2, 2, 2, 2])]),
]


def test_the_smallest_and_the_largest_n_where_both_were_evaluated(fit: FitResult) -> None:
    small, large = compared_panels(fit, RUNS)
    assert (small.n, large.n, small.B_p) == (2, 8, 8)
    # 400 was reached by n = 8 alone
    assert small.C.tolist() == [0, 102, 202] and large.C.tolist() == [0, 108, 208]
    assert small.correct_shares.tolist() == [
        [0.5, 0.5, 0],
        [0.375, 0.375, 0.25],
        [0.375, 0.125, 0.5],
    ]
    assert large.correct_shares[-1].tolist() == [0, 0.5, 0.5]


def test_the_widest_range_of_n_decides_the_batch(fit: FitResult) -> None:
    other = [run(2, [(0, [0]), (100, [1])], B_p=16), run(16, [(0, [0]), (100, [1])], B_p=16)]
    one = [run(n, [(0, [0]), (100, [1])]) for n in (4, 8)]
    assert [(c.B_p, c.n) for c in compared_panels(fit, [*one, *other])] == [(16, 2), (16, 16)]
    assert [(c.B_p, c.n) for c in compared_panels(fit, one[:1])] == [(8, 4)]


def test_without_panels_of_the_same_problems_there_is_nothing(fit: FitResult) -> None:
    bare = RunRecord(
        Cell(8, 2, 0),
        (EvalPoint(0, 0, 0, 0, {"avg@2": 0.5}), EvalPoint(100, 10, 100, 0, {"avg@2": 0.5})),
    )
    for runs in ([], [bare], [RUNS[0], run(8, [(0, [0]), (200, [1])])], [run(2, [(0, [0, 1])])]):
        assert compared_panels(fit, runs) == [] and panel_figure(fit, runs) is None


@pytest.mark.slow
def test_the_page_shows_it_and_which_runs_broke(
    made: tuple[Path, FitResult], make_sweep: Any
) -> None:
    html = (made[0] / "report.html").read_text(encoding="utf-8")
    assert "pass@1 of a fixed panel of training problems" in html and "No run is flagged" in html
    fit, runs = make_sweep(B_ps=(16,), ns=(4, 8))
    assert "a fixed panel" not in html_page.render(Path("nowhere"), [fit], runs, {})
    flag = HealthFlag("entropy_exploded", 12_000, "entropy went from 0.5 to <4>")
    row = FlaggedRun(B_p=16, n=8, seed=1, points=20, C=250_000, flags=(flag,))
    for left_out, words in ((True, "puts it back"), (False, "as asked")):
        flagged = fit.model_copy(update={"health": RunHealth(left_out=left_out, runs=(row,))})
        broken = html_page.render(Path("nowhere"), [flagged], runs, {})
        assert (
            "seed 1 is " in broken
            and "entropy_exploded from C = 12,000: " in broken
            and "0.5 to &lt;4&gt;" in broken
            and words in broken
        )
