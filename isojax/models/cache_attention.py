"""The sampler's attention: one query per slot, over a cache of keys and values that its new key and
value go into.

Implementations are those of attention.py. A cache has the order of axes that its implementation
reads (`position_axes`), or XLA would turn it round at each program's beginning and end. Kernels
are imported in the functions that call them: the import loads Pallas, which nothing else needs.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from isojax.core.shapes import PALLAS
from isojax.models.attention import MASKED_SCORE, shard_over_heads
from isojax.models.cpu import small_head_products
from isojax.models.kernels.tpu_cache_blocks import is_transposed, pad_to_blocks

# keys and values, see `position_axes`; of int8 ones also their scales, f32[L R K C]
KVArrays = tuple[Array, ...]
SlotQueries = Float[Array, "R N H"]
SlotHeads = Float[Array, "R K H"]
SlotInts = Int[Array, " R"]


class SlotPositions(NamedTuple):
    """Where in a cache each slot's new key goes, and the last entry that its query sees. Both are
    the token's position, but in a ring (kv_ring.py)."""

    write: SlotInts
    last: SlotInts


class SlotSegment(NamedTuple):
    """Keys and values that slots attend to where `mask` is true: of each slot (Z = R), or of each
    of Z prefix groups of R / Z slots."""

    keys: Float[Array, "Z K H c"]
    values: Float[Array, "Z K c H"]
    mask: Bool[Array, "R c"]


def quantize(x: Float[Array, "*b H"]) -> tuple[Int[Array, "*b H"], Float[Array, "*b"]]:
    """Return int8 values and one float32 scale for each vector of H numbers.

    x is values * scale, within scale / 2 for each element. 127 is the largest magnitude on both
    sides of 0."""
    x = x.astype(jnp.float32)
    scale = jnp.abs(x).max(-1) / 127
    divisor = jnp.where(scale > 0, scale, 1.0)  # a vector of zeros stays zero
    return jnp.round(x / divisor[..., None]).astype(jnp.int8), scale


def to_cache_dtype(keys: Array, values: Array, dtype: Any) -> KVArrays:
    """Return keys and values [... H] as a cache of this precision holds them.

    `dtype`: such as "bfloat16": two arrays; "int8": four, with the scales [...] of keys and of
    values last."""
    if jnp.dtype(dtype) != jnp.int8:
        return keys.astype(dtype), values.astype(dtype)

    keys, key_scale = quantize(keys)
    values, value_scale = quantize(values)
    return keys, values, key_scale, value_scale


def position_axes(implementation: str, head_dim: int) -> tuple[int, ...]:
    """Return the axes of positions of a cache's keys, values and both scales, from the end.

    Keys and values are [L R K H C] where it is -1, [L R K C H] where it is -2, as this decode
    attention reads them. There are four always, also where a cache has no scales."""
    if implementation in PALLAS:
        return (-1, -1, -1, -1) if is_transposed(head_dim) else (-2, -2, -1, -1)
    if implementation == "triton":
        return (-2, -2, -1, -1)
    return (-1, -2, -1, -1)


def move_positions(keys: Array, values: Array, *scales: Array, axes: tuple[int, ...]) -> KVArrays:
    """Bring keys and values [... C H] into the order of a cache with these `position_axes`.

    Scales, if there are any, stay as they are."""
    key_axis, value_axis, *_ = axes
    if key_axis == -1:
        keys = keys.swapaxes(-1, -2)
    if value_axis == -1:
        values = values.swapaxes(-1, -2)
    return keys, values, *scales


def cache_positions(implementation: str, positions: int) -> int:
    """Return how many positions a cache must have to hold `positions` of them.

    A TPU's kernel wants whole blocks (`pad_to_blocks`)."""
    return pad_to_blocks(positions) if implementation in PALLAS else positions


