"""The hierarchical model's mode against SciPy's least squares on the same cost, written out in
loops; its covariances against a Hessian by differences. Noise-free sweeps are recovered; the
optimum does not depend on the start; scales by hand. `same` worlds have no effect of n, `hill`
worlds always have one.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import least_squares

from isojax.scaling.curves.hierarchical import (
    ROBUST_THRESHOLD_SD,
    HierarchicalState,
    Scales,
    _unseen_noise_sd,
    minus_two_log_posterior,
    pack_sweep,
    predict_rewards,
    robust_precision,
    surface_columns,
)
from isojax.scaling.curves.posterior_mode import (
    PRIOR_RUN_SD,
    PRIOR_TAU,
    estimate_run_sd,
    find_mode,
    fit_shape,
    has_no_n_effect,
    initial_state,
    posterior_covariances,
    robust_noise_sd,
)
from isojax.scaling.tracks import group_by_cell, make_track
from tests.scaling.sweeps import CURVES, R0, fit, packed
from tests.scaling.synthetic import random_world, world
from tests.scaling.synthetic_curves import Hill, Stretched

SWEEP = packed(run_sd=0.01, noise=0.008)
DATA = SWEEP.data
J, S, P = DATA.y.shape
K = DATA.X.shape[2]
SCALES = Scales(0.008, 0.01, PRIOR_TAU, SWEEP.prior.mean, np.minimum(SWEEP.prior.sd, 1.0))


def unpacked(p):
    return HierarchicalState(
        p[: 3 * J].reshape(J, 3), p[3 * J : 3 * J + J * S].reshape(J, S), p[3 * J + J * S :], 1.0
    )


def all_of(state):
    return np.concatenate([state.theta.ravel(), state.e.ravel(), state.u])


def residuals(p, data=DATA, scales=SCALES):
    """Whose squares add up to minus twice the log posterior, as scaling/curves/hierarchical.py's
    docstring has it, Hill curves.
    """
    state, out = unpacked(p), []
    for j in range(J):
        A, mid, lnB = state.theta[j]
        for s in range(S):
            for x, y in zip(data.x[j, s], data.y[j, s], strict=True):
                share = 0.0 if np.isinf(x) else 1 / (1 + 10 ** (-np.exp(lnB) * (x - mid)))
                u = (y - (state.u[0] + (A + state.e[j, s] - state.u[0]) * share)) / scales.noise_sd
                out.append(
                    np.sign(u)
                    * np.sqrt(
                        2
                        * ROBUST_THRESHOLD_SD**2
                        * (np.sqrt(1 + (u / ROBUST_THRESHOLD_SD) ** 2) - 1)
                    )
                )
            out.append(state.e[j, s] / scales.run_sd)
        out += list((state.theta[j] - data.X[j] @ state.u[1:]) / scales.tau)
    return np.array([*out, *((state.u - scales.u_mean) / scales.u_sd)])


def test_the_cost_is_the_documented_one():
    state = initial_state(1.0, SWEEP)
    assert minus_two_log_posterior(DATA, state, SCALES) == pytest.approx(
        float((residuals(all_of(state)) ** 2).sum()), rel=1e-10
    )


def test_the_mode_is_that_of_an_independent_optimiser():
    result = find_mode(DATA, initial_state(1.0, SWEEP), SCALES, iterations=200)
    other = least_squares(
        residuals,
        all_of(initial_state(1.0, SWEEP)),
        x_scale="jac",
        xtol=1e-14,
        ftol=1e-14,
        gtol=1e-12,
    )
    assert minus_two_log_posterior(DATA, result, SCALES) == pytest.approx(2 * other.cost, rel=1e-9)
    theirs = unpacked(other.x)
    assert result.theta == pytest.approx(theirs.theta, abs=1e-5)
    assert result.e == pytest.approx(theirs.e, abs=1e-5) and result.R0 == pytest.approx(
        theirs.R0, abs=1e-6
    )


def test_an_outlier_counts_less_and_by_how_much():
    """A residual of 30 noise_sd at C = 0, where s = 0: its precision is 1 / sqrt(1 + (30 /
    ROBUST)^2) of the others'.
    """
    state = find_mode(DATA, initial_state(1.0, SWEEP), SCALES, iterations=60)
    y = DATA.y.copy()
    y[0, 0, 0] = state.R0 + 30 * SCALES.noise_sd
    W = robust_precision(replace(DATA, y=y), state, SCALES)
    assert W[0, 0, 0] * SCALES.noise_sd**2 == pytest.approx(
        1 / np.sqrt(1 + (30 / ROBUST_THRESHOLD_SD) ** 2)
    )
    moved = find_mode(replace(DATA, y=y), state, SCALES, iterations=60)
    # Six evaluations at C = 0: a mean would move by 30 / 6 = 5 noise_sd.
    assert 0 < (moved.R0 - state.R0) / SCALES.noise_sd < 1.5


def test_covariances_are_those_of_a_hessian_by_differences():
    """Data that lie on the model exactly: there Gauss-Newton's curvature is the curvature."""
    u = np.concatenate([[R0], np.zeros(K)])
    theta = np.array([(A, np.log10(mid), np.log(B)) for A, B, mid in CURVES.values()])
    u[1:] = np.linalg.lstsq(DATA.X.reshape(3 * J, K), theta.ravel(), rcond=None)[0]
    state = HierarchicalState(
        (DATA.X.reshape(3 * J, K) @ u[1:]).reshape(J, 3), np.zeros((J, S)), u, 1.0
    )
    data = replace(DATA, y=predict_rewards(DATA, state))
    scales = replace(SCALES, u_mean=u)
    p = all_of(state)

    def at(q):
        return minus_two_log_posterior(data, unpacked(q), scales) / 2

    assert at(p) == pytest.approx(0, abs=1e-15)
    rows = np.array(
        [
            (residuals(p + h, data, scales) - residuals(p - h, data, scales)) / 2e-6
            for h in 1e-6 * np.eye(len(p))
        ]
    )
    h = 0.01 / np.sqrt((rows**2).sum(1))
    E = np.diag(h)
    H = np.array(
        [[at(p + a + b) - at(p + a - b) - at(p - a + b) + at(p - a - b) for b in E] for a in E]
    ) / (4 * np.outer(h, h))
    C = np.linalg.inv(H)
    of_cells, of_u = posterior_covariances(data, state, scales)
    first = 3 * J + J * S
    assert np.sqrt(np.diag(of_u)) == pytest.approx(np.sqrt(np.diag(C[first:, first:])), rel=5e-3)
    for j in range(J):
        to_off = np.zeros((3, len(p)))  # theta_j - X_j gamma
        to_off[:, 3 * j : 3 * j + 3], to_off[:, first + 1 :] = np.eye(3), -data.X[j]
        expected = to_off @ C @ to_off.T
        sd = np.sqrt(np.diag(expected))
        assert of_cells[j] / np.outer(sd, sd) == pytest.approx(
            expected / np.outer(sd, sd), abs=5e-3
        )


