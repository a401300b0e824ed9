"""Recommendations of a paper-mode fit written by hand, where every number can be checked."""

import dataclasses

import numpy as np
import pytest

from isojax.core.nouns import Allocation
from isojax.scaling.allocate.recommend import recommend
from isojax.scaling.result import (
    FitResult,
    FittedCurve,
    FittedRun,
    FrontierFit,
    FrontierRow,
    Law,
    NStarFit,
    StabilityVerdict,
)
from tests.refusals import refused
from tests.scaling.documents import altered, document, without_draws
from tests.scaling.sweeps import fit
from tests.scaling.synthetic import world


def _frontier_fit(B_p, law):
    frontier = (
        FrontierRow(C=1e3, reward=0.1, n=2, B_p=16),
        FrontierRow(C=1e6, reward=0.7, n=32, B_p=16),
    )
    n_star = NStarFit(law=law, no_effect=False)
    return FrontierFit(B_p=B_p, frontier=frontier, crossovers=(), segments=(), n_star=n_star)


# log2 n* = 1 + 4 / (1 + exp(-5 (log10 C - 5))): 2 at low C, 8 at 1e5, 32 at high C.
LAW = Law("sigmoid", 4.0, 5.0, 5.0, 1.0)
# A C / (C + C_mid)
SHAPES = {
    (b, n): (A, 1.0, mid)
    for b in (16, 64)
    for n, A, mid in ((2, 0.4, 1e3), (8, 0.6, 1e4), (32, 0.8, 1e5))
}
FIT = without_draws(document(SHAPES), "paper").model_copy(
    update={
        "base_reward": None,
        "runs": tuple(
            FittedRun(B_p=b, n=n, seed=0, points=9, C_max=1e6, final_reward=0.5) for b, n in SHAPES
        ),
        "curves": tuple(
            FittedCurve(b, n, 0.0, *shape, 1e3, 1e6, 9, 0.01) for (b, n), shape in SHAPES.items()
        ),
        "joint": _frontier_fit(None, LAW),
        "by_B_p": (_frontier_fit(64, Law("constant", 0.0, 0.0, None, 3.0)),),
    }
)


def said(r, text):
    return any(text in reason for reason in r.reasons)


def test_default_rule():
    """C = 1e5: n* = 2^3, B_p = 16, M = floor(1e5 / 128) = 781; .6 C / (C + 1e4) at C = 99968."""
    r = recommend(FIT, 1e5)
    assert r.allocation == Allocation(16, 8, 781)
    assert r.expected_reward == pytest.approx(0.6 * 99968 / 109968)
    assert not r.extrapolated
    assert [(c.B_p, c.n) for c in r.measured_cells[:2]] == [(16, 8), (64, 8)]
    assert r.measured_cells[0].reward == pytest.approx(0.6 / 1.1)
    assert [c.M for c in r.measured_cells if (c.B_p, c.n) == (64, 32)] == [48]


def test_without_a_comparison_the_answer_is_the_same():
    got = recommend(FIT, 1e5, with_details=False)
    assert got == dataclasses.replace(recommend(FIT, 1e5), measured_cells=())


def test_unstable_B_p_is_passed_over():
    f = altered(
        FIT, stability=(StabilityVerdict(16, False, "n=8 fell"), StabilityVerdict(64, True))
    )
    r = recommend(f, 1e5)
    assert r.allocation == Allocation(64, 8, 195)
    assert said(r, "16 (n=8 fell)")
    f = altered(
        FIT, stability=(StabilityVerdict(16, False, "n=8 fell"), StabilityVerdict(64, False))
    )
    with refused():
        recommend(f, 1e5)
    assert said(recommend(f, 1e5, fix={"B_p": 16}), "was unstable: n=8 fell")


def test_beyond_the_data_the_law_saturates_and_says_so():
    r = recommend(FIT, 1e9, extrapolate=True)
    assert r.allocation == Allocation(16, 32, 1953125)
    assert r.extrapolated
    assert said(r, "C is outside the frontier (1000 to 1e+06)")
    assert said(r, "16x32 was measured up to C = 1,000,000")
    f = altered(FIT, joint=_frontier_fit(None, dataclasses.replace(LAW, L=6.0)))  # saturates at 128
    far = recommend(f, 1e9, extrapolate=True)
    assert far.allocation.n == 128
    assert said(far, "n = 128 was never measured")
    assert said(far, "nearest measured cell, 16x32")
    within = recommend(f, 1e6)  # inside the measured range: at most the largest n measured
    assert within.allocation.n == 32


