"""n*(C): the published laws are recovered from their own points; steps, constants and bounds
behave."""

import numpy as np
import pytest

from isojax.scaling.law.n_star_law import choose_law, fit_law, log2_n_star, n_star, running_average
from isojax.scaling.result import Law

# (L, k, log10 C0, b) as published: Fig. 7 easy and hard, Fig. 24, Fig. 21 easy (arXiv:2603.12151).
PUBLISHED = [
    (6.09, 4.75, 5.84, 2.73),
    (4.47, 7.23, 5.84, 2.79),
    (6.62, 3.47, 9.18, 2.64),
    (5.67, 8.84, 6.08, 3.08),
]


def _parameters(law):
    return law.L, law.k, law.log10_C0, law.b


@pytest.mark.parametrize("true", PUBLISHED)
def test_published_laws_are_recovered(true):
    L, k, C0, b = true
    C = np.logspace(C0 - 1.5, C0 + 1.5, 180)
    law = fit_law(C, n_star(Law("sigmoid", L, k, C0, b), C), n_max=2048, window=0)
    assert _parameters(law) == pytest.approx(true, rel=1e-3)
    assert law.at_bounds == ()


def test_n_star_by_hand():
    law = Law("sigmoid", 6.0, 5.0, 5.0, 2.0)
    assert log2_n_star(law, [1e5, 1e9]) == pytest.approx([5.0, 8.0])
    assert float(log2_n_star(law, 10**5.2)) == pytest.approx(2 + 6 / (1 + np.exp(-1)))
    assert n_star(Law("constant", 0, 0, None, 3.0), [1.0, 1e9]).tolist() == [8, 8]


def test_running_average_by_hand():
    x = np.array([0.0, 0.1, 0.2, 0.3])
    assert running_average(x, np.array([1.0, 2.0, 3.0, 8.0]), 0.2) == pytest.approx(
        [1.5, 2.0, 13 / 3, 5.5]
    )
    assert running_average(x, np.array([1.0, 2.0, 3.0, 8.0]), 0).tolist() == [1, 2, 3, 8]


def test_steps_between_powers_of_two_give_back_the_law_they_round():
    true = Law("sigmoid", 6.09, 4.75, 5.84, 2.73)
    C = np.logspace(4.8, 7.0, 133)
    law = fit_law(C, 2.0 ** np.round(log2_n_star(true, C)), n_max=2048)
    assert law.log10_C0 == pytest.approx(5.84, abs=0.05)
    assert np.abs(log2_n_star(law, C) - log2_n_star(true, C)).max() < 0.5


def test_one_n_is_a_constant():
    assert fit_law(np.logspace(4, 6, 50), np.full(50, 8), n_max=32) == Law(
        "constant", 0.0, 0.0, None, 3.0
    )


def test_one_jump_puts_k_at_its_bound_and_says_so():
    C = np.logspace(4, 6, 121)
    law = fit_law(C, np.where(C < 1e5, 4, 64), n_max=64, window=0)
    assert (law.b, law.b + law.L) == pytest.approx((2, 6), abs=0.05)
    assert law.log10_C0 == pytest.approx(5, abs=0.02)
    assert law.k == pytest.approx(50, rel=1e-3)
    assert law.at_bounds == ("k",)


def test_a_straight_rise_saturates_at_twice_the_largest_n_at_most():
    C = np.logspace(4, 6, 121)
    law = fit_law(C, 2 ** (np.log10(C) - 3), n_max=8, window=0)
    assert law.b + law.L <= np.log2(16) + 1e-9


def test_a_falling_frontier_gives_no_negative_L():
    C = np.logspace(4, 6, 121)
    law = fit_law(C, np.where(C < 1e5, 64, 4), n_max=64)
    assert 0 <= law.L < 0.05


def test_choose_law_recovers_each_form_and_prefers_the_simplest_exact_one():
    C = np.logspace(4, 7, 60)
    for true in (
        Law("constant", 0, 0, None, 4.0),
        Law("linear", 0, 1.5, 5.5, 5.0),
        Law("sigmoid", 6.0, 4.0, 5.5, 2.0),
    ):
        choice = choose_law(C, log2_n_star(true, C), n_max=2048)
        assert choice.law.form == true.form
        assert log2_n_star(choice.law, C) == pytest.approx(log2_n_star(true, C), abs=1e-6)


