"""The rollout worker: it samples batches continuously, while the trainer
(rl/async_rl/async_rollouts.py) trains.

A RolloutWorker samples in the trainer's thread while that waits for a batch; a BackgroundWorker in
another thread, on other devices; a RemoteWorker (rl/async_rl/remote_worker.py) in other
processes. All receive the same requests in the same order; only the moment of their arrival
differs, which decides with which weights a token is drawn."""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

import jax
import numpy as np

from isojax.distributed import multiprocess
from isojax.distributed.sharding import copy_to_mesh, replicated, shape_on
from isojax.models.transformer import Params
from isojax.rl.async_rl.rollout_buffer import (
    ChunkOutputs,
    ProblemRing,
    SamplerPrograms,
    SamplerProgress,
)
from isojax.sampling.batch import ProblemArrays, Rollouts
from isojax.sampling.engine import SamplerWeights
from isojax.sampling.layout import Layout
from isojax.sampling.slots import SamplerState

CLOSE_TIMEOUT = 60  # seconds
# Called with a batch's number, the numbers i[r] in it of rollouts that have finished, and the
# tokens of each.
FinishedCallback = Callable[[int, np.ndarray, list[np.ndarray]], None]
Request = Callable[[], None] | None  # a call of a worker's method; None ends its job


class SampledBatch(NamedTuple):
    """A batch that is done."""

    rollouts: Rollouts  # by shard of the sampler
    # how many tokens were drawn with the weights after each number of updates: {11: 900, 12: 340}
    tokens_by_version: Mapping[int, int]


class PublishedParams(NamedTuple):
    """The policy's parameters after `version` updates."""

    version: int
    params: Params


@dataclass(frozen=True)
class RolloutJob:
    """What a worker samples: batch after batch of n rollouts of each of B_p problems."""

    B_p: int
    n: int
    first_batch: int  # the number of the first batch
    # any problem, as arrays of one row; it fills the ring where no batch has begun
    filler_problem: ProblemArrays
    on_finished: FinishedCallback | None  # of a verifier on the host


