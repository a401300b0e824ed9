"""One process group: a thread that calls it, takes orders from an inbox and reports by events.

Ray's calls block, so each group has a thread. It shares nothing with the scheduler but the inbox, the event queue and
the order to cancel; the scheduler alone decides what the events mean.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from typing import Literal

from isojax.core.errors import InputError
from isojax.core.nouns import Cell
from isojax.launch.ray.messages import CallResult, StatusUpdate
from isojax.launch.ray.ray_processes import RayProcessGroup, WorkerLost
from isojax.launch.strategy import CellTarget


@dataclass(frozen=True)
class GroupEnd:
    """A group and all of its processes have ended; `error`: by what, where nobody asked for it."""

    error: BaseException | None


@dataclass(frozen=True)
class GroupEvent:
    """What the group in a slot reports: that its processes start, that they can train a cell, news of their work, how
    the training of a cell has ended, or the group's end."""

    slot: int
    content: Literal["opening", "ready"] | StatusUpdate | CallResult | GroupEnd


@dataclass
class GroupThread:
    """A group, as the scheduler knows it."""

    slot: int  # its place among the groups that run at the same time
    group: RayProcessGroup
    events: queue.SimpleQueue[GroupEvent]
    # Cells to train; then how to end: the processes disconnect first, or are killed at once.
    inbox: queue.SimpleQueue[CellTarget | Literal["close", "kill"]] = field(default_factory=queue.SimpleQueue)
    cancelled: threading.Event = field(default_factory=threading.Event)  # gives up a group that is not ready yet
    state: Literal["placing", "opening", "ready", "closing"] = "placing"
    cell: Cell | None = None  # in training

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, daemon=True, name=f"process group {self.slot}").start()

    def end(self, how: Literal["close", "kill"]) -> None:
        """Let a ready group without a cell end."""
        self.state = "closing"
        self.inbox.put(how)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            with self.group:
                self._serve()
        except (WorkerLost, InputError) as e:
            error = None if self.cancelled.is_set() else e
        except BaseException as e:  # for the scheduler to raise
            error = e
        self.events.put(GroupEvent(self.slot, GroupEnd(error)))

    def _serve(self) -> None:
        """Start the processes, prepare the sweep, and train cells until the group is to end."""
        if not self.group.start_workers(self.cancelled.is_set):
            return
        self.events.put(GroupEvent(self.slot, "opening"))
        self.group.open(self._report_preparation)
        self.events.put(GroupEvent(self.slot, "ready"))
        while isinstance(order := self.inbox.get(), CellTarget):
            result = self.group.train(order, self._report)
            self.events.put(GroupEvent(self.slot, result))
        if order == "close":
            self.group.close()

    def _report_preparation(self, update: StatusUpdate) -> None:
        self._report(update)
        if self.cancelled.is_set():
            raise WorkerLost("no cell is left for it")

    def _report(self, update: StatusUpdate) -> None:
        if update != StatusUpdate():
            self.events.put(GroupEvent(self.slot, update))
