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
    """Attend causally within each row, and over the live part of the prompt that the row continues.

    `implementation`: "plain", "pallas", "cudnn" or "interpret", as above. `q` [b t N H], `k` and
    `v` [b K t H], with K a divisor of N. `prefix`: each row's prompt, whose positions come before
    the row's own; None: rows begin texts. `window`: a token sees itself and window - 1 positions
    before it, those of the prompt included; None: all. Return: the mixed values [b t N H], in q's
    precision."""
    # a prompt of no positions, keys [b K 0 H], is none
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
    """Compute `self_attention` in array code, with masks [b t c] for the row and its prefix.

    The arguments are those of `self_attention`. A mask is true where a query sees a key."""
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
    """Say which positions of its prompt each query of a row sees: bool[b t p], or [b 1 p].

    `lengths`: tokens of each row's prompt, of at most p = `prefix_positions`. Query i of a row is
    at position lengths + i of the text. Without a window all queries of a row see the same, so
    their axis has size 1."""
    key_positions = jnp.arange(prefix_positions)
    is_live = (key_positions[None] < lengths[:, None])[:, None]
    if window is None:
        return is_live

    query_positions = lengths[:, None] + jnp.arange(queries)[None]
    return is_live & (key_positions[None, None] > query_positions[:, :, None] - window)


def sequence_sharded_attention(
    positions: Int[Array, "b t"], q: RowQueries, k: RowHeads, v: RowHeads, window: int | None = None
) -> RowQueries:
    """Attend causally from a device's queries to the keys of all devices over `sequence`.

    For use inside a shard_map over `sequence`, where each device has t of the sequence's positions.
    `positions`: where these t tokens are in the whole sequence. `q` [b t N H], `k` and `v` [b K t
    H]; gathered, keys are in the order of their positions, because devices have contiguous parts in
    order. `window`: as in `self_attention`."""

    def attention(positions: Array, q: Array, k: Array, v: Array) -> Array:
        # PROMPT_AXIS is the mesh's `sequence`. The keys are gathered along their positions.
        keys, values = (lax.all_gather(x, PROMPT_AXIS, axis=2, tiled=True) for x in (k, v))

        # [1 1 c], for all c gathered keys; queries are [b t 1], so the mask is [b t c].
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
    """Mix values by a softmax in float32 over the keys of all segments together.

    `q` [b t N H]. `segments`: at least one, all with K heads of keys, where K divides N: query
    heads k G ... k G + G - 1 read key head k. Their numbers of keys c may differ. A query must see
    at least one key, else all of its keys weigh the same. Return: [b t N H] in q's precision."""
    b, t, heads, head_dim = q.shape
    K = segments[0].keys.shape[1]
    G = heads // K

    # The queries of a key's heads as rows of one matrix: one product for each key/value head,
    # without a transpose.
    scaled = q * head_dim**-0.5
    by_key_head = scaled.reshape(b, t, K, G, head_dim).transpose(0, 2, 3, 1, 4)
    q = by_key_head.reshape(b, K, G * t, head_dim)

    # one array [b K Gt c] for each segment
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
    """Return each query's products with keys, in float32.

    q counts the queries of all heads that share a key head. Where all is float32, as on a CPU, the
    gradient is written out (below)."""
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
    # Summed in float32: in which precision a TPU sums products of many small matrices otherwise
    # differs by generation, and TPU7x takes bfloat16 (jax issue 39878).
    values = jnp.einsum("bkqc,bkch->bkqh", w, v, preferred_element_type=jnp.float32)
    return values.astype(jnp.result_type(w, v))


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
    """Wrap `function` in a shard_map over the mesh axes that are still automatic, split by heads.

    XLA cannot split a kernel by itself. Where no axis is automatic, `function` comes back as it is.

    `inputs`, `outputs`: in the place of each array, or of a tuple of arrays that are alike in this,
    the dimension that counts heads, or None where there is none: (1, None, (2, 2)). Their order is
    that of the function's arguments and results. `kv_heads`: K, the number that an axis must divide
    for it to split heads; where it does not, each device attends with all heads."""
    mesh = jax.sharding.get_abstract_mesh()
    auto_axes = {
        name
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind == AxisType.Auto
    }
    if not auto_axes:
        return function

    # The names of the axes by which heads are split, such as ("tensor",); () for whole heads.
    # An axis of one device is named with them: shard_map would sum an array's gradient over an axis
    # that its spec leaves out.
    splitting_axes = axes_that_split("kv_heads", kv_heads, mesh.shape)
    head_axes = []
    for name in mesh.axis_names:
        if name in auto_axes and (name in splitting_axes or mesh.shape[name] == 1):
            head_axes.append(name)

    # Both have `head_axes` from outside: `spec` makes one PartitionSpec, `specs` those of a tree of
    # dimensions, in which None is a leaf and not an empty tree.
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