def test_B_max():
    r = recommend(FIT, 1e6, B_max=300)
    assert r.allocation == Allocation(16, 16, 3906)  # 300 // 16 = 18, so 16
    assert said(r, "B_max = 300")
    assert all(c.B_p * c.n <= 300 for c in r.measured_cells)
    with refused(where="B_p"):
        recommend(FIT, 1e6, B_max=8)


def test_fixed_B_p_has_its_own_law():
    r = recommend(FIT, 1e6, fix={"B_p": 64})
    assert r.allocation == Allocation(64, 8, 1953)
    assert {c.B_p for c in r.measured_cells} == {64}
    other = recommend(FIT, 1e5, fix={"B_p": 100})
    assert other.allocation == Allocation(100, 8, 125)
    assert said(other, "no law of its own")
    assert other.expected_reward == pytest.approx(0.6 / 1.1)  # 64x8 is nearest


def test_fixed_B():
    """n* = 8, B_p = 1000 // 8 = 125, M = 100."""
    assert recommend(FIT, 1e5, fix={"B": 1000}).allocation == Allocation(125, 8, 100)
    tight = recommend(FIT, 1e5, fix={"B": 6})
    assert tight.allocation == Allocation(1, 4, 25000)
    with refused(where="B"):
        recommend(FIT, 1e5, B_max=1000, fix={"B": 2000})


def test_fixed_M_takes_the_best_measured_cell_that_fits():
    """M = 100, C = 1e5: B <= 1000. At B_p n M: 16x2 .305, 16x8 .337, 16x32 .271, 64x2 .371, 64x8
    .502, (64x32 too big).
    """
    r = recommend(FIT, 1e5, fix={"M": 100})
    assert r.allocation == Allocation(64, 8, 100)
    assert r.expected_reward == pytest.approx(0.6 * 51200 / 61200)
    assert recommend(FIT, 1e5, B_max=128, fix={"M": 100}).allocation == Allocation(64, 2, 100)
    # M = 10000 leaves B = 10 < 16 x 2: n from n*(C) = 8, B_p = floor(10 / 8).
    assert recommend(FIT, 1e5, fix={"M": 10000}).allocation == Allocation(1, 8, 10000)
    with refused(where="C"):
        recommend(FIT, 1e5, fix={"M": 200_000})


def test_too_small_a_budget():
    with refused(where="C"):
        recommend(FIT, 20)
    assert recommend(FIT, 32).allocation == Allocation(16, 2, 1)


@pytest.mark.parametrize("C", [0, -5, float("nan"), float("inf"), True])
def test_bad_budgets(C):
    with refused(where="C"):
        recommend(FIT, C)


@pytest.mark.parametrize("fix", [{"n": 8}, {"M": 3, "B": 64}, {"M": 0}, {"B_p": 1.5}])
def test_bad_fixes(fix):
    with refused():
        recommend(FIT, 1e5, fix=fix)


@pytest.mark.parametrize("fix", [None, {"M": 100}, {"B": 256}, {"B_p": 64}])
def test_whole_numbers_of_numpy_are_whole_numbers(fix):
    numpy_fix = fix and {name: np.int64(value) for name, value in fix.items()}
    expected = recommend(FIT, 1e5, B_max=300, fix=fix)
    assert recommend(FIT, 1e5, B_max=np.int32(300), fix=numpy_fix) == expected
    with refused(where="B_max"):
        recommend(FIT, 1e5, B_max=np.int64(0))


def test_fits_that_cannot_be_used():
    with refused():
        recommend(altered(FIT, mode="best"), 1e5)
    with refused():
        recommend(altered(FIT, compute="tokens"), 1e5)


def test_from_runs_by_way_of_json():
    """The prescribed cell is the true best one of its world, or within a standard error of it."""
    w = world(B_p=(16, 64))
    text = fit(w.runs, replicates=100).model_dump_json()
    r = recommend(FitResult.model_validate_json(text), 150_000)
    true = {key: h.at(150_000) for key, h in w.truth.items()}
    selected = true[r.allocation.B_p, r.allocation.n]
    assert max(true.values()) - selected < 0.0115
    assert r.allocation.B_p == 16
    assert 0 <= r.expected_reward - selected < 0.06  # the paper's procedure overshoots
