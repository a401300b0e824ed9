"""The model of a run whose n may change: its prior by loops, how a run goes on by a root, and its
fits against SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import approx_fprime, brentq, least_squares

from isojax.scaling.allocate import growth_model
from isojax.scaling.allocate.growth_model import (
    ASYMPTOTE_PRIOR,
    C_MID_PRIOR,
    NOISE_BOUNDS,
    SHAPE_PRIOR,
    SWITCH_SHARES,
    GrowthDraws,
    RunPath,
    _LeastSquares,
    _prior,
    fit_growth,
)
from isojax.scaling.curves.hill import curve_value

ALL_N = (4, 8, 32)
R0, EXPONENT, TAIL = 0.2, 1.3, 0.6
ASYMPTOTES, MIDS = np.array([0.5, 0.7, 0.65]), np.array([1e3, 3e3, 2e4])


def parameters(asymptotes=ASYMPTOTES):
    share = (asymptotes - R0) / (1 - R0)
    return np.concatenate(
        [[R0, np.log(EXPONENT), np.log(TAIL)], np.log(share / (1 - share)), np.log(MIDS)]
    )


def curve(i, C):
    return float(curve_value(C, R0, ASYMPTOTES[i], EXPONENT, MIDS[i], TAIL))


@pytest.mark.parametrize("i", [0, 1, 2])
def test_a_run_goes_on_along_the_curve_from_its_own_reward(i):
    """C of the curve at the run's reward by a root; from there C_more further."""
    draws = GrowthDraws(parameters())
    for reward in (0.21, 0.3, 0.48):
        C_now = np.exp(brentq(lambda x, r=reward: curve(i, np.exp(x)) - r, -10, 25))
        for C_more in (10.0, 5e3, 1e5):
            got = draws.go_on(np.array(reward), i, C_more)
            assert float(got) == pytest.approx(curve(i, C_now + C_more), abs=1e-7)


def test_a_run_above_the_asymptote_falls_back_by_half_within_C_mid():
    draws = GrowthDraws(parameters())
    for C_more, share in ((1e3, 0.5), (2e3, 0.25)):
        got = float(draws.go_on(np.array(0.6), 0, C_more))
        assert got == pytest.approx(0.5 + 0.1 * share, abs=1e-5)


def test_a_run_that_changes_n_is_put_together_from_its_stretches():
    """From R0 on; each evaluation's n is that of the updates since the one before."""
    draws = GrowthDraws(np.stack([parameters(), parameters(ASYMPTOTES + 0.05)]))
    path = RunPath(np.array([0, 0, 2, 1]), np.array([500.0, 2e3, 9e3, 1e4]), np.zeros(4))
    got = draws.along(path)
    assert got.shape == (2, 4)
    assert got[0, :2] == pytest.approx([curve(0, 500), curve(0, 2e3)], abs=1e-6)
    rewards = got[:, 1]
    for i, C_more, column in ((2, 7e3, 2), (1, 1e3, 3)):
        rewards = draws.go_on(rewards, i, C_more)
        assert got[:, column] == pytest.approx(rewards)


def test_the_next_n_is_that_of_the_best_of_all_plans():
    """By a loop over plans with one change of n at most, of the first two n and of all three."""
    rng = np.random.default_rng(0)
    draws = GrowthDraws(parameters() + 0.3 * rng.standard_normal((40, 9)))
    rewards = draws.R0 + 0.02
    for num_n in (2, 3):
        for C_left in (500.0, 5e3, 1e6):
            for optimism in (0.0, 2.0):
                plans = []
                for i in range(num_n):
                    plans.append((i, draws.go_on(rewards, i, C_left)))
                    for share in SWITCH_SHARES:
                        middle = draws.go_on(rewards, i, share * C_left)
                        for j in set(range(num_n)) - {i}:
                            plans.append((i, draws.go_on(middle, j, C_left - share * C_left)))
                best = max((end for _, end in plans), key=lambda end: end.mean())
                scores = [end.mean() + optimism * np.std(end - best) for _, end in plans]
                got = draws.best_next(rewards, C_left, num_n, optimism)
                assert got.n_index == plans[int(np.argmax(scores))][0]
                assert got.end == pytest.approx(plans[int(np.argmax(scores))][1])


def test_the_prior_by_loops():
    """Level, slope times doublings from the smallest n, and a Brownian path along them; the shared
    shape is independent of both."""
    C_end = 5e4
    prior = _prior(np.log2(np.array(ALL_N, dtype=float)), C_end)
    doublings = [0.0, 1.0, 3.0]
    expected = np.zeros((9, 9))
    mean = [shape.mean for shape in SHAPE_PRIOR]
    for i, shape in enumerate(SHAPE_PRIOR):
        expected[i, i] = shape.sd**2
    for start, offset, of_n in ((3, 0.0, ASYMPTOTE_PRIOR), (6, np.log(C_end), C_MID_PRIOR)):
        for i, x in enumerate(doublings):
            mean.append(of_n.level.mean + of_n.slope.mean * x + offset)
            for j, y in enumerate(doublings):
                path = of_n.step_sd**2 * min(x, y)
                expected[start + i, start + j] = of_n.level.sd**2 + of_n.slope.sd**2 * x * y + path
    assert prior.mean == pytest.approx(mean)
    covariance = np.linalg.inv(prior.whiten.T @ prior.whiten)
    assert covariance == pytest.approx(expected, abs=1e-6)


