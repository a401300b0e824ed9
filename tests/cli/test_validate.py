"""`isojax fit --validate`: the sentences, the file in the folder of the fit, and the one JSON
document."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from isojax.cli import app
from isojax.runs.ledger import Ledger
from tests.scaling.synthetic import world

Outcome = tuple[int, str, str]


@pytest.fixture
def fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Outcome]:
    """`isojax fit` in an empty folder that holds the sweep `known`: (exit code, standard output,
    standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    for run in world(seeds=1, n=(2, 8), problems=50, ratio=1.6).runs:
        ledger = Ledger(Path("known/cells") / run.cell.name, run.cell, "x")
        for point in run.points:
            ledger.append(point, seconds=1.0, devices=1)

    def run_fit(*words: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["isojax", "fit", *words])
        with pytest.raises(SystemExit) as e:
            app.main()
        assert isinstance(e.value.code, int)
        out, err = capsys.readouterr()
        return e.value.code, out, err

    return run_fit


def test_validate_prints_and_keeps(fit: Callable[..., Outcome]) -> None:
    code, out, err = fit("known", "--validate", "--mode", "paper")
    assert code == 0 and err == ""
    for part in (
        "validation: the fit's predictions of runs that it has not seen",
        "the top of compute: fitted up to C = ",
        "one run per cell: not possible: no cell has two",
    ):
        assert part in out
    remaining = json.loads(Path("known/validation-paper.json").read_text())
    assert (
        remaining["largest_n"]["n"] == 8
        and remaining["metric"] == "avg@4"
        and remaining["mode"] == "paper"
    )


def test_json_stays_one_document(fit: Callable[..., Outcome]) -> None:
    code, out, err = fit("known", "--validate", "--mode", "paper", "--compute", "tokens", "--json")
    document = json.loads(out)
    assert code == 0 and err == "" and document["compute"] == "tokens"
    assert document["validation"] == json.loads(
        Path("known/validation-tokens-paper.json").read_text()
    )
    assert "validation" not in json.loads(Path("known/fit-tokens-paper.json").read_text())


@pytest.mark.slow
def test_the_trials_take_the_options_of_the_fit(fit: Callable[..., Outcome]) -> None:
    """Without replicates there is no interval to be inside of; a larger run-to-run spread makes it
    wider."""
    assert fit("known", "--validate", "--replicates", "0")[0] == 0
    bare = json.loads(Path("known/validation.json").read_text())
    assert bare["replicates"] == 0 and bare["compute"]["inside"] is None

    def width(*words: str) -> float:
        assert fit("known", "--validate", "--replicates", "60", *words)[0] == 0
        last = json.loads(Path("known/validation.json").read_text())["compute"]["points"][-1]
        return last["high"] - last["low"]

    assert width("--run-sd", "0.1") > 2 * width()
