"""The training metrics' figure: means over seeds at shared targets, panels for what there is to see."""

from __future__ import annotations

from typing import Any

import pytest

from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.report.figures.training_metrics import metric_by_n, training_figure


def run(n: int, seed: int, *train: dict[str, float], B_p: int = 8) -> RunRecord:
    points = [EvalPoint(100 * i, i, 100 * i + n * (i > 0), 0, {}, train=t) for i, t in enumerate(({}, *train))]
    return RunRecord(Cell(B_p, n, seed), tuple(points))


RUNS = [
    run(2, 0, {"entropy": 0.5, "kl": 0.0, "grad_norm": 1.0}, {"entropy": 0.3, "kl": 0.0, "grad_norm": float("inf")}),
    run(2, 1, {"entropy": 0.7, "kl": 0.0, "grad_norm": 2.0}),
    run(4, 0, {"entropy": 0.9, "kl": 0.0}),
    run(8, 0, {"entropy": 9.9, "kl": 0.0}, B_p=16),
]


def test_means_over_seeds_at_each_target() -> None:
    found = metric_by_n(RUNS[:3], "entropy")
    assert list(found) == [2, 4]
    assert found[2][0].tolist() == [102, 202] and found[2][1].tolist() == pytest.approx([0.6, 0.3])
    assert found[4][1].tolist() == [0.9]
    assert metric_by_n(RUNS, "kl") == {} and metric_by_n(RUNS, "truncated") == {}  # 0 throughout, never recorded
    assert metric_by_n(RUNS, "grad_norm")[2][1].tolist() == [1.5]  # what is not finite is no mean


def test_a_panel_for_each_metric_at_the_last_batch_of_the_frontier(make_sweep: Any) -> None:
    fit = make_sweep(B_ps=(8,), ns=(2, 4, 8))[0]
    assert fit.joint.frontier[-1].B_p == 8
    figure = training_figure([fit], RUNS)
    assert figure is not None
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["entropy (nats per token)", "gradient norm"]
    assert [len(ax.get_lines()) for ax in figure.axes] == [2, 1]
    assert training_figure([fit], [run(2, 0, {"reward": 0.5})]) is None
