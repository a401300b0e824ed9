"""What a user reads where memory is not enough and where a sweep is asked to end; flags of runs
that have ended."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from isojax.core import preemption
from isojax.core.config import Config, SweepConfig
from isojax.core.errors import DeadStart, RunFailed, is_out_of_memory
from isojax.core.nouns import Cell, EvalPoint, StartReport, StartWarning
from isojax.core.preemption import Preempted
from isojax.core.start_file import read_start_report
from isojax.launch.cell_failures import raise_cell_failures
from isojax.launch.display import Display
from isojax.launch.local import local_runner
from isojax.launch.local.local_runner import out_of_memory_message, train_cells, write_health
from isojax.launch.ray.process_status import StatusCollector
from isojax.launch.strategies import CellTarget
from isojax.runs.ledger import Ledger, read_run
from tests.refusals import refused


def test_what_would_take_less_memory() -> None:
    message = out_of_memory_message(SweepConfig(decode_slots=64, microbatch=4096))
    assert (
        "sweep.microbatch = 4096" in message and "name=NAME" in message and "remat=layer" in message
    )


def test_what_lacks_memory() -> None:
    """A real failure of XLA's allocator says so; other errors do not, a checkpoint's on a full disk
    among them."""
    with pytest.raises(jax.errors.JaxRuntimeError) as real:
        jax.block_until_ready(jax.numpy.zeros(2**46, "int8"))
    assert is_out_of_memory(real.value) and is_out_of_memory(MemoryError())
    assert not is_out_of_memory(ValueError("B_p is larger")) and not is_out_of_memory(
        FloatingPointError("loss not finite")
    )
    assert not is_out_of_memory(
        RunFailed(
            "cannot be written (RESOURCE_EXHAUSTED: ... [OS error 28: ENOSPC No space left on "
            "device])"
        )
    )


def test_asked_to_end_at_the_end_of_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cells that are left are not begun, nor those of the next round; the message names the one
    that failed too."""
    setup: Any = SimpleNamespace(config=Config(), folder=Path("runs/x"), programs=[None])
    targets = [CellTarget(Cell(8, 4, seed), 1024) for seed in range(2)]

    def one_cell(*_: object) -> Exception:
        preemption.REQUESTED.set()
        return RuntimeError("no such luck")

    monkeypatch.setattr(local_runner, "train_cell", one_cell)
    base: Any = None
    with Display(Config()) as display, preemption.handle_sigterm():
        with pytest.raises(Preempted, match=r"; 8x4-s0 had failed before \(no such luck\)\.$"):
            train_cells(setup, base, targets, display)
        with pytest.raises(Preempted):
            train_cells(setup, base, targets[1:], display)
    assert not preemption.REQUESTED.is_set()


CELL = Cell(8, 4, 0)
CONFIG = Config(name="here", sweep=SweepConfig(B_p=(8,), n=(4,)))


def ledger(folder: Path, rights: list[int]) -> Ledger:
    """A run of 200 validation problems, of which so many are solved by each of their 4 samples at
    each evaluation."""
    result = Ledger(folder, CELL, "x")
    for i, right in enumerate(rights):
        counts = tuple([4] * right + [0] * (200 - right))
        result.append(
            EvalPoint(100 * i, i, 100 * i, 0, {"avg@4": right / 200}, counts, 4),
            seconds=1.0,
            devices=1,
        )
    return result


def test_a_run_that_ends_well_and_one_that_collapses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    well, broken = [40, 60, 80, 90, 100, 110], [40, 60, 80, 20, 10, 0]
    for name, rights in (("well", well), ("broken", broken)):
        ledger(tmp_path / name, rights)
        write_health(tmp_path / name, CELL, Display(CONFIG).show_flags)
    assert json.loads((tmp_path / "well/health.json").read_text()) == {
        "cell": "8x4-s0",
        "C": 500,
        "flags": [],
    }
    result = json.loads((tmp_path / "broken/health.json").read_text())
    # .3: the mean of the first three evaluations
    words = "reward fell from 0.300 to 0.050 and stays there (base policy: 0.200)"
    assert result == {
        "cell": "8x4-s0",
        "C": 500,
        "flags": [{"name": "collapsed", "C": 300, "reason": words}],
    }
    output = capsys.readouterr().err
    assert (
        output.count("warning:") == 1
        and f"warning: run 8x4-s0 collapsed from C = 300: {words}. Fits leave it out" in output
    )


