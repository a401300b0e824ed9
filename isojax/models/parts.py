"""Weights of which a shard holds a part: what a decoder does with them in a shard_map that gives each shard what `fsdp` left it.

A weight is a part where it is narrower than the model, along its axis `embed`. It is gathered where it is used, one weight at a time,
and again for its gradient: what is kept from forwards to backwards is the part. Gradients leave as parts too, added up over shards in
float32. A whole weight is used as it is, so that on a mesh without fsdp nothing here leaves a trace in a program.

    whole     the weight itself, for what is small or used last: norms, the unembedding
    product   rows times a weight
    product_of_few    the same of the sampler's few rows, on a CPU
    gathered  all of a model, for the sampler, which reads it at every token
    rows      rows of the embedding: tokens go to every part, and of each row its parts come back, so that no shard holds the table

And where the gradient of a weight is taken, in whichever precision that is used: `Anchored`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from isojax.sharding import PARTS, partition


class Anchored(NamedTuple):
    """An array whose gradient is that of its anchor: float32 of its shape, whose numbers are never read. So gradients of bfloat16 weights
    are added up in float32, also by references."""

    anchor: Array
    array: Array


def used(tree: Any) -> Any:
    """A tree with its `Anchored` arrays as arrays."""
    return jax.tree.map(lambda x: _used(*x) if isinstance(x, Anchored) else x, tree, is_leaf=lambda x: isinstance(x, Anchored))


@jax.custom_vjp
def _used(anchor: Array, array: Array) -> Array:
    return array


_used.defvjp(lambda _, array: (array, None), lambda _, d: (d.astype(jnp.float32), None))


def whole(w: Float[Array, "*w"], axis: int, width: int) -> Float[Array, "*_"]:
    """A weight that has `width` entries along `axis`, or its part, as the weight."""
    return w if w.shape[axis] == width else _whole(w, axis)


def product(x: Float[Array, "r i"], w: Float[Array, "_ _"], outputs: int | None = None) -> Float[Array, "r _"]:
    """x @ w; w or a part of it, which has fewer rows than x columns, or fewer columns than `outputs`."""
    if w.shape[0] < x.shape[1]:
        return _product(x, w, 0)
    return x @ w if outputs is None or w.shape[1] == outputs else _product(x, w, 1)


def product_of_few(x: Float[Array, "r i"], w: Float[Array, "i o"], outputs: int | None = None, dtype: Any = None) -> Float[Array, "r o"]:
    """x @ w of few rows, as XLA:CPU does it in the least time: as w.T @ x.T, w being the transpose of what is held [o i]; in x's precision,
    or as this dtype. `outputs` is `product`'s, for parts of weights, of which the sampler has none.

    Of few rows most of a product's time is the packing of w, and this way it is packed as it lies (docs/performance.md). Asked for
    as a product of w.T, between barriers, XLA turns neither the product round again, nor w back in front of a loop.
    """
    held = lax.optimization_barrier(w.T)
    return lax.optimization_barrier(jnp.einsum("oi,ri->or", held, x, preferred_element_type=dtype)).T


def rows(table: Float[Array, "V _"], tokens: Int[Array, "b t"], width: int) -> Float[Array, "b t _"]:
    """table[tokens]; a table of this width or the part [V D/F] of it."""
    return table[tokens] if table.shape[1] == width else _rows(table, tokens)


def gathered(params: Any, specs: Any, dtype: Any) -> Any:
    """Parameters that lie by these specs, all of them whole at once: what was in parts cast first, so that less is moved and held."""

    def one(w: Array, spec: PartitionSpec) -> Array:
        if PARTS not in spec:
            return w
        axis = spec.index(PARTS)
        rest = PartitionSpec(*(None if name == PARTS else name for name in spec))
        return _split(lambda w: lax.all_gather(w, PARTS, axis=axis, tiled=True), rest)(w.astype(dtype))

    return jax.tree.map(one, params, specs)


def _split(collective: Callable[[Array], Array], spec: PartitionSpec) -> Callable[[Array], Array]:
    """A collective over fsdp, on each device's own part by `spec` of what further axes of the mesh split: XLA by itself would first gather
    its operand over those."""
    axes = {name for name in spec if name is not None}
    return shard_map(collective, in_specs=spec, out_specs=spec, axis_names=axes, check_vma=False) if axes else collective


def _beside(shape: tuple[int, ...], axis: int) -> PartitionSpec:
    """How a matrix lies along its other axis, whichever of heads, MLP or vocabulary that counts; a vector has none."""
    return partition([None if i == axis else "mlp" for i in range(len(shape))], shape, jax.sharding.get_abstract_mesh())


def _gather(w: Array, axis: int) -> Array:
    return _split(lambda w: lax.all_gather(w, PARTS, axis=axis, tiled=True), _beside(w.shape, axis))(w)


def _scatter(d: Array, axis: int, dtype: Any) -> Array:
    """Of the shards' gradients of a weight, added up, each shard's part."""
    summed = _split(lambda d: lax.psum_scatter(d, PARTS, scatter_dimension=axis, tiled=True), _beside(d.shape, axis))
    return summed(d.astype(jnp.float32)).astype(dtype)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _whole(w: Array, axis: int) -> Array:
    return _gather(w, axis)


def _whole_forward(w: Array, axis: int) -> tuple[Array, None]:
    return _gather(w, axis), None


def _whole_backward(axis: int, _: None, d: Array) -> tuple[Array]:
    return (_scatter(d, axis, d.dtype),)


_whole.defvjp(_whole_forward, _whole_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _product(x: Array, w: Array, axis: int) -> Array:
    return x @ _gather(w, axis)


def _product_forward(x: Array, w: Array, axis: int) -> tuple[Array, tuple[Array, Array]]:
    return x @ _gather(w, axis), (x, w)  # in full, so that a checkpoint sees a product, and keeps it


def _product_backward(axis: int, saved: tuple[Array, Array], d: Array) -> tuple[Array, Array]:
    x, w = saved
    d_whole = jnp.einsum("ri,ro->io", x, d, preferred_element_type=jnp.float32)
    return d @ _gather(w, axis).T, _scatter(d_whole, axis, w.dtype)


_product.defvjp(_product_forward, _product_backward)


@jax.custom_vjp
def _rows(table: Array, tokens: Array) -> Array:
    return _exchange(table[lax.all_gather(tokens, PARTS)])


def _exchange(x: Float[Array, "F b t d"]) -> Float[Array, "b t _"]:
    """From this shard's part of every shard's rows to every part of this shard's rows."""
    return lax.all_to_all(x, PARTS, split_axis=0, concat_axis=3, tiled=True)[0]


def _rows_forward(table: Array, tokens: Array) -> tuple[Array, tuple[Array, Array]]:
    return _rows(table, tokens), (table, tokens)


def _rows_backward(saved: tuple[Array, Array], d: Array) -> tuple[Array, None]:
    table, tokens = saved
    everyone = lax.all_gather(tokens, PARTS)
    parts = lax.all_to_all(d[None], PARTS, split_axis=3, concat_axis=0, tiled=True)
    return jnp.zeros(table.shape, jnp.float32).at[everyone].add(parts.astype(jnp.float32)).astype(table.dtype), None


_rows.defvjp(_rows_forward, _rows_backward)
