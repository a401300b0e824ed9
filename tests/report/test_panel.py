"""The panel of training problems: shares by hand, which cells are compared, and what is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.report.figures.problem_panel import compared_panels, describe_panels, panel_figure
from isojax.report.page import html_page
from isojax.scaling.checks.run_health import FlaggedRun, HealthFlag, RunHealth
from isojax.scaling.result import FitResult


def run(n: int, panels: list[tuple[int, list[int]]], seed: int = 0, B_p: int = 8, samples: int = 2) -> RunRecord:
    """A run whose panel's correct answers at each target are given."""
    points = []
    for target, correct in panels:
        spent = (target, target // 10, target + n) if target else (0, 0, 0)
        points.append(EvalPoint(*spent, 0, {"avg@2": 0.5}, samples=samples, extra={"panel": tuple(correct)}))
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
    assert small.C.tolist() == [0, 102, 202] and large.C.tolist() == [0, 108, 208]  # 400 was reached by n = 8 alone
    assert small.correct_shares.tolist() == [[0.5, 0.5, 0], [0.375, 0.375, 0.25], [0.375, 0.125, 0.5]]
    assert large.correct_shares[-1].tolist() == [0, 0.5, 0.5]
    assert small.final_frequencies(0).tolist() == [1, 0.5, 0, 0]


def test_the_widest_range_of_n_decides_the_batch(fit: FitResult) -> None:
    other = [run(2, [(0, [0]), (100, [1])], B_p=16), run(16, [(0, [0]), (100, [1])], B_p=16)]
    one = [run(n, [(0, [0]), (100, [1])]) for n in (4, 8)]
    assert [(c.B_p, c.n) for c in compared_panels(fit, [*one, *other])] == [(16, 2), (16, 16)]
    assert [(c.B_p, c.n) for c in compared_panels(fit, one[:1])] == [(8, 4)]


def test_without_panels_of_the_same_problems_there_is_nothing(fit: FitResult) -> None:
    bare = RunRecord(Cell(8, 2, 0), (EvalPoint(0, 0, 0, 0, {"avg@2": 0.5}), EvalPoint(100, 10, 100, 0, {"avg@2": 0.5})))
    for runs in ([], [bare], [RUNS[0], run(8, [(0, [0]), (200, [1])])], [run(2, [(0, [0, 1])])]):
        assert compared_panels(fit, runs) == [] and panel_figure(fit, runs) is None and describe_panels(fit, runs) == []


def test_what_it_says(fit: FitResult) -> None:
    """At 0 in the end: (2 + 1) of 8 at n = 2, none at n = 8; at 1: half and half."""
    zero, one, difference = describe_panels(fit, RUNS)
    condition = "Of 4 training problems never solved in 2 samples at C = 202, B_p = 8"
    assert f"{condition}: 37.5% at n = 2, 0% at n = 8 (50% by the base policy)" in zero
    assert "always solved in 2 samples at C = 202, B_p = 8: 50% at n = 2, 50% at n = 8 (0% by the base policy)" in one
    error = 100 * np.std([-1, -0.5, 0, 0], ddof=1) / 2  # 24 points: -38 is within two of them
    assert (
        f"does not differ between n = 2 and n = 8 by more than chance (-38 ± {error:.0f} percentage points)"
        in difference
    )


@pytest.mark.parametrize(
    ("swapped", "words"), [(False, "leaves fewer problems never solved than"), (True, "leaves more problems never")]
)
def test_a_difference_beyond_chance(fit: FitResult, swapped: bool, words: str) -> None:
    low, high = [0] * 30 + [2] * 20, [0] * 5 + [2] * 45
    ends = (high, low) if swapped else (low, high)
    runs = [run(n, [(0, [0] * 50), (100, right)]) for n, right in zip((2, 8), ends, strict=True)]
    assert words in describe_panels(fit, runs)[-1] and "50 ± 7 percentage points" in describe_panels(fit, runs)[-1]


def test_the_page_shows_it_and_which_runs_broke(made: tuple[Path, FitResult], make_sweep: Any) -> None:
    html = (made[0] / "report.html").read_text(encoding="utf-8")
    assert (
        'id="panel"' in html
        and "Of 50 training problems never solved in 4 samples" in html
        and "No run is flagged" in html
    )
    fit, runs = make_sweep(B_ps=(16,), ns=(4, 8))
    assert 'id="panel"' not in html_page.render(Path("nowhere"), [fit], runs, {})
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
