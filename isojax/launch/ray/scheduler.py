"""Which process group trains which cell, and when: a task of one event loop for each group.

A lost cell is started again from its checkpoint, until it was lost too often without progress; a
group that cannot begin is tried again after a pause. The first group makes the base policy, which
the others find.
"""

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
from typing import Any, Literal, NamedTuple, TypeVar

from isojax.core import preemption
from isojax.core.atomic_files import write_text
from isojax.core.config import Config
from isojax.core.errors import InputError, RunFailed
from isojax.core.nouns import Cell
from isojax.launch.display import Display, print_line
from isojax.launch.ray.placement import ProcessGroupSpec, capacity
from isojax.launch.ray.process_status import TOKEN_FILE, StatusUpdate, WorkerLost
from isojax.launch.ray.ray_processes import POLL_SECONDS, RayProcessGroup
from isojax.launch.resume import LOGS_FOLDER
from isojax.launch.status_file import CellStatus, driver_status, write_status
from isojax.launch.strategies import CellTarget
from isojax.launch.strategy import training_rounds
from isojax.runs.mirror import refresh
from isojax.runs.storage import run_in_thread

# Seconds:
STATUS_INTERVAL = 2.0  # between two writings of status.json
POLL_INTERVAL = 0.2  # between two looks at the cluster's nodes
NO_CAPACITY_TIMEOUT = 600.0  # without a node that could hold a group, until the sweep gives up
SAVE_TIMEOUT = 120.0  # that cells have to save their state when the sweep is asked to end
T = TypeVar("T")


@dataclass
class ActiveGroup:
    """A process group, from the moment in which it is asked for until its task has ended."""

    processes: RayProcessGroup
    state: Literal["placing", "opening", "ready"] = "placing"
    # whether it is to be given up; read by the threads that call Ray
    cancelled: threading.Event = field(default_factory=threading.Event)
    task: asyncio.Task[None] = field(init=False)  # set right after it is made


@dataclass
class GroupSlot:
    """Room for one process group at a time, and how those before it fared."""

    current: ActiveGroup | None = None
    groups_started: int = 0
    failed_in_a_row: int = 0  # groups that could not begin
    retry_at: float = 0.0  # when the next may begin, by time.monotonic()


class LastLoss(NamedTuple):
    """Of a cell whose process group was lost."""

    rollouts: int  # C, the most that it had reached by then
    losses: int  # how often it was lost since it last made progress


@dataclass
class CellQueue:
    """The cells of a sweep: which wait for a group, and how all of them stand."""

    rounds: Iterator[Sequence[CellTarget]]  # the targets of each, longest cell first
    status: dict[Cell, CellStatus]
    failures: list[tuple[Cell, Exception]]  # the cells that failed, with their errors
    # targets of this round that nobody trains
    waiting: deque[CellTarget] = field(default_factory=deque)
    finished: bool = False  # whether no round is left
    _losses: dict[Cell, LastLoss] = field(default_factory=dict)

    @property
    def is_training(self) -> bool:
        return any(status.state == "running" for status in self.status.values())

    @property
    def round_ended(self) -> bool:
        """Whether every cell of this round has ended, and another round may follow."""
        return not (self.finished or self.waiting or self.is_training)

    def next_round(self) -> list[CellTarget]:
        """Put the next round's targets into the queue and return them; [] where none is left.

        Only once `round_ended`, as the next round follows from what is recorded.
        """
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
        """What a cell has reached; reward: of its newest evaluation, None where there was none
        since the last report."""
        last_reward = self.status[cell].reward
        self._update(cell, rollouts=rollouts, reward=last_reward if reward is None else reward)

    def end(self, cell: Cell, error: str) -> None:
        """A cell has ended, by an error unless that is empty."""
        self._update(cell, state="failed" if error else "done", error=error)
        if error:
            self.failures.append((cell, RunFailed(error)))

    def count_loss(self, cell: Cell) -> int:
        """Count that a cell was lost; returns how often it was since it last made progress.

        1 where C has grown since the loss before.
        """
        # -1: a first loss counts as one after progress, even at C = 0.
        before = self._losses.get(cell, LastLoss(rollouts=-1, losses=0))
        rollouts = self.status[cell].rollouts
        made_progress = rollouts > before.rollouts
        losses = 1 if made_progress else before.losses + 1
        self._losses[cell] = LastLoss(max(before.rollouts, rollouts), losses)
        return losses

    def put_back(self, target: CellTarget) -> None:
        """A cell that has not ended is the next to be trained, from its checkpoint."""
        self.waiting.appendleft(target)
        self._update(target.cell, state="waiting")

    def _update(self, cell: Cell, **changes: object) -> None:
        self.status[cell] = self.status[cell].model_copy(update=changes)


