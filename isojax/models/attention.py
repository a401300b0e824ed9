"""Attention: `self_attention` (the trainer's); `decode_attention` and `attend_slots`, one query per
slot on a cache.

Implementations: `plain` is array code, which tests compare the others with; `pallas` runs kernels
for TPU, `cudnn` (the trainer) and `triton` (the sampler) for NVIDIA GPUs, and `interpret` those for
TPU on any backend, for tests.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import AxisType, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from isojax.core.shapes import PALLAS
from isojax.distributed.sharding import PROMPT_AXIS, axes_that_split
from isojax.models.cpu import small_head_products, sum_over_queries
from isojax.models.kernels.cudnn import PrefixKV, cudnn_attention

MASKED_SCORE = -1e30

# keys and values, see `position_axes`; of int8 ones also their scales, f32[L R K C] each
KVArrays = tuple[Array, ...]
SlotSegment = tuple[Array, Array, Array]  # keys [Z K H c], values [Z K c H], mask bool[R c]
RowQueries = Float[Array, "b t N H"]
RowHeads = Float[Array, "b K t H"]
SlotQueries = Float[Array, "R N H"]
SlotHeads = Float[Array, "R K H"]
SlotInts = Int[Array, " R"]


class SlotPositions(NamedTuple):
    """Where in a cache each slot's new key goes, and the last that its query sees: its position,
    but in a ring."""

    write: SlotInts
    last: SlotInts


def ring_positions(positions: SlotInts, size: int) -> SlotPositions:
    """In a cache of `size` positions that holds the last ones, position p at p mod size, each once
    the ring is full. Keys are rotated already, so their order does not count."""
    return SlotPositions(positions % size, jnp.minimum(positions, size - 1))


def attend(
    q: RowQueries, kv_segments: list[tuple[Array, Array, Bool[Array, "b t c"]]]
) -> RowQueries:
    """Softmax attention in float32 over all segments together: each keys [b K c H], values [b K c
    H], mask [b t c]."""
    b, t, heads, head_dim = q.shape
    K = kv_segments[0][0].shape[1]
    G = heads // K
    # The queries of a key's heads as rows of one matrix: one product for each key/value head,
    # without a transpose.
    q = (
        (q * head_dim**-0.5)
        .reshape(b, t, K, G, head_dim)
        .transpose(0, 2, 3, 1, 4)
        .reshape(b, K, G * t, head_dim)
    )
    scores = []
    for keys, _, mask in kv_segments:
        products = query_key_products(q, keys).reshape(b, K, G, t, -1)
        scores.append(
            jnp.where(mask[:, None, None], products, MASKED_SCORE).reshape(b, K, G * t, -1)
        )
    max_score = lax.stop_gradient(
        functools.reduce(jnp.maximum, [s.max(-1, keepdims=True) for s in scores])
    )
    weights = [jnp.exp(s - max_score) for s in scores]
    normalizer = functools.reduce(jnp.add, [w.sum(-1, keepdims=True) for w in weights])
    weighted_sums = [
        weighted_values(w.astype(v.dtype), v)
        for w, (_, v, _) in zip(weights, kv_segments, strict=True)
    ]
    out = functools.reduce(jnp.add, weighted_sums) / normalizer.astype(q.dtype)
    return (
        out.astype(q.dtype)
        .reshape(b, K, G, t, head_dim)
        .transpose(0, 3, 1, 2, 4)
        .reshape(b, t, heads, head_dim)
    )


def query_key_products(
    q: Float[Array, "b K q H"], k: Float[Array, "b K c H"]
) -> Float[Array, "b K q c"]:
    """Each query's products with keys, in float32. Where all is float32, as on a CPU, the gradient
    is written out."""
    return (
        _float32_query_key_products(q, k)
        if q.dtype == k.dtype == jnp.float32
        else _query_key_products(q, k)
    )


def weighted_values(
    w: Float[Array, "b K q c"], v: Float[Array, "b K c H"]
) -> Float[Array, "b K q H"]:
    """Each query's sum of values by its weights."""
    return (
        _float32_weighted_values(w, v)
        if w.dtype == v.dtype == jnp.float32
        else _weighted_values(w, v)
    )


def _query_key_products(q: Array, k: Array) -> Array:
    return jnp.einsum("bkqh,bkch->bkqc", q, k, preferred_element_type=jnp.float32)


def _weighted_values(w: Array, v: Array) -> Array:
    return jnp.einsum("bkqc,bkch->bkqh", w, v)


