"""n*(C): the published laws are recovered from their own points; steps, constants and bounds behave."""

import numpy as np
import pytest

from isojax.scaling.law import Law, fit_law, log2_n_star, n_star, running_average

# (L, k, log10 C0, b) as published: Fig. 7 easy and hard, Fig. 24, Fig. 21 easy (arXiv:2603.12151).
PUBLISHED = [(6.09, 4.75, 5.84, 2.73), (4.47, 7.23, 5.84, 2.79), (6.62, 3.47, 9.18, 2.64), (5.67, 8.84, 6.08, 3.08)]


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
    assert running_average(x, np.array([1.0, 2.0, 3.0, 8.0]), 0.2) == pytest.approx([1.5, 2.0, 13 / 3, 5.5])
    assert running_average(x, np.array([1.0, 2.0, 3.0, 8.0]), 0).tolist() == [1, 2, 3, 8]


def test_steps_between_powers_of_two_give_back_the_law_they_round():
    true = Law("sigmoid", 6.09, 4.75, 5.84, 2.73)
    C = np.logspace(4.8, 7.0, 133)
    law = fit_law(C, 2.0 ** np.round(log2_n_star(true, C)), n_max=2048)
    assert law.log10_C0 == pytest.approx(5.84, abs=0.05)
    assert np.abs(log2_n_star(law, C) - log2_n_star(true, C)).max() < 0.5


def test_one_n_is_a_constant():
    assert fit_law(np.logspace(4, 6, 50), np.full(50, 8), n_max=32) == Law("constant", 0.0, 0.0, None, 3.0)


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