def live_blocks(
    implementation: str, last: SlotInts, cache: KVArrays, head_dim: int
) -> tuple[Array, ...]:
    """Return what `decode_attention` needs to know of `SlotPositions.last`.

    The same in all layers of a stack, so it is made once for each token: `LiveBlocks` of a TPU's
    kernel; empty for the others. `cache`: of the stack, with its axis of layers."""
    if implementation not in PALLAS:
        return ()
    from isojax.models.kernels import tpu_decode

    def of_shard(last: Array, cache: KVArrays) -> tpu_decode.LiveBlocks:
        return tpu_decode.live_blocks(last, cache, head_dim)

    # Heads are axis 2 of the cache [L R K ...], and no axis of `last` or of the blocks, which are
    # the same for all heads.
    kv_heads = cache[0].shape[2]
    return shard_over_heads(of_shard, kv_heads, inputs=(None, 2), outputs=None)(last, cache)


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
    """Write each slot's new key and value into the cache, and attend to positions 0 .. at.last[r].

    `implementation`: "plain", "pallas", "triton" or "interpret" (attention.py). `q` [R N H], `k`
    and `v` [R K H]: of one new token per slot. `cache`: keys and values, and scales if they are
    int8, in the order of axes that `position_axes` says; [L R K ...], or [R K ...] of one layer
    alone. `layer`: the index in L, an int32 scalar; None where `cache` has one layer alone.
    `at.last` is at least `at.write`, or the token would not see itself. `live`: what `live_blocks`
    made of the same `at.last`. Return: the mixed values [R N H], and the whole cache with the new
    token in it."""
    if implementation in PALLAS:
        from isojax.models.kernels.tpu_decode import flash_decode

        interpret = implementation == "interpret"

        # `layer` is never None here: layers that this kernel serves are in a stack.
        def kernel(
            q: Array,
            k: Array,
            v: Array,
            layer: Array,
            at: SlotPositions,
            live: Any,
            cache: KVArrays,
        ) -> tuple[Array, KVArrays]:
            return flash_decode(q, (k, v), cache, layer, at.write, at.last, live, interpret)

        # where heads are in each argument: [R N H], [R K H] twice, none, none, none, [L R K ...]
        inputs = (1, 1, 1, None, None, None, 2)
        sharded = shard_over_heads(kernel, k.shape[1], inputs, outputs=(1, 2))
        return sharded(q, k, v, layer, at, live, cache)

    # Written before it is read: XLA then works in place, where reading first made it copy the cache
    # in every layer.
    new_kv = to_cache_dtype(k, v, cache[0].dtype)
    cache = write_token(cache, new_kv, position_axes(implementation, q.shape[2]), layer, at.write)
    layer_cache = cache
    if layer is not None:
        layer_cache = tuple(lax.dynamic_index_in_dim(x, layer, 0, False) for x in cache)
    keys, values, *scales = layer_cache

    if implementation == "triton":
        from isojax.models.kernels.gpu_decode import triton_decode

        sharded = shard_over_heads(triton_decode, k.shape[1], inputs=(1, 1, 1, None), outputs=1)
        return sharded(q, keys, values, at.last), cache

    # values are [R K C H] here, in any implementation that comes so far
    mask = jnp.arange(values.shape[2])[None] <= at.last[:, None]
    if scales:
        key_scale, value_scale = scales
        return _attend_int8(q, keys, values, key_scale, value_scale, mask[:, None]), cache
    return attend_slots(q, [SlotSegment(keys, values, mask)]), cache


def write_token(
    cache: KVArrays,
    new_kv: KVArrays,
    axes: tuple[int, ...],
    layer: Array | None,
    positions: SlotInts,
) -> KVArrays:
    """Put each slot's new key and value at its position into the cache.

    `cache`, `layer`: as in `decode_attention`. `new_kv`: keys and values [R K H], and of an int8
    cache their scales [R K], in the cache's precision. `axes`: of `position_axes`, for each array
    the axis of positions, from the end. `positions`: one for each slot, an entry of the cache."""
    written = []
    # `axes` has four entries always, for keys, values and two scales; a cache without scales has
    # two arrays, so strict=False
    for array, new, position_axis in zip(cache, new_kv, axes, strict=False):
        # [layer, slot, all heads, ...] with the slot's position on its axis, which counts from
        # the last one
        slots = jnp.arange(len(positions))
        index: list[Any] = [slots] if layer is None else [layer, slots]
        index += [slice(None)] * (array.ndim - len(index))
        index[position_axis] = positions
        # Slots and positions are indexed together, and the slices between them keep the heads: the
        # entries are [R K H], or [R K] of scales, as `new` has them.
        written.append(array.at[tuple(index)].set(new))
    return tuple(written)


