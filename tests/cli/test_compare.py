"""`isojax compare` as a user meets it: tables, JSON, figures, what it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from isojax.cli import app
from isojax.runs.ledger import Ledger
from tests.scaling.documents import SHAPES, document
from tests.scaling.synthetic import world

Outcome = tuple[int, str, str]


@pytest.fixture
def compare(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Outcome]:
    """`isojax compare` in a folder with two fits, a and b: (exit code, standard output, standard
    error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for name, more in (("a", 0.0), ("b", -0.05)):
        Path(name).mkdir()
        Path(name, "fit.json").write_text(
            document(
                {cell: (A + more, B, mid) for cell, (A, B, mid) in SHAPES.items()}
            ).model_dump_json()
        )

    def run(*words: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["isojax", "compare", *words])
        with pytest.raises(SystemExit) as e:
            app.main()
        assert isinstance(e.value.code, int)
        out, err = capsys.readouterr()
        return e.value.code, out, err

    return run


def test_tables_and_a_figure(compare: Callable[..., Outcome]) -> None:
    code, out, err = compare("a", "b/fit.json", "--out", "out/both.png")
    assert code == 0 and err == ""
    for part in (
        "best n (avg@4 against rollouts)",
        "frontier reward",
        "b reaches 0.617, -0.046 against a",
        "less)",
        "wrote out/both.png",
    ):
        assert part in out, out
    assert Path("out/both.png").read_bytes().startswith(b"\x89PNG")
    assert compare("a", "b", "--labels", "GRPO, [bold]DAPO", "--out", "both.pdf")[0] == 0
    assert Path("both.pdf").read_bytes().startswith(b"%PDF")


def test_json_is_one_document(compare: Callable[..., Outcome]) -> None:
    code, out, err = compare("a", "b", "--labels", "GRPO,[x]", "--json")
    result = json.loads(out)
    assert code == 0 and err == "" and [r["label"] for r in result["sweeps"]] == ["GRPO", "[x]"]
    assert result["sweeps"][1]["difference"]["high"] < 0 and result["C_high"] == pytest.approx(1e5)


@pytest.mark.slow
def test_sweeps_are_fitted_where_no_fit_is(compare: Callable[..., Outcome]) -> None:
    for seed in (0, 1):
        for run in world(seeds=1, n=(2, 8), problems=50, ratio=1.6, seed=seed).runs:
            ledger = Ledger(Path(f"sweep{seed}/cells") / run.cell.name, run.cell, "x")
            for point in run.points:
                ledger.append(point, seconds=1.0, devices=1)
    for words, said in (
        (["sweep0"], "two runs are called 'sweep0'"),
        (["sweep1", "--metric", ""], "has no metric ''"),
    ):
        code, _, err = compare("sweep0", *words)
        assert code == 2 and said in err and not list(Path().rglob("fit-*.json"))
    assert not Path("sweep1/fit.json").exists()
    code, out, _ = compare("sweep0", "sweep1", "--metric", "best@2", "--json")
    assert code == 0 and json.loads(out)["metric"] == "best@2"
    assert Path("sweep0/fit.json").exists() and Path("sweep1/fit-best@2.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a"], "only a is given; expected two sweeps or more"),
        (["a", "none"], "there is no none; expected a sweep's folder"),
        (["a", "b", "--labels", "x"], "--labels: given 'x', which has 1 names; expected 2"),
        (["a", "b", "--labels", "x,"], "--labels: given 'x,', which has 2 names"),
        (["a", "b", "--labels", "x,x"], "two runs are called 'x'"),
        (["a", "b/fit.json", "--metric", "best@4"], "a: no sweep's folder"),
        (["a/fit.json", "b", "--metric", "best@4"], "a fit of avg@4, not of best@4"),
        (["a", "b", "--out", "x.gif"], "expected a file named .png or .pdf"),
        (["a", "b", "--out", "kept.png"], "kept.png: exists already and is kept"),
    ],
)
def test_refusals_are_one_line_and_exit_code_2(
    compare: Callable[..., Outcome], words: list[str], said: str
) -> None:
    Path("kept.png").write_text("mine")
    before = sorted(p.name for p in Path().rglob("*"))
    code, out, err = compare(*words)
    assert (
        code == 2
        and out == ""
        and err.count("error: ") == 1
        and said in err
        and "Traceback" not in err
    )
    assert (
        sorted(p.name for p in Path().rglob("*")) == before
        and Path("kept.png").read_text() == "mine"
    )


def test_help_shows_examples(compare: Callable[..., Outcome]) -> None:
    assert "isojax compare runs/D6000 runs/D500" in compare("--help")[1]
