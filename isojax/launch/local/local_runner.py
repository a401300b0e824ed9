"""The in-process runner: the cells of a sweep on this machine's devices, as many at once as the
mesh fits into them, in threads; and the training of one cell, with its ledger, loggers and
checkpoints.

Of a run of several processes, each goes through all of this, and they meet in the collectives of
the same cell; only the primary one writes and prints.
"""

import json
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import jax

from isojax.core import preemption
from isojax.core.atomic_files import write_text
from isojax.core.config import Config, SweepConfig, config_hash
from isojax.core.errors import DeadStart, InputError, RunFailed, is_out_of_memory
from isojax.core.nouns import Cell, CellProgress, StartReport, StartWarning
from isojax.core.start_file import write_start_report
from isojax.distributed import multiprocess
from isojax.launch.cell_failures import raise_cell_failures
from isojax.launch.checkpoint_plan import (
    CheckpointPlan,
    fit_to_disk,
    free_bytes,
    plan_checkpoints,
)
from isojax.launch.device_budget import format_bytes
from isojax.launch.display import Display, print_plan, print_text, silence
from isojax.launch.idle_starts import count_start
from isojax.launch.local.cell_devices import forecast_sweep
from isojax.launch.local.compile_here import compile_here
from isojax.launch.local.join_processes import check_shared_folder, join_processes
from isojax.launch.local.mirror_processes import checkpoints_at_url, share_mirror
from isojax.launch.local.setup import (
    SweepSetup,
    open_sweep,
    print_warnings,
    start_jax,
)
from isojax.launch.local.sweep_servers import describe_samplers
from isojax.launch.planner import plan_cells
from isojax.launch.process_group import SINGLE_PROCESS, ProcessGroup, refuse_sampler_processes
from isojax.launch.prompt_date import describe_date
from isojax.launch.resume import BASE_FOLDER, print_remaining
from isojax.launch.status_file import lost_output_recorded
from isojax.launch.strategies import CellTarget
from isojax.launch.strategy import training_rounds
from isojax.rl.algorithm import describe_algorithm
from isojax.runs.ledger import HEALTH_FILE, Ledger, read_run
from isojax.runs.loggers import cell_loggers
from isojax.runs.mirror import find_mirror, is_url, working_folder
from isojax.runs.progress_file import progress_file
from isojax.runs.storage import exclusive_lock, run_in_thread
from isojax.scaling.checks.run_health import health_flags
from isojax.tasks.turns import describe_turns
from isojax.train.base_policy import PROBLEMS_FILE, BasePolicy
from isojax.train.label_settings import problems_have_labels
from isojax.train.loop import is_finished, run_cell
from isojax.train.outputs import CHECKPOINT_FOLDER, CellOutputs
from isojax.train.programs import SweepPrograms
from isojax.train.start_check import doubts_of_task

SIGNAL_INTERVAL = 0.5  # seconds until the thread that handles signals looks again


def launch(
    config: Config,
    resume: bool,
    dry_run: bool,
    process_group: ProcessGroup = SINGLE_PROCESS,
    compile_first: bool | None = None,
) -> Path | None:
    """Run every cell (run) of the sweep that is not finished, in this process and its group.

    resume: whether to go on with a run that the folder holds. dry_run: print the plan, and train
    nothing. compile_first: whether a dry run compiles; None: no. Returns the sweep's folder, or
    None in a process that is not the primary one. InputError before any work; RunFailed at the end
    names the cells that failed; Preempted after SIGTERM.
    """
    refuse_sampler_processes(config)
    cells = plan_cells(config.sweep)
    start_jax(config)
    with join_processes(process_group):
        is_primary = multiprocess.is_primary()
        silence(not is_primary)
        if not dry_run:
            share_mirror(working_folder(config.run.dir, config.name))
        # A dry run may look into a folder that holds a run.
        with open_sweep(config, cells, resume or dry_run) as setup:
            setup = _with_room_for_checkpoints(setup)
            _print_plan(setup, is_dry_run=dry_run, resume=resume)
            if dry_run and compile_first:
                compile_here(setup)

            if not dry_run:
                with ExitStack() as stack:
                    if is_primary:
                        stack.enter_context(exclusive_lock(setup.folder))
                        stack.enter_context(lost_output_recorded(setup.folder))
                    if find_mirror(setup.folder) is None:
                        check_shared_folder(setup.folder)
                    limit = config.run.max_idle_starts
                    multiprocess.run_on_primary(lambda: count_start(setup.folder, limit), None)
                    _run_cells(setup)
        return setup.folder if is_primary else None


