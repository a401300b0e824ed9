"""Several processes that are one run, started together: on each of a TPU pod's hosts, by srun, or by hand with three options.

JAX's own service brings them together (jax.distributed). What ends one of them ends all: see sentinel.py; and JAX's heartbeat, where a
process hangs but its machine lives.
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

from isojax.config import Config
from isojax.launch.sentinel import Watch
from isojax.types import InputError

AUTO = "auto"
TOGETHER = 120  # seconds that processes may start apart
PARTING = 20  # seconds that a process which fails waits for the others
HEARTBEAT = 40  # seconds without a sign of a process until JAX ends the others


@dataclass(frozen=True)
class Gang:
    """Which of how many processes this one is, and where process 0 can be reached; `auto`: as the cluster says.

    `detected`: what is not given, such as a process's share of its host's devices, is as the cluster says too (SLURM's variables).
    """

    coordinator: str = ""
    processes: int = 1
    process: int = 0
    auto: bool = False
    detected: bool = True

    @property
    def several(self) -> bool:
        """Whether there may be more than this one."""
        return self.auto or self.processes > 1


ALONE = Gang()


def gang_of(coordinator: str | None, processes: str | None, process: int | None) -> Gang:
    """What the options --coordinator, --processes and --process mean.

    Raises:
        InputError: they contradict one another.
    """
    if processes is None and coordinator is None and process is None:
        return ALONE
    if processes == AUTO:
        if coordinator is not None or process is not None:
            raise InputError("--processes auto asks the cluster for coordinator and process; leave --coordinator and --process out.")
        return Gang(auto=True)
    try:
        count = int(processes or "")
    except ValueError:
        count = 0
    if count < 1:
        raise InputError(f"--processes: given {processes!r}, expected how many processes there are in all, or auto.")
    if count == 1:
        return ALONE
    if coordinator is None or ":" not in coordinator:
        raise InputError(f"--coordinator: given {coordinator!r}, expected HOST:PORT of process 0, as all processes reach it.")
    if process is None or not 0 <= process < count:
        raise InputError(f"--process: given {process}, expected this process's number, 0 to {count - 1}.")
    return Gang(coordinator, count, process)


@contextmanager
def together(gang: Gang) -> Iterator[None]:
    """All processes joined; on leaving it well, they part.

    Raises:
        InputError: they do not come together, or have not as many devices each.
    """
    if not gang.several:
        yield
        return
    import jax

    given: dict[str, Any] = {} if gang.auto else {"num_processes": gang.processes, "process_id": gang.process}
    given |= {} if gang.auto else {"coordinator_address": gang.coordinator}
    given |= {} if gang.detected else {"cluster_detection_method": "deactivate"}
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM, which stopping.py heeds
    try:
        jax.distributed.initialize(
            **given, initialization_timeout=TOGETHER, heartbeat_timeout_seconds=HEARTBEAT, shutdown_timeout_seconds=PARTING
        )
    except (RuntimeError, ValueError) as e:
        asked = "the cluster's description" if gang.auto else f"{gang.processes} processes at {gang.coordinator}"
        raise InputError(
            f"the processes of this run did not come together within {TOGETHER} seconds ({asked}): {str(e).splitlines()[0]}. Start all of "
            "them with the same --coordinator and --processes, and each with its own --process."
        ) from e
    check_even([d.process_index for d in jax.devices()])
    watch = _watch(jax, gang)
    from isojax import hosts

    try:
        yield
        hosts.wait("the run is over")
    except BaseException:  # whatever ends this process, the others are told of it
        watch.close(well=False)
        raise
    watch.close(well=True)
    jax.distributed.shutdown()


def _watch(jax: Any, gang: Gang) -> Watch:
    """The sentinel of this process, connected with that of process 0."""
    from isojax import hosts

    listener, port = None, 0
    if hosts.writes():
        listener = socket.create_server(("", 0))
        port = listener.getsockname()[1]
    port = hosts.first(port)
    address = gang.coordinator or jax._src.distributed.global_state.coordinator_address  # JAX tells no other way where it has found it
    host = address.rpartition(":")[0].strip("[]")
    watch = Watch(jax.process_index(), jax.process_count(), host, port, listener, lambda: os._exit(1))
    if listener is not None:
        listener.close()  # the sentinel has its own
    return watch


def check_even(owners: Sequence[int]) -> None:
    """InputError where processes have not as many devices each, which JAX's gathering over processes asks for. `owners`: of each device."""
    counts = Counter(owners)
    if len(set(counts.values())) > 1:
        has = ", ".join(f"process {process} has {count}" for process, count in sorted(counts.items()))
        raise InputError(
            f"processes with unlike numbers of devices ({has}); expected as many in each. On a CPU, which has one for every core, set the "
            f"same in all of them: XLA_FLAGS=--xla_force_host_platform_device_count={min(counts.values())}."
        )


def check_several(config: Config, wanted: int, devices: int, processes: int) -> None:
    """InputError where several processes cannot be one run."""
    if wanted != devices:
        raise InputError(
            f"--mesh {config.run.mesh} takes {wanted} of the {devices} devices of {processes} processes; expected all of them, as each "
            f"process is a part of every step. Choose sizes whose product is {devices}, or start fewer processes."
        )
    if config.cell.rl.pipeline is not None:
        raise InputError(
            f"cell.rl.pipeline = {config.cell.rl.pipeline} with {processes} processes; expected one process, which a pipeline's two halves "
            "share. Leave cell.rl.pipeline out, or run it on one host."
        )
    if config.run.cells_at_once not in (None, 1):
        raise InputError(f"run.cells_at_once = {config.run.cells_at_once} with {processes} processes; expected 1, or none.")


def check_shared(folder: Path) -> None:
    """InputError where the processes of a run do not see one and the same folder."""
    from isojax import hosts

    if not hosts.several():
        return
    mark = folder / ".shared"
    if hosts.writes():
        mark.write_text(token := os.urandom(8).hex())
    token = hosts.first(token if hosts.writes() else "")
    missing = [i for i, seen in enumerate(hosts.everyone(mark.exists() and mark.read_text() == token)) if not seen]
    hosts.wait("the mark has been looked for")
    if hosts.writes():
        mark.unlink()
    if missing:
        raise InputError(
            f"run.dir: the processes {', '.join(map(str, missing))} do not see {folder} as process 0 does; expected a folder that all "
            "hosts share (NFS, a mounted bucket). Choose one by run.dir=FOLDER."
        )
