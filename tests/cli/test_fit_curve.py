"""`isojax fit-law` and `isojax fit-curve` as a user meets them: what is printed and written, exit
codes, nothing overwritten.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from isojax.cli import app
from isojax.scaling.law import law_from_file

FIXTURES = Path(__file__).parents[1] / "scaling" / "fixtures"
CURVE = ("fit-curve", "run.csv", "--x", "rollouts", "--y", "val_acc")


@pytest.fixture
def isojax(monkeypatch, capsys, tmp_path):
    """Run a command in a folder with points.csv and run.csv: (exit code, standard output, standard
    error)."""
    for name in ("points.csv", "run.csv"):
        shutil.copy(FIXTURES / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["isojax", *map(str, words)])
        with pytest.raises(SystemExit) as e:
            app.main()
        return (e.value.code, *capsys.readouterr())

    return run


def test_a_frontier_is_fitted_and_what_carries_it_is_said(isojax, tmp_path):
    code, out, err = isojax("fit-law", "points.csv", "--where", "set=easy")
    assert (code, err) == (0, "")
    for part in (
        "n*(C): sigmoid",
        "36 points",
        "AICc (smallest best): constant",
        "500 replicates, seed 0",
        "note: only 7 distinct n",
    ):
        assert part in out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["points.csv", "run.csv"]


def test_a_frontier_as_json_in_both_modes(isojax, monkeypatch):
    monkeypatch.setattr(law_from_file, "REPLICATES", 100)
    code, out, _ = isojax("fit-law", "points.csv", "--where", "set=easy", "--json")
    result = json.loads(out)
    law = result["n_star"]
    assert code == 0 and result["mode"] == "hierarchical" and law["form"] == "sigmoid"
    truth = {"L": 6.0, "log10_C0": 5.5, "b": 2.0}
    assert all(
        law["intervals"][name][0] - 0.1 <= value <= law["intervals"][name][1] + 0.1
        for name, value in truth.items()
    )
    code, out, _ = isojax(
        "fit-law", "points.csv", "--where", "set=easy", "--mode", "paper", "--json"
    )
    assert (
        code == 0
        and json.loads(out)["mode"] == "paper"
        and json.loads(out)["n_star"]["intervals"] is None
    )


def test_a_line_is_shown_with_its_centre(isojax, tmp_path, monkeypatch):
    """log2 n* = b + k (log10 C - log10_C0): without log10_C0, b is no use."""
    monkeypatch.setattr(law_from_file, "REPLICATES", 100)
    (tmp_path / "line.csv").write_text("n,rollouts\n4,1e3\n8,1e4\n16,1e5\n32,1e6\n64,1e7\n")
    code, out, _ = isojax("fit-law", "line.csv")
    assert code == 0 and "linear" in out
    assert re.search(r"log10_C0 \W+5 ", out) and re.search(r"b \W+4 ", out)


def test_a_curve_and_its_picture(isojax, tmp_path):
    code, out, err = isojax(
        *CURVE, "--group", "seed", "--fit-below", "150000", "--plot", "out/curve.png"
    )
    assert (code, err) == (0, "")
    said = (
        "60 points of 2 seeds",
        "A (plateau)",
        "trial: fitted up to 36,480",
        "beyond 150,000: 22 points",
    )
    for part in (*said, "wrote out/curve.png"):
        assert part in out
    assert (tmp_path / "out/curve.png").read_bytes().startswith(b"\x89PNG")
    assert isojax(*CURVE, "--where", "seed=0", "--plot", "curve.pdf", "--json")[0] == 0
    assert (tmp_path / "curve.pdf").read_bytes().startswith(b"%PDF")


def test_a_curve_as_json(isojax):
    code, out, _ = isojax(*CURVE, "--where", "seed=1", "--fit-below", "2e5", "--json")
    result = json.loads(out)
    assert code == 0 and {
        "R0",
        "A",
        "exponent",
        "C_mid",
        "intervals",
        "points",
        "rmse",
        "determined",
        "trial",
        "beyond",
        "flags",
    } <= set(result)
    assert (
        result["A"] == pytest.approx(0.6, abs=0.03)
        and result["beyond"]["mean_absolute_error"] < 0.02
    )
    assert isojax(*CURVE, "--where", "seed=1", "--fit-below", "2e5", "--json")[1] == out


def test_a_picture_that_is_there_is_kept(isojax, tmp_path):
    (tmp_path / "curve.png").write_text("mine")
    code, out, err = isojax(*CURVE, "--where", "seed=0", "--plot", "curve.png")
    assert code == 2 and out == "" and "curve.png: exists already and is kept" in err
    assert (tmp_path / "curve.png").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fit-law", "none.csv"], "none.csv: cannot be read"),
        (["fit-law", "run.csv"], "run.csv, line 1: no column 'n'"),
        (
            ["fit-law", "points.csv", "--where", "set=eassy"],
            "matches no row; expected a value that set has (easy, hard)",
        ),
        (["fit-law", "points.csv", "--where", "st=easy"], "no column 'st'. The nearest is 'set'"),
        ([*CURVE], "line 43: rollouts = 0, as in line 2 already"),
        (
            [*CURVE, "--where", "seed=0", "--plot", "curve.gif"],
            "expected a file named .png or .pdf",
        ),
        (
            [*CURVE, "--where", "seed=0", "--plot", "run.csv/curve.png"],
            "run.csv/curve.png",
        ),
        (
            [*CURVE, "--where", "seed=0", "--fit-below", "1e9"],
            "--fit-below",
        ),
        ([*CURVE, "--where", "seed=0", "--fit-below", "nan"], "0 distinct rollouts"),
    ],
)
def test_refusals_are_one_line_and_exit_code_2(isojax, tmp_path, words, said):
    before = sorted(p.name for p in tmp_path.rglob("*"))
    code, out, err = isojax(*words)
    assert (
        code == 2
        and out == ""
        and err.count("error: ") == 1
        and said in err
        and "Traceback" not in err
    )
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "words",
    [
        ["fit-law"],
        ["fit-law", "points.csv", "runs/x"],
        ["fit-law", "points.csv", "--validate"],
        ["fit-law", "points.csv", "--metric", "avg@4"],
        ["fit", "runs/x", "--where", "set=easy"],
        ["fit-curve"],
        ["fit-curve", "run.csv"],
        ["fit-curve", "run.csv", "--x", "rollouts"],
        [*CURVE, "--fit-below", "x"],
    ],
)
def test_wrong_usage(isojax, words):
    code, _, err = isojax(*words)
    assert code == 2 and "Usage" in err


def test_help_shows_examples(isojax):
    assert (
        "isojax fit-curve log.csv --x rollouts --y val_acc --fit-below 250000"
        in isojax("fit-curve", "--help")[1]
    )
    assert "isojax fit-law points.csv --where set=easy" in isojax("fit-law", "--help")[1]
