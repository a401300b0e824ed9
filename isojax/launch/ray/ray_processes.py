"""Processes that run cells together on a Ray cluster: placed together, killed as a whole."""

import math
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from isojax.core.config import Config
from isojax.core.errors import InputError, RunFailed
from isojax.core.machine import TUNABLES_VARIABLE
from isojax.core.nouns import Cell
from isojax.core.preemption import Preempted
from isojax.launch.process_group import SHUTDOWN_TIMEOUT, ProcessGroup
from isojax.launch.ray.placement import (
    SLICE_LABEL,
    TOPOLOGY_LABEL,
    WORKER_LABEL,
    Node,
    ProcessGroupSpec,
)
from isojax.launch.ray.process_status import StatusUpdate, WorkerLost
from isojax.launch.ray.ray_actor import RayActor
from isojax.launch.strategies import CellTarget

# Seconds:
POLL_SECONDS = 0.5  # between two looks at pending calls
SLICE_TIMEOUT = 10.0  # that Ray looks for a free slice at a time
SLICE_COMPLETE_TIMEOUT = 60.0  # until another slice is asked for where hosts of one are missing
START_TIMEOUT = 300.0  # that processes may take to start, their node's preparations among them
PEER_END_TIMEOUT = 5.0  # that the others have to end a cell that one process has broken off

LOG_TAIL_LINES = 12  # of a log's end that a user is shown
MAX_ERROR_LENGTH = 300  # characters of a line of Ray's that a user is shown

StatusCallback = Callable[[StatusUpdate], None]


class Bundle(NamedTuple):
    """Ray's place for a process in a placement group, and the node that it is on."""

    number: int
    node: Node


