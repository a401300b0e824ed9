"""The sampler as the host drives it, one visit to the queue after another: what has finished is told while the rest
decodes.

The rollouts are those of `build_sampler`, bit for bit. Its loop over visits is here the host's:

    begin    weights cast and gathered once, problems put in place, nothing sampled yet
    advance  one visit: at most CHUNK tokens a slot; the state is donated, and stays where it is: cache and slots on
    their shard's
             devices, keys and values split over tensor by their heads, those of prompts over sequence by their
             positions
    finish   the rollouts

The host asks for the next visit before it looks at what the last one finished, so that the devices never wait for it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, shard_map
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, PRNGKeyArray

from isojax.core.config import SamplingConfig
from isojax.distributed import multiprocess
from isojax.distributed.sharding import (
    ROLLOUT_AXES,
    partition_spec,
    replicate_over_rollout_axes,
    replicated,
    shard_count,
)
from isojax.models.decode import POSITION_AXES, KVCache
from isojax.models.transformer import Decoder, Params
from isojax.sampling.batch import ProblemArrays, Rollouts, SamplerShapes, make_shard_slice, rollout_index
from isojax.sampling.engine import Engine, SamplerState, SamplingBatch, build_engine
from isojax.tasks.stop_strings import StopConditions

OnFinished = Callable[[np.ndarray, list[np.ndarray]], None]


class StreamInputs(NamedTuple):
    """What stays as it is through a batch, on the devices: parameters for prompts (stacked) and for `step`, the
    problems, B_p and n, and the data of the key."""

    stacked_params: Params
    weights: Params
    problems: ProblemArrays
    B_p: Array
    n: Array
    key: Array


class FinishedSlots(NamedTuple):
    """What a visit leaves in the slots.

    Attributes:
        rows: i32[S R], the row of the rollout that each slot has finished; -1 where it has finished none.
        tokens: i32[S R T].
        lengths: i32[S R], how many of them are there.
        working: bool[S], all alike: whether any shard has anything left to do.
    """

    rows: Array
    tokens: Array
    lengths: Array
    has_work: Array


@dataclass(frozen=True)
class Stream:
    """A batch's sampling in steps that the host takes. All three are compiled for a sweep, as B_p, n and the key are
    traced.

    begin(params, problems, B_p, n, key) -> given, state; advance(given, state) -> state, what has finished, with the
    state donated; finish(state) -> rollouts.
    """

    begin: Callable[[Params, ProblemArrays, Any, Any, PRNGKeyArray], tuple[StreamInputs, SamplerState]]
    advance: Callable[[StreamInputs, SamplerState], tuple[SamplerState, FinishedSlots]]
    finish: Callable[[SamplerState], Rollouts]

    def run(
        self, params: Params, problems: ProblemArrays, B_p: int, n: int, key: PRNGKeyArray, on_finished: OnFinished
    ) -> Rollouts:
        """All rollouts; `told(rollouts i32[k], their response tokens)` after each visit, while the next one runs."""
        inputs, state = self.begin(params, problems, np.int32(B_p), np.int32(n), key)
        state, finished = self.advance(inputs, state)
        has_work = True
        while has_work:
            state, next_finished = self.advance(inputs, state)  # the last one finds nothing to do
            multiprocess.start_host_copy(next_finished)
            shard_ids, rows = multiprocess.local_shard_rows(finished.rows)
            (_, tokens), (_, lengths) = (
                multiprocess.local_shard_rows(finished.tokens),
                multiprocess.local_shard_rows(finished.lengths),
            )
            rollout_ids = rollout_index(rows, B_p * n, shard_ids, finished.rows.shape[0])
            finished_slots = np.nonzero(rows >= 0)
            on_finished(
                rollout_ids[finished_slots],
                [row[:length] for row, length in zip(tokens[finished_slots], lengths[finished_slots], strict=True)],
            )
            finished, has_work = next_finished, bool(np.asarray(finished.has_work.addressable_shards[0].data).any())
        return self.finish(state)


def build_stream(
    decoder: Decoder, shapes: SamplerShapes, mesh: Mesh, sampling: SamplingConfig, stops: StopConditions
) -> Stream:
    """The Stream of these shapes on this mesh; its programs are compiled when they are first called."""
    assert shapes.shards == shard_count(mesh), (shapes.shards, mesh)
    engine = build_engine(decoder, shapes, mesh, sampling, stops)
    state_sharding, shard_sharding = sampler_state_shardings(engine, mesh), NamedSharding(mesh, P(ROLLOUT_AXES))
    start_shards, step_shards = _shard_programs(engine, mesh)

    def init_batch(
        problems: ProblemArrays, B_p: Array, n: Array, key: PRNGKeyArray
    ) -> tuple[tuple[Any, ...], SamplerState]:
        batch_inputs = (problems, B_p, n, jax.random.key_data(key))
        return batch_inputs, start_shards(*batch_inputs)

    prepare_weights = build_prepare_weights(engine, mesh)
    init_batch_jit = jax.jit(init_batch, out_shardings=(replicated(mesh), state_sharding))
    advance: Callable[..., tuple[SamplerState, FinishedSlots]] = jax.jit(
        step_shards, donate_argnums=1, out_shardings=(state_sharding, shard_sharding)
    )
    policy_mask_jit = jax.jit(engine.policy_mask, out_shardings=shard_sharding)

    def begin(
        params: Params, problems: ProblemArrays, B_p: Any, n: Any, key: PRNGKeyArray
    ) -> tuple[StreamInputs, SamplerState]:
        batch_inputs, state = init_batch_jit(problems, B_p, n, key)
        return StreamInputs(*prepare_weights(params), *batch_inputs), state

    def finish(state: SamplerState) -> Rollouts:
        tokens, logps, nucleus_mass, stopped, lengths, *thinking_ended = state.outputs
        return Rollouts(tokens, logps, policy_mask_jit(lengths, *thinking_ended), nucleus_mass, stopped, lengths)

    return Stream(begin, advance, finish)


def build_prepare_weights(engine: Engine, mesh: Mesh) -> Callable[[Params], tuple[Params, Params]]:
    """`prepare(params) -> (stacked, weights)` as `Engine.visit` takes them: cast, and whole along the axes that split
    rollouts.
    """
    decoder = engine.decoding.decoder
    param_shardings = decoder.shardings(mesh)
    gathered_shardings = jax.tree.map(replicate_over_rollout_axes, param_shardings)
    gather_params: Callable[[Params], Params] = jax.jit(
        decoder.cast_params, in_shardings=(param_shardings,), out_shardings=gathered_shardings
    )
    to_decode_weights: Callable[[Params], Params] = jax.jit(
        engine.decoding.prepare_weights, in_shardings=(gathered_shardings,)
    )
    already_prepared = (
        param_shardings == gathered_shardings and jnp.dtype(decoder.options.compute_dtype) == jnp.float32
    )  # nothing to gather or cast, so no copy is made

    def prepare_weights(params: Params) -> tuple[Params, Params]:
        stacked_params = params if already_prepared else gather_params(params)
        weights = to_decode_weights(stacked_params)
        return (stacked_params if engine.decoding.unrolled_layers else weights), weights

    return prepare_weights


def squeeze_shard_axis(state: SamplerState) -> SamplerState:
    """A shard's State out of that which lies between two visits, in a shard_map."""
    return _map_except_caches(lambda x: x[0], state)


