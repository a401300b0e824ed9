"""`isojax status`: where a sweep stands, read from its files alone."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isojax.cli import app
from isojax.cli.commands import status_command
from isojax.core.config import load_config, save_config
from isojax.core.errors import RunFailed
from isojax.core.nouns import Cell, EvalPoint, Leg, Spending
from isojax.launch.planner import plan_cells
from isojax.launch.status_file import (
    STATUS_FILE,
    CellStatus,
    DriverStatus,
    read_status,
    write_status,
)
from isojax.launch.strategy import training_rounds
from isojax.launch.sweep_status import read_sweep_status
from isojax.runs.ledger import RECORDS_FILE, Ledger
from isojax.runs.mirror import localize
from isojax.runs.spend_file import write_spending
from isojax.runs.storage import LOCK_FILE, STALE_SECONDS, exclusive_lock, try_flock
from tests.e2e.command_line import REPOSITORY

# B = 16 and 32 to C = 512 at least: evaluations at 0, 64, 128, 256 and 512.
SETTINGS = [
    "sweep.B_p=[8]",
    "sweep.n=[2,4]",
    "sweep.seeds=2",
    "sweep.budget=600",
    "cell.eval.start=64",
    "cell.eval.ratio=2",
]
CELLS = [Cell(8, 2, 0), Cell(8, 2, 1), Cell(8, 4, 0), Cell(8, 4, 1)]


def sweep(folder: Path, *settings: str) -> Path:
    """One cell done, one half done at 50 rollouts per second, one that broke off, one not begun."""
    save_config(
        load_config("quickstart", ["name=little", *SETTINGS, *settings]), folder / "config.yaml"
    )
    done, half, broken, _ = CELLS
    record(folder, done, (0, 64, 128, 256, 512))
    record(folder, half, (0, 64, 128))
    record(folder, broken, (0, 64)).record_failure(
        3, "loss or gradient not finite in the updates 3 to 10"
    )
    return folder


def record(folder: Path, cell: Cell, targets: tuple[int, ...]) -> Ledger:
    ledger = Ledger(folder / "cells" / cell.name, cell, "abc")
    before = 0
    for C in targets:
        point = EvalPoint(C, C // cell.B, C, C, {"best@2": 0.9, "avg@2": 0.25 + C / 2048}, (), 2)
        ledger.append(point, seconds=max(1.0, (C - before) / 50), devices=1)
        before = C
    return ledger


def states(folder: Path, now: float | None = None) -> list[str]:
    return [cell.state for cell in read_sweep_status(folder, now).cells]


@pytest.fixture
def isojax(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["isojax", *words])
        with pytest.raises(SystemExit) as end:
            app.main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call


def test_the_ledgers_say_where_a_sweep_stands(tmp_path: Path) -> None:
    result = read_sweep_status(sweep(tmp_path))
    assert [cell.cell for cell in result.cells] == CELLS
    assert [cell.state for cell in result.cells] == ["done", "interrupted", "failed", "waiting"]
    assert [(cell.rollouts, cell.goal) for cell in result.cells] == [
        (512, 512),
        (128, 512),
        (64, 512),
        (0, 512),
    ]
    assert [cell.reward for cell in result.cells] == [0.5, 0.3125, 0.28125, None]
    assert "not finite" in result.cells[2].reason and result.cells[1].reason == ""
    assert result.cells[0].rate == pytest.approx(50) and result.cells[3].rate is None
    assert (result.name, result.running, result.rollouts, result.budget, result.seconds_left) == (
        "little",
        False,
        704,
        2048,
        None,
    )


def test_a_sweep_that_runs_holds_its_folder(tmp_path: Path) -> None:
    """What is left for the cells at work: all but what is done and what has failed, at the rate of
    those that run."""
    with exclusive_lock(sweep(tmp_path)):
        result = read_sweep_status(tmp_path)
        record(tmp_path, CELLS[3], ())  # compiles, say
        more = read_sweep_status(tmp_path)
    assert [cell.state for cell in result.cells] == ["done", "running", "failed", "waiting"]
    assert (
        result.running
        and result.rate == pytest.approx(50)
        and result.seconds_left == pytest.approx((512 - 128 + 512) / 50)
    )
    assert [cell.state for cell in more.cells] == ["done", "running", "failed", "running"]
    assert more.rate == pytest.approx(100) and more.seconds_left == pytest.approx(
        (512 - 128 + 512) / 100
    )
    assert not read_sweep_status(tmp_path).running


@pytest.mark.parametrize(("age", "state"), [(0.0, "running"), (STALE_SECONDS + 1, "interrupted")])
def test_a_sweep_at_a_url_runs_while_its_lease_is_fresh(
    age: float, state: str, tmp_path: Path
) -> None:
    sweep(tmp_path / "runs" / "little")
    lease = {"host": "host-b", "pid": 77, "token": "x", "time": time.time() - age}
    (tmp_path / "runs" / "little" / LOCK_FILE).write_text(json.dumps(lease))
    with localize([f"file://{tmp_path}/runs/little"]) as (folder,):
        result = read_sweep_status(Path(folder))
    assert (result.running, result.cells[1].state) == (state == "running", state)


def test_a_run_in_training_shows_what_it_sampled_since_its_last_evaluation(tmp_path: Path) -> None:
    half = sweep(tmp_path) / "cells" / CELLS[1].name  # recorded to C = 128 of 512
    (half / "progress.json").write_text('{"rollouts": 200}')

    interrupted = read_sweep_status(tmp_path).cells[1]
    with exclusive_lock(tmp_path):
        running = read_sweep_status(tmp_path).cells[1]

    # A killed run goes on from a checkpoint, which may be older than the file that the kill left.
    assert (interrupted.state, interrupted.rollouts) == ("interrupted", 128)
    assert (running.state, running.rollouts) == ("running", 200)


def test_looking_stands_in_nobodys_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep that starts in the instant of a look starts all the same."""
    looking = os.open(tmp_path / LOCK_FILE, os.O_RDONLY | os.O_CREAT)
    assert try_flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr(
        "isojax.runs.storage.time.sleep", lambda seconds: os.close(looking) if seconds else None
    )
    with exclusive_lock(tmp_path):
        assert states(sweep(tmp_path))[1] == "running"


