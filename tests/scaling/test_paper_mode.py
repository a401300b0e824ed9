"""Record-breaking points found by hand. The sigmoid's parameters are recovered; bounds are
reported; too few points give a reason, not a curve.
"""

import numpy as np
import pytest

from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.scaling.curves.hill import curve_reward, curve_value
from isojax.scaling.curves.paper_mode import fit_points, fit_records, record_breaking_indices
from isojax.scaling.result import FittedCurve
from isojax.scaling.tracks import make_track


def test_records_enter_a_higher_bin():
    #         bin: 60    60     61     59    61     63    62     63
    rewards = [0.300, 0.304, 0.306, 0.299, 0.309, 0.317, 0.311, 0.319]
    assert record_breaking_indices(rewards).tolist() == [0, 2, 5]


def test_edges_of_bins_survive_rounding():
    """.3 / .005 and .615 / .005 are not whole in floating point; each of these rewards enters its
    own bin."""
    rewards = [i * 0.005 for i in range(201)]
    assert record_breaking_indices(rewards).tolist() == list(range(201))


def test_one_point_is_a_record_and_none_is_none():
    assert record_breaking_indices([]).tolist() == []
    assert record_breaking_indices([0.5]).tolist() == [0]


C = np.geomspace(1e3, 1e6, 25)


@pytest.mark.parametrize(
    "true",
    [(0.3, 0.645, 1.7, 2e4), (0.0, 0.9, 0.6, 1e5), (0.05, 0.2, 4.0, 5e3), (0.5, 0.55, 1.0, 3e4)],
)
@pytest.mark.parametrize("R0_known", [True, False])
def test_parameters_are_recovered(true, R0_known):
    fitted = fit_points(
        (16, 8), C[::-1], curve_value(C[::-1], *true), true[0] if R0_known else None, (1e3, 1e6)
    )
    assert isinstance(fitted, FittedCurve)
    assert (fitted.R0, fitted.A, fitted.exponent, fitted.C_mid) == pytest.approx(
        true, rel=0.02, abs=2e-3
    )
    assert fitted.rmse < 1e-4
    assert fitted.points == 25


def test_one_outlier_hardly_moves_the_curve():
    R = curve_value(C, 0.3, 0.6, 1.5, 2e4)
    R[20] += 0.2
    fitted = fit_points((16, 8), C, R, 0.3, (1e3, 1e6))
    assert isinstance(fitted, FittedCurve)
    assert abs(fitted.A - 0.6) < 0.01


def test_a_plateau_that_the_data_do_not_show_is_flagged():
    """C_mid far beyond the last point: anything up to A = 1 fits."""
    x = C[C < 1e4]
    fitted = fit_points((16, 8), x, 0.3 + 0.1 * x / 1e4, 0.3, (1e3, 1e4))
    assert isinstance(fitted, FittedCurve)
    assert "A" in fitted.at_bounds or "C_mid" in fitted.at_bounds
    good = fit_points((16, 8), C, curve_value(C, 0.3, 0.6, 1.5, 2e4), 0.3, (1e3, 1e6))
    assert isinstance(good, FittedCurve)
    assert good.at_bounds == ()


def test_too_few_points_and_a_perfect_base():
    assert (
        fit_points((16, 8), C[:2], [0.4, 0.5], 0.3, (1, 2))
        == "2 record-breaking values of C > 0, at least 3 needed"
    )
    assert (
        fit_points((16, 8), C[:3], [0.4, 0.5, 0.6], None, (1, 2))
        == "3 record-breaking values of C > 0, at least 4 needed"
    )
    assert (
        fit_points((16, 8), C[[0, 0, 0, 1]], [0.4, 0.5, 0.6, 0.7], 0.3, (1, 2))
        == "2 record-breaking values of C > 0, at least 3 needed"
    )
    assert (
        fit_points((16, 8), C[:3], [1, 1, 1], 1.0, (1, 2))
        == "the base policy's reward is 1 already"
    )


def _seed(number, Cs, rewards):
    points = [
        EvalPoint(int(c), i, int(c), 0, {"avg@4": r})
        for i, (c, r) in enumerate(zip(Cs, rewards, strict=True))
    ]
    return make_track(RunRecord(Cell(16, 8, number), tuple(points)), "avg@4", "rollouts")


def test_seeds_are_pooled_over_the_range_they_share():
    Cs = np.round(np.geomspace(100, 1e5, 30))
    true = (0.3, 0.6, 1.2, 3000.0)
    long = _seed(0, [0, *Cs], [0.3, *curve_value(Cs, *true)])
    short = _seed(1, [0, *Cs[5:20]], [0.3, *curve_value(Cs[5:20], *true)])
    fitted = fit_records([long, short], 0.3)
    assert isinstance(fitted, FittedCurve)
    assert (fitted.C_low, fitted.C_high) == (Cs[5], Cs[19])
    assert float(curve_reward(fitted, 3000.0)) == pytest.approx(0.45, abs=1e-3)
    # A dip below the best so far is no record: the fit does not see it.
    dipped = _seed(0, [0, *Cs], [0.3, *curve_value(Cs, *true)[:-2], 0.31, 0.31])
    again = fit_records([dipped, short], 0.3)
    assert isinstance(again, FittedCurve)
    assert abs(fitted.A - again.A) < 2e-3


def test_seeds_without_a_common_range():
    assert (
        fit_records([_seed(0, [0], [0.3]), _seed(1, [0, 10, 20], [0.3, 0.4, 0.5])], 0.3)
        == "its seeds share no range of C > 0"
    )
