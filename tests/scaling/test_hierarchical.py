"""The hierarchical model's mode against SciPy's least squares on the same cost, written out in loops; its covariances
against a Hessian by differences."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import least_squares

from isojax.scaling.curves.hierarchical import (
    ROBUST_THRESHOLD_SD,
    HierarchicalState,
    Scales,
    find_mode,
    minus_two_log_posterior,
    posterior_covariances,
    predict_rewards,
    robust_precision,
)
from isojax.scaling.curves.hierarchical_prior import PRIOR_TAU, initial_state
from tests.scaling.sweeps import CURVES, R0, packed

SWEEP = packed(run_sd=0.01, noise=0.008)
DATA = SWEEP.data
J, S, P = DATA.y.shape
K = DATA.X.shape[2]
SCALES = Scales(0.008, 0.01, PRIOR_TAU, SWEEP.prior.mean, np.minimum(SWEEP.prior.sd, 1.0))


def unpacked(p):
    return HierarchicalState(p[: 3 * J].reshape(J, 3), p[3 * J : 3 * J + J * S].reshape(J, S), p[3 * J + J * S :])


def all_of(state):
    return np.concatenate([state.theta.ravel(), state.e.ravel(), state.u])


def residuals(p, data=DATA, scales=SCALES):
    """Whose squares add up to minus twice the log posterior, as scaling/curves/hierarchical.py's docstring has it, Hill
    curves.
    """
    state, out = unpacked(p), []
    for j in range(J):
        A, mid, lnB = state.theta[j]
        for s in range(S):
            for x, y in zip(data.x[j, s], data.y[j, s], strict=True):
                share = 0.0 if np.isinf(x) else 1 / (1 + 10 ** (-np.exp(lnB) * (x - mid)))
                u = (y - (state.u[0] + (A + state.e[j, s] - state.u[0]) * share)) / scales.noise_sd
                out.append(
                    np.sign(u) * np.sqrt(2 * ROBUST_THRESHOLD_SD**2 * (np.sqrt(1 + (u / ROBUST_THRESHOLD_SD) ** 2) - 1))
                )
            out.append(state.e[j, s] / scales.run_sd)
        out += list((state.theta[j] - data.X[j] @ state.u[1:]) / scales.tau)
    return np.array([*out, *((state.u - scales.u_mean) / scales.u_sd)])


def test_the_cost_is_the_documented_one():
    state = initial_state(1.0, SWEEP)
    assert minus_two_log_posterior(1.0, DATA, state, SCALES) == pytest.approx(
        float((residuals(all_of(state)) ** 2).sum()), rel=1e-10
    )


def test_the_mode_is_that_of_an_independent_optimiser():
    result = find_mode(1.0, DATA, initial_state(1.0, SWEEP), SCALES, iterations=200)
    other = least_squares(
        residuals, all_of(initial_state(1.0, SWEEP)), x_scale="jac", xtol=1e-14, ftol=1e-14, gtol=1e-12
    )
    assert minus_two_log_posterior(1.0, DATA, result, SCALES) == pytest.approx(2 * other.cost, rel=1e-9)
    theirs = unpacked(other.x)
    assert result.theta == pytest.approx(theirs.theta, abs=1e-5)
    assert result.e == pytest.approx(theirs.e, abs=1e-5) and result.R0 == pytest.approx(theirs.R0, abs=1e-6)


def test_an_outlier_counts_less_and_by_how_much():
    """A residual of 30 noise_sd at C = 0, where s = 0: its precision is 1 / sqrt(1 + (30 / ROBUST)^2) of the
    others'.
    """
    state = find_mode(1.0, DATA, initial_state(1.0, SWEEP), SCALES)
    y = DATA.y.copy()
    y[0, 0, 0] = state.R0 + 30 * SCALES.noise_sd
    W = robust_precision(1.0, replace(DATA, y=y), state, SCALES)
    assert W[0, 0, 0] * SCALES.noise_sd**2 == pytest.approx(1 / np.sqrt(1 + (30 / ROBUST_THRESHOLD_SD) ** 2))
    moved = find_mode(1.0, replace(DATA, y=y), state, SCALES)
    # Six evaluations at C = 0: a mean would move by 30 / 6 = 5 noise_sd.
    assert 0 < (moved.R0 - state.R0) / SCALES.noise_sd < 1.5


def test_covariances_are_those_of_a_hessian_by_differences():
    """Data that lie on the model exactly: there Gauss-Newton's curvature is the curvature."""
    u = np.concatenate([[R0], np.zeros(K)])
    theta = np.array([(A, np.log10(mid), np.log(B)) for A, B, mid in CURVES.values()])
    u[1:] = np.linalg.lstsq(DATA.X.reshape(3 * J, K), theta.ravel(), rcond=None)[0]
    state = HierarchicalState((DATA.X.reshape(3 * J, K) @ u[1:]).reshape(J, 3), np.zeros((J, S)), u)
    data, scales = replace(DATA, y=predict_rewards(1.0, DATA, state)), replace(SCALES, u_mean=u)
    p = all_of(state)

    def at(q):
        return minus_two_log_posterior(1.0, data, unpacked(q), scales) / 2

    assert at(p) == pytest.approx(0, abs=1e-15)
    rows = np.array(
        [(residuals(p + h, data, scales) - residuals(p - h, data, scales)) / 2e-6 for h in 1e-6 * np.eye(len(p))]
    )
    h = 0.01 / np.sqrt((rows**2).sum(1))
    E = np.diag(h)
    H = np.array([[at(p + a + b) - at(p + a - b) - at(p - a + b) + at(p - a - b) for b in E] for a in E]) / (
        4 * np.outer(h, h)
    )
    C = np.linalg.inv(H)
    of_cells, of_u = posterior_covariances(1.0, data, state, scales)
    first = 3 * J + J * S
    assert np.sqrt(np.diag(of_u)) == pytest.approx(np.sqrt(np.diag(C[first:, first:])), rel=5e-3)
    for j in range(J):
        to_off = np.zeros((3, len(p)))  # theta_j - X_j gamma
        to_off[:, 3 * j : 3 * j + 3], to_off[:, first + 1 :] = np.eye(3), -data.X[j]
        expected = to_off @ C @ to_off.T
        sd = np.sqrt(np.diag(expected))
        assert of_cells[j] / np.outer(sd, sd) == pytest.approx(expected / np.outer(sd, sd), abs=5e-3)


def test_points_left_out_do_not_count():
    keep = DATA.x < 4.5
    y = np.where(keep, DATA.y, 0.9)
    masked = [replace(DATA, y=v, weight=DATA.weight * keep) for v in (DATA.y, y)]
    a, b = (find_mode(1.0, data, initial_state(1.0, SWEEP), SCALES) for data in masked)
    assert a.theta == pytest.approx(b.theta, abs=1e-12)