def test_a_driver_says_more(tmp_path: Path) -> None:
    sweep(tmp_path)
    running = CellStatus(
        state="running", rollouts=200, reward=0.3, attempts=2, where="node-3", log="logs/x.log"
    )
    lost = CellStatus(
        state="failed", rollouts=0, attempts=3, log="logs/y.log", error="out of memory"
    )
    status = DriverStatus(
        time=1000.0, host="node-7", pid=4711, ended=False, cells={"8x2-s1": running, "8x4-s1": lost}
    )
    write_status(tmp_path, status)
    assert read_status(tmp_path) == status
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith((".", "status"))) == [
        STATUS_FILE
    ]

    cells = read_sweep_status(tmp_path, now=1010.0).cells
    assert [cell.state for cell in cells] == ["done", "running", "failed", "failed"]
    assert (cells[1].rollouts, cells[1].attempts, cells[1].where, cells[1].log) == (
        200,
        2,
        "node-3",
        "logs/x.log",
    )
    assert cells[3].reason == "out of memory" and cells[0].attempts is None

    # the driver was killed: nothing runs any more, whatever it said
    result = read_sweep_status(tmp_path, now=1500.0)
    assert [cell.state for cell in result.cells] == ["done", "interrupted", "failed", "failed"]
    assert (
        not result.running
        and "4711" in result.lost
        and "node-7" in result.lost
        and "500 s" in result.lost
    )
    write_status(tmp_path, status.model_copy(update={"ended": True}))
    assert read_sweep_status(tmp_path, now=1010.0).lost == "" and states(tmp_path, 1010.0) == [
        "done",
        "interrupted",
        "failed",
        "failed",
    ]
    record(tmp_path, CELLS[3], ())
    with exclusive_lock(tmp_path):  # and now a sweep on this machine goes on
        assert states(tmp_path, 1500.0) == ["done", "running", "failed", "running"]


