"""What a sweep's checkpoints take, and how many a disk has room for."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import Executor, Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isojax.core.config import Config, SweepConfig, save_config
from isojax.core.config.model import LoraConfig
from isojax.launch import checkpoint_plan
from isojax.launch.checkpoint_plan import (
    ASSUMED_RATE,
    fit_to_disk,
    measure_write_rate,
    plan_checkpoints,
)
from isojax.launch.local.checkpoint_bytes import checkpoint_bytes
from isojax.launch.planner import plan_cells
from isojax.launch.ray import checkpoint_room
from isojax.launch.time_estimate import GIB
from isojax.models.describe_sizes import count_parameters
from tests.refusals import refused

CONFIG = Config(name="here", sweep=SweepConfig(B_p=(8,), n=(4,), seeds=3))
CELLS = plan_cells(CONFIG.sweep)


def with_run(**settings: object) -> Config:
    return CONFIG.with_settings(run=settings)


def test_the_plan_of_a_model_of_8b_on_a_disk_of_100_mb_a_second() -> None:
    size = 12 * 8_000_000_000
    plan = plan_checkpoints(CONFIG.run, size, runs=4, concurrent_runs=1)
    assert plan.rate.bytes_per_second == ASSUMED_RATE == 100e6
    assert plan.write_seconds == 960
    assert plan.interval == 960  # the next waits until it is written
    assert plan.most_bytes == (4 * 2 + 1) * size
    assert plan.final_seconds == 4 * 960
    assert "run.checkpoint_seconds" not in plan.describe()

    # Two runs that write to it at a time take twice as long.
    assert plan_checkpoints(CONFIG.run, size, runs=4, concurrent_runs=2).interval == 1920

    fast = with_run(disk_rate=2000.0, keep_checkpoints=1).run
    plan = plan_checkpoints(fast, size, runs=4, concurrent_runs=2)
    assert plan.write_seconds == 48 and plan.interval == 96
    assert plan.most_bytes == (4 + 2) * size
    assert plan_checkpoints(fast, size // 100, runs=4, concurrent_runs=2).interval == 60


def test_an_interval_that_is_set_stays_also_where_training_waits_for_the_disk() -> None:
    run = with_run(checkpoint_seconds=30.0, disk_rate=1.0).run
    plan = plan_checkpoints(run, 31_000_000, runs=1, concurrent_runs=1)
    assert plan.interval == 30
    assert "run.checkpoint_seconds=30 is shorter" in plan.describe()
    assert (
        "is shorter" not in plan_checkpoints(run, 29_000_000, runs=1, concurrent_runs=1).describe()
    )


def test_a_disk_is_tried_by_a_file_that_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_plan, "TRIAL_BLOCK", 1000)
    clock = [0.0]

    def sync(file: int) -> None:
        clock[0] += 0.25  # each block takes so long

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(checkpoint_plan, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    folder = tmp_path / "runs" / "here"  # not made yet
    assert measure_write_rate(folder, 2500) == pytest.approx(3000 / 0.75)
    assert measure_write_rate(folder, 10**9) == pytest.approx(4000 / 1.0)  # a second at most
    assert measure_write_rate(folder, 500) == pytest.approx(500 / 0.25)
    assert not list(tmp_path.iterdir())

    full = plan_checkpoints(CONFIG.run, 1000, runs=1, concurrent_runs=1, folder=folder)
    assert full.rate.bytes_per_second == pytest.approx(4000)

    def fail(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    full = plan_checkpoints(CONFIG.run, 1000, runs=1, concurrent_runs=1, folder=folder)
    assert full.rate.bytes_per_second == ASSUMED_RATE


def set_free(gib: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=int(gib * GIB)))


def test_fewer_are_kept_where_the_disk_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three runs, of which two train at a time."""

    def kept(free_gib: float, config: Config = CONFIG) -> int:
        set_free(free_gib, monkeypatch)
        return fit_to_disk(config, CELLS, tmp_path / "runs" / "here", GIB, concurrent_runs=2)

    assert kept(8) == 2  # 3 x 2 + 2
    assert kept(7.9) == 1
    assert kept(5) == 1
    with refused(where="here"):
        kept(4.9)

    three = with_run(keep_checkpoints=3)
    assert kept(11, three) == 3  # as it is set, or not at all
    with refused(where="here"):
        kept(10.9, three)


def test_what_a_resumed_sweep_has_written_needs_no_room_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sparse files stand for checkpoints: their size is what counts."""
    folder = tmp_path / "runs" / "here"
    for update in (3, 6):
        checkpoint = folder / "cells" / CELLS[0].name / "checkpoint" / str(update)
        checkpoint.mkdir(parents=True)
        with (checkpoint / "data").open("wb") as file:
            file.truncate(GIB)
    save_config(CONFIG, folder / "config.yaml")

    set_free(6, monkeypatch)
    assert fit_to_disk(CONFIG, CELLS, folder, GIB, concurrent_runs=2) == 2
    set_free(5.9, monkeypatch)
    assert fit_to_disk(CONFIG, CELLS, folder, GIB, concurrent_runs=2) == 1

    # Runs that are done write nothing more.
    done = SimpleNamespace(cells=[SimpleNamespace(cell=cell, state="done") for cell in CELLS[1:]])
    monkeypatch.setattr(checkpoint_plan, "read_sweep_status", lambda *_, **__: done)
    set_free(1, monkeypatch)
    assert fit_to_disk(CONFIG, CELLS, folder, GIB, concurrent_runs=2) == 2


def test_a_driver_asks_another_process_how_large_a_checkpoint_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the driver of a Ray cluster does, here without the process."""

    class SameProcess(Executor):
        def __init__(self, *_: object) -> None:
            pass

        def submit(self, function: Any, /, *words: Any) -> Any:
            future: Future[Any] = Future()
            future.set_result(function(*words))
            return future

    monkeypatch.setattr(checkpoint_room, "ProcessPoolExecutor", SameProcess)
    model = {"vocab": 100, "layers": 2, "width": 32, "heads": 2, "kv_heads": 2, "head_dim": 16}
    config = CONFIG.with_settings(cell={"task": "addition", "model": model | {"mlp": 64}})
    parameters = count_parameters(config.cell.model)
    assert checkpoint_bytes(config) == 12 * parameters
    adapted = config.with_settings(cell={"model": {"lora": LoraConfig(rank=2, targets=("query",))}})
    assert checkpoint_bytes(adapted) == 12 * 2 * 2 * (32 + 32)  # A and B of two layers

    set_free(1e-9, monkeypatch)
    with refused(where="here"):
        checkpoint_room.plan_room(config, CELLS, tmp_path / "here", concurrent_runs=1)
    bucket = config.with_settings(run={"dir": "gs://bucket/runs"})
    assert checkpoint_room.plan_room(bucket, CELLS, tmp_path / "here", 1) == bucket
    set_free(7 * 12 * parameters / GIB, monkeypatch)
    kept = checkpoint_room.plan_room(config, CELLS, tmp_path / "here", concurrent_runs=1)
    assert kept.run.keep_checkpoints == 2
    set_free(4 * 12 * parameters / GIB + 1e-9, monkeypatch)
    kept = checkpoint_room.plan_room(config, CELLS, tmp_path / "here", concurrent_runs=1)
    assert kept.run.keep_checkpoints == 1

    capsys.readouterr()
    unknown = CONFIG.with_settings(cell={"task": "addition", "model": {"path": "not-here"}})
    assert checkpoint_room.plan_room(unknown, CELLS, tmp_path / "here", 1) == unknown
    assert "their size is not known here" in capsys.readouterr().err
