"""Predictions from documents written by hand, where every number can be checked."""

import time

import numpy as np
import pytest

from isojax.core.errors import InputError
from isojax.scaling.allocate.curve_ensemble import load_ensemble
from isojax.scaling.allocate.predictive import best_cell_for_budget, best_cell_per_budget
from tests.scaling.documents import SHAPES, altered, document, with_curve, without_draws


def hill(A, B, C_mid, C, R0=0.2):
    return R0 + (A - R0) / (1 + (C_mid / C) ** B)


def test_curves_at_budgets():
    e = load_ensemble(document())
    assert [*zip(e.B_p.tolist(), e.n.tolist(), strict=True)] == [
        (16, 4),
        (64, 4),
        (16, 16),
        (64, 16),
        (16, 64),
        (64, 64),
    ]
    got = e.expected_rewards([1e3, 1e5])
    assert got.shape == (2, 6)
    for i, cell in enumerate(zip(e.B_p.tolist(), e.n.tolist(), strict=True)):
        assert got[:, i] == pytest.approx([hill(*SHAPES[cell], C) for C in (1e3, 1e5)], abs=1e-12)
    draws = e.sampled_rewards([1e3, 1e5])
    assert draws.shape == (2, 400, 6) and e.sampled_rewards(1e3).shape == (400, 6)
    assert draws.mean(1) == pytest.approx(got, abs=0.001)
    # d R / d A is the curve's share of its gain.
    assert draws[1, :, 0].std() == pytest.approx(0.006 / (1 + 2e3 / 1e5), rel=0.1)


def test_stretched_form_and_what_lies_beyond_a_peak():
    fit = document()
    fit = with_curve(fit, (16, 4), tail=0.0, exponent=0.7)
    fit = with_curve(fit, (16, 16), C_peak=2e4)
    e = load_ensemble(fit)
    places = {cell: i for i, cell in enumerate(zip(e.B_p.tolist(), e.n.tolist(), strict=True))}
    C = np.array([2e3, 5e4])
    stretched = 0.2 + 0.4 * (1 - np.exp(-np.log(2) * (C / 2e3) ** 0.7))
    assert e.expected_rewards(C)[:, places[16, 4]] == pytest.approx(stretched, abs=1e-6)  # tail 0 stands for the limit
    assert e.expected_rewards(C)[0, places[16, 4]] == pytest.approx(0.4)  # half the gain at C_mid
    peaked = places[16, 16]
    assert e.expected_rewards(5e4)[peaked] == e.expected_rewards(2e4)[peaked] == pytest.approx(hill(0.7, 1, 8e3, 2e4))
    assert (e.sampled_rewards(5e4)[:, peaked] == e.sampled_rewards(2e4)[:, peaked]).all()


def test_best_is_the_best_stable_cell_and_the_smallest_B_p_within_epsilon():
    """At 1e5: 16x4 .592, 16x16 .663, 16x64 .525; 64x16 .646, which is .017 lower."""
    b = best_cell_for_budget(document(), 1e5)
    assert (b.n, b.B_p, b.M, b.C) == (16, 16, 390, 99840)
    assert b.reward == pytest.approx(hill(0.7, 1, 8e3, 99840))
    assert not b.extrapolated and best_cell_for_budget(document(), 1.1e5).extrapolated
    assert best_cell_for_budget(document(), 3e3).n == 4
    later = {**SHAPES, (16, 16): (0.694, 1.0, 8e3)}  # at n = 16, B_p = 16 is now below B_p = 64 where both are late
    later[64, 16] = (0.7, 1.0, 8e3)
    assert best_cell_for_budget(document(later), 1e5, epsilon=0.006).B_p == 16
    assert best_cell_for_budget(document(later), 1e5, epsilon=0.005).B_p == 64
    assert best_cell_for_budget(document(unstable=(16,)), 1e5).B_p == 64


def test_a_measured_B_p_goes_before_a_smaller_one_that_ended_early():
    d = document({(16, 16): (0.7, 1.0, 8e3), (64, 16): (0.7, 1.0, 8e3)})
    assert best_cell_for_budget(d, 9e4).B_p == 16  # equal rewards: the smaller
    d = with_curve(d, (16, 16), C_high=2e4)
    assert (best_cell_for_budget(d, 9e4).B_p, best_cell_for_budget(d, 9e4).extrapolated) == (64, False)
    assert best_cell_for_budget(d, 1e4).B_p == 16
    assert best_cell_for_budget(d, 3e5).B_p == 16  # beyond the data of both


