"""The compiled programs of a rollout worker (rl/async_rl/rollout_worker.py): continuous sampling into ring buffers.

The buffers of a shard hold k + 1 batches; batch b is in part b mod (k + 1). Within that part its rollouts are laid out
as in any batch, with the contiguous block s on shard s. Whole groups are assigned to shards, so B_p must be a multiple
of the number of shards.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, shard_map
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from isojax.core.config import SamplingConfig
from isojax.distributed.program import Program, shape_on, shapes_with_shardings
from isojax.distributed.sharding import ROLLOUT_AXES, replicated, shard_count
from isojax.models.transformer import Decoder, Params
from isojax.sampling.batch import ProblemArrays, Rollouts, SamplerShapes, make_sampler_shapes, make_shard_slice
from isojax.sampling.engine import RingSizes, SamplerState, SamplingBatch, build_engine
from isojax.sampling.state_sharding import (
    add_shard_axis,
    sampler_state_shardings,
    sampler_state_specs,
    squeeze_shard_axis,
)
from isojax.sampling.stream import build_prepare_weights
from isojax.tasks.stop_strings import StopConditions


@dataclass(frozen=True)
class SamplerSpec:
    """What a worker's programs are built from, in whatever process they run.

    Attributes:
        max_staleness: k.
        decoder: the policy's.
        shapes: those of the trainer.
        pairs: every (B_p, n) of the sweep.
        answer_length: width of the answers in a batch's problems, 0 where the host verifies.
        sampling, stops: how rollouts are drawn, and what ends them.
    """

    max_staleness: int
    decoder: Decoder
    shapes: SamplerShapes
    pairs: tuple[tuple[int, int], ...]
    answer_length: int
    sampling: SamplingConfig
    stops: StopConditions

    def rows_per_shard(self, shards: int) -> int:
        """The most rollouts that a batch has on one of the sampler's shards."""
        return -(-self.shapes.B_cap // shards)


class SamplerInputs(NamedTuple):
    """What a chunk of decoding reads.

    Attributes:
        stacked_params, weights: the policy, as prefill and decoding read it.
        problems: those in the ring, by shard.
        keys: u32[S entries 2], the data of the PRNG key of each problem's batch.
        group_limit: i32[], how many groups a shard may begin, counted from the first batch.
        groups_per_batch: i32[], groups of a batch on one shard.
        n: i32[], rollouts per problem.
        weights_changed: bool[], whether the weights are newer than those of the chunk before.
    """

    stacked_params: Params
    weights: Params
    problems: ProblemArrays
    keys: Any
    group_limit: Any
    groups_per_batch: Any
    n: Any
    weights_changed: Any


class ChunkOutputs(NamedTuple):
    """The slots after a chunk, each [S R ...].

    Attributes:
        finished_rows: the buffer row of the rollout that finished, -1 if none did.
        slot_rows: the buffer row of the rollout that the slot has decoded.
        lengths: response tokens so far.
        tokens: the tokens.
    """

    finished_rows: Any
    slot_rows: Any
    lengths: Any
    tokens: Any


class SamplerPrograms:
    """The programs of a sweep's rollout workers on one mesh.

    init_state(shards i32[S]) -> state; prepare_weights(params) -> (stacked_params, weights);
    decode_chunk(inputs, state) -> (state, ChunkOutputs); extract_batch(state.outputs, first_row) -> Rollouts
    """

    def __init__(self, spec: SamplerSpec, mesh: Mesh):
        self.spec, self.mesh, self.shards = spec, mesh, shard_count(mesh)
        shapes, ring_batches = spec.shapes, spec.max_staleness + 1
        # It divides the groups that a batch has on a shard, so that no block of prompts spans two batches.
        prefill_batch = math.gcd(shapes.prefill_batch, *(B_p // self.shards for B_p, _ in spec.pairs))
        self.ring_shapes = make_sampler_shapes(
            [(B_p * ring_batches, n) for B_p, n in spec.pairs],
            self.shards,
            slots=shapes.slots,
            microbatch=shapes.microbatch,
            prompt_length=shapes.prompt_length,
            response_length=shapes.response_length,
            prefill_batch=prefill_batch,
            slots_per_prefix=shapes.slots_per_prefix,
        )
        self.engine = build_engine(
            spec.decoder, self.ring_shapes, mesh, spec.sampling, spec.stops, shapes.transpose_weights
        )
        self.sharded_by_row = NamedSharding(mesh, P(ROLLOUT_AXES))
        state_sharding = sampler_state_shardings(self.engine, mesh)
        self.param_shardings = spec.decoder.shardings(mesh)
        self.prepare_weights = build_prepare_weights(self.engine, mesh)
        sharded = partial(shard_map, mesh=mesh, axis_names=set(ROLLOUT_AXES), check_vma=False)
        rows: Any = P(ROLLOUT_AXES)
        whole: Any = P()
        input_specs = SamplerInputs(
            stacked_params=whole,
            weights=whole,
            problems=rows,
            keys=rows,
            group_limit=whole,
            groups_per_batch=whole,
            n=whole,
            weights_changed=whole,
        )
        state_spec = sampler_state_specs(self.engine)
        sharded_init = sharded(self._init_state, in_specs=rows, out_specs=state_spec)
        sharded_chunk = sharded(self._decode_chunk, in_specs=(input_specs, state_spec), out_specs=(state_spec, rows))
        chunk_shardings = state_sharding, self.sharded_by_row
        self.init_state = Program(jax.jit(sharded_init, out_shardings=state_sharding))
        self.decode_chunk = Program(jax.jit(sharded_chunk, donate_argnums=1, out_shardings=chunk_shardings))
        self.extract_batch = Program(jax.jit(self._extract_batch, out_shardings=replicated(mesh)))

    def compile(self) -> None:
        """Compiles all programs, from shapes alone."""
        scalar, params = shape_on(replicated(self.mesh)), self.spec.decoder.shapes()
        weights = self.prepare_weights.compile(shapes_with_shardings(params, self.param_shardings))
        entries = self.shards, self.ring_shapes.problem_rows
        problems = ProblemArrays(
            prompts=shape_on(self.sharded_by_row, (*entries, self.ring_shapes.prompt_length)),
            lengths=shape_on(self.sharded_by_row, entries),
            answers=shape_on(self.sharded_by_row, (*entries, self.spec.answer_length)),
            ids=shape_on(self.sharded_by_row, entries),
        )
        inputs = SamplerInputs(
            *weights,
            problems=problems,
            keys=shape_on(self.sharded_by_row, (*entries, 2), "uint32"),
            group_limit=scalar,
            groups_per_batch=scalar,
            n=scalar,
            weights_changed=shape_on(replicated(self.mesh), (), "bool"),
        )
        state = self.init_state.compile(shape_on(self.sharded_by_row, (self.shards,)))
        state, _ = self.decode_chunk.compile(inputs, state)
        self.extract_batch.compile(state.outputs, scalar)

    def _ring_batch(self, inputs: SamplerInputs) -> SamplingBatch:
        """The ring as one shard's sampler reads it."""
        zero = jnp.int32(0)
        shard_share = make_shard_slice(zero, 1, inputs.group_limit, inputs.n)
        ring_groups = inputs.groups_per_batch * (self.spec.max_staleness + 1)
        problems, keys = jax.tree.map(lambda x: x[0], (inputs.problems, inputs.keys))
        return SamplingBatch(
            problems,
            shard_share,
            inputs.n,
            jax.random.wrap_key_data(keys),
            RingSizes(ring_groups, ring_groups * inputs.n),
        )

    def _init_state(self, shard: Array) -> SamplerState:
        no_problems = ProblemArrays(*[np.zeros(0, np.int32)] * len(ProblemArrays._fields))
        one = jnp.int32(1)
        state = self.engine.init_state(
            SamplingBatch(no_problems, make_shard_slice(shard[0] * 0, 1, one * 0, one), one, jax.random.key(0))
        )
        return add_shard_axis(state)

    def _decode_chunk(self, inputs: SamplerInputs, state: SamplerState) -> tuple[SamplerState, ChunkOutputs]:
        batch, state = self._ring_batch(inputs), squeeze_shard_axis(state)
        prefill_batch, queue = self.ring_shapes.prefill_batch, state.queue
        # Prompts that were prefilled with old weights, and whose responses have not begun, are prefilled again.
        next_block = queue.next_item // self.engine.work_items(batch)[1] // prefill_batch * prefill_batch
        still_valid = jnp.minimum(queue.num_prefilled, next_block)
        num_prefilled = jnp.where(inputs.weights_changed, still_valid, queue.num_prefilled)
        state = state._replace(queue=queue._replace(num_prefilled=num_prefilled))
        state, finished_rows = self.engine.decode_chunk(inputs.stacked_params, inputs.weights, batch, state)
        slots = state.slots
        outputs = ChunkOutputs(
            finished_rows, jnp.where(finished_rows >= 0, finished_rows, slots.row), slots.t, slots.tokens
        )
        return add_shard_axis(state), jax.tree.map(lambda x: x[None], outputs)

    def _extract_batch(self, ring_rollouts: tuple[Array, ...], first_row: Array) -> Rollouts:
        """A batch's rows of the ring, from `first_row` on: [S, rows_per_shard, ...]."""
        rows_per_shard = self.spec.rows_per_shard(self.shards)
        tokens, logps, nucleus_mass, stopped, lengths, *thinking_ended = (
            lax.dynamic_slice_in_dim(x, first_row, rows_per_shard, 1) for x in ring_rollouts
        )
        mask = self.engine.policy_mask(lengths, *thinking_ended)
        return Rollouts(tokens, logps, mask, nucleus_mass, stopped, lengths)
