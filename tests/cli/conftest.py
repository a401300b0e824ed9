"""What the tests of the commands share: a command's outcome, and a sweep of a world whose law is
known."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isojax.cli import app
from isojax.core.atomic_files import write_text
from isojax.core.config import Config, config_hash, load_config, save_config
from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.launch.process_group import SINGLE_PROCESS, ProcessGroup
from isojax.runs.ledger import Ledger, write_run
from tests.refusals import record
from tests.scaling.documents import document
from tests.scaling.synthetic import world

Outcome = tuple[int, str, str]
Isojax = Callable[..., Outcome]


@pytest.fixture
def isojax(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Isojax:
    """Run a command in an empty folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    def run(*words: str, main: Callable[[], Any] = app.main) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["isojax", *words])
        with pytest.raises(SystemExit) as e:
            main()
        assert isinstance(e.value.code, int)
        return (e.value.code, *capsys.readouterr())

    return run


def write_sweep(folder: Path, n: tuple[int, ...] = (2, 4, 8, 16, 32)) -> Path:
    """runs/NAME of a sweep whose n*(C) rises: config.yaml and ledgers. Few n are fitted, and drawn,
    in less time."""
    config = load_config(
        "quickstart",
        ["name=known", "sweep.B_p=[16]", "sweep.decode_slots=32", "sweep.microbatch=32"],
    )
    save_config(config, folder / "config.yaml")
    write_text(folder / "base" / "about.json", json.dumps({"checkpoint": "", "notes": []}))
    for run in world(seeds=2, problems=100, n=n).runs:
        ledger = Ledger(folder / "cells" / run.cell.name, run.cell, config_hash(config.cell))
        for point in run.points:
            ledger.append(point, seconds=1.0, devices=1)
    return folder


def write_timed_sweep(folder: Path) -> Path:
    """The fit written by hand, and the ledgers of its runs: a millisecond a rollout, on 2
    devices."""
    fit = document()
    write_text(folder / "fit.json", fit.model_dump_json())
    for row in fit.runs:
        cell = Cell(row.B_p, row.n, row.seed)
        updates = [i * 4096 // cell.B for i in range(row.points)]
        points = tuple(EvalPoint(M * cell.B, M, M * cell.B, 0, {"avg@4": 0.5}) for M in updates)
        hours = tuple(2 * 0.001 * point.rollouts / 3600 for point in points)
        write_run(
            folder / "cells" / cell.name, RunRecord(cell, points, device_hours=hours, devices=2)
        )
    return folder


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("known") / "runs" / "known")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, known: Path) -> list[tuple[Any, ...]]:
    """Stands in for the module that needs jax, and remembers what they were given."""
    seen: list[tuple[Any, ...]] = []

    def launch(
        config: Config,
        resume: bool,
        dry_run: bool,
        process_group: ProcessGroup,
        compile_first: bool | None = None,
    ) -> Path:
        assert process_group == SINGLE_PROCESS
        seen.append((config, resume, dry_run))
        return known

    def train(config: Config, resume: bool, dry_run: bool, process_group: ProcessGroup) -> Path:
        assert process_group == SINGLE_PROCESS
        seen.append((config, resume, dry_run))
        return known

    monkeypatch.setitem(
        sys.modules, "isojax.launch.local.local_runner", SimpleNamespace(launch=launch, train=train)
    )
    return seen


def error_of(outcome: Outcome) -> str:
    """The one message of a refused command, which tests/messages.txt has as well."""
    code, out, err = outcome
    assert code == 2 and out == ""
    assert err.startswith("error: ") and err.count("\n") == 1, err
    record(err.removeprefix("error: "))
    return err
