"""The sampler's state between two chunks: its shapes over all shards, and how it is sharded."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from isojax.distributed.sharding import ROLLOUT_AXES, partition_spec
from isojax.models.decode import POSITION_AXES, KVCache
from isojax.sampling.engine import Engine
from isojax.sampling.sampler_state import SamplerState


def squeeze_shard_axis(state: SamplerState) -> SamplerState:
    """Inside a shard_map: one shard's state, out of the state of all shards."""
    return _map_state(state, lambda x: x[0], lambda x: x)


def add_shard_axis(state: SamplerState) -> SamplerState:
    """The inverse of `squeeze_shard_axis`."""
    return _map_state(state, lambda x: x[None], lambda x: x)


def _map_state(state: SamplerState, of_slots: Callable[[Any], Any], of_caches: Callable[[Any], Any]) -> SamplerState:
    """The state with one function applied to the arrays of caches and prefix table, and another to all others."""
    caches = jax.tree.map(of_caches, (state.cache, state.prefix_table))
    others = jax.tree.map(of_slots, state._replace(cache=(), prefix_table=()))
    return others._replace(cache=caches[0], prefix_table=caches[1])


def _cache_row_axis(engine: Engine) -> int:
    """The axis of slots, prefix groups or table entries in each array of a cache: [R K ...], or [L R K ...]."""
    return 0 if engine.decoding.unrolled_layers else 1


def sampler_state_specs(engine: Engine) -> Any:
    """How a shard_map over the rollout axes splits the state: see `sampler_state_shapes`."""
    shards: Any = P(ROLLOUT_AXES)
    cache_rows: Any = P(*[None] * _cache_row_axis(engine), ROLLOUT_AXES)
    others = SamplerState(*[shards] * len(SamplerState._fields))
    return others._replace(cache=cache_rows, prefix_table=cache_rows)


def sampler_state_shapes(engine: Engine) -> Any:
    """The shapes of the state between two chunks: a leading axis of shards; but caches and prefix table have the rows
    of all shards on one axis.

    With an axis of shards in the caches, XLA copied the caches of models with one head per device in every chunk.
    """
    shards, axis = engine.shapes.shards, _cache_row_axis(engine)
    return _map_state(
        jax.eval_shape(engine.init_state, jax.ShapeDtypeStruct((), "int32")),
        lambda x: jax.ShapeDtypeStruct((shards, *x.shape), x.dtype),
        lambda x: jax.ShapeDtypeStruct((*x.shape[:axis], shards * x.shape[axis], *x.shape[axis + 1 :]), x.dtype),
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
            return tuple(
                array_sharding(x, {axis: "shard", axis + 1: "kv_heads", x.ndim + position_dim: position_axis})
                for x, position_dim in zip(arrays, POSITION_AXES, strict=False)
            )

        return jax.tree.map(layer_shardings, entries, is_leaf=lambda x: isinstance(x, tuple))

    cache = KVCache(cache_shardings(shapes.cache.slot_kv, None), cache_shardings(shapes.cache.prefix_kv, "position"))
    others = _map_state(shapes, partial(array_sharding, logical_axes={0: "shard"}), lambda x: x)
    return others._replace(cache=cache, prefix_table=cache_shardings(shapes.prefix_table, "position"))