def test_many_problems_at_once_end_where_scipys_does():
    """Curves a exp(-b x) with a normal prior, each problem with data, a prior draw and a start of
    its own. From some of the starts the first steps go too far, and are refused."""
    x = np.linspace(0, 3, 8)
    rng = np.random.default_rng(0)
    truth = np.column_stack([rng.uniform(0.5, 2, 30), rng.uniform(0.1, 1.5, 30)])

    def predict(theta):
        return theta[..., :1] * np.exp(-theta[..., 1:] * x)

    R = predict(truth) + 0.01 * rng.standard_normal((30, 8))
    weight = np.linspace(20, 50, 8)
    whiten = np.array([[1.0, 0.0], [0.5, 2.0]])
    prior_draws = truth + 0.2 * rng.standard_normal((30, 2))
    problem = _LeastSquares(predict, R, weight, prior_draws, whiten)

    start = truth + np.column_stack([np.zeros(30), rng.uniform(-0.6, 2.0, 30)])
    got = problem.solve(start)

    first_steps_refused = 0
    for q in range(30):

        def residuals(theta, q=q):
            of_rewards = (theta[0] * np.exp(-theta[1] * x) - R[q]) * weight
            return np.concatenate([of_rewards, whiten @ (theta - prior_draws[q])])

        other = least_squares(residuals, start[q], xtol=1e-12, ftol=1e-12)
        cost = 0.5 * (residuals(got[q]) ** 2).sum()
        assert cost == pytest.approx(other.cost, rel=2e-2)
        J = approx_fprime(start[q], residuals)
        H = J.T @ J
        step = np.linalg.solve(H + 1e-2 * np.diag(np.diag(H)), J.T @ residuals(start[q]))
        before, after = (
            residuals(start[q] - s * step) @ residuals(start[q] - s * step) for s in (0, 1)
        )
        first_steps_refused += after >= before
    assert 2 <= first_steps_refused < 28


def path_of(i, C_max, points, sd, seed):
    C = np.geomspace(300, C_max, points)
    R = np.array([curve(i, c) for c in C])
    noise = sd * np.random.default_rng(seed).standard_normal(points)
    return RunPath(np.full(points, i), C, R + noise)


def test_draws_hold_the_truth_and_the_noise_widens_them():
    """Runs of all n with noise of .01 and of .03: means near the truth where it was measured, and
    twice to four times the spread."""
    spreads = []
    for sd in (0.01, 0.03):
        paths = [path_of(i, 4e4, 16, sd, seed=i) for i in range(3)]
        draws = fit_growth(ALL_N, [0.2, 0.21, 0.19], paths, 1e5)
        C_end = 4e4
        ends = np.stack([draws.go_on(draws.R0, i, C_end) for i in range(3)])
        expected = np.array([curve(i, C_end) for i in range(3)])
        assert ends.mean(1) == pytest.approx(expected, abs=4 * sd / np.sqrt(8))
        spreads.append(ends.std(1).mean())
    assert 1.7 < spreads[1] / spreads[0] < 4.5


def test_the_noise_is_that_of_residuals_and_of_its_prior(monkeypatch):
    """What `fit_growth` takes for the noise of an evaluation: seen by the weights of the last
    problem it solves, of which the newest evaluation's is 1 / noise."""
    weights, residuals = [], []
    solve = _LeastSquares.solve

    def recording(self, theta):
        weights.append(self.weight)
        theta = solve(self, theta)
        residuals.append((self.predict(theta) - self.R)[0])
        return theta

    monkeypatch.setattr(growth_model._LeastSquares, "solve", recording)
    for sd, seen in ((0.02, (0.012, 0.028)), (0.5, NOISE_BOUNDS[1:] * 2)):
        weights.clear()
        residuals.clear()
        paths = [path_of(i, 4e4, 12, sd, seed=3 + i) for i in range(3)]
        fit_growth(ALL_N, [0.2], paths, 1e5)
        assert len(weights) == 3
        noise = 1 / weights[-1][0]  # of the reward at C = 0, which counts in full
        assert seen[0] <= noise * (1 + 1e-9) and noise <= seen[1] * (1 + 1e-9)
        discounted = weights[-1][1:13] * noise
        assert discounted == pytest.approx((paths[0].C / 4e4) ** 0.5)
        # the weighted squares of the mode's residuals, and 4 of the prior
        in_full = np.r_[1.0, *((p.C / 4e4) ** 0.5 for p in paths)]
        squares = ((residuals[1] * in_full) ** 2).sum() + 4 * 0.01**2
        expected = np.sqrt(squares / ((in_full**2).sum() + 4))
        assert noise == pytest.approx(np.clip(expected, *NOISE_BOUNDS), rel=1e-6)
    assert 1 / weights[0][0] == pytest.approx(growth_model.NOISE_PRIOR_SD)
