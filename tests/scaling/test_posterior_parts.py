"""Each part of the posterior's mode and of its sampler against the same in loops, or in closed
form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.stats import multivariate_normal

from isojax.scaling.curves import posterior_draws, posterior_mode
from isojax.scaling.curves.fit_hierarchical import DETERMINED_PROGRESS, _summarise_curve
from isojax.scaling.curves.hierarchical import (
    minus_two_log_posterior,
    pack_sweep,
    predict_rewards,
    progress_at_points,
    robust_precision,
)
from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.posterior_draws import (
    BINS_PER_RUN,
    LEAPFROG_STEPS,
    WALL_SD,
    CurvePosterior,
    _Coordinates,
    _largest_r_hat,
    _leapfrog,
    _make_target,
    _run_round,
    _variance_inflation,
    _whitening_matrix,
    mean_curve_residuals,
)
from isojax.scaling.curves.posterior_mode import (
    PRIOR_RUN_SD,
    PRIOR_TAU,
    PRIOR_WEIGHT,
    TAIL_PRIOR,
    ShapeFit,
    _update_scales,
    estimate_run_sd,
    fit_all_tails,
    fit_shape,
    initial_state,
    posterior_covariances,
    robust_noise_sd,
)
from tests.scaling.sweeps import packed, run, sweep


def packed_unequally():
    """More points than bins, so that a bin holds several evaluations; and one run that ends before
    the others, whose row of the arrays is padded."""
    cells = sweep(points=40, noise=0.01, run_sd=0.02, seeds=2)
    first, second = cells[16, 16]
    cells[16, 16] = [first, run(16, 16, 1, second.C[:30], second.R[:30])]
    return pack_sweep(cells)


SWEEP = packed_unequally()
FITTED = fit_shape(0.5, SWEEP)
J, S, P = SWEEP.data.y.shape


def test_correlated_residuals_widen_the_noise_by_hand():
    """Residuals of (1, 1, -1, -1), 25 times over: products of neighbours 1, -1, 1, ..., whose mean
    is about 0; of 20 ones followed by 20 minus ones they are 1 but for one."""
    fast = np.tile([1.0, 1.0, -1.0, -1.0], 25)
    assert _variance_inflation([fast]) == 1.0
    slow = np.repeat([1.0, -1.0], 20)
    rho = (38 - 1) / 39
    assert rho > posterior_draws.MAX_AUTOCORRELATION
    assert _variance_inflation([slow]) == pytest.approx(1.8 / 0.2)
    # 99 neighbours: a correlation above 2 / sqrt(99) = .2 is significant
    rng = np.random.default_rng(0)
    drifting = rng.standard_normal(100)
    drifting[1:] += 0.7 * drifting[:-1]
    rho = np.mean(drifting[1:] * drifting[:-1]) / np.mean(drifting**2)
    assert 0.2 < rho < 0.8
    assert _variance_inflation([drifting]) == pytest.approx((1 + rho) / (1 - rho))
    assert _variance_inflation([drifting[:8]]) == 1.0  # 7 neighbours say nothing


def test_r_hat_is_that_of_gelman_and_rubin():
    """Over the last half of the iterations, the largest of the coordinates; chains of two shapes
    differ from the mean of their own."""
    rng = np.random.default_rng(1)
    positions = [rng.normal(size=(30, chains, 2)) + np.arange(chains)[:, None] for chains in (4, 3)]
    per_coordinate = []
    for d in range(2):
        variances, squares, count = [], 0.0, 0
        for of_shape in positions:
            chains = of_shape[15:, :, d].T
            variances += [chain.var(ddof=1) for chain in chains]
            means = np.array([chain.mean() for chain in chains])
            squares += ((means - means.mean()) ** 2).sum()
            count += len(means) - 1
        per_coordinate.append(np.sqrt(14 / 15 + squares / count / np.mean(variances)))
    assert _largest_r_hat(positions) == pytest.approx(max(per_coordinate), rel=1e-12)


STIFFNESS = np.array([1.0, 4.0])


def normal_potential(position):
    """Minus the log density of a normal distribution of variances 1 / STIFFNESS; infinite beyond
    3."""
    potential = 0.5 * (STIFFNESS * position**2).sum(1, keepdims=True)
    outside = (np.abs(position) > 3).any(1, keepdims=True)
    return position, np.where(outside, np.inf, potential), STIFFNESS * position


def leap(x, momentum, step):
    """Half a step of the momentum, then whole ones of both, and half a step at the end."""
    momentum = momentum - step / 2 * STIFFNESS * x
    for i in range(LEAPFROG_STEPS):
        x = x + step * momentum
        last = i == LEAPFROG_STEPS - 1
        momentum = momentum - (step / 2 if last else step) * STIFFNESS * x
    return x, momentum


def test_leapfrog_steps_are_those_of_a_loop_and_can_be_run_backwards():
    rng = np.random.default_rng(0)
    x, momentum = rng.normal(size=(2, 5, 2))
    step = np.full((5, 1), 0.1)
    (end, _, _), end_momentum = _leapfrog(normal_potential, normal_potential(x), momentum, step)
    for q in range(5):
        expected, expected_momentum = leap(x[q], momentum[q], 0.1)
        assert end[q] == pytest.approx(expected) and end_momentum[q] == pytest.approx(
            expected_momentum
        )
    (back, _, _), _ = _leapfrog(normal_potential, normal_potential(end), -end_momentum, step)
    assert back == pytest.approx(x)
    energies = [
        normal_potential(x_)[1][:, 0] + 0.5 * (p**2).sum(1)
        for x_, p in ((x, momentum), (end, end_momentum))
    ]
    assert energies[0] == pytest.approx(energies[1], rel=0.02)


def test_a_round_of_chains_is_a_loop_of_metropolis_steps(monkeypatch):
    """With the same random numbers, each chain by itself; one that begins where nothing is allowed
    comes half way in, as often as it must."""
    monkeypatch.setattr(posterior_draws, "HMC_ITERATIONS", 12)
    start = np.array([[0.5, -0.2], [20.0, 1.0], [-1.0, 1.0]])
    step = np.array([[0.4], [0.6], [1.3]])  # the last is near the limit, and is often refused
    shares, positions = _run_round(normal_potential, start, step, np.random.default_rng(5))

    rng = np.random.default_rng(5)
    x = np.array([start[0], start[1] / 8, start[2]])
    accepted = np.zeros(3)
    for i in range(12):
        momentum = rng.normal(size=(3, 2))
        sizes = step * rng.uniform(0.6, 1.1, size=(3, 1))
        chances = rng.random((3, 1))
        for q in range(3):
            trial, end_momentum = leap(x[q], momentum[q], sizes[q, 0])
            energy = normal_potential(x[None, q])[1][0, 0] + 0.5 * (momentum[q] ** 2).sum()
            trial_energy = normal_potential(trial[None])[1][0, 0] + 0.5 * (end_momentum**2).sum()
            if np.log(chances[q, 0]) < energy - trial_energy:
                x[q] = trial
                accepted[q] += 1
        assert positions[i] == pytest.approx(x)
    assert shares == pytest.approx(accepted / 12)
    assert accepted.min() < 12 and accepted.max() > 8


def test_chains_are_whitened_by_their_own_covariance():
    """The new coordinates name the same points, and have less of the covariance, by as much as many
    chains weigh against as many dimensions."""
    rng = np.random.default_rng(0)
    mixing = np.array([[2.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.5, 0.2]])
    positions = rng.normal(size=(20, 9, 3)) @ mixing.T
    T = np.diag([1.0, 2.0, 3.0])
    coordinates = _Coordinates(slice(2, 8), np.array([1.0, 2.0, 3.0]), T)

    adapted = coordinates.adapt(positions)

    last = positions[-1, 2:8]
    assert adapted @ coordinates.T.T == pytest.approx(last @ T.T)
    covariance = np.cov(positions[10:, 2:8].reshape(-1, 3).T)
    shrunk = 6 / 9 * covariance + 3 / 9 * np.eye(3)
    assert coordinates.T @ coordinates.T.T == pytest.approx(T @ shrunk @ T.T)


@pytest.mark.parametrize("offset", [0.0, 0.01])
def test_bins_hold_the_means_of_their_evaluations(offset):
    """A loop over the evaluations: the bins divide a cell's range of log C evenly, each evaluation
    counts by its precision, and a bin's reward is the curve's at its mean log C and the mean
    residual. Also of runs that were not evaluated at the same C."""
    data, state = SWEEP.data, FITTED.state
    data = replace(data, x=data.x + offset * np.arange(S)[:, None])
    target = _make_target(data, FITTED, np.array([0.012]))
    precision = robust_precision(data, state, FITTED.scales)
    fitted = predict_rewards(data, state, with_run_effect=False)
    assert (target.W > 0).sum() < (data.trained).sum()
    for j in range(J):
        A, mid, lnB = state.theta[j]
        trained = data.trained[j]
        share = (data.x[j] - data.x[j][trained].min()) / np.ptp(data.x[j][trained])
        for b in range(BINS_PER_RUN):
            is_last = b == BINS_PER_RUN - 1
            share_times_bins = share * BINS_PER_RUN
            inside = trained & (share_times_bins >= b) & ((share_times_bins < b + 1) | is_last)
            w = precision[j]
            assert target.W[j, :, b] == pytest.approx((w * inside).sum(1))
            if not inside.any():
                continue
            mean_x = np.average(data.x[j][inside], weights=w[inside])
            on_curve = curve_value(10**mean_x, state.R0, A, np.exp(lnB), 10**mid, state.tail)
            assert target.x[j, b] == pytest.approx(mean_x)
            assert target.reference[j, b] == pytest.approx(float(on_curve))
            for s in np.flatnonzero(inside.any(1)):
                residual = (data.y - fitted)[j, s, inside[s]]
                assert target.y[j, s, b] == pytest.approx(
                    np.average(residual, weights=w[s, inside[s]])
                )
    at_zero = np.isinf(data.x) & (data.weight > 0)
    assert float(target.W0) == pytest.approx(precision[at_zero].sum())
    assert float(target.y0) == pytest.approx(
        np.average(data.y[at_zero], weights=precision[at_zero])
    )


def test_the_potential_is_that_of_normal_distributions_with_e_and_gamma_integrated_out():
    """Each run's bins are normal around their curve, with the covariance of noise and run effect;
    theta is normal around the surface's prior mean. Differences, as constants are left out."""
    run_sd = 0.012
    data, state, scales = SWEEP.data, FITTED.state, FITTED.scales
    target = _make_target(data, FITTED, np.array([run_sd]))
    X = data.X.reshape(3 * J, -1)
    prior = multivariate_normal(
        X @ scales.u_mean[1:],
        np.diag(np.tile(scales.tau, J) ** 2) + X @ np.diag(scales.u_sd[1:] ** 2) @ X.T,
    )

    def minus_log_density(v):
        theta, R0 = v[:-1].reshape(J, 3), v[-1]
        result = -prior.logpdf(v[:-1]) + 0.5 * float(target.W0) * (float(target.y0) - R0) ** 2
        for j in range(J):
            A, mid, lnB = theta[j]
            for s in range(S):
                used = target.W[j, s] > 0
                C = 10 ** target.x[j, used]
                curve = curve_value(C, R0, A, np.exp(lnB), 10**mid, state.tail)
                progress = curve_value(C, 0, 1, np.exp(lnB), 10**mid, state.tail)
                covariance = np.diag(1 / target.W[j, s, used])
                covariance += run_sd**2 * np.outer(progress, progress)
                rewards = target.reference[j, used] + target.y[j, s, used]
                result -= multivariate_normal(curve, covariance).logpdf(rewards)
        return result

    mode = np.append(state.theta.ravel(), state.R0)
    v = mode + 0.01 * np.random.default_rng(0).standard_normal((4, len(mode)))
    potential = target.value_and_gradient(v)[0]
    expected = np.array([minus_log_density(row) for row in v])
    assert potential - potential[0] == pytest.approx(expected - expected[0], rel=1e-6, abs=1e-6)


