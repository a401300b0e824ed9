"""What accompanies a recommendation: its risk, halting marks, the run to measure next, and, where a
budget is refused, the sweep that would support it.
"""

import dataclasses
import re

import numpy as np
import pytest

from isojax.report.wording import describe_advice
from isojax.runs.ledger import run_conflicts
from isojax.scaling.allocate.advice import _likely_cells, choose_next_run
from isojax.scaling.allocate.constraints import AllocationRequest
from isojax.scaling.allocate.curve_ensemble import load_ensemble
from isojax.scaling.allocate.recommend import recommend
from isojax.scaling.allocate.recommendation import Risk
from isojax.scaling.result import FitFlag, ForecastTrial, Severity
from tests.refusals import refused
from tests.scaling.documents import SHAPES, document, hill, with_curve, without_draws
from tests.scaling.sweeps import fit
from tests.scaling.synthetic import world

EQUAL = {(16, 4): (0.6, 1.0, 2e3), (16, 16): (0.6, 1.0, 2e3)}


def flag(code: str, severity: Severity = "warning") -> FitFlag:
    return FitFlag(code=code, severity=severity, text=f"the flag {code}")


def number_in(text: str, pattern: str) -> int:
    match = re.search(pattern, text)
    assert match is not None
    return int(match[1].replace(",", ""))


def test_the_risk_replaces_the_warnings_that_it_states():
    # n = 16 leads and is the largest
    d = document({key: shape for key, shape in SHAPES.items() if key[1] < 64})
    flags = tuple(
        map(
            flag,
            ("run_sd_assumed", "one_seed", "forecast_missed", "largest_n_leads", "unequal_lengths"),
        )
    )
    one_seed = tuple(run for run in d.runs if run.seed == 0)
    trial = ForecastTrial(
        departure_sd=0.02, C_limit=2.5e4, evaluations=9, mean_error=0.01, mean_absolute_error=0.019
    )
    d = d.model_copy(
        update={"flags": (*flags, flag("tie", "info")), "runs": one_seed, "forecast": trial}
    )
    r = recommend(d, 4e5)
    assert r.risk_summary == (
        "one seed per cell; the spread between seeds, 0.010, is assumed; n = 16 is the largest of "
        "the grid; this sweep's forecasts from its first quarter erred by 0.019"
    )
    assert r.further_warnings == ("the flag unequal_lengths",) and len(r.warnings) == 5
    assert r.risks[-1].code == "forecast_missed"
    tried = recommend(d.model_copy(update={"flags": (flag("forecast_tried", "info"),)}), 4e5)
    # in the trial, most cells were as predicted
    assert tried.risks[-1] == Risk("forecast_tried", r.risks[-1].text)
    two_seeds_elsewhere = (*one_seed, *(run for run in document().runs if run.n == 4))
    r = recommend(d.model_copy(update={"runs": two_seeds_elsewhere}), 1e5)
    assert (
        r.risks[0] == Risk("one_seed_of_cell", "one seed of 16x16")
        and "the flag one_seed" in r.further_warnings
    )
    near = recommend(d, 1e5)  # no forecast
    assert (
        "forecasts" not in near.risk_summary and "the flag forecast_missed" in near.further_warnings
    )
    untried = d.model_copy(update={"forecast": ForecastTrial(departure_sd=0.02)})
    assert (
        recommend(untried, 2e5).risks[-1].text
        == "this sweep's forecasts from its first quarter could not be tried"
    )
    assert recommend(untried, 2e5).risks[-1].code == "forecast_untried"
    settings = document().intervals
    assert settings is not None
    estimated = settings.model_copy(update={"run_sd_source": "2 seeds"})
    assert recommend(document().model_copy(update={"intervals": estimated}), 1e5).risk_summary == ""