def _print_plan(setup: SweepSetup, is_dry_run: bool, resume: bool) -> None:
    """Print what a reader sees before anything is trained.

    A dry run also probes the devices, and says how long the sweep takes and what is left of it.
    """
    config = setup.config
    cells = setup.cells
    budget = setup.device_budget
    devices = setup.cell_devices

    # The primary process tries the disk.
    checkpoints = _plan_checkpoints(setup) if multiprocess.is_primary() else None
    forecast = None
    if is_dry_run:
        is_labelled = (setup.folder / BASE_FOLDER / PROBLEMS_FILE).exists()
        has_labels = is_labelled or problems_have_labels(config.cell)
        forecast = forecast_sweep(config, cells, budget, devices, has_labels, checkpoints)
    print_plan(config, cells, setup.folder, devices.description, budget, forecast)
    if checkpoints is not None:
        print_text(_describe_checkpoints(checkpoints, setup))
    print_text(describe_algorithm(config.cell.rl))
    for line in describe_samplers(config, setup.programs[0]):
        print_text(line)
    date_line = describe_date(config.cell)
    if date_line:
        print_text(date_line)
    if setup.task.stops.has_turns:
        print_text(describe_turns(config.cell))
    if is_dry_run:
        print_remaining(config, setup.folder, resume)
    print_warnings(setup.task)


def _with_room_for_checkpoints(setup: SweepSetup) -> SweepSetup:
    """The sweep with the number of checkpoints that it keeps of each run, as the disk has room.

    InputError where the disk has none. Processes that write to a bucket have a part of each
    checkpoint on their own disks, which are not checked.
    """
    run = setup.config.run
    if is_url(run.dir) and multiprocess.is_multiprocess():
        return setup

    size = setup.device_budget.checkpoint_bytes(setup.config.sweep)
    concurrent_runs = setup.cell_devices.concurrent_cells
    kept = multiprocess.run_on_primary(
        lambda: fit_to_disk(setup.config, setup.cells, setup.folder, size, concurrent_runs), int
    )
    return replace(setup, config=setup.config.with_settings(run={"keep_checkpoints": kept}))


def _plan_checkpoints(setup: SweepSetup) -> CheckpointPlan:
    """What checkpoints take of the disk, which is tried, and how long they take."""
    run = setup.config.run
    return plan_checkpoints(
        run,
        setup.device_budget.checkpoint_bytes(setup.config.sweep),
        runs=len(setup.cells),
        concurrent_runs=setup.cell_devices.concurrent_cells,
        folder=None if is_url(run.dir) else setup.folder,
    )


def _describe_checkpoints(plan: CheckpointPlan, setup: SweepSetup) -> str:
    """A line of the plan: what checkpoints take, and what is free."""
    line = plan.describe()
    if not is_url(setup.config.run.dir):
        line += f"; the disk has {format_bytes(free_bytes(setup.folder))} free"
    return line


def rollouts_within(config: Config, seconds: float) -> int:
    """How many rollouts one run may take within so many seconds, by a short probe.

    That is with the slowest n of the sweep, and as if sweep.budget took time in proportion.
    InputError as of `launch`.
    """
    cells = plan_cells(config.sweep)
    start_jax(config)
    # A probe trains nothing, so that it needs nothing of what `isojax spend` needs of a folder.
    grid_config = config.with_settings(sweep={"strategy": "grid"})
    with open_sweep(grid_config, cells, resume=False) as setup:
        forecast = forecast_sweep(
            setup.config, cells, setup.device_budget, setup.cell_devices, has_labels=True
        )
    slowest_seconds = max(forecast.cell_seconds.values())
    return int(config.sweep.budget * seconds / slowest_seconds)