_float32_query_key_products = jax.custom_vjp(_query_key_products)
_float32_query_key_products.defvjp(
    lambda q, k: (_query_key_products(q, k), (q, k)),
    lambda saved, d: (_weighted_values(d, saved[1]), sum_over_queries(d, saved[0])),
)
_float32_weighted_values = jax.custom_vjp(_weighted_values)
_float32_weighted_values.defvjp(
    lambda w, v: (_weighted_values(w, v), (w, v)),
    lambda saved, d: (_query_key_products(d, saved[1]), sum_over_queries(saved[0], d)),
)


def quantize(x: Float[Array, "*b H"]) -> tuple[Int[Array, "*b H"], Float[Array, "*b"]]:
    """int8 values and one float32 scale per vector: x = values * scale, within scale / 2 for each
    element."""
    x = x.astype(jnp.float32)
    scale = jnp.abs(x).max(-1) / 127
    return jnp.round(x / jnp.where(scale > 0, scale, 1.0)[..., None]).astype(jnp.int8), scale


def to_cache_dtype(keys: Array, values: Array, dtype: Any) -> tuple[Array, ...]:
    """Keys and values [... H] as a cache of this precision holds them: cast, or as int8 with their
    scales."""
    if jnp.dtype(dtype) != jnp.int8:
        return keys.astype(dtype), values.astype(dtype)
    (keys, key_scale), (values, value_scale) = quantize(keys), quantize(values)
    return keys, values, key_scale, value_scale


def position_axes(implementation: str, head_dim: int) -> tuple[int, ...]:
    """The axes of positions of a cache's keys, values and both scales, as this decode attention
    reads them: keys and values are [L R K H C] where it is -1, [L R K C H] where it is -2. XLA
    would turn them round at each program's beginning and end if the program read them otherwise."""
    if implementation in PALLAS:
        # loads Pallas, which only a TPU's kernels need
        from isojax.models.kernels.tpu_decode import is_transposed

        return (-1, -1, -1, -1) if is_transposed(head_dim) else (-2, -2, -1, -1)
    return (-2 if implementation == "triton" else -1, -2, -1, -1)


def move_positions(keys: Array, values: Array, *scales: Array, axes: tuple[int, ...]) -> KVArrays:
    """Keys and values [... C H] as a cache with these `position_axes` holds them; scales as they
    are."""
    moved = (
        x.swapaxes(-1, -2) if axis == -1 else x
        for x, axis in zip((keys, values), axes, strict=False)
    )
    return *moved, *scales


def cache_positions(implementation: str, positions: int) -> int:
    """How many positions a cache must have to hold `positions`: the TPU's kernel wants whole
    blocks."""
    if implementation not in PALLAS:
        return positions
    from isojax.models.kernels.tpu_decode import pad_to_blocks  # as above

    return pad_to_blocks(positions)


