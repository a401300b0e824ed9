"""Every command says first that a sweep shows nothing, and draws nothing from it."""

import json
from pathlib import Path

import numpy as np
import pytest

from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.runs.ledger import write_run
from tests.cli.conftest import Isojax, error_of

STEPS = range(5, 85, 5)
FIRST = "No run learnt anything: reward is 0 at all 128 evaluations of 8 runs."


def write_log(path: str, reward=lambda n, seed, step: 0.0) -> None:
    rows = [
        f"{n},32,{seed},{step},{reward(n, seed, step)}"
        for n in (4, 8, 16, 32)
        for seed in (0, 1)
        for step in STEPS
    ]
    Path(path).write_text("n,B_p,seed,step,reward\n" + "\n".join(rows) + "\n")


@pytest.fixture
def zeros(isojax: Isojax) -> Isojax:
    """A folder with the sweep `zeros`, the sweep `constant`, and a log of one run."""
    for name, value in (("zeros", 0.0), ("constant", 0.25)):
        write_log(f"{name}.csv", lambda n, seed, step, value=value: value)
        assert isojax("records", "import", f"{name}.csv", "--out", name)[0] == 0
    Path("run.csv").write_text("step,reward\n" + "".join(f"{step},0.0\n" for step in STEPS))
    return isojax


@pytest.mark.parametrize(
    "words",
    [
        ("fit", "zeros"),
        ("fit", "zeros", "--mode", "paper"),
        ("recommend", "zeros", "--budget", "150000"),
        ("quote", "zeros", "--reward", "0.1"),
    ],
)
def test_the_first_sentence_says_that_no_run_learnt_anything(
    zeros: Isojax, words: tuple[str, ...]
) -> None:
    code, out, _ = zeros(*words)
    assert code == 0 and out.splitlines()[0] == FIRST
    assert "gives way" not in out and "excluded" not in out and "supported" not in out
    assert "n makes no difference" not in out


def test_fit_json_has_the_flag_first_whatever_the_mode(zeros: Isojax) -> None:
    for words, name in (((), "fit.json"), (("--mode", "paper"), "fit-paper.json")):
        assert zeros("fit", "zeros", *words)[0] == 0
        flag = json.loads((Path("zeros") / name).read_text())["flags"][0]
        assert (flag["code"], flag["severity"]) == ("nothing_learnt", "error")
    code, out, _ = zeros("recommend", "zeros/fit-paper.json", "--budget", "150000")
    assert code == 0 and out.splitlines()[0] == FIRST


def test_recommend_shares_P_and_has_an_interval(zeros: Isojax) -> None:
    code, out, _ = zeros("recommend", "zeros", "--budget", "150000", "--json")
    answer = json.loads(out)
    assert code == 0 and answer["nothing_learnt"].startswith("no run learnt anything")
    assert answer["n_probability"] == {"4": 0.25, "8": 0.25, "16": 0.25, "32": 0.25}
    assert (answer["expected_reward"], answer["interval"]) == (0.0, [0.0, pytest.approx(0.03)])
    assert answer["regret"] is None and answer["growing"] is None
    _, out, _ = zeros("recommend", "zeros", "--budget", "150000")
    assert "0.000 to 0.030" in out and "100 rollouts (assumed" in out


def test_a_budget_far_beyond_is_refused_with_the_same_sentence(zeros: Isojax) -> None:
    assert "no run learnt anything" in error_of(zeros("recommend", "zeros", "--budget", "1e8"))


def test_no_price_is_quoted(zeros: Isojax) -> None:
    code, out, _ = zeros("quote", "zeros", "--reward", "0.1", "--json")
    answer = json.loads(out)
    assert code == 0 and answer["best_n"] is None and answer["highest"] == pytest.approx(0.03)
    assert all(cell["C"] is None and cell["p_never"] is None for cell in answer["cells"])
    assert "never seen" in zeros("quote", "zeros", "--reward", "0.1")[1]


def test_compare_says_it_of_each_sweep(zeros: Isojax) -> None:
    code, out, _ = zeros("compare", "zeros", "constant")
    first, second, *_ = out.splitlines()
    assert code == 0 and first == f"zeros: n{FIRST[1:]}"
    assert (
        second
        == "constant: no run learnt anything: reward is 0.25 at all 128 evaluations of 8 runs."
    )


def test_the_report_begins_with_it(zeros: Isojax) -> None:
    code, out, _ = zeros("report", "zeros")
    assert code == 0 and out.splitlines()[0] == FIRST
    page = (Path("zeros") / "report.html").read_text()
    answer = page[page.index('id="answer"') :]
    assert answer[: answer.index("</p>")].endswith(FIRST.replace(" = ", "\xa0=\xa0"))
    assert not (Path("zeros") / "figures" / "n_star.png").exists()


