"""What `isojax spend` does where the runs of a round fail; nothing is trained."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

import pytest

from isojax.core.config import Config
from isojax.core.errors import RunFailed
from isojax.core.nouns import Cell, EvalPoint, Leg, Spending
from isojax.launch.planner import plan_cells
from isojax.launch.strategy import training_rounds
from isojax.runs.ledger import RECORDS_FILE, Ledger
from isojax.runs.spend_file import read_spending, write_spending
from isojax.train.loop import make_eval_grid
from tests.refusals import refused

SWEEP = {"strategy": "spend", "B_p": (8,), "n": (2, 4), "budget": 20000}
CONFIG = Config().with_settings(sweep=SWEEP, cell={"eval": {"start": 64.0, "ratio": 1.5}})


@pytest.mark.parametrize("evaluated", [(), (0,), (0, 64, 512)])
@pytest.mark.parametrize("diverged", [False, True])
def test_where_all_fail_nothing_is_decided_and_a_resume_trains_them_again(
    evaluated: tuple[int, ...], diverged: bool, tmp_path: Path
) -> None:
    """Out of memory before the first evaluation, or a full disk, or numbers that are not finite."""
    failures: list[tuple[Cell, Exception]] = []
    rounds = training_rounds(CONFIG, plan_cells(CONFIG.sweep), tmp_path, failures)
    pilots = next(rounds)
    assert len(pilots) == 2
    for target in pilots:
        ledger = Ledger(tmp_path / "cells" / target.cell.name, target.cell, "")
        for C in evaluated:
            ledger.append(
                EvalPoint(C, C // target.cell.B, C, C, {"avg@4": 0.25}, (1,), 4),
                seconds=1.0,
                devices=1,
            )
        if diverged:
            ledger.record_failure(M=70, reason="not finite")
        failures.append((target.cell, RunFailed("no room")))
    assert next(rounds, None) is None and read_spending(tmp_path) is None
    assert rounds.stop is not None and rounds.stop.reason == "failed"
    assert next(training_rounds(CONFIG, plan_cells(CONFIG.sweep), tmp_path, [])) == pilots


def test_a_full_disk_that_ends_one_pilot_costs_it_nothing(tmp_path: Path) -> None:
    failures: list[tuple[Cell, Exception]] = []
    rounds = training_rounds(CONFIG, plan_cells(CONFIG.sweep), tmp_path, failures)
    pilots = next(rounds)
    for target in pilots:
        ledger = Ledger(tmp_path / "cells" / target.cell.name, target.cell, "")
        for C in (0, 64, 729):
            ledger.append(
                EvalPoint(C, C // target.cell.B, C, C, {"avg@4": 0.25}, (1,), 4),
                seconds=1.0,
                devices=1,
            )
    failures.append((pilots[0].cell, RunFailed("no room")))
    assert next(rounds, None) is None and read_spending(tmp_path) is None


@pytest.mark.parametrize("legs", [0, 2])
def test_ledgers_beyond_what_spend_json_knows_are_refused(legs: int, tmp_path: Path) -> None:
    """Lost, or an older copy: the stages of the run that went on are not known, and it would train
    others."""
    rounds = training_rounds(CONFIG, plan_cells(CONFIG.sweep), tmp_path, [])
    pilots = next(rounds)
    if legs:
        pilot_legs = tuple(Leg(target.cell, target.cell.n, 0, target.C) for target in pilots)
        write_spending(tmp_path, Spending(CONFIG.sweep.budget, "avg@4", pilot_legs))
    for target, last_C in zip(pilots, (729, 1094), strict=True):
        ledger = Ledger(tmp_path / "cells" / target.cell.name, target.cell, "")
        for C in (0, 64, last_C):
            ledger.append(
                EvalPoint(C, C // target.cell.B, C, C, {"avg@4": 0.25}, (1,), 4),
                seconds=1.0,
                devices=1,
            )
    with refused():
        next(training_rounds(CONFIG, plan_cells(CONFIG.sweep), tmp_path, []))


@pytest.mark.parametrize("strategy", ["spend", "adaptive"])
def test_a_ledger_that_cannot_be_used_is_refused_not_left_out(
    strategy: str, tmp_path: Path
) -> None:
    settings = CONFIG.with_settings(sweep={"strategy": strategy})
    cells = plan_cells(settings.sweep)
    rounds = training_rounds(settings, cells, tmp_path, [])
    for target in next(rounds):
        # killed before its first point
        Ledger(tmp_path / "cells" / target.cell.name, target.cell, "")
    path = tmp_path / "cells" / cells[0].name / RECORDS_FILE
    with path.open("a") as file:
        file.write('{"kind": "eval", "rollouts": -1}\n')
    with refused(where="records.jsonl, line 2"):
        next(rounds)


def test_updates_beyond_the_end_of_a_leg_are_not_beyond_spend_json(tmp_path: Path) -> None:
    """The last update of a leg is whole: its evaluation may have a later target than the leg's
    end."""
    settings = CONFIG.with_settings(
        sweep={"n": (2, 4, 8, 16, 32, 64), "budget": 120174},
        cell={"eval": {"start": 64.0, "ratio": 1.05}},
    )
    cells = plan_cells(settings.sweep)
    pilots = next(training_rounds(settings, cells, tmp_path, []))
    beyond = 0
    for cell, target in ((target.cell, target.C) for target in pilots):
        grid = make_eval_grid(settings.with_settings(sweep={"budget": target}), cell)
        C = cell.rollouts_to_reach(target)
        last = grid[bisect_right(grid, C) - 1]
        beyond += last > target
        ledger = Ledger(tmp_path / "cells" / cell.name, cell, "")
        ledger.append(
            EvalPoint(last, C // cell.B, C, C, {"avg@4": 0.25}, (1,), 4), seconds=1.0, devices=1
        )
    assert beyond
    assert next(training_rounds(settings, cells, tmp_path, [])) == pilots