@pytest.mark.parametrize("true", PUBLISHED)
def test_choose_law_recovers_the_published_laws_exactly(true):
    C = np.logspace(true[2] - 1.5, true[2] + 1.5, 180)
    choice = choose_law(C, log2_n_star(Law("sigmoid", *true), C), n_max=2048)
    assert choice.law.form == "sigmoid" and _parameters(choice.law) == pytest.approx(true, abs=1e-6)


def test_aicc_by_hand():
    # Four points at log2 n = 2, 4, 2, 4: the constant 3 leaves 1 each; the line b + k x leaves sum
    # dy^2 - (sum dx dy)^2 / sum dx^2.
    choice = choose_law([10, 100, 1000, 1e4], [2, 4, 2, 4], n_max=16, observations=8)
    assert choice.law == Law("constant", 0.0, 0.0, None, 3.0)
    assert choice.aicc["constant"] == pytest.approx(8 * np.log(1) + 4 + 12 / 5)
    assert choice.aicc["linear"] == pytest.approx(8 * np.log((4 - 2**2 / 5) / 4) + 6 + 24 / 4)
    assert choice.aicc["sigmoid"] is None  # two distinct n cannot carry four parameters


def test_known_variances_set_the_weights_and_enter_the_criterion():
    choice = choose_law([10, 100, 1000], [2, 2, 5], n_max=32, variance=[1, 1, 4], observations=30)
    # The constant is (2 + 2 + 5 / 4) / 2.25. chi2 of the line (30 observations) is below its 28
    # degrees of freedom: the variances stand, and no sigma is counted.
    y, precision = np.array([2, 2, 5]), np.array([1, 1, 1 / 4])
    from_constant = y - (2 + 2 + 5 / 4) / 2.25
    assert choice.aicc["constant"] == pytest.approx(
        10 * float(from_constant**2 @ precision) + 2 + 4 / 28
    )
    residual = y - np.polyval(np.polyfit([1, 2, 3], y, 1, w=np.sqrt(precision)), [1, 2, 3])
    assert choice.aicc["linear"] == pytest.approx(10 * float(residual**2 @ precision) + 4 + 12 / 27)


def test_variances_that_are_too_small_are_widened():
    C, rng = np.logspace(4, 6, 40), np.random.default_rng(0)
    y = 4 + rng.normal(0, 0.5, 40)
    a, b = (choose_law(C, y, n_max=256, variance=np.full(40, v)) for v in (1e-6, 1e-4))
    assert a.law.form == "constant" and a.aicc == pytest.approx(b.aicc)


def test_correlated_points_support_less():
    C = np.logspace(4, 6, 100)
    y = np.where(C < 1e5, 3.0, 4.0) + 0.8 * np.sin(np.arange(100))
    assert choose_law(C, y, n_max=32).law.form == "sigmoid"
    assert choose_law(C, y, n_max=32, observations=6).law.form == "constant"


def test_a_fall_is_followed_only_where_allowed():
    C = np.logspace(4, 6, 60)
    true = Law("sigmoid", -4.0, 6.0, 5.1, 7.0)
    assert choose_law(C, log2_n_star(true, C), n_max=256).law.form == "constant"
    assert _parameters(
        choose_law(C, log2_n_star(true, C), n_max=256, falling=True).law
    ) == pytest.approx(_parameters(true), abs=1e-6)


@pytest.mark.slow
def test_the_form_is_found_in_noise():
    C = np.logspace(4.5, 7, 40)
    sigmoid = Law("sigmoid", 6.0, 4.5, 5.8, 2.7)
    result = {"constant": 0, "sigmoid": 0}
    for seed in range(40):
        noise = np.random.default_rng(seed).normal(0, 0.5, 40)
        result["constant"] += choose_law(C, 5 + noise, n_max=2048).law.form == "constant"
        result["sigmoid"] += (
            choose_law(C, np.maximum(log2_n_star(sigmoid, C) + noise, 0), n_max=2048).law.form
            == "sigmoid"
        )
    assert result["constant"] >= 34 and result["sigmoid"] == 40
