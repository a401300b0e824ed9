"""One run's posterior: it holds the truth, agrees with an exact integral, and says what the run has
not shown."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from isojax.scaling.curves import single_run
from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.posterior_mode import TAIL_PRIOR
from isojax.scaling.curves.single_run import RunPoints, sample_posterior


def run_of(R0, A, B, C_mid, points=30, sd=0.0, seed=0, seeds=1, end=1e6):
    C = np.append(0.0, np.geomspace(1e3, end, points))
    R = np.append(R0, curve_value(C[1:], R0, A, B, C_mid))
    R = np.tile(R, seeds) + np.random.default_rng(seed).normal(0, sd, len(R) * seeds)
    return RunPoints(np.tile(C, seeds), R, np.repeat(np.arange(seeds), len(C)), seeds)


def _parameters(u, middle, seeds, stated_run_sd=None):
    """What standard normal coordinates u stand for."""
    return single_run._PriorCoordinates(middle, seeds, stated_run_sd).parameters(u)


def interval(values):
    return np.quantile(values, [0.05, 0.95])


def test_the_likelihood_is_that_of_autocorrelated_noise():
    points = run_of(0.2, 0.7, 1.1, 3e4, points=6, sd=0.02, seeds=2)
    p = _parameters(np.random.default_rng(0).normal(size=(50, 10)), 4.5, seeds=2)
    mean = p.rewards(points.C) + p.run_levels[:, points.run_index]
    assert mean[:, 0] == pytest.approx(p.R0 + p.run_levels[:, 0])
    expected = np.zeros(50)
    for q in range(50):
        residual = points.R - mean[q]
        for i in range(len(residual)):
            rho = 0.0 if i in (0, 7) else p.autocorrelation[q]
            scale = p.noise_scale[q] * np.sqrt(1 - rho**2)
            expected[q] += stats.t.logpdf(residual[i], 5, rho * residual[i - 1], scale)
    difference = single_run._log_likelihood(points, p) - expected
    assert difference == pytest.approx(np.full(50, difference[0]), rel=1e-9)


def test_the_sampler_agrees_with_weighted_draws_from_the_prior(monkeypatch):
    # Under this prior, few draws do not dominate the weights.
    monkeypatch.setattr(single_run, "PRIOR_LN_NOISE_SCALE", (np.log(0.1), 0.3))
    points = RunPoints(
        np.array([0, 2e3, 1e4, 4e4]), np.array([0.2, 0.25, 0.4, 0.5]), np.zeros(4, dtype=int)
    )
    prior = _parameters(
        np.random.default_rng(1).normal(size=(100_000, 7)),
        float(np.log10([2e3, 4e4]).mean()),
        seeds=1,
    )
    log_likelihood = single_run._log_likelihood(points, prior)
    weight = np.exp(log_likelihood - log_likelihood.max())
    assert weight.sum() ** 2 / (weight**2).sum() > 300
    drawn = sample_posterior(points)
    rewards = (prior.rewards(np.array([4e5])), drawn.rewards(np.array([4e5])))
    for expected, values, sd in (
        (prior.A, drawn.draws["A"], 0.01),
        (prior.R0, drawn.draws["R0"], 0.005),
        (np.log(prior.exponent), np.log(drawn.draws["exponent"]), 0.05),
        (np.log10(prior.C_mid), np.log10(drawn.draws["C_mid"]), 0.03),
        (rewards[0][:, 0], rewards[1][:, 0], 0.01),
    ):
        mean = np.average(expected, weights=weight)
        assert values.mean() == pytest.approx(mean, abs=3 * sd)
        assert values.std() == pytest.approx(
            np.sqrt(np.average((expected - mean) ** 2, weights=weight)), rel=0.15
        )


def test_intervals_hold_the_truth_and_shrink_with_points():
    widths = []
    for points in (12, 100):
        drawn = sample_posterior(run_of(0.2, 0.7, 1.1, 3e4, points=points, sd=0.01, seed=1))
        low, high = interval(drawn.draws["A"])
        assert low < 0.7 < high
        C = np.geomspace(1e3, 1e6, 20)
        assert (
            np.abs(np.median(drawn.rewards(C), axis=0) - curve_value(C, 0.2, 0.7, 1.1, 3e4)).max()
            < 0.02
        )
        widths.append(high - low)
    assert np.median(drawn.noise_sd) == pytest.approx(0.01, rel=0.35)
    assert 2 < widths[0] / widths[1] < 6  # sqrt(100 / 12) = 2.9 of a normal density


def test_a_run_that_ends_before_its_plateau_leaves_it_open():
    low, high = interval(
        sample_posterior(run_of(0.2, 0.8, 1.0, 3e5, points=15, end=6e4, sd=0.005, seed=6)).draws[
            "A"
        ]
    )
    assert low < 0.8 < high and high - low > 0.3


def test_an_outlier_hardly_moves_the_curve():
    runs = run_of(0.2, 0.7, 1.1, 3e4, points=24, sd=0.005, seed=4)
    spoiled = runs.R.copy()
    spoiled[[6, 15, 20]] += [0.2, -0.3, 0.25]
    drawn = sample_posterior(replace(runs, R=spoiled))
    assert np.median(drawn.draws["A"]) == pytest.approx(0.7, abs=0.02)
    assert np.median(drawn.draws["R0"]) == pytest.approx(0.2, abs=0.01)


def test_rewards_of_any_size_give_the_same_curve():
    runs = run_of(0.2, 0.7, 1.1, 3e4, points=10, sd=0.01)
    small = sample_posterior(replace(runs, R=-3 + 0.01 * runs.R))
    large = sample_posterior(replace(runs, R=-300 + runs.R))
    departed = replace(large, departure_sd=0.02).rewards(np.array([4e6])) - large.rewards(
        np.array([4e6])
    )
    assert np.sqrt((departed**2).mean()) == pytest.approx(0.02, rel=0.1)
    assert large.draws["A"] + 300 == pytest.approx((small.draws["A"] + 3) * 100, rel=1e-6)
    assert np.median(large.draws["A"]) == pytest.approx(-299.3, abs=0.05)


def test_seeds_of_different_level_widen_the_intervals():
    one = run_of(0.2, 0.7, 1.1, 3e4, points=10, sd=0.005, seed=8, seeds=3)
    levels = np.array([-0.03, 0.0, 0.03])
    distant = sample_posterior(replace(one, R=one.R + levels[one.run_index]))
    widths = [
        np.ptp(interval(p.rewards(np.array([1e6])))) for p in (sample_posterior(one), distant)
    ]
    assert widths[1] > 2 * widths[0]
    # A new evaluation of a seed has that seed's mean.
    last = RunPoints(np.full(3, 1e6), np.zeros(3), np.arange(3), 3)
    ends = np.median(distant.evaluations(last), axis=0)
    assert np.diff(ends) == pytest.approx([0.03, 0.03], abs=0.01)


def test_a_seed_without_points_gets_a_level_of_its_own():
    runs = run_of(0.2, 0.7, 1.1, 3e4, points=8, sd=0.005, seeds=2)
    drawn = sample_posterior(runs.select(runs.run_index == 0))
    ends = drawn.evaluations(runs.select(runs.C == 1e6))
    assert ends.shape == (1000, 2) and ends[:, 1].std() > ends[:, 0].std()


def test_departures_widen_intervals_beyond_the_data():
    drawn = replace(
        sample_posterior(run_of(0.2, 0.7, 1.1, 3e4, points=10, sd=0.005, end=3e5)),
        departure_sd=0.02,
    )
    alone = replace(drawn, departure_sd=None)
    C = np.array([2e5, 1.2e6])
    extra = drawn.rewards(C) - alone.rewards(C)
    assert not extra[:, 0].any()
    assert np.sqrt((extra[:, 1] ** 2).mean()) == pytest.approx(0.02, rel=0.1)


def test_a_long_log_is_fitted_to_means_of_neighbours(monkeypatch):
    monkeypatch.setattr(single_run, "MAX_FITTED_POINTS", 20)
    long = run_of(0.2, 0.7, 1.1, 3e4, points=249, sd=0.02, seed=3, seeds=2)
    means = single_run._average_neighbours(long)
    assert means.averaged.tolist() == 2 * [1, *9 * [25], 24]  # the point at C = 0 is its own
    assert (
        means.run_index.tolist() == [0] * 11 + [1] * 11
        and means.C[0] == 0
        and means.R[0] == long.R[0]
    )
    assert means.R[1] == pytest.approx(long.R[1:26].mean()) and means.C[-1] == pytest.approx(
        long.C[-24:].mean()
    )
    drawn = sample_posterior(long)
    assert np.median(drawn.noise_sd) == pytest.approx(0.02, rel=0.5)
    assert np.median(drawn.draws["A"]) == pytest.approx(0.7, abs=0.03)


def normal_coordinates(seeds=1, count=200):
    return np.random.default_rng(0).normal(size=(count, 7 if seeds == 1 else 8 + seeds))


def test_coordinates_are_the_priors_quantiles():
    """At u = 0 each parameter is at its prior's median, at u = 1 one standard deviation above."""
    middle = _parameters(np.zeros((1, 11)), 4.5, seeds=3)
    above = _parameters(np.ones((1, 11)), 4.5, seeds=3)
    assert (middle.R0[0], middle.A[0]) == (0.5, 0.75)
    assert middle.exponent[0] == 1 and middle.C_mid[0] == pytest.approx(10**4.5)
    assert above.exponent[0] == pytest.approx(np.e) and above.C_mid[0] == pytest.approx(10**5.2)
    assert middle.noise_scale[0] == pytest.approx(0.01)
    assert above.noise_scale[0] == pytest.approx(0.01 * np.exp(0.7))
    assert middle.autocorrelation[0] == pytest.approx(0.45)
    assert above.autocorrelation[0] == pytest.approx(0.9 * stats.norm.cdf(1))
    assert not middle.run_levels.any()
    assert above.run_levels == pytest.approx(np.full((1, 3), 0.01 * np.exp(0.7)))
    share = stats.norm.cdf(1)
    assert above.A[0] == pytest.approx(share + (1 - share) * share)