def test_walls_are_parabolas_beyond_the_bounds():
    """A prior and evaluations apart, a step d beyond a bound costs (d / WALL_SD)^2 / 2."""
    target = _make_target(SWEEP.data, FITTED, np.array([0.01]))
    nothing = np.zeros_like(target.W)
    wall = replace(target, W=nothing, W0=np.array(0.0), prior_precision=0 * target.prior_precision)
    inside = np.tile((target.lower + target.upper) / 2, J)
    v = np.append(inside, 0.3)[None].repeat(7, axis=0)
    for k in range(3):
        v[1 + k, 3 + k] = target.upper[k] + 0.2
        v[4 + k, k] = target.lower[k] - 0.1
    potential, gradient = wall.value_and_gradient(v)
    expected = [*(0.5 * (0.2 / WALL_SD) ** 2), *(0.5 * (0.1 / WALL_SD) ** 2)]
    assert potential[1:] - potential[0] == pytest.approx(expected)
    assert [gradient[1 + k, 3 + k] for k in range(3)] == pytest.approx(0.2 / WALL_SD**2)
    assert [gradient[4 + k, k] for k in range(3)] == pytest.approx(-0.1 / WALL_SD**2)
    far = v[:2].copy()
    far[0, 0], far[1, -1] = target.upper[0] + 1.01, -10.1
    assert np.isinf(wall.value_and_gradient(far)[0]).all()


