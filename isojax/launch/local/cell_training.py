"""The cells of a sweep in threads, each with its programs and devices; and the training of one cell."""

import json
import queue
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path

from isojax.core import preemption
from isojax.core.atomic_files import write_text
from isojax.core.config import SweepConfig, config_hash
from isojax.core.errors import InputError, RunFailed, is_out_of_memory
from isojax.core.nouns import Cell, CellProgress
from isojax.core.preemption import Preempted
from isojax.distributed import multiprocess
from isojax.launch.display import Display
from isojax.launch.local.setup import SweepSetup
from isojax.launch.strategy import CellTarget
from isojax.runs.ledger import HEALTH_FILE, Ledger
from isojax.runs.ledger_reader import read_run
from isojax.runs.loggers import cell_loggers
from isojax.runs.mirror import checkpoint_uploader
from isojax.runs.object_store import run_in_thread
from isojax.scaling.checks.run_health import health_flags
from isojax.train.base_policy import BasePolicy
from isojax.train.loop import is_finished, run_cell
from isojax.train.outputs import CHECKPOINT_FOLDER, CellOutputs
from isojax.train.programs import SweepPrograms


def train_cells(
    setup: SweepSetup, base_policy: BasePolicy, targets: list[CellTarget], display: Display
) -> list[tuple[Cell, Exception]]:
    """Train cells in one thread for each set of programs; returns those that failed, with their errors. Raises
    Preempted where the process was asked to end, and cells are left."""
    target_queue: queue.SimpleQueue[CellTarget] = queue.SimpleQueue()
    for target in targets:
        target_queue.put(target)
    failures: list[tuple[Cell, Exception]] = []
    preemptions: list[Preempted] = []
    stopped_early: list[bool] = []
    display.set_targets(targets)

    def report(progress: CellProgress) -> None:
        display.update_cell(progress)
        display.show_verifier_failures(setup.verifier_failures())

    def worker(programs: SweepPrograms) -> None:
        while not any(multiprocess.allgather(preemption.requested())):
            try:
                target = target_queue.get_nowait()
            except queue.Empty:
                return
            try:
                error = train_cell(setup, programs, base_policy, target, report, display.show_flags)
            except Preempted as e:
                preemptions.append(e)
                return
            if error is not None:
                failures.append((target.cell, error))
            display.finish_cell(target.cell, failed=error is not None)
            # Of several processes, all meet a number that is not finite; with other errors, the others may wait.
            if error is not None and multiprocess.is_multiprocess() and not isinstance(error, FloatingPointError):
                return
        stopped_early.append(True)

    calls = [run_in_thread(partial(worker, programs)) for programs in setup.programs]
    wait(calls)
    for call in calls:
        call.result()
    if preemptions or (stopped_early and not target_queue.empty()):
        before = "".join(f"; {cell.name} had failed before ({error})" for cell, error in failures)
        raise Preempted(
            f"{setup.folder} was asked to end (SIGTERM); {len(preemptions)} cells in training have saved their state"
            f"{before}. Go on by --resume."
        )
    return failures


def train_cell(
    setup: SweepSetup,
    programs: SweepPrograms,
    base_policy: BasePolicy,
    target: CellTarget,
    on_progress: Callable[[CellProgress], None],
    on_flags: Callable[[Cell, list[str]], None],
) -> Exception | None:
    """Train a cell up to its target, and flag its run if it broke; returns the error that ended it early, if any: one
    cell's failure must not end the others. Raises Preempted where this process was asked to end."""
    cell, folder, is_primary = target.cell, setup.folder / "cells" / target.cell.name, multiprocess.is_primary()
    config = setup.config.model_copy(update={"sweep": setup.config.sweep.model_copy(update={"budget": target.C})})
    try:
        ledger = Ledger(folder, cell, config_hash(config.cell)) if is_primary else None
        if not is_finished(config, cell, folder, ledger):
            start_upload = checkpoint_uploader((folder / CHECKPOINT_FOLDER).absolute())
            outputs = CellOutputs(folder, ledger, start_upload, on_progress)
            with cell_loggers(ledger, cell, config) if ledger else nullcontext():
                run_cell(programs, config, base_policy, cell, outputs)
        if is_primary:
            write_health(folder, cell, on_flags)
    except Preempted:
        raise
    except Exception as e:
        if is_out_of_memory(e):
            return RunFailed(out_of_memory_message(setup.config.sweep))
        return e
    return None


def write_health(folder: Path, cell: Cell, on_flags: Callable[[Cell, list[str]], None]) -> None:
    """Write health.json and report its flags; nothing for a run that broke before its first evaluation."""
    try:
        run = read_run(folder)
    except InputError:
        return
    flags = health_flags(run)
    document = {"cell": cell.name, "C": run.points[-1].rollouts, "flags": [asdict(flag) for flag in flags]}
    text = json.dumps(document, indent=1) + "\n"
    path = folder / HEALTH_FILE
    if not path.exists() or path.read_text() != text:
        write_text(path, text)
    on_flags(cell, [str(flag) for flag in flags])


def out_of_memory_message(sweep: SweepConfig) -> str:
    remat_hint = "" if sweep.remat == "layer" else ", or set sweep.remat=layer, which takes less"
    return (
        f"out of memory with sweep.microbatch = {sweep.microbatch} and sweep.decode_slots = {sweep.decode_slots}. "
        f"Halve the one or the other{remat_hint}, or use more devices. These are settings of a whole sweep: start it "
        "under another name=NAME. What is recorded stays, and goes on by --resume where there is more memory."
    )
