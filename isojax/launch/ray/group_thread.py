"""One process group at work: a thread that calls it, takes cells from an inbox and reports by events.

Ray's calls block, so each group has a thread. The thread shares nothing with the scheduler but the inbox, the event
queue and the order to cancel; the scheduler alone decides what the events mean.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from isojax.core.errors import InputError
from isojax.core.nouns import Cell
from isojax.launch.ray.messages import CallResult, StatusUpdate
from isojax.launch.ray.ray_processes import RayProcessGroup, WorkerLost
from isojax.launch.strategy import CellTarget


@dataclass(frozen=True)
class GroupPlaced:
    """A group has room on the cluster, and its processes start."""

    slot: int


@dataclass(frozen=True)
class GroupReady:
    """All processes of a group have prepared the sweep: it can train a cell."""

    slot: int


@dataclass(frozen=True)
class GroupNews:
    """News of a group while it prepares the sweep (`cell` is None) or trains a cell."""

    slot: int
    update: StatusUpdate
    cell: Cell | None


@dataclass(frozen=True)
class CellFinished:
    """A group has trained its cell, or has failed to."""

    slot: int
    result: CallResult


@dataclass(frozen=True)
class GroupEnded:
    """A group and all of its processes have ended; `error`: by what, where nobody asked for it."""

    slot: int
    error: BaseException | None


GroupEvent = GroupPlaced | GroupReady | GroupNews | CellFinished | GroupEnded


class EndGroup(Enum):
    """How a group that is ready is to end: its processes disconnect first, or are killed at once."""

    CLOSE = "close"
    KILL = "kill"


@dataclass
class GroupThread:
    """A group, as the scheduler knows it.

    Attributes:
        slot: its place among the groups that run at the same time.
        group: its processes.
        events: where the thread puts what happens.
        inbox: the next cell to train, or how to end.
        cancelled: set to give up a group that is not ready yet.
        state: as the scheduler has heard.
        cell: the cell that it trains.
    """

    slot: int
    group: RayProcessGroup
    events: queue.SimpleQueue[GroupEvent]
    inbox: queue.SimpleQueue[CellTarget | EndGroup] = field(default_factory=queue.SimpleQueue)
    cancelled: threading.Event = field(default_factory=threading.Event)
    state: Literal["placing", "opening", "ready", "closing"] = "placing"
    cell: Cell | None = None

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, daemon=True, name=f"process group {self.slot}").start()

    def end(self, how: EndGroup) -> None:
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
        self.events.put(GroupEnded(self.slot, error))

    def _serve(self) -> None:
        """Start the processes, prepare the sweep, and train cells until the group is to end."""
        if not self.group.start_workers(self.cancelled.is_set):
            return
        self.events.put(GroupPlaced(self.slot))
        self.group.open(self._report_preparation)
        self.events.put(GroupReady(self.slot))
        while isinstance(order := self.inbox.get(), CellTarget):
            cell = order.cell
            result = self.group.train(order, lambda update, cell=cell: self._report(update, cell))
            self.events.put(CellFinished(self.slot, result))
        if order is EndGroup.CLOSE:
            self.group.close()

    def _report_preparation(self, update: StatusUpdate) -> None:
        self._report(update, None)
        if self.cancelled.is_set():
            raise WorkerLost("no cell is left for it")

    def _report(self, update: StatusUpdate, cell: Cell | None) -> None:
        if update != StatusUpdate():
            self.events.put(GroupNews(self.slot, update, cell))
