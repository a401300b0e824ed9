"""Draws of the curves against a random walk on the same density, written independently; the density's gradient by
differences.
"""

from dataclasses import replace

import numpy as np
import pytest

from isojax.scaling.curves.hierarchical import HierarchicalState, Scales, robust_precision
from isojax.scaling.curves.hierarchical_prior import PRIOR_TAU, fit_shape
from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.hmc import BINS_PER_RUN, _make_target, run_hmc_chains
from tests.scaling.sweeps import packed


def test_the_gradient_is_that_of_the_value():
    sweep = packed(noise=0.01, run_sd=0.01)
    fitted = fit_shape(0.5, sweep)
    target = _make_target(sweep.data, fitted, np.array([0.012]))
    mode = np.concatenate([fitted.state.theta.ravel(), [fitted.state.R0]])
    rng = np.random.default_rng(0)
    for v in mode + 0.02 * rng.standard_normal((5, len(mode))):
        h = 1e-6
        ahead, back = (target.value_and_gradient(v + sign * h * np.eye(len(v)))[0] for sign in (1, -1))
        assert target.value_and_gradient(v[None])[1][0] == pytest.approx((ahead - back) / (2 * h), rel=1e-5, abs=1e-3)


def test_outside_the_bounds_nothing_is_allowed():
    sweep = packed()
    fitted = fit_shape(1.0, sweep)
    target = _make_target(sweep.data, fitted, np.array([0.01]))
    v = np.concatenate([fitted.state.theta.ravel(), [fitted.state.R0]])[None]
    v[0, 0] = 1.01  # A above 1
    assert np.isinf(target.value_and_gradient(v)[0][0])


# One cell whose plateau is not reached, BINS evaluations a run: each has a bin of its own, so the density is exact.
SWEEP = packed(curves={(16, 8): (0.6, 1.0, 2e4)}, points=BINS_PER_RUN, high=3e4, noise=0.01, run_sd=0.02)
RUN_SD = 0.02


def log_density(v, scales: Scales, state: HierarchicalState):
    """float[chains] of v float[chains, 4] = (A, mid, lnB, R0): normal evaluations whose covariance holds the run's
    luck.
    """
    data, total = SWEEP.data, np.zeros(len(v))
    W = robust_precision(1.0, data, state, scales)[0]
    A, mid, lnB, R0 = v.T[:, :, None]
    for s in range(data.y.shape[1]):
        started = np.isfinite(data.x[0, s])
        C = 10 ** data.x[0, s, started]
        share = curve_value(C, 0.0, 1.0, np.exp(lnB), 10**mid)
        r = data.y[0, s, started] - R0 - (A - R0) * share
        cov = np.diag(1 / W[s, started]) + RUN_SD**2 * share[:, :, None] * share[:, None, :]
        total -= 0.5 * (r * np.linalg.solve(cov, r[..., None])[..., 0]).sum(1) + 0.5 * np.linalg.slogdet(cov)[1]
        total -= 0.5 * W[s, 0] * (data.y[0, s, 0] - v[:, 3]) ** 2
    X, sd = data.X[0], scales.u_sd[1:]
    prior = np.linalg.inv(np.diag(scales.tau**2) + (X * sd**2) @ X.T)
    off = v[:, :3] - X @ scales.u_mean[1:]
    inside = (v[:, 0] <= 1) & (np.abs(v[:, 1] - 4) < 3) & (v[:, 2] > np.log(0.1)) & (v[:, 2] < np.log(12))
    return np.where(inside, total - 0.5 * ((off @ prior) * off).sum(1), -np.inf)


def random_walk(scales: Scales, state: HierarchicalState, chains: int = 300, steps: int = 900):
    """float[chains, 4] by Metropolis, the proposals adapted to the chains' own spread during the first half."""
    rng = np.random.default_rng(5)
    v = np.concatenate([state.theta[0], [state.R0]]) + rng.normal(size=(chains, 4)) * [0.02, 0.05, 0.05, 0.003]
    p, L, remaining = log_density(v, scales, state), np.diag([0.02, 0.05, 0.05, 0.003]), []
    for i in range(steps):
        if i % 50 == 49 and i < steps // 2:
            L = np.linalg.cholesky(np.cov(v.T) + 1e-12 * np.eye(4)) * 2.38 / 2
        trial = v + rng.normal(size=v.shape) @ L.T
        q = log_density(trial, scales, state)
        accept = np.log(rng.random(chains)) < q - p
        v, p = np.where(accept[:, None], trial, v), np.where(accept, q, p)
        if i > steps // 2 and i % 75 == 0:
            remaining.append(v)
    return np.concatenate(remaining)


def test_draws_have_the_moments_of_a_random_walk():
    fitted = fit_shape(1.0, SWEEP, stated_run_sd=RUN_SD)
    scales = Scales(fitted.scales.noise_sd, RUN_SD, PRIOR_TAU, SWEEP.prior.mean, SWEEP.prior.sd)
    theta, R0 = run_hmc_chains(
        SWEEP.data, replace(fitted, scales=scales), np.full(2000, RUN_SD), np.random.default_rng(1)
    )
    ours = np.column_stack([theta[:, 0], R0])
    theirs = random_walk(scales, fitted.state)
    sd = theirs.std(0)
    assert sd[0] > 0.02  # the plateau is wide open, so this is no normal density
    assert ours.mean(0) / sd == pytest.approx(
        theirs.mean(0) / sd, abs=0.12
    )  # standard errors of both together: about .03
    assert ours.std(0) / sd == pytest.approx(np.ones(4), abs=0.1)
    for q in (0.05, 0.95):
        assert np.quantile(ours, q, axis=0) / sd == pytest.approx(np.quantile(theirs, q, axis=0) / sd, abs=0.25)


def test_the_same_generator_gives_the_same_draws():
    fitted = fit_shape(1.0, SWEEP)
    a, b, c = (run_hmc_chains(SWEEP.data, fitted, np.full(5, 0.01), np.random.default_rng(s))[0] for s in (1, 1, 2))
    assert (a == b).all() and (a != c).all()
