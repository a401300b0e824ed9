"""Noise-free sweeps are recovered; the optimum does not depend on the start; scales by hand."""

from dataclasses import replace

import numpy as np
import pytest

from isojax.scaling.curves.hierarchical import HierarchicalState, find_mode
from isojax.scaling.curves.hierarchical_prior import (
    PRIOR_RUN_SD,
    estimate_run_sd,
    fit_shape,
    initial_state,
    pool_over_n,
    robust_noise_sd,
    surface_columns,
)
from isojax.scaling.curves.hill import curve_value
from tests.scaling.sweeps import fit, packed
from tests.scaling.synthetic import world
from tests.scaling.synthetic_curves import Hill, Stretched


def stretched(B_p, n):
    level = np.log2(n)
    return Stretched(0.3, 0.45 + 0.04 * level, 0.8, 1500 * 1.8**level)


def later_for_large_B_p(B_p, n):
    level = np.log2(n)
    return Hill(0.25, 0.45 + 0.03 * level + 0.005 * (B_p == 64), 1.1, 1500 * 1.7**level * (1.2 if B_p == 64 else 1))


WORLDS = {
    "hill": {},
    "stretched": {"curve": stretched},
    "several B_p": {"curve": later_for_large_B_p, "B_p": (16, 64), "n": (2, 8, 32)},
    "one seed": {"seeds": 1},
}


def off(world_of, document):
    """Largest errors of R0 and A, and relative ones of B and C_mid."""
    rows = []
    for c in document.curves:
        true = world_of.truth[c.B_p, c.n]
        rows += [c.R0 - true.R0, c.A - true.A, c.exponent / true.B - 1, c.C_mid / true.C_mid - 1]
    return np.abs(rows).max()


@pytest.mark.parametrize("name", WORLDS)
def test_noise_free_worlds(name):
    w = world(samples=0, **WORLDS[name])
    document = fit(w.runs, replicates=0)
    assert off(w, document) < 1e-6
    assert {c.form for c in document.curves} == {"stretched" if name == "stretched" else "hill"}


def test_noise_free_runs_of_unequal_length():
    """The cells end after 8, 12, ... evaluations: far from their plateaus, but without noise that is enough."""
    w = world(samples=0, seeds=1)
    runs = [replace(r, points=r.points[: 9 + 3 * i]) for i, r in enumerate(w.runs)]
    assert off(w, fit(runs, replicates=0)) < 1e-6


def random_start(sweep, seed):
    """(A, mid, lnB) of every cell drawn anywhere in their ranges."""
    rng, J = np.random.default_rng(seed), len(sweep.keys)
    start = initial_state(1.0, sweep)
    theta = np.column_stack([rng.uniform(0.3, 1, J), rng.uniform(3, 5.5, J), rng.uniform(-0.8, 0.8, J)])
    return HierarchicalState(theta, start.e, start.u)


@pytest.mark.parametrize(("noise", "run_sd"), [(0.0, 0.0), (0.01, 0.01)])
def test_twenty_starts_end_in_one_optimum(noise, run_sd):
    sweep = packed(noise=noise, run_sd=run_sd, seed=3)
    scales = fit_shape(1.0, packed(noise=0.01, run_sd=0.01, seed=3)).scales
    modes = [find_mode(1.0, sweep.data, random_start(sweep, seed), scales, iterations=400) for seed in range(20)]
    # A second search takes the last steps, whose gain is below the tolerance of the first.
    ends = [find_mode(1.0, sweep.data, mode, scales).theta for mode in modes]
    assert np.ptp(ends, axis=0).max() < 1e-8  # reward, decades, log


def test_columns_that_cannot_be_told_apart_are_not_there():
    X, prior = surface_columns([(16, 4)], 4.0)
    assert X.shape == (1, 3, 3) and prior.mean.tolist() == [0, 0, 4, 0] and len(prior.sd) == 4
    assert (prior.sd_group == -1).all()
    along_B = surface_columns([(64, 2), (32, 4), (16, 8)], 4.0)[0]  # B fixed: log B_p is -log n
    crossed = surface_columns([(16, 2), (16, 8), (64, 2), (64, 8)], 4.0)[0]
    assert np.linalg.matrix_rank(along_B[:, 0]) == 3
    # A of the crossed design: one, log n, log B_p, log^2 n, one step; of the other no log B_p but two steps.
    assert (along_B[:, 0] != 0).any(0).sum() == 5 and (crossed[:, 0] != 0).any(0).sum() == 5


def test_noise_is_a_standard_deviation_that_outliers_do_not_move():
    data = packed(points=199, seeds=1).data
    residual = np.random.default_rng(0).normal(0, 0.01, data.y.shape)
    assert robust_noise_sd(data, residual, 0) == pytest.approx(0.01, rel=0.05)
    residual[0, 0, :5] = 0.3
    assert robust_noise_sd(data, residual, 0) == pytest.approx(0.01, rel=0.08)


def test_run_to_run_spread_and_where_it_is_from():
    many = packed(seeds=8, run_sd=0.03, noise=0.002, points=20)
    fitted = fit_shape(1.0, many)
    assert (
        fitted.scales.run_sd == pytest.approx(0.03, rel=0.3)
        and fitted.run_sd_from == "estimated from the seeds (21 degrees of freedom)"
    )
    stated = fit_shape(1.0, many, stated_run_sd=0.004)
    assert stated.scales.run_sd == 0.004 and stated.run_sd_from == "as stated"
    one = fit_shape(1.0, packed(seeds=1))
    assert one.scales.run_sd == PRIOR_RUN_SD and one.run_sd_from.startswith("assumed (0.01 of reward)")
    none = packed(noise=0.0)
    state = fit_shape(1.0, none).state
    assert estimate_run_sd(1.0, none.data, state, 1e-12, None)[:2] == (
        pytest.approx(0, abs=1e-9),
        "none: the points have no noise",
    )


def test_pooled_cells_share_one_curve():
    same = dict.fromkeys([(16, 4), (16, 16), (64, 4), (64, 16)], (0.6, 1.0, 5e3))
    result = fit_shape(1.0, pool_over_n(packed(curves=same, noise=0.01)))
    x = np.array([1e3, 1e4, 1e5])
    A, mid, lnB = result.state.theta.T
    R = curve_value(x, result.state.R0, A[:, None], np.exp(lnB)[:, None], 10 ** mid[:, None])
    assert np.ptp(R[:2], axis=0).max() < 1e-3 and np.ptp(R[2:], axis=0).max() < 1e-3
    assert pool_over_n(packed(curves={(64, 4): same[16, 4], (16, 16): same[16, 4]})).data.X.shape == (
        2,
        3,
        3,
    )  # B fixed: one curve for all
