"""The shape between Hill and stretched exponential: limits by hand, slopes by differences."""

import numpy as np
import pytest

from isojax.scaling.curves.hill import (
    STRETCHED_TAIL,
    curve_value,
    progress_and_slope,
    progress_gradient,
)
from isojax.scaling.result import HILL_TAIL

Z = np.linspace(-6, 6, 41)


def test_limits_by_hand():
    assert progress_and_slope(Z, HILL_TAIL)[0] == pytest.approx(1 / (1 + np.exp(-Z)), abs=1e-12)
    # tail 0 is a limit, taken at 1e-6: off by less than that.
    assert progress_and_slope(Z, STRETCHED_TAIL)[0] == pytest.approx(
        1 - np.exp(-np.log(2) * np.exp(Z)), abs=1e-6
    )
    # tail 1/2: 1 - (1 + (sqrt 2 - 1) e^z)^-2; at e^z = 1 + sqrt 2 that is 1 - 1/4.
    assert float(progress_and_slope(np.log([1 + 2**0.5]), 0.5)[0][0]) == pytest.approx(0.75)


@pytest.mark.parametrize("tail", [0.0, 0.1, 0.25, 0.5, 0.75, 1.0])
def test_half_at_the_middle_rising_and_its_slope(tail):
    s, slope = progress_and_slope(Z, tail)
    assert float(progress_and_slope(np.zeros(1), tail)[0][0]) == pytest.approx(0.5, abs=1e-9)
    assert (np.diff(s) >= 0).all() and (s >= 0).all() and (s <= 1).all()
    h = 1e-5
    assert slope == pytest.approx(
        (progress_and_slope(Z + h, tail)[0] - progress_and_slope(Z - h, tail)[0]) / (2 * h),
        abs=1e-8,
    )


def test_a_smaller_tail_arrives_sooner():
    s = [
        float(progress_and_slope(np.array([2.0]), tail)[0][0])
        for tail in (1.0, 0.75, 0.5, 0.25, 0.0)
    ]
    assert s == sorted(s)


def test_far_away_nothing_overflows():
    s, slope = progress_and_slope(np.array([-1e4, 1e4]), np.array([[0.0], [1.0]]))
    assert s[:, 0] == pytest.approx(0, abs=1e-20) and s[:, 1] == pytest.approx(1)
    assert np.isfinite(slope).all()


def test_rewards_by_hand_and_broadcast():
    """R0 = .2, A = .6, exponent 2: half the gain at C_mid, 9/10 of it at 3 C_mid and one tenth at
    C_mid / 3 for Hill; 1 - 2^-9 of it at 3 C_mid for the stretched exponential.
    """
    assert curve_value([1e3, 3e3, 1e3 / 3], 0.2, 0.6, 2.0, 1e3) == pytest.approx([0.4, 0.56, 0.24])
    assert curve_value(3e3, 0.2, 0.6, 2.0, 1e3, 0.0) == pytest.approx(
        0.2 + 0.4 * (1 - 2**-9), abs=1e-6
    )
    many = curve_value([1e3, 3e3], 0.2, [[0.6], [0.8]], 1.0, 1e3, [[1.0], [0.0]])
    assert many.shape == (2, 2) and many[:, 0] == pytest.approx([0.4, 0.5], abs=1e-6)


@pytest.mark.parametrize("tail", [0.0, 0.5, 1.0])
def test_the_gradient_is_that_of_differences_and_nothing_happens_at_no_compute(tail):
    log10_C, mid, ln_exponent, h = np.array([-np.inf, 2.0, 3.0, 4.5]), 3.2, 0.3, 1e-6
    s, d_mid, d_ln_exponent = progress_gradient(log10_C, mid, ln_exponent, tail)
    moved = [
        progress_gradient(log10_C, mid + a, ln_exponent + b, tail)[0]
        for a, b in ((h, 0), (-h, 0), (0, h), (0, -h))
    ]
    assert d_mid == pytest.approx((moved[0] - moved[1]) / (2 * h), abs=1e-8)
    assert d_ln_exponent == pytest.approx((moved[2] - moved[3]) / (2 * h), abs=1e-8)
    assert (s[0], d_mid[0], d_ln_exponent[0]) == (0, 0, 0)
