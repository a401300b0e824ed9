"""A process of a gang: it joins the others, makes the sweep ready, and trains the cells that it is given, one at a
time.

Whoever starts it (ray_driver.py) calls its methods from elsewhere and gets plain data back: `open` and `train` take as
long as they take, and meanwhile `news` says how far they are. What it prints goes to a file of its own, which outlives
it. jax is loaded by `open`.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from isojax.core import preemption
from isojax.core.config import Config
from isojax.core.errors import InputError, RunFailed
from isojax.core.nouns import Cell, CellProgress
from isojax.core.preemption import Preempted
from isojax.launch.local.cell_threads import report_verifier_failures
from isojax.launch.processes.process_group import ProcessGroup, join_processes
from isojax.launch.strategy import CellTarget
from isojax.runs.folder_lock import FolderLocked, exclusive_lock
from isojax.runs.workspace import is_url, refresh, remote_workspace, working_folder

TOKEN_FILE = ".sweep"  # a file that only who sees the driver's folder can read
DEVICE_COUNT_FLAG = "--xla_force_host_platform_device_count"
LOCK_TIMEOUT = 150.0  # seconds in which the process that had a cell before is gone, and what an NFS server kept for it
FINISHED, PREEMPTED, CELL_FAILED, INPUT_REFUSED, WORKER_LOST = "well", "stopped", "broken", "refused", "lost"


@dataclass
class StatusUpdate:
    """What has become known since the last time: of the base policy's making, of the cell at work, of the verifier's
    failures.
    """

    preparation: tuple[str, float] | None = None
    progress: CellProgress | None = None
    verifier_failures: dict[str, str] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)


class StatusCollector:
    """Takes what display.Display shows, for somebody else to show."""

    def __init__(self) -> None:
        self.pending = StatusUpdate()

    def show_preparation(self, text: str, fraction: float) -> None:
        self.pending.preparation = text, fraction

    def show_verifier_failures(self, examples: Mapping[str, str]) -> None:
        self.pending.verifier_failures |= examples

    def update_cell(self, progress: CellProgress) -> None:
        self.pending.progress = progress

    def show_flags(self, cell: Cell, flags: Sequence[str]) -> None:
        self.pending.flags += flags

    def drain(self) -> StatusUpdate:
        """What there is, once."""
        status_update, self.pending = self.pending, StatusUpdate()
        return status_update


@dataclass(frozen=True)
class CallResult:
    """How a call has ended: WELL, STOPPED (its state is saved), BROKEN (the cell's own fault, which it would meet
    again), REFUSED (the user's), or LOST (this process is of no more use)."""

    kind: str = FINISHED
    message: str = ""


class RayWorker:
    """One process of a gang."""

    def __init__(self, folder: str, log_file: str):
        """`folder`: where the sweep was started. `log`: the file that what this process prints is appended to."""
        if Path(folder).is_dir():
            os.chdir(folder)  # where relative paths begin
        sys.path.insert(0, "")  # where a fork's modules are found (cli/app.py)
        Path(log_file).parent.mkdir(parents=True, exist_ok=True)
        with open(log_file, "a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
        self._status, self._exit_stack, self._worker_name = StatusCollector(), ExitStack(), Path(log_file).stem

    def host(self) -> str:
        """This node, as others of the cluster reach it."""
        import ray

        return ray.util.get_node_ip_address()

    def address(self) -> str:
        """HOST:PORT with a port that is free here, for the processes to meet."""
        with socket.create_server(("", 0)) as free_socket:
            return f"{self.host()}:{free_socket.getsockname()[1]}"

    def open(
        self, config: Config, cells: list[Cell], token: str, cpu_devices: int | None, process_group: ProcessGroup
    ) -> CallResult:
        """Join the others and make the sweep ready, as far as that was not done before. `devices`: how many a CPU
        simulates.
        """
        try:
            self._exit_stack.enter_context(
                remote_workspace(
                    config.run.dir, config.name, process_group.is_multi_process, cell_name=self._worker_name
                )
            )
            folder = working_folder(config.run.dir, config.name)
            if not is_url(config.run.dir) and (
                not (folder / TOKEN_FILE).exists() or (folder / TOKEN_FILE).read_text() != token
            ):
                raise InputError(
                    f"run.dir: the node {self.host()} does not see {folder} as the driver does; expected a folder that all nodes share "
                    "(NFS, a mounted bucket). Choose one by run.dir=FOLDER."
                )
            if cpu_devices is not None:
                os.environ["JAX_PLATFORMS"] = "cpu"  # of its cores alone, whatever else the node has
                xla_flags = [
                    word for word in os.environ.get("XLA_FLAGS", "").split() if not word.startswith(DEVICE_COUNT_FLAG)
                ]
                os.environ["XLA_FLAGS"] = " ".join([*xla_flags, f"{DEVICE_COUNT_FLAG}={cpu_devices}"])
            from isojax.launch.local.setup import open_sweep, start_jax

            jax = start_jax(config)
            self._exit_stack.enter_context(join_processes(process_group))
            self._setup = self._exit_stack.enter_context(open_sweep(jax, config, cells, resume=True))
            self._base_policy = self._setup.prepare(self._status)
        except InputError as e:
            return CallResult(INPUT_REFUSED, str(e))
        return CallResult()

    def train(self, target: CellTarget) -> CallResult:
        """Train a cell up to its goal, from where it stands."""
        from isojax.distributed import multiprocess
        from isojax.launch.local.cell_threads import train_cell

        setup, cell = self._setup, target.cell
        refresh(setup.folder, cell.name)

        def report(progress: CellProgress) -> None:
            self._status.update_cell(progress)
            report_verifier_failures(self._status, setup.task)

        with ExitStack() as stack:
            if multiprocess.is_primary():
                deadline = time.monotonic() + LOCK_TIMEOUT
                while True:
                    try:
                        stack.enter_context(exclusive_lock(setup.folder / "cells" / cell.name))
                        break
                    except FolderLocked:
                        if time.monotonic() > deadline:
                            return CallResult(
                                WORKER_LOST, f"another process still writes to {setup.folder / 'cells' / cell.name}"
                            )
                        time.sleep(0.5)
                    except InputError as e:
                        return CallResult(CELL_FAILED, str(e))
            try:
                error = train_cell(setup, setup.programs[0], self._base_policy, target, report, self._status.show_flags)
            except Preempted as e:
                return CallResult(PREEMPTED, str(e))
        if error is None:
            return CallResult()
        print(f"{cell.name}: {type(error).__name__}: {error}", file=sys.stderr)
        is_cell_failure = isinstance(error, (FloatingPointError, InputError, RunFailed))
        return CallResult(CELL_FAILED if is_cell_failure else WORKER_LOST, str(error) or type(error).__name__)

    def news(self) -> StatusUpdate:
        """What has become known since the last call."""
        return self._status.drain()

    def stop(self) -> None:
        """The cell at work is to save its state and end."""
        preemption.request_preemption()

    def close(self) -> None:
        """Parts from the others; ends the verifier."""
        self._exit_stack.close()
