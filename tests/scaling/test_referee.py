"""The referee: laws judged on rewards whose losses are known by hand, simulated worlds, and what a
user reads."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from isojax.report.page.law_section import law_section
from isojax.report.wording import describe_deciding_run, describe_verdicts
from isojax.scaling.curves.sweep_estimate import FitOptions
from isojax.scaling.fit import fit_all_runs
from isojax.scaling.law import referee
from isojax.scaling.law.referee import GRID_POINTS, LAWS, ComparedCells, Loss
from isojax.scaling.result import DecidingRun
from tests.scaling.synthetic import world
from tests.scaling.synthetic_curves import Hill

RISING, CONSTANT, TWO, HUNDREDS, BATCH = LAWS
HALF = GRID_POINTS // 2


def judged(law, rewards, noise=0.0):
    """The law's shares of draws (holds, fails) where each cell has a reward in the lower and the
    upper half of C."""
    halves = np.repeat(np.array(list(rewards.values()))[None], 400, axis=0)
    halves = halves + noise * np.random.default_rng(0).normal(size=(400, len(rewards), 1))
    cells = ComparedCells(
        tuple(rewards),
        np.geomspace(1e3, 1e5, GRID_POINTS),
        np.repeat(halves, HALF, axis=2),
        np.ones((len(rewards), GRID_POINTS), bool),
    )
    evidence = LAWS[law][1](cells)
    return evidence, float(np.mean(evidence.holds)), float(np.mean(evidence.fails))


def test_a_rise_is_worth_what_the_best_single_n_loses():
    """n = 4 leads by .02 in the lower half, n = 16 by .04 in the upper: the best single n, 16,
    loses .01."""
    rewards = {(8, 4): (0.52, 0.56), (8, 16): (0.50, 0.60)}
    evidence, holds, fails = judged(CONSTANT, rewards)
    assert "the best single n, 16, loses 0.010 (0.010 to 0.010)" in evidence.text and (
        holds,
        fails,
    ) == (0, 1)
    evidence, holds, fails = judged(RISING, rewards)
    assert "loses 0.000 (0.000 to 0.000), the best single n 0.010" in evidence.text and (
        holds,
        fails,
    ) == (1, 0)


def test_a_falling_n_excludes_a_rise_and_a_constant():
    falling = {(8, 16): (0.52, 0.56), (8, 4): (0.50, 0.60)}
    assert judged(RISING, falling)[1:] == judged(CONSTANT, falling)[1:] == (0, 1)


def test_a_rise_that_gains_less_than_epsilon_is_excluded():
    flat = {(8, 4): (0.504, 0.56), (8, 16): (0.50, 0.564)}
    assert judged(RISING, flat)[1:] == (0, 1) and judged(CONSTANT, flat)[1:] == (1, 0)


def test_two_hundreds_and_batch():
    rewards = {(8, 2): (0.5, 0.58), (8, 64): (0.5, 0.6), (8, 256): (0.4, 0.61)}
    assert "n = 2 loses 0.015" in judged(TWO, rewards)[0].text and judged(TWO, rewards)[2] == 1
    evidence, holds, fails = judged(HUNDREDS, rewards)  # the upper decade is the upper half
    assert "n = 256 leads the best n below 128 by 0.010" in evidence.text and (holds, fails) == (
        1,
        0,
    )
    equal = {(8, 4): (0.5, 0.6), (16, 2): (0.5, 0.6), (16, 4): (0.5, 0.7), (32, 2): (0.5, 0.7)}
    assert judged(BATCH, equal)[1:] == (1, 0)
    evidence, holds, fails = judged(BATCH, equal | {(32, 2): (0.5, 0.66)})
    assert "differ by 0.010" in evidence.text and (holds, fails) == (0, 1)


def test_noise_alone_excludes_no_law():
    """Seven equal n: the best of seven noisy ones is .013 above n = 2 in every draw's own terms."""
    rewards = {(8, n): (0.5, 0.5) for n in (2, 4, 8, 16, 32, 64, 128)}
    evidence, holds, fails = judged(TWO, rewards, noise=0.01)
    assert fails < referee.CONFIDENCE and holds < referee.CONFIDENCE
    # E max of seven normals is 1.35
    assert evidence.open_loss.mean() == pytest.approx(0.0135, abs=0.001)


def test_noise_of_the_mean_curves_is_distinguished_from_a_loss():
    rng = np.random.default_rng(1)
    is_excluded = []
    for _ in range(200):
        centre = 0.01 * rng.normal(size=(1, 5, 1))
        loss = Loss(
            lambda R: R.max(1).mean(-1) - R[:, 0].mean(-1),
            centre + 0.01 * rng.normal(size=(300, 5, 1)),
        )
        is_excluded.append(loss.is_large.mean() >= referee.CONFIDENCE)
    assert np.mean(is_excluded) <= 0.05


