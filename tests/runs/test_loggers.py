"""Curves follow the ledger: TensorBoard's files and wandb's runs hold its points once each,
whatever was killed."""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isojax.cli import app
from isojax.core.config import Config, load_config
from isojax.core.nouns import Cell, EvalPoint, RunRecord
from isojax.core.schedule import Stage
from isojax.runs import loggers
from isojax.runs.ledger import Ledger, read_run
from isojax.runs.logs.import_logs import read_logs
from tests.refusals import refused

CELL = Cell(16, 4, 3)
TARGETS = (0, 64, 128, 192)


def point(target: int) -> EvalPoint:
    metrics = {"avg@2": 0.25 + target / 1000, "best@2": 0.75, "hard/avg@2": 0.1}
    return EvalPoint(
        target,
        target // CELL.B,
        target,
        5 * target,
        metrics,
        (),
        2,
        {"reward": 0.3, "entropy": 1.5 - target / 1000},
    )


def config(*names: str) -> Config:
    return load_config("quickstart", [f"run.loggers=[{','.join(names)}]"])


def follow(folder: Path, targets: Sequence[int], *names: str) -> None:
    """A run that meets these evaluations, from its opening to its end."""
    ledger = Ledger(folder, CELL, "abc")
    with loggers.cell_loggers(ledger, CELL, config(*names)):
        for target in targets:
            ledger.append(point(target), seconds=2.5, devices=1)


def event_file(folder: Path) -> Path:
    (path,) = (folder / "tensorboard").iterdir()
    return path