def test_coordinates_are_whitened_by_the_curvature():
    """T' H T is the identity, with H by differences of the potential's gradient."""
    target = _make_target(SWEEP.data, FITTED, np.array([0.02]))
    v = np.append(FITTED.state.theta.ravel(), FITTED.state.R0)
    T = _whitening_matrix(target, v)

    def gradient(u):
        return target.value_and_gradient((v + T @ u)[None])[1][0] @ T

    H = np.array(
        [
            approx_fprime(np.zeros(len(v)), lambda u, i=i: gradient(u)[i], 1e-3)
            for i in range(len(v))
        ]
    )
    assert pytest.approx(np.eye(len(v)), abs=0.05) == H


def test_residuals_of_mean_curves_by_a_loop():
    """Evaluations minus the curve, less the run's effect, which grows with the curve's progress and
    is shrunk by its prior."""
    data, scales = SWEEP.data, FITTED.scales
    mean_curves = np.column_stack([FITTED.state.theta, np.full(J, 0.5)])
    left_out = replace(data, weight=data.weight.copy())
    left_out.weight[0, 0, 5] = 0
    posterior = CurvePosterior(
        theta=FITTED.state.theta[None],
        R0=np.array([0.19, 0.21]),
        tail=np.array([0.5, 0.5]),
        mean_curves=mean_curves,
        likeliest=FITTED,
        evaluation_sd=0.01,
        acceptance=None,
        r_hat=None,
    )
    got = mean_curve_residuals(posterior, replace(SWEEP, data=left_out))
    for j in range(J):
        A, mid, lnB, tail = mean_curves[j]
        for s in range(S):
            x, y, w = data.x[j, s], data.y[j, s], left_out.weight[j, s]
            progress = np.zeros(P)
            trained = np.isfinite(x)
            progress[trained] = curve_value(10 ** x[trained], 0, 1, np.exp(lnB), 10**mid, tail)
            residual = y - 0.2 - (A - 0.2) * progress
            precision = w / scales.noise_sd**2
            e = (precision * progress * residual).sum() / (
                (precision * progress**2).sum() + 1 / scales.run_sd**2
            )
            assert got[j, s] == pytest.approx(w * (residual - e * progress))
    assert got[0, 0, 5] == 0