def shard_over_heads(
    function: Callable[..., Any],
    kv_heads: int,
    inputs: tuple[int | None, ...],
    outputs: tuple[int | None, ...],
) -> Callable[..., Any]:
    """`function` in a shard_map over the axes still automatic, because XLA cannot split a kernel;
    elsewhere itself.

    inputs, outputs: the dimension of each array that counts heads, or None. Each device attends
    with its own heads, or with all where the axis does not divide them. Axes of one device count as
    heads', or gradients would be summed."""
    mesh = jax.sharding.get_abstract_mesh()
    auto_axes = {
        name
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind == AxisType.Auto
    }
    if not auto_axes:
        return function
    splits_heads = axes_that_split("kv_heads", kv_heads, mesh.shape)
    head_axes = tuple(
        name
        for name in mesh.axis_names
        if name in auto_axes and (name in splits_heads or mesh.shape[name] == 1)
    )

    def specs(dimensions: tuple[int | None, ...]) -> tuple[PartitionSpec, ...]:
        return tuple(
            PartitionSpec() if d is None else PartitionSpec(*[None] * d, head_axes)
            for d in dimensions
        )

    return shard_map(
        function,
        in_specs=specs(inputs),
        out_specs=specs(outputs),
        axis_names=auto_axes,
        check_vma=False,
    )


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
    if prefix is not None and not prefix[0].shape[2]:
        prefix = None
    if implementation == "plain":
        b, t = q.shape[:2]
        is_seen = jnp.tril(jnp.ones((t, t), bool))
        if window is not None:
            is_seen &= ~jnp.tril(jnp.ones((t, t), bool), -window)
        kv_segments = [(k, v, jnp.broadcast_to(is_seen[None], (b, t, t)))]
        if prefix is not None:
            is_live = prefix_mask(prefix[2], t, prefix[0].shape[2], window)
            kv_segments.append(
                (prefix[0], prefix[1], jnp.broadcast_to(is_live, (b, t, is_live.shape[2])))
            )
        return attend(q, kv_segments)
    kernel: Any = functools.partial(cudnn_attention, window=window)
    if implementation != "cudnn":
        # loads Pallas, which only a TPU's kernels need
        from isojax.models.kernels.splash import splash_attention

        kernel = functools.partial(
            splash_attention, window=window, interpret=implementation == "interpret"
        )

    def attention(q: Array, k: Array, v: Array, *prefix: Array) -> tuple[Array]:
        return (kernel(q, k, v, prefix or None),)

    inputs = (2, 1, 1) if prefix is None else (2, 1, 1, 1, 1, None)
    return shard_over_heads(attention, k.shape[1], inputs, (2,))(q, k, v, *(prefix or ()))[0]


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

    def attention(positions: Array, q: Array, k: Array, v: Array) -> tuple[Array]:
        keys, values = (lax.all_gather(x, PROMPT_AXIS, axis=2, tiled=True) for x in (k, v))
        key_positions = jnp.arange(keys.shape[2])[None, None]
        query_positions = positions[..., None]
        is_seen = key_positions <= query_positions
        if window is not None:
            is_seen &= key_positions > query_positions - window
        return (attend(q, [(keys, values, is_seen)]),)

    return shard_over_heads(attention, k.shape[1], (None, 2, 1, 1), (2,))(positions, q, k, v)[0]


def live_blocks(
    implementation: str, last: SlotInts, cache: KVArrays, head_dim: int
) -> tuple[Array, ...]:
    """What `decode_attention` needs to know of `SlotPositions.last`, the same in all layers of a
    stack; empty for most."""
    if implementation not in PALLAS:
        return ()
    from isojax.models.kernels import tpu_decode  # as above

    def of_shard(last: Array, *cache: Array) -> tuple[Array, ...]:
        return tuple(tpu_decode.live_blocks(last, cache, head_dim))

    return shard_over_heads(
        of_shard, cache[0].shape[2], (None, *(2,) * len(cache)), (None, None, None)
    )(last, *cache)


def decode_attention(
    implementation: str,
    q: SlotQueries,
    k: SlotHeads,
    v: SlotHeads,
    cache: KVArrays,
    layer: Array | None,
    at: SlotPositions,
    live: tuple[Array, ...],
) -> tuple[SlotQueries, KVArrays]:
    """Writes each slot's new key and value into `layer`, and attends to positions 0 .. at.last[r].
    `layer`: None where `cache` has one layer alone, without their axis. `live`: `live_blocks` of
    `at.last`."""
    if implementation in PALLAS:
        from isojax.models.kernels.tpu_decode import LiveBlocks, flash_decode  # as above

        def kernel(q: Array, k: Array, v: Array, layer: Array, *arrays: Array) -> tuple[Array, ...]:
            write, last, *live = arrays[:5]
            out, cache = flash_decode(
                q,
                (k, v),
                arrays[5:],
                layer,
                write,
                last,
                LiveBlocks(*live),
                interpret=implementation == "interpret",
            )
            return out, *cache

        cache_axes = (2,) * len(cache)
        input_axes = (1, 1, 1, None, None, None, *(None,) * len(live), *cache_axes)
        attention = shard_over_heads(kernel, k.shape[1], input_axes, (1, *cache_axes))
        out, *updated_cache = attention(q, k, v, layer, *at, *live, *cache)
        return out, tuple(updated_cache)
    # Written before it is read: XLA then works in place, where reading first made it copy the cache
    # in every layer.
    new_kv = to_cache_dtype(k, v, cache[0].dtype)
    cache = write_token(cache, new_kv, position_axes(implementation, q.shape[2]), layer, at.write)
    keys, values, *scales = (
        cache if layer is None else (lax.dynamic_index_in_dim(c, layer, 0, False) for c in cache)
    )
    if implementation == "triton":
        from isojax.models.kernels.gpu_decode import triton_decode  # as above

        sharded_decode = shard_over_heads(
            lambda *x: (triton_decode(*x),), k.shape[1], (1, 1, 1, None), (1,)
        )
        return sharded_decode(q, keys, values, at.last)[0], cache
    mask = jnp.arange(values.shape[2])[None] <= at.last[:, None]
    if scales:
        return _attend_int8(q, keys, values, scales[0], scales[1], mask[:, None]), cache
    return attend_slots(q, [(keys, values, mask)]), cache


