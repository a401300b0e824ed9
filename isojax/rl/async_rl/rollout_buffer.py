"""The compiled programs of a rollout worker (rl/async_rl/rollout_worker.py): continuous sampling
into ring buffers of k + 1 batches per shard; batch b is in part b mod (k + 1). Whole groups are
assigned to shards, so B_p must be a multiple of the number of shards."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from zlib import crc32

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from isojax.core.config import CellConfig
from isojax.core.shapes import SamplerShapes
from isojax.distributed import sharding
from isojax.distributed.sharding import ROLLOUT_AXES, Program, replicated, shape_on
from isojax.models.transformer import Decoder, Params
from isojax.rl.experts import records_experts
from isojax.sampling import stream
from isojax.sampling.batch import (
    ProblemArrays,
    Rollouts,
    RoutedRollouts,
    SamplingBatch,
    problem_shapes,
)
from isojax.sampling.engine import SamplerWeights, build_engine
from isojax.sampling.layout import Layout
from isojax.sampling.slots import SamplerState, work_items
from isojax.tasks.task import Task, is_on_device


class ProblemRing(NamedTuple):
    """The problems of the begun batches, by shard, and u32[S entries 2], the data of the key of
    each one's batch."""

    problems: ProblemArrays
    keys: Any


class SamplerProgress(NamedTuple):
    """What a chunk may sample."""

    group_limit: Any  # i32[], how many groups a shard may begin, counted from the first batch
    groups_per_batch: Any  # i32[], groups of a batch on one shard
    n: Any  # i32[], rollouts per problem
    weights_changed: Any  # bool[], whether the weights are newer than those of the chunk before


class ChunkOutputs(NamedTuple):
    """The slots after a chunk, each i32[S R ...].

    Rows are those of the endless batch of a shard, which counts from the worker's first batch on:
    they grow without end, and `row % ring_rows` is the buffers' row. `tokens` is the last field:
    a worker reads the others as host arrays by their places.
    """

    finished_rows: Any  # the row of the rollout that finished, -1 if none did
    slot_rows: Any  # the row of the rollout that the slot has decoded; -1 of a free one
    lengths: Any  # response tokens so far
    tokens: Any  # [S R T]


