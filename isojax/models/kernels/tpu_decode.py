"""One token per slot on a TPU: its key and value go into the cache in place, and its query attends
to what is there.

A step of the grid attends to one block of positions of each slot of a group, while the blocks of
the next step are read; a group has as many steps as its longest slot has blocks, and nothing is
read past a slot's last one. Softmax runs online over the blocks in float32 (arXiv:2205.14135,
algorithm 1), and begins with the token itself. With XLA's scatter instead, the whole cache would be
transposed in every layer. A head below 128 is [H, C], without padding.

A layer that slides has a ring: a token is written over the oldest one, and sees all others there.
Their order does not count, because keys are rotated already.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

MASKED_SCORE = -1e30
TILE_WIDTH = 128  # of a vector register
# of 128 positions in a block, whichever number is the most that divides the cache
MAX_BLOCK_UNITS = 4
MAX_GROUP_SLOTS = 16
# of the blocks of a group's keys and values, each held twice; a kernel has 16 MiB on v5e
BUFFER_BYTES = 8 << 20
SCALARS = 6  # arrays that the kernel has before its grid begins: layer, written, last, LiveBlocks
# of a chip (v4, v5p), which share the parallel axis of a grid; a chip of one core runs it in turn
MAX_CORES = 2


class CacheLayout(NamedTuple):
    """The layout of the cache: transposed is [H, C], else [C, H]; `tile_positions` are written back
    with a new one."""

    transposed: bool
    block_positions: int
    tile_positions: int
    block_count: int  # of a slot
    cores: int
    group_slots: int  # S


class LiveBlocks(NamedTuple):
    """What each grid step reads: block `block[core, i]` of slots of group `group[core, i]`, where i
    < `steps[core]`."""

    group: Int[Array, "cores steps"]
    block: Int[Array, "cores steps"]
    steps: Int[Array, " cores"]


def is_transposed(head_dim: int) -> bool:
    """Whether a cache for this kernel has keys and values [H, C], else [C, H]."""
    return head_dim % TILE_WIDTH != 0


def pad_to_blocks(positions: int) -> int:
    """The next number of positions that divides into blocks: a multiple of 128, above 512 of 384 or
    512."""
    units = -(-positions // TILE_WIDTH)
    while units > MAX_BLOCK_UNITS and units % 3 and units % 4:
        units += 1
    return TILE_WIDTH * units


def _largest_divisor(number: int, limit: int) -> int:
    return max(d for d in range(1, max(limit, 1) + 1) if number % d == 0)


def cache_layout(cache: tuple[Array, ...], head_dim: int) -> CacheLayout:
    transposed, (R, K), item_bytes = (
        is_transposed(head_dim),
        cache[0].shape[1:3],
        cache[0].dtype.itemsize,
    )
    units = cache[0].shape[4 if transposed else 3] // TILE_WIDTH
    block_units = _largest_divisor(units, MAX_BLOCK_UNITS)
    cores = _largest_divisor(R, MAX_CORES)
    slot_bytes = 4 * K * TILE_WIDTH * block_units * head_dim * item_bytes
    return CacheLayout(
        transposed,
        block_positions=TILE_WIDTH * block_units,
        tile_positions=TILE_WIDTH if transposed else 32 // item_bytes,
        block_count=units // block_units,
        cores=cores,
        group_slots=_largest_divisor(R // cores, min(MAX_GROUP_SLOTS, BUFFER_BYTES // slot_bytes)),
    )


def live_blocks(last: Int[Array, " R"], cache: tuple[Array, ...], head_dim: int) -> LiveBlocks:
    """The steps for slots that hold positions 0 .. last[r], the same in all layers with this
    cache."""
    layout = cache_layout(cache, head_dim)
    slots = (last // layout.block_positions + 1).reshape(layout.cores, -1, layout.group_slots)
    counts = slots.max(-1)  # of the blocks of each group
    groups, max_steps = counts.shape[1], counts.shape[1] * layout.block_count
    # As sums of products, not by cumsum and gathers: each of these takes a TPU a microsecond.
    ends = (counts[:, None] * jnp.tri(groups, dtype=jnp.int32)[None]).sum(-1)
    # [cores steps groups]
    since_begin = jnp.arange(max_steps)[None, :, None] - (ends - counts)[:, None]
    # has the steps beyond its own, which do nothing
    is_last = jnp.arange(groups)[None, None] == groups - 1
    of_group = (since_begin >= 0) & ((since_begin < counts[:, None]) | is_last)
    group = jnp.arange(layout.cores * groups).reshape(layout.cores, 1, -1)
    return LiveBlocks((group * of_group).sum(-1), (since_begin * of_group).sum(-1), ends[:, -1])


def _at_positions(layout: CacheLayout, array: Any, start: Any, count: int) -> Any:
    """Positions start .. start + count - 1 of keys or values [K C H], [K H C], or scales [K C]; a
    reference."""
    positions = pl.ds(pl.multiple_of(start, count), count)
    if layout.transposed and len(array.shape) == 3:
        return array.at[:, :, positions]
    return array.at[:, positions]


def _with_new_position(layout: CacheLayout, old: Any, new: Any, index: Any) -> Array:
    """A tile of one slot, with one position new: keys or values [K H], or scales [K 1]."""
    position_axis = 1 if old.ndim == 2 or not layout.transposed else 2
    is_new = lax.broadcasted_iota(jnp.int32, old.shape, position_axis) == index
    # In float32, because tiles of bfloat16 and int8 cannot be transposed.
    new = new if old.ndim == 2 else jnp.expand_dims(new.astype(jnp.float32), position_axis)
    return jnp.where(is_new, new, old.astype(jnp.float32)).astype(old.dtype)


def _to_int8(x: Float[Array, "*b H"]) -> tuple[Float[Array, "*b H"], Float[Array, "*b _"]]:
    """Whole numbers and a scale for each vector, as `attention.quantize` rounds them."""
    scale = jnp.abs(x).max(-1, keepdims=True) / 127
    return jnp.round(x / jnp.where(scale > 0, scale, 1.0)), scale


def _decode_kernel(layout: CacheLayout, scaled: bool, *refs: Any) -> None:
    """One step, for the S slots of a group: q, out [S K G H]; where all slots write and up to where
    they read, and the same of the group's [S K G 1]; new keys and values [S K H]; the whole cache;
    two blocks of it for each slot [2 S K ...], and its tile that is written back; of an int8 cache
    what the new ones are rounded to, [S K H] and [S K 1]."""
    arrays = 4 if scaled else 2
    in_order = iter(refs)
    layer, written, last, group, block, steps, q, group_written, group_last = itertools.islice(
        in_order, 9
    )
    # the cache comes as an input and as an output, which is used
    counts = (2, arrays, 1, arrays, arrays, arrays)
    new_kv, _, (out,), cache, buffers, tiles = (
        tuple(itertools.islice(in_order, count)) for count in counts
    )
    max_score, normalizer, weighted_sum, read_done, write_done, *rounded = in_order
    to_cache = rounded if scaled else new_kv
    (S, K, G, H), core, step = q.shape, pl.program_id(0), pl.program_id(1)

    def slot(step: Any, s: int) -> Any:
        return group[core, step] * S + s

    def for_each_read(step: Any, act: Callable[[Any], None]) -> None:
        """`act` on the copies of a step's blocks: those of slots that reach so far."""
        for s in range(S):

            @pl.when(block[core, step] <= last[slot(step, s)] // layout.block_positions)
            def _copy(s: int = s) -> None:
                for a in range(arrays):
                    source = cache[a].at[layer[0], slot(step, s)]
                    source = _at_positions(
                        layout,
                        source,
                        block[core, step] * layout.block_positions,
                        layout.block_positions,
                    )
                    act(
                        pltpu.make_async_copy(
                            source, buffers[a].at[step % 2, s], read_done.at[step % 2, a, s]
                        )
                    )

    def for_each_write(act: Callable[[int, Any], None]) -> None:
        """`act` on slots whose token goes into this block, and its position."""
        for s in range(S):
            position = written[slot(step, s)]

            @pl.when(block[core, step] == position // layout.block_positions)
            def _act(s: int = s, position: Any = position) -> None:
                act(s, position)

    def tile_width(a: int) -> int:
        return layout.tile_positions if a < 2 else TILE_WIDTH

    def write(a: int, s: int, position: Any) -> Any:
        width = tile_width(a)
        destination = _at_positions(
            layout, cache[a].at[layer[0], slot(step, s)], position // width * width, width
        )
        return pltpu.make_async_copy(tiles[a].at[s], destination, write_done.at[a, s])

    def start_writes(s: int, position: Any) -> None:
        for a in range(arrays):
            offset, width = position % layout.block_positions, tile_width(a)
            old = _at_positions(layout, buffers[a].at[step % 2, s], offset // width * width, width)
            tiles[a][s] = _with_new_position(layout, old[...], to_cache[a][s], offset % width)
            write(a, s, position).start()

    def finish_writes(s: int, position: Any) -> None:
        for a in range(arrays):
            write(a, s, position).wait()

    def scale(by_row: Array, scales: Array) -> Array:
        return (by_row.reshape(S, K, G, -1) * scales[:, :, None]).reshape(by_row.shape)

    @pl.when(step == 0)
    def _begin() -> None:
        for values in buffers[1::2]:  # what is never read there has weight 0, and must be finite
            values[...] = jnp.zeros_like(values)
        for_each_read(0, lambda copy: copy.start())

    @pl.when(step + 1 < steps[core])
    def _read_ahead() -> None:
        for_each_read(step + 1, lambda copy: copy.start())

    @pl.when(step < steps[core])
    def _attend() -> None:
        query = q[...].reshape(S * K, G, H)
        kv_axes = "khc" if layout.transposed else "kch"

        @pl.when(block[core, step] == 0)
        def _initialize() -> None:
            k, v = (x[...].astype(jnp.float32) for x in new_kv)
            if scaled:  # the token is to see itself as later ones will
                (k, k_scale), (v, v_scale) = _to_int8(k), _to_int8(v)
                for kept, x in zip(rounded, (k, v, k_scale, v_scale), strict=True):
                    kept[...] = x
                k, v = k * k_scale, v * v_scale
            k, v = (x.reshape(S * K, 1, H) for x in (k, v))
            max_score[...] = (query.astype(jnp.float32) * k).sum(-1, keepdims=True)
            normalizer[...] = jnp.ones_like(normalizer)
            weighted_sum[...] = jnp.broadcast_to(v, weighted_sum.shape)

        for_each_read(step, lambda copy: copy.wait())
        for_each_write(start_writes)
        k, v = (x[step % 2].reshape(S * K, *x.shape[3:]).astype(query.dtype) for x in buffers[:2])
        s = jnp.einsum(f"kgh,{kv_axes}->kgc", query, k, preferred_element_type=jnp.float32)
        if scaled:
            s = scale(s, buffers[2][step % 2])
        block_position = block[core, step] * layout.block_positions + lax.broadcasted_iota(
            jnp.int32, s.shape, 2
        )
        # What was at the token's own position is gone; itself it has seen.
        own, newest = (x[...].reshape(S * K, G, 1) for x in (group_written, group_last))
        s = jnp.where((block_position <= newest) & (block_position != own), s, MASKED_SCORE)
        new_max = jnp.maximum(max_score[...], s.max(-1, keepdims=True))
        rescale, weights = jnp.exp(max_score[...] - new_max), jnp.exp(s - new_max)
        normalizer[...] = normalizer[...] * rescale + weights.sum(-1, keepdims=True)
        if scaled:
            weights = scale(weights, buffers[3][step % 2])
        weighted_sum[...] = weighted_sum[...] * rescale + jnp.einsum(
            f"kgc,{kv_axes}->kgh", weights.astype(v.dtype), v, preferred_element_type=jnp.float32
        )
        max_score[...] = new_max
        out[...] = (weighted_sum[...] / normalizer[...]).astype(out.dtype).reshape(out.shape)
        for_each_write(finish_writes)


def flash_decode(
    q: Float[Array, "R N H"],
    new_kv: tuple[Array, Array],
    cache: tuple[Array, ...],
    layer: Int[Array, ""],
    written: Int[Array, " R"],
    last: Int[Array, " R"],
    live: LiveBlocks,
    interpret: bool = False,
) -> tuple[Float[Array, "R N H"], tuple[Array, ...]]:
    """Attention over positions 0 .. last[r] of `layer`, and the cache with the token at written[r]
    <= last[r], updated in place. `live`: the `live_blocks` of `last`.

    `new_kv`: keys and values [R K H], which an int8 cache rounds here: as operations of XLA that
    takes longer than reading them. `cache`: keys and values [L R K C H], or [L R K H C] where
    `is_transposed`, and of int8 ones scales [L R K C], with C from `pad_to_blocks`."""
    (R, N, H), K, layout = q.shape, cache[0].shape[2], cache_layout(cache, q.shape[2])
    S, G = layout.group_slots, N // K
    grouped_queries = (q * H**-0.5).astype(q.dtype).reshape(R, K, G, H)
    stored, scaled = cache[0].dtype, len(cache) > 2
    # An int8 cache's are rounded once: XLA leaves products that become float32 as they are.
    dtype = jnp.float32 if scaled else stored
    new_kv = new_kv[0].astype(dtype), new_kv[1].astype(dtype)
    columns = (jnp.broadcast_to(x[:, None, None, None], (R, K, G, 1)) for x in (written, last))
    operands = grouped_queries, *columns, *new_kv

    def group_spec(x: Array) -> pl.BlockSpec:
        def address(core: Any, step: Any, *scalars: Any) -> tuple:
            group = scalars[3]
            return group[core, step], *[0] * (x.ndim - 1)

        return pl.BlockSpec((S, *x.shape[1:]), address)

    def scratch(rows: tuple[int, ...], array: Array, width: int) -> Any:
        shape = (width,) if array.ndim == 4 else (H, width) if layout.transposed else (width, H)
        return pltpu.VMEM((*rows, *shape), array.dtype)

    in_memory = pl.BlockSpec(memory_space=pl.ANY)
    column = pltpu.VMEM((S * K, G, 1), jnp.float32)
    tile_widths = [layout.tile_positions if x.ndim == 5 else TILE_WIDTH for x in cache]
    out, *updated = pl.pallas_call(
        functools.partial(_decode_kernel, layout, scaled),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=SCALARS,
            grid=(layout.cores, live.steps.max()),
            in_specs=[*map(group_spec, operands), *[in_memory] * len(cache)],
            out_specs=[group_spec(grouped_queries), *[in_memory] * len(cache)],
            scratch_shapes=[
                *(scratch((2, S, K), x, layout.block_positions) for x in cache),
                *(scratch((S, K), x, width) for x, width in zip(cache, tile_widths, strict=True)),
                *(column, column, pltpu.VMEM((S * K, G, H), jnp.float32)),
                pltpu.SemaphoreType.DMA((2, len(cache), S)),
                pltpu.SemaphoreType.DMA((len(cache), S)),
                *(
                    pltpu.VMEM((S, K, width), jnp.float32)
                    for width in (H, H, 1, 1)[: 4 if scaled else 0]
                ),
            ],
        ),
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (grouped_queries, *cache)],
        input_output_aliases={SCALARS + len(operands) + i: 1 + i for i in range(len(cache))},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=interpret,
        name="flash_decode",
    )(layer.reshape(1), written, last, *live, *operands, *cache)
    return out.reshape(R, N, H), tuple(updated)
