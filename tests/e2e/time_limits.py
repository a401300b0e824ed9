"""Reaches run.time_limit at a point of the program, to the update, in a command that
tests/e2e/nursery.py forks. The clock is left out of it: the timer of the limit fires when the
program gets to the point.

A point is one of these:

    labels          the first problems have been labelled
    checkpoint      the first checkpoint is being written
    8x2-s0 at 40    the run 8x2-s0 has made 40 updates, or the few more that one call makes
    8x2-s0 ends     the run 8x2-s0 has ended, and the next one has not begun
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

from isojax.core import preemption
from isojax.launch.local import local_runner
from isojax.train import base_policy
from isojax.train.loop import CellTrainer


class HandTimer:
    """A threading.Timer that waits for `fire`, whatever the clock says."""

    waiting: ClassVar[list[HandTimer]] = []

    def __init__(self, seconds: float, function: Callable[[], None]) -> None:
        self.function = function
        self.daemon = False

    def start(self) -> None:
        self.waiting.append(self)

    def cancel(self) -> None:
        self.waiting.remove(self)


def fire() -> None:
    for timer in HandTimer.waiting:
        timer.function()


def fire_after(owner: Any, name: str, is_the_point: Callable[..., bool]) -> None:
    """The limit is reached once the function `name` of a module or class has returned from a call
    for which `is_the_point` is true of the arguments."""
    original = getattr(owner, name)

    def call_and_fire(*words: Any, **named: Any) -> Any:
        result = original(*words, **named)
        if is_the_point(*words):
            fire()
        return result

    setattr(owner, name, call_and_fire)


def reach_at(point: str) -> None:
    """Let the limits of this process be reached at a point, and never by the clock."""
    preemption.threading = SimpleNamespace(Timer=HandTimer)  # type: ignore[assignment]
    if point == "labels":
        fire_after(base_policy, "append_labels", lambda *_: True)
    elif point == "checkpoint":
        fire_after(CellTrainer, "save", lambda trainer: True)
    elif point.endswith(" ends"):
        run = point.removesuffix(" ends")
        fire_after(local_runner, "train_cell", lambda *words: words[3].cell.name == run)
    else:
        run, _, updates = point.partition(" at ")
        M = int(updates)
        fire_after(
            CellTrainer,
            "run_updates",
            lambda trainer, _: trainer.cell.name == run and trainer.cursor.M >= M,
        )
