"""Leads, errors and z computed by hand from per-problem counts."""

import math

import pytest

from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.scaling.checks.diagnostics import segment_evidence
from isojax.scaling.law.frontier import Frontier, FrontierStretch
from isojax.scaling.result import NeighbourCell
from isojax.scaling.tracks import make_track


def run(n, evaluations, seed=0, samples=4):
    """evaluations: {target: counts}."""
    points = tuple(
        EvalPoint(t, 1, t + n, 0, {"avg@4": sum(c) / (samples * len(c))}, c, samples)
        for t, c in evaluations.items()
    )
    return make_track(RunRecord(Cell(16, n, seed), points), "avg@4", "rollouts")


FRONTIER = Frontier((), (FrontierStretch(2, 16, 100, 1000), FrontierStretch(8, 16, 1000, 10000)))


def test_lead_is_paired_at_the_target_of_largest_z():
    small = run(2, {200: (2, 2, 2, 2), 2000: (1, 1, 1, 1), 4000: (0, 2, 1, 1)})
    large = run(8, {200: (2, 2, 2, 1), 2000: (2, 1, 1, 1), 4000: (2, 4, 2, 3), 9995: (4, 4, 4, 4)})
    first, second = segment_evidence(FRONTIER, {(16, 2): [small], (16, 8): [large]}, "avg@4")
    # At 200: d = (0, 0, 0, 1/4): mean 1/16, se = (1/8)/2, z = 1. Compute there is 202.
    assert (first.lead, first.se, first.z, first.at_C) == pytest.approx((1 / 16, 1 / 16, 1.0, 202))
    # At 4000: d = (2, 2, 1, 2)/4: mean 7/16, std 1/8, z = 7; at 2000 z = 1; 9995 is not shared.
    assert (second.lead, second.se, second.z, second.at_C) == pytest.approx(
        (7 / 16, 1 / 16, 7.0, 4008)
    )
    assert first.neighbours == (NeighbourCell(n=8, B_p=16),)
    assert first.measured_for_neighbours
    assert second.decades == pytest.approx(1.0)


def test_the_closest_neighbour_counts():
    """Of two rivals the one with the smaller z is reported."""
    front = Frontier(
        (),
        (
            FrontierStretch(2, 16, 1, 10),
            FrontierStretch(4, 16, 10, 1000),
            FrontierStretch(8, 16, 1000, 2000),
        ),
    )
    cells = {
        (16, 2): [run(2, {100: (0, 0, 1, 0)})],
        (16, 4): [run(4, {100: (4, 3, 3, 3)})],
        (16, 8): [run(8, {100: (3, 3, 3, 3)})],
    }
    middle = segment_evidence(front, cells, "avg@4")[1]
    assert (middle.lead, middle.z) == pytest.approx((1 / 16, 1.0))
    assert middle.neighbours == (NeighbourCell(n=2, B_p=16), NeighbourCell(n=8, B_p=16))


def test_seeds_are_averaged_first_and_must_share_the_target():
    small = [run(2, {2000: (2, 2, 2, 2)}, 0), run(2, {2000: (0, 0, 0, 0), 4000: (0, 0, 0, 0)}, 1)]
    large = run(8, {2000: (2, 1, 1, 1), 4000: (4, 4, 4, 4)})
    second = segment_evidence(FRONTIER, {(16, 2): small, (16, 8): [large]}, "avg@4")[1]
    assert (second.lead, second.at_C) == pytest.approx(
        (1 / 16, 2008)
    )  # mean over seeds of small: 1/4; 4000 is one seed's only


def test_nothing_to_pair():
    disjoint = {(16, 2): [run(2, {200: (1, 2)})], (16, 8): [run(8, {2000: (1, 2)})]}
    for s in segment_evidence(FRONTIER, disjoint, "avg@4"):
        assert (s.measured_for_neighbours, s.lead, s.se, s.z, s.at_C) == (
            False,
            None,
            None,
            None,
            None,
        )
    shared = {(16, 2): [run(2, {2000: (1, 2)})], (16, 8): [run(8, {2000: (1, 2)})]}
    # right answers of another set say nothing of it
    second = segment_evidence(FRONTIER, shared, "ood/avg@4")[1]
    assert (second.measured_for_neighbours, second.lead) == (True, None)


def test_a_lead_equal_on_every_problem_has_no_z():
    cells = {(16, 2): [run(2, {2000: (1, 2, 3)})], (16, 8): [run(8, {2000: (2, 3, 4)})]}
    second = segment_evidence(FRONTIER, cells, "avg@4")[1]
    assert (second.lead, second.se, second.z) == (0.25, 0.0, None)


def test_alone_on_the_frontier():
    one = Frontier((), (FrontierStretch(2, 16, 100, 1000),))
    (s,) = segment_evidence(one, {(16, 2): [run(2, {200: (1, 2)})]}, "avg@4")
    assert (s.neighbours, s.measured_for_neighbours, s.lead) == ((), False, None)
    assert math.isclose(s.decades, 1.0)


def test_one_n_with_two_B_p_is_one_segment():
    """The winner at a target is the cell whose stretch holds it; the rivals are the cells next to
    the segment."""
    front = Frontier(
        (),
        (
            FrontierStretch(2, 16, 1, 10),
            FrontierStretch(4, 16, 10, 100),
            FrontierStretch(4, 32, 100, 1000),
            FrontierStretch(8, 32, 1000, 2000),
        ),
    )
    cells = {
        (16, 2): [run(2, {50: (2, 2, 1, 2), 500: (0, 0, 1, 0)})],
        (16, 4): [run(4, {50: (3, 3, 2, 2), 500: (0, 0, 0, 0)})],
        (32, 4): [run(4, {50: (0, 0, 0, 0), 500: (4, 3, 3, 3)})],
        (32, 8): [run(8, {50: (0, 0, 0, 0), 500: (3, 3, 3, 3)})],
    }
    result = segment_evidence(front, cells, "avg@4")
    assert [(s.n, s.C_low, s.C_high) for s in result] == [
        (2, 1, 10),
        (4, 10, 1000),
        (8, 1000, 2000),
    ]
    middle = result[1]
    assert middle.neighbours == (NeighbourCell(n=2, B_p=16), NeighbourCell(n=8, B_p=32))
    # At 50: over (16, 2) d = (1, 1, 1, 0)/4, z = 3; over (32, 8) more. At 500: over (32, 8) z = 1.
    assert (middle.z, middle.at_C) == (pytest.approx(3.0), 54)
