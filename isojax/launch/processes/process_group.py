"""Several processes that are one run, started together: on each of a TPU pod's hosts, by srun, or by hand with three
options.

JAX's own service brings them together (jax.distributed). What ends one of them ends all: see watchdog.py; and JAX's
heartbeat, where a process hangs but its machine lives.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isojax.core.config import Config
from isojax.core.errors import InputError
from isojax.launch.processes.watchdog import WatchdogClient

AUTO = "auto"
JOIN_TIMEOUT = 120  # seconds that processes may start apart
SHUTDOWN_TIMEOUT = 20  # seconds that a process which fails waits for the others
HEARTBEAT_TIMEOUT = 40  # seconds without a sign of a process until JAX ends the others


@dataclass(frozen=True)
class ProcessGroup:
    """Which of how many processes this one is, and where process 0 can be reached; `auto`: as the cluster says.

    `detected`: what is not given, such as a process's share of its host's devices, is as the cluster says too (SLURM's
    variables).
    """

    coordinator: str = ""
    num_processes: int = 1
    process_id: int = 0
    auto: bool = False
    detect_cluster: bool = True

    @property
    def is_multi_process(self) -> bool:
        """Whether there may be more than this one."""
        return self.auto or self.num_processes > 1


SINGLE_PROCESS = ProcessGroup()


def parse_process_group(coordinator: str | None, num_processes: str | None, process_id: int | None) -> ProcessGroup:
    """What the options --coordinator, --processes and --process mean.

    Raises:
        InputError: they contradict one another.
    """
    if num_processes is None and coordinator is None and process_id is None:
        return SINGLE_PROCESS
    if num_processes == AUTO:
        if coordinator is not None or process_id is not None:
            raise InputError(
                "--processes auto asks the cluster for coordinator and process; leave --coordinator and --process out."
            )
        return ProcessGroup(auto=True)
    try:
        count = int(num_processes or "")
    except ValueError:
        count = 0
    if count < 1:
        raise InputError(
            f"--processes: given {num_processes!r}, expected how many processes there are in all, or auto."
        )
    if count == 1:
        return SINGLE_PROCESS
    if coordinator is None or ":" not in coordinator:
        raise InputError(
            f"--coordinator: given {coordinator!r}, expected HOST:PORT of process 0, as all processes reach it."
        )
    if process_id is None or not 0 <= process_id < count:
        raise InputError(f"--process: given {process_id}, expected this process's number, 0 to {count - 1}.")
    return ProcessGroup(coordinator, count, process_id)


@contextmanager
def join_processes(process_group: ProcessGroup) -> Iterator[None]:
    """All processes joined; on leaving it well, they part.

    Raises:
        InputError: they do not come together, or have not as many devices each.
    """
    if not process_group.is_multi_process:
        yield
        return
    import jax

    init_args: dict[str, Any] = (
        {}
        if process_group.auto
        else {"num_processes": process_group.num_processes, "process_id": process_group.process_id}
    )
    init_args |= {} if process_group.auto else {"coordinator_address": process_group.coordinator}
    init_args |= {} if process_group.detect_cluster else {"cluster_detection_method": "deactivate"}
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM, which core/preemption.py heeds
    try:
        jax.distributed.initialize(
            **init_args,
            initialization_timeout=JOIN_TIMEOUT,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
            shutdown_timeout_seconds=SHUTDOWN_TIMEOUT,
        )
    except (RuntimeError, ValueError) as e:
        group_text = (
            "the cluster's description"
            if process_group.auto
            else f"{process_group.num_processes} processes at {process_group.coordinator}"
        )
        raise InputError(
            f"the processes of this run did not come together within {JOIN_TIMEOUT} seconds ({group_text}): {str(e).splitlines()[0]}. Start all of "
            "them with the same --coordinator and --processes, and each with its own --process."
        ) from e
    check_even_devices([d.process_index for d in jax.devices()])
    watchdog = _start_watchdog(jax, process_group)
    from isojax.distributed import multiprocess

    try:
        yield
        multiprocess.barrier("the run is over")
    except BaseException:  # whatever ends this process, the others are told of it
        watchdog.close(succeeded=False)
        raise
    watchdog.close(succeeded=True)
    jax.distributed.shutdown()


def _start_watchdog(jax: Any, process_group: ProcessGroup) -> WatchdogClient:
    """The sentinel of this process, connected with that of process 0."""
    from isojax.distributed import multiprocess

    listener, port = None, 0
    if multiprocess.is_primary():
        listener = socket.create_server(("", 0))
        port = listener.getsockname()[1]
    port = multiprocess.broadcast(port)
    address = (
        process_group.coordinator or jax._src.distributed.global_state.coordinator_address
    )  # JAX tells no other way where it has found it
    host = address.rpartition(":")[0].strip("[]")
    watchdog = WatchdogClient(jax.process_index(), jax.process_count(), host, port, listener, lambda: os._exit(1))
    if listener is not None:
        listener.close()  # the sentinel has its own
    return watchdog


def check_even_devices(device_owners: Sequence[int]) -> None:
    """InputError where processes have not as many devices each, which JAX's gathering over processes asks for.
    `owners`: of each device.
    """
    counts = Counter(device_owners)
    if len(set(counts.values())) > 1:
        counts_text = ", ".join(f"process {process} has {count}" for process, count in sorted(counts.items()))
        raise InputError(
            f"processes with unlike numbers of devices ({counts_text}); expected as many in each. On a CPU, which has one for every core, set the "
            f"same in all of them: XLA_FLAGS=--xla_force_host_platform_device_count={min(counts.values())}."
        )


def check_multi_process(config: Config, mesh_devices: int, devices: int, num_processes: int) -> None:
    """InputError where several processes cannot be one run."""
    if mesh_devices != devices:
        raise InputError(
            f"--mesh {config.run.mesh} takes {mesh_devices} of the {devices} devices of {num_processes} processes; expected all of them, as each "
            f"process is a part of every step. Choose sizes whose product is {devices}, or start fewer processes."
        )
    if config.cell.rl.max_staleness is not None:
        raise InputError(
            f"cell.rl.max_staleness = {config.cell.rl.max_staleness} with {num_processes} processes; expected one process, which a pipeline's two halves "
            "share. Leave cell.rl.max_staleness out, or run it on one host."
        )
    if config.run.cells_at_once not in (None, 1):
        raise InputError(
            f"run.cells_at_once = {config.run.cells_at_once} with {num_processes} processes; expected 1, or none."
        )


def check_shared_folder(folder: Path) -> None:
    """InputError where the processes of a run do not see one and the same folder."""
    from isojax.distributed import multiprocess

    if not multiprocess.is_multiprocess():
        return
    mark_file = folder / ".shared"
    token = multiprocess.broadcast(os.urandom(8).hex())
    if multiprocess.is_primary():
        mark_file.write_text(token)
    multiprocess.barrier("the mark is written")
    missing_processes = [
        i
        for i, sees_mark in enumerate(multiprocess.allgather(mark_file.exists() and mark_file.read_text() == token))
        if not sees_mark
    ]
    multiprocess.barrier("the mark has been looked for")
    if multiprocess.is_primary():
        mark_file.unlink()
    if missing_processes:
        raise InputError(
            f"run.dir: the processes {', '.join(map(str, missing_processes))} do not see {folder} as process 0 does; expected a folder that all "
            "hosts share (NFS, a mounted bucket). Choose one by run.dir=FOLDER."
        )
