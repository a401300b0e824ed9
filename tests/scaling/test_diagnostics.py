"""The numbers a statistician asks for, sensitivity and ties, by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from isojax.scaling.checks.diagnostics import diagnose, find_ties, reward_sensitivity
from isojax.scaling.curves.sweep_estimate import PosteriorSamples, SweepEstimate
from isojax.scaling.result import FittedCurve, RewardSpread

C = np.arange(1, 5) * 1000.0


def curve(n, **more):
    return FittedCurve(16, n, 0.2, 0.6, 1.0, 1e3, 1e3, 4e3, 4, 0.0, **more)


def test_numbers_by_hand():
    """n = 4: +1 -1 +1 -1 (hundredths): differences 2, 2, 2. n = 8: 1 1 1 1: differences 0. So the
    scatter is sqrt((4 + 4 + 4 + 0 + 0 + 0) / 6 / 2) = 1, all residuals are of size 1: chi-square 1;
    products -1 and +1: correlation 0 in all."""
    residuals = [np.array([1.0, -1, 1, -1]) / 100, np.full(4, 0.01)]
    made = SweepEstimate([curve(4), curve(8)], [], residuals=residuals, parameter_count=5)
    result = diagnose(made)
    assert result.reduced_chi_square == pytest.approx(
        1
    ) and result.autocorrelation == pytest.approx(0)
    assert result.degrees_of_freedom == 8 - 5
    assert result.ties == ()


def test_a_chi_square_above_one():
    """Residuals 3 1 -1 -3 differ by 2: scatter sqrt(4 / 2), mean square 5: 2.5. Products 3, -1, 3:
    mean 5/3, over 5: 1/3.
    """
    made = SweepEstimate(
        [curve(4)], [], residuals=[np.array([3.0, 1, -1, -3]) / 100], parameter_count=3
    )
    result = diagnose(made)
    assert result.reduced_chi_square == pytest.approx(
        2.5
    ) and result.autocorrelation == pytest.approx(1 / 3)


def test_rounding_is_no_residual():
    made = SweepEstimate(
        [curve(4)], [], residuals=[np.array([3.0, 1, -1, -3]) * 1e-16], parameter_count=3
    )
    result = diagnose(made)
    assert result.reduced_chi_square is None and result.autocorrelation is None


def test_without_residuals_there_are_no_numbers():
    result = diagnose(SweepEstimate([curve(4), curve(8)], []))  # as in paper mode
    assert result.reduced_chi_square is None and result.degrees_of_freedom is None


A = {(16, 4): 0.4, (16, 16): 0.6, (64, 4): 0.45, (64, 16): 0.7}


def flat_curve(key, high=1e6):
    """R0 = 0, B = 1, C_mid = 1e-6: the reward is A everywhere."""
    return FittedCurve(*key, 0.0, A[key], 1.0, 1e-6, 1e2, high, 10, 0.0)


def draws(values, low=1e2, high=1e6):
    """Replicates of flat curves: values float[Q, cells]."""
    Q, J = values.shape
    ones = np.ones((Q, J))
    ends = (np.full(J, math.inf), np.full(J, low), np.full(J, high))
    return PosteriorSamples(
        np.ones(Q), tuple(A)[:J], values, ones, ones * 1e-6, np.zeros(Q), np.zeros((Q, 2)), *ends
    )


def test_sensitivity_by_hand():
    result = reward_sensitivity([flat_curve(key) for key in A], None)
    assert result is not None and result.C == pytest.approx(1e6)
    assert result.over_n == RewardSpread(
        spread=result.over_n.spread, low=None, high=None, shared_value=16, cells=2
    )
    assert result.over_B_p == RewardSpread(
        spread=result.over_B_p.spread, low=None, high=None, shared_value=4, cells=2
    )
    assert (result.over_n.spread, result.over_B_p.spread) == pytest.approx((0.2, 0.05))


def test_sensitivity_is_where_most_cells_are():
    """Both n were measured at B_p = 64 alone; n = 4 at both B_p."""
    result = reward_sensitivity(
        [flat_curve((16, 4)), flat_curve((64, 4)), flat_curve((64, 16))], None
    )
    assert (
        result is not None
        and result.over_n.shared_value == 64
        and result.over_n.spread == pytest.approx(0.25)
    )
    assert result.over_B_p.shared_value == 4
    a_little_less = reward_sensitivity(
        [flat_curve((16, 4)), flat_curve((64, 4), 9.9e5), flat_curve((64, 16))], None
    )
    # its last update ended before
    assert a_little_less is not None and a_little_less.over_n.cells == 2
    early = reward_sensitivity(
        [flat_curve((16, 4), 1e3), flat_curve((64, 4)), flat_curve((64, 16))], None
    )  # 16x4 ended earlier
    assert early is not None and early.over_B_p is None and early.C == pytest.approx(1e6)
    assert reward_sensitivity([flat_curve((16, 4))], None) is None


def test_intervals_of_sensitivity():
    values = np.tile(list(A.values()), (400, 1))
    values[:, 1] += np.linspace(-0.1, 0.1, 400)
    over_n = reward_sensitivity([flat_curve(key) for key in A], draws(values)).over_n
    assert (over_n.low, over_n.high) == pytest.approx((0.11, 0.29), abs=1e-3)


def test_ties_by_hand():
    """n = 4 and n = 16 lead in half of the replicates each; then n = 16 in all."""
    values = np.tile([0.5, 0.5], (100, 1))
    values[::2, 1] += 0.01
    values[1::2, 1] -= 0.01
    (row,) = find_ties(draws(values))
    assert row.n == (4, 16) and (row.C_low, row.C_high) == (pytest.approx(1e2), pytest.approx(1e6))
    values[:, 1] = 0.51
    values[:9, 1] = 0.49  # in 91 of 100
    assert find_ties(draws(values)) == ()
    values[:11, 1] = 0.49  # in 89 of 100
    assert [row.n for row in find_ties(draws(values))] == [(4, 16)]
    assert find_ties(None) == () and find_ties(draws(values[:, :1])) == ()


def test_a_tie_has_two_ends():
    """n = 4 was measured up to 1e3, or at 1e2 alone: at one C there is no range."""
    values = np.tile([0.5, 0.5], (100, 1))
    values[::2, 1] += 0.01
    values[1::2, 1] -= 0.01
    (row,) = find_ties(replace(draws(values), C_high=np.array([1e3, 1e6])))
    assert (
        row.n == (4, 16)
        and row.C_low == pytest.approx(1e2)
        and row.C_high == pytest.approx(1e3, rel=0.1)
    )
    assert find_ties(replace(draws(values), C_high=np.array([1e2, 1e6]))) == ()
