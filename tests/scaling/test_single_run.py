"""One run's curve: parameters to the last digit, one optimum from everywhere, intervals that are honest about what is
not determined.
"""

import numpy as np
import pytest

from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.single_run import (
    RunPoints,
    bootstrap_replicates,
    bootstrap_residuals,
    curve_band,
    estimate_noise,
    fit_single_run,
    parameter_intervals,
)
from isojax.scaling.curves.varpro import (
    evaluate_solution,
    fit_robust,
    hill_progress,
    huber_influence,
    search_space,
    squared_influence,
)

WORLDS = [
    (0.2, 0.7, 1.1, 3e4),
    (0.0, 0.35, 0.6, 1e5),
    (0.45, 0.95, 3.0, 8e3),
    (0.1, 1.0, 1.5, 2e4),
    (-3.0, 12.0, 0.9, 5e4),
]


def run_of(R0, A, B, C_mid, points=30, zero=True, sd=0.0, seed=0, seeds=1, end=1e6):
    C = np.geomspace(1e3, end, points)
    R = curve_value(C, R0, A, B, C_mid)
    if zero:
        C, R = np.append(0.0, C), np.append(R0, R)
    R = np.tile(R, seeds) + np.random.default_rng(seed).normal(0, sd, len(R) * seeds)
    return RunPoints(np.tile(C, seeds), R, np.repeat(np.arange(seeds), len(C)))


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("true", WORLDS)
def test_without_noise_the_parameters_are_exact(true, zero):
    fit = fit_single_run(run_of(*true, zero=zero))
    assert [fit.parameters[k] for k in ("R0", "A", "exponent", "C_mid")] == pytest.approx(true, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("sd", [0.0, 0.01])
@pytest.mark.parametrize("true", WORLDS[:4])
def test_twenty_random_starts_find_one_optimum(true, sd):
    runs = run_of(*true, sd=sd, seed=1)
    runs = RunPoints(runs.C, np.clip(runs.R, 0, 1), runs.run_index)
    rng, best = np.random.default_rng(2), fit_single_run(runs)
    starts = np.column_stack([np.log(rng.uniform(0.3, 5, 20)), rng.uniform(3, 6, 20)])
    R = np.tile(runs.R, (20, 1))
    least_squares = fit_robust(best.space, R, starts, squared_influence)
    result = fit_robust(best.space, R, least_squares.phi, huber_influence(best.residual_clip))
    for name, value in best.parameters.items():
        assert getattr(result, name) == pytest.approx(np.full(20, value), rel=1e-8, abs=1e-8), name


def test_the_fit_is_a_minimum_of_hubers_loss():
    runs = run_of(0.2, 0.7, 1.1, 3e4, sd=0.02, seed=3)
    fit = fit_single_run(runs)
    p = fit.parameters

    def loss(R0, A, exponent, C_mid):
        model = np.append(R0, curve_value(runs.C[1:], R0, A, exponent, C_mid))
        size = np.abs(model - runs.R)
        return np.where(size < fit.residual_clip, size**2 / 2, fit.residual_clip * (size - fit.residual_clip / 2)).sum()

    least = loss(**p)
    for name in p:
        for step in (-1e-4, 1e-4):
            assert loss(**{**p, name: p[name] * (1 + step)}) > least


def test_bounds_hold_and_are_met_where_the_truth_is_beyond_them():
    C = np.geomspace(1e3, 1e5, 20)
    fit = fit_single_run(RunPoints(C, 0.1 + 0.2 * np.log10(C / 1e3) ** 2, np.zeros(20, dtype=int)))
    assert fit.parameters["A"] == pytest.approx(1, abs=1e-9) and "A" in fit.at_bounds
    falling = fit_single_run(RunPoints(C, 0.5 - 0.1 * np.log10(C / 1e3), np.zeros(20, dtype=int)))
    assert falling.solution.G[0] == 0 and falling.parameters["R0"] == pytest.approx(0.4, abs=0.01)


def test_outliers_hardly_move_the_curve():
    runs = run_of(0.2, 0.7, 1.1, 3e4, points=40, sd=0.005, seed=4)
    spoiled = runs.R.copy()
    spoiled[[10, 25, 33]] += [0.2, -0.3, 0.25]
    fit = fit_single_run(RunPoints(runs.C, spoiled, runs.run_index))
    assert fit.parameters["A"] == pytest.approx(0.7, abs=0.015) and fit.parameters["R0"] == pytest.approx(0.2, abs=0.01)


def test_curves_of_many_data_sets_are_those_of_each():
    C = np.append(0.0, np.geomspace(1e3, 1e6, 25))
    y = np.stack([np.append(0.2, curve_value(C[1:], 0.2, A, 1.0, 3e4)) for A in (0.4, 0.6, 0.8)])
    space = search_space(C, (0.0, 1.0))
    result = fit_robust(space, y, np.tile([0.3, 5.0], (3, 1)), squared_influence)
    assert result.R0 + result.G == pytest.approx([0.4, 0.6, 0.8], abs=1e-9)
    assert result.fitted_rewards == pytest.approx(y, abs=1e-9)
    assert hill_progress(space.log10_C, np.array([[0.0, 4.5]]))[0, [0, -1]] == pytest.approx([0, 1 / (1 + 10**-1.5)])


def test_intervals_hold_the_truth_and_shrink_with_points():
    widths = []
    for points in (40, 400):
        runs = run_of(0.2, 0.7, 1.1, 3e4, points=points, sd=0.01, seed=5)
        fit = fit_single_run(runs)
        drawn = bootstrap_replicates(fit, runs)
        low, high = parameter_intervals(drawn, fit.space)["A"]
        assert low < 0.7 < high
        widths.append(high - low)
        result = curve_band(fit, drawn, np.geomspace(1e3, 1e6, 20))
        assert np.all(result["low"] <= result["high"]) and np.all(
            np.abs(result["reward"] - curve_value(result["C"], 0.2, 0.7, 1.1, 3e4)) < 0.02
        )
    assert widths[0] / widths[1] == pytest.approx(10**0.5, rel=0.35)
    again = parameter_intervals(bootstrap_replicates(fit, runs), fit.space)
    assert again == parameter_intervals(drawn, fit.space)


def test_a_run_that_ends_before_its_plateau_leaves_it_open():
    runs = run_of(0.2, 0.8, 1.0, 3e5, end=6e4, sd=0.005, seed=6)
    fit = fit_single_run(runs)
    assert parameter_intervals(bootstrap_replicates(fit, runs), fit.space)["A"][1] is None


def test_noise_is_read_from_residuals():
    rng = np.random.default_rng(7)
    white = rng.normal(0, 0.01, 4000)
    slow = np.zeros(4000)
    for i in range(1, 4000):
        slow[i] = 0.6 * slow[i - 1] + white[i]
    a, b = estimate_noise([white], 4), estimate_noise([slow], 4)
    assert a.sd == pytest.approx(0.01, rel=0.05) and a.rho < 0.06
    assert b.sd == pytest.approx(0.0125, rel=0.08) and b.rho == pytest.approx(0.6, abs=0.05) and b.block_length > 10
    # Means of drawn runs spread as means of such noise do: sd / (1 - rho) / sqrt(N), of the white noise inside.
    drawn = bootstrap_residuals([slow], b, 2000, rng).mean(1)
    assert drawn.std() == pytest.approx(0.01 / 0.4 / 4000**0.5, rel=0.2)
    assert estimate_noise([np.zeros(10)], 4).residual_scale == 1


def test_seeds_of_different_level_widen_the_intervals():
    one = run_of(0.2, 0.7, 1.1, 3e4, points=30, sd=0.005, seed=8, seeds=3)
    distant = RunPoints(one.C, one.R + np.array([-0.03, 0.0, 0.03])[one.run_index], one.run_index)
    spread = []
    for runs in (one, distant):
        fit = fit_single_run(runs)
        low, high = np.quantile(evaluate_solution(bootstrap_replicates(fit, runs), np.array([1e6])), [0.05, 0.95])
        spread.append(high - low)
    assert spread[1] > 4 * spread[0]
