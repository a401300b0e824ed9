"""Sweeps compared: hand-written fits whose differences are known, and synthetic worlds like the
paper's Fig. 13.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from isojax.report.command_figures.compared_sweeps import comparison_figure
from isojax.scaling.compare_sweeps import compare_sweeps, saturation_C
from isojax.scaling.result import FitResult
from tests.refusals import refused
from tests.scaling.documents import SHAPES, altered, document, with_curve
from tests.scaling.sweeps import fit
from tests.scaling.synthetic import world
from tests.scaling.synthetic_curves import Declining, Hill, TrueCurve

HILLS = {
    4: Hill(0.2, 0.50, 1.1, 4e3),
    16: Hill(0.2, 0.58, 1.1, 1.2e4),
    64: Hill(0.2, 0.66, 1.1, 4e4),
}
FEW = {**HILLS, 64: Declining(HILLS[64], 4.5e4, 0.12)}
TOP = 1e5  # where the hand-written cells end
GAIN = 1 / (1 + 8e3 / TOP)  # d reward / d A of 16 x 16, their best cell there


def fitted(
    curves: Mapping[int, TrueCurve], seed: int, mode: str = "hierarchical", **more: Any
) -> FitResult:
    settings: dict[str, Any] = {
        "B_p": (16,),
        "seeds": 2,
        "ratio": 1.45,
        "budget": 400_000,
        "run_sd": 0.005,
        "problems": 400,
        "spread": None,
    }
    runs = world(n=tuple(curves), seed=seed, curve=lambda _, n: curves[n], **(settings | more)).runs
    return fit(runs, mode=mode, replicates=100)


@pytest.fixture(scope="module")
def many() -> FitResult:
    return fitted(HILLS, 10)


@pytest.fixture(scope="module")
def few() -> FitResult:
    return fitted(FEW, 11)


def shifted(by: float) -> FitResult:
    return document({cell: (A + by, B, mid) for cell, (A, B, mid) in SHAPES.items()})


def test_where_n_levels_off() -> None:
    C = np.array([1.0, 10.0, 100.0, 1000.0])
    paths = np.array([[2, 2, 8, 8], [2, 8, 32, 32], [4, 4, 4, 4], [8, 2, 8, 2]])
    assert saturation_C(paths, C, 32) == pytest.approx(
        [math.sqrt(1000), math.inf, -math.inf, math.sqrt(1e5)]
    )


def test_the_difference_of_two_sweeps_is_that_of_independent_ones() -> None:
    first, other = compare_sweeps([document(), shifted(0.05)], ["a", "b"]).sweeps
    assert (
        first.difference is None and first.at[-1].n == 16 and first.at[-1].C == pytest.approx(TOP)
    )
    d = other.difference
    assert d.value == pytest.approx(0.05 * GAIN, abs=1e-6) and d.p_higher == 1.0
    # The spread of the leading cell, times sqrt 2 for independence.
    single = 2 * 1.645 * 0.006 * GAIN
    assert d.high - d.low == pytest.approx(math.sqrt(2) * single, rel=0.08)


def test_more_cells_of_one_reward_are_no_better() -> None:
    """The best draw of many equal cells is the luckiest one's: the interval is that of the leading
    cell, as in a fit's frontier."""
    one, many = (
        document({(16, n): (0.6, 1.0, 2e3) for n in ns}, sd=0.02)
        for ns in ((4,), (4, 8, 16, 32, 64, 128))
    )
    _, other = compare_sweeps([one, many], ["one", "many"]).sweeps
    assert other.difference.value == pytest.approx(0, abs=1e-6)
    assert other.difference.low == pytest.approx(-other.difference.high, abs=0.004)
    assert other.at[-1].low < other.at[
        -1
    ].reward - 0.02 and other.difference.p_higher == pytest.approx(0.5, abs=0.05)


def test_an_interval_of_n_has_measured_n_alone() -> None:
    """In 5% of the draws n = 16 is best, else n = 64: a linear quantile is 61, and was cut to a
    whole number."""
    fit = document({(16, 16): (0.5, 1.0, 2e3), (16, 64): (0.6, 1.0, 2e3)}, sd=0.0, replicates=100)
    A = ((0.7,) * 5 + (0.5,) * 95, (0.6,) * 100)
    fit = altered(fit, draws=fit.draws.model_copy(update={"A": A}))
    row = compare_sweeps([fit, fit], ["a", "b"]).sweeps[0].at[-1]
    assert (row.n, row.n_low, row.n_high) == (64, 64, 64)


