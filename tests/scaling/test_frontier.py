"""Envelopes of curves whose crossings are known in closed form."""

import numpy as np
import pytest

from isojax.scaling.curves.hill import curve_reward
from isojax.scaling.law import frontier
from isojax.scaling.law.frontier import compute_frontier
from isojax.scaling.result import FittedCurve


def curve(n, A, C_mid, low=1e2, high=1e6, B_p=16, B=1.0):
    return FittedCurve(B_p, n, 0.0, A, B, C_mid, low, high, 10, 0.0)


# A C / (C + C_mid): .4 C / (C + 1000) = .8 C / (C + 5000) at C = 3000.
SMALL, LARGE = curve(2, 0.4, 1000.0), curve(8, 0.8, 5000.0)


def test_crossover_by_root_finding():
    f = compute_frontier([LARGE, SMALL])
    ((before, after),) = f.changes_of_n
    assert after.from_crossing and after.C_low == pytest.approx(3000, rel=1e-9)
    assert [(s.n, s.C_low, s.C_high) for s in (before, after)] == [
        (2, 100, after.C_low),
        (8, after.C_low, 1e6),
    ]
    assert all(p.n == (2 if p.C < 3000 else 8) for p in f.points)
    assert all(
        p.reward == max(float(curve_reward(SMALL, p.C)), float(curve_reward(LARGE, p.C)))
        for p in f.points
    )


def test_grid_is_even_in_log_C_with_60_points_a_decade():
    C = np.array([p.C for p in compute_frontier([SMALL]).points])
    assert (len(C), C[0], C[-1]) == (241, 100, 1e6)
    assert np.diff(np.log10(C)) == pytest.approx(1 / 60)


def test_a_curve_counts_only_where_measured():
    """n = 8 starts at 1e4, n = 2 ends at 2e4: the change is where n = 8 appears, half a grid step
    off at most, not at the crossing.
    """
    f = compute_frontier([curve(2, 0.4, 1000.0, high=2e4), curve(8, 0.8, 5000.0, low=1e4)])
    ((_, after),) = f.changes_of_n
    assert abs(np.log10(after.C_low / 1e4)) < 1 / 60
    gap = compute_frontier([curve(2, 0.4, 1000.0, high=1e3), curve(8, 0.8, 5000.0, low=1e5)])
    assert not [p for p in gap.points if 1e3 * 1.001 < p.C < 1e5 * 0.999]
    assert [after.C_low for _, after in gap.changes_of_n] == pytest.approx([1e4], rel=0.05)
    assert not gap.stretches[1].from_crossing


def test_brief_stretch_goes_to_the_neighbour_that_costs_least(monkeypatch):
    """n = 4 leads for .03 decades around the crossing of the two others, by .0019 at most."""
    # .55 C / (C + 2500) = .3 at C = 3000, where the others also cross
    middle = curve(4, 0.55, 2500.0)
    lifted = curve(4, 0.5535, 2500.0)
    with monkeypatch.context() as patch:
        patch.setattr(frontier, "MIN_DECADES", 0)
        assert [s.n for s in compute_frontier([SMALL, lifted, LARGE]).stretches] == [2, 4, 8]
        patch.setattr(frontier, "MIN_DECADES", 0.05)
        brief = compute_frontier([SMALL, lifted, LARGE])
    assert [s.n for s in brief.stretches] == [2, 8]
    assert [s.n for s in compute_frontier([SMALL, middle, LARGE]).stretches] == [2, 8]
    wide = curve(4, 0.58, 2500.0)
    assert [s.n for s in compute_frontier([SMALL, wide, LARGE]).stretches] == [2, 4, 8]
    # The frontier's reward there is that of the cell it names.
    assert all(
        p.reward == float(curve_reward(SMALL if p.n == 2 else LARGE, p.C)) for p in brief.points
    )


def test_brief_end_goes_to_a_neighbour_measured_nearly_as_far():
    """Cells end at the first update past the last target, so at slightly different C."""
    assert [
        s.n for s in compute_frontier([curve(8, 0.8, 5000.0, high=0.97e6), SMALL]).stretches
    ] == [2, 8]
    assert [
        s.n for s in compute_frontier([curve(8, 0.8, 5000.0, high=0.7e6), SMALL]).stretches
    ] == [2, 8, 2]


def test_B_p_changes_are_stretches_but_not_crossovers():
    f = compute_frontier([SMALL, curve(2, 0.8, 5000.0, B_p=64)])
    assert [(s.n, s.B_p) for s in f.stretches] == [(2, 16), (2, 64)]
    assert f.changes_of_n == []
    assert {(p.n, p.B_p) for p in f.points} == {(2, 16), (2, 64)}


def test_ties_go_to_the_smaller_n():
    assert {p.n for p in compute_frontier([curve(8, 0.4, 1000.0), SMALL]).points} == {2}


def test_falling_n_is_reported_as_it_is():
    f = compute_frontier([curve(8, 0.4, 1000.0), curve(2, 0.8, 5000.0)])
    ((before, after),) = f.changes_of_n
    assert (before.n, after.n, after.C_low, after.from_crossing) == (
        8,
        2,
        pytest.approx(3000),
        True,
    )