def test_the_first_guess_is_the_best_corner_of_a_grid():
    """Loops over cells and corners; A by least squares above the reward at C = 0."""
    data, floor = SWEEP.data, SWEEP.base_reward
    state = initial_state(0.5, SWEEP)
    assert state.R0 == floor and not state.e.any()
    for j in range(J):
        C = 10 ** data.x[j][data.trained[j]]
        y = data.y[j][data.trained[j]]
        best = (np.inf, 0.0, 0.0, 0.0)
        for mid in np.linspace(data.x_low - 0.5, data.x_high + 1.0, 25):
            for B in (0.4, 0.7, 1.0, 1.5, 2.2):
                s = curve_value(C, 0, 1, B, 10**mid, 0.5)
                gain = np.clip(s @ (y - floor) / (s @ s), -floor, 1 - floor)
                error = ((floor + gain * s - y) ** 2).sum()
                best = min(best, (error, floor + gain, mid, np.log(B)))
        assert state.theta[j] == pytest.approx(best[1:])
    # gamma: the surface nearest to the cells, in units of .01, and to the prior's mean in its sd
    X, sd = data.X.reshape(3 * J, -1), SWEEP.prior.sd[1:]

    def distance(gamma):
        off = (X @ gamma - state.theta.ravel()) / 0.01
        return (off**2).sum() + (((gamma - SWEEP.prior.mean[1:]) / sd) ** 2).sum()

    gamma = state.u[1:]
    for i in range(len(gamma)):
        for step in (-0.01, 0.01):
            assert distance(gamma + step * sd[i] * np.eye(len(gamma))[i]) > distance(gamma)