def test_tails_have_their_prior_probability():
    u = np.zeros((10_000, 7))
    u[:, 4] = stats.norm.ppf((np.arange(10_000) + 0.5) / 10_000)
    tails = _parameters(u, 4.5, seeds=1).tail
    shares = {tail: float((tails == tail).mean()) for tail in TAIL_PRIOR}
    assert shares == pytest.approx(TAIL_PRIOR, abs=2e-4)
    assert (np.diff(tails) >= 0).all()


def test_rewards_are_scaled_to_0_and_1_by_hand():
    assert single_run.find_reward_range(np.array([0.0, 1.0])) == (0.0, 1.0)
    assert single_run.find_reward_range(np.array([-1.0, 2.0])) == (-4.0, 5.0)
    assert single_run.find_reward_range(np.array([0.5, 1.5])) == (-0.5, 2.5)
    # a constant: its own size, or 1
    assert single_run.find_reward_range(np.array([-7.0, -7.0])) == (-14.0, 0.0)
    assert single_run.find_reward_range(np.array([4.0, 4.0 + 1e-12])) == pytest.approx(
        (0.0, 8.0), abs=1e-9
    )
    assert single_run.find_reward_range(np.array([-0.1, -0.1])) == pytest.approx((-1.1, 0.9))


def test_a_step_leaves_half_of_the_particles():
    """The effective share (sum w)^2 / (N sum w^2) of the weights exp(step value) is one half; where
    a whole step leaves more, it is taken."""
    value = 30 * np.random.default_rng(0).standard_normal(500)
    step = single_run._next_step(value, 1.0)
    weight = np.exp(step * (value - value.max()))
    assert 0 < step < 1
    assert weight.sum() ** 2 / (weight**2).sum() / 500 == pytest.approx(0.5, abs=1e-6)
    assert single_run._next_step(0.01 * value, 0.3) == 0.3


