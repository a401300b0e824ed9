"""The numbers a statistician asks for, by hand."""

import numpy as np
import pytest

from isojax.scaling.checks.diagnostics import diagnose
from isojax.scaling.curves.hill import FittedCurve
from isojax.scaling.estimate import SweepEstimate
from tests.scaling.sweeps import run

C = np.arange(1, 5) * 1000.0


def curve(n, **more):
    return FittedCurve(16, n, 0.2, 0.6, 1.0, 1e3, 1e3, 4e3, 4, 0.0, **more)


def runs(*ends):
    return [run(16, n, 0, C * end / 4e3, [0.3, 0.4, 0.5, 0.5]) for n, end in ends]


def test_numbers_by_hand():
    """n = 4: +1 -1 +1 -1 (hundredths): differences 2, 2, 2. n = 8: 1 1 1 1: differences 0. So the scatter is
    sqrt((4 + 4 + 4 + 0 + 0 + 0) / 6 / 2) = 1, all residuals are of size 1: chi-square 1; products -1 and +1:
    correlation 0 in all."""
    residuals = {(16, 4): [np.array([1.0, -1, 1, -1]) / 100], (16, 8): [np.full(4, 0.01)]}
    made = SweepEstimate([curve(4), curve(8)], [], residuals=residuals, parameter_count=5)
    found = diagnose(made, runs((4, 4e3), (8, 4e3)))
    assert found.reduced_chi_square == pytest.approx(1) and found.autocorrelation == pytest.approx(0)
    assert found.degrees_of_freedom == 8 - 5
    first, second = found.per_curve
    assert (first.n, first.points, first.reduced_chi_square, first.autocorrelation) == (
        4,
        4,
        pytest.approx(1),
        pytest.approx(-1),
    )
    assert second.autocorrelation == pytest.approx(1) and first.at_bounds == ()
    assert found.ties == () and found.left_out == () and found.unequal_lengths is False


def test_a_chi_square_above_one():
    """Residuals 3 1 -1 -3, neighbours 2 apart: scatter sqrt(4 / 2), mean square 5: 2.5. Products 3, -1, 3: mean 5/3,
    over 5: 1/3.
    """
    made = SweepEstimate([curve(4)], [], residuals={(16, 4): [np.array([3.0, 1, -1, -3]) / 100]}, parameter_count=3)
    found = diagnose(made, runs((4, 4e3)))
    assert found.reduced_chi_square == pytest.approx(2.5) and found.autocorrelation == pytest.approx(1 / 3)


def test_rounding_is_no_residual():
    made = SweepEstimate([curve(4)], [], residuals={(16, 4): [np.array([3.0, 1, -1, -3]) * 1e-16]}, parameter_count=3)
    found = diagnose(made, runs((4, 4e3)))
    assert found.reduced_chi_square is None and found.autocorrelation is None


def test_what_is_not_determined_or_left_out_is_named():
    curves = [curve(4, at_bounds=("C_mid",)), curve(8, determined=False), curve(16, C_peak=2500.0)]
    found = diagnose(SweepEstimate(curves, [(16, 32, "2 points")]), runs((4, 4e3), (8, 4.3e3), (16, 4e3)))
    assert [row.at_bounds for row in found.per_curve] == [("C_mid",), ("A",), ()]
    assert found.left_out[0] == "no curve for B_p=16 n=32: 2 points"
    assert "n=16: points beyond C = 2500" in found.left_out[1]
    assert found.reduced_chi_square is None and found.degrees_of_freedom is None  # paper mode keeps no residuals
    assert (
        found.unequal_lengths is False
        and diagnose(SweepEstimate(curves, []), runs((4, 4e3), (8, 4.5e3))).unequal_lengths is True
    )
