"""The page of `isojax spend`."""

from __future__ import annotations

from pathlib import Path

from isojax.core.nouns import Cell, EvalPoint, FixedForecast, Leg, RunRecord, Spending
from isojax.report.page.spend_page import draw_spending, render_spending


def test_a_budget_that_ended_after_its_pilots_has_a_page() -> None:
    """Nothing was expected on the way, so that the right figure has no point of its own on its
    logarithmic axis."""
    cell = Cell.of_spend(8, 2)
    points = tuple(EvalPoint(C, C // 16, C, C, {"avg@8": 0.9}, (1,), 8) for C in (0, 64, 128))
    runs = [RunRecord(cell, points)]
    spending = Spending(
        6000, "avg@8", (Leg(cell, 2, 0, 128),), True, (FixedForecast(2, 0.9, (0.8, 1.0)),)
    )
    page = render_spending(Path("spent"), spending, runs)
    assert "It ended early: the rest of the budget was not expected to gain anything." in page
    left, right = draw_spending(spending, runs).axes
    assert right.get_xlim() == left.get_xlim() and 0 < right.get_xlim()[0] < 64
