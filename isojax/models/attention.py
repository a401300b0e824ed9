"""Attention over whole rows of tokens, as prompts are computed and policies trained. The sampler's,
of one query per slot over a cache, is in cache_attention.py.

Implementations of both: `plain` is array code, which tests compare the others with; `pallas` runs
kernels for TPU, `cudnn` (the trainer) and `triton` (the sampler) for NVIDIA GPUs, and `interpret`
those for TPU on any backend, for tests.

Kernels of TPUs are imported in the functions that call them: the import loads Pallas, which
nothing else needs.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import AxisType, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from isojax.distributed.sharding import PROMPT_AXIS, axes_that_split
from isojax.models.cpu import sum_over_queries
from isojax.models.kernels.cudnn import cudnn_attention
from isojax.models.kernels.prefix import PrefixKV

MASKED_SCORE = -1e30  # finite, so that a row of masked scores alone gives no NaN

RowQueries = Float[Array, "b t N H"]
RowHeads = Float[Array, "b K t H"]


class RowSegment(NamedTuple):
    """Keys and values that the queries of each row attend to, where `mask` is true."""

    keys: Float[Array, "b K c H"]
    values: Float[Array, "b K c H"]
    mask: Bool[Array, "b t c"]


def self_attention(
    implementation: str,
    q: RowQueries,
    k: RowHeads,
    v: RowHeads,
    prefix: PrefixKV | None = None,
    window: int | None = None,
) -> RowQueries:
    """Causal attention within each row, and over the live part of its prefix, which the row
    continues. `window`: a token sees itself and window - 1 positions before it; None: all."""
    if prefix is not None and not prefix.keys.shape[2]:
        prefix = None
    if implementation == "plain":
        return _plain_self_attention(q, k, v, prefix, window)

    kernel: Any = functools.partial(cudnn_attention, window=window)
    if implementation != "cudnn":
        from isojax.models.kernels.splash import splash_attention

        interpret = implementation == "interpret"
        kernel = functools.partial(splash_attention, window=window, interpret=interpret)

    # The dimension of heads in each array: 2 of queries, 1 of keys and of values.
    inputs: tuple[Any, ...] = (2, 1, 1)
    if prefix is None:
        return shard_over_heads(kernel, k.shape[1], inputs, outputs=2)(q, k, v)
    of_prefix = PrefixKV._make((1, 1, None))  # keys, values, lengths
    return shard_over_heads(kernel, k.shape[1], (*inputs, of_prefix), outputs=2)(q, k, v, prefix)


def _plain_self_attention(
    q: RowQueries, k: RowHeads, v: RowHeads, prefix: PrefixKV | None, window: int | None
) -> RowQueries:
    """`self_attention` in array code, with a mask [b t c] for the row and one for its prefix."""
    b, t = q.shape[:2]
    # Query i sees keys up to i, and of a window those after i - window.
    is_seen = jnp.tril(jnp.ones((t, t), bool))
    if window is not None:
        is_seen &= ~jnp.tril(jnp.ones((t, t), bool), -window)
    segments = [RowSegment(k, v, jnp.broadcast_to(is_seen[None], (b, t, t)))]

    if prefix is not None:
        prefix_positions = prefix.keys.shape[2]
        is_live = prefix_mask(prefix.lengths, t, prefix_positions, window)
        mask = jnp.broadcast_to(is_live, (b, t, prefix_positions))
        segments.append(RowSegment(prefix.keys, prefix.values, mask))
    return attend(q, segments)


def prefix_mask(
    lengths: Int[Array, " b"], queries: int, prefix_positions: int, window: int | None
) -> Bool[Array, "b _ p"]:
    """Which positions of its prefix each of a row's queries sees, [b 1 p] without a window: the
    live ones, of which the first query's position is the number."""
    key_positions = jnp.arange(prefix_positions)
    is_live = (key_positions[None] < lengths[:, None])[:, None]
    if window is None:
        return is_live

    query_positions = lengths[:, None] + jnp.arange(queries)[None]
    return is_live & (key_positions[None, None] > query_positions[:, :, None] - window)


def sequence_sharded_attention(
    positions: Int[Array, "b t"], q: RowQueries, k: RowHeads, v: RowHeads, window: int | None = None
) -> RowQueries:
    """Causal attention of a device's queries, at these positions, to the keys of all devices over
    `sequence`."""

    def attention(positions: Array, q: Array, k: Array, v: Array) -> Array:
        # PROMPT_AXIS is the mesh's `sequence`. The keys are gathered along their positions.
        keys, values = (lax.all_gather(x, PROMPT_AXIS, axis=2, tiled=True) for x in (k, v))

        key_positions = jnp.arange(keys.shape[2])[None, None]
        query_positions = positions[..., None]
        is_seen = key_positions <= query_positions
        if window is not None:
            is_seen &= key_positions > query_positions - window
        return attend(q, [RowSegment(keys, values, is_seen)])

    # The dimension of heads in each: none of positions, 2 of queries, 1 of keys and of values.
    sharded = shard_over_heads(attention, k.shape[1], inputs=(None, 2, 1, 1), outputs=2)
    return sharded(positions, q, k, v)


