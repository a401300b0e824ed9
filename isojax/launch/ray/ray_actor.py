"""A process of a process group, as the driver sees it: Ray starts it, and the driver calls its methods.

The driver names this class, so this module loads no jax. The process loads RayWorker, and jax with it, when the driver
opens the sweep. What the process prints goes to a log file, which outlives it.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
from pathlib import Path
from typing import Any

from isojax.core import preemption
from isojax.core.errors import InputError
from isojax.launch.ray import messages
from isojax.launch.ray.messages import CallResult, StatusCollector, StatusUpdate, WorkerArguments
from isojax.launch.strategy import CellTarget

DEVICE_COUNT_FLAG = "--xla_force_host_platform_device_count"


class RayActor:
    """One process of a process group. `open` and `train` return when they are done; meanwhile `news` reports."""

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
        self._worker: Any = None

    def address(self) -> str:
        """HOST:PORT of this node, with a port that is free here, at which the processes can meet."""
        import ray

        with socket.create_server(("", 0)) as free_socket:
            return f"{ray.util.get_node_ip_address()}:{free_socket.getsockname()[1]}"

    def open(self, arguments: WorkerArguments) -> CallResult:
        """Join the other processes and prepare the sweep."""
        if arguments.cpu_devices is not None:  # jax reads both variables
            os.environ["JAX_PLATFORMS"] = "cpu"  # its cores only, whatever else the node has
            flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(DEVICE_COUNT_FLAG)]
            os.environ["XLA_FLAGS"] = " ".join([*flags, f"{DEVICE_COUNT_FLAG}={arguments.cpu_devices}"])
        worker_module = importlib.import_module("isojax.launch.ray.ray_worker")
        self._worker = worker_module.RayWorker(self._name, self._status)
        try:
            self._worker.open(arguments)
        except InputError as e:
            return CallResult(messages.INPUT_REFUSED, str(e))
        return CallResult()

    def train(self, target: CellTarget) -> CallResult:
        """Train a cell up to its target, from its checkpoint."""
        return self._worker.train(target)

    def news(self) -> StatusUpdate:
        """What has happened since the last call."""
        return self._status.drain()

    def stop(self) -> None:
        """Let the cell in training save its state and end."""
        preemption.request_preemption()

    def close(self) -> None:
        """Disconnect from the other processes, and end the verifier."""
        if self._worker is not None:
            self._worker.close()