def add_shard_axis(state: SamplerState) -> SamplerState:
    """The inverse of `own_part`."""
    return _map_except_caches(lambda x: x[None], state)


def _map_except_caches(transform: Callable[[Array], Array], state: SamplerState) -> SamplerState:
    return jax.tree.map(transform, state._replace(cache=(), prefix_table=()))._replace(
        cache=state.cache, prefix_table=state.prefix_table
    )


def _cache_row_axis(engine: Engine) -> int:
    """Of slots, lanes and a table's entries in each array of a cache: [R K ...], or [L R K ...]."""
    return 0 if engine.decoding.unrolled_layers else 1


def sampler_state_specs(engine: Engine) -> Any:
    """How a shard_map over ROWS takes the State that lies between two visits: see `state_shapes`."""
    shard_spec, cache_spec = P(ROLLOUT_AXES), P(*[None] * _cache_row_axis(engine), ROLLOUT_AXES)
    return SamplerState(
        outputs=shard_spec,
        slots=shard_spec,
        cache=cache_spec,
        prefix_table=cache_spec,
        last_hidden=shard_spec,
        queue=shard_spec,
    )  # pyright: ignore[reportArgumentType]  # in arrays' places


def sampler_state_shapes(engine: Engine) -> Any:
    """A State between two visits, of all shards: with a leading axis of them; but caches and table have the rows of all
    shards on one axis.

    An axis of length 1 that comes or goes there made XLA copy the caches of models with one head a device, at each
    visit.
    """
    shards, axis = engine.shapes.shards, _cache_row_axis(engine)
    no_problems = ProblemArrays(*[np.zeros(0, np.int32)] * len(ProblemArrays._fields))

    def init_shard(zero: Array) -> SamplerState:
        return engine.init_state(
            SamplingBatch(no_problems, make_shard_slice(zero, shards, zero, zero + 1), zero + 1, jax.random.key(0))
        )

    def all_shards_shape(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((*x.shape[:axis], shards * x.shape[axis], *x.shape[axis + 1 :]), x.dtype)

    shard_state = jax.eval_shape(init_shard, jax.ShapeDtypeStruct((), jnp.int32))
    state_without_caches = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((shards, *x.shape), x.dtype), shard_state._replace(cache=(), prefix_table=())
    )
    return state_without_caches._replace(
        cache=jax.tree.map(all_shards_shape, shard_state.cache),
        prefix_table=jax.tree.map(all_shards_shape, shard_state.prefix_table),
    )


