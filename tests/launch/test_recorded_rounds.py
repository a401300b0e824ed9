"""rounds.json: a round that a kill has interrupted is completed before the strategy is asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isojax.core.config import Config, save_config
from isojax.core.errors import RunFailed
from isojax.core.nouns import Cell, EvalPoint
from isojax.launch.planner import plan_cells
from isojax.launch.resume import holds_run
from isojax.launch.rounds import Round, Rounds, Stop
from isojax.launch.strategies import CellTarget, SweepHistory, strategy
from isojax.launch.strategy import training_rounds
from isojax.launch.sweep_status import CONFIG_FILE, read_sweep_status
from isojax.runs.ledger import Ledger
from isojax.runs.rounds_file import ROUNDS_FILE
from tests.refusals import refused

NAME = f"{__name__}.twice_as_far"
CONFIG = Config().with_settings(
    sweep={"strategy": NAME, "B_p": (8,), "n": (2, 4), "budget": 4096},
    cell={"eval": {"start": 64.0, "ratio": 2.0}},
)
CELLS = plan_cells(CONFIG.sweep)


class TwiceAsFar:
    """All runs to 256, then to twice the C of the longest: within a round, that is another C."""

    def ask(self, history: SweepHistory) -> Round[CellTarget] | Stop:
        runs = [run for run in history.runs if not run.failure_reason]
        if history.rounds and not runs:
            return Stop("every run has failed")
        if history.rounds == 4:
            return Stop("four rounds are enough")
        longest = max((run.points[-1].rollouts for run in runs), default=128)
        failed = {run.cell for run in history.runs if run.failure_reason}
        return Round(tuple(CellTarget(cell, 2 * longest) for cell in CELLS if cell not in failed))


@strategy
def twice_as_far(config: Config, cells: list[Cell]) -> TwiceAsFar:
    return TwiceAsFar()


def train(folder: Path, cell: Cell, C: int) -> None:
    """The ledger of a run up to the last evaluation within C."""
    ledger = Ledger(folder / "cells" / cell.name, cell, "")
    recorded = max(ledger.targets, default=-1)
    for target in CONFIG.run_targets(C):
        if target > recorded:
            rollouts = cell.rollouts_to_reach(target)
            point = EvalPoint(target, rollouts // cell.B, rollouts, rollouts, {"avg@4": 0.5})
            ledger.append(point, seconds=1.0, devices=1)


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / ROUNDS_FILE).read_text())


def rounds_of(
    folder: Path, failures: list[tuple[Cell, Exception]] | None = None
) -> Rounds[CellTarget, SweepHistory]:
    return training_rounds(CONFIG, CELLS, folder, [] if failures is None else failures)


def test_a_round_is_recorded_before_it_is_trained(tmp_path: Path) -> None:
    targets = next(rounds_of(tmp_path))
    assert record(tmp_path) == {
        "strategy": NAME,
        "rounds": [{target.cell.name: target.C for target in targets}],
        "stop": None,
    }
    # On a cluster that may come before config.yaml, and such a folder still is a new one.
    assert not holds_run(tmp_path, resume=False)


def test_a_kill_within_a_round_changes_no_round(tmp_path: Path) -> None:
    """Killed after each single run of the sweep, it has the rounds of one that was not."""
    whole = tmp_path / "whole"
    for targets in rounds_of(whole):
        for target in targets:
            train(whole, target.cell, target.C)

    broken = tmp_path / "broken"
    while targets := next(rounds_of(broken), []):  # each time another process
        train(broken, targets[0].cell, targets[0].C)
    assert record(broken) == record(whole)
    assert [set(targets.values()) for targets in record(whole)["rounds"]] == [
        {256},
        {512},
        {1024},
        {2048},
    ]
    for cell in CELLS:
        ledger = Path("cells", cell.name, "records.jsonl")
        assert (broken / ledger).read_bytes() == (whole / ledger).read_bytes()


def test_only_what_is_left_of_a_round_is_trained(tmp_path: Path) -> None:
    first = next(rounds_of(tmp_path))
    assert len(first) == 2
    train(tmp_path, first[0].cell, first[0].C)
    train(tmp_path, first[1].cell, first[1].C // 2)
    before = record(tmp_path)
    resumed = rounds_of(tmp_path)
    assert next(resumed) == [first[1]] and record(tmp_path) == before

    train(tmp_path, first[1].cell, first[1].C)
    next(resumed)
    assert len(record(tmp_path)["rounds"]) == 2


def test_a_run_that_diverged_is_not_completed(tmp_path: Path) -> None:
    first = next(rounds_of(tmp_path))
    train(tmp_path, first[0].cell, first[0].C)
    diverged = first[1].cell
    train(tmp_path, diverged, first[1].C // 2)
    Ledger(tmp_path / "cells" / diverged.name, diverged, "").record_failure(3, "not finite")
    resumed = next(rounds_of(tmp_path))
    assert [target.cell for target in resumed] == [first[0].cell] and resumed != [first[0]]


def test_the_end_says_why_and_what_failed(tmp_path: Path) -> None:
    save_config(CONFIG, tmp_path / CONFIG_FILE)
    failures: list[tuple[Cell, Exception]] = []
    rounds = rounds_of(tmp_path, failures)
    first = next(rounds)
    for target in first:
        train(tmp_path, target.cell, 64)
    failures += [(target.cell, RunFailed("no room")) for target in first]
    assert next(rounds, None) is None and rounds.stop is not None

    stop = record(tmp_path)["stop"]
    assert stop["reason"] == "done" and stop["explanation"] == rounds.stop.explanation
    assert stop["failed"] == {target.cell.name: "no room" for target in first}
    status = read_sweep_status(tmp_path, now=2e9)
    assert {(cell.state, cell.reason) for cell in status.cells} == {("failed", "no room")}

    # What failed is tried again by --resume, and until that ends the sweep has not.
    assert next(rounds_of(tmp_path)) == first
    assert record(tmp_path)["stop"] is None
    assert {cell.state for cell in read_sweep_status(tmp_path).cells} == {"interrupted"}


def test_the_record_of_another_strategy_says_nothing(tmp_path: Path) -> None:
    targets = next(rounds_of(tmp_path))
    other = record(tmp_path) | {"strategy": "adaptive", "rounds": [{"8x2-s7": 64}]}
    (tmp_path / ROUNDS_FILE).write_text(json.dumps(other))
    assert next(rounds_of(tmp_path)) == targets


@pytest.mark.parametrize("strategy", ["grid", "spend"])
def test_a_strategy_that_knows_what_comes_next_records_nothing(
    strategy: str, tmp_path: Path
) -> None:
    config = CONFIG.with_settings(sweep={"strategy": strategy})
    assert next(training_rounds(config, plan_cells(config.sweep), tmp_path, []))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        "{",
        '{"strategy": "NAME", "rounds": [{"8x2-s0": 0}]}',
        '{"strategy": "NAME", "rounds": [{"8x2-s0": 1e99}]}',
        '{"strategy": "NAME", "rounds": [{"9x9-s9": 64}]}',
        '{"strategy": "NAME", "rounds": 7}',
    ],
)
def test_a_record_that_is_none_of_this_sweep_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / ROUNDS_FILE).write_text(content.replace("NAME", NAME))
    with refused(where=ROUNDS_FILE, fix="Restore it"):
        next(rounds_of(tmp_path))


def test_the_targets_of_a_record_are_read_as_they_were_written(tmp_path: Path) -> None:
    first = next(rounds_of(tmp_path))
    assert next(rounds_of(tmp_path)) == first and isinstance(first[0], CellTarget)
