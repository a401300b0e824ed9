"""The half of a pipeline that samples; the other one trains (rl/async_rl/async_rollouts.py).

    begin    a batch's problems and key come into their places of the ring
    publish  the newest weights, for the visits to come
    visit    at most a chunk of tokens a slot; what has finished
    take     a batch that has been sampled: its rows, and with which weights its tokens were drawn

Who calls these, from which thread or process, is the business of rl/async_rl/transport.py.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from isojax.distributed.sharding import replicated
from isojax.models.transformer import Params
from isojax.rl.async_rl.rollout_buffer import ChunkOutputs, SamplerInputs, SamplerPrograms
from isojax.sampling.batch import ProblemArrays, Rollouts
from isojax.sampling.engine import SamplerState


class RolloutJob(NamedTuple):
    """A cell's sampler: B_p and n; the first batch; any problem, in arrays of one row, to stand where none has come;
    and whether it is to tell what has finished, which a verifier on the host wants."""

    B_p: int
    n: int
    first_batch: int
    filler_problem: ProblemArrays
    report_finished: bool


class FinishedRollouts(NamedTuple):
    """Rollouts of a batch that have finished: their numbers i[r] in it, and the tokens of each, i32[its length]."""

    batch: int
    rollout_index: np.ndarray
    responses: list[np.ndarray]


class RolloutBatch(NamedTuple):
    """A batch that has been sampled: its rows on the sampler's shards, and how many tokens were drawn with the weights
    of each update.
    """

    batch: int
    rollouts: Rollouts
    tokens_by_version: Mapping[int, int]


class RolloutWorker:
    """One cell's sampler; its calls come from one thread."""

    def __init__(self, programs: SamplerPrograms, job: RolloutJob):
        self.programs, self.job = programs, job
        self.next_batch = job.first_batch  # batches that may be worked at, and all before the cell's first
        self.groups_per_shard = job.B_p // programs.shards
        self.finished_counts: dict[int, int] = {}  # rollouts, of the batches that have begun and are not taken
        self.tokens_by_version: dict[int, Counter[int]] = defaultdict(Counter)
        shards, entries = programs.shards, programs.ring_geometry.problem_rows
        self.problem_ring = ProblemArrays(*(np.resize(x, (shards, entries, *x.shape[1:])) for x in job.filler_problem))
        self.key_ring = np.zeros((shards, entries, 2), np.uint32)
        self.previous_slots = np.full(
            (2, shards, programs.ring_geometry.slots), -1, np.int32
        )  # rows the slots were at, and their lengths
        self.published_weights: tuple[int, Params] | None = None  # weights of so many updates, that no visit has seen
        self.weights: tuple[Params, Params] | None = None
        self.weights_version = -1
        self.state: SamplerState = programs.init_state(jnp.arange(shards, dtype=jnp.int32))

    @property
    def has_work(self) -> bool:
        """Whether anything is left to sample."""
        return any(count < self.job.B_p * self.job.n for count in self.finished_counts.values())

    @property
    def ready_batches(self) -> list[int]:
        """The batches that can be taken."""
        return [b for b, count in self.finished_counts.items() if count == self.job.B_p * self.job.n]

    def save(self) -> tuple[dict[str, Any], Any]:
        """What it has under way, as data for JSON and as arrays. Its weights are not among them: those published last
        are as new as any.
        """
        finished_counts = {str(b): count for b, count in self.finished_counts.items()}
        tokens_by_version = {
            str(b): {str(v): count for v, count in tokens_by_version.items()}
            for b, tokens_by_version in self.tokens_by_version.items()
        }
        meta = {
            "first": self.job.first_batch,
            "begun": self.next_batch,
            "version": self.weights_version,
            "finished": finished_counts,
            "ages": tokens_by_version,
        }
        problem_ring = {
            name: x for name, x in self.problem_ring._asdict().items() if x.size
        }  # Orbax saves no empty array, as answers of tasks in text are
        return meta, {"state": self.state, "ring": problem_ring, "keys": self.key_ring, "before": self.previous_slots}

    def restore(self, meta: Mapping[str, Any], restore_arrays: Callable[[Any], Any]) -> None:
        """Goes on where `save` was called."""
        sharding = replicated(self.programs.mesh)
        _, template = self.save()
        restored = restore_arrays(
            jax.tree.map(lambda x: x if isinstance(x, jax.Array) else jax.device_put(x, sharding), template)
        )
        self.state = restored["state"]
        self.problem_ring = self.problem_ring._replace(**{name: np.array(x) for name, x in restored["ring"].items()})
        self.key_ring, self.previous_slots = np.array(restored["keys"]), np.array(restored["before"])
        self.job = self.job._replace(first_batch=meta["first"])
        self.next_batch, self.weights_version = meta["begun"], meta["version"]
        self.finished_counts = {int(b): count for b, count in meta["finished"].items()}
        for b, tokens_by_version in meta["ages"].items():
            self.tokens_by_version[int(b)].update({int(v): count for v, count in tokens_by_version.items()})

    def begin_batch(self, batch: int, problems: ProblemArrays, key: np.ndarray) -> None:
        """Batch b may be worked at: host arrays of its B_p problems, the data of its key. Batches come in order, at
        most k + 1 at once.
        """
        assert batch == self.next_batch, (batch, self.next_batch)
        ring_slice = slice(self._ring_offset(batch), self._ring_offset(batch) + self.groups_per_shard)
        for buffer, x in zip(self.problem_ring, problems, strict=True):
            buffer[:, ring_slice] = np.asarray(x).reshape(len(buffer), self.groups_per_shard, *x.shape[1:])
        self.key_ring[:, ring_slice] = key
        self.finished_counts[batch], self.next_batch = 0, batch + 1

    def publish_weights(self, version: int, params: Params) -> None:
        """The parameters after so many updates, for the next visit; they may lie on the host."""
        self.published_weights = version, params

    def decode_chunk(self) -> list[FinishedRollouts]:
        """One visit, with the newest weights; what it has finished, where anybody wants to know."""
        weights_changed = self.published_weights is not None
        if self.published_weights is not None:
            self.weights_version, params = self.published_weights
            self.weights, self.published_weights = self._prepare_weights(params), None
        assert self.weights is not None, "no weights yet"
        group_limit = (self.next_batch - self.job.first_batch) * self.groups_per_shard
        self.state, outputs = self.programs.decode_chunk(
            self._inputs(self.weights, group_limit, weights_changed), self.state
        )
        return self._record_chunk(ChunkOutputs(*(np.asarray(x) for x in outputs)))

    def take_batch(self, batch: int) -> RolloutBatch:
        """A batch that is ready."""
        assert batch in self.ready_batches, (batch, self.finished_counts)
        rollouts = self.programs.extract_batch(self.state.outputs, np.int32(self._ring_offset(batch) * self.job.n))
        del self.finished_counts[batch]
        return RolloutBatch(batch, rollouts, dict(self.tokens_by_version.pop(batch)))

    def compile_programs(self, params: Params) -> Rollouts:
        """Runs all programs on nothing; rows as those of a batch."""
        self.state, _ = self.programs.decode_chunk(self._inputs(self._prepare_weights(params), 0, False), self.state)
        return self.programs.extract_batch(self.state.outputs, np.int32(0))

    def _ring_offset(self, batch: int) -> int:
        """The first of a batch's groups in the ring."""
        return (batch - self.job.first_batch) % (self.programs.spec.max_staleness + 1) * self.groups_per_shard

    def _prepare_weights(self, params: Params) -> tuple[Params, Params]:
        return self.programs.prepare_weights(jax.device_put(params, self.programs.param_shardings))

    def _inputs(self, weights: tuple[Params, Params], group_limit: int, weights_changed: bool) -> SamplerInputs:
        problems, keys = jax.device_put((self.problem_ring, self.key_ring), self.programs.sharded_by_row)
        return SamplerInputs(
            *weights,
            problems,
            keys,
            np.int32(group_limit),
            np.int32(self.groups_per_shard),
            np.int32(self.job.n),
            np.bool_(weights_changed),
        )

    def _record_chunk(self, outputs: ChunkOutputs) -> list[FinishedRollouts]:
        """Counts the tokens of a visit by the weights they were drawn with, and its finished rollouts."""
        rows_per_batch, first_batch = (
            self.groups_per_shard * self.job.n,
            self.job.first_batch,
        )  # rows of a batch, on a shard
        batch_of_slot = first_batch + outputs.slot_rows // rows_per_batch
        new_tokens = outputs.lengths - np.where(outputs.slot_rows == self.previous_slots[0], self.previous_slots[1], 0)
        for b in np.unique(batch_of_slot[outputs.slot_rows >= 0]):
            self.tokens_by_version[int(b)][self.weights_version] += int(
                new_tokens[(batch_of_slot == b) & (outputs.slot_rows >= 0)].sum()
            )
        self.previous_slots = np.stack([np.where(outputs.finished_rows >= 0, -1, outputs.slot_rows), outputs.lengths])
        shard, slot = np.nonzero(outputs.finished_rows >= 0)
        row, finished_rollouts = outputs.finished_rows[shard, slot], []
        for b in np.unique(first_batch + row // rows_per_batch):
            in_batch = first_batch + row // rows_per_batch == b
            self.finished_counts[int(b)] += int(in_batch.sum())
            if self.job.report_finished:
                rollout_index = shard[in_batch] * rows_per_batch + row[in_batch] % rows_per_batch
                tokens, lengths = (
                    outputs.tokens[shard[in_batch], slot[in_batch]],
                    outputs.lengths[shard[in_batch], slot[in_batch]],
                )
                finished_rollouts.append(
                    FinishedRollouts(
                        int(b), rollout_index, [t[:length] for t, length in zip(tokens, lengths, strict=True)]
                    )
                )
        return finished_rollouts
