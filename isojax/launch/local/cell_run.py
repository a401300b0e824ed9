"""One cell: its training with ledger, loggers and checkpoints, then the criteria that say whether its run broke."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from isojax.core.config import Config, SweepConfig, config_hash
from isojax.core.errors import RunFailed, is_out_of_memory
from isojax.core.nouns import Cell, CellProgress
from isojax.core.preemption import Preempted
from isojax.distributed import multiprocess
from isojax.launch.autosize import DeviceBudget, format_bytes, largest_fitting_microbatch
from isojax.launch.flag_runs import write_health
from isojax.launch.local.setup import SweepSetup
from isojax.launch.strategy import CellTarget
from isojax.runs.ledger import Ledger
from isojax.runs.loggers import CellLoggers
from isojax.runs.mirror import CheckpointUploader
from isojax.train.base_policy import BasePolicy
from isojax.train.eval_grid import is_finished
from isojax.train.loop import run_cell
from isojax.train.outputs import CHECKPOINT_FOLDER, CellOutputs
from isojax.train.programs import SweepPrograms


def train_cell(
    setup: SweepSetup,
    programs: SweepPrograms,
    base_policy: BasePolicy,
    target: CellTarget,
    on_progress: Callable[[CellProgress], None],
    on_flags: Callable[[Cell, list[str]], None],
) -> Exception | None:
    """Train a cell up to its target, and flag its run if it broke; returns the error that ended it early, if any.

    Raises:
        Preempted: this process was told to end.
    """
    folder = setup.folder / "cells" / target.cell.name
    config = setup.config.model_copy(update={"sweep": setup.config.sweep.model_copy(update={"budget": target.C})})
    error = _error_of(lambda: _run_recorded(programs, config, base_policy, target.cell, folder, on_progress), setup)
    # Of several processes, all meet a number that is not finite; with other errors, the others may wait for this one.
    may_block_others = multiprocess.is_multiprocess() and not isinstance(error, FloatingPointError)
    if (error is not None and may_block_others) or not multiprocess.is_primary():
        return error
    return error or _error_of(lambda: write_health(folder, target.cell, on_flags), setup)


def _error_of(step: Callable[[], None], setup: SweepSetup) -> Exception | None:
    """The error that a step raises: one cell's failure must not end the others, so the sweep raises all at its end."""
    try:
        step()
    except Preempted:
        raise
    except Exception as e:
        if is_out_of_memory(e):
            return RunFailed(out_of_memory_message(setup.config.sweep, setup.device_budget))
        return e
    return None


def _run_recorded(
    programs: SweepPrograms,
    config: Config,
    base_policy: BasePolicy,
    cell: Cell,
    folder: Path,
    on_progress: Callable[[CellProgress], None],
) -> None:
    """Run a cell that is not finished, with its ledger, its loggers and the uploader of its checkpoints open."""
    ledger = Ledger(folder, cell, config_hash(config.cell)) if multiprocess.is_primary() else None
    if is_finished(config, cell, folder, ledger):
        return
    uploader = CheckpointUploader((folder / CHECKPOINT_FOLDER).absolute())
    outputs = CellOutputs(folder, ledger, uploader)
    with CellLoggers(ledger, cell, config) if ledger else nullcontext():
        run_cell(programs, config, base_policy, cell, outputs, on_progress)


def out_of_memory_message(sweep: SweepConfig, device_budget: DeviceBudget) -> str:
    """What to do where memory was not enough: the microbatch that would fit, as far as the planner can tell."""
    suggested, estimated_bytes = largest_fitting_microbatch(sweep, device_budget), device_budget.estimate(sweep).peak
    power_of_two = 2 ** (suggested.bit_length() - 1) if suggested else 0
    advice = "no smaller one would fit; lower sweep.decode_slots, or use more devices"
    if suggested:
        advice = f"sweep.microbatch={power_of_two} would fit"
    if sweep.remat != "layer":
        advice += ", and sweep.remat=layer takes less"
    return (
        f"out of memory: with sweep.microbatch = {sweep.microbatch} and sweep.decode_slots = {sweep.decode_slots} a "
        f"device was estimated to need {format_bytes(estimated_bytes)}. By the same estimate {advice}. Both are "
        "settings of a whole sweep: start it under another name=NAME. What is recorded stays, and goes on by --resume "
        "where there is more memory."
    )