class RayScheduler:
    """Runs the cells of a sweep in process groups; all but calls of Ray is in one event loop."""

    def __init__(
        self,
        ray: Any,
        config: Config,
        cells: list[Cell],
        folder: Path,
        spec: ProcessGroupSpec,
        display: Display,
        pack: Any = None,
    ):
        """ray: the module, connected to a cluster. cells: of `plan_cells`. folder: the sweep's.

        spec: what each cell's process group asks of the cluster. pack: the bytes of a pack with the
        files of the config, as Ray's reference; None: processes work in the driver's folder.
        """
        self.ray = ray
        self.config = config
        self.cells = cells
        self.folder = folder
        self.spec = spec
        self.display = display
        self.pack = pack
        self.retries = config.run.process_group.retries

        failures: list[tuple[Cell, Exception]] = []
        rounds = training_rounds(config, cells, folder, failures)
        self.cell_queue = CellQueue(rounds, {cell: CellStatus() for cell in cells}, failures)
        self.slots: list[GroupSlot] = []
        self.any_group_ready = False  # whether the base policy is made
        self.open_error = ""  # why the last group could not begin
        self.token = os.urandom(8).hex()  # by which processes know the driver's folder

        # By time.monotonic().
        self.status_written_at = -STATUS_INTERVAL
        self.capacity_seen_at = time.monotonic()

    def run(self) -> list[tuple[Cell, Exception]]:
        """Run until every cell has ended; returns those that failed, with their errors.

        Whatever ends this early, the cells in training save their state first. Preempted after
        SIGTERM or Ctrl-C; RunFailed where no process group can begin; InputError where the sweep is
        refused; DeadStart where no cell can learn.
        """
        # Processes look for it in the sweep's folder. Both folders have to be writable, which is
        # seen here before any process starts.
        for folder in (self.folder, self.folder / LOGS_FOLDER):
            write_text(folder / TOKEN_FILE, self.token)
        try:
            asyncio.run(self._run())
        finally:
            # A status that cannot be written has ended `_run` by this error already; where `_run`
            # ended otherwise, its end counts, not that of its last status.
            with suppress(InputError, RunFailed):
                self._write_status(ended=True)
        return self.cell_queue.failures

    async def _run(self) -> None:
        """Run the groups; at any early end, let the cells in training save their state."""
        signum = signal.SIGTERM
        try:
            await self._run_groups()
        except asyncio.CancelledError:  # Ctrl-C; the second one raises KeyboardInterrupt
            signum = signal.SIGINT
            preemption.REQUESTED.set()
        except Exception:  # whatever ended the loop; it is raised again when the cells have saved
            preemption.REQUESTED.set()
            await self._save_cells()
            # After an error, but not after Preempted, the command fits what was recorded. Where
            # that is at a URL, it is copied here first.
            with suppress(InputError):
                refresh(self.folder)
            raise

        if preemption.REQUESTED.is_set():
            all_saved = await self._save_cells()
            saved = "saved their state" if all_saved else "not all saved their state"
            raise preemption.Preempted(
                f"{self.folder} was asked to end; the runs in training have {saved}.",
                signum,
            )

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
                    ended_task = slot.current.task
                    slot.current = None
                    ended_task.result()  # raises the error that ends the sweep, if any

    def _groups(self) -> list[ActiveGroup]:
        return [slot.current for slot in self.slots if slot.current is not None]

    def _cancel_unneeded_groups(self) -> None:
        """While no cell waits, give up groups that have no place yet; at the end also opening ones.

        They notice it in their threads (`ActiveGroup.cancelled`).
        """
        if self.cell_queue.waiting:
            return
        for group in self._groups():
            if group.state == "placing" or (group.state == "opening" and self.cell_queue.finished):
                group.cancelled.set()

    def _start_group(self) -> None:
        """Start one group more, where a cell waits for it and the cluster may have room.

        RunFailed where the cluster has had none for NO_CAPACITY_TIMEOUT, or no group can begin.
        """
        now = time.monotonic()
        num_groups = capacity(self.spec, self.ray.nodes())
        if num_groups:
            self.capacity_seen_at = now
        elif now - self.capacity_seen_at > NO_CAPACITY_TIMEOUT:
            minutes = NO_CAPACITY_TIMEOUT / 60
            problem = f"no node could hold a process group for {minutes:.0f} minutes"
            raise RunFailed(f"{problem}; what is recorded goes on by --resume.")

        # The first group makes the base policy; another one would make it again.
        is_base_policy_under_way = not self.any_group_ready and bool(self._groups())
        if not self.cell_queue.waiting or is_base_policy_under_way:
            return

        usable_slots = [
            slot
            for slot in self.slots
            if slot.current is None and slot.failed_in_a_row <= self.retries
        ]
        slot = self._due_slot(usable_slots, num_groups, now)
        if slot is not None:
            self._start_group_in(slot)
        elif not usable_slots and not self._groups():
            raise RunFailed(
                f"no process group can begin: {self.open_error}. What is recorded goes on by"
                " --resume."
            )

    def _due_slot(
        self, usable_slots: list[GroupSlot], num_groups: int, now: float
    ) -> GroupSlot | None:
        """The slot for the next group: one whose pause is over, else a new one; None: not now.

        usable_slots: those without a group that have not failed too often. num_groups: how many
        groups the cluster holds; a slot is added only while there are fewer. now: by
        time.monotonic().
        """
        for slot in usable_slots:
            if now >= slot.retry_at:
                return slot

        # One slot even where the cluster holds no group now: its nodes may come and go. Until the
        # base policy is made, a single one.
        max_slots = min(max(num_groups, 1), self.config.run.cells_at_once or len(self.cells))
        may_add = self.any_group_ready or not self.slots
        if len(self.slots) >= max_slots or not may_add:
            return None
        new_slot = GroupSlot()
        self.slots.append(new_slot)
        return new_slot

    def _start_group_in(self, slot: GroupSlot) -> None:
        """Begin the task of a new process group in a slot without one."""
        # A slot's groups follow each other; each has logs of its number.
        log_name = f"group{self.slots.index(slot)}-{slot.groups_started}"
        log_prefix = self.folder / LOGS_FOLDER / log_name
        slot.groups_started += 1

        processes = RayProcessGroup(
            self.ray,
            self.config,
            self.cells,
            self.spec,
            self.token,
            log_prefix,
            pack=self.pack,
        )
        group = ActiveGroup(processes)
        slot.current = group
        # The group keeps its task: asyncio alone would not keep it alive.
        group.task = asyncio.create_task(self._run_group(slot, group))

    async def _run_group(self, slot: GroupSlot, group: ActiveGroup) -> None:
        """A group from its placement to its end; an error that it raises ends the sweep.

        Calls of Ray block, so each is made in a thread.
        """
        processes = group.processes
        loop = asyncio.get_running_loop()

        def report(update: StatusUpdate, cell: Cell | None = None) -> None:
            """Called in the thread, with news of a cell in training, or without one of preparation.

            Captures `loop` and `group`. WorkerLost, which ends the call of Ray, where the group is
            given up.
            """
            if update != StatusUpdate():
                loop.call_soon_threadsafe(self._show_update, cell, update)
            if group.state == "opening" and group.cancelled.is_set():
                raise WorkerLost("no run is left for it")

        try:
            has_started = await _in_thread(processes.start_workers, group.cancelled.is_set)
            if not has_started:
                return
            group.state = "opening"
            await _in_thread(processes.open, report)

            group.state = "ready"
            self.any_group_ready = True
            slot.failed_in_a_row = 0
            can_be_closed = await self._train_cells(processes, report)
            if can_be_closed:
                await _in_thread(processes.close)
        except Exception as e:
            # A group that was given up may end in any of the ways of a lost one.
            is_given_up = group.cancelled.is_set() and isinstance(e, WorkerLost | InputError)
            if not is_given_up:
                self._lose_group(slot, group, e)
        finally:
            processes.kill()

    async def _train_cells(self, processes: RayProcessGroup, report: Callable[..., None]) -> bool:
        """Train cells until none is left or the sweep is asked to end.

        report: takes a StatusUpdate and, by name, its cell. Returns whether the processes can be
        closed: after a loss, or a failure in one of several, they can only be killed.
        """
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
            # After a failure of one process, the others may be elsewhere in the program.
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
        """Count that a group could not begin; or raise the error, where it would meet every group.

        An error of a group that was ready is raised too, as failures of its cells have been handled
        by then.
        """
        # Where another group has been ready, the sweep itself is not refused.
        is_refused_here = isinstance(error, InputError) and self.any_group_ready
        may_pass = isinstance(error, preemption.Preempted | RunFailed | WorkerLost)
        if group.state == "ready" or not (may_pass or is_refused_here):
            raise error

        slot.failed_in_a_row += 1
        # A pause of 1, 2, 4, ... seconds.
        slot.retry_at = time.monotonic() + POLL_SECONDS * 2**slot.failed_in_a_row
        self.open_error = f"{error}; {group.processes.log_tail()}"
        if preemption.REQUESTED.is_set():
            return
        print_line(
            f"warning: a process group on {group.processes.node_names} could not begin ({error})"
        )

        # Without a base policy there is no other slot that could go on.
        if slot.failed_in_a_row > self.retries and not self.any_group_ready:
            raise RunFailed(f"no process group could begin: {self.open_error}")

    def _lose_cell(self, processes: RayProcessGroup, target: CellTarget, error: WorkerLost) -> None:
        """Put a lost cell back into the queue, or end it as failed after `retries` restarts.

        Restarts before its last progress do not count.
        """
        if preemption.REQUESTED.is_set():  # it may be that which has ended the process
            self.cell_queue.put_back(target)
            return

        cell = target.cell
        losses = self.cell_queue.count_loss(cell)
        if losses > self.retries:
            C = self.cell_queue.status[cell].rollouts
            reason = (
                f"its process group was lost {losses} times at C = {C}, the last time because"
                f" {error}"
            )
            self._finish_cell(cell, f"{reason}; {processes.log_tail()}")
            return

        loss = f"run {cell.name}: its process group on {processes.node_names} was lost ({error})"
        print_line(
            f"warning: {loss}; started again from its checkpoint ({losses} of {self.retries})"
        )
        self.cell_queue.put_back(target)

    async def _save_cells(self) -> bool:
        """Let the cells in training save their state; returns whether all did within SAVE_TIMEOUT.

        A second Ctrl-C does not wait.
        """
        if self.cell_queue.is_training:
            print_line(
                "stopping: the runs in training save their state (Ctrl-C again: do not wait for"
                " them)"
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