@dataclass
class RayProcessGroup:
    """The processes of a group; methods raise WorkerLost where a process or its node is gone.

    The order of use: `start_workers`, `open`, `train` as often as needed, `close`; then `kill`, in
    any case. `stop` may be called from another thread.
    """

    ray: Any  # the module
    config: Config
    cells: list[Cell]
    spec: ProcessGroupSpec
    token: str  # the content of process_status.TOKEN_FILE in the sweep's folder
    log_prefix: Path  # of the file that each process prints to; its number follows
    pack: Any = None  # as of RayScheduler
    workers: list[Any] = field(default_factory=list)  # Ray's handles of RayActors, by process
    node_names: str = "the cluster"
    _tpu_slice: Any = None
    _placement_group: Any = None

    def kill(self) -> None:
        """End all processes at once, and give up their place in the cluster."""
        for worker in self.workers:
            self.ray.kill(worker)
        self._release()

    def _release(self) -> None:
        if self._tpu_slice is not None:
            self._tpu_slice.shutdown()
        elif self._placement_group is not None:
            self.ray.util.remove_placement_group(self._placement_group)
        self._tpu_slice = self._placement_group = None

    @contextmanager
    def _ray_errors_as_loss(self) -> Iterator[None]:
        """Raise WorkerLost for any error of Ray's within the context."""
        try:
            yield
        except self.ray.exceptions.RayError as e:
            raise WorkerLost(_ray_error_line(e)) from e

    def close(self) -> None:
        """Let the processes disconnect, and end what they began, before they are killed."""
        with suppress(self.ray.exceptions.RayError):  # they have nothing to lose
            self.ray.get(
                [worker.close.remote() for worker in self.workers], timeout=SHUTDOWN_TIMEOUT
            )

    def start_workers(self, is_cancelled: Callable[[], bool]) -> bool:
        """Wait until there is room for all processes, and start them.

        False where `is_cancelled()`, asked between two looks, was true before; nothing has been
        started then.
        """
        slice_taken_at = math.inf
        with self._ray_errors_as_loss():
            while True:
                placement_group = self._reserve()
                if placement_group is not None and placement_group.wait(POLL_SECONDS):
                    break
                if is_cancelled():
                    return False

                # Of a slice that lacks a host, others hold the rest for ever: ask for another one.
                now = time.monotonic()
                slice_taken_at = math.inf if self._tpu_slice is None else min(slice_taken_at, now)
                if now - slice_taken_at > SLICE_COMPLETE_TIMEOUT:
                    self._release()
                    slice_taken_at = math.inf
            self._start_actors()
        return True

    def _reserve(self) -> Any:
        """Ray's placement group, with a bundle for each process, made if there is none yet.

        None where no TPU slice is free. It may not have its nodes yet: the caller waits for them.
        """
        if self._placement_group is not None:
            return self._placement_group

        spec = self.spec
        node_labels = dict(spec.labels)
        if spec.tpu_slice and spec.num_processes == spec.num_slices:
            # Ray takes single hosts from slices of any size.
            node_labels[TOPOLOGY_LABEL] = spec.tpu_slice.topology
        options: dict[str, Any] = {}
        if node_labels:
            options["bundle_label_selector"] = [node_labels] * spec.num_processes

        if spec.tpu_slice is None:
            bundles = [dict(spec.resources)] * spec.num_processes
            # SPREAD: on different nodes where possible.
            placement = "SPREAD" if spec.num_processes > 1 else "PACK"
            self._placement_group = self.ray.util.placement_group(
                bundles, strategy=placement, **options
            )
            return self._placement_group

        from ray.util.tpu import SlicePlacementGroup

        try:
            self._tpu_slice = SlicePlacementGroup(
                spec.tpu_slice.topology,
                spec.tpu_slice.version,
                dict(spec.resources),
                num_slices=spec.num_slices,
                head_reservation_timeout_s=SLICE_TIMEOUT,
                **options,
            )
        except (RuntimeError, TimeoutError):  # all are taken, or one has just been lost
            return None
        self._placement_group = self._tpu_slice.slice_placement_group
        return self._placement_group

    def _start_actors(self) -> None:
        """Start a RayActor for each process, in the bundles of the placement group."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        # Ray names CPUs and GPUs apart from all other resources.
        resources = dict(self.spec.resources)
        cpus = resources.pop("CPU", 0)
        gpus = resources.pop("GPU", 0)

        bundles = self._bundles()
        first_address = bundles[0].node["NodeManagerAddress"]
        for process_id, bundle in enumerate(bundles):
            actor_class = self.ray.remote(RayActor).options(
                num_cpus=cpus,
                num_gpus=gpus,
                resources=resources,
                max_concurrency=3,  # `news`, `stop` and messages are served while a cell is trained
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._placement_group, placement_group_bundle_index=bundle.number
                ),
                runtime_env={"env_vars": self._environment(process_id, first_address)},
            )
            log_file = str(self.log_file(process_id))
            self.workers.append(actor_class.remote(os.getcwd(), log_file))

    def _bundles(self) -> list[Bundle]:
        """The bundle of each process, in the order of the processes.

        On TPUs, slice after slice, and in each slice in the order in which libtpu numbers its
        hosts.
        """
        nodes: dict[str, Node] = {node["NodeID"]: node for node in self.ray.nodes()}
        table = self.ray.util.placement_group_table(self._placement_group)
        node_of_bundle = table["bundles_to_node_id"]
        try:
            bundles = [
                Bundle(number, nodes[node_of_bundle[number]])
                for number in range(self.spec.num_processes)
            ]
        except KeyError as e:
            raise WorkerLost("one of its nodes was lost before it began") from e

        def place_in_slice(bundle: Bundle) -> tuple[str, int]:
            labels = bundle.node["Labels"]
            return labels.get(SLICE_LABEL, ""), int(labels.get(WORKER_LABEL, 0))

        return sorted(bundles, key=place_in_slice) if self.spec.tpu_slice else bundles

    def _environment(self, process_id: int, first_address: str) -> dict[str, str]:
        """Environment variables that a process gets, in addition to what its node has.

        first_address: IP address of the node of process 0.
        """
        env_vars = {}
        # glibc reads it when a process starts: whether memory comes in large pages.
        if TUNABLES_VARIABLE in os.environ:
            env_vars[TUNABLES_VARIABLE] = os.environ[TUNABLES_VARIABLE]

        # Without a limit, each process has a thread for every core of its node, and they slow one
        # another down. Those of two roles wait for one another, and need the threads.
        if self.spec.cpu_devices is not None and not self.config.run.sampler_processes:
            env_vars["PJRT_NPROC"] = str(max(1, int(self.spec.resources.get("CPU", 1))))

        num_slices = self.spec.num_slices
        if num_slices > 1:
            from ray.util.tpu import get_tpu_coordinator_env_vars

            # Processes are ordered by slice, as many in each.
            slice_id = process_id * num_slices // self.spec.num_processes
            env_vars |= get_tpu_coordinator_env_vars(first_address, num_slices, slice_id)
        return env_vars

    def open(self, on_status: StatusCallback) -> None:
        """Prepare the sweep in every process; InputError where one refuses it.

        on_status: called with the news of process 0 about twice a second, and with an empty update
        while processes start; it may raise, which ends the call.
        """
        num_processes = self.spec.num_processes
        deadline = time.monotonic() + START_TIMEOUT
        with self._ray_errors_as_loss():
            calls = [worker.address.remote() for worker in self.workers]
            while self.ray.wait(calls, num_returns=len(calls), timeout=POLL_SECONDS)[1]:
                on_status(StatusUpdate())  # may raise
                if time.monotonic() > deadline:
                    raise WorkerLost(
                        f"its processes did not start within {START_TIMEOUT:.0f} seconds"
                    )
            addresses = self.ray.get(calls)  # HOST:PORT of each process
        hosts = [address.rpartition(":")[0] for address in addresses]
        self.node_names = ", ".join(dict.fromkeys(hosts))

        calls = []
        for process_id, worker in enumerate(self.workers):
            group = ProcessGroup(addresses[0], num_processes, process_id, detect_cluster=False)
            call = worker.open.remote(
                self.config,
                self.cells,
                self.token,
                group,
                self.spec.cpu_devices,
                self.workers,
                self.pack,
            )
            calls.append(call)
        self._wait_for_all(calls, on_status)

    def train(self, target: CellTarget, on_status: StatusCallback) -> None:
        """Train a cell; raises what RayActor.train does."""
        self._wait_for_all([worker.train.remote(target) for worker in self.workers], on_status)

    def stop(self) -> None:
        for worker in list(self.workers):
            worker.stop.remote()

    def _wait_for_all(self, calls: list[Any], on_status: StatusCallback) -> None:
        """Wait until all calls are done; meanwhile `on_status` receives the news of process 0.

        calls: Ray's references, one of each process.

        A refusal or a loss is raised at once. Of a cell that was preempted, all processes save
        their part, and are waited for. Of a cell that failed in one process (RunFailed), the others
        may wait for that one: they have a few seconds, and what they raise then is dropped.
        """
        ray = self.ray
        pending = calls
        deadline = math.inf
        first_error: Exception | None = None
        while pending and time.monotonic() < deadline:
            try:
                done, pending = ray.wait(pending, timeout=POLL_SECONDS)
                on_status(ray.get(self.workers[0].news.remote()))
                ray.get(done)
            except ray.exceptions.RayError as e:
                if isinstance(first_error, RunFailed):
                    continue  # what follows a cell that failed is no loss
                error = self._cause(e)
                if isinstance(error, InputError | WorkerLost):
                    raise error from e
                if isinstance(error, RunFailed):  # it counts more than a Preempted before it
                    deadline = time.monotonic() + PEER_END_TIMEOUT
                    first_error = error
                first_error = first_error or error

        if first_error is not None:
            raise first_error

    def _cause(self, error: Any) -> Exception:
        """What a process has raised, where the driver knows what to do with it; else WorkerLost.

        error: a RayError.
        """
        if isinstance(error, self.ray.exceptions.RayTaskError) and isinstance(
            error.cause, InputError | Preempted | RunFailed | WorkerLost
        ):
            return error.cause
        return WorkerLost(_ray_error_line(error))

    def log_file(self, process_id: int) -> Path:
        return self.log_prefix.with_name(f"{self.log_prefix.name}-{process_id}.log")

    def log_tail(self) -> str:
        """What process 0 printed last, or where that is."""
        try:
            lines = self.log_file(0).read_text(errors="replace").splitlines()
        except OSError:
            return f"its log is {self.log_file(0)} on {self.node_names}"
        return "\n    ".join([f"the end of {self.log_file(0)}:", *lines[-LOG_TAIL_LINES:]])


def _ray_error_line(error: Exception) -> str:
    """The line of Ray's message that says what happened, cut to MAX_ERROR_LENGTH characters.

    That is the last line that begins with an error's name, else the first that says "died", else
    the first.
    """
    without_colours = re.sub(r"\x1b\[\d*m", "", str(error))
    lines = [line.strip() for line in without_colours.splitlines() if line.strip()]

    error_lines = [
        line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)\b", line)
    ]
    lines_of_a_death = [line for line in lines if "died" in line]
    candidates = [*error_lines[-1:], *lines_of_a_death, *lines, type(error).__name__]
    return candidates[0][:MAX_ERROR_LENGTH]
