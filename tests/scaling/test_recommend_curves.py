"""Recommendations of a hierarchical fit written by hand: the choice by the curves, how sure it is,
and where it is refused.
"""

import numpy as np
import pytest

from isojax.core.nouns import Allocation
from isojax.scaling.allocate.recommend import recommend
from isojax.scaling.result import Law, NStarFit
from tests.refusals import refused
from tests.scaling.documents import SHAPES, altered, document, hill, with_curve, without_draws


def said(r, text):
    return any(text in reason for reason in r.reasons)


def test_choice_intervals_and_reasons():
    """At 1e5: 16x16 .663, 64x16 .646, 16x4 .592."""
    r = recommend(document(), 1e5)
    assert r.allocation == Allocation(16, 16, 390)
    assert r.expected_reward == pytest.approx(hill(0.7, 1, 8e3, 99840))
    assert r.interval[0] < r.expected_reward < r.interval[1]
    assert r.prediction_interval[0] < r.interval[0] < r.interval[1] < r.prediction_interval[1]
    assert r.n_probability[16] > 0.99 and set(r.n_probability) == {4, 16, 64}
    assert r.equal_n == (16,) and recommend(document(), 1e5, epsilon=0.08).equal_n == (4, 16)
    assert r.regret < 0.001 and r.regret_interval[0] == 0
    assert (r.no_effect, r.extrapolated, r.times_measured, r.epsilon) == (False, False, 1.0, 0.005)
    assert said(
        r, "n = 16: of 6 stable measured cells, 16x16 has the highest predicted reward (0.663)"
    )
    assert said(r, "B_p = 16: the smallest stable one measured at n = 16")
    first = r.measured_cells[0]
    assert (first.B_p, first.n, first.M) == (16, 16, 390) and first.low < first.reward < first.high


def test_the_smallest_stable_B_p_within_epsilon():
    # they differ by .0056 at 1e5
    near = {**SHAPES, (16, 16): (0.694, 1.0, 8e3), (64, 16): (0.7, 1.0, 8e3)}
    r = recommend(document(near), 1e5, epsilon=0.006)
    assert r.allocation.B_p == 16 and said(
        r, "the smallest stable one whose predicted reward is within 0.006 of its"
    )
    r = recommend(document(near), 1e5)
    assert r.allocation.B_p == 64 and said(r, "a smaller one gives away more than 0.005")
    r = recommend(document(unstable=(16,)), 1e5)
    assert r.allocation == Allocation(64, 16, 97) and said(r, "; unstable: 16 (it fell)")
    with refused():
        recommend(document(unstable=(16, 64)), 1e5)


def test_a_measured_B_p_goes_before_a_smaller_one_that_ended_early():
    d = document({(16, 16): (0.7, 1.0, 8e3), (64, 16): (0.7, 1.0, 8e3)})
    assert recommend(d, 9e4).allocation.B_p == 16  # equal rewards: the smaller
    d = with_curve(d, (16, 16), C_high=2e4)
    r = recommend(d, 9e4)
    assert (r.allocation.B_p, r.extrapolated) == (64, False)
    assert recommend(d, 1e4).allocation.B_p == 16
    assert recommend(d, 1.2e5).allocation.B_p == 16  # beyond the data of both


def test_intervals_of_the_expected_reward_and_of_one_new_run():
    fit = document(replicates=4000)
    r = recommend(fit, 1e5)
    share = 1 / (1 + 8e3 / 99840)
    low, high = r.interval
    assert high - r.expected_reward == pytest.approx(1.645 * 0.006 * share, rel=0.06)
    assert r.expected_reward - low == pytest.approx(1.645 * 0.006 * share, rel=0.06)
    # run_sd .01, rmse .008 and the above, in quadrature
    sd = np.sqrt(0.01**2 + 0.008**2 + (0.006 * share) ** 2)
    low, high = r.prediction_interval
    assert high - r.expected_reward == pytest.approx(1.645 * sd, rel=0.03)
    assert r.expected_reward - low == pytest.approx(1.645 * sd, rel=0.03)
    r = recommend(altered(fit, intervals=fit.intervals.model_copy(update={"noise_sd": 0.03})), 1e5)
    sd = np.sqrt(0.01**2 + 0.03**2 + (0.006 * share) ** 2)
    assert r.prediction_interval[1] - r.expected_reward == pytest.approx(1.645 * sd, rel=0.03)