def test_new_evaluations_have_the_noise_and_levels_of_their_run():
    """Student's t noise with the autocorrelation of each draw, a run's first evaluation without one
    before it; each run at its own level."""
    points = run_of(0.2, 0.7, 1.1, 3e4, points=40, seeds=2)
    scale, rho = 0.01, 0.6
    count = 4000
    posterior = single_run.flat_posterior((1e3, 1e6), np.full(count, 0.5), 1.0, 2, (0.0, 1.0))
    parameters = replace(
        posterior.parameters,
        noise_scale=np.full(count, scale),
        autocorrelation=np.full(count, rho),
        run_levels=np.tile([0.1, -0.2], (count, 1)),
    )
    drawn = replace(posterior, parameters=parameters).evaluations(points)
    sd = scale * np.sqrt(5 / 3)
    assert drawn[:, :41].mean() == pytest.approx(0.6, abs=2e-3)
    assert drawn[:, 41:].mean() == pytest.approx(0.3, abs=2e-3)
    residuals = drawn - np.repeat([0.6, 0.3], 41)
    assert residuals.std(0) == pytest.approx(np.full(82, sd), rel=0.15)
    neighbours = [np.corrcoef(residuals[:, i], residuals[:, i + 1])[0, 1] for i in range(81)]
    assert np.delete(neighbours, 40) == pytest.approx(np.full(80, rho), abs=0.07)
    assert neighbours[40] == pytest.approx(0, abs=0.07)  # from one run to the next
    assert posterior.noise_sd == pytest.approx(np.ones(count))


def test_draws_are_in_the_rewards_own_units():
    posterior = single_run.flat_posterior((1e3, 1e5), np.array([0.25, 0.5]), 0.1, 1, (-10.0, 30.0))
    assert posterior.draws["R0"].tolist() == [0.0, 10.0] == posterior.draws["A"].tolist()
    assert posterior.noise_sd == pytest.approx([4.0, 4.0])
    assert posterior.rewards(np.array([0.0, 1e3])) == pytest.approx(np.array([[0, 0], [10, 10]]))
    assert posterior.draws["C_mid"].tolist() == [1e5, 1e5]


def test_means_of_neighbours_weigh_as_many_evaluations():
    """The likelihood of a mean of k evaluations has a scale of 1 / sqrt(k) of theirs."""
    parameters = _parameters(normal_coordinates(), 4.5, seeds=1)
    points = RunPoints(np.array([1e4]), np.array([0.4]), np.zeros(1, dtype=int), averaged=4)
    residual = 0.4 - parameters.rewards(points.C)[:, 0]
    expected = stats.t.logpdf(residual, 5, 0, parameters.noise_scale / 2)
    difference = single_run._log_likelihood(points, parameters) - expected
    assert np.ptp(difference) < 1e-9