def test_points_left_out_do_not_count():
    keep = DATA.x < 4.5
    y = np.where(keep, DATA.y, 0.9)
    masked = [replace(DATA, y=v, weight=DATA.weight * keep) for v in (DATA.y, y)]
    a, b = (find_mode(data, initial_state(1.0, SWEEP), SCALES, iterations=60) for data in masked)
    assert a.theta == pytest.approx(b.theta, abs=1e-12)


def stretched(B_p, n):
    level = np.log2(n)
    return Stretched(0.3, 0.45 + 0.04 * level, 0.8, 1500 * 1.8**level)


def later_for_large_B_p(B_p, n):
    level = np.log2(n)
    return Hill(
        0.25,
        0.45 + 0.03 * level + 0.005 * (B_p == 64),
        1.1,
        1500 * 1.7**level * (1.2 if B_p == 64 else 1),
    )


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
    assert {c.tail for c in document.curves} == {0.0 if name == "stretched" else 1.0}


def test_noise_free_runs_of_unequal_length():
    """The cells end after 8, 12, ... evaluations: far from their plateaus, but without noise that
    is enough."""
    w = world(samples=0, seeds=1)
    runs = [replace(r, points=r.points[: 9 + 3 * i]) for i, r in enumerate(w.runs)]
    assert off(w, fit(runs, replicates=0)) < 1e-6


def random_start(sweep, seed):
    """(A, mid, lnB) of every cell drawn anywhere in their ranges."""
    rng, J = np.random.default_rng(seed), len(sweep.keys)
    start = initial_state(1.0, sweep)
    theta = np.column_stack(
        [rng.uniform(0.3, 1, J), rng.uniform(3, 5.5, J), rng.uniform(-0.8, 0.8, J)]
    )
    return replace(start, theta=theta)


@pytest.mark.parametrize(("noise", "run_sd"), [(0.0, 0.0), (0.01, 0.01)])
def test_twenty_starts_end_in_one_optimum(noise, run_sd):
    sweep = packed(noise=noise, run_sd=run_sd, seed=3)
    scales = fit_shape(1.0, packed(noise=0.01, run_sd=0.01, seed=3)).scales
    modes = [
        find_mode(sweep.data, random_start(sweep, seed), scales, iterations=400)
        for seed in range(20)
    ]
    # A second search takes the last steps, whose gain is below the tolerance of the first.
    ends = [find_mode(sweep.data, mode, scales, iterations=60).theta for mode in modes]
    assert np.ptp(ends, axis=0).max() < 1e-8  # reward, decades, log


def test_columns_that_cannot_be_distinguished_are_not_there():
    X, prior = surface_columns([(16, 4)], 4.0)
    assert X.shape == (1, 3, 3) and prior.mean.tolist() == [0, 0, 4, 0] and len(prior.sd) == 4
    assert (prior.sd_group == -1).all()
    along_B = surface_columns([(64, 2), (32, 4), (16, 8)], 4.0)[0]  # B fixed: log B_p is -log n
    crossed = surface_columns([(16, 2), (16, 8), (64, 2), (64, 8)], 4.0)[0]
    assert np.linalg.matrix_rank(along_B[:, 0]) == 3
    # A of the crossed design: one, log n, log B_p, log^2 n, one step; of the other no log B_p but
    # two steps.
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
    assert one.scales.run_sd == PRIOR_RUN_SD and one.run_sd_from.startswith(
        "assumed (0.01 of reward)"
    )
    none = packed(noise=0.0)
    state = fit_shape(1.0, none).state
    assert estimate_run_sd(none.data, state, 1e-12, None) == (
        pytest.approx(0, abs=1e-9),
        "none: the points have no noise",
    )


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


def test_noise_that_cannot_be_seen_is_a_step_where_half_of_the_rewards_are_one_value():
    """The smallest difference, at most .01; 0 where fewer are equal, or all."""
    cases = {(0, 0, 0.002, 0.005): 0.002, (0, 0, 0, 0.1, 0.3): 0.01, (0, 0, 0.1, 0.2, 0.3): 0.0}
    for rewards, sd in cases.items():
        assert _unseen_noise_sd(np.array(rewards)) == pytest.approx(sd)
    assert _unseen_noise_sd(np.full(6, 0.3)) == 0
