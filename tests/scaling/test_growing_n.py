"""Runs whose n changes on the way, from the curves of runs with a fixed n."""

from __future__ import annotations

import numpy as np
import pytest

from isojax.core.schedule import parse_schedule
from isojax.scaling.allocate.curve_ensemble import load_ensemble
from isojax.scaling.allocate.growing_n import CurveTable, best_n_stages, compare_n, n_to_raise_to
from isojax.scaling.allocate.recommend import recommend
from tests.refusals import refused
from tests.scaling.documents import R0, SHAPES, document, hill, without_draws

C = np.array([1e3, 1.5e3, 2e3, 3e3, 4e3])


def inverse(A: float, B: float, C_mid: float, reward: float) -> float:
    """C at which the curve has a reward."""
    return C_mid * ((A - reward) / (reward - R0)) ** (-1 / B)


def test_a_run_goes_on_as_one_of_the_new_n_does_from_its_reward():
    reward = hill(*SHAPES[16, 4], 4e3)
    options = {
        o.n: o for o in compare_n(load_ensemble(document()), 16, 4, C, hill(*SHAPES[16, 4], C), 1e5)
    }
    for n, option in options.items():
        shape = SHAPES[16, n]
        assert option.reward == pytest.approx(
            hill(*shape, inverse(*shape, reward) + 1e5 - 4e3), abs=2e-3
        )
    assert options[4].gain == 0 and options[16].gain == pytest.approx(
        options[16].reward - options[4].reward
    )
    low, high = options[16].gain_interval
    assert low < options[16].gain < high and options[16].p_better == 1


def test_the_larger_n_of_the_largest_sure_gain():
    options = compare_n(load_ensemble(document()), 16, 4, C, hill(*SHAPES[16, 4], C), 1e5)
    chosen = n_to_raise_to(options, 4)
    assert chosen is not None and chosen.n == 16
    assert n_to_raise_to(options, 16) is None  # n = 64 ends lower
    short = compare_n(load_ensemble(document()), 16, 4, C, hill(*SHAPES[16, 4], C), 5e3)
    assert n_to_raise_to(short, 4) is None


def test_a_run_above_its_curve_stays_above_and_one_above_a_plateau_stays():
    ensemble = load_ensemble(document())
    as_expected, luckier = (
        compare_n(ensemble, 16, 4, C, hill(*SHAPES[16, 4], C) + luck, 1e5) for luck in (0.0, 0.05)
    )
    assert all(a.reward > b.reward for a, b in zip(luckier, as_expected, strict=True))
    table = CurveTable.of(ensemble, 1e5)
    assert (table.go_on(0, np.full(ensemble.replicates, 0.9), 1e4) == 0.9).all()


def test_refusals():
    with refused():
        compare_n(load_ensemble(document()), 16, 8, C, C, 1e5)
    with refused():
        compare_n(load_ensemble(without_draws(document())), 16, 4, C, C, 1e5)


def test_the_planned_schedule_follows_the_fastest_n_and_beats_every_fixed_one():
    """At C = 1e4, n = 4 leads and n = 16 leads later: the plan begins with 4, goes on with 16, and
    ends above both."""
    r = recommend(document(), 5e4)
    assert r.growing is not None and r.growing.gain > 0 and r.growing.p_better > 0.5
    stages = parse_schedule(r.growing.schedule)
    assert [stage[1:] for stage in stages][:2] == [(r.allocation.B_p, 4), (r.allocation.B_p, 16)]
    assert r.growing.expected_reward == pytest.approx(r.expected_reward + r.growing.gain, abs=2e-3)
    low, high = r.growing.gain_interval
    assert low < r.growing.gain < high
    # the switch, where both curves rise equally fast from one reward
    reward = hill(*SHAPES[16, 4], stages[1].C)
    per_rollout = [
        np.diff([hill(*shape, inverse(*shape, reward) * f) for f in (1, 1.001)])[0]
        / (inverse(*shape, reward) * 0.001)
        for shape in (SHAPES[16, 4], SHAPES[16, 16])
    ]
    assert per_rollout[0] == pytest.approx(per_rollout[1], rel=0.08)


def test_no_schedule_where_one_n_always_leads_or_something_is_fixed():
    slow = {(16, 4): (0.6, 1.0, 2e3), (16, 16): (0.6, 1.0, 8e3)}
    assert recommend(document(slow), 5e4).growing is None
    assert recommend(document(), 5e4, fix={"M": 100}).growing is None
    assert recommend(document(), 5e4, B_max=64).growing is None  # n = 4 alone is left


def test_n_star_of_a_fit_as_stages():
    ensemble = load_ensemble(document())
    stages = best_n_stages(ensemble, 16, 1.0, 1e5)
    assert [stage.n for stage in stages] == [4, 16] and stages[0].C == 0
    ahead = best_n_stages(ensemble, 16, 2.0, 1e5)
    assert ahead[1].C == pytest.approx(stages[1].C / 2, rel=0.05)
    with refused():
        best_n_stages(ensemble, 8, 1.0, 1e5)


def test_an_n_whose_batch_is_as_large_as_allowed_takes_part():
    """16 x 16 are 256 rollouts an update."""
    r = recommend(document(), 5e4, B_max=256)
    assert r.growing is not None
    assert [stage.n for stage in parse_schedule(r.growing.schedule)] == [4, 16]
    assert recommend(document(), 5e4, B_max=255).growing is None