def test_more_budget_undoes_what_an_old_driver_called_done(tmp_path: Path) -> None:
    sweep(tmp_path)
    write_status(
        tmp_path,
        DriverStatus(
            time=0.0,
            host="node-7",
            pid=1,
            ended=True,
            cells={"8x2-s1": CellStatus(state="done", rollouts=128)},
        ),
    )
    assert states(tmp_path) == ["done", "interrupted", "failed", "waiting"]


def test_a_sweep_that_chooses_its_cells_has_no_goal_for_each(tmp_path: Path, isojax: Any) -> None:
    """Its cells are those that were begun; its budget is of them all."""
    sweep(tmp_path, "sweep.strategy=adaptive", "sweep.total_rollouts=1000")
    result = read_sweep_status(tmp_path)
    assert [cell.cell for cell in result.cells] == CELLS[:3] and {
        cell.goal for cell in result.cells
    } == {None}
    assert result.budget == 1000 and states(tmp_path) == ["interrupted", "interrupted", "failed"]
    save_config(
        load_config("quickstart", [*SETTINGS, "sweep.strategy=adaptive"]), tmp_path / "config.yaml"
    )
    assert read_sweep_status(tmp_path).budget == 1024  # half of the grid's
    code, out, _ = isojax("status", str(tmp_path))
    assert code == 0 and "%" not in out.split("runs done")[0]


@pytest.mark.parametrize("is_ended", [False, True])
def test_of_a_spent_budget_only_cells_that_were_trained_are_shown(
    is_ended: bool, tmp_path: Path
) -> None:
    """An n that had no pilot is never trained from C = 0. Between two legs the run that goes on is
    not done."""
    config = load_config("quickstart", ["sweep.strategy=spend", *SETTINGS[:2], "sweep.seeds=1"])
    save_config(config, tmp_path / "config.yaml")
    first, second = plan_cells(config.sweep)
    record(tmp_path, first, (0, 64, 128))
    write_spending(tmp_path, Spending(600, "avg@2", (Leg(first, 2, 0, 128),), is_ended=is_ended))
    cells = [(cell.cell, cell.state) for cell in read_sweep_status(tmp_path).cells]
    assert second.name == "from-n4-s0" and cells == [(first, "done" if is_ended else "interrupted")]
    assert [cell.goal for cell in read_sweep_status(tmp_path).cells] == [128 if is_ended else None]
    with exclusive_lock(tmp_path):
        assert states(tmp_path) == ["done" if is_ended else "running"]
    (tmp_path / "spend.json").unlink()  # during the pilots
    assert states(tmp_path) == ["interrupted", "waiting"]


def test_between_two_legs_a_stopped_budget_says_how_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isojax: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["name=little", "sweep.strategy=spend", *SETTINGS[:2], "sweep.seeds=1"]
    save_config(
        config := load_config("quickstart", words), folder := Path("runs/little") / "config.yaml"
    )
    first, second = plan_cells(config.sweep)
    for cell in (first, second):
        record(folder.parent, cell, (0, 64, 128))
    legs = (Leg(first, 2, 0, 128), Leg(second, 4, 0, 128), Leg(second, 4, 64, 128, 0.5, (0.4, 0.6)))
    write_spending(folder.parent, Spending(600, "avg@2", legs))
    out = isojax("status", "runs/little")[1]
    assert "1 of 2 runs done, 1 interrupted" in out
    assert "nothing runs here; go on by: isojax spend runs/little/config.yaml --resume" in out


def aged(folder: Path, cell: Cell, seconds: float) -> None:
    """As if the newest line of a ledger were older."""
    path = folder / "cells" / cell.name / RECORDS_FILE
    before = path.stat().st_mtime - seconds
    os.utime(path, (before, before))


