"""Processes that run cells together on a Ray cluster: placed together, killed whole. Ray's side of member.py; no jax here."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isojax.config import Config
from isojax.huge_pages import VARIABLE
from isojax.launch import member
from isojax.launch.gang import Gang
from isojax.launch.member import Member, News, Outcome
from isojax.launch.placement import Shape
from isojax.launch.rounds import Goal
from isojax.types import Cell, InputError

LOOK = 0.5  # seconds between two looks at what is under way
SLICE = 10.0  # seconds that Ray looks for a free slice at a time
LINES = 12  # of a log's end that a user is shown

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
        if self._slice is not None:
            self._slice.shutdown()
        elif self._group is not None:
            self.ray.util.remove_placement_group(self._group)

    def place(self, ended: Callable[[], bool]) -> None:
        """Waits until there is room for all of the processes, and starts them.

        Raises:
            Lost: `ended()` came before.
        """
        while (group := self._reserve()) is None or not group.wait(LOOK):
            if ended():
                raise Lost("there was no room for it")
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        needs = dict(self.shape.needs)
        asked = {"num_cpus": needs.pop("CPU", 0), "num_gpus": needs.pop("GPU", 0), "resources": needs}
        remote = self.ray.remote(Member)
        for i in range(self.shape.processes):
            made = remote.options(
                **asked,
                max_concurrency=2,  # `news` and `stop` are heard while a cell is trained
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=i),
                runtime_env={"env_vars": self._environment(i)},
            )
            self.members.append(made.remote(os.getcwd(), str(self._log(i))))

    def _reserve(self) -> Any:
        """The placement group, with a bundle for each process; None where no slice is free."""
        if self._group is not None:
            return self._group
        shape = self.shape
        labels: dict[str, Any] = {"bundle_label_selector": [dict(shape.labels)] * shape.processes} if shape.labels else {}
        if shape.tpu is None:
            bundles = [dict(shape.needs)] * shape.processes
            self._group = self.ray.util.placement_group(bundles, strategy="SPREAD" if shape.processes > 1 else "PACK", **labels)
            return self._group
        from ray.util.tpu import SlicePlacementGroup

        version, topology = shape.tpu
        given = {"num_slices": shape.slices, "head_reservation_timeout_s": SLICE, **labels}
        try:
            self._slice = SlicePlacementGroup(topology, version, dict(shape.needs), **given)
        except (RuntimeError, TimeoutError):  # all are taken, or one has just been lost
            return None
        self._group = self._slice.slice_placement_group
        return self._group

    def _environment(self, process: int) -> dict[str, str]:
        """What process i needs beside its node's own: memory as the driver asked for it, its share of a GPU, who coordinates slices."""
        found = {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}
        if self.config.run.gang.share > 1:
            found["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 / self.config.run.gang.share:.3f}"
        if self.shape.slices > 1:
            from ray.util.tpu import get_tpu_coordinator_env_vars

            first = self.ray.get(self.members[0].host.remote()) if self.members else "localhost"
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
            self.where = ", ".join(dict.fromkeys(self.ray.get([one.host.remote() for one in self.members])))
            address = self.ray.get(self.members[0].address.remote()) if count > 1 else ""
        except self.ray.exceptions.RayError as e:
            raise Lost(_why(e)) from e
        given = self.config, self.cells, self.token, self.shape.devices
        self._all([one.open.remote(*given, Gang(address, count, i)) for i, one in enumerate(self.members)], watch)

    def train(self, goal: Goal, watch: Watch) -> Outcome:
        """A cell, trained by all; raises as `open`."""
        return self._all([one.train.remote(goal) for one in self.members], watch)

    def stop(self) -> None:
        """The cell at work is to save its state."""
        for one in self.members:
            one.stop.remote()

    def _all(self, calls: list[Any], watch: Watch) -> Outcome:
        """How the calls end, one of each process; meanwhile `watch` is given the news of process 0."""
        ray, left, outcome = self.ray, calls, Outcome()
        try:
            while left:
                done, left = ray.wait(left, timeout=LOOK)
                watch(ray.get(self.members[0].news.remote()))
                for outcome in ray.get(done):
                    if outcome.kind == member.REFUSED:
                        raise InputError(outcome.said)
                    if outcome.kind == member.LOST:
                        raise Lost(outcome.said)
        except ray.exceptions.RayError as e:
            raise Lost(_why(e)) from e
        return outcome

    def _log(self, process: int) -> Path:
        return self.log.with_name(f"{self.log.name}-{process}.log")

    def end_of_log(self) -> str:
        """What process 0 printed last, or where that is."""
        try:
            lines = self._log(0).read_text(errors="replace").splitlines()
        except OSError:
            return f"its log is {self._log(0)} on {self.where or 'its node'}"
        return "\n    ".join([f"the end of {self._log(0)}:", *lines[-LINES:]])


def _why(error: Exception) -> str:
    """The line of Ray's message that says what happened: the last that names an error, or else one of a death."""
    lines = [re.sub(r"\x1b\[\d*m", "", line).strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)\b", line)]
    return next(iter(named[-1:] or [line for line in lines if "died" in line] or lines))[:300]
