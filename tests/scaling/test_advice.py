"""What travels with a recommendation: its risk, and halting marks."""

import re

import numpy as np
import pytest

from isojax.report.wording import describe_advice
from isojax.scaling.allocate.recommend import recommend
from isojax.scaling.result import FitFlag, ForecastTrial
from tests.scaling.documents import SHAPES, document, hill, with_curve, without_draws

EQUAL = {(16, 4): (0.6, 1.0, 2e3), (16, 16): (0.6, 1.0, 2e3)}


def flag(code, severity="warning"):
    return FitFlag(code=code, severity=severity, text=f"the flag {code}")


def test_the_risk_replaces_the_warnings_that_it_states():
    d = document({key: shape for key, shape in SHAPES.items() if key[1] < 64})  # n = 16 leads and is the largest
    flags = tuple(map(flag, ("run_sd_assumed", "one_seed", "forecast_missed", "largest_n_leads", "unequal_lengths")))
    one_seed = tuple(run for run in d.runs if run.seed == 0)
    trial = ForecastTrial(departure_sd=0.02, C_limit=2.5e4, evaluations=9, mean_error=0.01, mean_absolute_error=0.019)
    d = d.model_copy(update={"flags": (*flags, flag("tie", "info")), "runs": one_seed, "forecast": trial})
    r = recommend(d, 4e5)
    assert r.risk == (
        "one seed per cell; the spread between seeds, 0.010, is assumed; n = 16 is the largest of the grid; this "
        "sweep's own forecasts to 4 times its data erred by 0.019"
    )
    assert r.further_warnings == ("the flag unequal_lengths",) and len(r.warnings) == 5
    near = recommend(d, 1e5)  # no forecast
    assert "forecasts" not in near.risk and "the flag forecast_missed" in near.further_warnings
    untried = d.model_copy(update={"forecast": ForecastTrial(departure_sd=0.02)})
    assert recommend(untried, 2e5).risk.endswith("this sweep's own forecasts to 4 times its data could not be tried")
    settings = document().intervals.model_copy(update={"run_sd_source": "2 seeds"})
    assert recommend(document().model_copy(update={"intervals": settings}), 1e5).risk == ""


def test_halting_marks_of_curves_that_are_known():
    """16x16 with M = 390: a quarter is M = 97, half 195. Draws of A have a standard deviation of .02, a new run .010
    and its evaluation .008 around them.
    """
    r = recommend(document(sd=0.02, replicates=20_000), 1e5)
    assert [(mark.M, mark.C) for mark in r.halting_marks] == [(97, 97 * 256), (195, 195 * 256)]
    rng, below = np.random.default_rng(1), np.zeros(20_000, dtype=bool)
    A = 0.7 + 0.02 * rng.standard_normal(20_000)  # true plateaus, each of a run with luck of its own
    luck = 0.01 * rng.standard_normal(20_000)
    for mark in r.halting_marks:
        progress = 1 / (1 + 8e3 / mark.C)
        assert mark.expected_reward == pytest.approx(hill(0.7, 1, 8e3, mark.C), abs=1e-4)
        sd = np.sqrt((0.02 * progress) ** 2 + 0.01**2 + 0.008**2)
        assert mark.stop_below == pytest.approx(mark.expected_reward - 1.96 * sd, abs=0.002)
        below |= 0.2 + (A - 0.2) * progress + luck + 0.008 * rng.standard_normal(20_000) < mark.stop_below
    assert 0.025 < below.mean() < 0.05 < r.false_stop == 0.1


def test_halting_marks_end_at_the_peak_and_need_draws_of_the_cell():
    peaked = with_curve(document(), (16, 16), C_peak=9e4)
    assert [mark.C for mark in recommend(peaked, 1e5).halting_marks] == [87 * 256, 175 * 256]
    late = with_curve(document(), (16, 16), C_low=3e4)
    assert [mark.M for mark in recommend(late, 1e5).halting_marks] == [195]  # nothing was measured at a quarter
    assert recommend(document(), 1e5, fix={"B_p": 20}).halting_marks == ()
    assert recommend(without_draws(document()), 1e5).halting_marks == ()


def test_the_words():
    r = recommend(document(EQUAL, sd=0.02), 1e5)
    risk, marks = describe_advice(r)
    assert risk.startswith("Risk: the spread between seeds, 0.010, is assumed; n = ")
    assert re.match(r"On its way: at C = 24,832 it should have 0\.5\d\d, below 0\.5\d\d stop; at C = 49,920 ", marks)
    assert marks.endswith("That stops at most 10% of the runs that go as forecast.")
