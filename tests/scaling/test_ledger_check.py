"""What `isojax records check` notes of runs: few evaluations, runs that broke off, and cells
without a curve."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isojax.scaling.checks.ledger_check import _curve_errors, _run_notes
from isojax.scaling.tracks import group_by_cell
from tests.scaling.sweeps import run


@pytest.mark.parametrize(("evaluations", "is_noted"), [(4, True), (5, False)])
def test_few_evaluations_are_counted_without_the_base_policys(evaluations, is_noted):
    C = [0.0, *(1000.0 * (i + 1) for i in range(evaluations))]
    record = run(16, 4, 0, C, [0.2 + 0.02 * i for i in range(len(C))]).run
    notes = list(_run_notes(record))
    assert len(notes) == is_noted
    if is_noted:
        assert "has 4 evaluations at C > 0" in notes[0]


def test_a_run_that_broke_off_is_noted():
    record = run(16, 4, 0, [0.0, *range(1000, 7000, 1000)], [0.2] * 7).run
    [broke_off, flagged] = _run_notes(replace(record, failure_reason="out of memory"))
    assert "the run broke off (out of memory)" in broke_off and "is flagged" in flagged


def test_cells_without_a_curve_are_an_error_where_none_has_one():
    """Three evaluations at C > 0 make a curve, if all have more than three together; one at C = 0
    does not count."""
    few = [run(16, 4, 0, [0, 1e3, 2e3], [0.2, 0.3, 0.4])]
    enough = [run(16, 8, 0, [0, 1e3, 2e3, 4e3, 8e3], [0.2, 0.3, 0.4, 0.5, 0.6])]
    three = [run(16, 8, 0, [0, 1e3, 2e3, 4e3], [0.2, 0.3, 0.4, 0.5])]
    [error] = _curve_errors(group_by_cell(few))
    assert "16x4: 2 points at C > 0" in error
    assert list(_curve_errors(group_by_cell(few + enough))) == []
    [error] = _curve_errors(group_by_cell(three))
    assert "16x8: fewer than 4 points at C > 0 in all" in error
