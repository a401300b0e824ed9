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
    group_limit: Any  # i32[], how many groups a shard may begin, counted from the first batch
    groups_per_batch: Any  # i32[], groups of a batch on one shard
    n: Any  # i32[], rollouts per problem
    weights_changed: Any  # bool[], whether the weights are newer than those of the chunk before


class ChunkOutputs(NamedTuple):
    """The slots after a chunk, each [S R ...]."""

    finished_rows: Any  # the buffer row of the rollout that finished, -1 if none did
    slot_rows: Any  # the buffer row of the rollout that the slot has decoded
    lengths: Any  # response tokens so far
    tokens: Any


class SamplerPrograms:
    """The programs of a sweep's rollout workers on one mesh.

    init_state() -> state; prepare_weights(params) -> SamplerWeights;
    decode_chunk(weights, ring, progress, state) -> (state, ChunkOutputs);
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
        assert cell.rl.max_staleness is not None
        self.mesh, self.shards, self.ring_batches = (
            mesh,
            sharding.shard_count(mesh),
            cell.rl.max_staleness + 1,
        )
        self.answer_length = shapes.response_length if is_on_device(task) else 0
        # the most rollouts that a batch has on a shard
        self.rows_per_shard = -(-shapes.B_cap // self.shards)
        self.ring_shapes = replace(
            shapes,
            cells=[(B_p * self.ring_batches, n) for B_p, n in pairs],
            shards=self.shards,
            # It divides the groups that a batch has on a shard, so that no block of prompts spans
            # two batches.
            prefill_batch=math.gcd(shapes.prefill_batch, *(B_p // self.shards for B_p, _ in pairs)),
        )
        self.engine = build_engine(
            decoder,
            self.ring_shapes,
            mesh,
            cell.sampling,
            task.stops,
            shapes.transpose_weights,
            records_experts=records_experts(cell.rl, decoder, mesh),
        )
        self.param_shardings = decoder.shardings(mesh)
        self.prepare_weights = stream.build_prepare_weights(self.engine, mesh)
        self.sharded_by_row = sharded_by_row = NamedSharding(mesh, P(ROLLOUT_AXES))
        state_sharding = stream.sampler_state_shardings(self.engine, mesh)
        state_spec = stream.sampler_state_specs(self.engine)
        rows: Any = P(ROLLOUT_AXES)
        sharded_init = sharding.map_over_shards(
            lambda shard: stream.add_shard_axis(self.engine.init_state(shard[0] * 0)),
            mesh,
            rows,
            state_spec,
        )
        chunk_specs = (P(), rows, P(), state_spec)
        sharded_chunk = sharding.map_over_shards(
            self._decode_chunk, mesh, chunk_specs, (state_spec, rows)
        )

        def init_state() -> SamplerState:
            return sharded_init(jnp.arange(self.shards, dtype=jnp.int32))

        whole = replicated(mesh)  # every process counts all slots, and grades its own
        chunk_shardings = state_sharding, ChunkOutputs(whole, whole, whole, tokens=sharded_by_row)
        self.init_state = Program(jax.jit(init_state, out_shardings=state_sharding))
        self.decode_chunk = Program(
            jax.jit(sharded_chunk, donate_argnums=3, out_shardings=chunk_shardings)
        )
        self.extract_batch = Program(jax.jit(self._extract_batch, out_shardings=replicated(mesh)))

    @property
    def state_layout(self) -> int:
        """Equal where a worker of these programs can go on with what another has saved; it is a
        checksum."""
        ring = self.ring_shapes
        # not the grid, which may grow
        sizes = replace(ring, cells=()), ring.B_cap, ring.Q_cap, ring.prefix_entries
        shapes = jax.tree.map(
            lambda x: (x.shape, str(x.dtype)), jax.eval_shape(self.init_state.jitted)
        )
        # A state without recorded experts is as it was before there were any.
        described = str(shapes).replace(", table_experts=None, group_experts=None", "")
        return crc32(f"{sizes} {described}".encode())

    def batch_shapes(self) -> Rollouts | RoutedRollouts:
        """The shapes of a batch's rollouts as `extract_batch` returns them."""
        state = jax.eval_shape(self.init_state.jitted)
        return jax.eval_shape(self.extract_batch.jitted, state.outputs, 0)

    def compile(self, params: Params) -> None:
        """Compiles all programs, from shapes and those of the parameters."""
        scalar = shape_on(replicated(self.mesh))
        changed = shape_on(replicated(self.mesh), (), "bool")
        by_row, ring_shapes = self.sharded_by_row, self.ring_shapes
        shard_problems = problem_shapes(
            ring_shapes, self.mesh, ring_shapes.problem_rows, self.answer_length
        )
        problems = jax.tree.map(lambda x: shape_on(by_row, (self.shards, *x.shape)), shard_problems)
        ring = ProblemRing(problems, keys=shape_on(by_row, (*problems.ids.shape, 2), "uint32"))
        weights = self.prepare_weights.compile(
            sharding.shapes_with_shardings(params, self.param_shardings)
        )
        state = self.init_state.compile()
        progress = SamplerProgress(scalar, scalar, scalar, weights_changed=changed)
        state, _ = self.decode_chunk.compile(weights, ring, progress, state)
        self.extract_batch.compile(state.outputs, scalar)

    def _decode_chunk(
        self,
        weights: SamplerWeights,
        ring: ProblemRing,
        progress: SamplerProgress,
        state: SamplerState,
    ) -> tuple[SamplerState, ChunkOutputs]:
        problems, keys = jax.tree.map(lambda x: x[0], ring)
        ring_groups, n = progress.groups_per_batch * self.ring_batches, progress.n
        shard_slice = Layout(progress.group_limit, n, shards=1).shard_slice(jnp.int32(0))
        ring_rows, key = ring_groups * n, jax.random.wrap_key_data(keys)
        batch = SamplingBatch(problems, shard_slice, n, key, ring_groups, ring_rows)
        state = stream.squeeze_shard_axis(state)
        prefill_batch, queue = self.ring_shapes.prefill_batch, state.queue
        # Prompts that were prefilled with old weights, and whose responses have not begun, are
        # prefilled again.
        next_block = (
            queue.next_item
            // work_items(self.ring_shapes, batch).per_problem
            // prefill_batch
            * prefill_batch
        )
        still_valid = jnp.minimum(queue.num_prefilled, next_block)
        num_prefilled = jnp.where(progress.weights_changed, still_valid, queue.num_prefilled)
        state = state._replace(queue=queue._replace(num_prefilled=num_prefilled))
        state, finished_rows = self.engine.decode_chunk(weights, batch, state)
        slots = state.slots
        slot_rows = jnp.where(finished_rows >= 0, finished_rows, slots.row)
        outputs = ChunkOutputs(finished_rows, slot_rows, slots.t, slots.tokens)
        return stream.add_shard_axis(state), jax.tree.map(lambda x: x[None], outputs)

    def _extract_batch(
        self, ring_rollouts: tuple[Array, ...], first_row: Array
    ) -> Rollouts | RoutedRollouts:
        """A batch's rows of the ring, from `first_row` on: [S, rows_per_shard, ...]."""
        batch_rows = tuple(
            lax.dynamic_slice_in_dim(x, first_row, self.rows_per_shard, 1) for x in ring_rollouts
        )
        return self.engine.to_rollouts(batch_rows)
