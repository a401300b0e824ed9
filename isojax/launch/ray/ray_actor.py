"""A process of a process group, as the driver sees it: Ray starts it, and the driver calls its
methods. This module loads no jax, as the driver names the class; the process does, with
ray_worker.py, when it opens the sweep."""

import importlib
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isojax.core import preemption
from isojax.core.config import Config
from isojax.core.nouns import Cell, CellProgress, StartWarning
from isojax.launch.process_group import ProcessGroup
from isojax.launch.strategy import CellTarget

TOKEN_FILE = ".sweep"  # only a process that sees the driver's folder can read it
DEVICE_COUNT_FLAG = "--xla_force_host_platform_device_count"


class WorkerLost(Exception):
    """A process, or its group, is of no more use: it died, or its node did."""


@dataclass
class StatusUpdate:
    # what is prepared for the first cell, and the fraction done
    preparation: tuple[str, float] | None = None
    progress: CellProgress | None = None
    verifier_failures: dict[str, str] = field(default_factory=dict)  # the first of each kind
    start_warnings: list[StartWarning] = field(default_factory=list)  # of a cell that begins
    flags: list[str] = field(default_factory=list)  # of a cell that has ended


class StatusCollector:
    """Collects what a display would show, until the driver asks for it."""

    def __init__(self) -> None:
        self.pending = StatusUpdate()

    def show_preparation(self, text: str, fraction: float) -> None:
        self.pending.preparation = text, fraction

    def update_cell(self, progress: CellProgress) -> None:
        self.pending.progress = progress

    def show_verifier_failure(self, kind: str, what_happened: str) -> None:
        self.pending.verifier_failures[kind] = what_happened

    def show_start(self, cell: Cell, warnings: Sequence[StartWarning]) -> None:
        self.pending.start_warnings += warnings

    def show_flags(self, cell: Cell, flags: Sequence[str]) -> None:
        self.pending.flags += flags


class RayActor:
    """One process of a process group. `open` and `train` return when they are done; meanwhile
    `news` reports."""

    _train: Callable[[CellTarget], None]

    def __init__(self, folder: str, log_file: str):
        """`folder`: where the sweep was started. `log_file`: to which this process prints."""
        if Path(folder).is_dir():
            os.chdir(folder)  # relative paths begin here
        sys.path.insert(0, "")  # a fork's modules are found here, as by cli/app.py
        Path(log_file).parent.mkdir(parents=True, exist_ok=True)
        with open(log_file, "a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
        self._status = StatusCollector()
        self._name = Path(log_file).stem
        self._exit_stack = ExitStack()
        # with the processes of the other role, by their number (roles.Link)
        self._links: Mapping[int, Any] = {}

    def address(self) -> str:
        """HOST:PORT of this node, with a port that is free here, at which the processes can
        meet."""
        from ray.util import get_node_ip_address

        with socket.create_server(("", 0)) as free_socket:
            return f"{get_node_ip_address()}:{free_socket.getsockname()[1]}"

    def open(
        self,
        config: Config,
        cells: list[Cell],
        token: str,
        process_group: ProcessGroup,
        cpu_devices: int | None,
        actors: Sequence[Any],
    ) -> None:
        """Prepare the sweep; InputError where it is refused. token: the content of TOKEN_FILE in
        the driver's folder. cpu_devices: that a CPU simulates; None on accelerators. actors: all
        processes, as Ray's handles."""
        if cpu_devices is not None:  # jax reads both variables
            os.environ["JAX_PLATFORMS"] = "cpu"  # its cores only, whatever else the node has
            flags = [
                flag
                for flag in os.environ.get("XLA_FLAGS", "").split()
                if not flag.startswith(DEVICE_COUNT_FLAG)
            ]
            os.environ["XLA_FLAGS"] = " ".join([*flags, f"{DEVICE_COUNT_FLAG}={cpu_devices}"])
        worker = importlib.import_module("isojax.launch.ray.ray_worker")
        self._links = worker.make_links(config, process_group, actors)
        prepared_sweep = worker.prepare_sweep(
            config, cells, token, process_group, self._name, self._status, self._links
        )
        self._train = self._exit_stack.enter_context(prepared_sweep)

    def train(self, target: CellTarget) -> None:
        """Train a cell; Preempted where its state is saved, DeadStart where no cell can learn,
        RunFailed where this one would fail again, WorkerLost else."""
        self._train(target)

    def receive(self, sender: int, number: int, message: tuple[Any, ...]) -> None:
        """A message of the process `sender`, of the other role, and its number among those from
        there."""
        self._links[sender].receive(number, message)

    def news(self) -> StatusUpdate:
        """What has happened since the last call."""
        update, self._status.pending = self._status.pending, StatusUpdate()
        return update

    def stop(self) -> None:
        """Let the cell in training save its state and end."""
        preemption.REQUESTED.set()

    def close(self) -> None:
        """Disconnect from the other processes, and end the verifier."""
        self._exit_stack.close()
