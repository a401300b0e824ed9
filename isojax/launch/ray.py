"""A sweep on a Ray cluster: each cell runs in a gang of processes, placed together, killed whole, and begun again from its checkpoint.

One thread a gang takes the cells, longest first. A gang keeps its compiled programs from cell to cell. The driver plans, schedules, shows
and fits; it never imports jax, so that it claims no accelerator. Whatever ends it, Ray ends its gangs, and --resume goes on.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from isojax import stopping
from isojax.config import Config
from isojax.launch import member, status
from isojax.launch.display import Display, console, print_cells
from isojax.launch.gang import ALONE, Gang
from isojax.launch.member import News
from isojax.launch.placement import Shape, capacity, check, shape_of
from isojax.launch.planner import plan
from isojax.launch.ray_gang import LOOK, Lost, RayGang
from isojax.launch.resume import LOGS, begun
from isojax.launch.rounds import Goal, rounds
from isojax.launch.rounds import check as check_rounds
from isojax.launch.status import CellStatus, Status
from isojax.launch.workers import raise_failures
from isojax.stopping import Stopped
from isojax.storage import alone, folder_of, fresh
from isojax.types import Cell, InputError, RunFailed

LOCAL, AUTO = "local", "auto"
CONNECT = 25.0  # seconds in which a cluster answers
TOLD = 2.0  # seconds between two writings of status.json
TICK = 0.2  # seconds between two looks at the schedule
ROOM = 600.0  # seconds without a node that could hold a gang until the sweep gives up
SAVING = 120.0  # seconds that cells have to save their state when the sweep is told to end


def launch(config: Config, resume: bool, dry_run: bool, gang: Gang = ALONE) -> Path:
    """Run every cell of the sweep that is not finished, on the cluster of `run.ray`; returns the sweep's folder.

    Raises:
        InputError: within half a minute and before any work, where there is no such cluster, it cannot hold a gang, the folder cannot be
            written, or as the local runner refuses a sweep.
        RunFailed: after all other cells are done, naming the cells that failed.
        Stopped: told to end by Ctrl-C or SIGTERM; the cells at work have saved their state.
    """
    if gang.several:
        raise InputError("--ray starts the processes of its gangs itself; leave --processes, --process and --coordinator out.")
    cells, folder = plan(config.sweep), folder_of(config.run.dir, config.name).absolute()
    begun(folder, resume or dry_run)
    check_rounds(config, cells)
    with connected(config.run.ray or LOCAL) as ray:
        nodes = ray.nodes()
        shape = shape_of(config, nodes)
        gangs = min(check(shape, nodes), len(cells), config.run.cells_at_once or len(cells))
        print_cells(config, cells, folder)
        console.print(f"{gangs} gangs at once on {len(nodes)} nodes, each of {shape}", soft_wrap=True, highlight=False)
        if not dry_run:
            with alone(folder), Display(config) as display, stopping.heeding_sigterm():
                failed = Schedule(ray, config, cells, folder, shape, display).run()
            raise_failures(failed, len(cells), folder)
    return folder


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """The module ray, connected to a cluster: one of this machine alone, which ends with the context; the one that this machine is a node
    of (auto); or that of HOST:PORT or ray://HOST:PORT.

    Raises:
        InputError: ray is not installed, or no cluster answers.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a process without a GPU keeps its environment
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    os.environ.setdefault("RAY_worker_niceness", "0")  # of processes that Ray starts here: they are what runs here
    try:
        import ray
    except ModuleNotFoundError as e:
        raise InputError("--ray needs Ray, which is not installed. Install it: pip install 'isojax[ray]'") from e
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False, "namespace": "isojax"}
    if address == LOCAL:
        ray.init(address=LOCAL, num_cpus=_cores(), include_dashboard=False, **quiet)
    else:
        _answers(address)
        _within(CONNECT, lambda: ray.init(address=address, **quiet), address)
    try:
        yield ray
    finally:
        ray.shutdown()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _answers(address: str) -> None:
    """InputError where nothing listens at HOST:PORT."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address == AUTO:
        return
    if not host or not port.isdigit():
        raise InputError(f"--ray: given {address!r}, expected local, auto, HOST:PORT or ray://HOST:PORT.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError as e:
        raise _no_cluster(address, e) from e


def _within(seconds: float, connect: Any, address: str) -> None:
    """What `connect` does; InputError where it fails or takes longer."""
    raised: list[BaseException] = []

    def guarded() -> None:
        try:
            connect()
        except BaseException as e:  # for the caller, who raises it
            raised.append(e)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise _no_cluster(address, TimeoutError(f"no answer in {seconds:.0f} seconds"))
    if raised:
        raise _no_cluster(address, raised[0]) from raised[0]


def _no_cluster(address: str, error: BaseException) -> InputError:
    said = str(error).strip().splitlines() or [type(error).__name__]
    where = "that this machine is a node of" if address == AUTO else f"at {address}"
    return InputError(
        f"--ray {address}: no Ray cluster {where} ({said[0][:200]}). Start one by `ray start --head --port=6379`, join it by "
        "`ray start --address=HOST:6379`, or run on this machine alone by --ray local."
    )


@dataclass
class Work:
    """What became of a cell so far; but for the goal, as status.CellStatus has it."""

    goal: Goal
    state: Literal["waiting", "running", "failed", "done"] = "waiting"
    attempts: int = 0
    rollouts: int = 0
    reward: float | None = None
    where: str = ""
    log: str = ""
    error: str = ""


class Schedule:
    """Cells and the gangs that take them: a thread for each gang, which begins another when one is lost."""

    def __init__(self, ray: Any, config: Config, cells: list[Cell], folder: Path, shape: Shape, display: Display):
        self.ray, self.config, self.cells, self.folder, self.shape, self.display = ray, config, cells, folder, shape, display
        self.works = {cell: Work(Goal(cell, 0)) for cell in cells}
        self.failed: list[tuple[Cell, Exception]] = []
        self.rounds = rounds(config, cells, folder, self.failed)
        self.todo: deque[Work] = deque()
        self.left = 0  # cells of this round that have not ended
        self.over = False
        self.gangs: dict[int, RayGang] = {}  # by the number of their thread
        self.token, self.told = os.urandom(8).hex(), -TOLD
        self.opened, self.ready = threading.Event(), threading.Condition()
        self.refused: InputError | None = None
        self.broken: BaseException | None = None

    def run(self) -> list[tuple[Cell, Exception]]:
        """Until every cell is done or has failed; those that failed. One gang makes the base policy, then the others begin."""
        (self.folder / member.TOKEN).write_text(self.token)
        threads: list[threading.Thread] = []
        roomless, by = 0.0, signal.SIGTERM
        try:
            while self._next_round() or any(thread.is_alive() for thread in threads):
                time.sleep(TICK)
                if stopping.asked() or self.refused or self.broken:
                    break
                holds = capacity(self.shape, self.ray.nodes())
                begin = self.todo and (self.opened.is_set() or not threads)  # the first gang makes what the others find
                if begin and len(threads) < min(max(holds, 1), self._wanted()):
                    threads.append(self._begin(len(threads)))
                roomless = 0.0 if holds else roomless + TICK
                if roomless > ROOM:
                    raise RunFailed(f"no node could hold a gang for {ROOM / 60:.0f} minutes; what is recorded goes on by --resume.")
                self._tell()
        except KeyboardInterrupt:
            by = signal.SIGINT
            stopping.ask()
        if error := self.refused or self.broken:
            self._tell(ended=True)
            raise error
        if stopping.asked():
            self._stop(threads, by)
        self._tell(ended=True)
        return self.failed

    def _next_round(self) -> bool:
        """Whether there is work; where a round has ended, the next one's is brought."""
        with self.ready:
            if self.left == 0 and not self.over and not stopping.asked():
                goals = next(self.rounds, [])
                self.over, self.left = not goals, len(goals)
                self.display.aim(goals)
                for goal in goals:
                    self.works[goal.cell].goal, self.works[goal.cell].state = goal, "waiting"
                    self.todo.append(self.works[goal.cell])
                self.ready.notify_all()
            return not self.over

    def _wanted(self) -> int:
        return self.config.run.cells_at_once or len(self.cells)

    def _begin(self, number: int) -> threading.Thread:
        thread = threading.Thread(target=self._serve, args=(number,), daemon=True, name=f"gang {number}")
        thread.start()
        return thread

    def _serve(self, number: int) -> None:
        """One gang after another takes cells until none is left."""
        begun = 0
        try:
            while (work := self._take()) is not None:
                log = self.folder / LOGS / f"gang{number}-{begun}"
                begun += 1
                with RayGang(self.ray, self.config, self.cells, self.shape, self.token, log) as gang:
                    self.gangs[number] = gang
                    self._cells(gang, work)
        except InputError as e:
            self.refused = e
        except BaseException as e:  # for the main thread to raise
            self.broken = e

    def _cells(self, gang: RayGang, work: Work | None) -> None:
        """What one gang does, from its first cell on, until it is lost or no cell is left."""
        assert work is not None
        try:
            gang.place(stopping.asked)
            gang.open(self._watch)
            self.opened.set()
            while work is not None:
                work.state, work.where, work.log = "running", gang.where, str(gang.log)
                self.display.start(work.goal.cell)
                outcome = gang.train(work.goal, partial(self._watch, work=work))
                if outcome.kind == member.STOPPED:
                    work.state = "waiting"
                    return
                self._end(work, outcome.said if outcome.kind == member.BROKEN else "")
                if outcome.kind == member.BROKEN and self.shape.processes > 1:
                    return  # its other processes may be elsewhere in the program
                work = self._take()
        except Lost as e:
            assert work is not None
            if not stopping.asked():
                self._lost(work, gang, e)

    def _take(self) -> Work | None:
        """The next cell; None where there will be none. A gang that could go on waits for the next round."""
        with self.ready:
            while not self.todo and not self.over and not stopping.asked():
                self.ready.wait(LOOK)
            return None if stopping.asked() or not self.todo else self.todo.popleft()

    def _lost(self, work: Work, gang: RayGang, why: Lost) -> None:
        """The cell is begun again, by another gang, unless that has been tried often enough."""
        work.attempts += 1
        retries = self.config.run.gang.retries
        if work.attempts > retries and not self.opened.is_set():
            raise RunFailed(f"no gang could begin: {why}; {gang.end_of_log()}") from why
        if work.attempts > retries:
            self._end(work, f"its gang was lost {work.attempts} times, the last time because {why}; {gang.end_of_log()}")
            return
        again = f"begun again from its checkpoint ({work.attempts} of {retries})"
        self.display.lost(work.goal.cell, f"its gang on {gang.where or 'the cluster'} was lost ({why}); {again}")
        work.state = "waiting"
        with self.ready:
            self.todo.appendleft(work)
            self.ready.notify_all()

    def _end(self, work: Work, error: str) -> None:
        work.state, work.error = ("failed" if error else "done"), error
        if error:
            self.failed.append((work.goal.cell, RunFailed(error)))
        self.display.finish(work.goal.cell, failed=bool(error))
        fresh(self.folder)
        with self.ready:
            self.left -= 1

    def _watch(self, news: News, work: Work | None = None) -> None:
        """Shows what a gang has told."""
        if news.step is not None:
            self.display.step(*news.step)
        self.display.failures(news.failures)
        if work is not None:
            self.display.flagged(work.goal.cell, news.flags)
            if news.progress is not None:
                work.rollouts = news.progress.rollouts
                work.reward = work.reward if news.progress.reward is None else news.progress.reward
                self.display.update(news.progress)

    def _stop(self, threads: Sequence[threading.Thread], by: signal.Signals) -> None:
        """The cells at work save their state; a second Ctrl-C does not wait for that."""
        console.print("stopping: the cells at work save their state (Ctrl-C again: do not wait for them)")
        for gang in list(self.gangs.values()):
            gang.stop()
        last = time.monotonic() + SAVING
        for thread in threads:
            thread.join(max(0.0, last - time.monotonic()))
        saved = "" if not any(thread.is_alive() for thread in threads) else "not all "
        self._tell(ended=True)
        raise Stopped(f"{self.folder} was told to end; the cells at work have {saved}saved their state. Go on by --resume.", by)

    def _tell(self, ended: bool = False) -> None:
        """Every few seconds: how far each cell is, for `isojax status`."""
        if not ended and time.monotonic() - self.told < TOLD:
            return
        self.told = time.monotonic()
        cells = {
            cell.name: CellStatus(**{name: value for name, value in vars(work).items() if name != "goal"})
            for cell, work in self.works.items()
        }
        status.write(self.folder, Status(time=time.time(), host=socket.gethostname(), pid=os.getpid(), ended=ended, cells=cells))
