"""Which gang trains which cell when: longest first, begun again when lost, given up, round by round. No jax here, and
no Ray but what is
given: the processes of a gang are ray_processes.py's."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from isojax.core import preemption
from isojax.core.atomic_files import write_text
from isojax.core.config import Config
from isojax.core.errors import InputError, RunFailed
from isojax.core.nouns import Cell
from isojax.core.preemption import Preempted
from isojax.launch import sweep_status
from isojax.launch.display import Display, console
from isojax.launch.ray import ray_worker
from isojax.launch.ray.placement import ProcessGroupSpec, capacity
from isojax.launch.ray.ray_processes import POLL_SECONDS, RayProcessGroup, WorkerLost
from isojax.launch.ray.ray_worker import StatusUpdate
from isojax.launch.resume import LOGS_FOLDER
from isojax.launch.strategy import CellTarget, training_rounds
from isojax.launch.sweep_status import CellStatus, DriverStatus
from isojax.runs.workspace import refresh

STATUS_INTERVAL = 2.0  # seconds between two writings of status.json
POLL_INTERVAL = 0.2  # seconds between two looks at the schedule
NO_CAPACITY_TIMEOUT = 600.0  # seconds without a node that could hold a gang until the sweep gives up
SAVE_TIMEOUT = 120.0  # seconds that cells have to save their state when the sweep is told to end


@dataclass
class ScheduledCell:
    """What became of a cell so far; but for the goal, as status.CellStatus has it."""

    target: CellTarget
    state: Literal["waiting", "running", "failed", "done"] = "waiting"
    attempts: int = 0
    rollouts: int = 0
    reward: float | None = None
    where: str = ""
    log: str = ""
    error: str = ""


class RayScheduler:
    """Cells and the gangs that take them: a thread for each gang, which begins another when one is lost."""

    def __init__(
        self, ray: Any, config: Config, cells: list[Cell], folder: Path, spec: ProcessGroupSpec, display: Display
    ):
        self.ray, self.config, self.cells, self.folder, self.spec, self.display = (
            ray,
            config,
            cells,
            folder,
            spec,
            display,
        )
        self.scheduled_cells = {cell: ScheduledCell(CellTarget(cell, 0)) for cell in cells}
        self.failures: list[tuple[Cell, Exception]] = []
        self.lost_attempts: dict[
            Cell, tuple[int, int]
        ] = {}  # of each cell, C up to the last loss of its gang, and losses since it was less
        self.round_iterator = training_rounds(config, cells, folder, self.failures)
        self.cell_queue: deque[ScheduledCell] = deque()
        self.cells_left = 0  # cells of this round that have not ended
        self.finished = False
        self.process_groups: dict[int, RayProcessGroup] = {}  # by the number of their thread
        self.token, self.status_written_at = os.urandom(8).hex(), -STATUS_INTERVAL
        self.first_group_ready, self.queue_changed = threading.Event(), threading.Condition()
        self.fatal_error: BaseException | None = None
        self.open_error = ""  # why the last gang could not begin

    def run(self) -> list[tuple[Cell, Exception]]:
        """Until every cell is done or has failed; those that failed. One gang makes the base policy, then the others
        begin. Whatever ends the sweep before, the cells at work save their state first."""
        for folder in (self.folder, self.folder / LOGS_FOLDER):  # both are to be written
            write_text(folder / ray_worker.TOKEN_FILE, self.token)
        threads: list[threading.Thread] = []
        signal_number, error = signal.SIGTERM, None
        try:
            self._start_groups(threads)
            error = self.fatal_error
        except KeyboardInterrupt:
            signal_number = signal.SIGINT
            preemption.request_preemption()
        except (InputError, RunFailed) as e:
            error = e
        try:
            if error is not None or preemption.requested():
                preemption.request_preemption()
                saved_prefix = self._save_cells(threads)
                if error is not None:
                    with suppress(InputError):  # what is recorded at a URL, for the fit
                        refresh(self.folder)
                    raise error
                raise Preempted(
                    f"{self.folder} was told to end; the cells at work have {saved_prefix}saved their state. Go on by --resume.",
                    signal_number,
                )
        finally:
            self.finished = True  # for gangs that were not waited for
            with suppress(InputError, RunFailed):  # which are raised where they end the sweep
                self._write_status(ended=True)
        return self.failures

    def _start_groups(self, threads: list[threading.Thread]) -> None:
        """Begins gangs as there is room, until all is done, it is told to end, or something is broken."""
        seconds_without_capacity = 0.0
        while self._next_round() or any(thread.is_alive() for thread in threads):
            time.sleep(POLL_INTERVAL)
            if preemption.requested() or self.fatal_error:
                return
            num_groups = capacity(self.spec, self.ray.nodes())
            can_start = self.cell_queue and (
                self.first_group_ready.is_set() or not threads
            )  # the first gang makes what the others find
            if can_start and len(threads) < min(max(num_groups, 1), self._max_groups()):
                threads.append(self._start_group_thread(len(threads)))
            elif can_start and not any(thread.is_alive() for thread in threads):
                raise RunFailed(f"no gang can begin any more: {self.open_error}. What is recorded goes on by --resume.")
            seconds_without_capacity = 0.0 if num_groups else seconds_without_capacity + POLL_INTERVAL
            if seconds_without_capacity > NO_CAPACITY_TIMEOUT:
                raise RunFailed(
                    f"no node could hold a gang for {NO_CAPACITY_TIMEOUT / 60:.0f} minutes; what is recorded goes on by --resume."
                )
            self._write_status()

    def _next_round(self) -> bool:
        """Whether there is work; where a round has ended, the next one's is brought, from what all gangs have
        recorded.
        """
        with self.queue_changed:
            if self.cells_left == 0 and not self.finished and not preemption.requested():
                refresh(self.folder)
                targets = next(self.round_iterator, [])
                self.finished, self.cells_left = not targets, len(targets)
                self.display.set_targets(targets)
                for target in targets:
                    self.scheduled_cells[target.cell].target, self.scheduled_cells[target.cell].state = (
                        target,
                        "waiting",
                    )
                    self.cell_queue.append(self.scheduled_cells[target.cell])
                self.queue_changed.notify_all()
            return not self.finished

    def _max_groups(self) -> int:
        return self.config.run.cells_at_once or len(self.cells)

    def _start_group_thread(self, group_index: int) -> threading.Thread:
        thread = threading.Thread(target=self._run_groups, args=(group_index,), daemon=True, name=f"gang {group_index}")
        thread.start()
        return thread

    def _run_groups(self, group_index: int) -> None:
        """One gang after another trains cells until none is left."""
        groups_started = lost_in_a_row = 0
        try:
            while lost_in_a_row <= self.config.run.gang.retries and self._wait_for_cell():
                log_prefix = self.folder / LOGS_FOLDER / f"gang{group_index}-{groups_started}"
                groups_started += 1
                with RayProcessGroup(self.ray, self.config, self.cells, self.spec, self.token, log_prefix) as group:
                    self.process_groups[group_index] = group
                    lost_in_a_row = self._run_group(group, lost_in_a_row)
                if lost_in_a_row:  # what was the matter may pass
                    with self.queue_changed:
                        self.queue_changed.wait(POLL_SECONDS * 2**lost_in_a_row)
            if lost_in_a_row and not self.first_group_ready.is_set() and not preemption.requested():
                raise RunFailed(f"no gang could begin: {self.open_error}")
        except BaseException as e:  # for the main thread to raise
            self.fatal_error = e

    def _run_group(self, group: RayProcessGroup, lost_in_a_row: int) -> int:
        """What one gang does. It has a cell only once it stands, so that a cell never waits for room that another gang
        has; returns how many gangs in a row were `lost` before that."""
        try:
            if not group.start_workers(lambda: preemption.requested() or not self.cell_queue) or preemption.requested():
                return lost_in_a_row
            group.open(self._on_opening_status)
        except (WorkerLost, InputError) as e:
            if isinstance(e, InputError) and not self.first_group_ready.is_set():
                raise
            self.open_error = f"{e}; {group.log_tail()}"
            if not (preemption.requested() or self.finished):
                node_names = group.node_names or "the cluster"
                console.print(
                    f"warning: a gang on {node_names} could not begin ({e})",
                    soft_wrap=True,
                    highlight=False,
                    markup=False,
                )
            return lost_in_a_row + 1
        self.first_group_ready.set()
        self._train_cells(group)
        return 0

    def _train_cells(self, group: RayProcessGroup) -> None:
        """The cells of one gang, until it is lost or none is left."""
        while (scheduled_cell := self._take_cell()) is not None:
            scheduled_cell.state, scheduled_cell.where, scheduled_cell.log = (
                "running",
                group.node_names,
                str(group.log_file(0)),
            )
            scheduled_cell.attempts += 1
            self.display.start_cell(scheduled_cell.target.cell)
            try:
                result = group.train(scheduled_cell.target, partial(self._on_status, scheduled_cell=scheduled_cell))
            except WorkerLost as e:
                if not (preemption.requested() or self.finished):
                    self._retry_cell(scheduled_cell, group, e)
                return
            if result.kind == ray_worker.PREEMPTED:
                scheduled_cell.state = "waiting"
                break
            self._end_cell(scheduled_cell, result.message if result.kind == ray_worker.CELL_FAILED else "")
            if result.kind == ray_worker.CELL_FAILED and self.spec.num_processes > 1:
                return  # its other processes may be elsewhere in the program
        group.close()

    def _wait_for_cell(self) -> bool:
        """Waits for a cell that nobody has taken; False where there will be none."""
        with self.queue_changed:
            while not self.cell_queue and not self.finished and not preemption.requested():
                self.queue_changed.wait(POLL_SECONDS)
            return bool(self.cell_queue) and not (self.finished or preemption.requested())

    def _take_cell(self) -> ScheduledCell | None:
        """The next cell; None where there will be none. A gang that could go on waits for the next round."""
        while self._wait_for_cell():
            with self.queue_changed:
                if self.cell_queue:  # and no other gang was faster
                    return self.cell_queue.popleft()
        return None

    def _retry_cell(self, scheduled_cell: ScheduledCell, group: RayProcessGroup, cause: WorkerLost) -> None:
        """The cell is begun again, by another gang, unless that has been tried often enough without getting further."""
        last_rollouts, num_losses = self.lost_attempts.get(scheduled_cell.target.cell, (-1, 0))
        num_losses = 1 if scheduled_cell.rollouts > last_rollouts else num_losses + 1
        self.lost_attempts[scheduled_cell.target.cell] = max(last_rollouts, scheduled_cell.rollouts), num_losses
        retries = self.config.run.gang.retries
        if num_losses > retries:
            self._end_cell(
                scheduled_cell,
                f"its gang was lost {num_losses} times at C = {scheduled_cell.rollouts}, the last time because {cause}; {group.log_tail()}",
            )
            return
        retry_text = f"begun again from its checkpoint ({num_losses} of {retries})"
        self.display.show_lost_cell(
            scheduled_cell.target.cell,
            f"its gang on {group.node_names or 'the cluster'} was lost ({cause}); {retry_text}",
        )
        scheduled_cell.state = "waiting"
        with self.queue_changed:
            self.cell_queue.appendleft(scheduled_cell)
            self.queue_changed.notify_all()

    def _end_cell(self, scheduled_cell: ScheduledCell, error: str) -> None:
        scheduled_cell.state, scheduled_cell.error = ("failed" if error else "done"), error
        if error:
            self.failures.append((scheduled_cell.target.cell, RunFailed(error)))
        self.display.finish_cell(scheduled_cell.target.cell, failed=bool(error))
        with self.queue_changed:
            self.cells_left -= 1

    def _on_opening_status(self, status_update: StatusUpdate) -> None:
        """Shows what a gang that is not ready yet has told; it is not waited for once all is done, or the sweep is told
        to end.
        """
        self._on_status(status_update)
        if self.finished or preemption.requested():
            raise WorkerLost("no cell is left for it")

    def _on_status(self, status_update: StatusUpdate, scheduled_cell: ScheduledCell | None = None) -> None:
        """Shows what a gang has told."""
        if status_update.preparation is not None:
            self.display.show_preparation(*status_update.preparation)
        self.display.show_verifier_failures(status_update.verifier_failures)
        if scheduled_cell is not None:
            self.display.show_flags(scheduled_cell.target.cell, status_update.flags)
            if status_update.progress is not None:
                scheduled_cell.rollouts = status_update.progress.rollouts
                scheduled_cell.reward = (
                    scheduled_cell.reward if status_update.progress.reward is None else status_update.progress.reward
                )
                self.display.update_cell(status_update.progress)

    def _save_cells(self, threads: Sequence[threading.Thread]) -> str:
        """The cells at work save their state, for which they have some time; a second Ctrl-C does not wait for that. ""
        or "not all ".
        """
        if any(work.state == "running" for work in self.scheduled_cells.values()):
            console.print("stopping: the cells at work save their state (Ctrl-C again: do not wait for them)")
        for group in list(self.process_groups.values()):
            group.stop()
        deadline = time.monotonic() + SAVE_TIMEOUT
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return "" if not any(thread.is_alive() for thread in threads) else "not all "

    def _write_status(self, ended: bool = False) -> None:
        """Every few seconds: how far each cell is, for `isojax status`."""
        if not ended and time.monotonic() - self.status_written_at < STATUS_INTERVAL:
            return
        self.status_written_at = time.monotonic()
        cells = {
            cell.name: CellStatus(**{name: value for name, value in vars(work).items() if name != "target"})
            for cell, work in self.scheduled_cells.items()
        }
        sweep_status.write_status(
            self.folder,
            DriverStatus(time=time.time(), host=socket.gethostname(), pid=os.getpid(), ended=ended, cells=cells),
        )
