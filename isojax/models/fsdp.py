"""Weights that the mesh axis `fsdp` splits, as a decoder uses them inside a shard_map.

A shard is gathered where the weight is used, and again for its gradient, which is reduce-scattered
in the weight's own precision: half of the bytes where weights are bfloat16. What is added up over
microbatches is float32.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from isojax.distributed.sharding import PARAM_AXIS, mesh_axes_of, partition_spec


class GradAnchor(NamedTuple):
    """A weight in any precision, whose gradient is taken at its anchor: a float32 array of its
    shape, never read."""

    anchor: Array
    value: Array


def resolve_anchors(tree: Any) -> Any:
    """A tree with the value of each `GradAnchor` in its place."""

    def is_anchor(x: Any) -> bool:
        return isinstance(x, GradAnchor)

    return jax.tree.map(
        lambda x: _anchored_value(*x) if is_anchor(x) else x, tree, is_leaf=is_anchor
    )


@jax.custom_vjp
def _anchored_value(anchor: Array, array: Array) -> Array:
    return array


_anchored_value.defvjp(lambda _, array: (array, None), lambda _, d: (d.astype(jnp.float32), None))


def all_gather_weight(
    w: Float[Array, "*w"], axis: int, width: int, logical_axes: tuple[str, ...] | None = None
) -> Float[Array, "*_"]:
    """A weight that has `width` entries along `axis`, or its part, as the weight. `logical_axes`:
    of one that has more axes than a matrix."""
    if w.shape[axis] == width:
        return w
    return _all_gather_weight(w, axis, logical_axes)


def matmul(
    x: Float[Array, "r i"], w: Float[Array, "_ _"], outputs: int | None = None
) -> Float[Array, "r _"]:
    """x @ w; w or a part of it, which has fewer rows than x columns, or fewer columns than
    `outputs`."""
    if w.shape[0] < x.shape[1]:
        return _matmul(x, w, 0)
    if outputs is not None and w.shape[1] != outputs:
        return _matmul(x, w, 1)
    return x @ w


def embedding_lookup(
    table: Float[Array, "V _"], tokens: Int[Array, "b t"], width: int
) -> Float[Array, "b t _"]:
    """table[tokens]; a table of this width or the part [V D/F] of it."""
    if table.shape[1] == width:
        return table[tokens]
    return _embedding_lookup(table, tokens)


def all_gather_params(params: Any, specs: Any, dtype: Any) -> Any:
    """All parameters gathered at once from shards by these specs, which are cast first, so that
    less is moved."""

    def gather_one(w: Array, spec: PartitionSpec) -> Array:
        if PARAM_AXIS not in spec:
            return w
        other_axes = PartitionSpec(*(None if name == PARAM_AXIS else name for name in spec))
        return _gather(w.astype(dtype), spec.index(PARAM_AXIS), other_axes)

    return jax.tree.map(gather_one, params, specs)


def _with_other_axes_manual(
    collective: Callable[[Array], Array], spec: PartitionSpec
) -> Callable[[Array], Array]:
    """A collective over fsdp of each device's own shard by `spec`: XLA would first gather it over
    other axes."""
    manual_axes = set(mesh_axes_of(spec))
    if not manual_axes:
        return collective
    return shard_map(
        collective, in_specs=spec, out_specs=spec, axis_names=manual_axes, check_vma=False
    )


def _other_axes_spec(
    shape: tuple[int, ...], axis: int, logical_axes: tuple[str, ...] | None = None
) -> PartitionSpec:
    """The sharding of an array along its other axes; a matrix has one, be it heads, MLP or
    vocabulary."""
    names = logical_axes or ("mlp",) * len(shape)
    other_names = [None if i == axis else name for i, name in enumerate(names)]
    return partition_spec(other_names, shape, jax.sharding.get_abstract_mesh())


def _gather(w: Array, axis: int, other_axes: PartitionSpec) -> Array:
    gather = partial(lax.all_gather, axis_name=PARAM_AXIS, axis=axis, tiled=True)
    return _with_other_axes_manual(gather, other_axes)(w)


def _gather_shards(w: Array, axis: int, logical_axes: tuple[str, ...] | None = None) -> Array:
    return _gather(w, axis, _other_axes_spec(w.shape, axis, logical_axes))


def _reduce_scatter(d: Array, axis: int, logical_axes: tuple[str, ...] | None = None) -> Array:
    reduce = partial(lax.psum_scatter, axis_name=PARAM_AXIS, scatter_dimension=axis, tiled=True)
    return _with_other_axes_manual(reduce, _other_axes_spec(d.shape, axis, logical_axes))(d)


_all_gather_weight = jax.custom_vjp(_gather_shards, nondiff_argnums=(1, 2))
_all_gather_weight.defvjp(
    lambda w, axis, names: (_gather_shards(w, axis, names), None),
    lambda axis, names, _, d: (_reduce_scatter(d, axis, names),),
)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _matmul(x: Array, w: Array, axis: int) -> Array:
    return x @ _gather_shards(w, axis)


def _matmul_forward(x: Array, w: Array, axis: int) -> tuple[Array, tuple[Array, Array]]:
    # in full, so that a checkpoint sees a product, and keeps it
    return x @ _gather_shards(w, axis), (x, w)


def _matmul_backward(axis: int, saved: tuple[Array, Array], d: Array) -> tuple[Array, Array]:
    x, w = saved
    dx = d @ _gather_shards(w, axis).T
    dw = _reduce_scatter(jnp.einsum("ri,ro->io", x, d), axis)
    return dx, dw


_matmul.defvjp(_matmul_forward, _matmul_backward)


@jax.custom_vjp
def _embedding_lookup(table: Array, tokens: Array) -> Array:
    """Tokens go to every shard, and the parts of each row come back, so that no shard holds the
    table."""
    parts_of_all_rows = table[lax.all_gather(tokens, PARAM_AXIS)]
    return lax.all_to_all(parts_of_all_rows, PARAM_AXIS, split_axis=0, concat_axis=3, tiled=True)[0]


def _embedding_lookup_backward(saved: tuple[Array, Array], d: Array) -> tuple[Array, None]:
    table, tokens = saved
    all_tokens = lax.all_gather(tokens, PARAM_AXIS)
    d_parts = lax.all_to_all(d[None], PARAM_AXIS, split_axis=3, concat_axis=0, tiled=True)
    d_table = jnp.zeros(table.shape, jnp.float32).at[all_tokens].add(d_parts.astype(jnp.float32))
    return d_table.astype(table.dtype), None


_embedding_lookup.defvjp(
    lambda table, tokens: (_embedding_lookup(table, tokens), (table, tokens)),
    _embedding_lookup_backward,
)
