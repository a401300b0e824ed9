"""Worlds hold what they promise: means, dispersion, one grid of targets, one seed one world."""

import numpy as np
import pytest

from isojax.scaling.synthetic import Hill, targets, world
from isojax.types import InputError


def test_targets_by_hand():
    assert targets(1000, 2.0, 8000) == [1000, 2000, 4000, 8000]
    assert targets(1000, 2.0, 7999) == [1000, 2000, 4000]


def test_counts_have_the_true_mean_and_the_asked_spread():
    """Beta-binomial with mean .3, kappa = 4 (rho = 1/5), 4 samples: variance of c is 4 * .21 * (1 + 3/5) = 1.344; all alike: .84."""
    for spread, variance in ((4.0, 1.344), (None, 0.84)):
        w = world(n=(2,), seeds=1, problems=20_000, spread=spread, budget=2000, curve=lambda B_p, n: Hill(0.3, 0.3, 1.0, 1.0))
        counts = np.array(w.runs[0].points[0].counts)
        assert counts.mean() == pytest.approx(1.2, abs=0.03)
        assert counts.var() == pytest.approx(variance, rel=0.05)
        assert w.runs[0].points[0].metrics["avg@4"] == counts.mean() / 4


def test_difficulty_is_a_problem_s_own():
    a, b = (np.array(r.points[0].counts) for r in world(n=(2, 4), seeds=1, problems=2000).runs)
    assert np.corrcoef(a, b)[0, 1] > 0.3


def test_grid_is_shared_and_compute_is_whole_updates():
    w = world(n=(2, 32), B_p=(64,), seeds=1)
    small, large = w.runs
    assert {p.target for p in large.points} <= {p.target for p in small.points}
    for r in w.runs:
        assert all(p.rollouts == r.cell.B * p.M and p.target <= p.rollouts < p.target + r.cell.B for p in r.points)
        assert all(a.rollouts < b.rollouts for a, b in zip(r.points, r.points[1:], strict=False))


def test_one_seed_one_world():
    assert world(seed=3) == world(seed=3)
    assert world(seed=3).runs != world(seed=4).runs
    assert world(samples=0).runs[0].points[5].metrics["avg@4"] == world().truth[16, 2].at(world().runs[0].points[5].rollouts)
    with pytest.raises(InputError, match="expected one of hill, same"):
        world("hil")
