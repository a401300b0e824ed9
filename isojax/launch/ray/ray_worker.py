"""The work of a process of a process group, loaded with jax by RayActor: it prepares the sweep and trains cells."""

import socket
import time
from contextlib import ExitStack
from pathlib import Path

from isojax.core import registry
from isojax.core.config import Config
from isojax.core.errors import InputError, RunFailed
from isojax.core.nouns import Cell, CellProgress
from isojax.core.preemption import Preempted
from isojax.core.terminal import warn
from isojax.distributed import multiprocess
from isojax.launch.local.join_processes import join_processes
from isojax.launch.local.local_runner import train_cell
from isojax.launch.local.setup import open_sweep, start_jax
from isojax.launch.process_group import ProcessGroup
from isojax.launch.ray import ray_actor
from isojax.launch.ray.ray_actor import CallResult
from isojax.launch.strategy import CellTarget
from isojax.runs.mirror import is_url, refresh, remote_workspace, working_folder
from isojax.runs.storage import FolderLocked, exclusive_lock

# Seconds within which the process that had a cell before is gone, and what an NFS server kept for it.
LOCK_TIMEOUT = 150.0
LOCK_RETRY_INTERVAL = 0.5


class RayWorker:
    def __init__(self, name: str, status: ray_actor.StatusCollector):
        """`name`: of this process, in the mirror of a sweep at a URL."""
        self._name, self._status = name, status
        self._exit_stack = ExitStack()

    def open(self, config: Config, cells: list[Cell], token: str, group: ProcessGroup) -> None:
        """Join the other processes and prepare the sweep; InputError where it is refused."""
        registry.set_plugin_folders(config.run.plugin_folders)
        self._exit_stack.enter_context(
            remote_workspace(config.run.dir, config.name, group.is_multi_process, cell_name=self._name)
        )
        folder = working_folder(config.run.dir, config.name)
        token_file = folder / ray_actor.TOKEN_FILE
        if not is_url(config.run.dir) and not (token_file.exists() and token_file.read_text() == token):
            raise InputError(
                f"run.dir: the node {socket.gethostname()} does not see {folder} as the driver does; expected a folder "
                "that all nodes share (NFS, a mounted bucket). Choose one by run.dir=FOLDER."
            )
        start_jax(config)
        self._exit_stack.enter_context(join_processes(group))
        self._setup = self._exit_stack.enter_context(open_sweep(config, cells, resume=True))
        self._base_policy = self._setup.prepare(self._status.show_preparation)

    def train(self, target: CellTarget) -> CallResult:
        setup, cell = self._setup, target.cell
        cell_folder = setup.folder / "cells" / cell.name
        refresh(setup.folder, cell.name)

        def report(progress: CellProgress) -> None:
            self._status.update_cell(progress, setup.verifier_failures())

        with ExitStack() as stack:
            if multiprocess.is_primary():
                try:
                    _lock_cell(stack, cell_folder)
                except FolderLocked:
                    return CallResult(ray_actor.WORKER_LOST, f"another process still writes to {cell_folder}")
                except InputError as e:
                    return CallResult(ray_actor.CELL_FAILED, str(e))
            try:
                error = train_cell(setup, setup.programs[0], self._base_policy, target, report, self._status.show_flags)
            except Preempted as e:
                return CallResult(ray_actor.PREEMPTED, str(e))
        if error is None:
            return CallResult()
        warn(f"{cell.name}: {type(error).__name__}: {error}")
        is_cell_failure = isinstance(error, (FloatingPointError, InputError, RunFailed))
        kind = ray_actor.CELL_FAILED if is_cell_failure else ray_actor.WORKER_LOST
        return CallResult(kind, str(error) or type(error).__name__)

    def close(self) -> None:
        self._exit_stack.close()


def _lock_cell(stack: ExitStack, cell_folder: Path) -> None:
    """Hold the lock of a cell's folder until `stack` ends; raises FolderLocked if it is not free in time."""
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            stack.enter_context(exclusive_lock(cell_folder))
            return
        except FolderLocked:
            if time.monotonic() > deadline:
                raise
            time.sleep(LOCK_RETRY_INTERVAL)
