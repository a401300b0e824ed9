"""The processes of one run, brought together by jax.distributed; what ends one of them ends all
(watchdog.py)."""

import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import jax

from isojax.core.errors import InputError
from isojax.core.exit_codes import ExitCode
from isojax.core.machine import network_id
from isojax.core.terminal import warn
from isojax.distributed import multiprocess
from isojax.distributed.coordination import coordinator_address
from isojax.launch.process_group import SHUTDOWN_TIMEOUT, ProcessGroup
from isojax.launch.watchdog_client import WatchdogClient
from isojax.runs.folder_check import is_whole, trial_folder
from isojax.runs.storage import is_locked

# Seconds:
JOIN_TIMEOUT = 120  # within which all processes must have started
LAST_WORDS_SECONDS = 0.5  # that process 0 leaves to the others where one is lost
HEARTBEAT_TIMEOUT = 30  # without a sign of a process until JAX ends the others, if no watchdog has

LOOPBACK = "127.0.0.1"
ANY_ADDRESS = "0.0.0.0"


@contextmanager
def join_processes(process_group: ProcessGroup) -> Iterator[None]:
    """Connect this process with the others of its run, until the context ends.

    Nothing happens for a single process. At the end all wait for each other. InputError where they
    do not come together within JOIN_TIMEOUT, or have different numbers of devices.
    """
    if not process_group.is_multi_process:
        yield
        return

    # core/preemption.py handles SIGTERM; JAX's service would take it.
    jax.config.update("jax_enable_preemption_service", False)
    # None where the cluster's environment says it all; then every argument below is None too, and
    # JAX asks the environment.
    named_group = None if process_group.auto else process_group
    try:
        jax.distributed.initialize(
            coordinator_address=named_group and named_group.coordinator,
            num_processes=named_group and named_group.num_processes,
            process_id=named_group and named_group.process_id,
            coordinator_bind_address=named_group and _narrow_bind_address(named_group.coordinator),
            cluster_detection_method=None if process_group.detect_cluster else "deactivate",
            initialization_timeout=JOIN_TIMEOUT,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
            shutdown_timeout_seconds=SHUTDOWN_TIMEOUT,
        )
    except (RuntimeError, ValueError) as e:
        group_text = "the cluster's description"
        # Some slices' firewalls open 8476, which jax used until 0.8.1, and not 8482 (jax issue
        # 35905).
        fix = (
            "Start the same command on every host, and let the hosts reach each other: process 0 "
            "waits at port 8482 on a TPU, or at that of JAX_COORDINATOR_PORT."
        )
        if named_group:
            group_text = f"{named_group.num_processes} processes at {named_group.coordinator}"
            fix = (
                "Start all of them with the same --coordinator and --processes, and each with "
                "its own --process."
            )
        raise InputError(
            found=(
                f"the processes of this run did not come together within {JOIN_TIMEOUT} "
                f"seconds ({group_text}): {str(e).splitlines()[0]}"
            ),
            fix=fix,
        ) from e

    check_even_devices([d.process_index for d in jax.devices()])
    with _start_watchdog(process_group):
        yield
        multiprocess.barrier("the run is over")
    jax.distributed.shutdown()


class WatchdogEndpoint(NamedTuple):
    """Where the watchdog of process 0 listens, and what the others have to show there."""

    host: str
    port: int
    token: str


def _start_watchdog(process_group: ProcessGroup) -> WatchdogClient:
    """Start this process's watchdog, that of process 0 first.

    Every process must call this at the same place, as they exchange addresses.
    """
    address = process_group.coordinator or coordinator_address()
    host = address.rpartition(":")[0].strip("[]")  # of process 0

    # Each process says in which network it is ("" where that is not known; those with the same one
    # are on one machine), and as which address it sees that host. Both lists are in the order of
    # the processes.
    networks = multiprocess.allgather(network_id(), str)
    addresses = multiprocess.allgather(_resolve(host), str)

    listener = None
    endpoint = WatchdogEndpoint(host, 0, "")
    if multiprocess.is_primary():
        same_network = networks[0] and len(set(networks)) == 1
        listener = listen_narrowly({LOOPBACK} if same_network else set(addresses[1:]))
        listening_at, port = listener.getsockname()[:2]
        reached_at = host if listening_at == ANY_ADDRESS else listening_at
        endpoint = WatchdogEndpoint(reached_at, port, secrets.token_hex(16))
    endpoint = multiprocess.broadcast(endpoint, WatchdogEndpoint)

    watchdog = WatchdogClient(
        jax.process_index(),
        jax.process_count(),
        endpoint.host,
        endpoint.port,
        endpoint.token,
        listener,
        end_process=end_process,
    )
    if listener is not None:
        listener.close()  # the watchdog has its own copy
    return watchdog


