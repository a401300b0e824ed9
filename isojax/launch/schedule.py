"""Which gang trains which cell when: longest first, begun again when lost, given up, round by round. No jax here, and no Ray but what is
given: the processes of a gang are ray_gang.py's."""

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

from isojax import stopping
from isojax.config import Config
from isojax.files import write_text
from isojax.launch import member, status
from isojax.launch.display import Display, console
from isojax.launch.member import News
from isojax.launch.placement import Shape, capacity
from isojax.launch.ray_gang import LOOK, Lost, RayGang
from isojax.launch.resume import LOGS
from isojax.launch.rounds import Goal, rounds
from isojax.launch.status import CellStatus, Status
from isojax.stopping import Stopped
from isojax.storage import fresh
from isojax.types import Cell, InputError, RunFailed

TOLD = 2.0  # seconds between two writings of status.json
TICK = 0.2  # seconds between two looks at the schedule
ROOM = 600.0  # seconds without a node that could hold a gang until the sweep gives up
SAVING = 120.0  # seconds that cells have to save their state when the sweep is told to end


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
        self.losses: dict[Cell, tuple[int, int]] = {}  # of each cell, C up to the last loss of its gang, and losses since it was less
        self.rounds = rounds(config, cells, folder, self.failed)
        self.todo: deque[Work] = deque()
        self.left = 0  # cells of this round that have not ended
        self.over = False
        self.gangs: dict[int, RayGang] = {}  # by the number of their thread
        self.token, self.told = os.urandom(8).hex(), -TOLD
        self.opened, self.ready = threading.Event(), threading.Condition()
        self.broken: BaseException | None = None
        self.unopened = ""  # why the last gang could not begin

    def run(self) -> list[tuple[Cell, Exception]]:
        """Until every cell is done or has failed; those that failed. One gang makes the base policy, then the others begin. Whatever ends
        the sweep before, the cells at work save their state first."""
        for place in (self.folder, self.folder / LOGS):  # both are to be written
            write_text(place / member.TOKEN, self.token)
        threads: list[threading.Thread] = []
        by, error = signal.SIGTERM, None
        try:
            self._watch_over(threads)
            error = self.broken
        except KeyboardInterrupt:
            by = signal.SIGINT
            stopping.ask()
        except (InputError, RunFailed) as e:
            error = e
        try:
            if error is not None or stopping.asked():
                stopping.ask()
                saved = self._save(threads)
                if error is not None:
                    with suppress(InputError):  # what is recorded at a URL, for the fit
                        fresh(self.folder)
                    raise error
                raise Stopped(f"{self.folder} was told to end; the cells at work have {saved}saved their state. Go on by --resume.", by)
        finally:
            self.over = True  # for gangs that were not waited for
            with suppress(InputError, RunFailed):  # which are raised where they end the sweep
                self._tell(ended=True)
        return self.failed

    def _watch_over(self, threads: list[threading.Thread]) -> None:
        """Begins gangs as there is room, until all is done, it is told to end, or something is broken."""
        roomless = 0.0
        while self._next_round() or any(thread.is_alive() for thread in threads):
            time.sleep(TICK)
            if stopping.asked() or self.broken:
                return
            holds = capacity(self.shape, self.ray.nodes())
            begin = self.todo and (self.opened.is_set() or not threads)  # the first gang makes what the others find
            if begin and len(threads) < min(max(holds, 1), self._wanted()):
                threads.append(self._begin(len(threads)))
            elif begin and not any(thread.is_alive() for thread in threads):
                raise RunFailed(f"no gang can begin any more: {self.unopened}. What is recorded goes on by --resume.")
            roomless = 0.0 if holds else roomless + TICK
            if roomless > ROOM:
                raise RunFailed(f"no node could hold a gang for {ROOM / 60:.0f} minutes; what is recorded goes on by --resume.")
            self._tell()

    def _next_round(self) -> bool:
        """Whether there is work; where a round has ended, the next one's is brought, from what all gangs have recorded."""
        with self.ready:
            if self.left == 0 and not self.over and not stopping.asked():
                fresh(self.folder)
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
        """One gang after another trains cells until none is left."""
        begun = lost = 0
        try:
            while lost <= self.config.run.gang.retries and self._more():
                log = self.folder / LOGS / f"gang{number}-{begun}"
                begun += 1
                with RayGang(self.ray, self.config, self.cells, self.shape, self.token, log) as gang:
                    self.gangs[number] = gang
                    lost = self._gang(gang, lost)
                if lost:  # what was the matter may pass
                    with self.ready:
                        self.ready.wait(LOOK * 2**lost)
            if lost and not self.opened.is_set() and not stopping.asked():
                raise RunFailed(f"no gang could begin: {self.unopened}")
        except BaseException as e:  # for the main thread to raise
            self.broken = e

    def _gang(self, gang: RayGang, lost: int) -> int:
        """What one gang does. It has a cell only once it stands, so that a cell never waits for room that another gang has; returns how
        many gangs in a row were `lost` before that."""
        try:
            if not gang.place(lambda: stopping.asked() or not self.todo) or stopping.asked():
                return lost
            gang.open(self._watch_opening)
        except (Lost, InputError) as e:
            if isinstance(e, InputError) and not self.opened.is_set():
                raise
            self.unopened = f"{e}; {gang.end_of_log()}"
            if not (stopping.asked() or self.over):
                on = gang.where or "the cluster"
                console.print(f"warning: a gang on {on} could not begin ({e})", soft_wrap=True, highlight=False, markup=False)
            return lost + 1
        self.opened.set()
        self._cells(gang)
        return 0

    def _cells(self, gang: RayGang) -> None:
        """The cells of one gang, until it is lost or none is left."""
        while (work := self._take()) is not None:
            work.state, work.where, work.log = "running", gang.where, str(gang.log_of(0))
            work.attempts += 1
            self.display.start(work.goal.cell)
            try:
                outcome = gang.train(work.goal, partial(self._watch, work=work))
            except Lost as e:
                if not (stopping.asked() or self.over):
                    self._lost(work, gang, e)
                return
            if outcome.kind == member.STOPPED:
                work.state = "waiting"
                break
            self._end(work, outcome.said if outcome.kind == member.BROKEN else "")
            if outcome.kind == member.BROKEN and self.shape.processes > 1:
                return  # its other processes may be elsewhere in the program
        gang.close()

    def _more(self) -> bool:
        """Waits for a cell that nobody has taken; False where there will be none."""
        with self.ready:
            while not self.todo and not self.over and not stopping.asked():
                self.ready.wait(LOOK)
            return bool(self.todo) and not (self.over or stopping.asked())

    def _take(self) -> Work | None:
        """The next cell; None where there will be none. A gang that could go on waits for the next round."""
        while self._more():
            with self.ready:
                if self.todo:  # and no other gang was faster
                    return self.todo.popleft()
        return None

    def _lost(self, work: Work, gang: RayGang, why: Lost) -> None:
        """The cell is begun again, by another gang, unless that has been tried often enough without getting further."""
        reached, times = self.losses.get(work.goal.cell, (-1, 0))
        times = 1 if work.rollouts > reached else times + 1
        self.losses[work.goal.cell] = max(reached, work.rollouts), times
        retries = self.config.run.gang.retries
        if times > retries:
            self._end(work, f"its gang was lost {times} times at C = {work.rollouts}, the last time because {why}; {gang.end_of_log()}")
            return
        again = f"begun again from its checkpoint ({times} of {retries})"
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
        with self.ready:
            self.left -= 1

    def _watch_opening(self, news: News) -> None:
        """Shows what a gang that is not ready yet has told; it is not waited for once all is done, or the sweep is told to end."""
        self._watch(news)
        if self.over or stopping.asked():
            raise Lost("no cell is left for it")

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

    def _save(self, threads: Sequence[threading.Thread]) -> str:
        """The cells at work save their state, for which they have some time; a second Ctrl-C does not wait for that. "" or "not all "."""
        if any(work.state == "running" for work in self.works.values()):
            console.print("stopping: the cells at work save their state (Ctrl-C again: do not wait for them)")
        for gang in list(self.gangs.values()):
            gang.stop()
        last = time.monotonic() + SAVING
        for thread in threads:
            thread.join(max(0.0, last - time.monotonic()))
        return "" if not any(thread.is_alive() for thread in threads) else "not all "

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
