"""The cells of a sweep in threads, each with compiled programs and devices of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from isojax.core import preemption
from isojax.core.nouns import Cell, CellProgress
from isojax.core.preemption import Preempted
from isojax.distributed import multiprocess
from isojax.launch.display import Display
from isojax.launch.local.cell_run import train_cell
from isojax.launch.local.setup import SweepSetup
from isojax.launch.strategy import CellTarget
from isojax.train.base_policy import BasePolicy
from isojax.train.programs import SweepPrograms


def train_cells(
    setup: SweepSetup, base_policy: BasePolicy, targets: list[CellTarget], display: Display
) -> list[tuple[Cell, Exception]]:
    """Train cells in one thread for each set of programs; returns those that failed, with their errors.

    Raises:
        Preempted: the process was told to end, and cells are left.
    """
    target_queue: queue.SimpleQueue[CellTarget] = queue.SimpleQueue()
    for target in targets:
        target_queue.put(target)
    failures: list[tuple[Cell, Exception]] = []
    preemptions: list[Preempted] = []
    stopped_early: list[bool] = []
    display.set_targets(targets)

    def report(progress: CellProgress) -> None:
        display.update_cell(progress)
        setup.report_verifier_failures(display)

    def worker(programs: SweepPrograms) -> None:
        while not any(multiprocess.allgather(preemption.requested())):
            try:
                target = target_queue.get_nowait()
            except queue.Empty:
                return
            display.start_cell(cell := target.cell)
            try:
                error = train_cell(setup, programs, base_policy, target, report, display.show_flags)
            except Preempted as e:
                preemptions.append(e)
                return
            if error is not None:
                failures.append((cell, error))
            display.finish_cell(cell, failed=error is not None)
            if error is not None and multiprocess.is_multiprocess() and not isinstance(error, FloatingPointError):
                return
        stopped_early.append(True)

    _in_threads([lambda p=p: worker(p) for p in setup.programs])
    if preemptions or (stopped_early and not target_queue.empty()):
        before = "".join(f"; {cell.name} had failed before ({error})" for cell, error in failures)
        raise Preempted(
            f"{setup.folder} was told to end (SIGTERM); {len(preemptions)} cells in training have saved their state"
            f"{before}. Go on by --resume."
        )
    return failures


def _in_threads(jobs: list[Callable[[], None]]) -> None:
    """Run each job in a thread, and raise the first error of any.

    Ctrl-C ends the process at once; a later --resume goes on.
    """
    raised: list[BaseException] = []

    def guarded(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as e:  # for the main thread to raise
            raised.append(e)

    threads = [threading.Thread(target=guarded, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)
    if raised:
        raise raised[0]
