"""Validation on worlds whose truth is known, and on runs that do not allow it."""

import json
from dataclasses import replace
from functools import cache

import pytest

from isojax.scaling.allocate.curve_ensemble import load_ensemble
from isojax.scaling.curves.sweep_estimate import FitOptions
from isojax.scaling.validate import _judge_choice, validate
from tests.refusals import refused
from tests.scaling.documents import document
from tests.scaling.sweeps import run
from tests.scaling.synthetic import world

RISING = world(
    seeds=2, problems=100
).runs  # C up to 195072; doubling n adds .04 to the plateau, so the largest n matters
NO_INTERVALS, PAPER = FitOptions(replicates=0), FitOptions(mode="paper")
CALLS: list[tuple[int, int]] = []


@cache
def found():
    options = FitOptions(replicates=40, on_progress=lambda done, of: CALLS.append((done, of)))
    return validate(RISING, "avg@4", options=options)


def test_the_top_of_compute():
    r = found()["compute"]
    # From 48768 = 195072 / 4 on: the grid's 5 targets from 1024 * 1.3^15 up, two runs of 5 cells; a
    # run may have passed one by.
    assert r["possible"] and 50 <= r["measurements"] <= 60 and r["measurements"] == len(r["points"])
    assert all(p["C"] > 195072 / 4 for p in r["points"])
    errors = [p["predicted"] - p["measured"] for p in r["points"]]
    assert (
        r["mean_error"] == pytest.approx(sum(errors) / len(errors)) and abs(r["mean_error"]) < 0.02
    )
    assert (
        r["inside"]
        == sum(p["low"] <= p["measured"] <= p["high"] for p in r["points"]) / len(errors)
        and r["inside"] > 0.8
    )
    assert r["n_chosen"] in (16, 32) and r["n_best"] == 32 and 0 <= r["regret"] < 0.03


def test_the_largest_n():
    r = found()["largest_n"]
    assert (r["n"], r["matters"], r["warned"]) == (32, True, True) and r["n_chosen"] < 32
    assert {p["n"] for p in r["points"]} == {32} and r["inside"] is None
    assert 0.01 < r["gain"] < 0.06  # .04 in truth at the plateau, less before it
    assert "it mattered, and the fit without it warned" in r["says"]


def test_one_seed():
    r = found()["seed"]
    assert (
        {p["seed"] for p in r["points"]} == {1}
        and r["inside"] > 0.8
        and abs(r["mean_error"]) < 0.01
    )


def test_it_is_plain_data_and_says_how_far_it_is():
    assert json.loads(json.dumps(found())) == found()
    assert CALLS[-1] == (120, 120) and CALLS == sorted(CALLS)


def test_a_largest_n_that_makes_no_difference():
    r = validate(
        world("same", seeds=1, n=(4, 8), problems=100, B_p=(16,)).runs,
        "avg@4",
        options=NO_INTERVALS,
    )["largest_n"]
    assert not r["matters"] or r["gain"] < 0.02
    assert r["regret"] < 0.03


def test_one_n_that_is_left_warns_of_nothing():
    """It raises one_n, not largest_n_leads."""
    r = validate(
        world("same", seeds=1, n=(4, 8), problems=100, B_p=(16,)).runs,
        "avg@4",
        options=NO_INTERVALS,
    )
    assert not r["largest_n"]["warned"] and "would not have warned" in r["largest_n"]["says"]


def test_an_evaluation_a_little_beyond_the_C_of_the_others_counts():
    """Runs end at whole updates: here the best n at 1.001e5, where C is the 1.0005e5 of the
    second."""
    ends = ((4, 1e5, 0.5), (16, 1.0005e5, 0.55), (64, 1.001e5, 0.7))
    tracks = [run(16, n, 0, [2e4, 5e4, C], [0.3, 0.4, reward]) for n, C, reward in ends]
    result = _judge_choice(load_ensemble(document()), tracks)
    assert (result["n_chosen"], result["n_best"]) == (16, 64) and result["regret"] == pytest.approx(
        0.15
    )


def test_what_is_not_possible_says_why():
    one = [r for r in RISING if (r.cell.n, r.cell.seed) == (8, 0)]
    result = validate(one, "avg@4", options=NO_INTERVALS)
    assert result["compute"]["possible"] and result["compute"]["inside"] is None
    assert (
        result["largest_n"]["why"]
        == "only n = 8 was run, so nothing is left without the largest n. Run a second n."
    )
    assert "no cell has two runs" in result["seed"]["why"]
    few = [replace(r, points=(r.points[0], *r.points[-3:])) for r in one]
    assert not validate(few, "avg@4", options=NO_INTERVALS)["compute"]["possible"]
    with refused():
        validate(one, "train/none")


def test_an_n_alone_at_large_C_is_no_test_of_the_choice():
    """n = 32 alone beyond a quarter of the largest C: its choice there cannot be wrong, and is not
    counted as right."""
    single = [
        r if r.cell.n == 32 else replace(r, points=tuple(p for p in r.points if p.rollouts < 4e4))
        for r in RISING
    ]
    result = validate(single, "avg@4", options=NO_INTERVALS)
    assert result["compute"]["n_chosen"] is None and "cannot be judged" in result["compute"]["says"]
    assert result["seed"]["C"] < 4e4


def test_paper_mode_has_no_interval_to_be_inside_of():
    result = validate(RISING, "avg@4", options=PAPER)
    assert result["compute_axis"] == "rollouts"
    r = result["compute"]
    assert r["inside"] is None and r["mean_error"] > 0.01  # record-breaking points overshoot
    assert all(p["low"] is None for p in r["points"])


def test_other_compute():
    r = validate(RISING, "avg@4", "tokens", PAPER)["seed"]
    assert r["possible"] and max(p["C"] for p in r["points"]) == max(
        p.tokens for run in RISING for p in run.points
    )
