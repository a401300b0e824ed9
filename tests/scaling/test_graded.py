"""Graded rewards in the fit: what follows from their sums and what does not, and intervals that
cover the truth of synthetic worlds as often as they say.
"""

from dataclasses import replace

import numpy as np
import pytest

from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.scaling.curves.sweep_estimate import FitOptions
from isojax.scaling.evaluation_noise import paired_lead
from isojax.scaling.fit import fit
from isojax.scaling.reward_metric import correct_counts, metric_value
from tests.refusals import refused
from tests.scaling.synthetic import World, world

POINT = EvalPoint(
    64,
    1,
    64,
    0,
    {"avg@2": 0.45, "best@2": 0.75},
    (0.8, 1.0),
    2,
    {"reward": 0.5},
    {"hard": (0.5, 1.5)},
)


def test_sums_of_graded_rewards_give_mean_rewards_alone() -> None:
    assert POINT.graded and not replace(POINT, counts=(1, 2)).graded
    # as recorded
    assert metric_value(POINT, "avg@2") == 0.45 and metric_value(POINT, "best@2") == 0.75
    assert (
        metric_value(POINT, "avg@1") == pytest.approx(0.45)
        and metric_value(POINT, "hard/avg@2") == 0.5
    )
    assert correct_counts(POINT, "best@2") == () == correct_counts(POINT, "hard/best@2")
    for metric in ("pass@1", "worst@2", "hard/best@2", "verl/best@2"):
        with refused():
            metric_value(POINT, metric)


def worlds(count: int) -> list[World]:
    """Rewards of about half the variance of right and wrong answers of the same mean."""
    return [
        world(
            n=(2, 8, 32),
            seeds=2,
            problems=120,
            run_sd=0.01,
            ratio=1.5,
            budget=64_000,
            graded=1.0,
            seed=seed,
        )
        for seed in range(count)
    ]


def test_paired_leads_cover_the_true_lead() -> None:
    """By the spread over problems of what was measured, not by a binomial variance: of 90%
    intervals nine in ten hold the truth of all conceivable problems, where a run has no luck of its
    own."""
    hits = []
    for seed in range(150):
        one = world(
            n=(2, 32), seeds=1, problems=120, start=32_000, budget=64_000, graded=1.0, seed=seed
        )
        small, large = one.runs
        lead = paired_lead(large.points[-1:], small.points[-1:], "avg@4")
        C = small.points[-1].rollouts
        assert lead is not None and all(isinstance(x, float) for x in small.points[-1].counts)
        hits.append(
            abs(lead.mean - float(one.reward(16, 32, C) - one.reward(16, 2, C))) < 1.645 * lead.se
        )
    assert 0.83 < np.mean(hits) < 0.96


@pytest.mark.slow
def test_intervals_of_a_fit_cover_the_true_curves() -> None:
    """90% intervals of each curve's plateau where it is determined, and of the frontier's
    reward."""
    hits = []
    for one in worlds(6):
        fitted = fit(one.runs, options=FitOptions(replicates=200))
        assert (
            fitted.metric == "avg@4"
            and fitted.intervals is not None
            and fitted.intervals.problems == 120
        )
        assert (
            any(flag.code == "graded_rewards" for flag in fitted.flags)
            and fitted.reward_name == "mean reward"
        )
        for row in fitted.joint.frontier[::5]:
            assert row.low is not None and row.high is not None
            true = max(float(one.reward(16, n, row.C)) for n in (2, 8, 32))
            hits.append(row.low <= true <= row.high)
    assert np.mean(hits) > 0.8


def test_a_binary_fit_has_no_such_flag() -> None:
    points = tuple(
        EvalPoint(64 * i, i, 64 * i, 0, {"avg@2": 0.1 * i}, (i % 3, 1), 2) for i in range(8)
    )
    assert (
        fit([RunRecord(Cell(8, 8, 0), points)], options=FitOptions(replicates=0)).reward_name
        == "reward"
    )
