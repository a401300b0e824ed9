"""benchmarks/fit_quality.py measures what it says: figures by hand on worlds of two known curves,
and the command end to end.
"""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from isojax.scaling.result import CrossoverRow, FrontierRow, Law, NStarFit
from tests.scaling.documents import CONSTANT, FRONTIER, document, with_curve
from tests.scaling.synthetic import world
from tests.scaling.synthetic_curves import Hill

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not part of this copy", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import fit_quality  # noqa: E402
import fit_quality_world as one  # noqa: E402

# .4 x / (x + 1000) = .6 x / (x + 4000) at x = 5000.
CURVES = {2: Hill(0.2, 0.6, 1.0, 1000.0), 8: Hill(0.2, 0.8, 1.0, 4000.0)}


@pytest.fixture(scope="module")
def two():
    return world(n=(2, 8), seeds=2, samples=0, budget=64_000, curve=lambda B_p, n: CURVES[n])


def test_true_best_and_crossing(two):
    assert one.true_best(two, np.array([4990.0, 5010.0])).n.tolist() == [2, 8]
    assert one.true_crossing(two, 2, 8) == pytest.approx(math.log10(5000), abs=1e-5)
    low, high = one.measured_range(two)
    assert (low, 64_000 / 1.3 < high) == (1024, True)
    beyond = np.array([1e6])
    assert one.true_best(two, beyond).reward[0] == -np.inf
    assert one.true_best(two, beyond, in_range=False).reward[0] == pytest.approx(
        0.2 + 0.6 / (1 + 0.004)
    )


def test_in_range_figures_by_hand(two):
    C = np.array([2000.0, 20_000.0])
    true = one.true_best(two, C)
    near = one.Answer(true.n * 2, true.reward + 0.01)
    far = one.Answer(true.n * 4, true.reward - [0.02, 0.04])
    result = one.in_range(two, {"near": near, "far": far}, C)
    assert result["near"]["n_right"] == 1 and result["near"]["bias"] == pytest.approx(0.01)
    assert result["far"]["n_right"] == 0 and result["far"]["bias"] == pytest.approx(-0.03)
    specific = two.on_problems(16, 2, 2000.0) + two.on_problems(16, 8, 20_000.0)
    assert result["near"]["bias_on_problems"] == pytest.approx((near.reward.sum() - specific) / 2)


def test_hold_out_by_hand(two):
    """At C = 9000: .2 + .6 * 9/13 for n = 8, .2 + .4 * .9 for n = 2. At 36,000: .2 + .6 * .9 = .74,
    and .2 + .4 * 36/37.
    """
    hidden = np.array([9000.0, 36_000.0])
    right = one.Answer(np.array([8, 8]), np.array([0.6, 0.75]))
    wrong = one.Answer(np.array([8, 2]), np.array([0.6, 0.6]))
    result = one.held_out(two, {"right": right, "wrong": wrong}, hidden)
    reached = [float(two.on_problems(16, 8, C)) for C in hidden]
    errors = [abs(0.6 - reached[0]), abs(0.75 - reached[1])]
    assert result["right"]["error"] == pytest.approx(sum(errors) / 2) and result["right"][
        "error_at_end"
    ] == pytest.approx(errors[1])
    assert (result["right"]["within"], result["right"]["regret"]) == (1, 0)
    lost = 0.74 - 0.2 - 0.4 * 36 / 37
    assert (result["wrong"]["within"], result["wrong"]["within_at_end"]) == (0.5, 0)
    assert (result["wrong"]["regret"], result["wrong"]["regret_at_end"]) == (
        pytest.approx(lost / 2),
        pytest.approx(lost),
    )


def test_baselines_that_fit_nothing(two):
    """Without noise the best measured n is the truly best one; the reward is that of the evaluation
    below C."""
    C = np.array([2048.0, 40_000.0])
    answers = one.measured_answers(two.runs, C)
    assert answers["best_measured"].n.tolist() == [2, 8] and answers["middle"].n.tolist() == [8, 8]
    last = max(p.rollouts for p in two.runs[2].points if p.rollouts <= 40_000)
    assert answers["best_measured"].reward[1] == pytest.approx(float(CURVES[8].at(last)))
    short = one.cut(two.runs, 3000.0)
    assert all(p.rollouts <= 3000 for r in short for p in r.points) and len(short) == 4
    assert one.cut(two.runs, 100.0) == []
    last_of_short = one.last_measured(short, 2)
    assert last_of_short["best_measured"].n.tolist() == [2, 2] and last_of_short[
        "middle"
    ].n.tolist() == [8, 8]


def made_fit(law=CONSTANT.law, crossovers=(), frontier=FRONTIER):
    """A fit of CURVES with this law, these crossovers and this frontier."""
    made = document({(16, n): (c.A, 1.0, c.C_mid) for n, c in CURVES.items()})
    parts = {
        "n_star": NStarFit(law=law, no_effect=False),
        "crossovers": crossovers,
        "frontier": frontier,
    }
    return made.model_copy(update={"joint": made.joint.model_copy(update=parts)})


def test_the_paper_s_extrapolation():
    fit = made_fit(Law("sigmoid", 2.0, 5.0, 4.0, 1.0))
    result = one.extrapolated(fit, np.array([36_000.0, 1e9]))
    assert result.n.tolist() == [8, 8] and result.reward == pytest.approx(
        [0.74, 0.2 + 0.6 / (1 + 4e-6)]
    )
    assert one.law_n(fit, np.array([100.0, 1e9]), [2, 4, 8]).tolist() == [2, 8]