def test_an_adaptive_sweep_that_has_ended_is_done(tmp_path: Path) -> None:
    """At its end it writes a summary; a cell that went on since then has no end, nor has one that
    failed."""
    sweep(tmp_path, "sweep.strategy=adaptive", "sweep.total_rollouts=1000")
    for cell in CELLS[:3]:
        aged(tmp_path, cell, 60.0)
    assert states(tmp_path) == ["interrupted", "interrupted", "failed"]
    (tmp_path / "frontier.json").write_text("{}")
    assert states(tmp_path) == ["done", "done", "failed"]
    aged(tmp_path, CELLS[1], -120.0)
    assert states(tmp_path) == ["done", "interrupted", "failed"]
    with exclusive_lock(tmp_path):
        assert states(tmp_path) == ["running", "running", "failed"]
    # A run that failed for lack of memory, or of disk, has a ledger like one that was left at its
    # target.
    failed = {"failed": {cell.name: "out of memory" for cell in CELLS[:2]}}
    (tmp_path / "frontier.json").write_text(json.dumps(failed))
    aged(tmp_path, CELLS[0], 240.0)
    aged(tmp_path, CELLS[1], -120.0)
    assert states(tmp_path) == ["failed", "interrupted", "failed"]
    assert read_sweep_status(tmp_path).cells[0].reason == "out of memory"
    (tmp_path / "frontier.json").write_text('{"failed": ["8x2-s0"]}')
    assert states(tmp_path) == ["done", "interrupted", "failed"]
    sweep(tmp_path / "grid")
    # of no meaning to a grid, whose cells have ends
    (tmp_path / "grid" / "frontier.json").write_text("{}")
    assert states(tmp_path / "grid") == ["done", "interrupted", "failed", "waiting"]


def test_the_summary_of_an_adaptive_sweep_says_which_runs_failed(tmp_path: Path) -> None:
    words = [
        "sweep.strategy=adaptive",
        "sweep.B_p=[8]",
        "sweep.n=[2,4]",
        "sweep.seeds=1",
        "sweep.budget=20000",
    ]
    config, failures = load_config("quickstart", words), list[tuple[Cell, Exception]]()
    rounds = training_rounds(config, plan_cells(config.sweep), tmp_path, failures)
    failures += [(target.cell, RunFailed("out of memory")) for target in next(rounds)]
    assert next(rounds, None) is None
    summary = json.loads((tmp_path / "frontier.json").read_text())
    assert (
        summary["failed"] == {"8x2-s0": "out of memory", "8x4-s0": "out of memory"}
        and summary["spent"] == 0
    )


@pytest.mark.parametrize(
    ("folder", "words", "command"),
    [
        ("runs/little", [], "isojax launch runs/little/config.yaml --resume"),
        (
            "runs/little",
            ["sweep.strategy=adaptive"],
            "isojax launch runs/little/config.yaml --resume",
        ),
        ("runs/little", ["sweep.strategy=spend"], "isojax spend runs/little/config.yaml --resume"),
        ("results/little", [], "isojax launch results/little/config.yaml run.dir=results --resume"),
        (
            "results/little",
            ["run.dir=results"],
            "isojax launch results/little/config.yaml --resume",
        ),
        (
            "results/little",
            ["run.dir=gs://bucket/runs"],
            "isojax launch results/little/config.yaml --resume",
        ),
        (
            "results/little",
            ["sweep.strategy=spend"],
            "isojax spend results/little/config.yaml run.dir=results --resume",
        ),
        (
            "my runs/little",
            [],
            "isojax launch 'my runs/little/config.yaml' 'run.dir=my runs' --resume",
        ),
        ("runs/copy", [], ""),  # of runs/little, with which `launch` would go on
    ],
)
def test_the_command_that_goes_on(
    folder: str, words: list[str], command: str, tmp_path: Path, isojax: Any
) -> None:
    save_config(
        load_config("quickstart", ["name=little", *SETTINGS, *words]), Path(folder) / "config.yaml"
    )
    record(Path(folder), CELLS[1], (0, 64))
    assert read_sweep_status(Path(folder)).resume_command == command
    expected = (
        f"go on by: {command}"
        if command
        else "rename the folder to little, as its config.yaml calls the sweep"
    )
    assert f"nothing runs here; {expected}" in " ".join(isojax("status", folder)[1].split())


