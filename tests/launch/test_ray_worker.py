"""A process of a process group, without Ray and without a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from isojax.core.errors import RunFailed
from isojax.core.nouns import Cell
from isojax.launch.ray import ray_worker
from isojax.launch.ray.ray_actor import WorkerLost
from isojax.launch.ray.ray_worker import train_target
from isojax.launch.strategy import CellTarget
from isojax.runs.storage import exclusive_lock

TARGET = CellTarget(Cell(4, 4, 0), 64)


def train(folder: Path) -> None:
    setup, unused = SimpleNamespace(folder=folder), None
    train_target(cast(Any, setup), cast(Any, unused), cast(Any, unused), TARGET)


def test_a_cell_that_cannot_be_written_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "cells").touch()
    with pytest.raises(RunFailed, match="cannot make the folder"):
        train(tmp_path)


def test_a_cell_that_another_process_has_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_worker, "LOCK_TIMEOUT", 0.0)
    held = exclusive_lock(tmp_path / "cells" / TARGET.cell.name)
    with held, pytest.raises(WorkerLost, match="another process still writes"):
        train(tmp_path)
