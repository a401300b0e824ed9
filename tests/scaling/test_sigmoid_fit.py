"""The fit of one sigmoid: parameters to the last digit, one optimum from everywhere, bounds that
hold."""

import numpy as np
import pytest

from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.sigmoid_fit import curve_points, fit_sigmoid, search

WORLDS = [(0.2, 0.7, 1.1, 3e4), (0.0, 0.35, 0.6, 1e5), (0.45, 0.95, 3.0, 8e3), (0.1, 1.0, 1.5, 2e4)]
SCALE = 0.01


def run_of(R0, A, B, C_mid, zero=True, sd=0.0, seed=0):
    C = np.geomspace(1e3, 1e6, 30)
    R = curve_value(C, R0, A, B, C_mid)
    if zero:
        C, R = np.append(0.0, C), np.append(R0, R)
    return C, np.clip(R + np.random.default_rng(seed).normal(0, sd, len(R)), 0, 1)


def parameters(fit):
    return [fit.R0, fit.A, fit.exponent, 10**fit.log10_C_mid]


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("true", WORLDS)
def test_without_noise_the_parameters_are_exact(true, known, zero):
    C, R = run_of(*true, zero=zero)
    fit = fit_sigmoid(curve_points(C, R, true[0] if known else None))
    assert parameters(fit) == pytest.approx(true, rel=1e-6, abs=1e-6)
    assert fit.fitted_rewards == pytest.approx(R, abs=1e-8)


@pytest.mark.parametrize("true", WORLDS)
def test_twenty_random_starts_find_one_optimum(true):
    C, R = run_of(*true, sd=0.01, seed=1)
    points, rng = curve_points(C, R), np.random.default_rng(2)
    starts = np.column_stack(
        [np.full(20, 0.2), np.full(20, 0.5), np.log(rng.uniform(0.3, 5, 20)), rng.uniform(3, 6, 20)]
    )
    searches = [search(points, search(points, start, None).x, SCALE) for start in starts]
    R0, share, ln_exponent, log10_C_mid = np.array([found.x for found in searches]).T
    for values in (R0, R0 + share * (1 - R0), np.exp(ln_exponent), 10**log10_C_mid):
        assert values == pytest.approx(np.full(20, values[0]), rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("sd", [0.02, 0.1])
def test_the_fit_is_a_minimum_of_its_loss(sd):
    C, R = run_of(0.2, 0.7, 1.1, 3e4, sd=sd, seed=3)
    best = parameters(fit_sigmoid(curve_points(C, R), SCALE))

    def loss(R0, A, exponent, C_mid):
        residual = np.append(R0, curve_value(C[1:], R0, A, exponent, C_mid)) - R
        return (np.sqrt(1 + (residual / SCALE) ** 2) - 1).sum()

    for i in range(4):
        for step in (-1e-4, 1e-4):
            assert loss(*(x * (1 + step * (i == j)) for j, x in enumerate(best))) > loss(*best)


def test_weights_count_as_repeated_points():
    C, R = run_of(0.2, 0.7, 1.1, 3e4, sd=0.02, seed=4)
    points, counts = curve_points(C, R), np.arange(len(C)) % 3 + 1
    weighted = fit_sigmoid(type(points)(**{**vars(points), "weight": counts.astype(float)}))
    repeated = fit_sigmoid(curve_points(np.repeat(C, counts), np.repeat(R, counts)))
    assert parameters(weighted) == pytest.approx(parameters(repeated), rel=1e-6)


def test_bounds_hold_and_are_met_where_the_truth_is_beyond_them():
    C = np.geomspace(1e3, 1e5, 20)
    rising = fit_sigmoid(curve_points(C, 0.1 + 0.2 * np.log10(C / 1e3) ** 2))
    assert pytest.approx(1, abs=1e-9) == rising.A and "A" in rising.at_bounds
    falling = fit_sigmoid(curve_points(C, 0.5 - 0.1 * np.log10(C / 1e3)))
    assert falling.A == falling.R0 == pytest.approx(0.4, abs=0.01)
    steep = fit_sigmoid(curve_points(C, np.where(C > 1e4, 0.8, 0.2)))
    assert "exponent" in steep.at_bounds
