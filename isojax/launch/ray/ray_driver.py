"""A sweep on a Ray cluster: each cell runs in a group of processes that Ray places and kills as a whole, and that
starts again from the newest checkpoint.

The scheduler gives cells to process groups, longest first. A group keeps its compiled programs from cell to cell. The
driver plans, schedules, displays and fits; it never imports jax, so it claims no accelerator. Whatever ends the driver,
Ray ends the process groups, and --resume continues the sweep.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from isojax.core import preemption
from isojax.core.config import Config
from isojax.core.errors import InputError
from isojax.core.machine import cores
from isojax.launch.cell_outcomes import raise_cell_failures
from isojax.launch.display import Display, console, print_cells
from isojax.launch.planner import plan_cells
from isojax.launch.process_group import SINGLE_PROCESS, ProcessGroup
from isojax.launch.ray.placement import process_group_spec, require_capacity
from isojax.launch.ray.scheduler import RayScheduler
from isojax.launch.resume import holds_run
from isojax.launch.strategy import check as check_strategy
from isojax.runs.folder_lock import exclusive_lock
from isojax.runs.workspace import working_folder

LOCAL, AUTO = "local", "auto"
CONNECT_TIMEOUT = 20.0  # seconds in which a cluster answers


def launch(config: Config, resume: bool, dry_run: bool, process_group: ProcessGroup = SINGLE_PROCESS) -> Path:
    """Run every cell of the sweep that is not finished, on the cluster of `run.ray`; returns the sweep's folder.

    Raises:
        InputError: within half a minute and before any work: there is no such cluster, it cannot hold a process group,
            the folder cannot be written, or the local runner would refuse the sweep.
        RunFailed: after all other cells are done, naming the cells that failed.
        Preempted: asked to end by Ctrl-C or SIGTERM; the cells at work have saved their state.
    """
    if process_group.is_multi_process:
        raise InputError(
            "--ray starts the processes of its process groups itself; "
            "leave out --processes, --process and --coordinator."
        )
    cells, folder = plan_cells(config.sweep), working_folder(config.run.dir, config.name).absolute()
    holds_run(folder, resume or dry_run)
    check_strategy(config, cells)
    with connect_ray(config.run.ray or LOCAL) as ray:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        spec = process_group_spec(config, nodes)
        concurrent_groups = min(require_capacity(spec, nodes), len(cells), config.run.cells_at_once or len(cells))
        print_cells(config, cells, folder)
        console.print(
            f"{concurrent_groups} process groups at once on {len(nodes)} nodes, each of {spec}",
            soft_wrap=True,
            highlight=False,
        )
        if not dry_run:
            with exclusive_lock(folder), Display(config) as display, preemption.handle_sigterm():
                failures = RayScheduler(ray, config, cells, folder, spec, display).run()
            raise_cell_failures(failures, len(cells), folder)
    return folder


@contextmanager
def connect_ray(address: str) -> Iterator[Any]:
    """The module ray, connected to a cluster: one of this machine alone, which ends with the context; the one that this
    machine is a node of (auto); or that of HOST:PORT.

    Raises:
        InputError: ray is not installed, or no cluster answers.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a process without a GPU keeps its environment
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    os.environ.setdefault("RAY_worker_niceness", "0")  # of processes that Ray starts here: they are what runs here
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # a thread that is late does not start another Ray
    try:
        import ray
    except ModuleNotFoundError as e:
        raise InputError("--ray needs Ray, which is not installed. Install it: pip install 'isojax[ray]'") from e
    init_options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False, "namespace": "isojax"}
    if address == LOCAL:
        try:
            ray.init(address=LOCAL, num_cpus=cores(), include_dashboard=False, **init_options)
        except (OSError, RuntimeError, ValueError) as e:  # Ray's own are among them
            raise InputError(
                f"--ray local: Ray does not start on this machine ({_first_line(e)}). Mend that, or leave --ray out."
            ) from e
    else:
        host_and_port = _host_and_port(address)

        def connect() -> None:
            if host_and_port is not None:  # nothing that listens is told at once
                socket.create_connection(host_and_port, timeout=5).close()
            ray.init(address=address, **init_options)

        _connect_within(CONNECT_TIMEOUT, connect, address)
    try:
        yield ray
    finally:
        ray.shutdown()


def _host_and_port(address: str) -> tuple[str, int] | None:
    """Of HOST:PORT; None for auto. InputError for anything else."""
    host, _, port = address.rpartition(":")
    if address == AUTO:
        return None
    if not host or "/" in host or not port.isdecimal():
        raise InputError(
            f"--ray: given {address!r}, expected local, auto, or HOST:PORT of the cluster that this machine is a node "
            "of. From a machine that is none, hand it in: ray job submit --address http://HEAD:8265 --working-dir . "
            "-- isojax launch ... --ray auto."
        )
    return host.strip("[]"), int(port)


def _connect_within(timeout: float, connect: Any, address: str) -> None:
    """What `connect` does; InputError where it fails or takes longer."""
    raised: list[BaseException] = []

    def guarded() -> None:
        try:
            connect()
        except BaseException as e:  # for the caller, who raises it
            raised.append(e)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        raise _no_cluster(address, TimeoutError(f"no answer in {timeout:.0f} seconds"))
    if raised:
        raise _no_cluster(address, raised[0]) from raised[0]


def _no_cluster(address: str, error: BaseException) -> InputError:
    location = "that this machine is a node of" if address == AUTO else f"at {address}"
    return InputError(
        f"--ray {address}: no Ray cluster {location} ({_first_line(error)}). "
        "Start one by `ray start --head --port=6379`, join it by `ray start --address=HOST:6379`, "
        "or run on this machine alone by --ray local."
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
