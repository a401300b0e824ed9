"""How cells are given to process groups, by stand-ins without processes: longest first, started
again when lost, given up, round by round.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from isojax.core import preemption
from isojax.core.config import Config
from isojax.core.errors import InputError, RunFailed
from isojax.core.nouns import Cell, CellProgress
from isojax.core.preemption import Preempted
from isojax.launch.display import Display
from isojax.launch.planner import plan_cells
from isojax.launch.ray import scheduler as scheduling
from isojax.launch.ray.placement import ProcessGroupSpec
from isojax.launch.ray.process_status import StatusUpdate, WorkerLost
from isojax.launch.ray.scheduler import RayScheduler
from isojax.launch.resume import LOGS_FOLDER
from isojax.launch.status_file import read_status
from isojax.launch.strategies import CellTarget
from tests.refusals import refused

CONFIG = Config.model_validate(
    {
        "cell": {"eval": {"start": 32}},
        "sweep": {"B_p": (4,), "n": (2, 4, 8), "budget": 512},
        "run": {"process_group": {"retries": 2}},
    }
)
CELLS = plan_cells(CONFIG.sweep)


class FakeGroup:
    """A process group whose calls end as `ends` says for a cell, and well where it says nothing."""

    reaches: ClassVar[dict[Cell, list[int]]] = {}
    ends: ClassVar[dict[Cell, list[Exception]]] = {}
    opening: ClassVar[list[Exception]] = []
    trained: ClassVar[list[CellTarget]] = []
    rooms: ClassVar[threading.Semaphore | None] = None
    never: ClassVar[bool] = False
    made: ClassVar[list[FakeGroup]] = []
    lock = threading.Lock()

    def __init__(self, *arguments: Any, pack: Any):
        self.log, self.node_names, self.stopped, self.closed = (
            arguments[-1],
            "here",
            threading.Event(),
            False,
        )
        self.made.append(self)

    def kill(self) -> None: ...

    def start_workers(self, is_cancelled: Callable[[], bool]) -> bool:
        if self.rooms is None or self.rooms.acquire(blocking=False):
            return True
        while not is_cancelled():
            time.sleep(0.01)
        return False

    def open(self, on_status: Callable[[StatusUpdate], None]) -> None:
        if self.opening:
            raise self.opening.pop()
        if self.never and self.trained:  # its preparation never ends, once another group trains
            while True:
                on_status(StatusUpdate())
                time.sleep(0.01)

    def train(self, target: CellTarget, on_status: Callable[[StatusUpdate], None]) -> None:
        with self.lock:
            self.trained.append(target)
            end = self.ends.get(target.cell, [])
            error = end.pop(0) if end else None
        reached = self.reaches.get(target.cell, [])
        on_status(
            StatusUpdate(progress=CellProgress(target.cell, reached.pop(0), None))
            if reached
            else StatusUpdate()
        )
        if isinstance(error, Preempted):
            preemption.REQUESTED.set()
            assert self.stopped.wait(20)
        if isinstance(error, Slow):
            time.sleep(0.3)
        elif error is not None:
            raise error

    def stop(self) -> None:
        self.stopped.set()

    def close(self) -> None:
        self.closed = True

    def log_file(self, process_id: int) -> Path:
        return self.log

    def log_tail(self) -> str:
        return "the end of its log"


class Slow(Exception):
    """Takes until another group waits, and ends well."""


class Nodes:
    @staticmethod
    def nodes() -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 1.0}, "Labels": {}}]


@pytest.fixture
def schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayScheduler]:
    monkeypatch.setattr(scheduling, "RayProcessGroup", FakeGroup)
    monkeypatch.setattr(scheduling, "POLL_INTERVAL", 0.01)
    monkeypatch.setattr(scheduling, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(FakeGroup, "ends", {})
    monkeypatch.setattr(FakeGroup, "opening", [])
    monkeypatch.setattr(FakeGroup, "reaches", {})
    monkeypatch.setattr(FakeGroup, "rooms", None)
    monkeypatch.setattr(FakeGroup, "trained", [])
    monkeypatch.setattr(FakeGroup, "made", [])
    with Display(CONFIG) as display, preemption.handle_sigterm():
        yield RayScheduler(
            Nodes, CONFIG, CELLS, tmp_path, ProcessGroupSpec(1, {"CPU": 1.0}), display
        )


def test_longest_first(schedule: RayScheduler) -> None:
    assert schedule.run() == [] and FakeGroup.trained == [CellTarget(cell, 512) for cell in CELLS]
    status = read_status(schedule.folder)
    assert status and status.ended and {cell.state for cell in status.cells.values()} == {"done"}


def test_a_lost_cell_is_started_again_and_given_up(
    schedule: RayScheduler, capsys: pytest.CaptureFixture[str]
) -> None:
    """One is lost twice, and done; another three times, which is once more than is allowed; a third
    fails by itself, once.
    """
    FakeGroup.ends.update(
        {
            CELLS[0]: [WorkerLost("x")] * 2,
            CELLS[1]: [WorkerLost("its node is gone")] * 3,
            CELLS[2]: [RunFailed("not finite")],
        }
    )
    failed = schedule.run()
    assert [cell for cell, _ in failed] == CELLS[1:3] and str(failed[1][1]) == "not finite"
    assert str(failed[0][1]) == (
        "its process group was lost 3 times at C = 0, the last time because its node is gone; "
        "the end of its log"
    )
    assert [target.cell for target in FakeGroup.trained] == [CELLS[0]] * 3 + [CELLS[1]] * 3 + [
        CELLS[2]
    ]
    status = read_status(schedule.folder)
    assert status and [status.cells[cell.name].state for cell in CELLS] == [
        "done",
        "failed",
        "failed",
    ]
    assert status.cells[CELLS[0].name].attempts == 3
    assert FakeGroup.made[-1].closed


def test_losses_count_where_a_cell_gets_no_further(schedule: RayScheduler) -> None:
    """Five losses, never three at one C."""
    FakeGroup.ends[CELLS[0]] = [WorkerLost("preempted") for _ in range(5)]
    FakeGroup.reaches[CELLS[0]] = [32, 32, 64, 64, 128]
    assert schedule.run() == [] and len(FakeGroup.trained) == 5 + len(CELLS)


def test_a_cell_never_waits_for_resources_of_another_group(
    schedule: RayScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster seems to hold two groups, and holds one: that one trains every cell."""
    monkeypatch.setattr(FakeGroup, "rooms", threading.Semaphore(1))
    monkeypatch.setattr(scheduling, "capacity", lambda *_: 2)
    monkeypatch.setattr(FakeGroup, "ends", {CELLS[0]: [Slow()]})
    assert schedule.run() == [] and sorted(target.cell for target in FakeGroup.trained) == sorted(
        CELLS
    )
    assert len(schedule.slots) == 2