def test_what_a_person_sees(tmp_path: Path, isojax: Any) -> None:
    sweep(tmp_path / "runs" / "little")
    (tmp_path / "runs/little/cells/8x2-s0/health.json").write_text(
        '{"flags": [{"name": "collapsed", "C": 64, "reason": "..."}]}'
    )
    code, out, err = isojax("status", "runs/little")
    assert (code, err) == (0, "")
    (row,) = [line for line in out.splitlines() if "8x2-s1" in line]
    assert [part.strip() for part in row.strip("│ ").split("│")][:6] == [
        "8x2-s1",
        "interrupted",
        "128",
        "25%",
        "0.312",
        "50",
    ]
    assert "1 of 4 runs done, 1 interrupted, 1 failed; 34% of 2,048 rollouts" in out
    assert (
        "failed: 8x4-s0: loss or gradient not finite" in out and "flagged: 8x2-s0: collapsed" in out
    )
    assert "isojax launch runs/little/config.yaml --resume" in out and "attempts" not in out


def test_json_is_one_document(tmp_path: Path, isojax: Any) -> None:
    for name in ("a", "b"):
        sweep(tmp_path / name)
    code, out, _ = isojax("status", "a", "b", "--json")
    document = json.loads(out)
    assert code == 0 and [s["folder"] for s in document["sweeps"]] == ["a", "b"]
    first = document["sweeps"][0]
    assert (first["rollouts"], first["budget"], first["running"]) == (704, 2048, False)
    cell = first["cells"][1]
    assert (cell["name"], cell["B_p"], cell["n"], cell["seed"], cell["state"], cell["goal"]) == (
        "8x2-s1",
        8,
        2,
        1,
        "interrupted",
        512,
    )


def test_watching_ends_with_the_sweep(
    tmp_path: Path, isojax: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep(tmp_path)
    running = exclusive_lock(tmp_path)
    running.__enter__()
    looks: list[float] = []

    def a_while(seconds: float) -> None:
        looks.append(seconds)
        record(tmp_path, CELLS[1], (256 * len(looks),))
        if len(looks) == 2:
            running.__exit__(None, None, None)

    monkeypatch.setattr(status_command, "time", type("Clock", (), {"sleep": staticmethod(a_while)}))
    code, out, _ = isojax("status", str(tmp_path), "--watch")
    assert code == 0 and looks == [2.0, 2.0] and "2 of 4 runs done" in out

    with exclusive_lock(tmp_path):  # Ctrl-C ends it well
        monkeypatch.setattr(
            status_command,
            "time",
            type(
                "Clock",
                (),
                {"sleep": staticmethod(lambda s: (_ for _ in ()).throw(KeyboardInterrupt))},
            ),
        )
        assert isojax("status", str(tmp_path), "--watch")[0] == 0


@pytest.mark.parametrize(
    ("words", "saying"),
    [
        (["status", "nowhere"], "no sweep's folder"),
        (["status", "little/cells"], "no sweep's folder"),
        (["status", "little", "--watch", "--json"], "expected one of them"),
    ],
)
def test_what_is_refused(words: list[str], saying: str, tmp_path: Path, isojax: Any) -> None:
    sweep(tmp_path / "little")
    code, out, err = isojax(*words)
    assert (
        (code, out) == (2, "")
        and err.startswith("error: ")
        and saying in err
        and err.count("\n") == 1
    )


@pytest.mark.parametrize(
    "name", [STATUS_FILE, "cells/8x2-s1/records.jsonl", "cells/8x2-s1/health.json"]
)
def test_a_damaged_file_is_named(name: str, tmp_path: Path, isojax: Any) -> None:
    path = sweep(tmp_path) / name
    path.write_text((path.read_text() if path.exists() else "") + '{"kind": half\n')
    code, _, err = isojax("status", str(tmp_path))
    assert code == 2 and err.startswith("error: ") and str(path) in err


def test_a_line_that_is_being_written_is_not_there_yet(tmp_path: Path) -> None:
    with (sweep(tmp_path) / "cells/8x2-s1/records.jsonl").open("a") as f:
        f.write('{"kind": "eval", "target": 2')
    assert read_sweep_status(tmp_path).cells[1].rollouts == 128


def test_no_jax_is_loaded(tmp_path: Path) -> None:
    program = (
        "import sys; from isojax.cli.commands.status_command import status; from pathlib import "
        "Path; status([Path(sys.argv[1])]); print('jax' in sys.modules)"
    )
    command = [sys.executable, "-c", program, str(sweep(tmp_path))]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines()[-1] == "False", done.stderr
