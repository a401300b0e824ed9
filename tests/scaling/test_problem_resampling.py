"""The shift of other validation problems: its spread against a direct bootstrap of the mean; None
where answers are not recorded.
"""

from dataclasses import replace

import numpy as np
import pytest

from isojax.scaling.curves.fit_hierarchical import problem_contributions, sample_problem_shifts
from isojax.scaling.curves.hierarchical import pack_sweep
from isojax.scaling.curves.sweep_estimate import apply_problem_shift
from isojax.scaling.reward_metric import metric_per_problem
from isojax.scaling.tracks import group_by_cell, make_track
from tests.scaling.synthetic import world

WORLD = world(n=(2, 8), problems=200, samples=4, seeds=2)


def packed(runs=WORLD.runs):
    return pack_sweep(group_by_cell([make_track(r, "avg@4", "rollouts") for r in runs]))


def test_shift_by_hand():
    """R (1 - R) (a + b R): at R = .5, a = .1, b = .2 that is .25 * .2 = .05; nothing at 0 and 1;
    rewards beyond do not move.
    """
    drawn = np.array([[0.1, 0.2], [0.0, 0.0]])
    assert apply_problem_shift(drawn, np.array([0.0, 0.5, 1.0, 1.2])) == pytest.approx(
        np.array([[0, 0.55, 1, 1.2], [0, 0.5, 1, 1.2]])
    )
    assert apply_problem_shift(drawn, np.full((2, 3), 0.5))[:, 1].tolist() == [0.55, 0.5]


def test_its_spread_is_that_of_a_direct_bootstrap():
    """At a reward of .45: the mean over problems of the evaluations near there, problems drawn
    again, over 4000 draws. Many evaluations are averaged, so that the noise of single ones does not
    count."""
    sweep = packed()
    result = problem_contributions(sweep, "avg@4", sweep.data.y)
    assert result is not None and result.shape == (2, 200)
    ours = apply_problem_shift(
        sample_problem_shifts(result, 4000, np.random.default_rng(0)), np.array([0.45])
    )[:, 0]
    rows = [
        metric_per_problem(p.counts, 4, "avg@4")
        for r in WORLD.runs
        for p in r.points
        if 0.42 < p.metrics["avg@4"] < 0.48
    ]
    assert len(rows) > 10
    drawn = np.random.default_rng(1).multinomial(200, np.full(200, 1 / 200), size=4000) / 200
    direct = drawn @ np.mean(rows, axis=0)
    assert ours.mean() == pytest.approx(0.45, abs=0.002)
    assert ours.std() == pytest.approx(direct.std(), rel=0.1)


def test_draws_are_about_nothing():
    drawn = sample_problem_shifts(
        np.random.default_rng(0).normal(size=(2, 50)), 4000, np.random.default_rng(1)
    )
    assert drawn.mean(0) == pytest.approx([0, 0], abs=0.01)


def test_none_where_answers_do_not_give_the_metric():
    sweep = packed()
    assert problem_contributions(sweep, "reward", sweep.data.y) is None
    assert problem_contributions(sweep, "avg@8", sweep.data.y) is None
    first = WORLD.runs[0]
    other = replace(first, points=tuple(replace(p, metrics={"avg@4": 0.3}) for p in first.points))
    lacking = replace(first, points=tuple(replace(p, counts=()) for p in first.points))
    for odd in (other, lacking):
        sweep = packed([odd, *WORLD.runs[1:]])
        assert problem_contributions(sweep, "avg@4", sweep.data.y) is None
