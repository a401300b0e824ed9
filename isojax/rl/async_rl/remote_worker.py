"""A rollout worker in processes that only sample (distributed/roles.py), on both sides. The
trainer's processes make the same requests; each sends its own to a part of the sampler's processes,
and the weights that it holds to all that need them. Each of the sampler's processes sends what it
has finished to one of the trainer's, which grades it.

A process has a link to each of the other role's (`role.peers`), and is assigned to one of them
(`own_peer`). A sampler's process gets its requests from that one, and sends it finished responses.
Whole batches go to its `partners`: `own_peer`, and those assigned to it (`assigned_peers`).

The messages, in this order within a job:

    from the trainer    begin            job number, RolloutJob without `on_finished`
                        begin_batch      batch, its problems, the data of its key
                        publish_weights  version, the WeightParts of this process
                        close
    from the sampler    finished         job number, batch, rollouts, their responses
                        sampled          job number, batch, SampledBatch, busy seconds of the job
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

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


class WeightPart(NamedTuple):
    """A part of a parameter."""

    number: int  # of the parameter among all
    place: tuple[slice, ...]  # where the part is in it
    values: np.ndarray


class RemoteWorker:
    """The worker of one cell, as a process that trains sees it; `on_finished` is called in another
    thread."""

    def __init__(self, programs: SamplerPrograms, job: RolloutJob, role: Role, mesh: Mesh):
        """Begin a job in the sampler's processes. mesh: of training, on which batches arrive."""
        self.programs, self.job, self.role, self.mesh = programs, job, role, mesh
        self.number = next(role.job_numbers)
        self.busy_seconds = 0.0  # of sampling so far
        self.inbox = BatchInbox()
        # of each batch, from how many partners it has arrived; each of them sends the whole batch
        self.arrivals: Counter[int] = Counter()
        self.lock = threading.Lock()  # of the links' threads
        for link in role.peers.values():
            link.on_message = self._receive
        self._request("begin", self.number, replace(job, on_finished=None))

    def begin_batch(self, batch: int, problems: ProblemArrays, key_data: np.ndarray) -> None:
        self._request("begin_batch", batch, problems, key_data)

    def publish_weights(self, version: int, params: Params) -> None:
        for process, link in self.role.peers.items():
            parts = weight_parts(params, self.programs.param_shardings, process)
            link.send(("publish_weights", version, parts))

    def take_batch(self, batch: int) -> SampledBatch:
        """Waits until the batch is sampled."""
        rollouts, tokens_by_version = self.inbox.take(batch)
        on_mesh = partial(array_on, replicated(self.mesh))
        return SampledBatch(jax.tree.map(on_mesh, rollouts), tokens_by_version)

    def close(self) -> None:
        """The sampler ends the job after its current chunk."""
        self._request("close")

    def _request(self, *message: Any) -> None:
        """To the processes of the sampler whose requests come from this one."""
        for link in self.role.assigned_peers:
            link.send(message)

    def _receive(self, message: Any) -> None:
        """Take a message of the sampler (module docstring), in a thread of the link.

        A pattern with `self.number` matches that number alone: messages of former jobs are dropped.
        """
        with self.inbox.pass_errors_on(), self.lock:  # errors such as what grading has raised
            match message:
                case "finished", self.number, batch, rollouts, responses:
                    assert self.job.on_finished is not None
                    self.job.on_finished(batch, rollouts, responses)
                case "sampled", self.number, batch, sampled, busy_seconds:
                    self.busy_seconds = max(self.busy_seconds, busy_seconds)
                    self.arrivals[batch] += 1
                    # Messages of a link are in order, so what each has finished came before.
                    if self.arrivals[batch] == len(self.role.partners):
                        self.inbox.put(batch, sampled)


