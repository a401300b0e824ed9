"""What a person reads while a sweep runs with its output in a file, and what `status` reads of a
run in training."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from isojax.core import preemption
from isojax.core.config import Config, SweepConfig
from isojax.core.nouns import Cell, CellProgress
from isojax.launch import display
from isojax.launch.display import Display, describe_minutes_left
from isojax.runs.progress_file import PROGRESS_FILE, progress_file, read_progress

CELL = Cell(8, 4, 0)
CONFIG = Config(name="here", sweep=SweepConfig(B_p=(8,), n=(4,)))


class Clock:
    """time.monotonic, which a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(display, "time", fake)
    return fake


def test_a_file_gets_a_line_now_and_then(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Display(CONFIG) as live:
        live.set_targets({CELL: 3200})
        live.update_cell(CellProgress(CELL, 0, 0.25))
        clock.now += 10
        live.update_cell(CellProgress(CELL, 320, None))
        assert "run 8x4-s0" not in capsys.readouterr().err

        clock.now += 22
        live.update_cell(CellProgress(CELL, 640, 0.5))
        line = capsys.readouterr().err
        # 640 rollouts in 32 s are 20 a second; 2,560 are left: 128 s
        assert (
            "run 8x4-s0: C = 640; 0 of 1 runs, best reward 0.500, 20 rollouts/s, 2.1 min left"
            in line
        )

        clock.now += 1
        live.update_cell(CellProgress(CELL, 672, None))
        assert capsys.readouterr().err == ""


def test_the_time_left_never_reads_as_none_while_a_run_goes_on() -> None:
    assert describe_minutes_left(2.125) == "2.1 min left"
    assert describe_minutes_left(0.02) == "less than a minute left"
    assert describe_minutes_left(0.0) == "last evaluation and save"


def test_sigterm_is_answered(capfd: pytest.CaptureFixture[str]) -> None:
    with preemption.handle_sigterm():
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(0.01)  # the handler runs in this thread
        assert preemption.REQUESTED.is_set()

    assert "stopping: SIGTERM came; runs save their state" in capfd.readouterr().err


def test_progress_since_the_last_evaluation(tmp_path: Path) -> None:
    assert read_progress(tmp_path) is None

    with progress_file(tmp_path) as progress:
        progress.update(640)
        progress.update(672)  # at once after the first: not written
        assert read_progress(tmp_path) == 640

    assert read_progress(tmp_path) is None and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"rollouts": -1}', '{"rollouts": "7"}', '{"C": 7}']
)
def test_a_progress_file_that_is_none_of_ours_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / PROGRESS_FILE).write_text(text)

    assert read_progress(tmp_path) is None
