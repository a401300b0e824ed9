"""Draws beyond their data and at levels: departures, cells that hardly scored, and which cell is
the best where hits are few."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from isojax.scaling.curves.sweep_estimate import (
    MAX_FEW,
    SHARE_THAT_RISES,
    PosteriorSamples,
    any_of,
    apply_problem_shift,
    from_curve_draws,
    to_curve_draws,
)
from isojax.scaling.intervals import TAILS, share_draws, share_interval, share_quantiles
from isojax.scaling.result import FittedCurve, FlatStart

KEYS = ((16, 4), (16, 8), (32, 8))
Q = 400


def samples(A, R0=0.0, **others) -> PosteriorSamples:
    """Curves with C_mid = 1e4 and exponent 1, measured from 1e3 to 1e5; A float[3] or [Q, 3]."""
    A = np.broadcast_to(np.asarray(A, dtype=float), (Q, 3)).copy()
    ones, ends = np.ones((Q, 3)), np.full(3, 1e5)
    fields = dict(
        tail=np.ones(Q), keys=KEYS, A=A, exponent=ones, C_mid=1e4 * ones, R0=np.full(Q, R0),
        shift=np.zeros((Q, 2)), C_peak=np.full(3, np.inf), C_low=ends / 100, C_high=ends,
    )  # fmt: skip
    return PosteriorSamples(**(fields | others))


def test_departures_grow_with_the_decades_beyond_the_data():
    """At four times the data they are of the size departure_sd, at twice half of that, inside
    nothing; larger upwards than downwards, with median 0. They are Student's t, and cells share
    half of the variance. What is expected does not depart."""
    plain, departing = samples([0.5, 0.6, 0.7]), samples([0.5, 0.6, 0.7], departure_sd=0.02)
    for C, share in ((1e4, 0.0), (1e5, 0.0), (2e5, 0.5), (4e5, 1.0)):
        departure = departing.curves_at(np.array([C])) - plain.curves_at(np.array([C]))
        down, up = (np.where(side > 0, departure, 0.0) for side in (-departure, departure))
        for side, scale in ((down, 0.5), (up, 1.3)):
            rms = np.sqrt(2 * (side**2).mean(0))
            assert rms == pytest.approx(np.full(3, scale * 0.02 * share), rel=0.2)
        assert np.median(departure, axis=0) == pytest.approx(np.zeros(3), abs=3e-3)
        expected = (of.expected_at(np.array([C])) for of in (plain, departing))
        assert next(expected) == pytest.approx(next(expected), abs=1e-12)
    correlation = np.corrcoef(departure.T)
    off_diagonal = correlation[~np.eye(3, dtype=bool)]
    assert off_diagonal == pytest.approx(np.full(6, 0.5), abs=0.12)
    twice = departing.curves_at(np.array([2e5])) - plain.curves_at(np.array([2e5]))
    assert departure == pytest.approx(2 * twice)
    scaled = departure / departure.std(0)
    assert (scaled**4).mean() > 3.5  # heavier tails than a normal distribution's 3


def test_departures_stay_within_rewards():
    departing = samples([0.01, 0.5, 1.0], departure_sd=0.2)
    rewards = departing.curves_at(np.array([1e7]))
    assert rewards.min() == 0.0 and rewards.max() == 1.0


def test_a_cell_that_hardly_scored_rises_in_few_draws():
    """The first cell ends at .0055, below .01, others above: in 6% of the draws it follows its
    curve and departure, in the others it stays where its data end."""
    departing = samples([0.006, 0.5, 0.6], departure_sd=0.05)
    ends = departing.curves_as_seen(np.full(3, 1e5))
    assert departing.hardly_scored().tolist() == [True, False, False]
    rewards = departing.curves_at(np.array([4e5]))
    above = rewards[:, 0] > ends[:, 0] + 1e-9
    assert above.mean() == pytest.approx(SHARE_THAT_RISES, abs=0.01)
    assert rewards[above, 0].min() >= np.delete(rewards[:, 0], np.flatnonzero(above)).max()
    # What is expected of it: the mean of the draws without those that rise, as far downwards as
    # upwards.
    expected = departing.expected_at(np.array([4e5]))
    even = replace(departing, departures_down_up=(1.0, 1.0)).curves_at(np.array([4e5]))
    kept = np.sort(even[:, 0])[: int((1 - SHARE_THAT_RISES) * Q)]
    assert expected[0] == pytest.approx(kept.mean()) and expected[0] < rewards[:, 0].mean()
    assert expected[1:] == pytest.approx(even[:, 1:].mean(0))
    inside = departing.expected_at(np.array([1e5]))
    assert inside == pytest.approx(ends.mean(0))
    # Budgets inside the data and beyond are asked for together: inside, the draws are the curves.
    varied = samples(
        np.linspace(0.004, 0.007, Q)[:, None] + np.array([0, 0.5, 0.6]), departure_sd=0.05
    )
    at_both = varied.curves_at(np.array([[5e4], [1e5], [4e5]]))
    assert at_both[:2] == pytest.approx(
        replace(varied, departure_sd=None).curves_at(np.array([[5e4], [1e5]]))
    )
    expected = varied.expected_at(np.array([[1e5], [4e5]]))
    assert expected[0] == pytest.approx(at_both[1].mean(0))
    assert expected[1, 0] < at_both[2, :, 0].mean()
    # Where no cell has scored, none is behind; without departures none is judged.
    assert not samples([0.006, 0.006, 0.007], departure_sd=0.05).hardly_scored().any()
    assert not samples([0.006, 0.5, 0.6]).hardly_scored().any()


def test_shares_that_rise_by_hand():
    """Of evaluations of 1,000 rollouts: 8 hits more than at the start are few, 24 are known, and 16
    are half way. More than .03 is not few, where a cell did not begin at a level."""
    of = samples([0.5] * 3, departure_sd=0.05, rollouts=1000.0)._shares_that_rise
    half = SHARE_THAT_RISES + (1 - SHARE_THAT_RISES) / 2
    assert of(np.array([0.008, 0.016, 0.5])) == pytest.approx([SHARE_THAT_RISES, half, 1.0])
    assert of(np.array([0.001, 0.024, 0.029])) == pytest.approx([SHARE_THAT_RISES, 1.0, 1.0])
    assert of(np.array([MAX_FEW, 0.5, 0.5])).tolist() == [1.0, 1.0, 1.0]

    flat = FlatStart(0.1, 1000.0, C_flat=1e3, C_rise=2e3)
    begun = samples([0.5] * 3, departure_sd=0.05, rollouts=1000.0, flat_starts=(flat, None, None))
    shares = begun._shares_that_rise(np.array([0.116, 0.116, 0.5]))
    assert shares == pytest.approx([half, 1.0, 1.0])
    high = replace(flat, level=0.6)
    begun = replace(begun, flat_starts=(high, None, None))
    assert begun._shares_that_rise(np.array([0.608, 0.5, 0.5])).tolist() == [1.0, 1.0, 1.0]
    nothing_known = samples([0.5] * 3, departure_sd=0.05)._shares_that_rise
    assert nothing_known(np.array([0.0099, 0.01, 0.5])).tolist() == [SHARE_THAT_RISES, 1.0, 1.0]


def test_the_best_cells_where_a_hit_makes_no_difference():
    """Of 100 rollouts, and a start at 0: below 8 hits, cells within one hit of the best are as
    good."""
    allowed = np.array([True, True, True, False])
    known = samples([0.5] * 3, rollouts=100.0)
    rewards = np.array(
        [[0.07, 0.061, 0.059, 0.9], [0.3, 0.295, 0.3, 0.9], [0.079, 0.069, 0.0, 0.1]]
    )
    best = known.is_best(rewards, allowed, axis=1)
    assert best.tolist() == [
        [True, True, False, False], [True, False, True, False], [True, True, False, False]
    ]  # fmt: skip
    # 8 hits of 128 are no longer few, nor is a difference of one hit none then
    of_128 = samples([0.5] * 3, rollouts=128.0)
    at_limit = np.array([[8 / 128, 7.5 / 128, 0.0, 0.9], [7.5 / 128, 6.5 / 128, 0.0, 0.9]])
    assert of_128.is_best(at_limit, allowed, axis=1).tolist() == [
        [True, False, False, False], [True, True, False, False]
    ]  # fmt: skip
    flat = FlatStart(0.25, 100.0, C_flat=1e3, C_rise=2e3)
    from_level = replace(known, flat_starts=(None, flat, None))
    assert from_level.is_best(rewards[1:2], allowed, axis=1).tolist() == [[True, True, True, False]]
    unknown = samples([0.5] * 3)
    assert unknown.is_best(rewards[:1], allowed, axis=1).tolist() == [[True, False, False, False]]
    picked = any_of(np.tile([True, False, True, False], (2000, 1)), axis=1)
    assert set(picked.tolist()) == {0, 2} and np.mean(picked == 0) == pytest.approx(0.5, abs=0.05)
    assert any_of(np.array([[False, True], [True, False]]), axis=1).tolist() == [1, 0]


def test_levels_hold_up_to_where_they_were_seen_and_are_doubted_up_to_the_rise():
    """The first cell stands at .1 up to 1e4, and rises by 1e5. Draws add what an evaluation of 100
    rollouts leaves open, all of it up to 1e4, half of it in the middle of the decade."""
    flat = FlatStart(0.1, 100.0, C_flat=1e4, C_rise=1e5)
    begun = samples([0.5] * 3, flat_starts=(flat, None, None), rollouts=100.0)
    seen = begun.curves_as_seen(np.array([1e4]))
    assert (seen[:, 0] == 0.1).all() and seen[:, 1] == pytest.approx(np.full(Q, 0.25))
    after = begun.curves_as_seen(np.array([1.01e4]))
    assert after[:, 0] == pytest.approx(after[:, 1])

    doubt = begun.curves_at(np.array([1e4]))[:, 0] - 0.1
    low, high = share_interval(0.1, 100.0)
    inside = (doubt >= low - 0.1 - 1e-12) & (doubt <= high - 0.1 + 1e-12)
    assert inside.mean() == pytest.approx(0.9, abs=0.02)
    middle = 10**4.5
    half = begun.curves_at(np.array([middle])) - begun.curves_as_seen(np.array([middle]))
    assert half[:, 0] == pytest.approx(0.5 * doubt) and not half[:, 1:].any()
    assert not (begun.curves_at(np.array([1e5])) - begun.curves_as_seen(np.array([1e5]))).any()
    standing = replace(begun, flat_starts=(replace(flat, C_rise=None), None, None))
    # beyond the flat stretch of a cell that never rose the doubt stays
    late = standing.curves_at(np.array([9e5])) - standing.curves_as_seen(np.array([9e5]))
    assert late[:, 0] == pytest.approx(doubt, abs=0.2) and late[:, 0].std() > 0.01


def test_quantiles_of_shares_at_the_ends():
    """0 of N: at most 3 / N at .95, and 0 below the median; N of N mirrors it."""
    levels = np.array([0.05, 0.3, 0.6, 0.95, 0.99])
    none = share_quantiles(0.0, 50, levels)
    assert none[:2].tolist() == [0, 0] and none[3] == 3 / 50
    assert none[2] == pytest.approx(1 - 0.4 ** (1 / 50)) and none[4] == pytest.approx(
        1 - 0.01 ** (1 / 50)
    )
    all_right = share_quantiles(1.0, 50, np.array([0.95, 0.7, 0.4, TAILS[0], 0.01]))
    assert all_right == pytest.approx(1 - none)
    # one hit of 20: its bounds are those of Clopper and Pearson, and 3 / N is not their matter
    one = share_quantiles(0.05, 20, np.array([0.05, 0.95]))
    assert one == pytest.approx([1 - 0.95 ** (1 / 20), 0.216106], rel=1e-4)


@pytest.mark.parametrize("count", [100, 101])
def test_draws_of_a_share_hold_it_in_the_middle_and_the_interval(count):
    interval = (0.02, 0.3)
    draws = share_draws(0.1, 40, count, interval)
    assert (np.diff(draws) >= 0).all()
    middle = draws[count // 2] if count % 2 else draws[count // 2 - 1 : count // 2 + 1]
    assert np.all(middle == 0.1) and (draws == 0.1).sum() == (1 if count % 2 else 2)
    outer = [draws[q] for q in (math.ceil(0.05 * (count - 1)), math.floor(0.95 * (count - 1)))]
    assert outer[0] <= 0.02 and outer[1] >= 0.3
    inner = [
        draws[q] for q in (math.ceil(0.05 * (count - 1)) + 1, math.floor(0.95 * (count - 1)) - 1)
    ]
    levels = (np.arange(count) + 0.5) / count
    quantiles = share_quantiles(0.1, 40, levels)
    assert inner[0] == quantiles[math.ceil(0.05 * (count - 1)) + 1]
    assert inner[1] == quantiles[math.floor(0.95 * (count - 1)) - 1]


def test_other_problems_shift_rewards_where_problems_can_differ():
    shifts = np.array([[0.1, 0.2], [0.0, -0.5]])
    R = np.array([[0.0, 0.5, 1.0, 1.2], [0.2, 0.5, 1.0, -0.1]])
    expected = [
        [0.0, 0.5 + 0.25 * (0.1 + 0.2 * 0.5), 1.0, 1.2],
        [0.2 - 0.16 * 0.5 * 0.2, 0.5 - 0.25 * 0.25, 1.0, -0.1],
    ]
    assert apply_problem_shift(shifts, R) == pytest.approx(np.array(expected))


def test_draws_are_read_back_in_the_order_of_the_curves():
    rng = np.random.default_rng(0)
    made = samples(rng.random((Q, 3)), shift=rng.random((Q, 2)), departure_sd=0.01, rollouts=64.0)
    curves = [FittedCurve(*key, 0.0, 0.5, 1.0, 1e4, 1e3, 1e5, 9, 0.01) for key in KEYS[::-1]]
    read = from_curve_draws(to_curve_draws(made), curves)
    assert read.keys == KEYS[::-1] and (read.departure_sd, read.rollouts) == (0.01, 64.0)
    assert read.A == pytest.approx(made.A[:, ::-1], rel=1e-4)
    assert read.shift == pytest.approx(made.shift, rel=1e-4) and read.R0.shape == (Q,)
