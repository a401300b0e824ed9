"""The page of `isojax spend`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from isojax.core.nouns import Cell, EvalPoint, FixedForecast, Leg, RunRecord, Spending
from isojax.report.canvas import n_palette
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


def test_a_piece_of_a_run_has_the_colour_of_the_n_that_was_chosen_for_it() -> None:
    """Whatever its updates sampled: here two batches of B_p n, as none of `isojax spend` does."""
    cell = Cell.of_spend(8, 2)
    points = tuple(EvalPoint(C, C // 32, C, C, {"avg@8": 0.5}, (1,), 8) for C in (0, 64, 128, 256))
    legs = (Leg(cell, 2, 0, 128), Leg(cell, 4, 128, 256, 0.6, (0.5, 0.7)))
    rewards_ax, _ = draw_spending(Spending(256, "avg@8", legs), [RunRecord(cell, points)]).axes
    colours = n_palette([2, 4])
    drawn = [
        (np.asarray(line.get_xdata()).tolist(), line.get_color()) for line in rewards_ax.lines[:3]
    ]
    assert drawn == [([64], colours[2]), ([64, 128], colours[2]), ([128, 256], colours[4])]
