"""A process of a process group, as the driver sees it: Ray starts it, and the driver calls its
methods.

This module loads no jax, as the driver names the class to Ray. The process does, with
ray_worker.py, when it opens the sweep.
"""

import io
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from isojax.core import preemption
from isojax.core.config import Config
from isojax.core.nouns import Cell
from isojax.launch.packing.pack_file import unpack
from isojax.launch.packing.pack_plan import with_plugin_folders_here
from isojax.launch.process_group import ProcessGroup
from isojax.launch.ray.process_status import StatusCollector, StatusUpdate
from isojax.launch.strategies import CellTarget

DEVICE_COUNT_FLAG = "--xla_force_host_platform_device_count"


class RayActor:
    """One process of a process group. `open` and `train` return when they are done; meanwhile
    `news` reports."""

    _train: Callable[[CellTarget], None]

    def __init__(self, folder: str, log_file: str):
        """Send all that this process prints to a file, from here on.

        folder: where the sweep was started; relative paths begin there if this node has it.
        log_file: such as FOLDER/logs/group0-0-1.log.
        """
        if Path(folder).is_dir():
            os.chdir(folder)  # relative paths begin here
        sys.path.insert(0, "")  # a fork's modules are found here, as by cli/app.py

        # The descriptors, not sys.stdout alone: libraries in C++ and child processes print too.
        Path(log_file).parent.mkdir(parents=True, exist_ok=True)
        with open(log_file, "a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]

        self._status = StatusCollector()
        self._name = Path(log_file).stem
        self._exit_stack = ExitStack()  # what `close` ends
        # with the processes of the other role, by their number (roles.Link)
        self._links: Mapping[int, Any] = {}

    def address(self) -> str:
        """HOST:PORT of this node, with a port that is free now, at which the processes can meet."""
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
        pack: bytes | None = None,
    ) -> None:
        """Prepare the sweep; InputError where it is refused.

        cells: of the whole sweep. token: the content of TOKEN_FILE in the driver's folder.
        process_group: as this process is part of it. cpu_devices: how many a CPU simulates; None on
        accelerators. actors: all processes of the group in their order, as Ray's handles. pack:
        with the files of the config, in whose folder this process then works; None: they are here.
        """
        if pack is not None:
            unpacked = unpack(io.BytesIO(pack), "the pack of the driver")
            os.chdir(unpacked.folder)
            config = with_plugin_folders_here(config)
        if cpu_devices is not None:
            _simulate_devices(cpu_devices)

        from isojax.launch.ray import ray_worker  # loads jax, which reads the environment once

        self._links = ray_worker.make_links(config, process_group, actors)
        prepared_sweep = ray_worker.prepare_sweep(
            config, cells, token, process_group, self._name, self._status, self._links
        )
        self._train = self._exit_stack.enter_context(prepared_sweep)

    def train(self, target: CellTarget) -> None:
        """Train a cell up to its target; `open` must have returned before.

        Preempted where this process was asked to end and its state is saved; DeadStart where no
        cell can learn; RunFailed where this cell would fail again; WorkerLost for any other error.
        """
        self._train(target)

    def receive(self, sender: int, number: int, message: tuple[Any, ...]) -> None:
        """Take a message of a process of the other role (that trains, or only samples).

        sender: its number. number: of the message among those from there, as they may come in
        another order.
        """
        self._links[sender].receive(number, message)

    def news(self) -> StatusUpdate:
        """What has happened since the last call."""
        return self._status.take()

    def stop(self) -> None:
        """Let the cell in training save its state and end."""
        preemption.REQUESTED.set()

    def close(self) -> None:
        """Disconnect from the other processes, and end the verifier."""
        self._exit_stack.close()


def _simulate_devices(count: int) -> None:
    """Set the environment so that jax takes only this node's CPU, as so many devices.

    It must be called before jax is loaded.
    """
    os.environ["JAX_PLATFORMS"] = "cpu"
    other_flags = [
        flag
        for flag in os.environ.get("XLA_FLAGS", "").split()
        if not flag.startswith(DEVICE_COUNT_FLAG)
    ]
    os.environ["XLA_FLAGS"] = " ".join([*other_flags, f"{DEVICE_COUNT_FLAG}={count}"])
