"""Sensitivity, overfitting and ties, by hand and in worlds that overfit."""

import math

import numpy as np
import pytest

from isojax.scaling.checks.sensitivity import find_overfitting, find_ties, reward_sensitivity
from isojax.scaling.curves.hill import FittedCurve
from isojax.scaling.curves.posterior_samples import PosteriorSamples
from isojax.scaling.result import RewardSpread
from isojax.scaling.validation_metrics import make_track
from tests.scaling.sweeps import run
from tests.scaling.synthetic import world
from tests.scaling.synthetic_curves import Declining, Hill

A = {(16, 4): 0.4, (16, 16): 0.6, (64, 4): 0.45, (64, 16): 0.7}


def curve(key, high=1e6):
    """R0 = 0, B = 1, C_mid = 1e-6: the reward is A everywhere."""
    return FittedCurve(*key, 0.0, A[key], 1.0, 1e-6, 1e2, high, 10, 0.0)


def draws(values, low=1e2, high=1e6):
    """Replicates of flat curves: values float[Q, cells]."""
    Q, J = values.shape
    ones = np.ones((Q, J))
    ends = (np.full(J, math.inf), np.full(J, low), np.full(J, high))
    return PosteriorSamples(np.ones(Q), tuple(A)[:J], values, ones, ones * 1e-6, np.zeros(Q), np.zeros((Q, 2)), *ends)


def test_sensitivity_by_hand():
    found = reward_sensitivity([curve(key) for key in A], None)
    assert found is not None and found.C == pytest.approx(1e6)
    assert found.over_n == RewardSpread(spread=found.over_n.spread, low=None, high=None, shared_value=16, cells=2)
    assert found.over_B_p == RewardSpread(spread=found.over_B_p.spread, low=None, high=None, shared_value=4, cells=2)
    assert (found.over_n.spread, found.over_B_p.spread) == pytest.approx((0.2, 0.05))


def test_sensitivity_is_where_most_cells_are():
    """Both n were measured at B_p = 64 alone; n = 4 at both B_p."""
    found = reward_sensitivity([curve((16, 4)), curve((64, 4)), curve((64, 16))], None)
    assert found is not None and found.over_n.shared_value == 64 and found.over_n.spread == pytest.approx(0.25)
    assert found.over_B_p.shared_value == 4
    early = reward_sensitivity([curve((16, 4), 1e3), curve((64, 4)), curve((64, 16))], None)  # 16x4 ended earlier
    assert early is not None and early.over_B_p is None and early.C == pytest.approx(1e6)
    assert reward_sensitivity([curve((16, 4))], None) is None


def test_intervals_of_sensitivity():
    values = np.tile(list(A.values()), (400, 1))
    values[:, 1] += np.linspace(-0.1, 0.1, 400)
    over_n = reward_sensitivity([curve(key) for key in A], draws(values)).over_n
    assert (over_n.low, over_n.high) == pytest.approx((0.11, 0.29), abs=1e-3)


def test_overfitting_by_hand():
    """Validation rises to .6 at the fifth of 16 evaluations and falls by .02 each; training reward rises by .03."""
    C = np.arange(1, 17) * 1000.0
    up = np.array([0.3, 0.4, 0.5, 0.55, 0.6])
    R = np.concatenate([up, 0.6 - 0.02 * np.arange(1, 12)])
    train = 0.3 + 0.03 * np.arange(16)
    (row,) = find_overfitting([run(16, 8, 3, C, R, train)], 0.001)
    # The best four are .55, .6, .58, .56 (mean .5725), their middle the third; the last four .44 .. .38 (mean .41).
    assert (row.B_p, row.n, row.seed, row.C) == (16, 8, 3, 6000)
    assert (row.validation_from, row.validation_to) == pytest.approx((0.5725, 0.41))
    assert row.train_to - row.train_from == pytest.approx(0.03 * 9)
    assert row.reason.startswith("training reward rises by 0.270 while validation falls by 0.16")


def test_what_is_no_overfitting():
    C, train = np.arange(1, 17) * 1000.0, 0.3 + 0.03 * np.arange(16)
    fallen = np.concatenate([np.linspace(0.3, 0.6, 5), 0.6 - 0.02 * np.arange(1, 12)])
    rising = np.linspace(0.3, 0.6, 16)
    assert find_overfitting([run(16, 8, 0, C, rising, train)], 0.01) == ()
    assert (
        find_overfitting([run(16, 8, 0, C, fallen, train[::-1])], 0.01) == ()
    )  # a collapse: training reward falls as well
    assert find_overfitting([run(16, 8, 0, C, fallen)], 0.01) == ()  # no training reward was recorded
    assert find_overfitting([run(16, 8, 0, C, fallen, train)], 0.1) == ()  # noise is as large as the fall
    assert find_overfitting([run(16, 8, 0, C[:10], fallen[:10], train[:10])], 0.001) == ()  # too few


def test_worlds_that_overfit():
    """Validation declines by .15 a decade, over almost one, while training reward goes on rising; in rising worlds
    nothing is said.
    """
    true = Declining(Hill(0.3, 0.65, 1.2, 4000.0), 3e4, 0.15)
    for seed in range(3):
        w = world(curve=lambda B_p, n: true, n=(4, 16), seeds=2, seed=seed)
        rows = find_overfitting([make_track(r, "avg@4", "rollouts") for r in w.runs], None)
        assert {(row.n, row.seed) for row in rows} == {(4, 0), (4, 1), (16, 0), (16, 1)}
        assert all(true.C_peak / 2.5 < row.C < 2.5 * true.C_peak for row in rows)
        rising = world(n=(4, 16), seeds=2, seed=seed)
        assert find_overfitting([make_track(r, "avg@4", "rollouts") for r in rising.runs], None) == ()


def test_ties_by_hand():
    """n = 4 and n = 16 lead in half of the replicates each; then n = 16 in all."""
    values = np.tile([0.5, 0.5], (100, 1))
    values[::2, 1] += 0.01
    values[1::2, 1] -= 0.01
    (row,) = find_ties(draws(values))
    assert row.n == (4, 16) and (row.C_low, row.C_high) == (pytest.approx(1e2), pytest.approx(1e6))
    values[:, 1] = 0.51
    values[:9, 1] = 0.49  # in 91 of 100
    assert find_ties(draws(values)) == ()
    values[:11, 1] = 0.49  # in 89 of 100
    assert [row.n for row in find_ties(draws(values))] == [(4, 16)]
    assert find_ties(None) == () and find_ties(draws(values[:, :1])) == ()
