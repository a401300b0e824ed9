"""The sampler's state between two chunks: its shapes over all shards, and how it is sharded."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from isojax.distributed.sharding import ROLLOUT_AXES, partition_spec
from isojax.models.decode import POSITION_AXES, KVCache
from isojax.sampling.batch import ProblemArrays, make_shard_slice
from isojax.sampling.engine import Engine, SamplerState, SamplingBatch


def squeeze_shard_axis(state: SamplerState) -> SamplerState:
    """Inside a shard_map: one shard's state, out of the state of all shards."""
    return _map_except_caches(lambda x: x[0], state)


def add_shard_axis(state: SamplerState) -> SamplerState:
    """The inverse of `squeeze_shard_axis`."""
    return _map_except_caches(lambda x: x[None], state)


def _map_except_caches(transform: Callable[[Array], Array], state: SamplerState) -> SamplerState:
    return jax.tree.map(transform, state._replace(cache=(), prefix_table=()))._replace(
        cache=state.cache, prefix_table=state.prefix_table
    )


def _cache_row_axis(engine: Engine) -> int:
    """The axis of slots, prefix groups or table entries in each array of a cache: [R K ...], or [L R K ...]."""
    return 0 if engine.decoding.unrolled_layers else 1


def sampler_state_specs(engine: Engine) -> Any:
    """How a shard_map over the rollout axes splits the state: see `sampler_state_shapes`."""
    shard_spec: Any = P(ROLLOUT_AXES)
    cache_spec: Any = P(*[None] * _cache_row_axis(engine), ROLLOUT_AXES)
    return SamplerState(
        outputs=shard_spec,
        slots=shard_spec,
        cache=cache_spec,
        prefix_table=cache_spec,
        last_hidden=shard_spec,
        queue=shard_spec,
    )


def sampler_state_shapes(engine: Engine) -> Any:
    """The shapes of the state between two chunks: a leading axis of shards; but caches and prefix table have the rows
    of all shards on one axis.

    With an axis of shards in the caches, XLA copied the caches of models with one head per device in every chunk.
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
    """The shardings of the state between two chunks: shards (or their rows) over the rollout axes; heads of caches and
    prefix table over tensor; positions of prompts over sequence, where they are split."""
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