class SamplerPrograms:
    """The programs of a sweep's rollout workers on one mesh.

    prepare_weights(params) -> SamplerWeights
    init_state() -> state
    decode_chunk(weights, ring, progress, state) -> (state, ChunkOutputs); the state is donated
    extract_batch(state.outputs, first_row) -> Rollouts
    """

    def __init__(
        self,
        cell: CellConfig,
        decoder: Decoder,
        task: Task,
        shapes: SamplerShapes,
        pairs: Sequence[tuple[int, int]],
        mesh: Mesh,
    ):
        """Build the programs of one mesh; `cell.rl.max_staleness` must be set.

        shapes: of the trainer's batches. pairs: every (B_p, n) of the sweep; the number of the
        mesh's shards must divide each B_p.
        """
        assert cell.rl.max_staleness is not None
        self.mesh = mesh
        self.shards = sharding.shard_count(mesh)
        self.ring_batches = cell.rl.max_staleness + 1
        self.answer_length = shapes.response_length if is_on_device(task) else 0
        # the most rollouts that a batch has on a shard
        self.rows_per_shard = -(-shapes.B_cap // self.shards)

        # To the sampler, the ring is one batch of (k + 1) B_p problems.
        groups_per_shard = [B_p // self.shards for B_p, _ in pairs]
        self.ring_shapes = replace(
            shapes,
            cells=[(B_p * self.ring_batches, n) for B_p, n in pairs],
            shards=self.shards,
            # It divides the groups that a batch has on a shard, so that no block of prompts spans
            # two batches.
            prefill_batch=math.gcd(shapes.prefill_batch, *groups_per_shard),
        )
        self.engine = build_engine(
            decoder,
            self.ring_shapes,
            mesh,
            cell.sampling,
            task.stops,
            # chosen for the size of one batch, not for that of the ring's k + 1
            transpose_weights=shapes.transpose_weights,
            records_experts=records_experts(cell.rl, decoder, mesh),
        )
        self.param_shardings = decoder.shardings(mesh)
        self.sharded_by_row = NamedSharding(mesh, P(ROLLOUT_AXES))

        self.prepare_weights = stream.build_prepare_weights(self.engine, mesh)
        self.init_state = self._build_init_state()
        self.decode_chunk = self._build_decode_chunk()
        self.extract_batch = Program(jax.jit(self._extract_batch, out_shardings=replicated(mesh)))

    def _build_init_state(self) -> Program:
        """Build `init_state() -> state` of all shards, laid out as stream.py's."""

        def init_shard(shard: Array) -> SamplerState:
            # Item 0, computed: a constant would count as equal on all shards, and the queues do
            # not stay equal.
            first_item = shard[0] * 0
            return stream.add_shard_axis(self.engine.init_state(first_item))

        rows: Any = P(ROLLOUT_AXES)
        state_spec = stream.sampler_state_specs(self.engine)
        init_shards = sharding.map_over_shards(init_shard, self.mesh, rows, state_spec)

        def init_state() -> SamplerState:
            return init_shards(jnp.arange(self.shards, dtype=jnp.int32))

        state_sharding = stream.sampler_state_shardings(self.engine, self.mesh)
        return Program(jax.jit(init_state, out_shardings=state_sharding))

    def _build_decode_chunk(self) -> Program:
        """Build `decode_chunk(weights, ring, progress, state)` of all shards (class docstring)."""
        rows: Any = P(ROLLOUT_AXES)
        on_all: Any = P()
        state_spec = stream.sampler_state_specs(self.engine)
        decode_shards = sharding.map_over_shards(
            self._decode_chunk,
            self.mesh,
            (on_all, rows, on_all, state_spec),  # weights, ring, progress, state
            (state_spec, rows),
        )

        # Every process counts all slots, and grades its own.
        whole = replicated(self.mesh)
        output_shardings = ChunkOutputs(whole, whole, whole, tokens=self.sharded_by_row)
        state_sharding = stream.sampler_state_shardings(self.engine, self.mesh)
        return Program(
            jax.jit(
                decode_shards, donate_argnums=3, out_shardings=(state_sharding, output_shardings)
            )
        )

    @property
    def state_layout(self) -> int:
        """A checksum, equal where a worker of these programs can go on with what another saved.

        It is in checkpoints, so that what it is computed of must stay as it is, to the letter.
        """
        # of the ring, but without the grid, which may grow
        ring = self.ring_shapes
        sizes = replace(ring, cells=()), ring.B_cap, ring.Q_cap, ring.prefix_entries
        state_shapes = jax.eval_shape(self.init_state.jitted)
        described = str(jax.tree.map(lambda x: (x.shape, str(x.dtype)), state_shapes))

        # A state without recorded experts is as it was before there were any.
        described = described.replace(", table_experts=None, group_experts=None", "")
        return crc32(f"{sizes} {described}".encode())

    def batch_shapes(self) -> Rollouts | RoutedRollouts:
        """The shapes of a batch's rollouts as `extract_batch` returns them."""
        state = jax.eval_shape(self.init_state.jitted)
        return jax.eval_shape(self.extract_batch.jitted, state.outputs, 0)

    def compile(self, params: Params) -> None:
        """Compile all programs. params: ShapeDtypeStructs of the parameters as they are sent."""
        scalar = shape_on(replicated(self.mesh))
        changed = shape_on(replicated(self.mesh), (), "bool")
        progress = SamplerProgress(scalar, scalar, scalar, weights_changed=changed)

        ring_shapes = self.ring_shapes
        problems_of_shard = problem_shapes(
            ring_shapes, self.mesh, ring_shapes.problem_rows, self.answer_length
        )
        problems = jax.tree.map(
            lambda x: shape_on(self.sharded_by_row, (self.shards, *x.shape)), problems_of_shard
        )
        keys = shape_on(self.sharded_by_row, (*problems.ids.shape, 2), "uint32")
        ring = ProblemRing(problems, keys)

        weights = self.prepare_weights.compile(
            sharding.shapes_with_shardings(params, self.param_shardings)
        )
        state = self.init_state.compile()
        state, _ = self.decode_chunk.compile(weights, ring, progress, state)
        self.extract_batch.compile(state.outputs, scalar)

    def _decode_chunk(
        self,
        weights: SamplerWeights,
        ring: ProblemRing,
        progress: SamplerProgress,
        state: SamplerState,
    ) -> tuple[SamplerState, ChunkOutputs]:
        """Decode a chunk on one shard, for use in a shard_map.

        ring: this shard's, arrays [1 entries ...]; progress: the same on all shards, i32[]. state:
        laid out as stream.py's. Returns the new state and the shard's outputs [1 R ...].
        """
        problems, keys = jax.tree.map(lambda x: x[0], ring)
        state = stream.squeeze_shard_axis(state)

        # To the engine this is one batch of `group_limit` groups, which is all that the shard may
        # have begun since the first; its problems and buffers are rings, of as many groups as
        # k + 1 batches have. One shard: each counts its own groups from 0.
        n = progress.n
        ring_groups = progress.groups_per_batch * self.ring_batches
        batch = SamplingBatch(
            problems,
            share=Layout(progress.group_limit, n, shards=1).shard_slice(jnp.int32(0)),
            n=n,
            key=jax.random.wrap_key_data(keys),
            ring_groups=ring_groups,
            ring_rows=ring_groups * n,
        )

        # Prompts that were prefilled with old weights, and whose responses have not begun, are
        # prefilled again, by whole blocks of prompts.
        queue = state.queue
        prefill_batch = self.ring_shapes.prefill_batch
        # The queue counts work items, parts of a problem's n rollouts, `per_problem` of each.
        next_problem = queue.next_item // work_items(self.ring_shapes, batch).per_problem
        next_block = next_problem // prefill_batch * prefill_batch  # its first problem
        still_valid = jnp.minimum(queue.num_prefilled, next_block)
        num_prefilled = jnp.where(progress.weights_changed, still_valid, queue.num_prefilled)
        state = state._replace(queue=queue._replace(num_prefilled=num_prefilled))

        state, finished_rows = self.engine.decode_chunk(weights, batch, state)
        slots = state.slots
        outputs = ChunkOutputs(
            finished_rows=finished_rows,
            slot_rows=jnp.where(finished_rows >= 0, finished_rows, slots.row),
            lengths=slots.t,
            tokens=slots.tokens,
        )
        return stream.add_shard_axis(state), jax.tree.map(lambda x: x[None], outputs)

    def _extract_batch(
        self, ring_rollouts: tuple[Array, ...], first_row: Array
    ) -> Rollouts | RoutedRollouts:
        """A batch's rows of the ring, from `first_row` on: [S, rows_per_shard, ...]."""
        batch_rows = tuple(
            lax.dynamic_slice_in_dim(x, first_row, self.rows_per_shard, 1) for x in ring_rollouts
        )
        return self.engine.to_rollouts(batch_rows)
