"""Flags of a fit: what its cells' records say."""

import numpy as np
import pytest

from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.scaling.checks import fit_flags
from isojax.scaling.checks.fit_flags import data_flags, frontier_flags, staleness_flags
from isojax.scaling.law.frontier import Frontier, compute_frontier
from isojax.scaling.law.n_star_law import most_common_n_law
from isojax.scaling.result import FittedCurve, FrontierRow, Law
from isojax.scaling.tracks import group_by_cell, make_track
from tests.scaling.sweeps import fit, run


def asynchronous_runs(staleness_by_n):
    """Runs of B_p = 8 over 12 evaluations, each with this mean staleness in updates after the
    first."""
    runs = []
    for n, staleness in staleness_by_n.items():
        C = [0, *np.geomspace(1e3, 1e5, 12).round().astype(int).tolist()]
        train = [{}] + [{} if staleness is None else {"staleness_mean": staleness}] * 12
        points = [
            EvalPoint(c, c // (8 * n), c, 0, {"avg@4": 0.2 + 0.1 * i / 12}, train=t)
            for i, (c, t) in enumerate(zip(C, train, strict=True))
        ]
        runs.append(RunRecord(Cell(8, n, 0), tuple(points), f"n{n}"))
    return runs


@pytest.mark.parametrize(
    ("staleness_by_n", "flagged"),
    [
        ({4: 1.25, 16: 0.5}, True),  # differ by .75 updates
        ({4: 0.75, 16: 0.5}, False),  # by .25, which is allowed
        ({4: 0.0, 16: 0.0}, False),
        ({4: None, 16: None}, False),  # not an asynchronous sweep
        ({4: 1.25}, False),  # nothing to compare
    ],
)
def test_cells_that_differ_in_staleness_are_flagged(staleness_by_n, flagged):
    runs = asynchronous_runs(staleness_by_n)
    flags = staleness_flags(group_by_cell([make_track(r, "avg@4", "rollouts") for r in runs]))
    assert [f.code for f in flags] == ["staleness_differs"] * flagged


@pytest.mark.parametrize(("end_of_the_other", "flagged"), [(4.3e3, False), (4.5e3, True)])
def test_cells_of_unequal_length_are_flagged(end_of_the_other, flagged):
    """One that ends at 4e3 is short compared with one that ends more than 1.1 times as far."""
    C = np.arange(1, 5) * 1000.0
    tracks = [
        run(16, n, 0, C * end / 4e3, [0.3, 0.4, 0.5, 0.5])
        for n, end in ((4, 4e3), (8, end_of_the_other))
    ]
    flags = data_flags(group_by_cell(tracks))
    assert ("unequal_lengths" in {f.code for f in flags}) is flagged


def test_a_run_that_ends_before_other_seeds_of_its_cell_is_named():
    C = np.arange(1, 5) * 1000.0
    whole = run(16, 8, 0, C, [0.3, 0.4, 0.5, 0.5])
    half = run(16, 8, 1, C[:2], [0.3, 0.4])

    flags = {f.code: f.text for f in data_flags(group_by_cell([whole, half]))}

    assert "B_p=16 n=8 seed 1 (C = 2,000 of 4,000)" in flags["run_ends_early"]
    assert "run_ends_early" not in {
        f.code for f in data_flags(group_by_cell([whole, run(16, 8, 1, C, [0.3] * 4)]))
    }


def test_a_fit_says_so():
    [flag] = [
        f for f in fit(asynchronous_runs({4: 1.25, 16: 0.5})).flags if f.code == "staleness_differs"
    ]
    assert flag.severity == "warning" and "1.25 at n = 4, 0.50 at n = 16 updates old" in flag.text


@pytest.mark.parametrize(
    ("best", "codes"), [(64, ["largest_n_leads", "one_n_leads"]), (4, ["one_n_leads"])]
)
def test_the_largest_n_that_leads_at_every_C_is_not_the_last_word(best, codes):
    A = {n: 0.6 if n == best else 0.5 for n in (4, 16, 64)}
    curves = [FittedCurve(16, n, 0.2, A[n], 1.0, 2e3, 1e3, 1e5, points=9, rmse=0.01) for n in A]
    frontier = compute_frontier(curves)
    flags = list(frontier_flags(frontier, (), most_common_n_law([best]), set(A)))
    assert [flag.code for flag in flags] == codes


@pytest.mark.parametrize(("A_of_64", "flagged"), [(0.02, False), (0.6, True)])
def test_the_largest_n_does_not_lead_where_it_only_has_data_further_out(A_of_64, flagged):
    """The best n ends at a tenth of the largest n's C: beyond, nothing else was measured."""
    ends = {4: (0.02, 1e4), 16: (0.6, 1e4), 64: (A_of_64, 1e5)}
    curves = [
        FittedCurve(16, n, 0.0, A, 1.0, 2e3, 1e3, C, points=9, rmse=0.01)
        for n, (A, C) in ends.items()
    ]
    frontier = compute_frontier(curves)
    assert frontier.points[-1].n == 64
    codes = [flag.code for flag in frontier_flags(frontier, (), most_common_n_law([16]), set(ends))]
    assert ("largest_n_leads" in codes) is flagged


def test_no_reward_at_all_is_no_forecast():
    """Where every reward is 0, nothing says how far a forecast may be off."""
    tracks = [
        run(16, n, s, [0, *np.geomspace(1e3, 1e5, 12).round()], np.zeros(13))
        for n in (4, 16)
        for s in (0, 1)
    ]
    document = fit([t.run for t in tracks], replicates=20)
    codes = {flag.code for flag in document.flags}
    assert document.forecast is None and document.flags[0].code == "nothing_learnt"
    assert "forecast_tried" not in codes and "forecast_missed" not in codes


@pytest.mark.parametrize(("last", "is_told"), [(0.375, True), (0.37, False)])
def test_a_largest_n_that_leads_for_its_data_alone_is_not_said_to(monkeypatch, last, is_told):
    """The frontier has fallen at its end by an eighth, which is the limit here, or by more."""
    monkeypatch.setattr(fit_flags, "MAX_FRONTIER_FALL", 0.125)
    points = tuple(
        FrontierRow(C=C, reward=reward, n=n, B_p=16)
        for C, reward, n in ((1e3, 0.2, 4), (1e4, 0.5, 4), (1e5, last, 16))
    )
    law = Law("constant", 0.0, 0.0, None, 2.0)
    flags = fit_flags.frontier_flags(Frontier(points, ()), (), law, [4, 16])
    assert any(flag.code == "largest_n_leads" for flag in flags) == is_told
