"""Which process group trains which cell, and when: a task of one event loop for each group. A lost
cell is started again from its checkpoint, until it was lost too often without progress; a group
that cannot begin is tried again after a pause. The first group makes the base policy, which the
others find."""

import asyncio
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from isojax.core import preemption
from isojax.core.atomic_files import write_text
from isojax.core.config import Config
from isojax.core.errors import InputError, RunFailed
from isojax.core.nouns import Cell
from isojax.launch.display import Display, print_line
from isojax.launch.ray.placement import ProcessGroupSpec, capacity
from isojax.launch.ray.ray_actor import TOKEN_FILE, StatusUpdate, WorkerLost
from isojax.launch.ray.ray_processes import POLL_SECONDS, RayProcessGroup
from isojax.launch.resume import LOGS_FOLDER
from isojax.launch.strategy import CellTarget, training_rounds
from isojax.launch.sweep_status import CellStatus, driver_status, write_status
from isojax.runs.mirror import refresh
from isojax.runs.storage import run_in_thread

STATUS_INTERVAL = 2.0  # seconds between two writings of status.json
POLL_INTERVAL = 0.2  # seconds between two looks at the cluster's nodes
# seconds without a node that could hold a group until the sweep gives up
NO_CAPACITY_TIMEOUT = 600.0
SAVE_TIMEOUT = 120.0  # seconds that cells have to save their state when the sweep is asked to end
T = TypeVar("T")


@dataclass
class ActiveGroup:
    processes: RayProcessGroup
    state: Literal["placing", "opening", "ready"] = "placing"
    cancelled: threading.Event = field(default_factory=threading.Event)
    task: asyncio.Task[None] = field(init=False)


@dataclass
class GroupSlot:
    current: ActiveGroup | None = None
    groups_started: int = 0
    failed_in_a_row: int = 0  # groups that could not begin
    retry_at: float = 0.0  # when the next may begin, by time.monotonic()


@dataclass
class CellQueue:
    rounds: Iterator[Sequence[CellTarget]]  # the targets of each, longest cell first
    status: dict[Cell, CellStatus]
    failures: list[tuple[Cell, Exception]]  # the cells that failed, with their errors
    # targets of this round that nobody trains
    waiting: deque[CellTarget] = field(default_factory=deque)
    finished: bool = False  # whether no round is left
    # C at the last loss, losses without progress
    _losses: dict[Cell, tuple[int, int]] = field(default_factory=dict)

    @property
    def is_training(self) -> bool:
        return any(status.state == "running" for status in self.status.values())

    @property
    def round_ended(self) -> bool:
        """Whether every cell of this round has ended, and another round may follow."""
        return not (self.finished or self.waiting or self.is_training)

    def next_round(self) -> list[CellTarget]:
        targets = list(next(self.rounds, []))
        self.finished = not targets
        self.waiting.extend(targets)
        for target in targets:
            self._update(target.cell, state="waiting")
        return targets

    def take(self, where: str, log: str) -> CellTarget:
        """The next waiting cell, for a group on the nodes `where`, which prints to `log`."""
        target = self.waiting.popleft()
        attempts = self.status[target.cell].attempts + 1
        self._update(target.cell, state="running", where=where, log=log, attempts=attempts)
        return target

    def report(self, cell: Cell, rollouts: int, reward: float | None) -> None:
        self._update(
            cell, rollouts=rollouts, reward=self.status[cell].reward if reward is None else reward
        )

    def end(self, cell: Cell, error: str) -> None:
        self._update(cell, state="failed" if error else "done", error=error)
        if error:
            self.failures.append((cell, RunFailed(error)))

    def count_loss(self, cell: Cell) -> int:
        """Count that a cell was lost; returns how often it was since it last made progress."""
        last_rollouts, losses = self._losses.get(cell, (-1, 0))
        rollouts = self.status[cell].rollouts
        losses = 1 if rollouts > last_rollouts else losses + 1
        self._losses[cell] = max(last_rollouts, rollouts), losses
        return losses

    def put_back(self, target: CellTarget) -> None:
        """A cell that has not ended is the next to be trained, from its checkpoint."""
        self.waiting.appendleft(target)
        self._update(target.cell, state="waiting")

    def _update(self, cell: Cell, **changes: object) -> None:
        self.status[cell] = self.status[cell].model_copy(update=changes)