def test_a_sweep_does_not_differ_from_itself() -> None:
    result = compare_sweeps([document(), document()], ["a", "b"])
    d, e = result.sweeps[1].difference, result.sweeps[1].earlier
    assert (
        d.value == 0
        and d.low < -0.005
        and d.high > 0.005
        and d.p_higher == pytest.approx(0.5, abs=0.01)
    )
    assert e.p_earlier == pytest.approx(e.p_later) and e.p_earlier < 0.5
    assert any("no clear difference" in s for s in result.sentences)
    assert any(
        "cannot say whether n* levels off earlier in b than in a" in s for s in result.sentences
    )


def test_few_problems_make_n_level_off_earlier(many: FitResult, few: FitResult) -> None:
    """The paper's Fig. 13: with few training problems the largest n overfits, and the frontier
    stays at a smaller one.
    """
    result = compare_sweeps([many, few], ["many", "few"])
    first, other = result.sweeps
    assert (
        first.saturation.n == 64
        and first.saturation.C is None
        and first.saturation.below_largest < 0.05
    )
    assert other.saturation.n == 16 and other.saturation.below_largest > 0.95
    truth = 2.6e4  # where n = 16 overtakes n = 4
    assert other.saturation.low < truth < other.saturation.high
    assert other.earlier.p_earlier > 0.95 and other.earlier.p_later < 0.05
    C = result.C_high
    true = HILLS[16].at(C) - HILLS[64].at(C)
    d = other.difference
    assert d.high < 0 and abs(d.value - true) < d.high - d.low
    assert [(o.n, o.runs) for o in other.overfitting] == [(64, 2)] and not first.overfitting
    for words in (
        "n* levels off earlier in few than in many",
        "few overfits: training reward rises",
        "many: n* ends at the largest n",
    ):
        assert any(words in s for s in result.sentences), words
    swapped = compare_sweeps([few, many], ["few", "many"]).sweeps[1]
    assert swapped.earlier.p_later == pytest.approx(other.earlier.p_earlier)
    assert swapped.difference.value == pytest.approx(-other.difference.value)
    drawing = comparison_figure(result)
    assert (
        drawing.png.startswith(b"\x89PNG")
        and drawing.pdf.startswith(b"%PDF")
        and comparison_figure(result).png == drawing.png
    )


def test_where_n_makes_no_difference_it_is_said(many: FitResult) -> None:
    flat = fitted({n: HILLS[16] for n in HILLS}, 12)
    result = compare_sweeps([many, flat], ["many", "flat"])
    row = result.sweeps[1]
    assert (
        row.no_effect
        and row.saturation is None
        and row.earlier is None
        and row.difference.low is not None
    )
    assert "flat: n makes no difference that its evaluations can show" in result.sentences
    assert any(s.endswith("n makes no difference in flat") for s in result.sentences)
    assert comparison_figure(result).png


def test_n_is_compared_over_what_both_measured(many: FitResult) -> None:
    """A sweep that never ran n = 64 levels off at 16 for want of it, which proves nothing."""
    short = fitted({n: HILLS[n] for n in (4, 16)}, 13)
    result = compare_sweeps([many, short], ["many", "short"])
    row = result.sweeps[1]
    assert row.earlier.shared_n == (4, 16) and row.earlier.p_earlier < 0.05
    assert any(
        note.startswith("the runs did not measure the same n (many: 4, 16, 64; short: 4, 16)")
        for note in result.notes
    )
    single = compare_sweeps([many, fitted({64: HILLS[64]}, 14)], ["many", "alone"])
    assert single.sweeps[1].earlier is None and any(
        "they share fewer than two values of n" in s for s in single.sentences
    )


def test_paper_mode_has_no_intervals() -> None:
    fits = [fitted(curves, seed, "paper") for curves, seed in ((HILLS, 10), (FEW, 11))]
    result = compare_sweeps(fits, ["many", "few"])
    row = result.sweeps[1]
    assert (
        row.difference.low is None
        and row.at[0].low is None
        and row.saturation.below_largest is None
    )
    assert (
        "where n* levels off cannot be compared between few and many: a fit has no intervals"
        in result.sentences
        and any("no intervals" in note for note in result.notes)
    )
    assert comparison_figure(result).png


@pytest.mark.parametrize(
    ("fits", "labels"),
    [
        ([document()], ["a"]),
        ([document(), document()], ["a"]),
        ([document(), document()], ["a", "a"]),
        (
            [document(), altered(document(), metric="best@4")],
            ["a", "b"],
        ),
        (
            [document(), altered(document(), compute="tokens")],
            ["a", "b"],
        ),
        (
            [document(), altered(document(), mode="paper")],
            ["a", "b"],
        ),
    ],
)
def test_refusals(fits: list[FitResult], labels: list[str]) -> None:
    with refused():
        compare_sweeps(fits, labels)


def test_budgets_must_overlap() -> None:
    far = document()
    for cell in SHAPES:
        far = with_curve(far, cell, C_low=2e5, C_high=2e6)
    with refused():
        compare_sweeps([document(), far], ["a", "b"])