class RolloutWorker:
    """The worker of one cell; all calls come from one thread.

    Batches have the number of the update that trains on them. `publish_weights` must come before
    the first chunk; `begin_batch` is called in the order of the numbers.
    """

    def __init__(self, programs: SamplerPrograms, job: RolloutJob):
        """programs: of the sweep, of a mesh whose shards divide `job.B_p`."""
        self.programs = programs
        self.job = job
        self.groups_per_shard = job.B_p // programs.shards
        self.busy_seconds = 0.0  # of sampling so far

        # Batches before `next_batch` have begun. Of those that are not taken yet: how many rollouts
        # are done, and how many tokens were drawn with the weights of each update.
        self.next_batch = job.first_batch
        self.finished_counts: dict[int, int] = {}
        self.tokens_by_version: dict[int, Counter[int]] = defaultdict(Counter)

        # The ring on the host, which a chunk reads: problems, and the key of each one's batch.
        shards, entries = programs.shards, programs.ring_shapes.problem_rows
        filler = ProblemArrays(
            *(np.resize(x, (shards, entries, *x.shape[1:])) for x in job.filler_problem)
        )
        self.ring = ProblemRing(filler, keys=np.zeros((shards, entries, 2), np.uint32))

        # [2 S R]: the row (as in ChunkOutputs) that each slot decoded in the last chunk, -1 where
        # its rollout has finished; and the slot's length. As one array, because checkpoints have it
        # so.
        self.previous_slots = np.full((2, shards, programs.ring_shapes.slots), -1, np.int32)

        # Parameters that no chunk has used yet; and the weights in use.
        self.published: PublishedParams | None = None
        self.weights: SamplerWeights | None = None
        self.weights_version = -1
        self.state: SamplerState = programs.init_state()

    @property
    def has_work(self) -> bool:
        """Whether a batch has begun of which rollouts are left."""
        B = self.job.B_p * self.job.n
        return any(count < B for count in self.finished_counts.values())

    @property
    def ready_batches(self) -> list[int]:
        """The batches that are done and not taken."""
        B = self.job.B_p * self.job.n
        return [batch for batch, count in self.finished_counts.items() if count == B]

    def begin_batch(self, batch: int, problems: ProblemArrays, key_data: np.ndarray) -> None:
        """Let batch `batch` be sampled from the next chunk on.

        problems: host arrays of its B_p problems. key_data: u32[2], the data of its PRNG key.
        Batches begin in order, and at most k + 1 (k = cell.rl.max_staleness) are in the ring at
        once: batch b takes the place of b - k - 1, which must have been taken.
        """
        assert batch == self.next_batch, (batch, self.next_batch)
        offset = self._ring_offset(batch)
        of_batch = slice(offset, offset + self.groups_per_shard)
        for buffer, x in zip(self.ring.problems, problems, strict=True):
            by_shard = (len(buffer), self.groups_per_shard, *x.shape[1:])
            buffer[:, of_batch] = np.asarray(x).reshape(by_shard)
        self.ring.keys[:, of_batch] = key_data

        self.finished_counts[batch] = 0
        self.next_batch = batch + 1

    def publish_weights(self, version: int, params: Params) -> None:
        """The parameters after `version` updates, for the next chunk; to be donated once newer ones
        are published."""
        self.published = PublishedParams(version, params)

    def decode_chunk(self) -> None:
        """Decode at most CHUNK_TOKENS tokens in each slot with the newest weights."""
        started_at = time.monotonic()

        weights_changed = self.published is not None
        if self.published is not None:
            self.weights_version = self.published.version
            self.weights = self.programs.prepare_weights(self.published.params)
            self.published = None
        assert self.weights is not None, "no weights yet"

        batches_begun = self.next_batch - self.job.first_batch
        progress = SamplerProgress(
            group_limit=np.int32(batches_begun * self.groups_per_shard),
            groups_per_batch=np.int32(self.groups_per_shard),
            n=np.int32(self.job.n),
            weights_changed=np.bool_(weights_changed),
        )
        self.state, outputs = self.programs.decode_chunk(
            self.weights, self.ring, progress, self.state
        )

        # Every process counts all slots; tokens stay where they are, and each grades its own.
        outputs = ChunkOutputs(*map(np.asarray, outputs[:-1]), tokens=outputs.tokens)
        self._count_tokens(outputs)
        self._count_finished(outputs)
        self.busy_seconds += time.monotonic() - started_at

    def take_batch(self, batch: int) -> SampledBatch:
        """Decodes until a batch is done; its part of the ring is free then."""
        while batch not in self.ready_batches:
            self.decode_chunk()
        first_row = np.int32(self._ring_offset(batch) * self.job.n)
        rollouts = self.programs.extract_batch(self.state.outputs, first_row)
        del self.finished_counts[batch]
        return SampledBatch(rollouts, dict(self.tokens_by_version.pop(batch)))

    def close(self) -> None:
        """Nothing runs."""

    def save(self) -> tuple[dict[str, Any], Any]:
        """Return (data for JSON, arrays) of the rollouts in progress; without weights.

        The trainer publishes these again after `restore`. The keys are in checkpoints: they must
        stay.
        """
        meta = {
            "first_batch": self.job.first_batch,
            "next_batch": self.next_batch,
            "weights_version": self.weights_version,
            "finished_counts": _map_keys(str, self.finished_counts),
            "tokens_by_version": {
                str(b): _map_keys(str, counts) for b, counts in self.tokens_by_version.items()
            },
        }
        arrays = {
            "state": self.state,
            # Orbax saves no empty array, such as the answers of a text task.
            "problem_ring": {name: x for name, x in self.ring.problems._asdict().items() if x.size},
            "key_ring": self.ring.keys,
            "previous_slots": self.previous_slots,
        }
        return meta, arrays

    def restore(self, meta: Mapping[str, Any], restore_arrays: Callable[[Any], Any]) -> None:
        """Continue where `save` was called, in a worker of the same programs.

        meta: the first that `save` returned. restore_arrays(template): reads the arrays of a
        checkpoint that are in the template, a tree of arrays or ShapeDtypeStructs with shardings.
        """
        on_all = replicated(self.programs.mesh)
        _, arrays = self.save()  # this worker's own, for the shapes of those that were saved
        template = jax.tree.map(
            lambda x: x if isinstance(x, jax.Array) else shape_on(on_all, x.shape, x.dtype), arrays
        )
        restored = restore_arrays(template)

        self.state = restored["state"]
        self.previous_slots = np.array(restored["previous_slots"])
        problems = {name: np.array(x) for name, x in restored["problem_ring"].items()}
        self.ring = ProblemRing(
            self.ring.problems._replace(**problems), keys=np.array(restored["key_ring"])
        )
        self.job = replace(self.job, first_batch=meta["first_batch"])
        self.next_batch = meta["next_batch"]
        self.weights_version = meta["weights_version"]
        self.finished_counts = _map_keys(int, meta["finished_counts"])
        for b, counts in meta["tokens_by_version"].items():
            self.tokens_by_version[int(b)] = Counter(_map_keys(int, counts))

    def _ring_offset(self, batch: int) -> int:
        """The first of a batch's groups in the ring."""
        return (batch - self.job.first_batch) % self.programs.ring_batches * self.groups_per_shard

    def _batch_of_row(self, row: np.ndarray) -> np.ndarray:
        """The numbers of the batches of rollouts, by their rows i[...] in the shard's share, which
        is endless: it counts from the first batch on."""
        return self.job.first_batch + row // (self.groups_per_shard * self.job.n)

    def _count_tokens(self, outputs: ChunkOutputs) -> None:
        """Count the tokens that a chunk has drawn, by batch, as tokens of the present weights.

        outputs: arrays [S R ...] of all slots, R on each of S shards. Reads and replaces
        `previous_slots`, i32[2 S R]: each slot's row (-1 where its rollout has finished) and length
        after the chunk before.
        """
        previous_rows, previous_lengths = self.previous_slots
        # A rollout that was in its slot before the chunk had some tokens by then.
        goes_on = outputs.slot_rows == previous_rows
        new_tokens = outputs.lengths - np.where(goes_on, previous_lengths, 0)

        in_use = outputs.slot_rows >= 0
        batch_of_slot = self._batch_of_row(outputs.slot_rows[in_use])
        for batch in np.unique(batch_of_slot):
            num_tokens = new_tokens[in_use][batch_of_slot == batch].sum()
            self.tokens_by_version[int(batch)][self.weights_version] += int(num_tokens)

        # A slot that has finished begins another rollout, even if that has the same row.
        has_finished = outputs.finished_rows >= 0
        rows = np.where(has_finished, -1, outputs.slot_rows)
        self.previous_slots = np.stack([rows, outputs.lengths])

    def _count_finished(self, outputs: ChunkOutputs) -> None:
        """Count the rollouts that a chunk has finished, and pass this process's to `on_finished`.

        outputs: arrays [S R ...]; all but `tokens` are host arrays of all shards, `tokens` is
        sharded over processes.
        """
        shard, slot = np.nonzero(outputs.finished_rows >= 0)  # i[r] each, r rollouts
        row = outputs.finished_rows[shard, slot]
        batch_of_rollout = self._batch_of_row(row)

        # A shard's rows of a batch follow each other, so that a row's rest is its place in them:
        # shards divide B_p, so that each has exactly `rollouts_per_shard`.
        layout = Layout(self.job.B_p, self.job.n, self.programs.shards)
        rollout_index = layout.rollout_at(shard, row % layout.rollouts_per_shard)

        shard_ids, shard_tokens = multiprocess.local_shard_rows(outputs.tokens)
        tokens_by_shard = dict(zip(shard_ids, shard_tokens, strict=True))  # [R T] of each
        is_here = np.isin(shard, list(tokens_by_shard))
        for batch in np.unique(batch_of_rollout):
            in_batch = batch_of_rollout == batch
            self.finished_counts[int(batch)] += int(in_batch.sum())
            if self.job.on_finished is None:
                continue
            here = in_batch & is_here
            responses = [
                tokens_by_shard[s][i][: outputs.lengths[s, i]]
                for s, i in zip(shard[here], slot[here], strict=True)
            ]
            self.job.on_finished(int(batch), rollout_index[here], responses)


