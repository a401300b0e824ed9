"""What training gained, by format alone and by better answers."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.report.gains import report_gains, reward_gain


def run(*points: tuple[int, float, float], seed: int = 0) -> RunRecord:
    """(C, avg@4, share answered) of each evaluation."""
    made = [
        EvalPoint(C, C // 8, C, C, {"avg@4": reward, "parsed_fraction": answered}, samples=4)
        for C, reward, answered in points
    ]
    return RunRecord(Cell(2, 4, seed), tuple(made))


def test_the_parts_by_hand() -> None:
    # Half of the responses held an answer and 40% of these were right; at last 90% do, and two
    # thirds of these are.
    g = reward_gain(run((0, 0.2, 0.5), (64, 0.3, 0.6), (128, 0.6, 0.9)), "avg@4")
    assert g == pytest.approx((0.2, 0.6, 0.4, 0.4 * 0.4, 0.9 * (2 / 3 - 0.4)))


def test_a_base_that_never_answered_gains_nothing_by_format_alone() -> None:
    g = reward_gain(run((0, 0.0, 0.0), (64, 0.5, 1.0)), "avg@4")
    assert g == (0, 0.5, 0.5, 0, 0.5)


def test_no_base_or_no_answers_no_gain() -> None:
    assert reward_gain(run((8, 0.2, 0.5), (64, 0.5, 1.0)), "avg@4") is None
    assert reward_gain(run((0, 0.2, 0.5), (64, 0.5, 1.0)), "best@4") is None


def test_a_sweeps_gains_are_printed(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "about.json").write_text(
        json.dumps({"best_constant": {"answer": "7", "reward": 0.125}})
    )
    runs = [run((0, 0.2, 0.5), (128, 0.6, 0.9), seed=s) for s in (0, 1)]
    out = io.StringIO()
    report_gains(Console(width=120, file=out), tmp_path, runs)
    output = out.getvalue()
    assert (
        "the best constant answer, '7', gets 0.125" in output
        and "+0.400" in output
        and "+0.160" in output
    )


def test_a_task_on_device_has_none(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "about.json").write_text(json.dumps({"best_constant": None}))
    out = io.StringIO()
    report_gains(Console(file=out), tmp_path, [run((0, 0.2, 1.0), (128, 0.6, 1.0))])
    assert out.getvalue() == ""
