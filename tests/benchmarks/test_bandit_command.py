"""`isojax bandit` as a user meets it: table, JSON, files, notes, what it refuses."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from isojax.cli import app

Outcome = tuple[int, str, str]
SMALL = ("--n", "4,1", "--updates", "1000", "--p", "0.5", "--learning-rate", "1", "--repetitions", "128")


@pytest.fixture
def bandit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Outcome]:
    """`isojax bandit` in an empty folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["isojax", "bandit", *words])
        with pytest.raises(SystemExit) as e:
            app.main()
        assert isinstance(e.value.code, int)
        out, err = capsys.readouterr()
        return e.value.code, out, err

    return run


def test_a_table_and_its_files(bandit: Callable[..., Outcome]) -> None:
    code, out, err = bandit(*SMALL, "--out", "made/here")
    assert code == 0 and err == ""
    rows = [line.split("│")[1:-1] for line in out.splitlines() if line.startswith("│")]
    assert [row[0].strip() for row in rows] == ["1", "4"]
    for row in rows:  # t x suboptimality of equal wrong arms: 9 / 10 / learning rate
        assert float(row[1].split("±")[0]) == pytest.approx(-1, abs=0.1)
        assert float(row[2].split("±")[0]) == pytest.approx(0.9, abs=0.15)
    assert "at C = 1,000" in out and rows[0][-1].strip().endswith("*") and not rows[1][-1].strip().endswith(("*", "="))
    assert "wrote made/here/bandit.csv and made/here/bandit.png" in out and "note:" not in out
    assert Path("made/here/bandit.png").read_bytes().startswith(b"\x89PNG")
    lines = list(csv.DictReader(Path("made/here/bandit.csv").read_text().splitlines()))
    assert {line["n"] for line in lines} == {"1", "4"} and all(
        int(line["C"]) == int(line["n"]) * int(line["t"]) for line in lines
    )
    assert float(lines[0]["suboptimality"]) == pytest.approx(
        0.4, abs=0.1
    )  # half the answers right, .8 between right and wrong

    code, out, err = bandit(*SMALL, "--out", "made/here")
    assert code == 2 and out == "" and err.startswith("error: made/here/bandit.csv exists already and is kept")


def test_json_is_one_document_and_a_seed_gives_it_again(bandit: Callable[..., Outcome]) -> None:
    code, out, err = bandit(*SMALL, "--json", "--baseline", "leave_one_out", "--n", "2")
    found = json.loads(out)
    assert code == 0 and err == ""
    assert (found["arms"], found["p"], found["updates"], found["baseline"], found["limit"]) == (
        10,
        0.5,
        1000,
        "leave_one_out",
        0.9,
    )
    (row,) = found["curves"]
    assert row["n"] == 2 and row["t"][-1] == 1000 and row["C"][-1] == 2000
    assert row["slope"] == pytest.approx(-1, abs=0.1)
    assert row["suboptimality"][-1] == pytest.approx(found["exact"]["suboptimality"][-1], rel=0.3)
    assert found["budgets"][-1]["C"] == 2000 and found["budgets"][-1]["at"]["2"][0] == pytest.approx(
        row["suboptimality"][-1]
    )
    again = ("--json", "--baseline", "leave_one_out", "--n", "2", "--seed")
    assert bandit(*SMALL, *again, "0")[1] == out and bandit(*SMALL, *again, "1")[1] != out


def test_runs_that_settle_on_a_wrong_arm_are_told(bandit: Callable[..., Outcome]) -> None:
    code, out, _ = bandit(*SMALL, "--n", "1", "--p", "0.1", "--noise", "0.25", "--learning-rate", "4")
    assert code == 0 and "note: n = 1:" in out and "of the runs end on wrong arms" in out
    lost = next(line for line in out.splitlines() if line.startswith("│")).split("│")[4].strip()
    assert lost.endswith("%") and float(lost[:-1]) > 20
    code, out, _ = bandit(*SMALL, "--n", "1", "--updates", "100", "--learning-rate", "0.1", "--noise", "0")
    assert code == 0 and "note: n = 1: the slope is -" in out and "more --updates" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--n", "1,2,2"], "names a number twice"),
        (["--n", "1,x"], "--n: given 'x'"),
        (["--n", "0"], "--n: given '0'"),
        (["--updates", "10"], "expected 100 to 100000"),
        (["--updates", "1e6"], "expected 100 to 100000"),
        (["--learning-rate", "0"], "--learning-rate 0"),
        (["--learning-rate", "nan"], "--learning-rate nan"),
        (["--p", "1"], "p = 1 is given"),
        (["--noise", "0.5"], "noise = 0.5 is given"),
        (["--arms", "1"], "1 arms are given"),
        (["--n", "1,2", "--baseline", "leave_one_out"], "Leave 1 out of --n"),
        (["--n", "100000"], "--n 100000 with --repetitions 256"),
        (["--arms", "100000"], "--arms 100000 with --repetitions 256"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_written(
    bandit: Callable[..., Outcome], words: list[str], says: str
) -> None:
    code, out, err = bandit(*words, "--out", "made")
    assert code == 2 and out == "" and err.startswith("error: ") and says in err and err.count("\n") == 1
    assert not Path("made").exists()


def test_a_folder_that_cannot_be_made_is_refused(bandit: Callable[..., Outcome]) -> None:
    Path("file").write_text("mine")
    code, _, err = bandit(*SMALL, "--out", "file")
    assert code == 2 and "cannot make the folder file" in err and Path("file").read_text() == "mine"
