"""Metrics by name, axes against hand-written records, paired differences against arithmetic by
hand."""

import math

import numpy as np
import pytest

from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.scaling.evaluation_noise import paired_lead
from isojax.scaling.reward_metric import (
    EstimatorMetric,
    correct_counts,
    metric_per_problem,
    metric_value,
    parse_metric,
)
from isojax.scaling.tracks import make_track
from tests.refusals import refused


def run(points, hours=(), source="runs/a/records.jsonl"):
    return RunRecord(Cell(16, 2, 0), tuple(points), source, hours)


def test_a_metrics_name_says_how_it_follows_from_right_answers():
    assert parse_metric("avg@4") == EstimatorMetric("", "avg", 4)
    assert parse_metric("pass@16") == EstimatorMetric("", "pass", 16)
    assert parse_metric("verl/best@4") == EstimatorMetric("", "verl/best", 4)
    assert parse_metric("hard/worst@2") == EstimatorMetric("hard", "worst", 2)
    assert parse_metric("aime-24/verl/worst@8") == EstimatorMetric("aime-24", "verl/worst", 8)
    for other in (
        "reward",
        "avg@0",
        "avg@04",
        "mean@4",
        "verl/avg@4",
        "verl/pass@4",
        "train/avg@4",
        "train/verl/best@4",
        "a/b/avg@4",
    ):
        assert parse_metric(other) is None, other


def test_one_right_of_four_is_best_at_4_of_one():
    assert metric_per_problem([[1], [0]], 4, "best@4").tolist() == [[1.0], [0.0]]
    assert metric_per_problem([4, 3], 4, "worst@4").tolist() == [1.0, 0.0]


def test_large_samples_do_not_overflow():
    assert metric_per_problem([1], 2048, "best@1024")[0] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("count", "metric"),
    [
        (1, "best@8"),
        (5, "avg@4"),
        (1, "reward"),
    ],
)
def test_estimators_refuse(count, metric):
    with refused():
        metric_per_problem([count], 4, metric)


def test_metric_is_recorded_or_derived_from_counts():
    p = EvalPoint(0, 0, 0, 0, {"avg@4": 0.41, "ood/avg@4": 0.2}, (1, 2, 4), 4)
    assert metric_value(p, "avg@4") == 0.41
    assert metric_value(p, "ood/avg@4") == 0.2
    # 1 - C(3,2)/6, 1 - C(2,2)/6, 1
    assert metric_value(p, "best@2") == pytest.approx((1 / 2 + 5 / 6 + 1) / 3)
    assert metric_value(p, "worst@4") == pytest.approx(1 / 3)
    with refused():
        metric_value(p, "best@8", "here")
    with refused():
        metric_value(EvalPoint(0, 0, 0, 0, {}), "avg@4")


def test_metrics_of_extra_sets_follow_from_their_own_right_answers():
    p = EvalPoint(0, 0, 0, 0, {"avg@4": 0.5}, (2,), 4, extra={"hard": (0, 1), "ood": (4, 4, 0)})
    assert metric_value(p, "hard/avg@4") == 1 / 8
    assert metric_value(p, "hard/pass@4") == 1 / 2
    assert metric_value(p, "hard/verl/best@4") == pytest.approx((1 - 0.75**4) / 2)
    assert metric_value(p, "ood/worst@4") == pytest.approx(2 / 3)
    assert [
        correct_counts(p, m)
        for m in ("avg@1", "hard/avg@1", "none/avg@1", "hard/avg@5", "train/avg@1")
    ] == [
        (2,),
        (0, 1),
        (),
        (),
        (),
    ]
    with refused():
        metric_value(p, "hard/best@8")
    with refused():
        metric_value(p, "esay/avg@4")


def test_compute_axes():
    r = run(
        [EvalPoint(0, 0, 0, 0, {"avg@4": 0.3}), EvalPoint(64, 2, 64, 500, {"avg@4": 0.4})],
        (0.5, 0.75),
    )

    def axis(record, compute):
        return make_track(record, "avg@4", compute).C.tolist()

    assert axis(r, "rollouts") == [0, 64]
    assert axis(r, "tokens") == [0, 500]
    assert axis(r, "device_hours") == [0, 0.25]  # from the base policy's evaluation on
    with refused(where="runs/a/records.jsonl"):
        axis(run(r.points), "device_hours")
    with refused(where="compute"):
        axis(r, "flops")


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.01, 1.2])
def test_a_reward_outside_the_unit_interval_is_refused_with_its_file(value):
    with refused(where="runs/a/records.jsonl"):
        make_track(run([EvalPoint(64, 2, 64, 0, {"avg@4": value})]), "avg@4", "rollouts")


def test_compute_must_rise():
    points = [EvalPoint(c, 1, c, 0, {"avg@4": 0.3}) for c in (64, 32)]
    with refused(where="runs/a/records.jsonl"):
        make_track(run(points), "avg@4", "rollouts")
    with refused(where="runs/a/records.jsonl"):
        make_track(run([]), "avg@4", "rollouts")


def answered(counts):
    """An evaluation of 4 samples per problem."""
    return EvalPoint(64, 2, 64, 0, {}, tuple(counts), 4)


def test_paired_lead_by_hand():
    """Two seeds against one, 4 samples: means over seeds (1, .5, .25) against (.5, .5, .25); d =
    (.5, 0, 0)."""
    d = paired_lead([answered([4, 2, 0]), answered([4, 2, 2])], [answered([2, 2, 1])], "avg@4")
    assert d.mean == pytest.approx(1 / 6)
    assert d.se == pytest.approx(math.sqrt(1 / 12) / math.sqrt(3))  # var(d, ddof=1) = 1/12
    assert d.z == pytest.approx(1.0)


def test_pairing_removes_the_spread_of_difficulty():
    hard_to_easy = np.arange(100) % 4
    d = paired_lead(
        [answered((hard_to_easy + 1).tolist())], [answered(hard_to_easy.tolist())], "avg@4"
    )
    assert (d.mean, d.se, d.z) == (0.25, 0.0, math.inf)


def test_paired_lead_refuses_other_problems():
    with refused():
        paired_lead([answered([1, 2, 3])], [answered([1, 2])], "avg@4")