def attend(q: RowQueries, segments: list[RowSegment]) -> RowQueries:
    """Softmax attention in float32 over the keys of all segments together."""
    b, t, heads, head_dim = q.shape
    K = segments[0].keys.shape[1]
    G = heads // K

    # The queries of a key's heads as rows of one matrix: one product for each key/value head,
    # without a transpose.
    scaled = q * head_dim**-0.5
    by_key_head = scaled.reshape(b, t, K, G, head_dim).transpose(0, 2, 3, 1, 4)
    q = by_key_head.reshape(b, K, G * t, head_dim)

    scores = []
    for segment in segments:
        products = query_key_products(q, segment.keys).reshape(b, K, G, t, -1)
        masked = jnp.where(segment.mask[:, None, None], products, MASKED_SCORE)
        scores.append(masked.reshape(b, K, G * t, -1))

    # The largest score only keeps exp from overflowing. The result does not depend on it, and so
    # no gradient goes through it.
    max_scores = [s.max(-1, keepdims=True) for s in scores]
    max_score = lax.stop_gradient(functools.reduce(jnp.maximum, max_scores))

    weights = [jnp.exp(s - max_score) for s in scores]
    normalizer = functools.reduce(jnp.add, [w.sum(-1, keepdims=True) for w in weights])
    weighted_sums = []
    for w, segment in zip(weights, segments, strict=True):
        weighted_sums.append(weighted_values(w.astype(segment.values.dtype), segment.values))
    out = functools.reduce(jnp.add, weighted_sums) / normalizer.astype(q.dtype)

    by_query_head = out.astype(q.dtype).reshape(b, K, G, t, head_dim)
    return by_query_head.transpose(0, 3, 1, 2, 4).reshape(b, t, heads, head_dim)


def query_key_products(
    q: Float[Array, "b K q H"], k: Float[Array, "b K c H"]
) -> Float[Array, "b K q c"]:
    """Each query's products with keys, in float32. Where all is float32, as on a CPU, the gradient
    is written out."""
    if q.dtype == k.dtype == jnp.float32:
        return _float32_query_key_products(q, k)
    return _query_key_products(q, k)


def weighted_values(
    w: Float[Array, "b K q c"], v: Float[Array, "b K c H"]
) -> Float[Array, "b K q H"]:
    """Each query's sum of values by its weights."""
    if w.dtype == v.dtype == jnp.float32:
        return _float32_weighted_values(w, v)
    return _weighted_values(w, v)


def _query_key_products(q: Array, k: Array) -> Array:
    return jnp.einsum("bkqh,bkch->bkqc", q, k, preferred_element_type=jnp.float32)


def _weighted_values(w: Array, v: Array) -> Array:
    return jnp.einsum("bkqc,bkch->bkqh", w, v)


# The same two in float32, with gradients written out. Those of keys and values sum over queries, in
# the order that XLA:CPU is fastest at (cpu.py); that of queries is a sum of keys by weights d, and
# that of weights a product of d with values: each is the other one of the two functions.
_float32_query_key_products = jax.custom_vjp(_query_key_products)
_float32_weighted_values = jax.custom_vjp(_weighted_values)


def _query_key_products_forward(q: Array, k: Array) -> tuple[Array, tuple[Array, Array]]:
    return _query_key_products(q, k), (q, k)


def _query_key_products_backward(saved: tuple[Array, Array], d: Array) -> tuple[Array, Array]:
    q, k = saved
    return _weighted_values(d, k), sum_over_queries(d, q)


def _weighted_values_forward(w: Array, v: Array) -> tuple[Array, tuple[Array, Array]]:
    return _weighted_values(w, v), (w, v)


def _weighted_values_backward(saved: tuple[Array, Array], d: Array) -> tuple[Array, Array]:
    w, v = saved
    return _query_key_products(d, v), sum_over_queries(w, d)


_float32_query_key_products.defvjp(_query_key_products_forward, _query_key_products_backward)
_float32_weighted_values.defvjp(_weighted_values_forward, _weighted_values_backward)


def shard_over_heads(
    function: Callable[..., Any], kv_heads: int, inputs: tuple[Any, ...], outputs: Any
) -> Callable[..., Any]:
    """`function` in a shard_map over the axes still automatic, because XLA cannot split a kernel;
    elsewhere itself.

    inputs, outputs: in the place of each array, or of a tuple of arrays that are alike in this,
    the dimension that counts heads, or None: (1, None, (2, 2)). Each device attends with its own
    heads, or with all where the axis does not divide them."""
    mesh = jax.sharding.get_abstract_mesh()
    auto_axes = {
        name
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind == AxisType.Auto
    }
    if not auto_axes:
        return function

    # Axes of one device count as heads', or gradients would be summed.
    splits_heads = axes_that_split("kv_heads", kv_heads, mesh.shape)
    head_axes = []
    for name in mesh.axis_names:
        if name in auto_axes and (name in splits_heads or mesh.shape[name] == 1):
            head_axes.append(name)

    def spec(dimension: int | None) -> PartitionSpec:
        if dimension is None:
            return PartitionSpec()
        return PartitionSpec(*[None] * dimension, tuple(head_axes))

    def specs(dimensions: Any) -> Any:
        return jax.tree.map(spec, dimensions, is_leaf=lambda dimension: dimension is None)

    return shard_map(
        function,
        in_specs=specs(inputs),
        out_specs=specs(outputs),
        axis_names=auto_axes,
        check_vma=False,
    )