def test_intervals_are_pooled_and_open_ends_are_infinite(two):
    sums = (
        one.Sums()
        .with_case(1.0, 0.5, 2.0)
        .with_case(1.0, 1.5, 2.0)
        .with_case(1.0, None, 3.0)
        .with_case(1.0, 2.0, None)
    )
    assert sums == one.Sums(cases=4, hits=2, closed=2, width=2.0)
    crossovers = (
        CrossoverRow(n_low=2, n_high=8, C=5e3, low=4000.0, high=None),
        CrossoverRow(n_low=2, n_high=8, C=5e3, low=6000.0, high=7000.0),
    )
    frontier = tuple(
        FrontierRow(C=C, reward=0.5, n=2, B_p=16, low=0.1, high=0.9) for C in (1000.0, 64_000.0)
    )
    fit = made_fit(crossovers=crossovers, frontier=frontier)
    fit = with_curve(fit, (16, 2), A_interval=(0.59, 0.7))
    fit = with_curve(fit, (16, 8), A_interval=(0.0, 0.1), determined=False)
    result = one.crossover_coverage(two, fit)
    assert result == one.Sums(2, 1, 1, pytest.approx(math.log10(7 / 6)))
    assert (
        one.plateau_coverage(two, fit, True).hits == one.plateau_coverage(two, fit, False).hits == 1
    )
    assert one.plateau_coverage(two, fit, False).cases == 2
    assert one.frontier_coverage(two, fit, np.array([2000.0, 30_000.0])) == one.Sums(
        2, 2, 2, pytest.approx(1.6)
    )


def test_summary_means_shares_and_bounds():
    def line(seed, n_right, bias):
        inside = {
            "n_right": n_right,
            "bias": bias,
            "bias_on_problems": 0.0,
            "law_right": 1.0,
            "seconds": 2.0,
        }
        beyond = {
            "error": 0.01,
            "within": 1.0,
            "regret": 0.002,
            "error_at_end": 0.02,
            "within_at_end": 1.0,
            "regret_at_end": 0.003,
        }
        none = vars(one.Sums())
        some = {"cases": 10, "hits": 9, "closed": 5, "width": 1.0}
        return {
            "kind": "hill", "seed": seed, "mode": "hierarchical", "replicates": 9, "failed": None,
            "constant": False, "no_effect": None,
            "in_range": {"hierarchical": inside, "paper": inside | {"bias": 0.02}},
            "hold_out": {"hierarchical": beyond, "paper": beyond},
            "coverage": {"frontier": some, "crossovers": none, "A_determined": some},
            "monotone_rejected": None,
        }  # fmt: skip

    broken = {"kind": "hill", "seed": 2, "mode": "hierarchical", "replicates": 9, "failed": "why"}
    result = fit_quality.summary("hill", [line(0, 1.0, 0.004), line(1, 0.92, -0.002), broken])
    specific = result["methods"]["hierarchical"]
    assert (
        specific["n_right"],
        specific["worlds_right"],
        specific["bias"],
        specific["bias_abs"],
    ) == pytest.approx((0.96, 0.5, 0.001, 0.003))
    assert specific["bias_se"] == pytest.approx(0.003)
    assert result["coverage"]["frontier"] == {"share": 0.9, "cases": 20, "open": 10, "width": 0.2}
    met = {a["figure"]: a["met"] for a in result["asked"]}
    assert (
        met["n_right"]
        and met["bias"]
        and met["error"]
        and met["coverage.frontier"]
        and met["coverage.crossovers"] is None
    )
    assert (
        result["beaten"]["bias"] == {"paper": True}
        and result["failed"] == {"2": "why"}
        and result["worlds"] == 3
    )


def command(*words: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, str(BENCHMARKS / "fit_quality.py"), *words]
    return subprocess.run(program, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.slow
def test_the_command_writes_reads_and_refuses(tmp_path):
    out = str(tmp_path / "worlds.jsonl")
    done = command(
        "--worlds",
        "1",
        "--kinds",
        "hill,same",
        "--seed",
        "3",
        "--replicates",
        "40",
        "--jobs",
        "1",
        "--out",
        out,
    )
    assert done.returncode == 0, done.stderr
    hill, same = (json.loads(line) for line in done.stdout.splitlines())
    assert (
        hill["kind"] == "hill"
        and hill["seeds"] == [300_000, 300_000]
        and same["methods"]["hierarchical"]["n_right"] is None
    )
    assert (
        hill["coverage"]["frontier"]["cases"] == one.BUDGETS
        and hill["methods"]["hierarchical"]["seconds"] > 0
    )
    assert command("--read", out).stdout == done.stdout
    again = command("--worlds", "1", "--out", out)
    assert (
        again.returncode == 2
        and "expected a file that does not exist yet" in again.stderr
        and "Traceback" not in again.stderr
    )
    Path(out).write_text(Path(out).read_text() * 2)
    assert "stands in the files twice" in command("--read", out).stderr
    Path(out).write_text("{}\n")
    assert "worlds.jsonl:1: no line of a world" in command("--read", out).stderr
    assert "expected kinds among hill" in command("--kinds", "hil").stderr
    assert "--mode paper; expected one of hierarchical" in command("--mode", "paper").stderr
