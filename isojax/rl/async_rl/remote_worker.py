"""A rollout worker in processes that only sample (distributed/roles.py), on both sides. The
trainer's processes make the same requests; each sends its own to a part of the sampler's processes,
and the weights that it holds to all that need them. Each of the sampler's processes sends what it
has finished to one of the trainer's, which grades it."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from isojax.distributed.roles import Role, received
from isojax.distributed.sharding import array_on, replicated
from isojax.models.transformer import Params
from isojax.rl.async_rl.rollout_buffer import SamplerPrograms
from isojax.rl.async_rl.rollout_worker import (
    BatchInbox,
    RolloutJob,
    RolloutWorker,
    SampledBatch,
    serve_requests,
)
from isojax.sampling.batch import ProblemArrays

# Of a parameter's number among all: a part of it, and where the part is in it.
WeightPart = tuple[int, tuple[slice, ...], np.ndarray]


class RemoteWorker:
    """The worker of one cell, as a process that trains sees it; `on_finished` is called in another
    thread."""

    def __init__(self, programs: SamplerPrograms, job: RolloutJob, role: Role, mesh: Mesh):
        """`mesh`: of training, on which batches arrive."""
        self.programs, self.job, self.role, self.mesh = programs, job, role, mesh
        self.number = next(role.job_numbers)
        self.busy_seconds = 0.0  # of sampling so far
        self.inbox = BatchInbox()
        # of each batch, from how many partners it has arrived
        self.arrivals: Counter[int] = Counter()
        self.lock = threading.Lock()  # of the links' threads
        for link in role.peers.values():
            link.on_message = self._receive
        self._request("begin", self.number, replace(job, on_finished=None))

    def begin_batch(self, batch: int, problems: ProblemArrays, key_data: np.ndarray) -> None:
        self._request("begin_batch", batch, problems, key_data)

    def publish_weights(self, version: int, params: Params) -> None:
        for process, link in self.role.peers.items():
            link.send(
                (
                    "publish_weights",
                    version,
                    weight_parts(params, self.programs.param_shardings, process),
                )
            )

    def take_batch(self, batch: int) -> SampledBatch:
        """Waits until the batch is sampled."""
        rollouts, tokens_by_version = self.inbox.take(batch)
        return jax.tree.map(partial(array_on, replicated(self.mesh)), rollouts), tokens_by_version

    def close(self) -> None:
        """The sampler ends the job after its current chunk."""
        self._request("close")

    def _request(self, *message: Any) -> None:
        """To the processes of the sampler whose requests come from this one."""
        for link in self.role.assigned_peers:
            link.send(message)

    def _receive(self, message: Any) -> None:
        with self.inbox.pass_errors_on(), self.lock:  # errors such as what grading has raised
            match message:
                case "finished", self.number, *arguments:
                    assert self.job.on_finished is not None
                    self.job.on_finished(*arguments)
                case "sampled", self.number, batch, sampled, busy_seconds:
                    self.busy_seconds = max(self.busy_seconds, busy_seconds)
                    self.arrivals[batch] += 1
                    # what they finished came before
                    if self.arrivals[batch] == len(self.role.partners):
                        self.inbox.put(batch, sampled)


def weight_parts(params: Params, shardings: Params, process: int) -> list[WeightPart]:
    """The parts of parameters that this process holds and that `process` needs for its devices, by
    `shardings` on the sampler's mesh. Where several processes hold a part, one of them has it
    here."""
    parts: list[WeightPart] = []
    for number, (x, sharding) in enumerate(
        zip(jax.tree.leaves(params), jax.tree.leaves(shardings), strict=True)
    ):
        indices = sharding.devices_indices_map(x.shape).items()
        needed = [index for device, index in indices if device.process_index == process]
        held = [shard for shard in x.addressable_shards if shard.replica_id == 0]
        parts += [
            (number, shard.index, np.asarray(shard.data))
            for shard in held
            if any(_overlap(shard.index, index, x.shape) for index in needed)
        ]
    return parts


def _overlap(a: tuple[slice, ...], b: tuple[slice, ...], shape: tuple[int, ...]) -> bool:
    ranges = [
        (range(*x.indices(size)), range(*y.indices(size)))
        for x, y, size in zip(a, b, shape, strict=True)
    ]
    return all(x.start < y.stop and y.start < x.stop for x, y in ranges)


def place_weights(parts: Iterable[WeightPart], shapes: Params, shardings: Params) -> Params:
    """Parameters on the sampler's mesh, of the parts that all processes have sent to this one."""
    leaves, tree = jax.tree.flatten(shapes)
    buffers = [np.empty(x.shape, x.dtype) for x in leaves]  # what no part fills is never touched
    for number, index, x in parts:
        buffers[number][index] = x
    return jax.tree.map(array_on, shardings, tree.unflatten(buffers))


def next_request(worker: RolloutWorker, role: Role, shapes: Params) -> Callable[[], None] | None:
    """The trainer's next request, in a process of the sampler. `shapes`: of the parameters as they
    are sent."""
    name, *arguments = received(role.own_peer)
    if name == "close":
        return None
    if name == "publish_weights":
        version, parts = arguments
        others = [link for link in role.peers.values() if link is not role.own_peer]
        all_parts = chain(parts, *(received(link)[2] for link in others))
        arguments = version, place_weights(all_parts, shapes, worker.programs.param_shardings)
    return partial(getattr(worker, name), *arguments)


def sample_jobs(programs: SamplerPrograms, role: Role, shapes: Params, is_graded: bool) -> None:
    """Samples one job after the other, until training ends; raises what has ended it. `shapes`: of
    the parameters as they are sent. `is_graded`: whether the trainer's processes grade
    responses."""

    def send_finished(
        number: int, batch: int, rollout_index: np.ndarray, responses: list[np.ndarray]
    ) -> None:
        role.own_peer.send(("finished", number, batch, rollout_index, responses))

    def send_batch(number: int, worker: RolloutWorker, batch: int, sampled: SampledBatch) -> None:
        rollouts, tokens_by_version = sampled
        for link in role.partners:
            link.send(
                (
                    "sampled",
                    number,
                    batch,
                    (jax.device_get(rollouts), tokens_by_version),
                    worker.busy_seconds,
                )
            )

    while (message := role.next_message("begin")) is not None:
        number, job = message
        on_finished = partial(send_finished, number) if is_graded else None
        worker = RolloutWorker(programs, replace(job, on_finished=on_finished))
        get_request = partial(next_request, worker, role, shapes)
        on_sampled = partial(send_batch, number, worker)
        serve_requests(worker, role.own_peer.incoming.qsize, get_request, on_sampled)