def test_a_missing_run_is_named():
    one_B_p = {(16, 4): (0.5, 0.6), (16, 64): (0.5, 0.6)}
    runs = {law: judged(law, one_B_p)[0].missing_run for law in (TWO, HUNDREDS, BATCH)}
    assert [(run.B_p, run.n) for run in runs.values()] == [(16, 2), (16, 128), (32, 2)]
    assert (
        runs[TWO].C == pytest.approx(1e5)
        and judged(HUNDREDS, {(16, 256): (0, 1)})[0].missing_run.n == 64
    )
    assert describe_deciding_run(runs[TWO]) == "B_p = 16, n = 2 to C = 100k"
    seed = DecidingRun(B_p=8, n=4, C=2000.0, explained=0.5)
    assert (
        describe_deciding_run(seed)
        == "B_p = 8, n = 4 to C = 2k (another seed; it explains 50% of the doubt)"
    )


def test_the_most_telling_run_is_of_the_cell_that_the_doubt_is_about():
    """Only n = 16 is uncertain, so its second seed tells most; it explains var / (var +
    run_sd^2)."""
    rng = np.random.default_rng(0)
    rewards = np.full((500, 2, GRID_POINTS), 0.5)
    rewards[:, 1] += 0.01 * rng.normal(size=(500, 1))
    cells = ComparedCells(
        ((8, 4), (8, 16)),
        np.geomspace(1e3, 1e5, GRID_POINTS),
        rewards,
        np.ones((2, GRID_POINTS)) > 0,
    )
    run = referee._most_telling_run(cells, rewards[:, 1, 0] - rewards[:, 0, 0], 0.01)
    assert (run.B_p, run.n, run.C) == (
        8,
        16,
        pytest.approx(1e3),
    ) and run.explained == pytest.approx(0.5, abs=0.05)


@pytest.fixture(scope="module")
def rising_fit():
    def curve(B_p, n):
        return Hill(0.3, 0.45 + 0.04 * np.log2(n), 1.2, 1500 * 1.8 ** np.log2(n))

    runs = world(curve=curve, B_p=(8, 16), n=(2, 8, 32), seeds=2, run_sd=0.005, ratio=1.5).runs
    return fit_all_runs(runs, "avg@4", options=FitOptions(replicates=100))


def test_a_fit_judges_all_laws_and_the_report_shows_them(rising_fit):
    verdicts = {row.law: row.verdict for row in rising_fit.referee}
    assert verdicts == {
        RISING: "supported", CONSTANT: "excluded", TWO: "excluded", HUNDREDS: "cannot tell",
        BATCH: "cannot tell"
    }  # fmt: skip
    assert describe_verdicts(rising_fit).startswith(
        "supported: n* grows with C; excluded: n* is one number"
    )
    page = law_section(rising_fit)
    assert (
        '<a href="https://arxiv.org/abs/2603.12151">arXiv:2603.12151</a>' in page
        and "no n of 128 or more" in page
    )
    assert type(rising_fit).model_validate_json(rising_fit.model_dump_json()) == rising_fit


def test_one_n_or_no_draws():
    runs = world(n=(4,), seeds=1, ratio=1.6).runs
    one_n = fit_all_runs(runs, "avg@4", options=FitOptions(replicates=20)).referee
    assert {row.text for row in one_n} == {"only one n was measured"} and one_n[
        0
    ].deciding_run.n == 8
    assert fit_all_runs(runs, "avg@4", options=FitOptions(replicates=0)).referee == ()


def test_equal_n_are_judged_by_a_curve_of_each_n():
    runs = world("same", n=(2, 8, 32), seeds=2, ratio=1.5, run_sd=0.01).runs
    fit = fit_all_runs(runs, "avg@4", options=FitOptions(replicates=50))
    [two] = [row for row in fit.referee if row.law == TWO]
    assert (
        fit.joint.n_star.no_effect
        and two.verdict != "excluded"
        and "(0.000 to 0.000)" not in two.text
    )


@pytest.mark.slow
def test_the_benchmark_prints_a_table():
    script = Path(__file__).parents[2] / "benchmarks" / "referee.py"
    if not script.is_file():
        pytest.skip("benchmarks/ is not part of this copy")
    command = [sys.executable, str(script), "--worlds", "1", "--laws", RISING, CONSTANT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count('"verdicts"') == 2 and "cannot tell" in done.stderr