def serve_requests(
    worker: RolloutWorker,
    count_waiting: Callable[[], int],
    next_request: Callable[[], Request],
    on_sampled: Callable[[int, SampledBatch], None],
) -> None:
    """Serve requests until None, and decode chunks between them as long as rollouts are left.

    count_waiting(): how many requests have arrived here. next_request(): waits for the next one,
    a call of a method of `worker`, or None. on_sampled(number, batch): gets each batch that is
    done. Of several processes with parts of one worker, all serve the same requests before the
    same chunk.
    """
    while True:
        # Between chunks, as many requests are served as have arrived at every process. Without
        # work, each waits for its next request; they are the same, in the same order.
        num_requests = 1
        if worker.has_work:
            # `channel` keeps the sampler's exchanges apart from those of the trainer's thread.
            num_requests = min(multiprocess.allgather(count_waiting(), int, channel="sampler"))
        for _ in range(num_requests):
            request = next_request()
            if request is None:
                return
            request()

        if worker.has_work:
            worker.decode_chunk()
            for batch in worker.ready_batches:
                on_sampled(batch, worker.take_batch(batch))


class BatchInbox:
    """Sampled batches on their way from another thread to the trainer's, or what has ended that
    thread."""

    def __init__(self) -> None:
        self._arrivals = SimpleQueue[tuple[int, SampledBatch] | BaseException]()
        self._batches: dict[int, SampledBatch] = {}  # that have arrived before they were wanted

    def put(self, batch: int, sampled: SampledBatch) -> None:
        self._arrivals.put((batch, sampled))

    @contextmanager
    def pass_errors_on(self) -> Iterator[None]:
        """A context for the other thread: an error inside it is raised by `take`, not here."""
        try:
            yield
        except BaseException as e:
            self._arrivals.put(e)

    def take(self, batch: int) -> SampledBatch:
        """Wait until the batch is there, and return it; raises what has ended the other thread."""
        while batch not in self._batches:
            arrival = self._arrivals.get()
            if isinstance(arrival, BaseException):
                self._arrivals.put(arrival)  # every further call raises it too
                raise arrival
            number, sampled = arrival
            self._batches[number] = sampled
        return self._batches.pop(batch)