def test_a_group_that_is_not_ready_is_not_waited_for(
    schedule: RayScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the last cell is done another group still prepares the sweep: it ends."""
    monkeypatch.setattr(FakeGroup, "never", True)
    monkeypatch.setattr(scheduling, "capacity", lambda *_: 2)
    FakeGroup.ends[CELLS[0]] = [Slow()]
    assert schedule.run() == [] and sorted(target.cell for target in FakeGroup.trained) == sorted(
        CELLS
    )
    assert len(schedule.slots) == 2


def test_a_group_refused_in_mid_sweep_costs_no_cell(
    schedule: RayScheduler, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node that does not see the folder, for example: its slot is given up after a while, and the
    sweep ends where no other is left.
    """
    FakeGroup.ends[CELLS[0]] = [WorkerLost("its node is gone")]
    refusals = [InputError("the node does not see the folder")] * 3
    schedule.any_group_ready = True
    FakeGroup.opening.extend(refusals)
    with pytest.raises(
        RunFailed,
        match="no process group can begin: the node does not see the folder; the end of its log",
    ):
        schedule.run()
    assert FakeGroup.trained == [] and capsys.readouterr().err.count("could not begin") == 3


def test_a_group_that_cannot_begin(schedule: RayScheduler) -> None:
    FakeGroup.opening.extend([WorkerLost("no module isojax")] * 3)
    with pytest.raises(
        RunFailed, match="no process group could begin: no module isojax; the end of its log"
    ):
        schedule.run()


def test_what_a_group_refuses_ends_the_sweep(schedule: RayScheduler) -> None:
    FakeGroup.opening.append(InputError("the model is not there"))
    with refused():
        schedule.run()


def test_asked_to_end(schedule: RayScheduler) -> None:
    """The cell in training saves its state; the others are not started."""
    FakeGroup.ends[CELLS[0]] = [Preempted("saved")]
    with pytest.raises(Preempted, match="the runs in training have saved their state"):
        schedule.run()
    assert [target.cell for target in FakeGroup.trained] == CELLS[:1]


def test_asked_to_end_before_a_group_is_ready(
    schedule: RayScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that still prepares the sweep has nothing to save: it is not waited for."""
    monkeypatch.setattr(FakeGroup, "never", True)
    FakeGroup.trained.append(CellTarget(CELLS[0], 0))
    threading.Timer(0.2, preemption.REQUESTED.set).start()
    began = time.monotonic()
    with pytest.raises(Preempted):
        schedule.run()
    assert time.monotonic() - began < scheduling.SAVE_TIMEOUT / 10


def test_what_was_not_waited_for_ends_by_itself(
    schedule: RayScheduler, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C twice, or SAVE_TIMEOUT is over: the training group is lost with Ray, without a
    message."""
    monkeypatch.setattr(scheduling, "SAVE_TIMEOUT", 0.0)
    FakeGroup.ends[CELLS[0]] = [Slow()]
    FakeGroup.ends[CELLS[1]] = [WorkerLost("Ray has not been started yet")]
    threading.Timer(0.1, preemption.REQUESTED.set).start()
    with pytest.raises(Preempted, match="not all"):
        schedule.run()
    preemption.REQUESTED.clear()  # as on leaving handle_sigterm
    time.sleep(0.6)
    assert (
        FakeGroup.trained == [CellTarget(CELLS[0], 512)] and "lost" not in capsys.readouterr().err
    )


def test_logs_that_cannot_be_written_are_refused(schedule: RayScheduler) -> None:
    (schedule.folder / LOGS_FOLDER).touch()
    with refused(where=".sweep"):
        schedule.run()


def test_round_by_round(schedule: RayScheduler) -> None:
    """One group serves all rounds; each is taken when the one before has ended."""
    requested = []

    def rounds() -> Iterator[list[CellTarget]]:
        for C in (64, 128):
            requested.append(len(FakeGroup.trained))
            yield [CellTarget(cell, C) for cell in CELLS]

    schedule.cell_queue.rounds = rounds()
    assert schedule.run() == [] and requested == [0, 3]
    assert [target.C for target in FakeGroup.trained] == [64] * 3 + [128] * 3 and len(
        FakeGroup.made
    ) == 1
