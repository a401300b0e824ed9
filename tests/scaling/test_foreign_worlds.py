"""benchmarks/foreign_worlds.py measures what it says: figures by hand, forms with their known
values, and the command end to end.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not part of this copy", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import foreign_forms as forms  # noqa: E402
import foreign_tables as tables  # noqa: E402
import foreign_worlds  # noqa: E402

import isojax  # noqa: E402
from isojax.core.nouns import Allocation  # noqa: E402


@pytest.mark.parametrize("name", forms.GROWTHS)
def test_every_form_starts_at_0_and_the_plain_ones_rise(name):
    for seed in range(5):
        g = forms.GROWTHS[name](np.random.default_rng(seed))
        x = np.concatenate([[0], np.geomspace(1e-4, 1e3, 200)])
        assert g(x)[0] == pytest.approx(0, abs=1e-9)
        assert (np.diff(g(x)).min() < -1e-3) == (name == "fall after a peak")


def test_half_of_the_gain_is_at_C_half():
    one = np.array([1.0])
    assert forms.frechet(one, 0.7)[0] == pytest.approx(0.5)
    assert forms.saturating_power(one, 0.3)[0] == pytest.approx(0.5)
    assert forms.delayed(one, 0.4, 1.3)[0] == pytest.approx(0.5)
    assert forms.log_linear(np.array([99.0]), 2.0)[0] == pytest.approx(1)


def test_the_mean_over_all_problems_is_the_curve_and_runs_share_the_problems():
    world = forms.random_world(np.random.default_rng([0, 4]), "frechet")
    z = np.random.default_rng(1).normal(0, world.spread, 400_000)
    for R in (0.02, 0.3, 0.97):
        assert expit(world.levels(np.array([R])) + z).mean() == pytest.approx(R, abs=2e-3)
    flat = {(16, 4): forms.TrueCurve(0.3, 0.6, 1.0, lambda x: np.full(np.shape(x), 1.0))}
    counted = forms.World(
        "flat",
        flat,
        np.array([0, 640.0]),
        {(16, 4): 640.0},
        1,
        0.0,
        difficulties=np.array([-9, 9.0]),
    )
    [run] = counted.runs(np.random.default_rng(0))
    assert [point.counts for point in run.points] == [(0, 4), (0, 4)] and run.points[-1].M == 10
    assert counted.C_end == 640 and counted.at_budget((16, 4), 700) == pytest.approx(0.6)


def test_risky_worlds_have_their_risk():
    rng = np.random.default_rng(0)
    same, unlike, early, slow = (forms.risky_world(rng, risk) for risk in forms.RISKS)

    assert len({id(curve) for curve in same.curves.values()}) == 1
    assert (unlike.seeds, unlike.run_sd) == (1, 0.025)
    shares = np.array(list(early.ends.values())) / early.targets[-1]
    assert sorted(shares)[len(shares) // 2 :] == [1.0] * (len(shares) - len(shares) // 2)
    assert (shares < 0.5).sum() == len(shares) // 2 and shares.min() >= 0.15
    for curve in slow.curves.values():
        # at 10 times C_half at least a quarter of the gain is still to come
        assert curve.growth(np.array([10.0]))[0] < 3 / 4


def recommended(times, **values):
    inside = {"truth": 0.5, "low": 0.4, "high": 0.6}
    outside = {"truth": 0.5, "low": 0.51, "high": 0.55}
    case = {
        "times": times, "chosen": [16, 8], "expected": 0.53, "cell": inside, "new_run": outside,
        "regret": 0.01,
        "regret_high": 0.02, "regret_best_measured": 0.03, "warning": True, "no_effect": False,
        "n_probability": [[4, 0.1, False], [8, 0.9, True]], "equal_n_regret": 0.022,
    }  # fmt: skip
    return {**case, **values}


def test_figures_by_hand():
    frontier = [{"truth": 0.5, "low": 0.4, "high": 0.5}, {"truth": 0.5, "low": 0.1, "high": 0.4}]
    first = {"frontier": frontier, "recommended": [recommended(1), recommended(4)]}
    other = recommended(
        4,
        expected=0.51,
        regret=0.03,
        warning=False,
        n_probability=[[4, 0.3, True], [8, 0.7, False]],
    )
    second = {"frontier": frontier, "recommended": [{"times": 1, "refused": "why"}, other]}
    held = tables.interval_figures([first, second])
    assert (held["frontier"], held["cell_4"], held["new_run_4"]) == (0.5, 1.0, 0.0)
    assert held["frontier_width"] == pytest.approx(0.2) and held["cell_1_width"] == pytest.approx(
        0.2
    )
    choice = tables.choice_figures([first, second])
    assert choice["answers"] == 2 and choice["regret"] == pytest.approx(0.02)
    assert choice["difference"] == pytest.approx(-0.01) and choice[
        "difference_interval"
    ] == pytest.approx((-0.02, 0))
    assert (choice["regret_covered"], choice["large_errors"]) == (0.5, 1)
    assert (choice["warned_large"], choice["warned_others"]) == (1.0, 0.0)
    said = tables.calibration(tables.best_n_cases([first, second], recommended_only=True))
    assert [(row["right"], row["cases"]) for row in said[3:]] == [(0.0, 1), (1.0, 2)]
    assert (
        sum(row["cases"] for row in tables.calibration(tables.best_n_cases([first, second], False)))
        == 6
    )
    small = tables.small_figures([first])
    assert (small["covered"], small["equal_covered"]) == (1.0, 1.0)


def test_promises_that_are_too_high_or_too_low_by_hand():
    too_high = {"truth": 0.5, "low": 0.52, "high": 0.56}
    too_low = {"truth": 0.5, "low": 0.40, "high": 0.49}
    cases = [
        recommended(1, expected=0.54, cell=too_high),
        recommended(1, expected=0.45, cell=too_low),
        recommended(1, expected=0.51),
        recommended(4),
    ]
    figures = tables.promise_figures([{"recommended": cases}], times=1)

    assert figures["answers"] == 3 and figures["inside"] == pytest.approx(1 / 3)
    assert figures["too_high"] == figures["too_low"] == pytest.approx(1 / 3)
    assert figures["error"] == pytest.approx((0.04 - 0.05 + 0.01) / 3)
    # widths .04, .09 and .2; misses of .02 and .01
    assert figures["score"] == pytest.approx((0.04 + 0.09 + 0.2 + 20 * (0.02 + 0.01)) / 3)
    assert figures["regret"] == pytest.approx(0.01)


def test_figures_of_the_advice_by_hand():
    run = {"cost": 0.5, "stated": [0.006, 0.002], "stated_by_refit": 0.003, "true": [0.004, 0.001]}
    cases = [{"stopped": [True, False], "next": None}, {"stopped": [False, False], "next": run}]
    row = tables.advice_figures(cases)
    assert (row["answers"], row["next_runs"], row["stopped"]) == (2, 1, 0.25)
    assert (row["stated_after"], row["true_before"], row["saved"]) == (
        0.002,
        0.004,
        pytest.approx(0.003),
    )


def test_the_next_run_is_simulated_and_fitted():
    rng = np.random.default_rng(6)  # a world whose advice names a next run
    world = forms.small_world(rng)
    runs = world.runs(rng)
    fit = isojax.fit(runs, forms.METRIC, options=isojax.FitOptions(replicates=20))
    case = foreign_worlds.advice_case(world, runs, fit, 1, rng)
    assert len(case["stopped"]) == 20 and 0 < case["next"]["cost"] <= 1
    before, after = case["next"]["stated"]
    assert 0 <= after < before and min(case["next"]["true"]) >= 0
    # twice the data
    record = foreign_worlds.next_record(world, Allocation(16, 4, 2 * world.C_end // 64), rng)
    assert (
        record.cell.seed == world.seeds and record.points[-1].rollouts == 2 * world.C_end // 64 * 64
    )
    assert {p.rollouts for p in runs[0].points} <= {p.rollouts for p in record.points}


def command(*words: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, str(BENCHMARKS / "foreign_worlds.py"), *words]
    return subprocess.run(program, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.slow
def test_the_command_writes_reads_and_refuses(tmp_path):
    out = str(tmp_path / "worlds.jsonl")
    done = command("--worlds", "2", "--seed", "3", "--replicates", "40", "--out", out)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in Path(out).read_text().splitlines()]
    assert [line["form"] for line in lines] == ["frechet", "logistic"] and not any(
        line["failed"] for line in lines
    )
    for line in lines:
        assert len(line["frontier"]) == 10 and [case["times"] for case in line["recommended"]] == [
            1,
            2,
            4,
        ]
        assert all(case["regret"] >= 0 for case in line["recommended"])
    again = command("--read", out)
    assert again.returncode == 0 and "Recommendation at 4 times the data" in again.stderr
    assert again.stderr.splitlines()[0] in done.stderr
    refused = command("--worlds", "1", "--out", out)
    assert refused.returncode == 2 and "expected a file that does not exist yet" in refused.stderr
    assert "stands in the files twice" in command("--read", out, out).stderr


@pytest.mark.parametrize(
    ("part", "title"),
    [("small", "Small sweeps"), ("stable", "Stable sweeps"), ("risky", "promise at 4x")],
)
def test_the_other_parts_print_a_line_and_a_table(part, title):
    done = command(f"--{part}", "--worlds", "1", "--replicates", "40")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["part"] == part and title in done.stderr
