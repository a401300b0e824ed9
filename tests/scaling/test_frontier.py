"""Envelopes of curves whose crossings are known in closed form."""

from dataclasses import replace

import numpy as np
import pytest

from isojax.scaling.curves.hill import curve_reward
from isojax.scaling.law import frontier
from isojax.scaling.law.frontier import (
    _measured_reward,
    _merge_brief_stretches,
    _takeover,
    compute_frontier,
)
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


def test_a_brief_stretch_goes_to_the_neighbour_that_loses_less():
    """Grid points .045 decades apart: a stretch of two stands for .09, less than .1. Of its
    neighbours the later one, or the earlier one, loses less reward over it; one that was not
    measured there takes nothing."""
    log10_C = 3 + 0.045 * np.arange(9)
    winner = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])
    rewards = np.zeros((3, 9))
    rewards[1] = 0.5
    rewards[0], rewards[2] = 0.40, 0.45
    merged = _merge_brief_stretches(log10_C, rewards, winner)
    assert merged.tolist() == [0, 0, 0, 2, 2, 2, 2, 2, 2]
    rewards[0, 3:5] = 0.46, 0.45
    assert _merge_brief_stretches(log10_C, rewards, winner).tolist() == [0] * 5 + [2] * 4
    rewards[0, 4] = -np.inf
    assert _merge_brief_stretches(log10_C, rewards, winner).tolist() == merged.tolist()
    rewards[2, 3] = -np.inf
    assert _merge_brief_stretches(log10_C, rewards, winner).tolist() == winner.tolist()
    # at the ends a grid point stands for half a step, and has one neighbour
    first = np.array([1, 1, 1, 0, 0, 0, 0, 2, 2])
    level = np.full((3, 9), 0.4)
    assert _merge_brief_stretches(log10_C, level, first).tolist() == [1, 1, 1] + [0] * 6
    first[2] = 0
    assert _merge_brief_stretches(log10_C, level, first).tolist() == [0] * 9


def test_where_a_later_curve_takes_over():
    """At the crossing, if it lies between the grid points and in what both measured; else in the
    middle, which counts as a crossing where both measured it and the later one leads on."""
    early = FittedCurve(16, 4, 0.2, 0.6, 1.0, 2e3, 1e3, 1e5, 9, 0.01)
    late = FittedCurve(16, 16, 0.2, 0.7, 1.0, 8e3, 1e3, 1e5, 9, 0.01)
    # .4 / (1 + 2000 / C) = .5 / (1 + 8000 / C) at C = 22,000
    C, is_crossing = _takeover(early, late, 4.3, 4.4)
    assert C == pytest.approx(22_000, rel=1e-6) and is_crossing
    assert _takeover(early, late, 4.4, 4.6) == (pytest.approx(10**4.5), True)  # led before
    assert _takeover(late, early, 4.4, 4.6) == (pytest.approx(10**4.5), False)  # does not lead on
    assert _takeover(early, late, 4.0, 4.2) == (pytest.approx(10**4.1), True)
    ended = replace(early, C_high=1e4)
    assert _takeover(ended, late, 4.0, 4.2) == (pytest.approx(10**4.1), False)
    begun = replace(late, C_low=2e4)
    C, is_crossing = _takeover(early, begun, 4.2, 4.4)
    assert C == pytest.approx(22_000, rel=1e-6) and is_crossing
    assert _takeover(early, replace(late, C_low=3e4), 4.2, 4.4) == (pytest.approx(10**4.3), False)


def test_a_curve_counts_as_far_as_it_was_measured():
    c = FittedCurve(16, 4, 0.2, 0.6, 1.0, 2e3, 1e3, 1e5, 9, 0.01)
    log10_C = np.array([2.8, 2.95, 3.0, 5.0, 5.05, 5.2])
    assert np.isfinite(_measured_reward(c, log10_C, 1e-9)).tolist() == [
        False, False, True, True, False, False
    ]  # fmt: skip
    near = _measured_reward(c, log10_C, 0.1)
    assert np.isfinite(near).tolist() == [False, True, True, True, True, False]
    assert near[2] == pytest.approx(0.2 + 0.4 / 3)
