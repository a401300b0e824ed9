"""When a run saves: as its setting says, or so seldom that training hardly waits."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pytest

from isojax.core.save_interval import save_interval
from isojax.train import save_clock
from isojax.train.checkpoint import Checkpoints
from isojax.train.loop import _save_is_due, _Wish
from isojax.train.save_clock import SaveClock


class Clock:
    """time.monotonic, which a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(save_clock, "time", fake)
    return fake


def test_training_waits_a_twentieth_of_the_time_at_most() -> None:
    for waiting in (0.0, 0.5, 3.0, 5.0, 20.0, 189.0):
        interval = save_interval(None, waiting)
        assert waiting / (waiting + interval) <= 0.05 + 1e-12
    assert save_interval(None, 0.0) == 60  # never shorter
    assert save_interval(None, 10.0) == pytest.approx(190)  # 10 of 200 s
    assert save_interval(None, 1000.0) == 3600  # a kill costs an hour at most
    assert save_interval(7.0, 1000.0) == 7 and save_interval(0.0, 0.0) == 0  # as set


def save_for(seconds: float, saves: SaveClock, clock: Clock) -> None:
    with saves.saving():
        clock.now += seconds


def test_the_interval_follows_the_newest_save(clock: Clock) -> None:
    saves = SaveClock(None)
    clock.now += 59
    assert not saves.is_due
    clock.now += 1
    assert saves.is_due  # 60 s after the start

    save_for(10, saves, clock)
    clock.now += 189
    assert not saves.is_due
    clock.now += 1.01
    assert saves.is_due  # 190 s of training after a save of 10 s

    save_for(1, saves, clock)
    clock.now += 60
    assert saves.is_due


def test_an_interval_that_is_set_stays(clock: Clock) -> None:
    saves = SaveClock(5.0)
    save_for(10, saves, clock)
    assert not saves.is_due and not saves.adapts
    clock.now += 5
    assert saves.is_due


def test_process_0_says_when_and_none_may_still_be_writing() -> None:
    due = _Wish(must_end=False, save_is_due=True, must_put_off=False)
    not_due = due._replace(save_is_due=False)
    writing = due._replace(must_put_off=True)
    assert _save_is_due([due, not_due]) and not _save_is_due([not_due, due])
    assert not _save_is_due([due, writing]) and not _save_is_due([writing, due])


def test_a_checkpoint_is_being_written_until_it_is_uploaded(tmp_path: Path) -> None:
    upload: Future[None] = Future()
    with Checkpoints(tmp_path) as checkpoints:
        assert not checkpoints.is_writing
        checkpoints._upload = upload
        assert checkpoints.is_writing
        upload.set_result(None)
        assert not checkpoints.is_writing
