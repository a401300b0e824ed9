"""Processes that run cells together on a Ray cluster: placed together, killed whole. Ray's side of messages.py; no
jax here.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from isojax.core.config import Config
from isojax.core.errors import InputError
from isojax.core.memory_pages import TUNABLES_VARIABLE
from isojax.core.nouns import Cell
from isojax.launch.process_group import SHUTDOWN_TIMEOUT, ProcessGroup
from isojax.launch.ray import messages
from isojax.launch.ray.messages import CallResult, StatusUpdate, WorkerArguments
from isojax.launch.ray.placement import SLICE_LABEL, TOPOLOGY_LABEL, WORKER_LABEL, Node, ProcessGroupSpec
from isojax.launch.ray.ray_actor import RayActor
from isojax.launch.strategy import CellTarget

POLL_SECONDS = 0.5  # seconds between two looks at what is under way
SLICE_TIMEOUT = 10.0  # seconds that Ray looks for a free slice at a time
LOG_TAIL_LINES = 12  # of a log's end that a user is shown
SLICE_COMPLETE_TIMEOUT = 60.0  # seconds that the hosts of a slice may be apart, until another slice is asked for
START_TIMEOUT = 300.0  # seconds that processes may take to start, their node's preparations among them
PEER_END_TIMEOUT = 5.0  # seconds that the others have to end a cell that one has broken off

StatusCallback = Callable[[StatusUpdate], None]


class WorkerLost(Exception):
    """A process group is of no more use: a process died, or its node."""


class RayProcessGroup:
    """The processes; a context that ends them all."""

    def __init__(
        self, ray: Any, config: Config, cells: list[Cell], spec: ProcessGroupSpec, token: str, log_prefix: Path
    ):
        """`token`: what `member.TOKEN` holds in the sweep's folder. `log`: where each process's output lies, with its
        number behind it.
        """
        self.ray, self.config, self.cells, self.spec, self.token, self.log_prefix = (
            ray,
            config,
            cells,
            spec,
            token,
            log_prefix,
        )
        self.workers: list[Any] = []
        self.node_names = ""
        self._tpu_slice: Any = None
        self._placement_group: Any = None

    def __enter__(self) -> RayProcessGroup:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            self.ray.kill(worker)
        self._release()

    def _release(self) -> None:
        if self._tpu_slice is not None:
            self._tpu_slice.shutdown()
        elif self._placement_group is not None:
            self.ray.util.remove_placement_group(self._placement_group)
        self._tpu_slice = self._placement_group = None

    def close(self) -> None:
        """Lets the processes part, and end what they began, before they are killed."""
        with suppress(self.ray.exceptions.RayError):  # they have nothing to lose
            self.ray.get([worker.close.remote() for worker in self.workers], timeout=SHUTDOWN_TIMEOUT)

    def start_workers(self, is_cancelled: Callable[[], bool]) -> bool:
        """Waits until there is room for all of the processes, and starts them; False where `ended()` came before.

        Raises:
            Lost: a node was lost meanwhile.
        """
        try:
            return self._start_workers(is_cancelled)
        except self.ray.exceptions.RayError as e:
            raise WorkerLost(_ray_error_line(e)) from e

    def _start_workers(self, is_cancelled: Callable[[], bool]) -> bool:
        reserved_at = math.inf
        while (group := self._reserve()) is None or not group.wait(POLL_SECONDS):
            if is_cancelled():
                return False
            reserved_at = math.inf if self._tpu_slice is None else min(reserved_at, time.monotonic())
            if time.monotonic() - reserved_at > SLICE_COMPLETE_TIMEOUT:  # the slice lacks a host
                self._release()
                reserved_at = math.inf
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        resources = dict(self.spec.resources)
        actor_options = {
            "num_cpus": resources.pop("CPU", 0),
            "num_gpus": resources.pop("GPU", 0),
            "resources": resources,
        }
        remote_class = self.ray.remote(RayActor)
        bundles = self._bundles()
        for i, (bundle, _) in enumerate(bundles):
            actor_class = remote_class.options(
                **actor_options,
                max_concurrency=2,  # `news` and `stop` are heard while a cell is trained
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._placement_group, placement_group_bundle_index=bundle
                ),
                runtime_env={"env_vars": self._environment(i, first_address=bundles[0][1]["NodeManagerAddress"])},
            )
            self.workers.append(actor_class.remote(os.getcwd(), str(self.log_file(i))))
        return True

    def _reserve(self) -> Any:
        """The placement group, with a bundle for each process; None where no slice is free."""
        if self._placement_group is not None:
            return self._placement_group
        spec = self.spec
        node_labels = dict(spec.labels)
        if (
            spec.tpu_slice and spec.num_processes == spec.num_slices
        ):  # of one host each, which Ray takes from slices of any size
            node_labels[TOPOLOGY_LABEL] = spec.tpu_slice[1]
        label_options: dict[str, Any] = (
            {"bundle_label_selector": [node_labels] * spec.num_processes} if node_labels else {}
        )
        if spec.tpu_slice is None:
            bundles = [dict(spec.resources)] * spec.num_processes
            self._placement_group = self.ray.util.placement_group(
                bundles, strategy="SPREAD" if spec.num_processes > 1 else "PACK", **label_options
            )
            return self._placement_group
        from ray.util.tpu import SlicePlacementGroup

        version, topology = spec.tpu_slice
        slice_options = {"num_slices": spec.num_slices, "head_reservation_timeout_s": SLICE_TIMEOUT, **label_options}
        try:
            self._tpu_slice = SlicePlacementGroup(topology, version, dict(spec.resources), **slice_options)
        except (RuntimeError, TimeoutError):  # all are taken, or one has just been lost
            return None
        self._placement_group = self._tpu_slice.slice_placement_group
        return self._placement_group

    def _bundles(self) -> list[tuple[int, Node]]:
        """The bundle of each process and the node that it is on; of TPUs in the order that they have in their slices.

        Raises:
            Lost: a bundle has just lost its node.
        """
        nodes = {node["NodeID"]: node for node in self.ray.nodes()}
        node_of_bundle = self.ray.util.placement_group_table(self._placement_group)["bundles_to_node_id"]
        try:
            bundle_nodes = [(bundle, nodes[node_of_bundle[bundle]]) for bundle in range(self.spec.num_processes)]
        except KeyError as e:
            raise WorkerLost("one of its nodes was lost before it began") from e
        if self.spec.tpu_slice is None:
            return bundle_nodes
        return sorted(
            bundle_nodes,
            key=lambda one: (one[1]["Labels"].get(SLICE_LABEL, ""), int(one[1]["Labels"].get(WORKER_LABEL, 0))),
        )

    def _environment(self, process_id: int, first_address: str) -> dict[str, str]:
        """What process i needs beside its node's own: memory as the driver asked for it, threads for the cores that it
        has, its share of a GPU, and that the first process, on the node `first`, coordinates several slices."""
        env_vars = {TUNABLES_VARIABLE: os.environ[TUNABLES_VARIABLE]} if TUNABLES_VARIABLE in os.environ else {}
        if (
            self.spec.cpu_devices is not None
        ):  # else every process has a thread for each core of its node, and they get in each other's way
            env_vars["PJRT_NPROC"] = str(max(1, int(self.spec.resources.get("CPU", 1))))
        if self.config.run.process_group.share > 1:
            env_vars["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 / self.config.run.process_group.share:.3f}"
        if self.spec.num_slices > 1:
            from ray.util.tpu import get_tpu_coordinator_env_vars

            env_vars |= get_tpu_coordinator_env_vars(
                first_address, self.spec.num_slices, process_id * self.spec.num_slices // self.spec.num_processes
            )
        return env_vars

    def open(self, on_status: StatusCallback) -> None:
        """The sweep made ready in every process.

        Raises:
            InputError: what a process refuses.
            Lost: a process died.
        """
        num_processes = self.spec.num_processes
        try:
            host_addresses = self._wait_for_start([one.host.remote() for one in self.workers], on_status)
            self.node_names = ", ".join(dict.fromkeys(host_addresses))
            address = self.ray.get(self.workers[0].address.remote(), timeout=START_TIMEOUT) if num_processes > 1 else ""
        except self.ray.exceptions.RayError as e:
            raise WorkerLost(_ray_error_line(e)) from e
        groups = [ProcessGroup(address, num_processes, i, detect_cluster=False) for i in range(num_processes)]
        setups = [
            WorkerArguments(self.config, self.cells, self.token, self.spec.cpu_devices, group) for group in groups
        ]
        calls = [worker.open.remote(setup) for worker, setup in zip(self.workers, setups, strict=True)]
        self._wait_for_all(calls, on_status)

    def _wait_for_start(self, calls: list[Any], on_status: StatusCallback) -> list[Any]:
        """What the first calls give, for which processes have to start; meanwhile `watch` may break that off."""
        deadline = time.monotonic() + START_TIMEOUT
        while self.ray.wait(calls, num_returns=len(calls), timeout=POLL_SECONDS)[1]:
            on_status(StatusUpdate())
            if time.monotonic() > deadline:
                raise WorkerLost(f"its processes did not start within {START_TIMEOUT:.0f} seconds")
        return self.ray.get(calls)

    def train(self, target: CellTarget, on_status: StatusCallback) -> CallResult:
        """A cell, trained by all; raises as `open`."""
        return self._wait_for_all([one.train.remote(target) for one in self.workers], on_status)

    def stop(self) -> None:
        """The cell at work is to save its state."""
        for worker in list(self.workers):
            worker.stop.remote()

    def _wait_for_all(self, calls: list[Any], on_status: StatusCallback) -> CallResult:
        """How the calls end, one of each process: as the first that did not end well; the others, which may wait for
        that one, are given a few seconds. Meanwhile `watch` is given the news of process 0."""
        ray, pending, result, deadline = self.ray, calls, CallResult(), math.inf
        try:
            while pending and time.monotonic() < deadline:
                done, pending = ray.wait(pending, timeout=POLL_SECONDS)
                on_status(ray.get(self.workers[0].news.remote()))
                for call_result in ray.get(done):
                    if call_result.kind == messages.INPUT_REFUSED:
                        raise InputError(call_result.message)
                    if call_result.kind == messages.WORKER_LOST and result.kind != messages.CELL_FAILED:
                        raise WorkerLost(call_result.message)
                    if call_result.kind == messages.CELL_FAILED and result.kind != messages.CELL_FAILED:
                        deadline = time.monotonic() + PEER_END_TIMEOUT
                    if result.kind == messages.FINISHED or call_result.kind == messages.CELL_FAILED:
                        result = call_result
        except ray.exceptions.RayError as e:
            if result.kind != messages.CELL_FAILED:
                raise WorkerLost(_ray_error_line(e)) from e
        return result

    def log_file(self, process_id: int) -> Path:
        """What a process prints, on its node."""
        return self.log_prefix.with_name(f"{self.log_prefix.name}-{process_id}.log")

    def log_tail(self) -> str:
        """What process 0 printed last, or where that is."""
        try:
            lines = self.log_file(0).read_text(errors="replace").splitlines()
        except OSError:
            return f"its log is {self.log_file(0)} on {self.node_names or 'its node'}"
        return "\n    ".join([f"the end of {self.log_file(0)}:", *lines[-LOG_TAIL_LINES:]])


def _ray_error_line(error: Exception) -> str:
    """The line of Ray's message that says what happened: the last that names an error, or else one of a death."""
    lines = [re.sub(r"\x1b\[\d*m", "", line).strip() for line in str(error).splitlines() if line.strip()] or [
        type(error).__name__
    ]
    error_lines = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)\b", line)]
    return next(iter(error_lines[-1:] or [line for line in lines if "died" in line] or lines))[:300]