def end_process(code: ExitCode) -> None:
    """End this process at once, as another is lost, or has failed.

    Process 0 is the last: where its coordination service is gone, JAX aborts the others with lines
    that JAX prints, before their watchdogs can say what has happened.
    """
    if multiprocess.is_primary():
        time.sleep(LAST_WORDS_SECONDS)

    # The watchdog's thread calls this, while the main thread most likely waits in XLA for the lost
    # process, for ever: neither an exception nor a signal's handler is reached there, and sys.exit
    # would end this thread alone. What a regular exit runs, jax.distributed's shutdown, waits too.
    os._exit(code)


def _narrow_bind_address(coordinator: str) -> str | None:
    """The coordinator's HOST:PORT, where HOST is an IP address of this host; else None.

    With None JAX chooses, and listens at all addresses of this host.
    """
    host = coordinator.rpartition(":")[0].strip("[]")
    with listen_narrowly({host}) as probe:
        return coordinator if probe.getsockname()[0] == host else None


def _resolve(host: str) -> str:
    """The IP address of a host as this one sees it; "" where it is not known."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return ""


def listen_narrowly(addresses: set[str]) -> socket.socket:
    """A listening socket, at a free port, at the address by which others reach this process.

    addresses: what this host's name resolves to in the other processes. It listens at all of this
    host's addresses where they differ, or where the only one is not this host's (a network may
    translate it on the way).
    """
    if len(addresses) == 1:
        (address,) = addresses
        with suppress(OSError):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            return socket.create_server((address or ANY_ADDRESS, 0), family=family)
    return socket.create_server((ANY_ADDRESS, 0))


def check_even_devices(device_owners: Sequence[int]) -> None:
    """InputError where processes differ in their number of devices.

    JAX cannot gather values between such ones. device_owners: the process of each device, such as
    [0, 0, 1, 1].
    """
    counts = Counter(device_owners)
    if len(set(counts.values())) > 1:
        counts_text = ", ".join(
            f"process {process} has {count}" for process, count in sorted(counts.items())
        )
        raise InputError(
            found=f"processes with different numbers of devices ({counts_text})",
            expected="as many in each",
            fix=(
                "On a CPU, which has one device for every core, set the same in all of them: "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={min(counts.values())}."
            ),
        )


def check_shared_folder(folder: Path) -> None:
    """InputError where the disk of a folder cannot keep a run, or processes see other folders.

    A warning where locks do not hold. Process 0 holds the folder's lock. Every process must call
    this, as they wait for each other.
    """
    with ExitStack() as stack:
        # By its name, as hosts may have mounted the disk at different places.
        trial_name = multiprocess.run_on_primary(
            lambda: stack.enter_context(trial_folder(folder)).name, str
        )
        sees_trial = multiprocess.allgather(is_whole(folder / trial_name), bool)
        sees_lock = multiprocess.allgather(is_locked(folder), bool)
        multiprocess.barrier("all have looked at the trial")

    blind_processes = [str(i) for i, sees in enumerate(sees_trial) if not sees]
    if blind_processes:
        raise InputError(
            where="run.dir",
            found=(
                f"the processes {', '.join(blind_processes)} do not see {folder} as process 0 does"
            ),
            expected="a folder that all hosts share (NFS, a mounted bucket)",
            fix="Choose one by run.dir=FOLDER.",
        )
    if multiprocess.is_primary() and not all(sees_lock):
        warn(
            f"{folder} is on a disk whose locks do not hold, such as a mounted bucket: nothing"
            " refuses a second launch that writes there. See to it that there is one at a time."
        )