def test_once_written_it_is_left_alone_and_the_ledger_stays_as_it_is(tmp_path: Path) -> None:
    ledger(tmp_path, [40, 60]).record_failure(
        3, "loss or gradient not finite in 1 of the updates 2 to 3"
    )
    before = (tmp_path / "records.jsonl").read_bytes()
    write_health(tmp_path, CELL, Display(CONFIG).show_flags)
    written = (tmp_path / "health.json").stat()
    assert [
        flag["name"] for flag in json.loads((tmp_path / "health.json").read_text())["flags"]
    ] == ["nonfinite_update"]
    write_health(tmp_path, CELL, Display(CONFIG).show_flags)
    assert (tmp_path / "health.json").stat().st_mtime_ns == written.st_mtime_ns
    assert (tmp_path / "records.jsonl").read_bytes() == before and read_run(tmp_path).failure_reason


def test_a_run_without_an_evaluation_has_nothing_to_judge(tmp_path: Path) -> None:
    Ledger(tmp_path, CELL, "x")
    write_health(tmp_path, CELL, Display(CONFIG).show_flags)
    assert not (tmp_path / "health.json").exists()


@pytest.mark.parametrize(
    ("error", "is_judged"), [(FloatingPointError("loss not finite"), True), (OSError(28), False)]
)
def test_a_run_that_ends_by_a_number_that_is_not_finite_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, is_judged: bool
) -> None:
    """Nothing goes on with it; another error's run goes on by --resume."""

    def fail(*words: Any) -> None:
        for i, reward in enumerate((0.2, 0.3)):
            words[-1].ledger.append(
                EvalPoint(100 * i, i, 100 * i, 0, {"avg@4": reward}), seconds=1.0, devices=1
            )
        words[-1].ledger.record_failure(3, "loss or gradient not finite in 1 of the updates 2 to 3")
        raise error

    monkeypatch.setattr(local_runner, "run_cell", fail)
    setup: Any = SimpleNamespace(config=CONFIG, folder=tmp_path)
    nothing: Any = None
    display = StatusCollector()
    ended_by = local_runner.train_cell(setup, nothing, nothing, CellTarget(CELL, 1024), display)
    assert ended_by is error and len(display.pending.flags) == is_judged
    health = tmp_path / "cells/8x4-s0/health.json"
    assert health.exists() == is_judged
    if is_judged:
        assert [flag["name"] for flag in json.loads(health.read_text())["flags"]] == [
            "nonfinite_update"
        ]


def test_what_is_doubtful_at_the_start_is_recorded_and_shown_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of several runs that begin alike one is named, and none where the plan has said it; what a
    Ray driver asks for has them all."""
    report = StartReport({"responses": 16.0}, (StartWarning("all_wrong", "all 16 rewards are 0"),))
    monkeypatch.setattr(local_runner, "run_cell", lambda *words: words[-1].on_start(report))
    setup: Any = SimpleNamespace(config=CONFIG, folder=tmp_path)
    nothing: Any = None
    collector = StatusCollector()
    for display in (Display(CONFIG), Display(CONFIG, report.warnings), collector):
        for seed in range(2):
            target = CellTarget(Cell(8, 4, seed), 1024)
            assert local_runner.train_cell(setup, nothing, nothing, target, display) is None
    said = "warning: before the first update of 8x4-s0: all 16 rewards are 0\n"
    assert capsys.readouterr().err == said
    assert collector.pending.start_warnings == [*report.warnings] * 2
    assert read_start_report(tmp_path / "cells/8x4-s1") == report


def test_a_dead_start_ends_the_sweep_with_its_own_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs that are left would begin with the same policy, problems and verifier."""
    begun: list[Cell] = []

    def one_cell(*words: Any) -> Exception:
        begun.append(words[3].cell)
        return DeadStart("none of its first 16 checks ended with a verdict")

    monkeypatch.setattr(local_runner, "train_cell", one_cell)
    setup: Any = SimpleNamespace(config=Config(), folder=Path("runs/x"), programs=[None])
    targets = [CellTarget(Cell(8, 4, seed), 1024) for seed in range(3)]
    nothing: Any = None
    with Display(Config()) as display:
        failures = train_cells(setup, nothing, targets, display)
    assert begun == [targets[0].cell]
    with refused(kind=DeadStart):
        raise_cell_failures(failures, len(targets), Path("runs/x"))