def test_watch_and_fit_curve_of_one_run(zeros: Isojax) -> None:
    watch = ("watch", "run.csv", "--map", "n=16,B_p=32", "--updates", "160")
    code, out, _ = zeros(*watch)
    assert code == 0
    assert (
        out.splitlines()[0]
        == "This run has not learnt anything so far: reward is 0 at all 16 evaluations."
    )
    seen = json.loads(zeros(*watch, "--json")[1])
    assert seen["forecast"] == 0.0 and seen["interval"][0] == 0.0 and seen["interval"][1] >= 0.03

    curve = ("fit-curve", "run.csv", "--x", "step", "--y", "reward")
    code, out, _ = zeros(*curve)
    assert (
        code == 0
        and out.splitlines()[0] == "Nothing was learnt: reward is 0 at all 16 evaluations."
    )
    fitted = json.loads(zeros(*curve, "--json")[1])
    assert (fitted["R0"], fitted["A"], fitted["exponent"], fitted["C_mid"]) == (
        0.0,
        0.0,
        None,
        None,
    )
    assert fitted["intervals"]["A"] == [0.0, pytest.approx(0.03)]


def test_watch_expects_one_hit_to_stay_one(isojax: Isojax) -> None:
    rewards = [0.0] * 14 + [0.001, 0.132]
    Path("run.csv").write_text(
        "step,reward\n" + "".join(f"{step},{r}\n" for step, r in zip(STEPS, rewards, strict=True))
    )
    _, out, _ = isojax("watch", "run.csv", "--map", "n=16,B_p=32", "--updates", "320", "--json")
    seen = json.loads(out)
    assert seen["nothing_learnt"] and seen["forecast"] == pytest.approx(np.mean(rewards))
    assert seen["interval"][1] >= 0.132  # which was measured
    _, out, _ = isojax("fit-curve", "run.csv", "--x", "step", "--y", "reward", "--json")
    fitted = json.loads(out)
    assert fitted["A"] == pytest.approx(np.mean(rewards))
    assert fitted["intervals"]["A"] == [pytest.approx(0, abs=1e-3), pytest.approx(0.132)]
    assert "one evaluation of 0.132 stands out" in fitted["nothing_learnt"]


def test_what_was_measured_once_is_not_said_to_be_never_seen(isojax: Isojax) -> None:
    write_log(
        "late.csv",
        lambda n, seed, step: (
            {75: 0.001, 80: 0.131}.get(step, 0.0) if (n, seed) == (16, 0) else 0.0
        ),
    )
    assert isojax("records", "import", "late.csv", "--out", "late")[0] == 0
    assert isojax("fit", "late")[0] == 0
    below, above = (
        " ".join(isojax("quote", "late", "--reward", r)[1].split()) for r in ("0.1", "0.3")
    )
    assert "never seen to stay" in below and "reached, with" not in below
    assert "never seen to be reached" in above and "at most 0.131" in above


def write_ledgers(folder: Path, train: dict[str, float], metrics: dict[str, float]) -> None:
    """A sweep of isojax's own, 50 problems with 4 samples, all wrong."""
    for n in (4, 8):
        cell, points = Cell(32, n, 0), []
        for C in range(0, 256 * 12, 256):
            recorded = {"avg@4": 0.0, **metrics}
            points.append(
                EvalPoint(C, C // cell.B, C, C, recorded, (0,) * 50, 4, train if C else {})
            )
        write_run(folder / "cells" / cell.name, RunRecord(cell, tuple(points), cell_hash="a"))


def test_the_ledger_says_why(isojax: Isojax) -> None:
    write_ledgers(Path("cut"), {"zero_variance": 1.0, "truncated": 1.0}, {"truncated": 1.0})
    code, out, _ = isojax("fit", "cut")
    sentence = " ".join(out.split("reward(C)")[0].split())
    assert code == 0
    assert sentence == (
        "No run learnt anything: avg@4 is 0 at all 24 evaluations of 2 runs; all responses were "
        "cut off at the length limit (truncated); in all groups the rewards are equal, so there is "
        "no gradient (zero_variance)."
    )
    assert "200 rollouts (problems x samples, by the records)" in " ".join(out.split())


def test_broken_runs_that_learnt_nothing_are_refused_with_the_sentence(isojax: Isojax) -> None:
    write_ledgers(Path("broken"), {"nonfinite_update": 1.0}, {})
    said = error_of(isojax("fit", "broken"))
    assert (
        said.startswith("error: no run learnt anything")
        and "every run is flagged as broken" in said
    )


def test_where_no_run_has_learnt_yet_no_n_leads(isojax: Isojax) -> None:
    """n = 32 alone learns, from step 40 on: C = 40,960."""
    write_log(
        "late.csv",
        lambda n, seed, step: (0.002 * (step - 40 + seed)) if n == 32 and step > 40 else 0.0,
    )
    assert isojax("records", "import", "late.csv", "--out", "late")[0] == 0
    code, out, _ = isojax("fit", "late")
    assert code == 0 and "any" in out
    assert not any("-" in line for line in out.splitlines() if line.startswith("│"))
    assert "supported" not in out and "excluded" not in out

    code, out, _ = isojax("recommend", "late", "--budget", "10000")
    assert code == 0
    assert (
        out.splitlines()[0]
        == "No n leads at this budget: up to here every evaluation of every cell shows reward 0."
    )
    assert "-0.000" not in out and "stop below" not in out


def test_a_written_config_says_first_that_nothing_was_learnt(zeros: Isojax) -> None:
    assert (
        zeros("recommend", "zeros", "--budget", "150000", "--write", "next.yaml", "--for", "verl")[
            0
        ]
        == 0
    )
    assert Path("next.yaml").read_text().splitlines()[0] == f"# {FIRST}"
