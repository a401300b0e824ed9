"""The cells of a sweep, taken by threads that each have compiled programs and their devices; and what a user is told of
those that fail.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from isojax.core import preemption
from isojax.core.config import Config, SweepConfig, config_hash
from isojax.core.errors import InputError, RunFailed, is_out_of_memory
from isojax.core.nouns import Cell, CellProgress
from isojax.core.preemption import Preempted
from isojax.launch.autosize import DeviceBudget, format_bytes, largest_fitting_microbatch
from isojax.launch.display import Display, ProgressReporter
from isojax.launch.flag_runs import write_health
from isojax.launch.strategy import CellTarget
from isojax.runs.ledger import Ledger
from isojax.runs.loggers import CellLoggers
from isojax.runs.mirror import CheckpointUploader

if TYPE_CHECKING:
    from isojax.launch.local.setup import SweepSetup
    from isojax.tasks.protocol import Task
    from isojax.train.base_policy import BasePolicy
    from isojax.train.programs import SweepPrograms


def report_verifier_failures(display: ProgressReporter, task: Task) -> None:
    """Show a person the first failure of each kind that the verifier has met since; the ledger counts them all."""
    from isojax.tasks.protocol import is_on_device

    if not is_on_device(task):
        display.show_verifier_failures(task.failure_examples())


def train_cell(
    setup: SweepSetup,
    programs: SweepPrograms,
    base_policy: BasePolicy,
    target: CellTarget,
    on_progress: Callable[[CellProgress], None],
    on_flags: Callable[[Cell, list[str]], None],
) -> Exception | None:
    """Trains a cell up to its goal, and judges it; what ended it before, where something did.

    Raises:
        Stopped: this process was told to end.
    """
    from isojax.distributed import multiprocess

    cell, error = target.cell, None
    folder = setup.folder / "cells" / cell.name
    config = setup.config.model_copy(update={"sweep": setup.config.sweep.model_copy(update={"budget": target.C})})
    steps: list[Callable[[], None]] = [partial(run_recorded, programs, config, base_policy, cell, folder, on_progress)]
    steps += [partial(write_health, folder, cell, on_flags)] if multiprocess.is_primary() else []
    for step in steps:
        try:
            step()
        except Preempted:
            raise
        except FloatingPointError as e:  # in all processes
            error = error or e
        except Exception as e:  # one cell's failure must not cost the others; all are raised together at the end
            error = error or (
                RunFailed(out_of_memory_message(setup.config.sweep, setup.device_budget)) if is_out_of_memory(e) else e
            )
            if multiprocess.is_multiprocess():  # the others may wait for this one
                return error
    return error


def run_recorded(
    programs: SweepPrograms,
    config: Config,
    base_policy: BasePolicy,
    cell: Cell,
    folder: Path,
    on_progress: Callable[[CellProgress], None],
) -> None:
    """Runs a cell that is not finished, with its ledger, its loggers and the uploader of its checkpoints open."""
    from isojax.distributed import multiprocess
    from isojax.train.loop import is_finished, run_cell
    from isojax.train.outputs import CHECKPOINT_FOLDER, CellOutputs

    ledger = Ledger(folder, cell, config_hash(config.cell)) if multiprocess.is_primary() else None
    if is_finished(config, cell, folder, ledger):
        return
    uploader = CheckpointUploader((folder / CHECKPOINT_FOLDER).absolute())
    outputs = CellOutputs(folder, ledger, uploader)
    with CellLoggers(ledger, cell, config) if ledger else nullcontext():
        run_cell(programs, config, base_policy, cell, outputs, on_progress)


def train_cells(
    setup: SweepSetup, base_policy: BasePolicy, targets: list[CellTarget], display: Display
) -> list[tuple[Cell, Exception]]:
    """One thread for each of the site's `programs`, taking cells until none is left; the cells that failed, with their
    errors.

    Raises:
        Stopped: the process was told to end (`stopping`), and cells are left.
    """
    from isojax.distributed import multiprocess

    target_queue: queue.SimpleQueue[CellTarget] = queue.SimpleQueue()
    for target in targets:
        target_queue.put(target)
    failures: list[tuple[Cell, Exception]] = []
    preemptions: list[Preempted] = []
    stopped_early: list[bool] = []
    display.set_targets(targets)

    def report(progress: CellProgress) -> None:
        display.update_cell(progress)
        report_verifier_failures(display, setup.task)

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
            f"{setup.folder} was told to end (SIGTERM); {len(preemptions)} cells at work have saved their state{before}. Go on by --resume."
        )
    return failures


def raise_cell_failures(failures: Sequence[tuple[Cell, Exception]], num_cells: int, folder: Path) -> None:
    """What a user is told at the end where some of so many cells failed."""
    if failures and len(failures) == num_cells and all(isinstance(error, InputError) for _, error in failures):
        raise InputError(
            " ".join(dict.fromkeys(str(error) for _, error in failures))
        )  # nothing was trained: something given is of no use
    if failures:
        errors = [f"{cell.name}: {error}" for cell, error in failures]
        summary = f"{len(failures)} of {num_cells} cells failed; the others are recorded in {folder}."
        raise RunFailed(errors[0] if num_cells == 1 else "\n  ".join([summary, *errors]))


def out_of_memory_message(sweep: SweepConfig, device_budget: DeviceBudget) -> str:
    """What to do where memory was not enough: the microbatch that would fit, as far as the planner can tell."""
    suggested_microbatch, estimated_bytes = (
        largest_fitting_microbatch(sweep, device_budget),
        device_budget.estimate(sweep).peak,
    )
    power_of_two = 2 ** (suggested_microbatch.bit_length() - 1) if suggested_microbatch else 0
    microbatch_hint = (
        f"sweep.microbatch={power_of_two} would fit"
        if suggested_microbatch
        else "no smaller one would fit; lower sweep.decode_slots, or use more devices"
    )
    remat_hint = "" if sweep.remat == "layer" else ", and sweep.remat=layer takes less"
    return (
        f"out of memory: with sweep.microbatch = {sweep.microbatch} and sweep.decode_slots = {sweep.decode_slots} a device was estimated to need "
        f"{format_bytes(estimated_bytes)}. By the same estimate {microbatch_hint}{remat_hint}. Both are settings of a whole sweep: start it under another name=NAME. What "
        "is recorded stays, and goes on by --resume where there is more memory."
    )


def _in_threads(jobs: list[Callable[[], None]]) -> None:
    """Run the jobs side by side; raises what one of them has raised. Ctrl-C ends the process at once, and a later
    --resume goes on.
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
