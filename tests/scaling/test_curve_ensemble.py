"""Curves and replicates of fits written by hand, where every number can be checked."""

from statistics import NormalDist

import numpy as np
import pytest

from isojax.scaling.allocate.curve_ensemble import load_ensemble
from tests.scaling.documents import SHAPES, document, hill, with_curve, without_draws


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


def test_stretched_form_and_rewards_beyond_a_peak():
    fit = with_curve(document(), (16, 4), tail=0.0, exponent=0.7)
    fit = with_curve(fit, (16, 16), C_peak=2e4)
    e = load_ensemble(without_draws(fit))
    locations = {cell: i for i, cell in enumerate(zip(e.B_p.tolist(), e.n.tolist(), strict=True))}
    C = np.array([2e3, 5e4])
    stretched = 0.2 + 0.4 * (1 - np.exp(-np.log(2) * (C / 2e3) ** 0.7))
    assert e.expected_rewards(C)[:, locations[16, 4]] == pytest.approx(
        stretched, abs=1e-6
    )  # tail 0 stands for the limit
    # half the gain at C_mid
    assert e.expected_rewards(C)[0, locations[16, 4]] == pytest.approx(0.4)
    peaked = locations[16, 16]
    assert (
        e.expected_rewards(5e4)[peaked]
        == e.expected_rewards(2e4)[peaked]
        == pytest.approx(hill(0.7, 1, 8e3, 2e4))
    )
    e = load_ensemble(fit)
    assert (e.sampled_rewards(5e4)[:, peaked] == e.sampled_rewards(2e4)[:, peaked]).all()


def test_the_interval_of_a_new_run_on_each_side():
    """Draws of A whose interval is not symmetric: each side in quadrature with a run's luck of .01
    and an evaluation's noise of .008, times 1.645."""
    shape = {(16, 4): (0.6, 1.0, 2e3)}
    fit = document(shape, replicates=101)
    skewed = 0.55 + 0.2 * np.linspace(0, 1, 101) ** 3
    draws = fit.draws.model_copy(update={"A": (tuple(skewed.tolist()),)})
    e = load_ensemble(fit.model_copy(update={"draws": draws}))
    C = 5e4
    share = 1 / (1 + 2e3 / C)
    expected = 0.2 + (skewed.mean() - 0.2) * share
    low, high = 0.2 + (np.quantile(skewed, [0.05, 0.95]) - 0.2) * share
    noise = NormalDist().inv_cdf(0.95) * np.hypot(0.01, 0.008)
    forecast = e.predict_new_run(0, C)
    assert forecast.reward == pytest.approx(expected)
    assert forecast.interval == pytest.approx(
        (expected - np.hypot(expected - low, noise), expected + np.hypot(high - expected, noise))
    )
    assert e.predict_reward(0, C).interval == pytest.approx((low, high))
    assert load_ensemble(without_draws(fit)).predict_new_run(0, C).interval is None


def test_the_nearest_cell_in_log_n_then_in_log_B_p():
    e = load_ensemble(document())
    cells = [(16, 4), (64, 4), (16, 16), (64, 16), (16, 64), (64, 64)]
    for B_p, n in ((1, 1), (31, 4), (33, 4), (16, 7), (16, 9), (100, 31), (16, 33), (500, 500)):
        nearest = min(cells, key=lambda c: (abs(np.log2(c[1] / n)), abs(np.log2(c[0] / B_p))))
        assert cells[e.nearest_cell(B_p, n)] == nearest