def sampler_state_shardings(engine: Engine, mesh: Mesh) -> Any:
    """Where a State lies between two visits: shards (or their rows) over ROWS; heads of caches and table over tensor;
    positions of prompts that lie apart over sequence."""
    axis = _cache_row_axis(engine)
    shapes = sampler_state_shapes(engine)

    def array_sharding(x: jax.ShapeDtypeStruct, logical_axes: Mapping[int, str | None]) -> NamedSharding:
        return NamedSharding(mesh, partition_spec([logical_axes.get(i) for i in range(x.ndim)], x.shape, mesh))

    def cache_shardings(entries: Any, position_axis: str | None) -> Any:
        def layer_shardings(arrays: tuple[jax.ShapeDtypeStruct, ...]) -> tuple[NamedSharding, ...]:
            arrays_with_position_dim = zip(arrays, POSITION_AXES, strict=False)
            return tuple(
                array_sharding(x, {axis: "shard", axis + 1: "kv_heads", x.ndim + position_dim: position_axis})
                for x, position_dim in arrays_with_position_dim
            )

        return jax.tree.map(layer_shardings, entries, is_leaf=lambda x: isinstance(x, tuple))

    cache = KVCache(cache_shardings(shapes.cache.slot_kv, None), cache_shardings(shapes.cache.prefix_kv, "position"))
    state_without_caches = jax.tree.map(
        partial(array_sharding, logical_axes={0: "shard"}), shapes._replace(cache=(), prefix_table=())
    )
    return state_without_caches._replace(cache=cache, prefix_table=cache_shardings(shapes.prefix_table, "position"))


def _shard_programs(
    engine: Engine, mesh: Mesh
) -> tuple[Callable[..., SamplerState], Callable[[StreamInputs, SamplerState], tuple[SamplerState, FinishedSlots]]]:
    """`start(problems, B_p, n, key data) -> State` and `step(given, state) -> (State, Finished)`, over all shards, to
    be jitted.
    """
    shards = engine.shapes.shards

    def make_batch(shard: Array, problems: ProblemArrays, B_p: Array, n: Array, key: Array) -> SamplingBatch:
        return SamplingBatch(problems, make_shard_slice(shard[0], shards, B_p, n), n, jax.random.wrap_key_data(key))

    def start_shard(shard: Array, *batch_inputs: Any) -> SamplerState:
        return add_shard_axis(engine.init_state(make_batch(shard, *batch_inputs)))

    def step_shard(shard: Array, inputs: StreamInputs, state: SamplerState) -> tuple[SamplerState, FinishedSlots]:
        batch = make_batch(shard, inputs.problems, inputs.B_p, inputs.n, inputs.key)
        state, row = engine.decode_chunk(inputs.stacked_params, inputs.weights, batch, squeeze_shard_axis(state))
        has_work = engine.has_work(batch, state).astype(jnp.int32)
        has_work = (
            lax.psum(has_work, ROLLOUT_AXES) if engine.shapes.shards > 1 else has_work
        )  # with tensor alone split, XLA cannot compile the sum
        finished = FinishedSlots(row, state.slots.tokens, state.slots.t, has_work > 0)
        return add_shard_axis(state), jax.tree.map(lambda x: x[None], finished)

    shard_spec, over_shards = (
        P(ROLLOUT_AXES),
        partial(shard_map, mesh=mesh, axis_names=set(ROLLOUT_AXES), check_vma=False),
    )
    state_spec = sampler_state_specs(engine)
    sharded_start = over_shards(start_shard, in_specs=(shard_spec, P(), P(), P(), P()), out_specs=state_spec)
    sharded_step = over_shards(step_shard, in_specs=(shard_spec, P(), state_spec), out_specs=(state_spec, shard_spec))

    def start(*batch_inputs: Any) -> SamplerState:
        return sharded_start(jnp.arange(shards, dtype=jnp.int32), *batch_inputs)

    def step(inputs: StreamInputs, state: SamplerState) -> tuple[SamplerState, FinishedSlots]:
        return sharded_step(jnp.arange(shards, dtype=jnp.int32), inputs, state)

    return start, step