def test_probability_and_regret_of_two_equal_cells():
    """Two cells alike: each is best in half the draws; the expected loss of either is sd /
    sqrt(pi), E max(0, difference of two draws).
    """
    equal = {(16, 4): (0.6, 1.0, 2e3), (16, 16): (0.6, 1.0, 2e3)}
    r = recommend(document(equal, replicates=4000), 1e5)
    assert r.allocation.n == 4  # equal estimates: the smaller n
    assert r.n_probability[4] == pytest.approx(0.5, abs=0.03) and sum(
        r.n_probability.values()
    ) == pytest.approx(1)
    assert r.regret == pytest.approx(0.006 / np.sqrt(np.pi) / 1.02, rel=0.06)
    assert r.regret_interval[0] == 0 and r.regret_interval[1] > 0.006


def test_n_of_one_reward_share_the_probability_to_be_the_best():
    """Where a task is solved, the draws of all n are 1; two B_p of one n are no more than one."""
    solved = document(
        {(B_p, n): (1.0, 10.0, 1e2) for B_p, n in ((16, 4), (64, 4), (16, 16))}, sd=0.0
    )
    assert recommend(solved, 1e5).n_probability == pytest.approx({4: 0.5, 16: 0.5})


def test_an_n_alone_at_large_C_is_pointed_out():
    fit = document()
    for B_p, n in SHAPES:
        fit = with_curve(fit, (B_p, n), C_high={4: 2e4, 16: 5e4, 64: 1e5}[n])
    r = recommend(fit, 1e5)
    assert said(r, "beyond their data: n = 4 (measured up to C = 20,000)") and said(
        r, "16x16 was measured up to C = 50,000"
    )
    assert not said(recommend(document(), 1e5), "beyond their data")


def test_no_effect_is_an_answer():
    law = NStarFit(law=Law("constant", 0.0, 0.0, None, 4.0), no_effect=True)
    equal = {(16, n): (0.6 + 0.001 * (n == 8), 1.0, 2e3) for n in (2, 4, 8, 16)}
    r = recommend(document(equal, n_star=law), 1e5)
    assert r.no_effect and r.equal_n == (2, 4, 8, 16) and r.allocation.n == 8
    assert said(r, "n makes no difference here")


def test_without_an_effect_only_n_that_may_be_best_are_called_equal():
    """A test of all n together need not see that one of them is worse."""
    law = NStarFit(law=Law("constant", 0.0, 0.0, None, 4.0), no_effect=True)
    shapes = {(16, n): (0.5 if n == 2 else 0.6, 1.0, 2e3) for n in (2, 4, 8)}
    r = recommend(document(shapes, n_star=law), 1e5)
    assert r.n_probability is not None and r.n_probability[2] < 0.01
    assert said(r, "take the fastest on your hardware of n = 4, 8")


def test_beyond_four_times_the_measured_budget_it_refuses_and_says_why():
    fit = with_curve(document(), (16, 64), determined=False)
    assert recommend(fit, 4e5).times_measured == 4
    with refused() as e:
        recommend(fit, 1e6)
    for part in (
        "10 times the largest measured C = 100000",
        "expected at most 4 times",
        "plateaus of 16x64",
        "new runs of B_p = 16 and n = 16, 64 to C = 322,888, M = 1262, 316",
        "'sweep.n=[16,64]'",
        "--extrapolate",
    ):
        assert part in str(e.value)
    r = recommend(fit, 1e6, extrapolate=True)
    assert (
        r.times_measured == 10
        and r.extrapolated
        and said(r, "extrapolated: C = ")
        and said(r, "plateaus of 16x64")
    )
    with refused():
        recommend(without_draws(document()), 1e6)


def test_below_the_measured_budgets_is_noted():
    r = recommend(document(), 500)
    assert r.allocation.n == 4 and said(r, "below the smallest measured C = 1000")


