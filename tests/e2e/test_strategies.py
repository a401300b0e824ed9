"""Sweeps whose strategy chooses their runs, killed within rounds: the same rounds and the same bits
as without a kill. One strategy is that of docs/extending.md."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command_line import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.seconds(40)]


def write_example(folder: Path) -> None:
    page = (REPOSITORY / "docs" / "extending.md").read_text()
    code = re.search(r"```python\n# halving.py\n(.*?)```", page, re.S)
    assert code is not None
    (folder / "halving.py").write_text(code[1])


def count_lines(run: Path) -> int:
    """Evaluations of all runs so far."""
    return sum(path.read_bytes().count(b"\n") for path in run.glob("cells/*/records.jsonl"))


def kill_at(isojax: Any, name: str, lines: int, *command: str) -> None:
    """Go on with a sweep, and kill -9 it once its ledgers have so many lines."""
    process = isojax.fork(*command, f"name={name}", "--resume")
    while count_lines(isojax.run(name)) < lines:
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    process.kill()
    process.communicate()


def check_kills_change_no_round(isojax: Any, in_first_round: int, *command: str) -> None:
    """Killed within the first round, at so many lines, and within the last one, and resumed, a
    sweep equals the one that has run as `whole`."""
    whole = isojax.run("whole")
    record = json.loads((whole / "rounds.json").read_text())
    assert len(record["rounds"]) > 1 and record["stop"]["reason"] == "done"

    for lines in (in_first_round, count_lines(whole) - 2):
        kill_at(isojax, "killed", lines, *command)
    isojax.swept(*command, "name=killed", "--resume")
    assert isojax.ledgers("killed") == isojax.ledgers("whole")
    assert json.loads((isojax.run("killed") / "rounds.json").read_text()) == record
    (sweep,) = json.loads(isojax.quick_ok("status", "runs/killed", "--json").stdout)["sweeps"]
    assert {cell["state"] for cell in sweep["cells"]} == {"done"}


def test_kills_change_no_round_of_an_adaptive_sweep(isojax: Any) -> None:
    command = ("isojax.launch", "tiny.yaml", "sweep.strategy=adaptive", "sweep.seeds=1")
    isojax.swept(*command, "name=whole")
    check_kills_change_no_round(isojax, 5, *command)
    frontiers = [isojax.run(name) / "frontier.json" for name in ("whole", "killed")]
    assert frontiers[0].read_bytes() == frontiers[1].read_bytes()


def test_a_strategy_of_a_file_trains_the_better_half_twice_as_far(isojax: Any) -> None:
    write_example(isojax.folder)
    command = ("isojax.launch", "tiny.yaml", "sweep.strategy=halving")
    done = isojax.swept(*command, "name=whole")
    assert "sweep.strategy = halving: the best runs have reached sweep.budget" in done.stderr
    rounds = json.loads((isojax.run("whole") / "rounds.json").read_text())["rounds"]
    assert [(len(targets), set(targets.values())) for targets in rounds] == [
        (4, {312}),
        (2, {625}),
        (1, {1250}),
        (1, {2500}),
    ]
    # Of the second round those with the highest rewards after the first.
    reward_at = {}
    for cell in rounds[0]:
        rows = [row for row in isojax.rows(cell, "whole") if row["target"] <= 312]
        reward_at[cell] = rows[-1]["metrics"]["avg@8"]
    best = sorted(reward_at.values(), reverse=True)[:2]
    assert sorted((reward_at[cell] for cell in rounds[1]), reverse=True) == best
    check_kills_change_no_round(isojax, 10, *command)


def test_a_strategy_that_makes_no_sense_is_refused_before_any_work(isojax: Any) -> None:
    command = ("isojax.launch", "tiny.yaml", "name=none")
    isojax.refused(*command, "sweep.strategy=halfing", saying=["sweep.strategy", "'halfing'"])
    (isojax.folder / "empty.py").write_text("")
    isojax.refused(*command, "sweep.strategy=empty", saying=["the decorator @strategy"])
