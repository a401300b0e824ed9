"""How a gang's calls end, with actors and a Ray that are none."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from isojax.config import Config
from isojax.launch import member, ray_gang
from isojax.launch.member import News, Outcome
from isojax.launch.placement import SLICE, TOPOLOGY, WORKER, Shape
from isojax.launch.ray_gang import Lost, RayGang
from isojax.launch.rounds import Goal
from isojax.types import Cell, InputError

GOAL = Goal(Cell(4, 4, 0), 64)
NEVER = object()  # a call that waits for another process


class RayError(Exception):
    """As Ray's own."""


class Remote:
    """A method of an actor: its call is what the method gives."""

    def __init__(self, call: Callable[..., Any]):
        self.remote = call


class Actor:
    def __init__(self, outcome: Any):
        self.train, self.news = Remote(lambda goal: outcome), Remote(News)


class Ray:
    class exceptions:  # the module's name
        RayError = RayError

    @staticmethod
    def get(calls: Any) -> Any:
        if any(isinstance(call, Exception) for call in (calls if isinstance(calls, list) else [calls])):
            raise next(call for call in calls if isinstance(call, Exception))
        return calls

    @staticmethod
    def wait(calls: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        """One call ends at a time, those that wait never."""
        done = [call for call in calls if call is not NEVER][:1]
        return done, [call for i, call in enumerate(calls) if not (done and call is done[0] and i == calls.index(done[0]))]


def trained(monkeypatch: pytest.MonkeyPatch, *outcomes: Any) -> Outcome:
    monkeypatch.setattr(ray_gang, "OTHERS", 0.05)
    gang = RayGang(Ray, Config(), [GOAL.cell], Shape(len(outcomes), {"CPU": 1.0}), "token", Path("gang0-0"))
    gang.members = [Actor(outcome) for outcome in outcomes]
    return gang.train(GOAL, lambda news: None)


BROKEN, STOPPED = Outcome(member.BROKEN, "the ledger is another's"), Outcome(member.STOPPED, "saved")


def test_all_end_well_or_as_the_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trained(monkeypatch, Outcome(), Outcome()) == Outcome()
    assert trained(monkeypatch, STOPPED, STOPPED).kind == member.STOPPED
    assert trained(monkeypatch, BROKEN, Outcome()) == trained(monkeypatch, Outcome(), BROKEN) == BROKEN
    assert trained(monkeypatch, STOPPED, BROKEN) == BROKEN


def test_a_cell_that_one_has_broken_off_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trained(monkeypatch, BROKEN, NEVER) == trained(monkeypatch, NEVER, BROKEN) == BROKEN


def test_what_follows_a_broken_cell_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be tried again."""
    assert trained(monkeypatch, BROKEN, Outcome(member.LOST, "no memory")) == BROKEN


def test_what_ends_a_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Lost, match="no memory"):
        trained(monkeypatch, NEVER, Outcome(member.LOST, "no memory"))
    with pytest.raises(Lost, match="died"):
        trained(monkeypatch, RayError("The actor died because its node is gone"), NEVER)
    with pytest.raises(InputError, match="no model"):
        trained(monkeypatch, Outcome(member.REFUSED, "no model"), NEVER)


def test_processes_stand_in_the_order_of_their_slices() -> None:
    """Bundles lie on hosts as Ray chose; a process has the place of its host."""

    class Placed(Ray):
        class util:  # the module's name
            placement_group_table = staticmethod(lambda group: {"bundles_to_node_id": {0: "d", 1: "b", 2: "a", 3: "c"}})

        @staticmethod
        def nodes() -> list[dict[str, Any]]:
            places = {"a": ("s1", "0"), "b": ("s1", "1"), "c": ("s2", "0"), "d": ("s2", "1")}
            return [{"NodeID": key, "Labels": {SLICE: name, WORKER: i, TOPOLOGY: "2x4"}} for key, (name, i) in places.items()]

    gang = RayGang(Placed, Config(), [GOAL.cell], Shape(4, {"TPU": 4.0}, tpu=("v5litepod", "2x4"), slices=2), "token", Path("gang0-0"))
    assert [(bundle, node["NodeID"]) for bundle, node in gang._bundles()] == [(2, "a"), (1, "b"), (3, "c"), (0, "d")]
    gang.shape = Shape(5, {"TPU": 4.0}, tpu=("v5litepod", "2x4"), slices=2)
    with pytest.raises(Lost, match="before it began"):
        gang._bundles()


def test_a_slice_that_lacks_a_host_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while; each that follows is given as long."""
    monkeypatch.setattr(ray_gang, "WHOLE", 0.1)
    reserved: list[float] = []

    class Slices(RayGang):
        def _reserve(self) -> Any:
            if self._slice is None:
                self._slice, self._group = self, self
                reserved.append(time.monotonic())
            return self._group

        def wait(self, seconds: float) -> bool:
            time.sleep(0.02)
            return False

        def shutdown(self) -> None: ...

    gang = Slices(Ray, Config(), [GOAL.cell], Shape(1, {"TPU": 4.0}, tpu=("v5litepod", "2x2")), "token", Path("gang0-0"))
    assert not gang.place(lambda: len(reserved) == 3)
    assert all(later - earlier > 0.1 for earlier, later in pairwise(reserved))
