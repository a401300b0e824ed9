"""A process of a gang, without Ray and without a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isojax.launch import member
from isojax.launch.member import BROKEN, LOST, Member, Outcome
from isojax.launch.rounds import Goal
from isojax.storage import alone
from isojax.types import Cell

GOAL = Goal(Cell(4, 4, 0), 64)


def trained(folder: Path) -> Outcome:
    one: Any = object.__new__(Member)
    one._site = SimpleNamespace(folder=folder)
    return one.train(GOAL)


def test_a_cell_that_cannot_be_written_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "cells").touch()
    found = trained(tmp_path)
    assert found.kind == BROKEN and "cannot make the folder" in found.said


def test_a_cell_that_another_process_has_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "LOCKED", 0.0)
    with alone(tmp_path / "cells" / GOAL.cell.name):
        found = trained(tmp_path)
    assert found.kind == LOST and "another process still writes" in found.said