def test_the_smallest_n_keeps_the_warning_of_the_largest():
    """n = 4 leads at the budget, n = 16 at the frontier's end: both are told."""
    d = document({key: shape for key, shape in SHAPES.items() if key[1] < 64})
    d = d.model_copy(update={"flags": (flag("largest_n_leads"),)})
    r = recommend(d, 2e3)
    assert r.allocation.n == 4 and "n = 4 is the smallest of the grid" in r.risk_summary
    assert r.further_warnings == ("the flag largest_n_leads",)
    assert "of the grid" not in recommend(document({(16, 4): (0.6, 1.0, 2e3)}), 1e5).risk_summary


@pytest.mark.parametrize(
    ("sd", "budget", "uncertain"), [(0.03, 1e5, False), (0.04, 1e5, True), (0.03, 4e5, False)]
)
def test_a_wide_interval_is_a_risk(sd, budget, uncertain):
    """The interval of n = 16, whose A has this standard deviation, is 3.29 sd C / (C + 8e3) wide:
    .091 and .122 at 1e5, .097 at 4e5. Half the rise beyond the data, from .663 to .690 at 4e5, is
    added: .110. More than .112 is a risk.
    """
    r = recommend(document(sd=sd, replicates=4000), budget)
    assert ("the reward is uncertain" in r.risk_summary) == uncertain, r.risk_summary


def test_halting_marks_of_curves_that_are_known():
    """16x16 with M = 390: a quarter is M = 97, half 195. Draws of A have a standard deviation of
    .02, a new run .010 and its evaluation .008 around them.
    """
    r = recommend(document(sd=0.02, replicates=6000), 1e5)
    assert [(mark.M, mark.C) for mark in r.halting_marks] == [(97, 97 * 256), (195, 195 * 256)]
    rng, below = np.random.default_rng(1), np.zeros(20_000, dtype=bool)
    # true plateaus, each of a run with luck of its own
    A = 0.7 + 0.02 * rng.standard_normal(20_000)
    luck = 0.01 * rng.standard_normal(20_000)
    for mark in r.halting_marks:
        progress = 1 / (1 + 8e3 / mark.C)
        assert mark.expected_reward == pytest.approx(hill(0.7, 1, 8e3, mark.C), abs=1e-4)
        sd = np.sqrt((0.02 * progress) ** 2 + 0.01**2 + 0.008**2)
        assert mark.stop_below == pytest.approx(mark.expected_reward - 1.96 * sd, abs=0.002)
        below |= (
            0.2 + (A - 0.2) * progress + luck + 0.008 * rng.standard_normal(20_000)
            < mark.stop_below
        )
    assert 0.025 < below.mean() < 0.05 < r.false_stop == 0.1


def test_halting_marks_end_at_the_peak_and_need_draws_of_the_cell():
    peaked = with_curve(document(), (16, 16), C_peak=9e4)
    assert [mark.C for mark in recommend(peaked, 1e5).halting_marks] == [87 * 256, 175 * 256]
    late = with_curve(document(), (16, 16), C_low=3e4)
    # nothing was measured at a quarter
    assert [mark.M for mark in recommend(late, 1e5).halting_marks] == [195]
    assert recommend(document(), 1e5, fix={"B_p": 20}).halting_marks == ()
    undrawn = recommend(without_draws(document()), 1e5)
    assert (undrawn.halting_marks, undrawn.false_stop) == ((), None)


def test_the_next_run_of_two_equal_cells():
    """Two independent plateaus of standard deviation s: the regret is s / sqrt(pi). A run that
    measures one of them with noise moves its mean by s^2 / sqrt(s^2 + noise^2) (1 sd); the larger
    mean is sd / sqrt(2 pi) higher.
    """
    s, d = 0.02 / 1.02, document(EQUAL, sd=0.02, replicates=4000)
    run = recommend(d, 1e5).next_run
    assert run is not None
    noise = np.hypot(0.01, 0.008)
    assert run.regret_before == pytest.approx(s / np.sqrt(np.pi), rel=0.06)
    saved = s**2 / np.hypot(s, noise) / np.sqrt(2 * np.pi)
    assert run.regret_before - run.regret_after == pytest.approx(saved, rel=0.1)
    assert set(run.between) == {(16, 4), (16, 16)}
    # A quarter of the budget measures almost as much, for less.
    assert run.allocation.C in (24_832, 24_960)


