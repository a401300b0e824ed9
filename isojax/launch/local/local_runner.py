"""The in-process runner: the cells of a sweep on this machine's devices, as many at once as the mesh fits into them."""

from contextlib import nullcontext
from pathlib import Path

from isojax.core import preemption
from isojax.core.config import Config
from isojax.core.errors import InputError
from isojax.distributed import multiprocess
from isojax.launch.display import Display, console, print_plan
from isojax.launch.local.cell_devices import forecast_sweep
from isojax.launch.local.cell_training import train_cells
from isojax.launch.local.join_processes import check_shared_folder, join_processes
from isojax.launch.local.setup import SweepSetup, open_sweep, start_jax
from isojax.launch.planner import plan_cells
from isojax.launch.process_group import SINGLE_PROCESS, ProcessGroup
from isojax.launch.strategy import raise_cell_failures, training_rounds
from isojax.runs.folder_lock import exclusive_lock


def launch(config: Config, resume: bool, dry_run: bool, process_group: ProcessGroup = SINGLE_PROCESS) -> Path | None:
    """Run every cell of the sweep that is not finished; returns the sweep's folder, or None in a process that is not
    the primary one. InputError before any work; RunFailed at the end names the cells that failed."""
    cells = plan_cells(config.sweep)
    start_jax(config)
    with join_processes(process_group):
        is_primary = multiprocess.is_primary()
        console.quiet = not is_primary
        with open_sweep(config, cells, resume or dry_run) as setup:
            folder, budget, devices = setup.folder, setup.device_budget, setup.cell_devices
            forecast = forecast_sweep(setup.config, cells, budget, devices, folder) if dry_run else None
            print_plan(setup.config, cells, folder, devices.description, budget, forecast)
            if not dry_run:
                with exclusive_lock(folder) if is_primary else nullcontext():
                    check_shared_folder(folder)
                    _run_cells(setup)
        return folder if is_primary else None


def train(config: Config, resume: bool, process_group: ProcessGroup = SINGLE_PROCESS) -> Path | None:
    """`launch`, of a config whose sweep is a single cell; InputError where it has more."""
    cells = plan_cells(config.sweep)
    if len(cells) > 1:
        first_cell = cells[0]
        raise InputError(
            f"this config holds {len(cells)} cells and `isojax train` runs one; choose it, for example by "
            f"sweep.B_p=[{first_cell.B_p}] sweep.n=[{first_cell.n}] sweep.seeds=1, or run them all by `isojax launch`."
        )
    return launch(config, resume, dry_run=False, process_group=process_group)


def _run_cells(setup: SweepSetup) -> None:
    config, cells = setup.config, setup.cells
    with Display(config) as display:
        base_policy, failures = setup.prepare(display.show_preparation), []
        rounds = training_rounds(config, cells, setup.folder, failures)
        with preemption.handle_sigterm():  # between two rounds too
            while targets := multiprocess.run_on_primary(lambda: next(rounds, [])):
                failures += train_cells(setup, base_policy, targets, display)
                display.show_verifier_failures(setup.verifier_failures())
                if failures and multiprocess.is_multiprocess():
                    break  # the processes may be at different places
    raise_cell_failures(failures, len(cells), setup.folder)