def events(path: Path) -> list[Any]:
    """The events of a file, read by its lengths alone."""
    from tensorboardX.proto import event_pb2

    data, result = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        result.append(vars(event_pb2)["Event"].FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return result


def curves(path: Path) -> list[tuple[int, dict[str, float]]]:
    """(step, values) of each event that has numbers, in the order written."""
    result = [
        (e.step, {v.tag: v.simple_value for v in e.summary.value if v.WhichOneof("value")})
        for e in events(path)
    ]
    return [(step, values) for step, values in result if values]


def imported(paths: list[Path], format: str) -> RunRecord:
    (run,) = read_logs(
        paths, format, {"metric:hard/avg@2": "hard/avg@2", "train:entropy": "train/entropy"}
    ).runs
    return run


def check_imported(run: RunRecord, folder: Path) -> None:
    """What an importer made of a cell's curves is what the cell's ledger says, to float32."""
    specific = read_run(folder)
    assert run.cell == CELL and [(p.rollouts, p.M, p.tokens) for p in run.points] == [
        (C, C // 64, 5 * C) for C in TARGETS
    ]
    for ours, theirs in zip(specific.points, run.points, strict=True):
        assert theirs.metrics == pytest.approx(
            {name: ours.metrics[name] for name in ("avg@2", "hard/avg@2")}, rel=1e-6
        )
        assert theirs.train["entropy"] == pytest.approx(ours.train["entropy"], rel=1e-6)


def test_every_number_of_an_evaluation_stands_at_its_C(tmp_path: Path) -> None:
    follow(tmp_path, TARGETS, "tensorboard")
    result = curves(event_file(tmp_path))
    assert [step for step, _ in result] == list(TARGETS)
    last = {
        "avg@2": 0.442,
        "best@2": 0.75,
        "hard/avg@2": 0.1,
        "train/reward": 0.3,
        "train/entropy": 1.308,
        "M": 3,
        "tokens": 960,
    }
    assert result[-1][1] == pytest.approx(last)
    times = [e.wall_time for e in events(event_file(tmp_path)) if e.step]
    assert [b - a for a, b in pairwise(times)] == [2.5, 2.5]


def test_the_importer_reads_it_back_without_a_map(tmp_path: Path) -> None:
    follow(tmp_path, TARGETS, "tensorboard")
    check_imported(imported([tmp_path / "tensorboard"], "tensorboard"), tmp_path)


def test_the_importer_reads_C_of_a_run_that_samples_more_than_it_trains_on(tmp_path: Path) -> None:
    """As dynamic sampling does, and a growing n, which the user names to the importer."""
    growing = Cell(16, 4, 3, "grow", (Stage(0, 16, 4), Stage(64, 16, 8)))
    for name, cell in (("fixed", CELL), ("growing", growing)):
        ledger = Ledger(tmp_path / name, cell, "abc")
        with loggers.cell_loggers(ledger, cell, config("tensorboard")):
            for target in TARGETS:
                ledger.append(replace(point(target), rollouts=3 * target), seconds=2.5, devices=1)
    assert [p.rollouts for p in imported([tmp_path / "fixed"], "tensorboard").points] == [
        3 * C for C in TARGETS
    ]
    with refused(where="tensorboard"):
        imported([tmp_path / "growing"], "tensorboard")


def test_a_cells_settings_are_hyperparameters(tmp_path: Path) -> None:
    from tensorboardX.proto import plugin_hparams_pb2

    follow(tmp_path, TARGETS[:1], "tensorboard")
    tags = {
        v.tag: v.metadata.plugin_data
        for e in events(event_file(tmp_path))
        for v in e.summary.value
        if not v.WhichOneof("value")
    }
    parse = vars(plugin_hparams_pb2)["HParamsPluginData"].FromString
    session = parse(tags["_hparams_/session_start_info"].content).session_start_info.hparams
    assert (
        session["B_p"].number_value,
        session["n"].number_value,
        session["seed"].number_value,
    ) == (16, 4, 3)
    assert (
        session["rl.learning_rate"].number_value == config().cell.rl.learning_rate
        and session["task"].string_value == config().cell.task
    )
    experiment = parse(tags["_hparams_/experiment"].content).experiment
    assert {"B_p", "n", "seed"} <= {info.name for info in experiment.hparam_infos}
    assert "avg@2" in {info.name.tag for info in experiment.metric_infos}


@pytest.mark.parametrize("kept", ["all", "torn", "nothing", "a point too few", "something else"])
def test_a_kill_costs_no_point_and_doubles_none(tmp_path: Path, kept: str) -> None:
    """Killed after the ledger's line and before the curve's: the file a resume leaves is that of a
    run that was never killed.
    """
    folder = tmp_path / "cell"
    follow(folder, TARGETS[:2], "tensorboard")
    path = event_file(folder)
    few, inode = path.read_bytes(), path.stat().st_ino
    follow(folder, TARGETS[2:3], "tensorboard")
    # which no logger received
    Ledger(folder, CELL, "abc").append(point(192), seconds=2.5, devices=1)
    before = path.read_bytes()
    # appended to: a TensorBoard that is open goes on
    assert before.startswith(few) and path.stat().st_ino == inode
    left = {
        "all": before,
        "torn": before[:-5],
        "nothing": None,
        "a point too few": few,
        "something else": b"x" + before,
    }[kept]
    path.unlink() if left is None else path.write_bytes(left)
    follow(folder, (), "tensorboard")
    assert [step for step, _ in curves(event_file(folder))] == list(TARGETS)
    if left is not None:
        assert path.read_bytes().startswith(before) and event_file(folder) == path


def test_a_point_that_the_ledger_has_lost_leaves_the_curve(tmp_path: Path) -> None:
    follow(tmp_path, TARGETS, "tensorboard")
    ledger = tmp_path / "records.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    follow(tmp_path, (256,), "tensorboard")
    assert [step for step, _ in curves(event_file(tmp_path))] == [*TARGETS[:-1], 256]


def test_a_finished_cell_is_left_alone(tmp_path: Path) -> None:
    follow(tmp_path, TARGETS, "tensorboard")
    before = event_file(tmp_path).stat()
    follow(tmp_path, (), "tensorboard")
    after = event_file(tmp_path).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_no_logger_writes_nothing(tmp_path: Path) -> None:
    follow(tmp_path, TARGETS)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["records.jsonl", "timing.jsonl"]


def test_a_logger_that_fails_is_left_out_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A logger of one's own is a module's path; this one breaks at its third point."""
    (tmp_path / "my_curves.py").write_text(
        "from isojax.runs.loggers import logger\n"
        "class Mine:\n"
        "    def update(self, run):\n"
        "        if len(run.points) == 3: raise OSError('no route to host')\n"
        "        calls.append(len(run.points))\n"
        "    def close(self): calls.append('closed')\n"
        "calls = []\n"
        "@logger\ndef begin(folder, cell, config): return Mine()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    follow(tmp_path / "cell", TARGETS, "my_curves.begin", "tensorboard")
    import my_curves  # pyright: ignore[reportMissingImports]

    assert my_curves.calls == [1, 2]
    output = capsys.readouterr().err
    assert output.count("warning:") == 1 and "16x4-s3" in output and "no route to host" in output
    assert (
        len(read_run(tmp_path / "cell").points) == 4
        and len(curves(event_file(tmp_path / "cell"))) == 4
    )


def test_a_logger_that_does_not_exist_is_refused() -> None:
    with refused(where="loggers plug-in 'tensorbord'"):
        loggers.check_loggers(["tensorbord"])


def test_wandb_that_is_missing_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["isojax", "launch", "quickstart", "run.loggers=[tensorboard,wandb]"]
    )
    with pytest.raises(SystemExit, match="2"):
        app.main()
    output = capsys.readouterr().err
    assert (
        output.startswith("error: ")
        and output.count("\n") == 1
        and 'pip install "isojax[wandb]"' in output
    )
    assert not list(tmp_path.iterdir())


def test_wandb_without_a_login_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Refused(Exception): ...

    def login(verify: bool) -> None:
        raise Refused("No API key configured")

    setup = lambda: SimpleNamespace(settings=SimpleNamespace(mode="online"))  # noqa: E731
    monkeypatch.setitem(
        sys.modules, "wandb", SimpleNamespace(setup=setup, login=login, Error=Refused)
    )
    with refused(where="run.loggers"):
        loggers.check_loggers(["wandb"])


def test_wandb_offline_holds_each_point_once_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    loggers.check_loggers(["wandb"])
    try:
        follow(tmp_path, TARGETS[:2], "wandb")
        (first,) = (tmp_path / "wandb").glob("offline-run-*")
        follow(tmp_path, TARGETS[2:], "wandb")
        (second,) = (tmp_path / "wandb").glob("offline-run-*")
    finally:
        wandb.teardown()
    name = (tmp_path / "wandb" / "id").read_text()
    assert name.startswith(CELL.name)
    # Of two runs that begin in one second, wandb gives the later one's folder a number.
    assert (
        all(re.fullmatch(rf"offline-run-[\d_]+-{name}(-\d+)?", run.name) for run in (first, second))
        and first != second
    )
    check_imported(imported([second], "wandb"), tmp_path)


def test_wandb_online_goes_on_where_the_server_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has the steps to 64 of a ledger that has got to 128: what is sent begins at
    128."""
    sent: list[int] = []
    requested: dict[str, Any] = {}

    def init(**given: Any) -> SimpleNamespace:
        requested.update(given)
        return SimpleNamespace(
            offline=False,
            starting_step=65,
            log=lambda values, step: sent.append(step),
            finish=lambda: sent.append(-1),
        )

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Settings=dict))
    follow(tmp_path, TARGETS[:3])
    follow(tmp_path, TARGETS[3:], "wandb")
    assert sent == [128, 192, -1]
    assert (requested["group"], requested["name"], requested["resume"]) == (
        "quickstart",
        "16x4-s3",
        "allow",
    )
    assert (
        requested["config"]["n"] == 4 and requested["id"] == (tmp_path / "wandb" / "id").read_text()
    )