def _run_cells(setup: SweepSetup) -> None:
    """Make the base policy, then train round after round; at the end, raise if cells failed.

    Errors as of `raise_cell_failures`.
    """
    config = setup.config
    cells = setup.cells
    with (
        preemption.end_after(config.run.time_limit_seconds),
        Display(config, doubts_of_task(setup.task)) as display,
    ):

        def show_preparation(text: str, fraction: float) -> None:
            """Show it; Preempted where the time limit is reached. Labels made so far are kept.

            Of several processes all go on, as they meet in collectives.
            """
            display.show_preparation(text, fraction)
            if preemption.REQUESTED.is_set() and jax.process_count() == 1:
                raise preemption.Preempted(
                    f"{setup.folder} was asked to end ({preemption.describe_request()}) before the"
                    " first update."
                )

        base_policy = setup.prepare(show_preparation, display.show_verifier_failure)

        failures: list[tuple[Cell, Exception]] = []
        # It decides on each round by what is recorded and by `failures`, to which this loop adds.
        rounds = training_rounds(config, cells, setup.folder, failures)
        with preemption.handle_sigterm():  # between two rounds too
            # Process 0 chooses for all, and sends them a list of this type; an empty one ends the
            # sweep.
            while targets := multiprocess.run_on_primary(
                lambda: next(rounds, []), list[CellTarget]
            ):
                failures += train_cells(setup, base_policy, targets, display)
                nothing_can_learn = any(isinstance(error, DeadStart) for _, error in failures)
                # After a failure, processes may be at different places in the program.
                processes_differ = bool(failures) and jax.process_count() > 1
                if nothing_can_learn or processes_differ:
                    break
    raise_cell_failures(failures, len(cells), setup.folder)


def train_cells(
    setup: SweepSetup, base_policy: BasePolicy, targets: list[CellTarget], display: Display
) -> list[tuple[Cell, Exception]]:
    """Train cells in one thread for each set of programs; returns those that failed.

    targets: each a cell and the C up to which it is trained, begun in this order. Preempted where
    this process was asked to end and cells are left.
    """
    # The threads share these.
    waiting = deque(targets)
    failures: list[tuple[Cell, Exception]] = []
    preemptions: list[preemption.Preempted] = []
    stopped_early = threading.Event()
    display.set_targets({target.cell: target.rollouts(setup.config) for target in targets})

    def worker(programs: SweepPrograms) -> None:
        """Train waiting cells one after the other, until none is left or this process has to end.

        Captures the four above, `setup`, `base_policy` and `display`.
        """
        # All processes stop before the same cell, whichever was asked to end.
        while not any(multiprocess.allgather(preemption.REQUESTED.is_set(), bool)):
            try:
                target = waiting.popleft()
            except IndexError:
                return
            try:
                error = train_cell(setup, programs, base_policy, target, display)
            except preemption.Preempted as e:
                preemptions.append(e)
                return

            if error is None:
                display.finish_cell(target.cell, failed=False)
                continue
            failures.append((target.cell, error))
            display.finish_cell(target.cell, failed=True)
            if isinstance(error, DeadStart):
                waiting.clear()  # the others begin with the same policy, problems and verifier
            # Of several processes, all meet a number that is not finite; with other errors, the
            # others may wait.
            if jax.process_count() > 1 and not isinstance(error, FloatingPointError):
                return
        stopped_early.set()

    calls = [run_in_thread(partial(worker, programs)) for programs in setup.programs]
    # A signal's handler runs when this thread wakes, and a signal that comes just before it waits
    # does not wake it.
    while wait(calls, timeout=SIGNAL_INTERVAL).not_done:
        pass
    for call in calls:
        call.result()

    if preemptions or (stopped_early.is_set() and waiting):
        before = "".join(f"; {cell.name} had failed before ({error})" for cell, error in failures)
        raise preemption.Preempted(
            f"{setup.folder} was asked to end ({preemption.describe_request()});"
            f" {len(preemptions)} runs in training have saved their state{before}."
        )
    return failures


class CellDisplay(Protocol):
    """What a cell in training shows: the Display of this process, or what a Ray driver asks for."""

    def update_cell(self, progress: CellProgress) -> None: ...

    def show_start(self, cell: Cell, warnings: Sequence[StartWarning]) -> None: ...

    def show_flags(self, cell: Cell, flags: Sequence[str]) -> None: ...


