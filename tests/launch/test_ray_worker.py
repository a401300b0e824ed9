"""A process of a process group, without Ray and without a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isojax.core.nouns import Cell
from isojax.launch.ray import ray_worker
from isojax.launch.ray.ray_actor import CELL_FAILED, WORKER_LOST, CallResult
from isojax.launch.ray.ray_worker import RayWorker
from isojax.launch.strategy import CellTarget
from isojax.runs.storage import exclusive_lock

TARGET = CellTarget(Cell(4, 4, 0), 64)


def trained(folder: Path) -> CallResult:
    one: Any = object.__new__(RayWorker)
    one._setup = SimpleNamespace(folder=folder)
    return one.train(TARGET)


def test_a_cell_that_cannot_be_written_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "cells").touch()
    result = trained(tmp_path)
    assert result.kind == CELL_FAILED and "cannot make the folder" in result.message


def test_a_cell_that_another_process_has_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_worker, "LOCK_TIMEOUT", 0.0)
    with exclusive_lock(tmp_path / "cells" / TARGET.cell.name):
        result = trained(tmp_path)
    assert result.kind == WORKER_LOST and "another process still writes" in result.message
