"""A run that broke is left out of fit, recommend, report and validation, named there, and put back
by --include-flagged.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from isojax.cli import app
from isojax.cli.saved_fits import read_fit
from isojax.core.nouns import Cell, RunRecord
from isojax.core.schedule import parse_schedule
from isojax.runs.ledger import read_runs, write_run
from isojax.scaling.result import RunHealth
from tests.scaling.synthetic import world

Isojax = Callable[..., tuple[int, str, str]]
BROKEN = {"B_p": 16, "n": 8, "seed": 1}


def collapsed(run: RunRecord) -> RunRecord:
    """The run, whose policy from its ninth evaluation on gets no answer right."""
    zero = tuple(np.zeros(len(run.points[0].counts), int).tolist())
    points = [
        p
        if i < 8
        else dataclasses.replace(p, metrics={"avg@4": 0.0}, counts=zero, train={"reward": 0.0})
        for i, p in enumerate(run.points)
    ]
    return dataclasses.replace(run, points=tuple(points))


@pytest.fixture
def isojax(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Isojax:
    """Run a command where runs/one holds three cells of two seeds, one run of which collapses, and
    runs/well the other five.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for run in world(seeds=2, n=(2, 8, 16), problems=60, ratio=1.5).runs:
        broken = (run.cell.n, run.cell.seed) == (8, 1)
        write_run(Path("runs/one/cells") / run.cell.name, collapsed(run) if broken else run)
        if not broken:
            write_run(Path("runs/well/cells") / run.cell.name, run)

    def run_command(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["isojax", *words])
        with pytest.raises(SystemExit) as e:
            app.main()
        assert isinstance(e.value.code, int)
        out, err = capsys.readouterr()
        return e.value.code, out, err

    return run_command


def test_a_fit_without_it_is_the_fit_of_the_others_but_for_its_words(isojax: Isojax) -> None:
    code, out, err = isojax("fit", "runs/one", "--replicates", "40", "--json")
    assert code == 0, err
    fit = json.loads(out)
    single = json.loads(isojax("fit", "runs/well", "--replicates", "40", "--json")[1])
    assert (
        fit["health"]["left_out"]
        and [row | BROKEN for row in fit["health"]["runs"]] == fit["health"]["runs"]
    )
    assert [flag["name"] for flag in fit["health"]["runs"][0]["flags"]] == ["collapsed"]
    assert fit["flags"][0]["text"].startswith(
        "B_p=16 n=8 seed 1 is left out of the fit (--include-flagged puts it back): collapsed from "
        "C = "
    )
    assert fit["flags"][1:] == single["flags"] and single["health"] == {
        "left_out": True,
        "runs": [],
    }
    assert (
        not fit["stability"][0]["stable"]
        and "n=8 seed 1: collapsed" in fit["stability"][0]["reason"]
        and single["stability"][0]["stable"]
    )
    # half of the runs of 16x8 are lost, which is no stable cell
    rest = [key for key in fit if key not in ("flags", "health", "stability")]
    assert [fit[key] for key in rest] == [single[key] for key in rest] and len(fit["runs"]) == 5


def test_it_can_be_put_back_into_every_answer(isojax: Isojax) -> None:
    code, out, err = isojax("fit", "runs/one", "--replicates", "20", "--include-flagged", "--json")
    fit = json.loads(out)
    assert code == 0 and len(fit["runs"]) == 6 and not fit["health"]["left_out"], err
    assert "fitted all the same, as asked: collapsed from C = " in fit["flags"][0]["text"]
    assert (
        Path("runs/one/fit-with-flagged.json").exists() and not Path("runs/one/fit.json").exists()
    )
    code, out, err = isojax(
        "recommend", "runs/one", "--budget", "1e5", "--fix", "B_p=16", "--include-flagged"
    )
    assert code == 0 and not Path("runs/one/fit.json").exists(), err
    code, _, err = isojax(
        "recommend",
        "runs/one/fit-with-flagged.json",
        "--budget",
        "1e5",
        "--fix",
        "B_p=16",
        "--include-flagged",
    )
    assert code == 2 and "expected the sweep's folder" in err


def test_a_flagged_run_with_a_schedule_leaves_a_fit_as_it_is(isojax: Isojax) -> None:
    (run,) = (r for r in read_runs(["runs/one"]) if (r.cell.n, r.cell.seed) == (8, 1))
    cell = Cell(16, 8, 0, "grow", parse_schedule("16x8, 16x16 from 100000000"))
    write_run(Path("runs/one/cells/grow-s0"), dataclasses.replace(run, cell=cell))
    assert isojax("fit", "runs/one", "--replicates", "20")[0] == 0
    code, _, err = isojax("recommend", "runs/one", "--budget", "1e5", "--fix", "B_p=16")
    assert code == 0 and "is made again" not in err, err


def test_a_fit_from_before_a_run_was_flagged_is_made_again(isojax: Isojax) -> None:
    assert isojax("fit", "runs/one", "--replicates", "20", "--include-flagged")[0] == 0
    old = json.loads(Path("runs/one/fit-with-flagged.json").read_text())
    del old["health"]  # as a fit.json of an isojax that had no flags: of all six runs
    Path("runs/one/fit.json").write_text(json.dumps(old))
    code, out, err = isojax("recommend", "runs/one", "--budget", "1e5", "--fix", "B_p=16")
    assert code == 0 and "is made again" in err
    assert (
        "note: B_p=16 n=8 seed 1 is left out of the fit (--include-flagged puts it back): "
        "collapsed from C = "
    ) in out.replace("\n", " ")
    health = json.loads(
        isojax("recommend", "runs/one", "--budget", "1e5", "--fix", "B_p=16", "--json")[1]
    )["health"]
    assert health["left_out"] and [row["seed"] for row in health["runs"]] == [1]
    assert len(json.loads(Path("runs/one/fit.json").read_text())["runs"]) == 5


def test_a_fit_from_before_runs_were_judged_is_read_as_one_of_healthy_runs(isojax: Isojax) -> None:
    assert isojax("fit", "runs/well", "--replicates", "20")[0] == 0
    path = Path("runs/well/fit.json")
    old = json.loads(path.read_text())
    del old["health"]
    path.write_text(json.dumps(old))
    assert read_fit(path.parent).health == RunHealth(left_out=True, runs=())
    assert json.loads(path.read_text()) == old  # and left as it is


def test_where_every_run_broke_there_is_no_fit(isojax: Isojax) -> None:
    code, out, err = isojax("fit", "runs/one/cells/16x8-s1")
    assert code == 2 and not out
    assert err.startswith(
        "error: every run is flagged as broken (1; runs/one/cells/16x8-s1/records.jsonl: collapsed "
        "from C = "
    )
    assert "--include-flagged" in err


def test_check_tells_of_it(isojax: Isojax) -> None:
    code, out, err = isojax("records", "check", "runs/one", "--json")
    assert code == 0, err
    assert any(
        "16x8-s1/records.jsonl is flagged: collapsed from C = " in note
        for note in json.loads(out)["notes"]
    )