def train_cell(
    setup: SweepSetup,
    programs: SweepPrograms,
    base_policy: BasePolicy,
    target: CellTarget,
    display: CellDisplay,
) -> Exception | None:
    """Train a cell, that is one run, up to its target, and flag the run if it broke.

    Returns the error that ended it, of whatever kind, or None: one cell's failure must not end the
    others. What ends them all, as a DeadStart, the caller decides. Raises Preempted alone, where
    this process was asked to end.
    """
    cell = target.cell
    folder = setup.folder / "cells" / cell.name
    is_primary = multiprocess.is_primary()  # it alone writes the cell's files

    try:
        _run_to_target(setup, programs, base_policy, target, folder, display)
        if is_primary:
            write_health(folder, cell, display.show_flags)
        return None
    except preemption.Preempted:
        raise
    except Exception as e:
        # Updates that were not finite have ended the run for good: it is judged as it is.
        if is_primary and isinstance(e, FloatingPointError):
            with suppress(OSError):  # of a full disk, say, which must not hide the error itself
                write_health(folder, cell, display.show_flags)

        if is_out_of_memory(e):
            return RunFailed(out_of_memory_message(setup.config.sweep))
        return e


def _run_to_target(
    setup: SweepSetup,
    programs: SweepPrograms,
    base_policy: BasePolicy,
    target: CellTarget,
    folder: Path,
    display: CellDisplay,
) -> None:
    """Train a cell, unless it has reached its target. folder: the cell's.

    The primary process alone has a ledger, loggers and a file of progress: `ledger` and `progress`
    are None in the others.
    """
    cell = target.cell
    config = setup.config.with_settings(sweep={"budget": target.C})
    cell_hash = config_hash(config.cell, config.run.rollouts, config.run.evaluations)
    ledger = Ledger(folder, cell, cell_hash) if multiprocess.is_primary() else None
    if is_finished(config, folder, ledger):
        return

    # Where the sweep is at a URL: copies checkpoints there. None where it is in a folder.
    remote = checkpoints_at_url((folder / CHECKPOINT_FOLDER).absolute())
    with (
        cell_loggers(ledger, cell, config) if ledger else nullcontext(),
        progress_file(folder) if ledger else nullcontext() as progress,
    ):
        # Called after updates; reward: of an evaluation, None where there was none. Both functions
        # capture `cell`, `display`, and the primary process's files.
        def report(C: int, reward: float | None) -> None:
            display.update_cell(CellProgress(cell, C, reward))
            if progress:
                progress.update(C)

        def on_start(start: StartReport) -> None:
            if ledger:
                write_start_report(folder, start)
                display.show_start(cell, start.warnings)

        outputs = CellOutputs(folder, ledger, remote, report, on_start)
        run_cell(programs, config, base_policy, target.cell_so_far, outputs)


def write_health(folder: Path, cell: Cell, on_flags: Callable[[Cell, list[str]], None]) -> None:
    """Write health.json into a cell's folder, and call `on_flags` with its flags as sentences.

    Nothing for a run that broke before its first evaluation.
    """
    try:
        run = read_run(folder)
    except InputError:
        return

    flags = health_flags(run)
    document = {
        "cell": cell.name,
        "C": run.points[-1].rollouts,
        "flags": [asdict(flag) for flag in flags],
    }
    text = json.dumps(document, indent=1) + "\n"
    path = folder / HEALTH_FILE
    # A finished run that is looked at again keeps its file, and the time of it.
    if not path.exists() or path.read_text() != text:
        write_text(path, text)
    on_flags(cell, [str(flag) for flag in flags])


def out_of_memory_message(sweep: SweepConfig) -> str:
    remat_hint = "" if sweep.remat == "layer" else ", or set sweep.remat=layer, which takes less"
    return (
        f"out of memory with sweep.microbatch = {sweep.microbatch} and sweep.decode_slots ="
        f" {sweep.decode_slots}. Halve the one or the other{remat_hint}, or use more devices. These"
        " are settings of a whole sweep: start it under another name=NAME. What is recorded stays,"
        " and goes on by --resume where there is more memory."
    )
