"""Processes that run cells together on a Ray cluster: placed together, killed as a whole."""

import math
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
from isojax.launch.ray.ray_actor import RayActor, StatusUpdate, WorkerLost
from isojax.launch.strategy import CellTarget

POLL_SECONDS = 0.5  # seconds between two looks at pending calls
SLICE_TIMEOUT = 10.0  # seconds that Ray looks for a free slice at a time
# seconds until another slice is asked for where hosts of one are missing
SLICE_COMPLETE_TIMEOUT = 60.0
# seconds that processes may take to start, their node's preparations among them
START_TIMEOUT = 300.0
PEER_END_TIMEOUT = 5.0  # seconds that the others have to end a cell that one process has broken off
LOG_TAIL_LINES = 12  # of a log's end that a user is shown

StatusCallback = Callable[[StatusUpdate], None]


@dataclass
class RayProcessGroup:
    """The processes. Its methods raise WorkerLost where a process or its node is gone."""

    ray: Any
    config: Config
    cells: list[Cell]
    spec: ProcessGroupSpec
    token: str  # the content of ray_actor.TOKEN_FILE in the sweep's folder
    log_prefix: Path  # of the file that each process prints to; its number follows
    workers: list[Any] = field(default_factory=list)
    node_names: str = "the cluster"
    _tpu_slice: Any = None
    _placement_group: Any = None

    def kill(self) -> None:
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
        """Wait until there is room for all processes, and start them; False where `is_cancelled()`
        came before."""
        reserved_at = math.inf
        with self._ray_errors_as_loss():
            while (group := self._reserve()) is None or not group.wait(POLL_SECONDS):
                if is_cancelled():
                    return False
                reserved_at = (
                    math.inf if self._tpu_slice is None else min(reserved_at, time.monotonic())
                )
                # the slice lacks a host
                if time.monotonic() - reserved_at > SLICE_COMPLETE_TIMEOUT:
                    self._release()
                    reserved_at = math.inf
            self._start_actors()
        return True

    def _start_actors(self) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        resources = dict(self.spec.resources)
        cpus, gpus = resources.pop("CPU", 0), resources.pop("GPU", 0)
        bundles = self._bundles()
        for i, (bundle, _) in enumerate(bundles):
            environment = self._environment(i, first_address=bundles[0][1]["NodeManagerAddress"])
            actor_class = self.ray.remote(RayActor).options(
                num_cpus=cpus,
                num_gpus=gpus,
                resources=resources,
                max_concurrency=3,  # `news`, `stop` and messages are served while a cell is trained
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._placement_group, placement_group_bundle_index=bundle
                ),
                runtime_env={"env_vars": environment},
            )
            self.workers.append(actor_class.remote(os.getcwd(), str(self.log_file(i))))

    def _reserve(self) -> Any:
        """The placement group, with a bundle for each process; None where no slice is free."""
        if self._placement_group is not None:
            return self._placement_group
        spec, node_labels = self.spec, dict(self.spec.labels)
        if spec.tpu_slice and spec.num_processes == spec.num_slices:
            # Ray takes single hosts from slices of any size
            node_labels[TOPOLOGY_LABEL] = spec.tpu_slice[1]
        options: dict[str, Any] = (
            {"bundle_label_selector": [node_labels] * spec.num_processes} if node_labels else {}
        )
        if spec.tpu_slice is None:
            bundles = [dict(spec.resources)] * spec.num_processes
            placement = "SPREAD" if spec.num_processes > 1 else "PACK"
            self._placement_group = self.ray.util.placement_group(
                bundles, strategy=placement, **options
            )
            return self._placement_group
        from ray.util.tpu import SlicePlacementGroup

        version, topology = spec.tpu_slice
        options |= {"num_slices": spec.num_slices, "head_reservation_timeout_s": SLICE_TIMEOUT}
        try:
            self._tpu_slice = SlicePlacementGroup(
                topology, version, dict(spec.resources), **options
            )
        except (RuntimeError, TimeoutError):  # all are taken, or one has just been lost
            return None
        self._placement_group = self._tpu_slice.slice_placement_group
        return self._placement_group

    def _bundles(self) -> list[tuple[int, Node]]:
        """The bundle of each process and the node that it is on; of TPUs in their order within
        slices."""
        nodes = {node["NodeID"]: node for node in self.ray.nodes()}
        node_of_bundle = self.ray.util.placement_group_table(self._placement_group)[
            "bundles_to_node_id"
        ]
        try:
            bundle_nodes = [
                (bundle, nodes[node_of_bundle[bundle]]) for bundle in range(self.spec.num_processes)
            ]
        except KeyError as e:
            raise WorkerLost("one of its nodes was lost before it began") from e

        def place_in_slice(bundle_node: tuple[int, Node]) -> tuple[str, int]:
            labels = bundle_node[1]["Labels"]
            return labels.get(SLICE_LABEL, ""), int(labels.get(WORKER_LABEL, 0))

        return sorted(bundle_nodes, key=place_in_slice) if self.spec.tpu_slice else bundle_nodes

    def _environment(self, process_id: int, first_address: str) -> dict[str, str]:
        env_vars = (
            {TUNABLES_VARIABLE: os.environ[TUNABLES_VARIABLE]}
            if TUNABLES_VARIABLE in os.environ
            else {}
        )
        num_slices = self.spec.num_slices
        # Else processes slow one another down with a thread for each core. Those of two roles wait
        # for one another.
        if self.spec.cpu_devices is not None and not self.config.run.sampler_processes:
            env_vars["PJRT_NPROC"] = str(max(1, int(self.spec.resources.get("CPU", 1))))
        if num_slices > 1:
            from ray.util.tpu import get_tpu_coordinator_env_vars

            slice_id = process_id * num_slices // self.spec.num_processes
            env_vars |= get_tpu_coordinator_env_vars(first_address, num_slices, slice_id)
        return env_vars

    def open(self, on_status: StatusCallback) -> None:
        """Prepare the sweep in every process; InputError where one refuses it."""
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
            addresses = self.ray.get(calls)
        self.node_names = ", ".join(
            dict.fromkeys(address.rpartition(":")[0] for address in addresses)
        )
        calls = []
        for i, worker in enumerate(self.workers):
            group = ProcessGroup(addresses[0], num_processes, i, detect_cluster=False)
            what = self.config, self.cells, self.token, group, self.spec.cpu_devices, self.workers
            calls.append(worker.open.remote(*what))
        self._wait_for_all(calls, on_status)

    def train(self, target: CellTarget, on_status: StatusCallback) -> None:
        """Train a cell; raises what RayActor.train does."""
        self._wait_for_all([worker.train.remote(target) for worker in self.workers], on_status)

    def stop(self) -> None:
        for worker in list(self.workers):
            worker.stop.remote()

    def _wait_for_all(self, calls: list[Any], on_status: StatusCallback) -> None:
        """Raises the error of the first call that has one, or else of a later RunFailed; after
        such, the others, which may wait for it, have a few seconds. Meanwhile `on_status` receives
        the news of process 0."""
        ray, pending, deadline = self.ray, calls, math.inf
        first_error: Exception | None = None
        while pending and time.monotonic() < deadline:
            try:
                done, pending = ray.wait(pending, timeout=POLL_SECONDS)
                on_status(ray.get(self.workers[0].news.remote()))
                ray.get(done)
            except ray.exceptions.RayError as e:
                cause = e.cause if isinstance(e, ray.exceptions.RayTaskError) else None
                is_own = isinstance(cause, InputError | Preempted | RunFailed | WorkerLost)
                # any other of Ray's is a loss
                error = cause if is_own else WorkerLost(_ray_error_line(e))
                if isinstance(first_error, RunFailed):
                    continue  # what follows a cell that failed is no loss
                if isinstance(error, InputError | WorkerLost):
                    raise error from e
                if isinstance(error, RunFailed):
                    deadline = time.monotonic() + PEER_END_TIMEOUT
                    first_error = error
                first_error = first_error or error
        if first_error is not None:
            raise first_error

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
    """The line of Ray's message that says what happened: the last that names an error, or else one
    of a death."""
    lines = [
        re.sub(r"\x1b\[\d*m", "", line).strip() for line in str(error).splitlines() if line.strip()
    ]
    error_lines = [
        line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)\b", line)
    ]
    return [
        *error_lines[-1:],
        *(line for line in lines if "died" in line),
        *lines,
        type(error).__name__,
    ][0][:300]
