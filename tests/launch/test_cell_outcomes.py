"""A run's flags stand beside its ledger when it has ended, and on the screen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isojax.core.config import Config, SweepConfig
from isojax.core.nouns import Cell, EvalPoint
from isojax.launch.cell_outcomes import write_health
from isojax.launch.display import Display
from isojax.runs.ledger import Ledger
from isojax.runs.ledger_reader import read_run

CELL = Cell(8, 4, 0)
CONFIG = Config(name="here", sweep=SweepConfig(B_p=(8,), n=(4,)))


def ledger(folder: Path, rights: list[int]) -> Ledger:
    """A run of 200 validation problems, of which so many are solved by each of their 4 samples at each evaluation."""
    found = Ledger(folder, CELL, "x")
    for i, right in enumerate(rights):
        counts = tuple([4] * right + [0] * (200 - right))
        found.append(EvalPoint(100 * i, i, 100 * i, 0, {"avg@4": right / 200}, counts, 4), seconds=1.0, devices=1)
    return found


def test_a_run_that_ends_well_and_one_that_collapses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    well, broken = [40, 60, 80, 90, 100, 110], [40, 60, 80, 20, 10, 0]
    for name, rights in (("well", well), ("broken", broken)):
        ledger(tmp_path / name, rights)
        write_health(tmp_path / name, CELL, Display(CONFIG).show_flags)
    assert json.loads((tmp_path / "well/health.json").read_text()) == {"cell": "8x4-s0", "C": 500, "flags": []}
    found = json.loads((tmp_path / "broken/health.json").read_text())
    # .3: the mean of the first three evaluations
    words = "reward fell from 0.300 to 0.050 and stays there (base policy: 0.200)"
    assert found == {"cell": "8x4-s0", "C": 500, "flags": [{"name": "collapsed", "C": 300, "reason": words}]}
    said = capsys.readouterr().err
    assert (
        said.count("warning:") == 1
        and f"warning: cell 8x4-s0 collapsed from C = 300: {words}. Fits leave it out" in said
    )


def test_once_written_it_is_left_alone_and_the_ledger_stays_as_it_is(tmp_path: Path) -> None:
    ledger(tmp_path, [40, 60]).record_failure(3, "loss or gradient not finite in 1 of the updates 2 to 3")
    before = (tmp_path / "records.jsonl").read_bytes()
    write_health(tmp_path, CELL, Display(CONFIG).show_flags)
    written = (tmp_path / "health.json").stat()
    assert [flag["name"] for flag in json.loads((tmp_path / "health.json").read_text())["flags"]] == [
        "nonfinite_update"
    ]
    write_health(tmp_path, CELL, Display(CONFIG).show_flags)
    assert (tmp_path / "health.json").stat().st_mtime_ns == written.st_mtime_ns
    assert (tmp_path / "records.jsonl").read_bytes() == before and read_run(tmp_path).failure_reason


def test_a_run_without_an_evaluation_has_nothing_to_judge(tmp_path: Path) -> None:
    Ledger(tmp_path, CELL, "x")
    write_health(tmp_path, CELL, Display(CONFIG).show_flags)
    assert not (tmp_path / "health.json").exists()
