"""The solver of one sigmoid: parameters to the last digit, one optimum from everywhere, bounds that hold."""

import numpy as np
import pytest

from isojax.scaling.curves.hill import curve_value
from isojax.scaling.curves.varpro import (
    fit_least_squares,
    fit_robust,
    hill_progress,
    parameters_at_bounds,
    search_space,
    soft_l1_influence,
    squared_influence,
)

WORLDS = [(0.2, 0.7, 1.1, 3e4), (0.0, 0.35, 0.6, 1e5), (0.45, 0.95, 3.0, 8e3), (0.1, 1.0, 1.5, 2e4)]
NAMES = ("R0", "A", "exponent", "C_mid")
SCALE = 0.01


def run_of(R0, A, B, C_mid, zero=True, sd=0.0, seed=0):
    C = np.geomspace(1e3, 1e6, 30)
    R = curve_value(C, R0, A, B, C_mid)
    if zero:
        C, R = np.append(0.0, C), np.append(R0, R)
    return C, np.clip(R + np.random.default_rng(seed).normal(0, sd, len(R)), 0, 1)


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("true", WORLDS)
def test_without_noise_the_parameters_are_exact(true, zero):
    C, R = run_of(*true, zero=zero)
    best = fit_least_squares(search_space(C, (0.0, 1.0)), R)
    assert [getattr(best, name)[0] for name in NAMES] == pytest.approx(true, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("true", WORLDS)
def test_twenty_random_starts_find_one_optimum(true):
    C, R = run_of(*true, sd=0.01, seed=1)
    space, rng = search_space(C, (0.0, 1.0)), np.random.default_rng(2)
    starts = np.column_stack([np.log(rng.uniform(0.3, 5, 20)), rng.uniform(3, 6, 20)])
    least_squares = fit_robust(space, np.tile(R, (20, 1)), starts, squared_influence)
    result = fit_robust(space, np.tile(R, (20, 1)), least_squares.phi, soft_l1_influence(SCALE))
    for name in NAMES:
        values = getattr(result, name)
        assert values == pytest.approx(np.full(20, values[0]), rel=1e-8, abs=1e-8), name


def test_the_fit_is_a_minimum_of_its_loss():
    C, R = run_of(0.2, 0.7, 1.1, 3e4, sd=0.02, seed=3)
    space = search_space(C, (0.0, 1.0))
    result = fit_robust(space, R[None], fit_least_squares(space, R).phi, soft_l1_influence(SCALE))
    best = {name: float(getattr(result, name)[0]) for name in NAMES}

    def loss(R0, A, exponent, C_mid):
        residual = np.append(R0, curve_value(C[1:], R0, A, exponent, C_mid)) - R
        return (np.sqrt(1 + (residual / SCALE) ** 2) - 1).sum()

    for name in best:
        for step in (-1e-4, 1e-4):
            assert loss(**{**best, name: best[name] * (1 + step)}) > loss(**best)


def test_bounds_hold_and_are_met_where_the_truth_is_beyond_them():
    C = np.geomspace(1e3, 1e5, 20)
    space = search_space(C, (0.0, 1.0))
    rising = fit_least_squares(space, 0.1 + 0.2 * np.log10(C / 1e3) ** 2)
    assert rising.A[0] == pytest.approx(1, abs=1e-9) and "A" in parameters_at_bounds(rising, space)
    falling = fit_least_squares(space, 0.5 - 0.1 * np.log10(C / 1e3))
    assert falling.G[0] == 0 and falling.R0[0] == pytest.approx(0.4, abs=0.01)


def test_curves_of_many_data_sets_are_those_of_each():
    C = np.append(0.0, np.geomspace(1e3, 1e6, 25))
    y = np.stack([np.append(0.2, curve_value(C[1:], 0.2, A, 1.0, 3e4)) for A in (0.4, 0.6, 0.8)])
    space = search_space(C, (0.0, 1.0))
    result = fit_robust(space, y, np.tile([0.3, 5.0], (3, 1)), squared_influence)
    assert result.R0 + result.G == pytest.approx([0.4, 0.6, 0.8], abs=1e-9)
    assert result.fitted_rewards == pytest.approx(y, abs=1e-9)
    assert hill_progress(space.log10_C, np.array([[0.0, 4.5]]))[0, [0, -1]] == pytest.approx([0, 1 / (1 + 10**-1.5)])
