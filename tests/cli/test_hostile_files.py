"""A sweep's own files, damaged so that their numbers and their nesting are no run's: commands
refuse, or do without."""

from __future__ import annotations

import errno
import gzip
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from isojax.cli.watched_log import WatchedLog
from isojax.core.atomic_files import write_error
from isojax.core.config import DataConfig, load_config, save_config
from isojax.core.nouns import Cell, EvalPoint, Leg, RunRecord, Spending
from isojax.launch.planner import plan_cells
from isojax.launch.strategy import training_rounds
from isojax.models.safetensors_io import weight_files
from isojax.runs.importers import csv, tensorboard, trl, wandb
from isojax.runs.ledger import read_runs, write_run
from isojax.runs.logs.find_logs import detect_format, logs_of_folder
from isojax.runs.spend_file import write_spending
from isojax.runs.storage import Lease, RemoteFolder
from isojax.tasks.problem_sources import open_source
from tests.cli.conftest import Isojax, error_of, write_timed_sweep
from tests.refusals import refused

CELL = "cells/8x2-s0"
HEADER: dict[str, Any] = {"kind": "cell", "schema": 1, "B_p": 8, "n": 2, "seed": 0, "cell_hash": ""}
POINT = {"kind": "eval", "target": 64, "M": 4, "rollouts": 64, "tokens": 9, "metrics": {"acc": 0.5}}
STATUS = {"time": 1e9, "host": "h", "pid": 7, "ended": False}
LEG: dict[str, Any] = {"cell": {"B_p": 8, "n": 2, "seed": 0}, "n": 2, "C_start": 0, "C_end": 64}


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def times(first: str, last: str = '"seconds": 1, "devices": 1') -> str:
    return (
        f'{{"kind": "timing", "target": 0, {first}}}\n{{"kind": "timing", "target": 64, {last}}}\n'
    )