def test_the_next_run_by_a_loop_over_runs_and_draws():
    """What each run would save: for each draw as the truth, what it measures moves the leads of all
    cells along their regression, and the best one is chosen. A covariance that may be chance counts
    as none. The cheapest run that saves nearly as much as the best."""
    close = {(16, 4): (0.6, 1.0, 2e3), (16, 16): (0.607, 1.0, 3e3), (64, 16): (0.59, 1.0, 2.5e3)}
    for sd, seed in ((0.02, 1), (0.05, 2)):
        ensemble = load_ensemble(document(close, sd=sd, replicates=300))
        request = AllocationRequest(9e4, None, {}, epsilon=0.005, extrapolate=False)
        Q, cells = 300, [(16, 4), (16, 16), (64, 16)]
        normal = np.random.default_rng(1).standard_normal(Q)
        noise = (normal - normal.mean()) * np.hypot(0.01, 0.008)

        def rewards_at(C, e=ensemble):
            return e.samples.curves_at(np.array(C, dtype=float))

        leads = rewards_at([9e4] * 3)
        leads = leads - leads[:, [seed]]
        runs = []
        for share in (0.25, 0.5, 1.0):
            updates = [int(share * 9e4 // (B_p * n)) for B_p, n in cells]
            C = [M * B_p * n for M, (B_p, n) in zip(updates, cells, strict=True)]
            measured = rewards_at(C)
            for j, (B_p, n) in enumerate(cells):
                deviation = measured[:, j] - measured[:, j].mean()
                slope = np.zeros(3)
                for k in range(3):
                    covariance = np.mean(deviation * leads[:, k])
                    if abs(covariance) >= 2 / np.sqrt(Q) * leads[:, k].std() * deviation.std():
                        slope[k] = covariance / (deviation.var() + noise.var())
                after = np.array(
                    [leads.mean(0) + (deviation[q] + noise[q]) * slope for q in range(Q)]
                )
                won = [int((after.argmax(1) == k).sum()) if k != seed else -1 for k in range(3)]
                rival = cells[int(np.argmax(won))]
                runs.append((C[j], max(0.0, 0.02 - after.max(1).mean()), (B_p, n), rival))
        saved = [0.02 - run[1] for run in runs]
        best = max(0.8 * max(saved), 0.0005)
        expected = min(run for run, s in zip(runs, saved, strict=True) if s >= best)

        got = choose_next_run(ensemble, request, chosen=seed, regret=0.02)
        assert got is not None and got.regret_before == 0.02
        assert (got.allocation.C, got.allocation.B_p, got.allocation.n) == (
            expected[0],
            *expected[2],
        )
        assert got.regret_after == pytest.approx(expected[1], rel=1e-9)
        assert got.between == (cells[seed], expected[3])


def test_an_n_that_may_be_best_is_among_the_likely_cells():
    """Near where n = 16 overtakes n = 4 both are; where no cell is allowed all compete."""
    ensemble = load_ensemble(document(sd=0.05))
    request = AllocationRequest(1.5e4, None, {}, epsilon=0.005, extrapolate=False)
    C = np.full(6, 1.5e4)
    draws = ensemble.samples.curves_at(C, same_problems=False)
    best_n = ensemble.n[draws.argmax(1)]
    often = [n for n in (4, 16, 64) if (best_n == n).mean() >= 0.1]
    likely = _likely_cells(ensemble, request)
    expected = ensemble.samples.curves_at(C, same_problems=False).mean(0).argmax()
    assert likely.n == often and len(often) > 1
    assert (likely.B_p, likely.best_n) == (ensemble.B_p[expected], ensemble.n[expected])

    small = dataclasses.replace(request, B_max=64)  # 16 x 4 alone
    assert _likely_cells(ensemble, small).n == [4]
    nothing = dataclasses.replace(request, B_max=2)
    assert _likely_cells(ensemble, nothing).n == often
    without = load_ensemble(without_draws(document()))
    assert _likely_cells(without, request).n == [
        without.n[without.expected_rewards(1.5e4).argmax()]
    ]


def test_no_run_is_named_where_the_choice_is_clear_or_nothing_is_drawn():
    assert recommend(document(), 1e5).next_run is None
    assert recommend(without_draws(document(EQUAL)), 1e5).next_run is None
    one_cell = document({(16, 4): (0.6, 1.0, 2e3)}, sd=0.02)
    assert recommend(one_cell, 1e5).next_run is None


def test_the_words():
    r = recommend(document(EQUAL, sd=0.02), 1e5)
    risk, marks, following = describe_advice(r)
    extreme = {4: "smallest", 16: "largest"}[n := r.allocation.n]
    spread = "the spread between seeds, 0.010, is assumed"
    assert risk == f"Risk: {spread}; n = {n} is the {extreme} of the grid."
    assert re.match(
        (
            r"During the run: at C = 24,832 expect 0\.5\d\d, stop below 0\.5\d\d; at C = 49,920 "
            "expect "
        ),
        marks,
    )
    assert marks.endswith("That stops at most 10% of the runs that go as forecast.")
    assert re.match(
        r"Measure next: another seed of 16x(4|16) for M = \d+ \(\d\d,\d{3} rollouts\)\. It would ",
        following,
    )
    assert re.search(
        "decide between 16x(4 and 16x16|16 and 16x4), and lower the expected regret from 0.0",
        following,
    )


@pytest.mark.parametrize(
    ("seeds", "times", "form"), [(2, 12, "new runs"), (1, 5, "runs continued")]
)
def test_the_sweep_that_a_refused_budget_asks_for_is_enough(seeds, times, form):
    """As simulated: its last evaluation is up to a step of 1.3 below its budget."""
    # which ends at 6656
    budget = times * 6656
    first = world(n=(4, 16), seeds=seeds, problems=60, budget=8000)
    with refused() as refusal:
        recommend(fit(first.runs, replicates=40), budget)
    text = str(refusal.value)
    C_end = number_in(text, r"sweep.budget=(\d+)")
    asked = re.search(r"sweep.n=\[([\d,]+)\]", text)
    new_n = [int(v) for v in asked[1].split(",")] if asked else (4, 16)
    second = world(n=new_n, seeds=1, problems=60, budget=C_end)
    assert recommend(fit(second.runs, replicates=40), budget).times_measured <= 4.2
    spent = sum(run.points[-1].rollouts for run in second.runs)
    cost = number_in(text, r"takes at most ([\d,]+) rollouts")
    if not asked:
        spent -= sum(run.points[-1].rollouts for run in first.runs)
    assert form in text and 0.4 * cost < spent <= cost
    if asked:  # new seeds, so that both sweeps can be fitted together
        seed = 1000 * number_in(text, r"sweep.seed=(\d+)")
        renamed = [
            dataclasses.replace(r, cell=dataclasses.replace(r.cell, seed=seed)) for r in second.runs
        ]
        assert not list(run_conflicts(sorted([*first.runs, *renamed], key=lambda run: run.cell)))


def test_a_refused_budget_has_a_sweep_where_no_n_is_likely_and_no_cell_is_stable():
    # each is the best in about 1 of 40
    many = document({(16, n): (0.6, 1.0, 2e3) for n in range(2, 42)}, sd=0.02)
    with refused():
        recommend(many, 1e6)
    with refused():
        recommend(document(unstable=(16, 64)), 1e6)


@pytest.mark.parametrize("budget", [1e6, 1e9])
def test_owners_of_imported_logs_read_what_to_measure_elsewhere(budget):
    d = document()
    imported = d.model_copy(
        update={"runs": tuple(run.model_copy(update={"imported": True}) for run in d.runs)}
    )
    with refused():
        recommend(imported, budget)
