"""The compiled programs of a pipeline's sampler (rl/async_rl/rollout_worker.py): rollouts that never end, in buffers
that are rings.

A shard of the sampler's mesh has places for k + 1 batches: batch b has the groups and rows of place b modulo k + 1.
Within a place its rollouts lie as in any batch, shard s with the contiguous block s; whole groups are dealt to shards,
so that B_p divides by them.
"""

import math
from collections.abc import Sequence
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
from isojax.core.errors import InputError
from isojax.distributed.sharding import ROLLOUT_AXES, replicated, shard_count
from isojax.models.transformer import Decoder, Params
from isojax.sampling.batch import ProblemArrays, Rollouts, SamplerShapes, make_sampler_shapes, make_shard_slice
from isojax.sampling.engine import RingSizes, SamplerState, SamplingBatch, build_engine
from isojax.sampling.stream import (
    add_shard_axis,
    build_prepare_weights,
    sampler_state_shardings,
    sampler_state_specs,
    squeeze_shard_axis,
)
from isojax.tasks.stop_strings import StopConditions


@dataclass(frozen=True)
class SamplerSpec:
    """What a sampler's programs are made of, wherever they run: k, the policy, the trainer's geometry, every (B_p, n)
    of the sweep, and how rollouts are drawn and end."""

    max_staleness: int
    decoder: Decoder
    geometry: SamplerShapes
    pairs: tuple[tuple[int, int], ...]
    sampling: SamplingConfig
    stops: StopConditions

    def rows_per_shard(self, shards: int) -> int:
        """Rows that a batch may have on one of the sampler's shards."""
        return -(-self.geometry.B_cap // shards)


class SamplerInputs(NamedTuple):
    """What the sampler reads: weights as `Engine.visit` takes them; by shard, the problems in the ring and the data of
    their keys; how many groups a shard may begin, how many a batch gives it, and n; whether the weights are new since
    the last visit."""

    stacked_params: Params
    weights: Params
    problems: ProblemArrays
    keys: Any
    group_limit: Any
    groups_per_batch: Any
    n: Any
    weights_changed: Any


class ChunkOutputs(NamedTuple):
    """A visit's slots, [S R ...]: rows that finished (-1: none), rows that slots were at, response tokens so far, and
    these tokens.
    """

    finished_rows: Any
    slot_rows: Any
    lengths: Any
    tokens: Any


class SamplerPrograms:
    """The compiled programs of a sweep's samplers on one mesh: `begin` makes their state, `prepare` weights of
    parameters, `visit` goes on, and `cut` takes a batch's rows out."""

    def __init__(self, spec: SamplerSpec, mesh: Mesh):
        self.spec, self.mesh, self.shards = spec, mesh, shard_count(mesh)
        geometry, ring_batches = spec.geometry, spec.max_staleness + 1
        prefill_batch = math.gcd(
            geometry.prefill_batch, *(B_p // self.shards for B_p, _ in spec.pairs)
        )  # so that a block of prompts ends with a batch
        lengths = geometry.prompt_length, geometry.response_length
        ring_pairs = [(B_p * ring_batches, n) for B_p, n in spec.pairs]
        self.ring_geometry = make_sampler_shapes(
            ring_pairs,
            self.shards,
            geometry.slots,
            geometry.microbatch,
            *lengths,
            prefill_batch,
            geometry.slots_per_prefix,
        )
        self.engine = build_engine(
            spec.decoder, self.ring_geometry, mesh, spec.sampling, spec.stops, geometry.transpose_weights
        )
        self.sharded_by_row = NamedSharding(mesh, P(ROLLOUT_AXES))
        state_sharding = sampler_state_shardings(self.engine, mesh)
        self.param_shardings = spec.decoder.shardings(mesh)
        self.prepare_weights = build_prepare_weights(self.engine, mesh)
        sharded = partial(shard_map, mesh=mesh, axis_names=set(ROLLOUT_AXES), check_vma=False)
        rows = P(ROLLOUT_AXES)
        input_specs = SamplerInputs(P(), P(), rows, rows, P(), P(), P(), P())  # pyright: ignore[reportArgumentType]  # specs in the places of arrays
        state_spec = sampler_state_specs(self.engine)
        self.init_state = jax.jit(
            sharded(self._init_state, in_specs=rows, out_specs=state_spec), out_shardings=state_sharding
        )
        sharded_chunk = sharded(self._decode_chunk, in_specs=(input_specs, state_spec), out_specs=(state_spec, rows))
        self.decode_chunk = jax.jit(
            sharded_chunk, donate_argnums=1, out_shardings=(state_sharding, self.sharded_by_row)
        )
        self.extract_batch = jax.jit(self._extract_batch, out_shardings=replicated(mesh))

    def _ring_batch(self, inputs: SamplerInputs) -> SamplingBatch:
        """A shard's view of the ring."""
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
        prefill_batch, queue = self.ring_geometry.prefill_batch, state.queue
        first_waiting = (
            queue.next_item // self.engine.work_items(batch)[1] // prefill_batch * prefill_batch
        )  # the block of the next prompt to begin
        filled = jnp.where(
            inputs.weights_changed, jnp.minimum(queue.num_prefilled, first_waiting), queue.num_prefilled
        )  # what old weights read ahead is read anew
        state, finished_rows = self.engine.decode_chunk(
            inputs.stacked_params, inputs.weights, batch, state._replace(queue=queue._replace(num_prefilled=filled))
        )
        slots = state.slots
        outputs = ChunkOutputs(
            finished_rows, jnp.where(finished_rows >= 0, finished_rows, slots.row), slots.t, slots.tokens
        )
        return add_shard_axis(state), jax.tree.map(lambda x: x[None], outputs)

    def _extract_batch(self, ring_rollouts: tuple[Array, ...], first_row: Array) -> Rollouts:
        """A batch's rows of the ring, from `first` on: [S, rows a batch may have, ...]."""
        rows_per_shard = self.spec.rows_per_shard(self.shards)
        tokens, logps, nucleus_mass, ended, lengths, *closed = (
            lax.dynamic_slice_in_dim(x, first_row, rows_per_shard, 1) for x in ring_rollouts
        )
        return Rollouts(tokens, logps, self.engine.policy_mask(lengths, *closed), nucleus_mass, ended, lengths)


def check_divisible_batches(pairs: Sequence[tuple[int, int]], shards: int) -> None:
    """InputError where a batch's problems cannot be dealt to the sampler's shards."""
    if uneven_B_p := next((B_p for B_p, _ in pairs if B_p % shards), None):
        raise InputError(
            f"cell.rl.max_staleness: sweep.B_p = {uneven_B_p} is no multiple of the {shards} shards (data x fsdp) of the mesh that samples; a pipeline "
            "deals whole groups to shards. Change B_p or the mesh."
        )
