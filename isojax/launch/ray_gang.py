"""Processes that run cells together on a Ray cluster: placed together, killed whole. Ray's side of member.py; no jax here."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from isojax.config import Config
from isojax.huge_pages import VARIABLE
from isojax.launch import member
from isojax.launch.gang import PARTING, Gang
from isojax.launch.member import Member, News, Outcome
from isojax.launch.placement import SLICE, TOPOLOGY, WORKER, Node, Shape
from isojax.launch.rounds import Goal
from isojax.types import Cell, InputError

LOOK = 0.5  # seconds between two looks at what is under way
FREE = 10.0  # seconds that Ray looks for a free slice at a time
LINES = 12  # of a log's end that a user is shown
WHOLE = 60.0  # seconds that the hosts of a slice may be apart, until another slice is asked for
STARTED = 300.0  # seconds that processes may take to start, their node's preparations among them
OTHERS = 5.0  # seconds that the others have to end a cell that one has broken off

Watch = Callable[[News], None]


class Lost(Exception):
    """A gang is of no more use: a process died, or its node."""


class RayGang:
    """The processes; a context that ends them all."""

    def __init__(self, ray: Any, config: Config, cells: list[Cell], shape: Shape, token: str, log: Path):
        """`token`: what `member.TOKEN` holds in the sweep's folder. `log`: where each process's output lies, with its number behind it."""
        self.ray, self.config, self.cells, self.shape, self.token, self.log = ray, config, cells, shape, token, log
        self.members: list[Any] = []
        self.where = ""
        self._slice: Any = None
        self._group: Any = None

    def __enter__(self) -> RayGang:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.members:
            self.ray.kill(one)
        self._release()

    def _release(self) -> None:
        if self._slice is not None:
            self._slice.shutdown()
        elif self._group is not None:
            self.ray.util.remove_placement_group(self._group)
        self._slice = self._group = None

    def close(self) -> None:
        """Lets the processes part, and end what they began, before they are killed."""
        with suppress(self.ray.exceptions.RayError):  # they have nothing to lose
            self.ray.get([one.close.remote() for one in self.members], timeout=PARTING)

    def place(self, ended: Callable[[], bool]) -> bool:
        """Waits until there is room for all of the processes, and starts them; False where `ended()` came before.

        Raises:
            Lost: a node was lost meanwhile.
        """
        try:
            return self._placed(ended)
        except self.ray.exceptions.RayError as e:
            raise Lost(_why(e)) from e

    def _placed(self, ended: Callable[[], bool]) -> bool:
        reserved = math.inf
        while (group := self._reserve()) is None or not group.wait(LOOK):
            if ended():
                return False
            reserved = math.inf if self._slice is None else min(reserved, time.monotonic())
            if time.monotonic() - reserved > WHOLE:  # the slice lacks a host
                self._release()
                reserved = math.inf
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        needs = dict(self.shape.needs)
        asked = {"num_cpus": needs.pop("CPU", 0), "num_gpus": needs.pop("GPU", 0), "resources": needs}
        remote = self.ray.remote(Member)
        bundles = self._bundles()
        for i, (bundle, _) in enumerate(bundles):
            made = remote.options(
                **asked,
                max_concurrency=2,  # `news` and `stop` are heard while a cell is trained
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle),
                runtime_env={"env_vars": self._environment(i, first=bundles[0][1]["NodeManagerAddress"])},
            )
            self.members.append(made.remote(os.getcwd(), str(self.log_of(i))))
        return True

    def _reserve(self) -> Any:
        """The placement group, with a bundle for each process; None where no slice is free."""
        if self._group is not None:
            return self._group
        shape = self.shape
        wanted = dict(shape.labels)
        if shape.tpu and shape.processes == shape.slices:  # of one host each, which Ray takes from slices of any size
            wanted[TOPOLOGY] = shape.tpu[1]
        labels: dict[str, Any] = {"bundle_label_selector": [wanted] * shape.processes} if wanted else {}
        if shape.tpu is None:
            bundles = [dict(shape.needs)] * shape.processes
            self._group = self.ray.util.placement_group(bundles, strategy="SPREAD" if shape.processes > 1 else "PACK", **labels)
            return self._group
        from ray.util.tpu import SlicePlacementGroup

        version, topology = shape.tpu
        given = {"num_slices": shape.slices, "head_reservation_timeout_s": FREE, **labels}
        try:
            self._slice = SlicePlacementGroup(topology, version, dict(shape.needs), **given)
        except (RuntimeError, TimeoutError):  # all are taken, or one has just been lost
            return None
        self._group = self._slice.slice_placement_group
        return self._group

    def _bundles(self) -> list[tuple[int, Node]]:
        """The bundle of each process and the node that it is on; of TPUs in the order that they have in their slices.

        Raises:
            Lost: a bundle has just lost its node.
        """
        nodes = {node["NodeID"]: node for node in self.ray.nodes()}
        placed = self.ray.util.placement_group_table(self._group)["bundles_to_node_id"]
        try:
            found = [(bundle, nodes[placed[bundle]]) for bundle in range(self.shape.processes)]
        except KeyError as e:
            raise Lost("one of its nodes was lost before it began") from e
        if self.shape.tpu is None:
            return found
        return sorted(found, key=lambda one: (one[1]["Labels"].get(SLICE, ""), int(one[1]["Labels"].get(WORKER, 0))))

    def _environment(self, process: int, first: str) -> dict[str, str]:
        """What process i needs beside its node's own: memory as the driver asked for it, threads for the cores that it has, its share of a
        GPU, and that the first process, on the node `first`, coordinates several slices."""
        found = {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}
        if self.shape.devices is not None:  # else every process has a thread for each core of its node, and they get in each other's way
            found["PJRT_NPROC"] = str(max(1, int(self.shape.needs.get("CPU", 1))))
        if self.config.run.gang.share > 1:
            found["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 / self.config.run.gang.share:.3f}"
        if self.shape.slices > 1:
            from ray.util.tpu import get_tpu_coordinator_env_vars

            found |= get_tpu_coordinator_env_vars(first, self.shape.slices, process * self.shape.slices // self.shape.processes)
        return found

    def open(self, watch: Watch) -> None:
        """The sweep made ready in every process.

        Raises:
            InputError: what a process refuses.
            Lost: a process died.
        """
        count = self.shape.processes
        try:
            hosts = self._started([one.host.remote() for one in self.members], watch)
            self.where = ", ".join(dict.fromkeys(hosts))
            address = self.ray.get(self.members[0].address.remote(), timeout=STARTED) if count > 1 else ""
        except self.ray.exceptions.RayError as e:
            raise Lost(_why(e)) from e
        given = self.config, self.cells, self.token, self.shape.devices
        self._all([one.open.remote(*given, Gang(address, count, i, detected=False)) for i, one in enumerate(self.members)], watch)

    def _started(self, calls: list[Any], watch: Watch) -> list[Any]:
        """What the first calls give, for which processes have to start; meanwhile `watch` may break that off."""
        last = time.monotonic() + STARTED
        while self.ray.wait(calls, num_returns=len(calls), timeout=LOOK)[1]:
            watch(News())
            if time.monotonic() > last:
                raise Lost(f"its processes did not start within {STARTED:.0f} seconds")
        return self.ray.get(calls)

    def train(self, goal: Goal, watch: Watch) -> Outcome:
        """A cell, trained by all; raises as `open`."""
        return self._all([one.train.remote(goal) for one in self.members], watch)

    def stop(self) -> None:
        """The cell at work is to save its state."""
        for one in list(self.members):
            one.stop.remote()

    def _all(self, calls: list[Any], watch: Watch) -> Outcome:
        """How the calls end, one of each process: as the first that did not end well; the others, which may wait for that one, are given a
        few seconds. Meanwhile `watch` is given the news of process 0."""
        ray, left, outcome, last = self.ray, calls, Outcome(), math.inf
        try:
            while left and time.monotonic() < last:
                done, left = ray.wait(left, timeout=LOOK)
                watch(ray.get(self.members[0].news.remote()))
                for ended in ray.get(done):
                    if ended.kind == member.REFUSED:
                        raise InputError(ended.said)
                    if ended.kind == member.LOST and outcome.kind != member.BROKEN:
                        raise Lost(ended.said)
                    if ended.kind == member.BROKEN and outcome.kind != member.BROKEN:
                        last = time.monotonic() + OTHERS
                    if outcome.kind == member.WELL or ended.kind == member.BROKEN:
                        outcome = ended
        except ray.exceptions.RayError as e:
            if outcome.kind != member.BROKEN:
                raise Lost(_why(e)) from e
        return outcome

    def log_of(self, process: int) -> Path:
        """What a process prints, on its node."""
        return self.log.with_name(f"{self.log.name}-{process}.log")

    def end_of_log(self) -> str:
        """What process 0 printed last, or where that is."""
        try:
            lines = self.log_of(0).read_text(errors="replace").splitlines()
        except OSError:
            return f"its log is {self.log_of(0)} on {self.where or 'its node'}"
        return "\n    ".join([f"the end of {self.log_of(0)}:", *lines[-LINES:]])


def _why(error: Exception) -> str:
    """The line of Ray's message that says what happened: the last that names an error, or else one of a death."""
    lines = [re.sub(r"\x1b\[\d*m", "", line).strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)\b", line)]
    return next(iter(named[-1:] or [line for line in lines if "died" in line] or lines))[:300]
