"""A process of a process group, without Ray and without a run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from isojax.core import registry
from isojax.core.config import load_config
from isojax.core.errors import InputError, RunFailed
from isojax.core.nouns import Cell
from isojax.launch.process_group import SINGLE_PROCESS
from isojax.launch.ray import ray_worker
from isojax.launch.ray.process_status import TOKEN_FILE, StatusCollector, WorkerLost
from isojax.launch.ray.ray_worker import train_target
from isojax.launch.strategies import CellTarget
from isojax.runs.storage import exclusive_lock
from tests.refusals import refused

TARGET = CellTarget(Cell(4, 4, 0), 64)


def train(folder: Path) -> None:
    setup, unused = SimpleNamespace(folder=folder), None
    train_target(cast(Any, setup), cast(Any, unused), cast(Any, unused), TARGET)


def test_what_fails_while_problems_are_labelled_is_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the sweep is refused then, and no cell ever reports."""

    def prepare(
        on_progress: Callable[[str, float], None], on_failure: Callable[[str, str], None]
    ) -> None:
        on_failure("timeout", "problem 3: no verdict within 5 s")
        raise InputError("none of its first 16 checks ended")

    monkeypatch.setenv(registry.FOLDERS_VARIABLE, "")
    monkeypatch.setattr(ray_worker, "start_jax", lambda config: None)
    monkeypatch.setattr(
        ray_worker, "open_sweep", lambda *_, **__: nullcontext(SimpleNamespace(prepare=prepare))
    )
    (tmp_path / "quickstart").mkdir()
    (tmp_path / "quickstart" / TOKEN_FILE).write_text("token")
    config = load_config("quickstart", [f"run.dir={tmp_path}"])
    status = StatusCollector()
    prepared = ray_worker.prepare_sweep(
        config, [], "token", SINGLE_PROCESS, "process-0", status, links={}
    )
    with refused(), prepared:
        pass
    assert status.pending.verifier_failures == {"timeout": "problem 3: no verdict within 5 s"}


def test_a_cell_that_cannot_be_written_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "cells").touch()
    with pytest.raises(RunFailed, match="cannot make the folder"):
        train(tmp_path)


def test_a_cell_that_another_process_has_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_worker, "LOCK_TIMEOUT", 0.0)
    held = exclusive_lock(tmp_path / "cells" / TARGET.cell.name)
    with held, pytest.raises(WorkerLost, match="another process still writes"):
        train(tmp_path)