class BackgroundWorker:
    """A worker in a thread, on other devices than the trainer's; `on_finished` is called in it."""

    def __init__(self, worker: RolloutWorker):
        self.worker = worker
        self.requests = SimpleQueue[Request]()
        self.inbox = BatchInbox()
        self.thread = threading.Thread(target=self._run, daemon=True, name="sampler")
        self.thread.start()

    @property
    def busy_seconds(self) -> float:
        return self.worker.busy_seconds

    def begin_batch(self, batch: int, problems: ProblemArrays, key_data: np.ndarray) -> None:
        self.requests.put(partial(self.worker.begin_batch, batch, problems, key_data))

    def publish_weights(self, version: int, params: Params) -> None:
        params_copy = copy_to_mesh(params, self.worker.programs.param_shardings)
        self.requests.put(partial(self.worker.publish_weights, version, params_copy))

    def take_batch(self, batch: int) -> SampledBatch:
        return self.inbox.take(batch)

    def close(self) -> None:
        """Ends the thread after its current chunk; or waits CLOSE_TIMEOUT, if not all of several
        processes close."""
        self.requests.put(None)
        self.thread.join(CLOSE_TIMEOUT if multiprocess.is_multiprocess() else None)

    def _run(self) -> None:
        with self.inbox.pass_errors_on():
            serve_requests(self.worker, self.requests.qsize, self.requests.get, self.inbox.put)


def _map_keys(convert: Callable[[Any], Any], counts: Mapping[Any, int]) -> dict[Any, int]:
    """JSON has strings as keys."""
    return {convert(key): count for key, count in counts.items()}