def test_limits():
    fit = document()
    assert best_cell_for_budget(fit, 1e5, B_max=128).n == 4
    assert best_cell_for_budget(fit, 1e5, fix={"B_p": 64}).B_p == 64
    assert best_cell_for_budget(document(unstable=(64,)), 1e5, fix={"B_p": 64}).B_p == 64  # the user's own choice
    assert [(b.B_p, b.n) for b in [best_cell_for_budget(fit, 1e5, fix={"B": 1024})]] == [(64, 16)]
    # M = 50 spends 50 B_p n: 64x16 at 51200 gives .633, 16x64 at the same .436, 64x64 is too dear.
    b = best_cell_for_budget(fit, 1e5, fix={"M": 50})
    assert (b.B_p, b.n, b.M, b.C) == (64, 16, 50, 51200)
    assert b.reward == pytest.approx(hill(0.7, 1, 12e3, 51200))
    with pytest.raises(InputError, match="no stable measured cell may be chosen at C = 60; expected"):
        best_cell_for_budget(fit, 60)
    with pytest.raises(InputError, match=r"C = 100000, B_max = 32"):
        best_cell_for_budget(fit, 1e5, B_max=32)
    with pytest.raises(InputError, match="Choose one yourself, as --fix B_p=64"):  # raising C would not help
        best_cell_for_budget(document(unstable=(16, 64)), 1e5)
    assert best_cell_per_budget(fit, [60, 1e5])[0] is None


def test_intervals_of_the_expected_reward_and_of_one_new_run():
    b = best_cell_for_budget(document(replicates=4000), 1e5)
    share = 1 / (1 + 8e3 / 99840)
    assert b.high - b.reward == pytest.approx(1.645 * 0.006 * share, rel=0.06)
    assert b.reward - b.low == pytest.approx(1.645 * 0.006 * share, rel=0.06)
    # run_sd .01, rmse .008 and the above, in quadrature
    sd = np.sqrt(0.01**2 + 0.008**2 + (0.006 * share) ** 2)
    assert b.new_run_high - b.reward == pytest.approx(1.645 * sd, rel=0.03)
    assert b.reward - b.new_run_low == pytest.approx(1.645 * sd, rel=0.03)
    known = document(replicates=4000)
    assert known.intervals is not None
    known = altered(known, intervals=known.intervals.model_copy(update={"noise_sd": 0.03}))
    b = best_cell_for_budget(known, 1e5)
    assert b.new_run_high - b.reward == pytest.approx(
        1.645 * np.sqrt(0.01**2 + 0.03**2 + (0.006 * share) ** 2), rel=0.03
    )


def test_probability_and_regret_of_two_equal_cells():
    """Two cells alike: each is best in half the draws; the expected loss of either is sd / sqrt(pi), E max(0,
    difference of two draws).
    """
    equal = {(16, 4): (0.6, 1.0, 2e3), (16, 16): (0.6, 1.0, 2e3)}
    b = best_cell_for_budget(document(equal, replicates=4000), 1e5)
    assert b.n == 4  # equal estimates: the smaller n
    assert b.n_probability[4] == pytest.approx(0.5, abs=0.03) and sum(b.n_probability.values()) == pytest.approx(1)
    assert b.regret == pytest.approx(0.006 / np.sqrt(np.pi) / 1.02, rel=0.06)
    assert b.regret_low == 0 and b.regret_high > 0.006


def test_without_draws_there_are_point_estimates_alone():
    fit = without_draws(document(), "paper")
    b = best_cell_for_budget(fit, 1e5)
    assert (b.n, b.B_p) == (16, 16) and b.reward == best_cell_for_budget(document(), 1e5).reward
    assert (b.low, b.high, b.new_run_low, b.new_run_high, b.n_probability, b.regret, b.regret_low) == (
        None,
        None,
        None,
        None,
        None,
        0.0,
        None,
    )


def test_fits_that_cannot_be_used():
    with pytest.raises(InputError, match="no curve"):
        load_ensemble(altered(document(), curves=()))
    fit = document()
    draws = fit.draws.model_dump() | {"cells": fit.draws.cells[:-1]}
    with pytest.raises(ValueError, match=r"no draws of the curves \(B_p, n\) = \(64, 64\)"):
        altered(fit, draws=draws)


def test_a_sliders_150_budgets_of_40_cells_in_a_second():
    shapes = {
        (b, n): (0.5 + 0.01 * np.log2(n), 1.0, 1e3 * n)
        for b in (8, 16, 32, 64, 128)
        for n in (2, 4, 8, 16, 32, 64, 128, 256)
    }
    fit = document(shapes, replicates=500)
    start = time.process_time()
    found = best_cell_per_budget(fit, np.geomspace(1e4, 4e5, 150))
    assert time.process_time() - start < 2  # .2 s on one core of 2025; room for a slower one
    assert all(b is not None for b in found)