def test_without_an_evaluation_at_no_compute_the_floor_is_the_lowest_reward():
    state = initial_state(1.0, replace(SWEEP, base_reward=None))
    assert state.R0 == SWEEP.data.y[SWEEP.data.weight > 0].min()


def test_noise_by_hubers_second_proposal():
    """The fixed point: the mean of squares, cut at four variances, is .9205 of the variance; times
    N / (N - parameters)."""
    residuals = np.random.default_rng(0).standard_t(3, SWEEP.data.y.shape) * 0.01
    got = robust_noise_sd(SWEEP.data, residuals, 20)
    squares = residuals[SWEEP.data.weight > 0] ** 2
    N = len(squares)
    variance = got**2 * (N - 20) / N
    assert np.mean(np.minimum(squares, 4 * variance)) / 0.9205 == pytest.approx(variance, rel=1e-6)
    assert variance < squares.mean()


def test_the_spread_of_seeds_by_a_loop():
    """Each run's offset from its cell's curve, in shares of its progress; their spread within
    cells, less what noise makes, together with a prior worth PRIOR_WEIGHT seeds."""
    sweep = packed(points=9, noise=0.003, run_sd=0.03, seeds=3)
    data, state, noise_sd = sweep.data, fit_shape(1.0, sweep).state, 0.003
    excess, freedom = 0.0, 0
    fitted = predict_rewards(data, state, with_run_effect=False)
    progress = progress_at_points(1.0, data, state.theta)[0]
    for j in range(len(data.y)):
        offsets, weights = [], []
        for s in range(3):
            information = (progress[j, s] ** 2).sum()
            offsets.append((progress[j, s] * (data.y - fitted)[j, s]).sum() / information)
            weights.append(information)
        assert min(weights) > 0.2
        for offset, weight in zip(offsets, weights, strict=True):
            excess += (offset - np.mean(offsets)) ** 2 - (1 - 1 / 3) * noise_sd**2 / weight
        freedom += 2
    run_sd, source = estimate_run_sd(data, state, noise_sd, None)
    expected = (PRIOR_WEIGHT * PRIOR_RUN_SD**2 + excess) / (PRIOR_WEIGHT + freedom)
    assert run_sd == pytest.approx(np.sqrt(expected)) and run_sd > 0.015
    assert f"{freedom} degrees" in source


def test_scales_are_updated_by_the_expected_squares():
    """tau: the cells' departures from the surface and their posterior variances; the surface's
    steps alike, those of one kind together. Each with a prior worth PRIOR_WEIGHT of them."""
    data, state, scales = SWEEP.data, FITTED.state, FITTED.scales
    updated = _update_scales(SWEEP, state, scales)
    of_cells, of_u = posterior_covariances(data, state, scales)
    for c in range(3):
        squares = PRIOR_WEIGHT * PRIOR_TAU[c] ** 2
        for j in range(J):
            departure = state.theta[j, c] - data.X[j, c] @ state.u[1:]
            squares += departure**2 + of_cells[j, c, c]
        assert updated.tau[c] == pytest.approx(np.sqrt(squares / (PRIOR_WEIGHT + J)))
    for i, group in enumerate(SWEEP.prior.sd_group):
        if group < 0:
            assert updated.u_sd[i] == scales.u_sd[i]
            continue
        members = np.flatnonzero(SWEEP.prior.sd_group == group)
        squares = PRIOR_WEIGHT * posterior_mode.PRIOR_STEP_SD[group] ** 2
        squares += sum(state.u[m] ** 2 + of_u[m, m] for m in members)
        assert updated.u_sd[i] == pytest.approx(np.sqrt(squares / (PRIOR_WEIGHT + len(members))))