def _attend_int8(
    q: SlotQueries,
    keys: Int[Array, "R K H C"],
    values: Int[Array, "R K C H"],
    key_scale: Float[Array, "R K C"],
    value_scale: Float[Array, "R K C"],
    mask: Bool[Array, "R 1 C"],
) -> SlotQueries:
    """Attend over one layer's int8 cache; a position's scale multiplies its scores and its weights.

    `q` [R N H] in the precision of products. The true key of position c is keys[..., c] *
    key_scale[..., c], and its value likewise. `mask`: true where a slot sees a position; its axis
    of size 1 stands for the heads."""
    R, N, H = q.shape
    K = keys.shape[1]
    q = (q * H**-0.5).reshape(R, K, -1, H)

    products = jnp.einsum(
        "rkgh,rkhc->rkgc", q, keys.astype(q.dtype), preferred_element_type=jnp.float32
    )
    scores = jnp.where(mask[:, None], products * key_scale[:, :, None], MASKED_SCORE)
    weights = (jax.nn.softmax(scores, -1) * value_scale[:, :, None]).astype(q.dtype)
    out = jnp.einsum(
        "rkgc,rkch->rkgh", weights, values.astype(q.dtype), preferred_element_type=jnp.float32
    )
    return out.astype(q.dtype).reshape(R, N, H)


def attend_slots(q: SlotQueries, segments: list[SlotSegment]) -> SlotQueries:
    """Mix values by a softmax in float32 over the keys of all segments together, for R slots.

    `q` [R N H]. `segments`: at least one, with keys [Z K H c], values [Z K c H] and mask [R c],
    where Z divides R and K divides N. Slots z W ... z W + W - 1, of W = R / Z, read row z of a
    segment; segments may differ in Z and c. Return: [R N H] in q's precision."""
    R, N, H = q.shape
    K = segments[0].keys.shape[1]
    G = N // K
    q = q.reshape(R, K, G, H) * H**-0.5

    # Slots that share a segment are folded into one matrix for its products, and unfolded to meet
    # what the same slots have of other segments.
    scores = []
    for segment in segments:
        groups = len(segment.keys)  # Z
        # the same for all key heads, [R 1 G c]
        mask = jnp.broadcast_to(segment.mask[:, None, None], (R, 1, G, segment.mask.shape[-1]))
        products = small_head_products(_fold_slots(q, groups), segment.keys)
        scores.append(jnp.where(_fold_slots(mask, groups), products, MASKED_SCORE))

    max_scores = [_unfold_slots(s.max(-1, keepdims=True), R) for s in scores]
    max_score = functools.reduce(jnp.maximum, max_scores)

    # of each segment, unfolded: [R K G H] and [R K G 1]
    weighted_sums, normalizers = [], []
    for s, segment in zip(scores, segments, strict=True):
        values = segment.values
        w = jnp.exp(s - _fold_slots(max_score, len(values)))
        normalizers.append(_unfold_slots(w.sum(-1, keepdims=True), R))
        weighted = jnp.einsum(
            "zkgc,zkch->zkgh", w.astype(values.dtype), values, preferred_element_type=jnp.float32
        )
        weighted_sums.append(_unfold_slots(weighted, R))

    out = functools.reduce(jnp.add, weighted_sums) / functools.reduce(jnp.add, normalizers)
    return out.astype(q.dtype).reshape(R, N, H)


def _fold_slots(x: Float[Array, "R K G c"], prefix_groups: int) -> Float[Array, "Z K WG c"]:
    """Put the slots of each prefix group into one matrix, so that one product serves the group.

    R slots are Z = prefix_groups groups of W, which lie one after the other."""
    R, K, G, c = x.shape
    if prefix_groups == R:
        return x
    grouped = x.reshape(prefix_groups, R // prefix_groups, K, G, c)
    return grouped.swapaxes(1, 2).reshape(prefix_groups, K, -1, c)


def _unfold_slots(x: Float[Array, "Z K WG c"], slots: int) -> Float[Array, "R K G c"]:
    """The inverse of `_fold_slots`."""
    Z, K, _, c = x.shape
    if slots == Z:
        return x
    by_slot = x.reshape(Z, K, slots // Z, -1, c).swapaxes(1, 2)
    return by_slot.reshape(slots, K, -1, c)