# What holds: the command, the file, what is in it, and what the refusal says; empty where the
# command does without it.
CASES = {
    "flags 3,000 deep": ("status", f"{CELL}/health.json", "[" * 3000, "health.json, line 1"),
    "flags that are a list": ("status", f"{CELL}/health.json", "[]", "expected a JSON object"),
    "a start 3,000 deep": ("status", f"{CELL}/start.json", "[" * 3000, "start.json, line 1"),
    "a start without shares": ("status", f"{CELL}/start.json", '{"warnings": []}',
        "KeyError: 'shares'"),
    "n_max that is text": ("status", f"{CELL}/records.jsonl", lines(HEADER | {
        "schedule": "s", "stages": [[0, 8, 2]], "n_max": "x"}, POINT), "the schedule of"),
    "n_max that is infinite": ("fit", f"{CELL}/records.jsonl", lines(HEADER | {
        "schedule": "s", "stages": [[0, 8, 2]], "n_max": float("inf")}, POINT), "the schedule of"),
    "a stage that is infinite": ("fit", f"{CELL}/records.jsonl", lines(HEADER | {
        "schedule": "s", "stages": [[float("inf"), 8, 2]]}, POINT), "the schedule of"),
    "no stages": ("status", f"{CELL}/records.jsonl",
        lines(HEADER | {"schedule": "s", "stages": []}), "the schedule"),
    "400 digits of devices": ("status", f"{CELL}/timing.jsonl",
        times('"seconds": 1, "devices": ' + "9" * 400), ""),
    "seconds that are NaN": ("status", f"{CELL}/timing.jsonl", times(
        '"seconds": 1, "devices": 1', '"seconds": NaN, "devices": 1'), ""),
    "seconds near 0": ("status", f"{CELL}/timing.jsonl", times(
        '"seconds": 1, "devices": 1', '"seconds": 5e-324, "devices": 1'), ""),
    "a cell of B_p = 0": ("status", "cells/0x4-s0/records.jsonl", "", ""),
    "a driver's cell of n = 0": ("status", "status.json",
        json.dumps(STATUS | {"cells": {"1x0-s0": {}}}), ""),
    "a driver's cell of 5,000 digits": (
        "status", "status.json", json.dumps(STATUS | {"cells": {f"{'9' * 5000}x1-s0": {}}}), ""),
    "400 digits of attempts": ("status", "status.json", json.dumps(STATUS | {
        "cells": {"8x2-s0": {"attempts": 10**400}}}), "status.json"),
    "a driver's reward that is NaN": ("status", "status.json", json.dumps(STATUS | {
        "cells": {"8x2-s0": {"reward": float("nan")}}}), "status.json"),
    "no legs": ("status", "spend.json", json.dumps({"budget": 600, "metric": "avg@2", "legs": []}),
        "has no legs"),
    "a leg of B_p = 0": ("status", "spend.json", json.dumps({
        "budget": 600, "metric": "avg@2", "legs": [LEG | {"cell": {"B_p": 0, "n": 2, "seed": 0}}]}),
        "has no legs"),
    "a reward that is NaN": ("watch", f"{CELL}/records.jsonl", lines(
        HEADER, POINT | {"metrics": {"acc": float("nan")}}), "acc is nan at C = 64"),
    "a reward of 1e308": (
        "watch", f"{CELL}/records.jsonl", lines(HEADER, POINT | {"metrics": {"acc": 1e308}}),
        "1e+308"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_damaged_file(isojax: Isojax, tmp_path: Path, case: str) -> None:
    command, name, text, said = CASES[case]
    folder = tmp_path / "runs" / "x"
    settings = ["name=x", "sweep.B_p=[8]", "sweep.n=[2]", "sweep.seeds=1", "sweep.budget=6000"]
    save_config(load_config("quickstart", settings), folder / "config.yaml")
    points = (EvalPoint(0, 0, 0, 0, {"acc": 0.4}), EvalPoint(64, 4, 64, 9, {"acc": 0.5}))
    write_run(folder / CELL, RunRecord(Cell(8, 2, 0), points, device_hours=(0.1, 0.2)))
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    outcome = isojax(command, "runs/x")
    if said:
        assert said in error_of(outcome)
    else:
        assert outcome[0] == 0 and "8x2-s0" in outcome[1], outcome


def test_a_spending_of_another_config_is_not_gone_on_with(tmp_path: Path) -> None:
    config = load_config(
        "quickstart", ["sweep.strategy=spend", "sweep.seeds=1", "sweep.B_p=[8]", "sweep.n=[2]"]
    )
    cells = plan_cells(config.sweep)
    for cell, metric in ((Cell(16, 2, 0), "avg@4"), (cells[0], "best@4")):
        write_spending(tmp_path, Spending(config.sweep.budget, metric, (Leg(cell, 2, 0, 64),)))
        with refused():
            next(training_rounds(config, cells, tmp_path, []))


@pytest.mark.parametrize("budget", ["1e999h", "1e12h", "0h", ""])
def test_a_budget_in_time_that_no_run_has(isojax: Isojax, budget: str) -> None:
    assert "budget" in error_of(isojax("spend", "quickstart", "--budget", budget, "--dry-run"))


@pytest.mark.parametrize(
    "content", ["{}", "[]", "[" * 9000, '{"host": "h", "pid": Infinity, "token": "", "time": 1}']
)
def test_a_lock_at_a_url_that_is_none(content: str) -> None:
    remote = RemoteFolder(f"memory://{len(content)}")
    remote.write(".lock", content.encode())
    with refused(where="memory://"):
        Lease(remote).__enter__()


def test_a_log_that_goes_while_it_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("1")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    log = WatchedLog(tmp_path, None, {}, None)
    assert [Path(name).name for name, *_ in log.signature()] == ["here"]
    assert WatchedLog(tmp_path / "gone", None, {}, None).signature() == ()


def test_a_folder_that_may_not_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As chmod 000 does it, for a user who is not root."""
    closed = tmp_path / "cells"
    closed.mkdir()
    list_folder = os.scandir

    def scandir(path: Any = ".") -> Any:
        if Path(os.fsdecode(path)) == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(closed))
        return list_folder(path)

    monkeypatch.setattr(os, "scandir", scandir)
    readers: list[Callable[[], object]] = [
        lambda: read_runs([tmp_path]),
        lambda: detect_format([tmp_path]),
        lambda: open_source(f"parquet:{closed}", DataConfig()),
        lambda: weight_files(closed),
        *(partial(logs_of_folder, tmp_path, one.read) for one in (csv, wandb, trl, tensorboard)),
    ]
    for read in readers:
        with refused(where="cells"):
            read()


BIG = "9" * 20
OPTIONS = (
    "fit --replicates BIG", "fit --replicates -1", "fit --run-sd nan", "fit --run-sd inf",
    "quote --reward nan",
    "recommend --budget 1e5 --B-max BIG", "recommend --budget 1e5 --epsilon nan",
    "recommend --budget 1e5 --fix M=BIG",
    "recommend --budget 1e999h", "recommend --budget 5usd --price 1e-320", "quote --reward inf",
    "watch --goal nan", "watch --end BIG", "watch --updates BIG",
)  # fmt: skip


@pytest.mark.parametrize("words", OPTIONS)
def test_numbers_that_no_option_takes(isojax: Isojax, tmp_path: Path, words: str) -> None:
    folder = write_timed_sweep(tmp_path / "runs" / "x")
    command, *options = words.replace("BIG", BIG).split()
    before = sorted(folder.rglob("*"))
    code, out, err = isojax(
        command, "runs/x", *(["--run", "16x4-s0"] if command == "watch" else []), *options
    )
    assert (code, out) == (2, "") and "rror: " in err and "did not expect" not in err, err
    assert sorted(folder.rglob("*")) == before


def test_a_fit_that_cannot_be_kept_is_shown(
    isojax: Isojax, known: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_text(path: Path, text: str) -> None:
        raise write_error(path, PermissionError(13, "Permission denied"))

    monkeypatch.setattr("isojax.cli.saved_fits.write_text", write_text)
    code, out, err = isojax("fit", str(known), "--replicates", "0")
    assert (
        code == 0
        and "n = 8" in out
        and "Permission denied" in err
        and "This fit is not kept." in err
    )


def test_a_packed_log_is_watched_whole(isojax: Isojax, tmp_path: Path) -> None:
    text = "step,reward,n,B_p\n" + "".join(f"{i},0.{i:02d},4,4\n" for i in range(9))
    (tmp_path / "log.csv.gz").write_bytes(gzip.compress(text.encode()) + gzip.compress(b"\n"))
    code, out, err = isojax("watch", "log.csv.gz", "--updates", "20")
    assert code == 0 and "C = 128" in out, err