class RayScheduler:
    def __init__(
        self,
        ray: Any,
        config: Config,
        cells: list[Cell],
        folder: Path,
        spec: ProcessGroupSpec,
        display: Display,
    ):
        self.ray = ray
        self.config = config
        self.cells = cells
        self.folder = folder
        self.spec = spec
        self.display, self.retries = display, config.run.process_group.retries
        failures: list[tuple[Cell, Exception]] = []
        rounds = training_rounds(config, cells, folder, failures)
        self.cell_queue = CellQueue(rounds, {cell: CellStatus() for cell in cells}, failures)
        self.slots: list[GroupSlot] = []
        self.any_group_ready = False
        self.open_error = ""  # why the last group could not begin
        self.token = os.urandom(8).hex()
        self.status_written_at = -STATUS_INTERVAL
        self.capacity_seen_at = time.monotonic()

    def run(self) -> list[tuple[Cell, Exception]]:
        """Run until every cell has ended; returns those that failed. Whatever ends this early, the
        cells in training save their state first; Preempted after SIGTERM or Ctrl-C."""
        for folder in (self.folder, self.folder / LOGS_FOLDER):
            write_text(folder / TOKEN_FILE, self.token)
        try:
            asyncio.run(self._run())
        finally:
            # `_run` raises such an error, which ends the sweep
            with suppress(InputError, RunFailed):
                self._write_status(ended=True)
        return self.cell_queue.failures

    async def _run(self) -> None:
        signum = signal.SIGTERM
        try:
            await self._run_groups()
        except asyncio.CancelledError:  # Ctrl-C; the second one raises KeyboardInterrupt
            signum = signal.SIGINT
            preemption.REQUESTED.set()
        except Exception:  # whatever ended the loop; it is raised again when the cells have saved
            preemption.REQUESTED.set()
            await self._save_cells()
            with suppress(InputError):  # what is recorded at a URL, for the fit
                refresh(self.folder)
            raise
        if preemption.REQUESTED.is_set():
            saved = "saved their state" if await self._save_cells() else "not all saved their state"
            message = f"{self.folder} was asked to end; the runs in training have {saved}. Go on by --resume."
            raise preemption.Preempted(message, signum)

    async def _run_groups(self) -> None:
        """Start groups where cells wait, until all is done, or the sweep is asked to end."""
        while not preemption.REQUESTED.is_set():
            if self.cell_queue.round_ended:
                refresh(self.folder)  # what all groups have recorded
                targets = self.cell_queue.next_round()
                self.display.set_targets(
                    {target.cell: target.rollouts(self.config) for target in targets}
                )
            self._cancel_unneeded_groups()
            if self.cell_queue.finished and not self._groups():
                return
            self._start_group()
            if time.monotonic() - self.status_written_at > STATUS_INTERVAL:
                self._write_status()
            await asyncio.sleep(POLL_INTERVAL)
            for slot in self.slots:
                if slot.current is not None and slot.current.task.done():
                    task, slot.current = slot.current.task, None
                    task.result()  # raises the error that ends the sweep, if any

    def _groups(self) -> list[ActiveGroup]:
        return [slot.current for slot in self.slots if slot.current is not None]

    def _cancel_unneeded_groups(self) -> None:
        """When no cell waits, give up groups that are not placed; at the end, all that are not
        ready."""
        if self.cell_queue.waiting:
            return
        for group in self._groups():
            if group.state == "placing" or (group.state == "opening" and self.cell_queue.finished):
                group.cancelled.set()

    def _start_group(self) -> None:
        num_groups, now = capacity(self.spec, self.ray.nodes()), time.monotonic()
        if num_groups:
            self.capacity_seen_at = now
        elif now - self.capacity_seen_at > NO_CAPACITY_TIMEOUT:
            problem = (
                f"no node could hold a process group for {NO_CAPACITY_TIMEOUT / 60:.0f} minutes"
            )
            raise RunFailed(f"{problem}; what is recorded goes on by --resume.")
        makes_base_policy = not self.any_group_ready and bool(self._groups())
        if not self.cell_queue.waiting or makes_base_policy:
            return
        max_slots = min(max(num_groups, 1), self.config.run.cells_at_once or len(self.cells))
        free_slots = [
            slot
            for slot in self.slots
            if slot.current is None and slot.failed_in_a_row <= self.retries
        ]
        due_slots = [slot for slot in free_slots if now >= slot.retry_at]
        if (
            not due_slots
            and len(self.slots) < max_slots
            and (self.any_group_ready or not self.slots)
        ):
            self.slots.append(GroupSlot())
            due_slots = self.slots[-1:]
        if due_slots:
            slot = due_slots[0]
            log_prefix = (
                self.folder / LOGS_FOLDER / f"group{self.slots.index(slot)}-{slot.groups_started}"
            )
            slot.groups_started += 1
            processes = RayProcessGroup(
                self.ray, self.config, self.cells, self.spec, self.token, log_prefix
            )
            slot.current = group = ActiveGroup(processes)
            group.task = asyncio.create_task(self._run_group(slot, group))
        elif not free_slots and not self._groups():
            raise RunFailed(
                f"no process group can begin: {self.open_error}. What is recorded goes on by --resume."
            )

    async def _run_group(self, slot: GroupSlot, group: ActiveGroup) -> None:
        """A group from its placement to its end. Calls of Ray block, so each is made in a
        thread."""
        processes, loop = group.processes, asyncio.get_running_loop()

        def report(update: StatusUpdate, cell: Cell | None = None) -> None:
            """Called in the thread, with an update on a cell in training or of the preparation."""
            if update != StatusUpdate():
                loop.call_soon_threadsafe(self._show_update, cell, update)
            if group.state == "opening" and group.cancelled.is_set():
                raise WorkerLost("no run is left for it")

        try:
            if await _in_thread(processes.start_workers, group.cancelled.is_set):
                group.state = "opening"
                await _in_thread(processes.open, report)
                group.state = "ready"
                self.any_group_ready = True
                slot.failed_in_a_row = 0
                if await self._train_cells(processes, report):
                    await _in_thread(processes.close)
        except Exception as e:
            if not (group.cancelled.is_set() and isinstance(e, WorkerLost | InputError)):
                self._lose_group(slot, group, e)
        finally:
            processes.kill()

    async def _train_cells(self, processes: RayProcessGroup, report: Callable[..., None]) -> bool:
        """Train cells until none is left or the sweep is asked to end; returns whether the
        processes can be closed."""
        while not (self.cell_queue.finished or preemption.REQUESTED.is_set()):
            if not self.cell_queue.waiting:
                await asyncio.sleep(POLL_INTERVAL)
                continue
            target = self.cell_queue.take(processes.node_names, str(processes.log_file(0)))
            failure = ""
            try:
                await _in_thread(processes.train, target, partial(report, cell=target.cell))
            except preemption.Preempted:
                self.cell_queue.put_back(target)
                return True
            except WorkerLost as e:
                self._lose_cell(processes, target, e)
                return False
            except RunFailed as e:
                failure = str(e)
            self._finish_cell(target.cell, failure)
            # its other processes may be elsewhere in the program
            if failure and self.spec.num_processes > 1:
                return False
        return True

    def _show_update(self, cell: Cell | None, update: StatusUpdate) -> None:
        if update.preparation is not None:
            self.display.show_preparation(*update.preparation)
        for kind, what_happened in update.verifier_failures.items():
            self.display.show_verifier_failure(kind, what_happened)
        if cell is None:
            return
        self.display.show_start(cell, update.start_warnings)
        self.display.show_flags(cell, update.flags)
        if update.progress is not None:
            self.cell_queue.report(cell, update.progress.rollouts, update.progress.reward)
            self.display.update_cell(update.progress)

    def _finish_cell(self, cell: Cell, error: str) -> None:
        self.cell_queue.end(cell, error)
        self.display.finish_cell(cell, failed=bool(error))

    def _lose_group(self, slot: GroupSlot, group: ActiveGroup, error: Exception) -> None:
        """Count that a group could not begin; raises an error that no other group would be
        spared."""
        may_pass = isinstance(error, preemption.Preempted | RunFailed | WorkerLost)
        may_pass = may_pass or (isinstance(error, InputError) and self.any_group_ready)
        if group.state == "ready" or not may_pass:
            raise error
        slot.failed_in_a_row += 1
        slot.retry_at = time.monotonic() + POLL_SECONDS * 2**slot.failed_in_a_row
        self.open_error = f"{error}; {group.processes.log_tail()}"
        if preemption.REQUESTED.is_set():
            return
        print_line(
            f"warning: a process group on {group.processes.node_names} could not begin ({error})"
        )
        if slot.failed_in_a_row > self.retries and not self.any_group_ready:
            raise RunFailed(f"no process group could begin: {self.open_error}")

    def _lose_cell(self, processes: RayProcessGroup, target: CellTarget, error: WorkerLost) -> None:
        """Start a lost cell again, unless that was tried often enough without progress."""
        cell = target.cell
        if not preemption.REQUESTED.is_set():
            losses = self.cell_queue.count_loss(cell)
            if losses > self.retries:
                C = self.cell_queue.status[cell].rollouts
                reason = f"its process group was lost {losses} times at C = {C}, the last time because {error}"
                self._finish_cell(cell, f"{reason}; {processes.log_tail()}")
                return
            loss = (
                f"run {cell.name}: its process group on {processes.node_names} was lost ({error})"
            )
            print_line(
                f"warning: {loss}; started again from its checkpoint ({losses} of {self.retries})"
            )
        self.cell_queue.put_back(target)

    async def _save_cells(self) -> bool:
        """Let the cells in training save their state; whether all did in time. A second Ctrl-C does
        not wait."""
        if self.cell_queue.is_training:
            print_line(
                "stopping: the runs in training save their state (Ctrl-C again: do not wait for them)"
            )
        for group in self._groups():
            group.cancelled.set()
            group.processes.stop()
        tasks = [group.task for group in self._groups()]
        # The first error is what the sweep ends with, so later ones are dropped.
        await asyncio.wait([asyncio.gather(*tasks, return_exceptions=True)], timeout=SAVE_TIMEOUT)
        return all(task.done() for task in tasks)

    def _write_status(self, ended: bool = False) -> None:
        self.status_written_at = time.monotonic()
        cells = {cell.name: status for cell, status in self.cell_queue.status.items()}
        write_status(self.folder, driver_status(ended, cells))


async def _in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """The result of a function that blocks; its thread goes on where the caller is cancelled."""
    return await asyncio.shield(asyncio.wrap_future(run_in_thread(partial(function, *arguments))))