def weight_parts(params: Params, shardings: Params, process: int) -> list[WeightPart]:
    """The parts of the parameters that this process is to send to `process` of the sampler.

    These are the parts that it holds and that `process` needs for its devices, by `shardings`, a
    tree of NamedShardings on the sampler's mesh like the parameters. Where several processes hold
    a part, one of them sends it: that with replica 0. process: its index in the run.
    """
    parts: list[WeightPart] = []
    leaves = zip(jax.tree.leaves(params), jax.tree.leaves(shardings), strict=True)
    for number, (x, sharding) in enumerate(leaves):
        needed = [
            index
            for device, index in sharding.devices_indices_map(x.shape).items()
            if device.process_index == process
        ]
        for shard in x.addressable_shards:
            is_needed = any(_overlap(shard.index, index, x.shape) for index in needed)
            if shard.replica_id == 0 and is_needed:
                parts.append(WeightPart(number, shard.index, np.asarray(shard.data)))
    return parts


def _overlap(a: tuple[slice, ...], b: tuple[slice, ...], shape: tuple[int, ...]) -> bool:
    """Whether two parts of an array of this shape have an element in common."""
    for slice_a, slice_b, size in zip(a, b, shape, strict=True):
        range_a = range(*slice_a.indices(size))
        range_b = range(*slice_b.indices(size))
        if range_a.start >= range_b.stop or range_b.start >= range_a.stop:
            return False
    return True


def place_weights(parts: Iterable[WeightPart], shapes: Params, shardings: Params) -> Params:
    """Parameters on the sampler's mesh, of the parts that all processes have sent to this one.

    shapes, shardings: trees like the parameters, of what was sent and on the sampler's mesh; parts
    are numbered by the order of their leaves.
    """
    leaves, tree = jax.tree.flatten(shapes)
    buffers = [np.empty(x.shape, x.dtype) for x in leaves]  # what no part fills is never touched
    for part in parts:
        buffers[part.number][part.place] = part.values
    return jax.tree.map(array_on, shardings, tree.unflatten(buffers))


def next_request(worker: RolloutWorker, role: Role, shapes: Params) -> Callable[[], None] | None:
    """The trainer's next request, in a process of the sampler, as a call of the worker.

    None ends the job. shapes: of the parameters as they are sent. Waits for the message; raises
    TrainingFailed where an error has ended the training.
    """
    name, *arguments = received(role.own_peer)
    if name == "close":
        return None
    if name == "begin_batch":
        return partial(worker.begin_batch, *arguments)

    # Every process that trains sends the parts that it holds.
    assert name == "publish_weights", name
    version, own_parts = arguments
    other_peers = [link for link in role.peers.values() if link is not role.own_peer]
    # Processes that send this one nothing but weights: their next message is of the same version.
    other_parts = [parts for _, _, parts in map(received, other_peers)]
    params = place_weights(chain(own_parts, *other_parts), shapes, worker.programs.param_shardings)
    return partial(worker.publish_weights, version, params)


def sample_jobs(programs: SamplerPrograms, role: Role, shapes: Params, is_graded: bool) -> None:
    """Sample one job after the other, until training ends; raises what has ended it.

    It is what a process of the sampler does. shapes: of the parameters as they are sent. is_graded:
    whether the trainer's processes grade responses, and so are sent each that is finished. A job's
    `number` goes with every message, so that the trainer can drop those of former jobs.
    """

    def send_finished(
        number: int, batch: int, rollouts: np.ndarray, responses: list[np.ndarray]
    ) -> None:
        # to the one process of the trainer that grades what this process samples
        role.own_peer.send(("finished", number, batch, rollouts, responses))

    def send_batch(number: int, worker: RolloutWorker, batch: int, sampled: SampledBatch) -> None:
        on_host = sampled._replace(rollouts=jax.device_get(sampled.rollouts))
        # to each of the trainer's processes that waits for whole batches of this one
        for link in role.partners:
            link.send(("sampled", number, batch, on_host, worker.busy_seconds))

    while True:
        content = role.next_message("begin")  # waits for it; None where training has ended
        if content is None:
            return
        number, job = content
        on_finished = partial(send_finished, number) if is_graded else None
        worker = RolloutWorker(programs, replace(job, on_finished=on_finished))
        serve_requests(
            worker,
            count_waiting=role.own_peer.incoming.qsize,
            next_request=partial(next_request, worker, role, shapes),
            on_sampled=partial(send_batch, number, worker),
        )
