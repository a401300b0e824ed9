"""A user's strategy: found by its name, asked round after round, and refused where it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from isojax.core.config import Config
from isojax.core.nouns import Cell, EvalPoint
from isojax.launch import strategy as sweep_strategy
from isojax.launch.planner import plan_cells
from isojax.launch.strategies import CellTarget
from isojax.launch.strategy import training_rounds
from isojax.runs.ledger import Ledger
from tests.refusals import refused

SWEEP = {"strategy": "mine", "B_p": (8,), "n": (2, 4), "budget": 4096}
CONFIG = Config().with_settings(sweep=SWEEP, cell={"eval": {"start": 64.0, "ratio": 2.0}})
CELLS = plan_cells(CONFIG.sweep)
HEAD = """\
from isojax.launch.rounds import Round, Stop
from isojax.launch.strategies import CellTarget, strategy


@strategy
def make(config, cells):
    class Mine:
        def ask(self, history):
            {ask}
    return Mine()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ISOJAX_PLUGIN_FOLDERS", "")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_strategy(folder: Path, ask: str) -> None:
    (folder / "mine.py").write_text(HEAD.format(ask=ask))


def train(folder: Path, target: CellTarget) -> None:
    cell = target.cell
    ledger = Ledger(folder / "cells" / cell.name, cell, "")
    for C in CONFIG.run_targets(target.C):
        if C not in ledger.targets:
            rollouts = cell.rollouts_to_reach(C)
            point = EvalPoint(C, rollouts // cell.B, rollouts, rollouts, {"avg@4": 0.1 * cell.n})
            ledger.append(point, seconds=1.0, devices=1)


def test_a_file_of_a_few_lines_decides_what_is_trained(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All runs to 256, then the one with the highest reward to 512 and 1024."""
    write_strategy(
        folder,
        "if history.rounds == 3: return Stop('the best run is long enough')\n"
        "            best = sorted(history.runs, key=lambda run: run.points[-1].metrics['avg@4'])\n"
        "            cells_now = [best[-1].cell] if best else cells\n"
        "            C = 256 * 2**history.rounds\n"
        "            return Round(tuple(CellTarget(cell, C) for cell in cells_now))",
    )
    trained = []
    # Each round by another process.
    for _ in range(4):
        rounds = training_rounds(CONFIG, CELLS, folder, [])
        targets = next(rounds, [])
        trained.append({target.cell.name: target.C for target in targets})
        for target in targets:
            train(folder, target)
    assert trained == [{"8x2-s0": 256, "8x4-s0": 256}, {"8x4-s0": 512}, {"8x4-s0": 1024}, {}]
    assert rounds.stop is not None and rounds.stop.explanation == "the best run is long enough"
    assert "sweep.strategy = mine: the best run is long enough" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ask", "problem", "expected"),
    [
        ("return {}['C']", "mine.py:9: KeyError: 'C'", "Round"),
        ("return None", "answers None", "Stop"),
        ("return Round(())", "answers Round", "one CellTarget or more"),
        ("return Round(((cells[0], 64),))", "answers Round", "CellTarget"),
        ("return Round((CellTarget(cells[0], 63),))", "C = 63 of 8x2-s0", "from 64"),
        ("return Round((CellTarget(cells[0], 64.0),))", "C = 64.0", "whole number"),
        ("return Round((CellTarget(cells[0], 4097),))", "C = 4097", "sweep.budget = 4096"),
        ("return Round((CellTarget(cells[0], 64),) * 2)", "twice", "each run once"),
        (
            "return Round((CellTarget(type(cells[0])(8, 9, 0), 64),))",
            "asks for 8x9-s0",
            "cells that it was made with",
        ),
    ],
)
def test_what_no_sweep_can_train_is_refused(
    ask: str, problem: str, expected: str, folder: Path
) -> None:
    write_strategy(folder, ask)
    with refused(where="sweep.strategy = mine, round 1", found=problem, expected=expected):
        next(training_rounds(CONFIG, CELLS, folder, []))
    assert list(folder.glob("*.json")) == []  # and not recorded


def test_a_round_that_would_never_end_the_sweep_is_refused(folder: Path) -> None:
    write_strategy(folder, "return Round((CellTarget(cells[0], 128),))")
    rounds = training_rounds(CONFIG, CELLS, folder, [])
    (target,) = next(rounds)
    train(folder, target)
    with refused(where="sweep.strategy = mine, round 2", found="8x2-s0 alone"):
        next(rounds)


def test_a_run_that_failed_is_no_progress(folder: Path) -> None:
    write_strategy(folder, "return Round((CellTarget(cells[0], 128),))")
    failures: list[tuple[Cell, Exception]] = []
    rounds = training_rounds(CONFIG, CELLS, folder, failures)
    assert next(rounds)
    failures.append((CELLS[0], OSError("no room")))
    with refused(where="sweep.strategy = mine, round 2", found="has failed"):
        next(rounds)


def test_sweep_total_rollouts_is_not_exceeded(folder: Path) -> None:
    write_strategy(folder, "return Round((CellTarget(cells[0], 64 * 2**history.rounds),))")
    config = CONFIG.with_settings(sweep={"total_rollouts": 300})
    rounds = training_rounds(config, CELLS, folder, [])
    trained = []
    for (target,) in rounds:
        train(folder, target)
        trained.append(target.C)
    assert trained == [64, 128, 256] and rounds.stop is not None
    assert rounds.stop.explanation == (
        "its next round would take 256 rollouts, and of sweep.total_rollouts 44 are left"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("@strategy\ndef make(config, cells): return 7\n", "it makes 7"),
        ("@strategy\ndef make(config, cells): return cells['x']\n", "TypeError"),
        ("def make(config, cells): return 7\n", "no function with the decorator @strategy"),
    ],
)
def test_a_file_that_makes_no_strategy_is_refused_before_any_work(
    text: str, problem: str, folder: Path
) -> None:
    (folder / "mine.py").write_text(f"from isojax.launch.strategies import strategy\n{text}")
    with refused(where="sweep.strategy", found=problem):
        sweep_strategy.check(CONFIG, CELLS)


def test_an_unknown_strategy_is_refused_with_the_known_ones(folder: Path) -> None:
    config = CONFIG.with_settings(sweep={"strategy": "adaptiv"})
    with refused(where="sweep.strategy", expected="adaptive, grid, spend", fix="'adaptive'"):
        sweep_strategy.check(config, CELLS)
