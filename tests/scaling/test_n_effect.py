"""`same` worlds have no effect of n, `hill` worlds always have one."""

import numpy as np

from isojax.scaling.curves.hierarchical_prior import fit_shape, pack_sweep
from isojax.scaling.law.n_effect_test import has_no_n_effect
from isojax.scaling.tracks import group_by_cell, make_track
from tests.scaling.sweeps import packed
from tests.scaling.synthetic import random_world


def verdict(kind, seed):
    w = random_world(kind, seed, n=(8, 32, 128), evaluations=20, problems=100, unequal=False)
    sweep = pack_sweep(group_by_cell([make_track(r, "avg@4", "rollouts") for r in w.runs]))
    return has_no_n_effect(sweep, fit_shape(1.0, sweep))


def test_same_worlds_have_none():
    assert np.mean([verdict("same", seed) for seed in range(60)]) >= 0.95


def test_hill_worlds_have_one():
    assert not any(verdict("hill", seed) for seed in range(20))


def test_one_n_was_compared_with_nothing():
    sweep = packed(curves={(16, 8): (0.6, 1.0, 5e3), (64, 8): (0.6, 1.0, 5e3)})
    assert has_no_n_effect(sweep, fit_shape(1.0, sweep)) is False


def test_a_difference_between_B_p_is_none_of_n():
    """B_p matters, n does not: one curve for each B_p does as well."""
    curves = {(b, n): (0.5 if b == 16 else 0.7, 1.0, 4e3) for b in (16, 64) for n in (4, 16)}
    sweep = packed(curves=curves, noise=0.01, points=20, run_sd=0.005)
    assert has_no_n_effect(sweep, fit_shape(1.0, sweep))
