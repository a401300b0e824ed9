"""A process of a gang, without Ray and without a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isojax.launch import member
from isojax.launch.member import CELL_FAILED, WORKER_LOST, RayWorker, CallResult
from isojax.launch.rounds import CellTarget
from isojax.storage import exclusive_lock
from isojax.types import Cell

GOAL = CellTarget(Cell(4, 4, 0), 64)


def trained(folder: Path) -> CallResult:
    one: Any = object.__new__(RayWorker)
    one._site = SimpleNamespace(folder=folder)
    return one.train(GOAL)


def test_a_cell_that_cannot_be_written_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "cells").touch()
    found = trained(tmp_path)
    assert found.kind == CELL_FAILED and "cannot make the folder" in found.message


def test_a_cell_that_another_process_has_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "LOCK_TIMEOUT", 0.0)
    with exclusive_lock(tmp_path / "cells" / GOAL.cell.name):
        found = trained(tmp_path)
    assert found.kind == WORKER_LOST and "another process still writes" in found.message
