"""One token per slot on a TPU: its key and value go into the cache in place, and its query attends to what is there.

The grid is (slot, block of positions). Blocks past the last live one have its address, and are not fetched again.
Softmax runs online over the blocks in float32 (arXiv:2205.14135, algorithm 1), and begins with the token itself. With
XLA's scatter instead, the whole cache would be transposed in every layer. A head below 128 is [H, C], without padding.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

MASKED_SCORE = -1e30
TILE_WIDTH = 128  # of a vector register
MAX_BLOCK_UNITS = 8  # of 128 positions in a block, whichever number is the most that divides the cache
BLOCK_BYTES = 1 << 20  # of keys, and as many of values; both are held twice, and a kernel has 16 MiB on v5e


class _CacheLayout(NamedTuple):
    """The layout of the cache: transposed is [H, C], else [C, H]; `tile_positions` are written back with a new one."""

    transposed: bool
    block_positions: int
    tile_positions: int


def _cache_layout(kv_heads: int, positions: int, head_dim: int, item_bytes: int) -> _CacheLayout:
    transposed = head_dim % TILE_WIDTH != 0
    units, max_units = positions // TILE_WIDTH, BLOCK_BYTES // (kv_heads * TILE_WIDTH * head_dim * item_bytes)
    block = TILE_WIDTH * max(d for d in range(1, MAX_BLOCK_UNITS + 1) if units % d == 0 and d <= max(max_units, 1))
    return _CacheLayout(transposed, block, TILE_WIDTH if transposed else 32 // item_bytes)


def pad_to_blocks(positions: int) -> int:
    """The next number of positions that divides into blocks: a multiple of 128, above 1024 of 4 to 8 times 128."""
    units = -(-positions // TILE_WIDTH)
    while units > MAX_BLOCK_UNITS and all(units % d for d in range(4, MAX_BLOCK_UNITS + 1)):
        units += 1
    return TILE_WIDTH * units


def _write_tile(layout: _CacheLayout, offset: Any, block: Any, new_kv: Any, out: Any) -> None:
    """The tile around `offset` of a block, with one position new [K H], to `out`."""
    start = pl.multiple_of(offset // layout.tile_positions * layout.tile_positions, layout.tile_positions)
    tile = pl.ds(start, layout.tile_positions)
    old = block[:, :, tile] if layout.transposed else block[:, tile, :]
    position_axis = 2 if layout.transposed else 1
    is_new = lax.broadcasted_iota(jnp.int32, old.shape, position_axis) == offset - start
    # In float32, because tiles of bfloat16 and int8 cannot be transposed.
    new_column = jnp.expand_dims(new_kv.astype(jnp.float32), position_axis)
    out[...] = jnp.where(is_new, new_column, old.astype(jnp.float32)).astype(out.dtype)


def _decode_kernel(layout: _CacheLayout, scaled: bool, layer: Any, position: Any, q: Any, *refs: Any) -> None:
    """One block of one slot: q, out [K G H]; new keys and values [K H], cached [K block H]; scales [K], [K block]."""
    array_count = 4 if scaled else 2
    new_kv, cached, written = refs[:array_count], refs[array_count : 2 * array_count], refs[2 * array_count + 1 : -3]
    out, (max_score, normalizer, weighted_sum) = refs[2 * array_count], refs[-3:]
    del layer
    j, position = pl.program_id(1), position[pl.program_id(0)]
    query, kv_axes = q[...], "khc" if layout.transposed else "kch"

    @pl.when(j == 0)
    def _initialize() -> None:
        k, v = (x[...].astype(jnp.float32) for x in new_kv[:2])
        if scaled:
            k, v = k * new_kv[2][...].T, v * new_kv[3][...].T
        max_score[...] = (query.astype(jnp.float32) * k[:, None]).sum(-1, keepdims=True)
        normalizer[...] = jnp.ones_like(normalizer)
        weighted_sum[...] = jnp.broadcast_to(v[:, None], weighted_sum.shape)

    @pl.when(j * layout.block_positions < position)
    def _accumulate() -> None:
        k, v = (x[...].astype(query.dtype) for x in cached[:2])
        s = jnp.einsum(f"kgh,{kv_axes}->kgc", query, k, preferred_element_type=jnp.float32)
        if scaled:
            s = s * cached[2][...][:, None]
        live = j * layout.block_positions + lax.broadcasted_iota(jnp.int32, s.shape, 2) < position
        s = jnp.where(live, s, MASKED_SCORE)
        new_max = jnp.maximum(max_score[...], s.max(-1, keepdims=True))
        rescale, weights = jnp.exp(max_score[...] - new_max), jnp.exp(s - new_max)
        normalizer[...] = normalizer[...] * rescale + weights.sum(-1, keepdims=True)
        if scaled:
            weights = weights * cached[3][...][:, None]
        weighted_sum[...] = weighted_sum[...] * rescale + jnp.einsum(
            f"kgc,{kv_axes}->kgh", weights.astype(v.dtype), v, preferred_element_type=jnp.float32
        )
        max_score[...] = new_max

    @pl.when(j == position // layout.block_positions)
    def _write_back() -> None:
        offset = position % layout.block_positions
        for i in range(2):
            _write_tile(layout, offset, cached[i], new_kv[i][...], written[i])
        for i in range(2, array_count):
            start = pl.multiple_of(offset // TILE_WIDTH * TILE_WIDTH, TILE_WIDTH)
            old = cached[i][:, pl.ds(start, TILE_WIDTH)]
            is_new = lax.broadcasted_iota(jnp.int32, old.shape, 1) == offset - start
            written[i][...] = jnp.where(is_new, new_kv[i][...].T, old)

    @pl.when(j == pl.num_programs(1) - 1)
    def _normalize() -> None:
        out[...] = (weighted_sum[...] / normalizer[...]).astype(out.dtype)


def flash_decode(
    q: Float[Array, "R N H"],
    new_kv: tuple[Array, ...],
    cache: tuple[Array, ...],
    layer: Int[Array, ""],
    positions: Int[Array, " R"],
    interpret: bool = False,
) -> tuple[Float[Array, "R N H"], tuple[Array, ...]]:
    """Attention over positions 0 .. positions[r] of `layer`, and the cache with the token in it, updated in place.

    `new_kv`: keys and values [R K H], of int8 ones also scales [R K]. `cache`: keys [L R K H C], values [L R K C H],
    scales [L R K C], with C from `pad_to_blocks`."""
    R, N, H = q.shape
    K, C = cache[1].shape[2:4]
    layout = _cache_layout(K, C, H, cache[0].dtype.itemsize)
    grouped_queries = (q * H**-0.5).astype(q.dtype).reshape(R, K, N // K, H)

    def to_kernel_layout(cache: tuple[Array, ...]) -> tuple[Array, ...]:
        """As the kernel takes it, and back. To XLA it is a choice of layout, and no copy."""
        keys, values, *scales = cache
        if layout.transposed:
            return keys, values.swapaxes(-1, -2), *scales
        return keys.swapaxes(-1, -2), values, *scales

    kernel_cache = to_kernel_layout(cache)
    new_blocks = tuple(x if x.ndim == 3 else x[:, None] for x in new_kv)

    def cache_spec(x: Array, width: int, block_at: Any) -> pl.BlockSpec:
        """`width` positions of one slot in the layer, at the block `block_at(j, position)`."""

        def address(r: Any, j: Any, layer: Any, positions: Any) -> tuple:
            block = block_at(j, positions[r])
            tail = (block,) if x.ndim == 4 else (0, block) if layout.transposed else (block, 0)
            return layer[0], r, 0, *tail

        shape = (width,) if x.ndim == 4 else (H, width) if layout.transposed else (width, H)
        return pl.BlockSpec((None, None, K, *shape), address)

    def slot_spec(x: Array) -> pl.BlockSpec:
        return pl.BlockSpec((None, *x.shape[1:]), lambda r, j, *_: (r, *[0] * (x.ndim - 1)))

    tiles = [layout.tile_positions if x.ndim == 5 else TILE_WIDTH for x in kernel_cache]
    reads = [
        cache_spec(x, layout.block_positions, lambda j, last: jnp.minimum(j, last // layout.block_positions))
        for x in kernel_cache
    ]
    writes = [
        cache_spec(x, tile, lambda j, last, tile=tile: last // tile)
        for x, tile in zip(kernel_cache, tiles, strict=True)
    ]
    column = pltpu.VMEM((K, N // K, 1), jnp.float32)
    out, *written = pl.pallas_call(
        functools.partial(_decode_kernel, layout, len(cache) > 2),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(R, C // layout.block_positions),
            in_specs=[slot_spec(grouped_queries), *map(slot_spec, new_blocks), *reads],
            out_specs=[slot_spec(grouped_queries), *writes],
            scratch_shapes=[column, column, pltpu.VMEM((K, N // K, H), jnp.float32)],
        ),
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (grouped_queries, *kernel_cache)],
        input_output_aliases={3 + len(new_blocks) + i: 1 + i for i in range(len(kernel_cache))},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=interpret,
        name="flash_decode",
    )(layer.reshape(1), positions, grouped_queries, *new_blocks, *kernel_cache)
    return out.reshape(R, N, H), to_kernel_layout(tuple(written))
