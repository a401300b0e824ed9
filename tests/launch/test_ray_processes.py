"""How the calls of a process group end, with stand-ins for actors and Ray."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from isojax.core.config import Config
from isojax.core.errors import InputError, RunFailed
from isojax.core.nouns import Cell
from isojax.core.preemption import Preempted
from isojax.launch.ray import ray_processes
from isojax.launch.ray.placement import (
    SLICE_LABEL,
    TOPOLOGY_LABEL,
    WORKER_LABEL,
    ProcessGroupSpec,
    TpuSlice,
)
from isojax.launch.ray.process_status import StatusUpdate, WorkerLost
from isojax.launch.ray.ray_processes import RayProcessGroup
from isojax.launch.strategies import CellTarget
from tests.refusals import refused

TARGET = CellTarget(Cell(4, 4, 0), 64)
NEVER = object()  # a call that waits for another process


class RayError(Exception):
    """As Ray's own."""


class TaskError(RayError):
    """What an actor's method raised, as Ray wraps it."""

    def __init__(self, cause: Exception):
        super().__init__(str(cause))
        self.cause = cause


class Remote:
    """A method of an actor: its call is what the method gives."""

    def __init__(self, call: Callable[..., Any]):
        self.remote = call


class Actor:
    def __init__(self, outcome: Any):
        self.train, self.news = Remote(lambda target: outcome), Remote(StatusUpdate)


class Ray:
    class exceptions:  # the module's name
        RayError, RayTaskError = RayError, TaskError

    @staticmethod
    def get(calls: Any) -> Any:
        if any(
            isinstance(call, Exception) for call in (calls if isinstance(calls, list) else [calls])
        ):
            raise next(call for call in calls if isinstance(call, Exception))
        return calls

    @staticmethod
    def wait(calls: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        """One call ends at a time, those that wait never."""
        done = [call for call in calls if call is not NEVER][:1]
        return done, [
            call
            for i, call in enumerate(calls)
            if not (done and call is done[0] and i == calls.index(done[0]))
        ]


def train(monkeypatch: pytest.MonkeyPatch, *outcomes: Any) -> None:
    monkeypatch.setattr(ray_processes, "PEER_END_TIMEOUT", 0.05)
    group = RayProcessGroup(
        Ray,
        Config(),
        [TARGET.cell],
        ProcessGroupSpec(len(outcomes), {"CPU": 1.0}),
        "token",
        Path("group0-0"),
    )
    group.workers = [Actor(outcome) for outcome in outcomes]
    group.train(TARGET, lambda news: None)


WELL = None
BROKEN = TaskError(RunFailed("the ledger is another's"))
STOPPED = TaskError(Preempted("saved"))
NO_MEMORY = TaskError(WorkerLost("no memory"))


def test_all_end_well_or_as_the_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    train(monkeypatch, WELL, WELL)
    with pytest.raises(Preempted):
        train(monkeypatch, STOPPED, STOPPED)
    for outcomes in ((BROKEN, WELL), (WELL, BROKEN), (STOPPED, BROKEN)):
        with pytest.raises(RunFailed, match="the ledger is another's"):
            train(monkeypatch, *outcomes)


@pytest.mark.parametrize("outcomes", [(BROKEN, NEVER), (NEVER, BROKEN)])
def test_a_cell_that_one_has_broken_off_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, outcomes: tuple[Any, Any]
) -> None:
    with pytest.raises(RunFailed, match="the ledger is another's"):
        train(monkeypatch, *outcomes)


def test_what_follows_a_broken_cell_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be tried again."""
    with pytest.raises(RunFailed, match="the ledger is another's"):
        train(monkeypatch, BROKEN, NO_MEMORY)


def test_what_ends_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WorkerLost, match="no memory"):
        train(monkeypatch, NEVER, NO_MEMORY)
    with pytest.raises(WorkerLost, match="died"):
        train(monkeypatch, RayError("The actor died because its node is gone"), NEVER)
    with refused():
        train(monkeypatch, TaskError(InputError("no model")), NEVER)


def test_processes_are_in_the_order_of_their_slices() -> None:
    """Ray chooses the hosts of bundles; processes are numbered in the order of their hosts."""

    class Placed(Ray):
        class util:  # the module's name
            placement_group_table = staticmethod(
                lambda group: {"bundles_to_node_id": {0: "d", 1: "b", 2: "a", 3: "c"}}
            )

        @staticmethod
        def nodes() -> list[dict[str, Any]]:
            locations = {"a": ("s1", "0"), "b": ("s1", "1"), "c": ("s2", "0"), "d": ("s2", "1")}
            return [
                {
                    "NodeID": key,
                    "Labels": {SLICE_LABEL: name, WORKER_LABEL: i, TOPOLOGY_LABEL: "2x4"},
                }
                for key, (name, i) in locations.items()
            ]

    group = RayProcessGroup(
        Placed,
        Config(),
        [TARGET.cell],
        ProcessGroupSpec(4, {"TPU": 4.0}, tpu_slice=TpuSlice("v5litepod", "2x4"), num_slices=2),
        "token",
        Path("group0-0"),
    )
    assert [(bundle, node["NodeID"]) for bundle, node in group._bundles()] == [
        (2, "a"),
        (1, "b"),
        (3, "c"),
        (0, "d"),
    ]
    group.spec = ProcessGroupSpec(
        5, {"TPU": 4.0}, tpu_slice=TpuSlice("v5litepod", "2x4"), num_slices=2
    )
    with pytest.raises(WorkerLost, match="before it began"):
        group._bundles()


def test_a_slice_that_lacks_a_host_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while; each that follows is given as long."""
    monkeypatch.setattr(ray_processes, "SLICE_COMPLETE_TIMEOUT", 0.1)
    reserved: list[float] = []

    class Slices(RayProcessGroup):
        def _reserve(self) -> Any:
            if self._tpu_slice is None:
                self._tpu_slice, self._placement_group = self, self
                reserved.append(time.monotonic())
            return self._placement_group

        def wait(self, seconds: float) -> bool:
            time.sleep(0.02)
            return False

        def shutdown(self) -> None: ...

    group = Slices(
        Ray,
        Config(),
        [TARGET.cell],
        ProcessGroupSpec(1, {"TPU": 4.0}, tpu_slice=TpuSlice("v5litepod", "2x2")),
        "token",
        Path("group0-0"),
    )
    assert not group.start_workers(lambda: len(reserved) == 3)
    assert all(later - earlier > 0.1 for earlier, later in pairwise(reserved))
