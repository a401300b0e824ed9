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

    def resolve(x: Any) -> Any:
        return _anchored_value(x.anchor, x.value) if is_anchor(x) else x

    return jax.tree.map(resolve, tree, is_leaf=is_anchor)


@jax.custom_vjp
def _anchored_value(anchor: Array, value: Array) -> Array:
    return value


def _anchored_value_forward(anchor: Array, value: Array) -> tuple[Array, None]:
    return value, None


def _anchored_value_backward(_: None, d: Array) -> tuple[Array, None]:
    """The gradient of the anchor, in float32, and none of the value."""
    return d.astype(jnp.float32), None


_anchored_value.defvjp(_anchored_value_forward, _anchored_value_backward)


def all_gather_weight(
    w: Float[Array, "*w"], axis: int, width: int, logical_axes: tuple[str, ...] | None = None
) -> Float[Array, "*_"]:
    """Return the whole of a weight, from it or from a device's part of it.

    `axis`: the one that fsdp splits; `width`: its size when whole, by which a part is known.
    `logical_axes`: names of all axes, of a weight that has more than a matrix, such as ("expert",
    "embed", "mlp")."""
    if w.shape[axis] == width:
        return w
    return _all_gather_weight(w, axis, logical_axes)


def matmul(
    x: Float[Array, "r i"], w: Float[Array, "_ _"], outputs: int | None = None
) -> Float[Array, "r _"]:
    """Return x @ w, of the whole w or of a device's part of it.

    Which it is, its shape tells: a part has fewer rows than x has columns, or fewer columns than
    `outputs`, the number of columns of the whole; None: columns are whole."""
    if w.shape[0] < x.shape[1]:
        return _matmul(x, w, 0)
    if outputs is not None and w.shape[1] != outputs:
        return _matmul(x, w, 1)
    return x @ w


def embedding_lookup(
    table: Float[Array, "V _"], tokens: Int[Array, "b t"], width: int
) -> Float[Array, "b t _"]:
    """Return table[tokens], of a whole table or of a device's part of it.

    `width`: of the whole, D; a part is [V D/F], where F devices are on fsdp. The rows that come
    back are whole."""
    if table.shape[1] == width:
        return table[tokens]
    return _embedding_lookup(table, tokens)


def all_gather_params(params: Any, specs: Any, dtype: Any) -> Any:
    """Gather all parameters at once from shards, cast to `dtype` first, so that less is moved.

    `specs`: the PartitionSpec of each parameter, in the parameters' tree."""

    def gather_one(w: Array, spec: PartitionSpec) -> Array:
        if PARAM_AXIS not in spec:
            return w
        other_axes = PartitionSpec(*(None if name == PARAM_AXIS else name for name in spec))
        return _gather(w.astype(dtype), spec.index(PARAM_AXIS), other_axes)

    return jax.tree.map(gather_one, params, specs)


def _with_other_axes_manual(
    collective: Callable[[Array], Array], spec: PartitionSpec
) -> Callable[[Array], Array]:
    """Wrap a collective over fsdp so that it works on each device's part along other mesh axes.

    `spec`: those axes. XLA would first gather the array over them."""
    manual_axes = set(mesh_axes_of(spec))
    if not manual_axes:
        return collective
    return shard_map(
        collective, in_specs=spec, out_specs=spec, axis_names=manual_axes, check_vma=False
    )


def _other_axes_spec(
    shape: tuple[int, ...], axis: int, logical_axes: tuple[str, ...] | None = None
) -> PartitionSpec:
    """Return the sharding of an array along all axes but `axis`.

    `logical_axes`: None of a matrix, whose other axis is sharded alike, be it heads, MLP or
    vocabulary: "mlp" stands for all."""
    names = logical_axes or ("mlp",) * len(shape)
    other_names = [None if i == axis else name for i, name in enumerate(names)]
    return partition_spec(other_names, shape, jax.sharding.get_abstract_mesh())


# ------------------------------------------------------------------ collectives over fsdp


def _gather(w: Array, axis: int, other_axes: PartitionSpec) -> Array:
    gather = partial(lax.all_gather, axis_name=PARAM_AXIS, axis=axis, tiled=True)
    return _with_other_axes_manual(gather, other_axes)(w)


def _gather_shards(w: Array, axis: int, logical_axes: tuple[str, ...] | None = None) -> Array:
    """The whole weight, of parts along `axis`."""
    return _gather(w, axis, _other_axes_spec(w.shape, axis, logical_axes))


def _reduce_scatter(d: Array, axis: int, logical_axes: tuple[str, ...] | None = None) -> Array:
    """A device's part, along `axis`, of the sum of all devices' gradients of a whole weight."""
    reduce = partial(lax.psum_scatter, axis_name=PARAM_AXIS, scatter_dimension=axis, tiled=True)
    return _with_other_axes_manual(reduce, _other_axes_spec(d.shape, axis, logical_axes))(d)


# ------------------------------------------------------------------ with gradients
#
# What a gradient needs of a weight is gathered once more, and not kept: no device ever has room for
# all whole weights.


_all_gather_weight = jax.custom_vjp(_gather_shards, nondiff_argnums=(1, 2))


def _all_gather_weight_forward(
    w: Array, axis: int, logical_axes: tuple[str, ...] | None
) -> tuple[Array, None]:
    return _gather_shards(w, axis, logical_axes), None


def _all_gather_weight_backward(
    axis: int, logical_axes: tuple[str, ...] | None, _: None, d: Array
) -> tuple[Array]:
    return (_reduce_scatter(d, axis, logical_axes),)


_all_gather_weight.defvjp(_all_gather_weight_forward, _all_gather_weight_backward)


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
    """Look up rows of which each of F devices has a part, table [V D/F], for tokens [b t].

    Tokens go to every device, and the parts of each row come back, so that no device holds the
    whole table."""
    all_tokens = lax.all_gather(tokens, PARAM_AXIS)  # [F b t]
    parts = table[all_tokens]  # [F b t D/F], this device's part of every device's rows
    rows = lax.all_to_all(parts, PARAM_AXIS, split_axis=0, concat_axis=3, tiled=True)  # [1 b t D]
    return rows[0]


def _embedding_lookup_forward(table: Array, tokens: Array) -> tuple[Array, tuple[Array, Array]]:
    return _embedding_lookup(table, tokens), (table, tokens)


def _embedding_lookup_backward(saved: tuple[Array, Array], d: Array) -> tuple[Array, None]:
    """The way back: each device adds up its part of the gradients [b t D] of all devices' rows."""
    table, tokens = saved
    all_tokens = lax.all_gather(tokens, PARAM_AXIS)
    d_parts = lax.all_to_all(d[None], PARAM_AXIS, split_axis=3, concat_axis=0, tiled=True)
    d_table = jnp.zeros(table.shape, jnp.float32).at[all_tokens].add(d_parts.astype(jnp.float32))
    return d_table.astype(table.dtype), None


_embedding_lookup.defvjp(_embedding_lookup_forward, _embedding_lookup_backward)
