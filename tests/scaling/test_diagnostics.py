"""The numbers a statistician asks for, sensitivity and ties, by hand."""

import math

import numpy as np
import pytest

from isojax.scaling.checks.diagnostics import diagnose, find_ties, reward_sensitivity
from isojax.scaling.curves.hill import FittedCurve
from isojax.scaling.curves.sweep_estimate import PosteriorSamples, SweepEstimate
from isojax.scaling.result import RewardSpread
from isojax.scaling.tracks import group_by_cell
from tests.scaling.sweeps import run

C = np.arange(1, 5) * 1000.0


def curve(n, **more):
    return FittedCurve(16, n, 0.2, 0.6, 1.0, 1e3, 1e3, 4e3, 4, 0.0, **more)


def runs(*ends):
    return group_by_cell([run(16, n, 0, C * end / 4e3, [0.3, 0.4, 0.5, 0.5]) for n, end in ends])


def test_numbers_by_hand():
    """n = 4: +1 -1 +1 -1 (hundredths): differences 2, 2, 2. n = 8: 1 1 1 1: differences 0. So the scatter is
    sqrt((4 + 4 + 4 + 0 + 0 + 0) / 6 / 2) = 1, all residuals are of size 1: chi-square 1; products -1 and +1:
    correlation 0 in all."""
    residuals = {(16, 4): [np.array([1.0, -1, 1, -1]) / 100], (16, 8): [np.full(4, 0.01)]}
    made = SweepEstimate([curve(4), curve(8)], [], residuals=residuals, parameter_count=5)
    result = diagnose(made, runs((4, 4e3), (8, 4e3)))
    assert result.reduced_chi_square == pytest.approx(1) and result.autocorrelation == pytest.approx(0)
    assert result.degrees_of_freedom == 8 - 5
    first, second = result.per_curve
    assert (first.n, first.points, first.reduced_chi_square, first.autocorrelation) == (
        4,
        4,
        pytest.approx(1),
        pytest.approx(-1),
    )
    assert second.autocorrelation == pytest.approx(1) and first.at_bounds == ()
    assert result.ties == () and result.left_out == () and result.unequal_lengths is False


def test_a_chi_square_above_one():
    """Residuals 3 1 -1 -3 differ by 2: scatter sqrt(4 / 2), mean square 5: 2.5. Products 3, -1, 3: mean 5/3, over 5:
    1/3.
    """
    made = SweepEstimate([curve(4)], [], residuals={(16, 4): [np.array([3.0, 1, -1, -3]) / 100]}, parameter_count=3)
    result = diagnose(made, runs((4, 4e3)))
    assert result.reduced_chi_square == pytest.approx(2.5) and result.autocorrelation == pytest.approx(1 / 3)


def test_rounding_is_no_residual():
    made = SweepEstimate([curve(4)], [], residuals={(16, 4): [np.array([3.0, 1, -1, -3]) * 1e-16]}, parameter_count=3)
    result = diagnose(made, runs((4, 4e3)))
    assert result.reduced_chi_square is None and result.autocorrelation is None


def test_what_is_not_determined_or_left_out_is_named():
    curves = [curve(4, at_bounds=("C_mid",)), curve(8, determined=False), curve(16, C_peak=2500.0)]
    result = diagnose(SweepEstimate(curves, [(16, 32, "2 points")]), runs((4, 4e3), (8, 4.3e3), (16, 4e3)))
    assert [row.at_bounds for row in result.per_curve] == [("C_mid",), ("A",), ()]
    assert result.left_out[0] == "no curve for B_p=16 n=32: 2 points"
    assert "n=16: points beyond C = 2500" in result.left_out[1]
    assert result.reduced_chi_square is None and result.degrees_of_freedom is None  # paper mode keeps no residuals
    assert (
        result.unequal_lengths is False
        and diagnose(SweepEstimate(curves, []), runs((4, 4e3), (8, 4.5e3))).unequal_lengths is True
    )


A = {(16, 4): 0.4, (16, 16): 0.6, (64, 4): 0.45, (64, 16): 0.7}


def flat_curve(key, high=1e6):
    """R0 = 0, B = 1, C_mid = 1e-6: the reward is A everywhere."""
    return FittedCurve(*key, 0.0, A[key], 1.0, 1e-6, 1e2, high, 10, 0.0)


def draws(values, low=1e2, high=1e6):
    """Replicates of flat curves: values float[Q, cells]."""
    Q, J = values.shape
    ones = np.ones((Q, J))
    ends = (np.full(J, math.inf), np.full(J, low), np.full(J, high))
    return PosteriorSamples(np.ones(Q), tuple(A)[:J], values, ones, ones * 1e-6, np.zeros(Q), np.zeros((Q, 2)), *ends)


def test_sensitivity_by_hand():
    result = reward_sensitivity([flat_curve(key) for key in A], None)
    assert result is not None and result.C == pytest.approx(1e6)
    assert result.over_n == RewardSpread(spread=result.over_n.spread, low=None, high=None, shared_value=16, cells=2)
    assert result.over_B_p == RewardSpread(spread=result.over_B_p.spread, low=None, high=None, shared_value=4, cells=2)
    assert (result.over_n.spread, result.over_B_p.spread) == pytest.approx((0.2, 0.05))


def test_sensitivity_is_where_most_cells_are():
    """Both n were measured at B_p = 64 alone; n = 4 at both B_p."""
    result = reward_sensitivity([flat_curve((16, 4)), flat_curve((64, 4)), flat_curve((64, 16))], None)
    assert result is not None and result.over_n.shared_value == 64 and result.over_n.spread == pytest.approx(0.25)
    assert result.over_B_p.shared_value == 4
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