def test_fixed_values_compare_the_cells_that_agree():
    fit = document()
    assert recommend(fit, 1e5, fix={"B": 1024}).allocation == Allocation(64, 16, 97)
    assert recommend(fit, 1e5, fix={"B_p": 64}).allocation == Allocation(64, 16, 97)
    # M = 50: 64x16 spends 51200 for .633; 16x64 the same for .440, 16x16 12800 for .508, 64x64 is
    # too dear.
    r = recommend(fit, 1e5, fix={"M": 50})
    assert r.expected_reward == pytest.approx(hill(0.7, 1, 12e3, 51200))
    assert r.allocation == Allocation(64, 16, 50) and said(
        r, "M = 50: given; 51,200 of 100,000 rollouts are spent"
    )
    # 16x4 at 6400 gives .594, 16x64 at 102400 .40
    late = {(16, 4): (0.6, 1.0, 100.0), (16, 64): (0.6, 1.0, 1e5)}
    assert recommend(document(late), 2e5, fix={"M": 100}).allocation == Allocation(
        16, 4, 100
    )  # spends less, for it is better
    assert recommend(fit, 1e5, B_max=128).allocation == Allocation(16, 4, 1562)


@pytest.mark.parametrize(
    ("fix", "text"),
    [
        (None, "of 3 stable measured cells with B_p n <= 300, 16x16 has"),
        ({"B_p": 16}, "of 2 measured cells with B_p = 16 and B_p n <= 300, 16x16 has"),
    ],
)
def test_limits_are_said_as_with_and_and(fix, text):
    assert said(recommend(document(), 1e5, B_max=300, fix=fix), text)


def test_fixed_values_that_no_cell_has():
    fit = document()
    r = recommend(fit, 1e5, fix={"B": 1000})
    assert r.allocation == Allocation(62, 16, 100) and said(
        r, "B = 1000: given, so B_p = B // n = 62"
    )
    assert said(r, "nearest measured cell, 64x16")
    r = recommend(fit, 1e5, fix={"B_p": 20})
    assert r.allocation == Allocation(20, 16, 312) and said(r, "chosen as at the nearest, B_p = 16")
    r = recommend(fit, 1e5, fix={"M": 10_000})
    assert r.allocation == Allocation(2, 4, 10_000) and said(
        r, "of the measured n <= 10, 16x4 has the highest predicted reward"
    )
    assert recommend(fit, 1e5, fix={"M": 40_000}).allocation == Allocation(1, 2, 40_000)
    r = recommend(document(unstable=(64,)), 1e5, fix={"B_p": 64})
    assert r.allocation.B_p == 64 and said(r, "was unstable: it fell")


def test_limits_that_leave_nothing():
    fit = document()
    with refused(where="C"):
        recommend(fit, 60)
    with refused(where="B_max"):
        recommend(fit, 1e5, B_max=63)
    with refused(where="B_p"):
        recommend(fit, 1e5, B_max=32, fix={"B_p": 64})
    with refused(where="B"):
        recommend(fit, 1e5, B_max=32, fix={"B": 64})
    with refused(where="C"):
        recommend(fit, 1e5, fix={"M": 200_000})
    with refused(where="epsilon"):
        recommend(fit, 1e5, epsilon=-1)


def test_paper_mode_keeps_the_papers_rule():
    law = NStarFit(law=Law("sigmoid", 4.0, 5.0, 9.0, 2.0), no_effect=False)
    r = recommend(without_draws(document(n_star=law), "paper"), 1e5)
    # n*(1e5) = 2^2, though 16x16 is predicted to reach more
    assert r.allocation == Allocation(16, 4, 1562)
    assert (r.interval, r.prediction_interval, r.n_probability, r.regret_interval) == (
        None,
        None,
        None,
        None,
    )
    assert r.equal_n == (16,) and r.regret == pytest.approx(0.5 / 1.08 - 0.4 / 1.02)


def test_the_interval_of_one_new_run_holds_that_of_its_expectation_on_any_problems():
    fit = document()
    draws = fit.draws.model_copy(
        update={"shift": (tuple(np.linspace(-0.6, 0.6, 400)), (0.0,) * 400)}
    )
    r = recommend(fit.model_copy(update={"draws": draws}), 1e5)
    assert r.interval[1] - r.interval[0] > 0.15
    assert r.prediction_interval[0] <= r.interval[0] and r.interval[1] <= r.prediction_interval[1]


def test_a_run_that_ends_at_its_peak_need_not_stop_early():
    """390 updates of 16x16 are 99,840 rollouts."""
    at_peak = recommend(with_curve(document(), (16, 16), C_peak=99_840.0), 1e5)
    assert at_peak.allocation.C == 99_840 and not said(at_peak, "stop early")
    before = recommend(with_curve(document(), (16, 16), C_peak=99_839.0), 1e5)
    assert said(before, "stop early: reward of 16x16 falls beyond C = 99,839 (M = 389)")