def test_shapes_are_weighed_by_the_evidence_of_the_mean_run():
    """prior exp(-cost / (2 runs)), the likeliest first, all under the scales of one of them."""
    sweep = packed(points=10, noise=0.02, seeds=2)
    fits = fit_all_tails(sweep, None)
    assert len({id(f.scales) for f in fits}) == 1
    costs = [minus_two_log_posterior(sweep.data, f.state, f.scales) / 6 for f in fits]
    assert costs == sorted(costs)
    weights = [
        TAIL_PRIOR[f.state.tail] * np.exp(-0.5 * (cost - costs[0]))
        for f, cost in zip(fits, costs, strict=True)
    ]
    assert [f.probability for f in fits] == pytest.approx(np.array(weights) / sum(weights))


def test_a_shape_fit_is_whole():
    """The noise of a fit is that of its residuals, and of a run without noise next to none."""
    assert isinstance(FITTED, ShapeFit) and FITTED.scales.noise_sd == pytest.approx(0.01, rel=0.15)
    residuals = SWEEP.data.y - predict_rewards(SWEEP.data, FITTED.state)
    parameters = 1 + 2 * J + J * S
    assert FITTED.scales.noise_sd == pytest.approx(
        robust_noise_sd(SWEEP.data, residuals, parameters), rel=0.01
    )


def test_a_cells_curve_by_its_draws():
    """Its error over the points that are fitted, its intervals of the draws on other problems; it
    is determined where the runs have come far along it and the draws of A agree."""
    rng = np.random.default_rng(0)
    weight = SWEEP.data.weight.copy()
    weight[1, 0, 30:] = 0
    sweep = replace(SWEEP, data=replace(SWEEP.data, weight=weight))
    theta = FITTED.state.theta + 1e-3 * rng.standard_normal((200, J, 3))
    posterior = CurvePosterior(
        theta=theta,
        R0=np.full(200, -0.05),
        tail=np.full(200, 0.5),
        mean_curves=np.column_stack([FITTED.state.theta, np.full(J, 0.5)]),
        likeliest=FITTED,
        evaluation_sd=0.01,
        acceptance=None,
        r_hat=None,
    )
    residuals = 0.01 * rng.standard_normal((S, P))
    shift = 0.05 * rng.standard_normal((200, 2))

    c = _summarise_curve(1, posterior, sweep, residuals, np.inf, None, shift)

    assert c.rmse == pytest.approx(np.sqrt(np.mean(residuals[weight[1] > 0] ** 2)))
    assert (c.R0, c.C_peak, c.tail) == (0.0, None, 0.5)
    assert c.points == ((weight[1] > 0) & np.isfinite(SWEEP.data.x[1])).sum()
    draws_of_A = theta[:, 1, 0]
    draws_of_A = draws_of_A + draws_of_A * (1 - draws_of_A) * (
        shift @ [1, 0] + shift[:, 1] * draws_of_A
    )
    assert c.A_interval == pytest.approx(np.quantile(draws_of_A, [0.05, 0.95]))
    assert c.exponent_interval == pytest.approx(np.quantile(np.exp(theta[:, 1, 2]), [0.05, 0.95]))
    assert c.C_mid_interval == pytest.approx(np.quantile(10 ** theta[:, 1, 1], [0.05, 0.95]))
    assert (c.C_low, c.C_high) == (1e3, 1e5)

    progress = progress_at_points(0.5, sweep.data, FITTED.state.theta)[0]
    for j in range(J):
        reached = progress[j][weight[j] > 0].max()
        bare = _summarise_curve(j, posterior, sweep, residuals, np.inf, None, None)
        assert bare.determined == (reached >= DETERMINED_PROGRESS) and bare.A_interval is None
        peaked = _summarise_curve(j, posterior, sweep, residuals, 4.0, None, None)
        assert not peaked.determined and peaked.C_peak == pytest.approx(1e4)
    wide = replace(posterior, theta=theta + 0.1 * rng.standard_normal((200, 1, 1)))
    assert not _summarise_curve(1, wide, sweep, residuals, np.inf, None, 0 * shift).determined
    assert _summarise_curve(0, posterior, sweep, residuals, np.inf, None, 0 * shift).determined
