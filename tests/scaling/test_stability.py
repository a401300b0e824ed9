"""A B_p is unstable when a cell falls from its own best, or a training metric is not finite; a run
overfits when its validation falls and its training reward rises.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.scaling.checks import stability
from isojax.scaling.checks.stability import assess_stability, find_overfitting
from isojax.scaling.tracks import make_track
from tests.scaling.sweeps import run as run_of
from tests.scaling.synthetic import world
from tests.scaling.synthetic_curves import Declining, Hill


def run(rewards, B_p=16, n=8, seed=0, problems=0, train=None):
    """With `problems`, the reward is the share of problems always solved, of 4 samples."""
    points = []
    for i, r in enumerate(rewards):
        counts = tuple(4 if p < round(r * problems) else 0 for p in range(problems))
        points.append(
            EvalPoint(
                100 * i, i, 100 * i, 0, {"avg@4": r}, counts, 4 if problems else 0, train or {}
            )
        )
    return make_track(RunRecord(Cell(B_p, n, seed), tuple(points)), "avg@4", "rollouts")


def test_fall_is_measured_from_the_best_mean_of_three():
    """Best mean (.5 + .6 + .55) / 3 = .55, last mean .45: a fall of .10."""
    (v,) = assess_stability({(16, 8): [run([0.3, 0.5, 0.6, 0.55, 0.45, 0.45, 0.45])]}, "avg@4")
    assert not v.stable
    assert v.reason == "n=8 ends at 0.450, 0.100 below its best 0.550 (limit 0.050)"


@pytest.mark.parametrize(
    "rewards",
    [[0.3, 0.4, 0.5, 0.6], [0.3, 0.45, 0.3, 0.33, 0.33], [0.5, 0.5, 0.5, 0.46, 0.46, 0.46], [0.4]],
)
def test_noise_and_small_falls_are_stable(rewards):
    """A single high point is no best: (.45 + .3 + .33) / 3 = .36 against .32 at the end."""
    (v,) = assess_stability({(16, 8): [run(rewards)]}, "avg@4")
    assert v.stable
    assert v.reason == ""


def test_seeds_are_averaged():
    up, down = [0.3, 0.5, 0.5, 0.5, 0.6, 0.6, 0.6], [0.3, 0.5, 0.5, 0.5, 0.4, 0.4, 0.4]
    (v,) = assess_stability({(16, 8): [run(up), run(down, seed=1)]}, "avg@4")
    assert v.stable
    (v,) = assess_stability({(16, 8): [run(down), run(down, seed=1)]}, "avg@4")
    assert not v.stable


def test_few_problems_raise_the_limit():
    """A fall of .1 is one problem of 10 lost: d = (1, 0 x 9), se = sqrt(.1) / sqrt(10) = .1, limit
    .4. Of 1000: se = .0095, limit .05.
    """
    falling = [0.5, 0.5, 0.5, 0.4, 0.4, 0.4]
    (few,) = assess_stability({(16, 8): [run(falling, problems=10)]}, "avg@4")
    (many,) = assess_stability({(16, 8): [run(falling, problems=1000)]}, "avg@4")
    assert few.stable
    assert not many.stable
    assert "limit 0.050" in many.reason


def test_a_training_metric_that_is_not_finite():
    cells = {
        (16, 8): [run([0.3, 0.4])],
        (64, 8): [run([0.3, 0.4], B_p=64, train={"grad_norm": math.nan})],
    }
    small, large = assess_stability(cells, "avg@4")
    assert small.stable
    assert not large.stable
    assert large.reason == "n=8 seed 0: grad_norm is nan at C = 0"


def test_a_described_fall_is_overfitting_unless_training_reward_falls_too():
    """Validation falls from .5 to .3; training reward stays at .8, or falls to .6, by .2 > .05."""
    validation = [0.3, *[0.5] * 8, 0.3, 0.3, 0.3]
    remaining, broken = (
        [{"reward": r} for r in (0.5, *(0.8,) * 8, *(end,) * 3)] for end in (0.8, 0.6)
    )
    for train, is_stable in ((remaining, True), (broken, False)):
        track = run(validation)
        points = tuple(replace(p, train=t) for p, t in zip(track.run.points, train, strict=True))
        (v,) = assess_stability(
            {(16, 8): [replace(track, run=replace(track.run, points=points))]},
            "avg@4",
            peaked_cells={(16, 8)},
        )
        assert v.stable == is_stable
    (v,) = assess_stability({(16, 8): [run(validation)]}, "avg@4", peaked_cells={(16, 8)})
    assert v.stable
    (v,) = assess_stability({(16, 8): [run(validation)]}, "avg@4")
    assert not v.stable


def test_overfitting_by_hand():
    """Validation rises to .6 at the fifth of 16 evaluations and falls by .02 each; training reward
    rises by .03."""
    C = np.arange(1, 17) * 1000.0
    up = np.array([0.3, 0.4, 0.5, 0.55, 0.6])
    R = np.concatenate([up, 0.6 - 0.02 * np.arange(1, 12)])
    train = 0.3 + 0.03 * np.arange(16)
    (row,) = find_overfitting([run_of(16, 8, 3, C, R, train)], 0.001)
    # The best four are .55, .6, .58, .56 (mean .5725), their middle the third; the last four .44 ..
    # .38 (mean .41).
    assert (row.B_p, row.n, row.seed, row.C) == (16, 8, 3, 6000)
    fall = 0.5725 - 0.41
    assert (
        row.reason
        == f"training reward rises by {0.03 * 9:.3f} while validation falls by {fall:.3f}"
    )


def test_what_is_no_overfitting():
    C, train = np.arange(1, 17) * 1000.0, 0.3 + 0.03 * np.arange(16)
    fallen = np.concatenate([np.linspace(0.3, 0.6, 5), 0.6 - 0.02 * np.arange(1, 12)])
    rising = np.linspace(0.3, 0.6, 16)
    assert find_overfitting([run_of(16, 8, 0, C, rising, train)], 0.01) == ()
    assert (
        find_overfitting([run_of(16, 8, 0, C, fallen, train[::-1])], 0.01) == ()
    )  # a collapse: training reward falls as well
    # no training reward was recorded
    assert find_overfitting([run_of(16, 8, 0, C, fallen)], 0.01) == ()
    # noise is as large as the fall
    assert find_overfitting([run_of(16, 8, 0, C, fallen, train)], 0.1) == ()
    # too few
    assert find_overfitting([run_of(16, 8, 0, C[:10], fallen[:10], train[:10])], 0.001) == ()


def test_worlds_that_overfit():
    """Validation declines by .15 a decade, over almost one, while training reward goes on rising;
    in rising worlds nothing is said.
    """
    true = Declining(Hill(0.3, 0.65, 1.2, 4000.0), 3e4, 0.15)
    for seed in range(3):
        w = world(curve=lambda B_p, n: true, n=(4, 16), seeds=2, seed=seed)
        rows = find_overfitting([make_track(r, "avg@4", "rollouts") for r in w.runs], None)
        assert {(row.n, row.seed) for row in rows} == {(4, 0), (4, 1), (16, 0), (16, 1)}
        assert all(true.C_peak / 2.5 < row.C < 2.5 * true.C_peak for row in rows)
        rising = world(n=(4, 16), seeds=2, seed=seed)
        assert (
            find_overfitting([make_track(r, "avg@4", "rollouts") for r in rising.runs], None) == ()
        )


@pytest.mark.parametrize(("last", "stable"), [(0.375, True), (0.3740234375, False)])
def test_a_fall_of_as_much_as_is_allowed_is_none(monkeypatch, last, stable):
    """In numbers that are exact: from .5 by an eighth, which is the limit here."""
    monkeypatch.setattr(stability, "MIN_DROP", 0.125)
    (v,) = assess_stability({(16, 8): [run([0.5] * 4 + [last] * 4)]}, "avg@4")
    assert v.stable == stable


@pytest.mark.parametrize(
    ("validation", "training", "found"),
    [(0.375, 0.625, False), (0.374, 0.625, False), (0.375, 0.626, False), (0.374, 0.626, True)],
)
def test_overfitting_is_more_than_the_limit_on_both_sides(monkeypatch, validation, training, found):
    monkeypatch.setattr(stability, "MIN_CHANGE", 0.125)
    C = np.arange(1, 13) * 1000.0
    R = [0.5] * 8 + [validation] * 4
    track = run_of(16, 8, 0, C, R, train=np.array([0.5] * 8 + [training] * 4))
    assert bool(find_overfitting([track], 0.0)) == found