def write_token(
    cache: KVArrays,
    new_kv: KVArrays,
    axes: tuple[int, ...],
    layer: Array | None,
    positions: SlotInts,
) -> KVArrays:
    """The cache with each slot's new key and value at its position (of `layer`, as in
    `decode_attention`)."""

    def write(x: Array, new: Array, position_axis: int) -> Array:
        index: list[Any] = (
            [slice(None)] * x.ndim if layer is None else [layer, *[slice(None)] * (x.ndim - 1)]
        )
        index[0 if layer is None else 1], index[position_axis] = (
            jnp.arange(len(positions)),
            positions,
        )
        return x.at[tuple(index)].set(new)

    return tuple(write(*of_array) for of_array in zip(cache, new_kv, axes, strict=False))


def _attend_int8(
    q: Array, keys: Array, values: Array, key_scale: Array, value_scale: Array, mask: Array
) -> SlotQueries:
    """Attention over one layer's int8 cache: a scale belongs to a position, so it multiplies scores
    and weights."""
    R, N, H = q.shape
    q = (q * H**-0.5).reshape(R, keys.shape[1], -1, H)
    scores = jnp.einsum(
        "rkgh,rkhc->rkgc", q, keys.astype(q.dtype), preferred_element_type=jnp.float32
    )
    scores = jnp.where(mask[:, None], scores * key_scale[:, :, None], MASKED_SCORE)
    weights = (jax.nn.softmax(scores, -1) * value_scale[:, :, None]).astype(q.dtype)
    out = jnp.einsum(
        "rkgc,rkch->rkgh", weights, values.astype(q.dtype), preferred_element_type=jnp.float32
    )
    return out.astype(q.dtype).reshape(R, N, H)


def attend_slots(q: SlotQueries, kv_segments: list[SlotSegment]) -> SlotQueries:
    """Softmax attention in float32 over all segments together, each of slots or of Z prefix groups
    of R / Z slots."""
    R, N, H = q.shape
    K = kv_segments[0][0].shape[1]
    q = q.reshape(R, K, N // K, H) * H**-0.5
    scores = []
    for keys, _, mask in kv_segments:
        mask = jnp.broadcast_to(mask[:, None, None], (R, 1, N // K, mask.shape[-1]))
        products = small_head_products(_fold_slots(q, len(keys)), keys)
        scores.append(jnp.where(_fold_slots(mask, len(keys)), products, MASKED_SCORE))
    max_score = functools.reduce(
        jnp.maximum, [_unfold_slots(s.max(-1, keepdims=True), R) for s in scores]
    )
    weighted_sums, normalizers = [], []
    for s, (_, values, _) in zip(scores, kv_segments, strict=True):
        w = jnp.exp(s - _fold_slots(max_score, len(values)))
        normalizers.append(_unfold_slots(w.sum(-1, keepdims=True), R))
        weighted = jnp.einsum(
            "zkgc,zkch->zkgh", w.astype(values.dtype), values, preferred_element_type=jnp.float32
        )
        weighted_sums.append(_unfold_slots(weighted, R))
    out = functools.reduce(jnp.add, weighted_sums) / functools.reduce(jnp.add, normalizers)
    return out.astype(q.dtype).reshape(R, N, H)


def _fold_slots(x: Float[Array, "R K G c"], prefix_groups: int) -> Float[Array, "Z K WG c"]:
    """The slots of each prefix group in one matrix, so that one product takes them to the group's
    prefix."""
    R, K, G, c = x.shape
    if prefix_groups == R:
        return x
    return (
        x.reshape(prefix_groups, R // prefix_groups, K, G, c)
        .swapaxes(1, 2)
        .reshape(prefix_groups, K, -1, c)
    )


def _unfold_slots(x: Float[Array, "Z K WG c"], slots: int) -> Float[Array, "R K G c"]:
    Z, K, _, c = x.shape
    return (
        x
        if slots == Z
        else x.reshape(Z, K, slots // Z, -1, c).swapaxes(1, 2).reshape(slots, K, -1, c)
    )
