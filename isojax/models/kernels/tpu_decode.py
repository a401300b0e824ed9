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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from isojax.models.kernels import tpu_cache_blocks
from isojax.models.kernels.tpu_cache_blocks import TILE_WIDTH, is_transposed

MASKED_SCORE = -1e30
MAX_GROUP_SLOTS = 16
# of the blocks of a group's keys and values, each held twice; a kernel has 16 MiB on v5e
BUFFER_BYTES = 8 << 20
SCALARS = 6  # arrays that the kernel has before its grid begins: layer, written, last, LiveBlocks
# of a chip (v4, v5p), which share the parallel axis of a grid; a chip of one core runs it in turn
MAX_CORES = 2


class CacheLayout(NamedTuple):
    """How a step of the grid reads the cache, in positions, blocks and groups of slots.

    A block of `block_positions` is read at once. `tile_positions`, the fewest that memory can be
    written by, are written back with a new token. cores * group_slots divides the number of slots
    R."""

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


def _largest_divisor(number: int, limit: int) -> int:
    return max(d for d in range(1, max(limit, 1) + 1) if number % d == 0)


def cache_layout(cache: tuple[Array, ...], head_dim: int) -> CacheLayout:
    """Decide how a step of the grid reads this cache.

    `cache`: keys, values, and scales if they are int8. Keys are its first array, [L R K H C] where
    `is_transposed(head_dim)`, else [L R K C H]; C is a multiple of TILE_WIDTH (`pad_to_blocks`)."""
    keys = cache[0]
    transposed = is_transposed(head_dim)
    R, K = keys.shape[1:3]
    item_bytes = keys.dtype.itemsize

    units = keys.shape[4 if transposed else 3] // TILE_WIDTH  # of 128 positions, all of C
    block_units = _largest_divisor(units, tpu_cache_blocks.MAX_BLOCK_UNITS)
    cores = _largest_divisor(R, MAX_CORES)

    # keys and values, each twice: a block is read while the one before it is attended to
    slot_bytes = 4 * K * TILE_WIDTH * block_units * head_dim * item_bytes
    fitting_slots = min(MAX_GROUP_SLOTS, BUFFER_BYTES // slot_bytes)
    # A tile has TILE_WIDTH numbers along its last axis and 32 bytes along the one before it: 8 rows
    # of float32, 16 of bfloat16, 32 of int8. Positions are the last axis where keys are transposed.
    return CacheLayout(
        transposed=transposed,
        block_positions=TILE_WIDTH * block_units,
        tile_positions=TILE_WIDTH if transposed else 32 // item_bytes,
        block_count=units // block_units,
        cores=cores,
        group_slots=_largest_divisor(R // cores, fitting_slots),
    )


def live_blocks(last: Int[Array, " R"], cache: tuple[Array, ...], head_dim: int) -> LiveBlocks:
    """List the blocks that each grid step reads, for slots that hold positions 0 .. last[r].

    The list is the same in all layers with this cache. `last` is int32, at least 0. `cache`,
    `head_dim`: as in `cache_layout`. Slots are in the order core, group, slot of the group. A group
    has as many steps as its longest slot has blocks, and its steps follow each other: block 0, 1,
    ..."""
    layout = cache_layout(cache, head_dim)
    blocks_of_slot = last // layout.block_positions + 1
    by_group = blocks_of_slot.reshape(layout.cores, -1, layout.group_slots)
    counts = by_group.max(-1)  # blocks of the longest slot of each group
    groups = counts.shape[1]  # of a core
    max_steps = groups * layout.block_count

    # As sums of products, not by cumsum and gathers: each of these takes a TPU a microsecond.
    # [cores groups]: the step after each group's last one, a running sum of counts
    ends = (counts[:, None] * jnp.tri(groups, dtype=jnp.int32)[None]).sum(-1)
    # steps since a group's first one, [cores steps groups]
    since_begin = jnp.arange(max_steps)[None, :, None] - (ends - counts)[:, None]
    # The last group also has the steps beyond its own, which do nothing.
    is_last = jnp.arange(groups)[None, None] == groups - 1
    of_group = (since_begin >= 0) & ((since_begin < counts[:, None]) | is_last)

    # Exactly one group is true in each row of `of_group`, so the sums below pick its entry.
    group = jnp.arange(layout.cores * groups).reshape(layout.cores, 1, -1)
    return LiveBlocks(
        group=(group * of_group).sum(-1),
        block=(since_begin * of_group).sum(-1),
        steps=ends[:, -1],
    )


def _at_positions(layout: CacheLayout, array: Any, start: Any, count: int) -> Any:
    """Return a reference to positions start .. start + count - 1 of an array.

    `array`: keys or values [K C H], or [K H C] where transposed, or scales [K C]. `start` must be a
    multiple of count."""
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


class KernelRefs(NamedTuple):
    """The kernel's arrays, as references. Where tokens go, and up to where slots read, comes twice:
    as scalars of all slots, which address memory, and as columns of a group's, to mask scores."""

    # scalars, there before the grid begins
    layer: Any  # [1]
    written: Any  # [R], where each slot's token goes
    last: Any  # [R], up to where each slot reads
    live: LiveBlocks

    # of a group
    q: Any  # [S K G H]
    group_written: Any  # [S K G 1]
    group_last: Any  # [S K G 1]
    new_kv: tuple[Any, ...]  # [S K H]
    out: Any  # [S K G H]

    cache: tuple[Any, ...]  # the whole of it, in memory

    # scratch
    buffers: tuple[Any, ...]  # two blocks of each array of the cache for each slot, [2 S K ...]
    tiles: tuple[Any, ...]  # each slot's part of a block that is written back, [S K ...]
    max_score: Any  # [SK G 1]
    normalizer: Any  # [SK G 1]
    weighted_sum: Any  # [SK G H]
    read_done: Any  # semaphores of the copies of blocks
    write_done: Any  # and of tiles
    rounded: tuple[Any, ...]  # new keys, values [S K H] and scales [S K 1] of an int8 cache


def name_refs(refs: Sequence[Any], arrays: int) -> KernelRefs:
    """Name the kernel's arguments, which `pallas_call` passes as one list.

    Their order is scalars, inputs, outputs, scratch, each in the order in which `flash_decode`
    gives them: a change there is one here. `arrays`: how many the cache has, 2, or 4 with int8's
    scales."""
    in_order = iter(refs)

    def take(count: int) -> tuple[Any, ...]:
        return tuple(itertools.islice(in_order, count))

    layer, written, last = take(3)
    live = LiveBlocks(*take(3))
    q, group_written, group_last = take(3)
    new_kv = take(2)
    take(arrays)  # the cache as an input: it is used as the output, which is the same memory
    (out,) = take(1)
    cache = take(arrays)
    buffers = take(arrays)
    tiles = take(arrays)
    max_score, normalizer, weighted_sum, read_done, write_done = take(5)
    return KernelRefs(
        layer=layer,
        written=written,
        last=last,
        live=live,
        q=q,
        group_written=group_written,
        group_last=group_last,
        new_kv=new_kv,
        out=out,
        cache=cache,
        buffers=buffers,
        tiles=tiles,
        max_score=max_score,
        normalizer=normalizer,
        weighted_sum=weighted_sum,
        read_done=read_done,
        write_done=write_done,
        rounded=tuple(in_order),
    )


@dataclass(frozen=True)
class BlockCopies:
    """The copies between memory and a core: of blocks that steps read, and of the tiles with the
    new tokens, which one step writes."""

    layout: CacheLayout
    refs: KernelRefs
    core: Any
    step: Any  # of the grid, on this core

    @property
    def group_slots(self) -> int:
        return self.refs.q.shape[0]

    def slot(self, step: Any, s: int) -> Any:
        """The number in the cache of slot s of a step's group."""
        return self.refs.live.group[self.core, step] * self.group_slots + s

    def for_each_read(self, step: Any, act: Callable[[Any], None]) -> None:
        """Call `act` with the copies of a step's blocks, of the slots that reach so far.

        `act` starts a copy or waits for it, and must see the same copies both times. A copy is of
        one array of the cache and one slot."""
        refs, block_positions = self.refs, self.layout.block_positions
        block = refs.live.block
        for s in range(self.group_slots):

            @pl.when(block[self.core, step] <= refs.last[self.slot(step, s)] // block_positions)
            def _copy(s: int = s) -> None:
                for a, array in enumerate(refs.cache):
                    of_slot = array.at[refs.layer[0], self.slot(step, s)]
                    start = block[self.core, step] * block_positions
                    source = _at_positions(self.layout, of_slot, start, block_positions)
                    buffer = refs.buffers[a].at[step % 2, s]
                    act(pltpu.make_async_copy(source, buffer, refs.read_done.at[step % 2, a, s]))

    def for_each_write(self, act: Callable[[int, Any], None]) -> None:
        """`act` on slots whose token goes into this block, and its position."""
        block = self.refs.live.block
        for s in range(self.group_slots):
            position = self.refs.written[self.slot(self.step, s)]

            @pl.when(block[self.core, self.step] == position // self.layout.block_positions)
            def _act(s: int = s, position: Any = position) -> None:
                act(s, position)

    def tile_width(self, a: int) -> int:
        """Positions of a tile of array `a`: of keys or values, or of scales."""
        return self.layout.tile_positions if a < 2 else TILE_WIDTH

    def write(self, a: int, s: int, position: Any) -> Any:
        """The copy of a tile into the cache."""
        refs, width = self.refs, self.tile_width(a)
        of_slot = refs.cache[a].at[refs.layer[0], self.slot(self.step, s)]
        destination = _at_positions(self.layout, of_slot, position // width * width, width)
        return pltpu.make_async_copy(refs.tiles[a].at[s], destination, refs.write_done.at[a, s])

    def start_writes(self, to_cache: tuple[Any, ...], s: int, position: Any) -> None:
        """A slot's token into the tile of the block that it is in, and that tile to memory."""
        refs, layout = self.refs, self.layout
        for a in range(len(refs.cache)):
            offset = position % layout.block_positions
            width = self.tile_width(a)
            buffer = refs.buffers[a].at[self.step % 2, s]
            old = _at_positions(layout, buffer, offset // width * width, width)
            new_tile = _with_new_position(layout, old[...], to_cache[a][s], offset % width)
            refs.tiles[a][s] = new_tile
            self.write(a, s, position).start()

    def finish_writes(self, s: int, position: Any) -> None:
        for a in range(len(self.refs.cache)):
            self.write(a, s, position).wait()


def _decode_kernel(layout: CacheLayout, scaled: bool, *all_refs: Any) -> None:
    """Run one step of the grid: one block of each of the S slots of a group.

    `scaled`: whether the cache is int8, and has scales. `all_refs`: as `name_refs` takes them. The
    grid is (cores, steps); a core of fewer steps than the longest one does nothing in the others.
    Buffers hold two blocks: step i attends to half i % 2, while the blocks of step i + 1 arrive in
    the other."""
    refs = name_refs(all_refs, arrays=4 if scaled else 2)
    block, steps = refs.live.block, refs.live.steps
    S, K, G, H = refs.q.shape
    core = pl.program_id(0)
    step = pl.program_id(1)
    copies = BlockCopies(layout, refs, core, step)

    def scale(by_row: Array, scales: Array) -> Array:
        """Scores or weights [SK G c], times the scales [S K c] of positions."""
        return (by_row.reshape(S, K, G, -1) * scales[:, :, None]).reshape(by_row.shape)

    @pl.when(step == 0)
    def _begin() -> None:
        # Of values, and of their scales in an int8 cache: what no copy has filled there has weight
        # 0, and must be finite.
        for values in refs.buffers[1::2]:
            values[...] = jnp.zeros_like(values)
        copies.for_each_read(0, lambda copy: copy.start())

    @pl.when(step + 1 < steps[core])
    def _read_ahead() -> None:
        copies.for_each_read(step + 1, lambda copy: copy.start())

    @pl.when(step < steps[core])
    def _attend() -> None:
        """Add this step's blocks to the group's running softmax, and write the new token's tile.

        From outside come refs, copies, block, core and step. Block 0 of a group starts the sums
        with the token itself (`_initialize`); the order in here matters: copies must have arrived
        before they are read, and a tile is written from a block that has arrived."""
        query = refs.q[...].reshape(S * K, G, H)
        kv_axes = "khc" if layout.transposed else "kch"

        @pl.when(block[core, step] == 0)
        def _initialize() -> None:
            """The token's own key and value are the first that its query sees."""
            k, v = (x[...].astype(jnp.float32) for x in refs.new_kv)
            if scaled:  # the token is to see itself as later ones will
                k, k_scale = _to_int8(k)
                v, v_scale = _to_int8(v)
                for rounded, x in zip(refs.rounded, (k, v, k_scale, v_scale), strict=True):
                    rounded[...] = x
                k, v = k * k_scale, v * v_scale
            k, v = (x.reshape(S * K, 1, H) for x in (k, v))
            refs.max_score[...] = (query.astype(jnp.float32) * k).sum(-1, keepdims=True)
            refs.normalizer[...] = jnp.ones_like(refs.normalizer)
            refs.weighted_sum[...] = jnp.broadcast_to(v, refs.weighted_sum.shape)

        # the copies that the step before has started, or `_begin`
        copies.for_each_read(step, lambda copy: copy.wait())
        to_cache = refs.rounded if scaled else refs.new_kv
        copies.for_each_write(functools.partial(copies.start_writes, to_cache))

        k, v = (
            x[step % 2].reshape(S * K, *x.shape[3:]).astype(query.dtype) for x in refs.buffers[:2]
        )
        scores = jnp.einsum(f"kgh,{kv_axes}->kgc", query, k, preferred_element_type=jnp.float32)
        if scaled:
            # buffers are of keys, values, keys' scales, values' scales
            scores = scale(scores, refs.buffers[2][step % 2])

        # The entry at the token's position is the one that it replaces; the token itself is in the
        # sums already.
        start = block[core, step] * layout.block_positions
        position = start + lax.broadcasted_iota(jnp.int32, scores.shape, 2)
        token_position = refs.group_written[...].reshape(S * K, G, 1)
        last_position = refs.group_last[...].reshape(S * K, G, 1)
        is_seen = (position <= last_position) & (position != token_position)
        scores = jnp.where(is_seen, scores, MASKED_SCORE)

        # What the blocks before have summed was relative to their own largest score.
        new_max = jnp.maximum(refs.max_score[...], scores.max(-1, keepdims=True))
        rescale = jnp.exp(refs.max_score[...] - new_max)
        weights = jnp.exp(scores - new_max)
        refs.normalizer[...] = refs.normalizer[...] * rescale + weights.sum(-1, keepdims=True)
        if scaled:
            weights = scale(weights, refs.buffers[3][step % 2])
        refs.weighted_sum[...] = refs.weighted_sum[...] * rescale + jnp.einsum(
            f"kgc,{kv_axes}->kgh", weights.astype(v.dtype), v, preferred_element_type=jnp.float32
        )
        refs.max_score[...] = new_max

        # Each step of a group writes what it knows so far; the last one's stays.
        attended = refs.weighted_sum[...] / refs.normalizer[...]
        refs.out[...] = attended.astype(refs.out.dtype).reshape(refs.out.shape)
        copies.for_each_write(copies.finish_writes)


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
    """Attend to positions 0 .. last[r] of `layer`, and write the new token at written[r], in place.

    `q` [R N H]; `new_kv`: keys and values [R K H], which an int8 cache rounds in here: as
    operations of XLA that takes longer than reading them. `cache`: keys and values [L R K C H], or
    [L R K H C] where `is_transposed`, and of int8 ones scales [L R K C], with C from
    `pad_to_blocks`. `written`, `last`: int32, with written[r] <= last[r] < C. `live`: the
    `live_blocks` of the same `last` and cache. `interpret`: for tests, on any backend. Return: the
    mixed values [R N H] in q's precision, and the cache with the token in it, whose arrays are
    those given."""
    R, N, H = q.shape
    K = cache[0].shape[2]
    stored_dtype = cache[0].dtype
    layout = cache_layout(cache, H)
    S = layout.group_slots
    G = N // K
    scaled = len(cache) > 2

    # What a step has of its group: queries, where tokens go and up to where slots read, new keys
    # and values.
    grouped_queries = (q * H**-0.5).astype(q.dtype).reshape(R, K, G, H)
    # An int8 cache's are rounded once: XLA leaves products that become float32 as they are.
    new_dtype = jnp.float32 if scaled else stored_dtype
    new_kv = new_kv[0].astype(new_dtype), new_kv[1].astype(new_dtype)
    # of written and of last, to be compared with scores [SK G c]
    columns = [jnp.broadcast_to(x[:, None, None, None], (R, K, G, 1)) for x in (written, last)]
    operands = (grouped_queries, *columns, *new_kv)

    def group_spec(x: Array) -> pl.BlockSpec:
        """The part of an array [R ...] that belongs to a step's group."""

        # Behind the step come the scalars, as the kernel has them.
        def address(
            core: Any, step: Any, layer: Any, written: Any, last: Any, group: Any, *_: Any
        ) -> tuple:
            return group[core, step], *[0] * (x.ndim - 1)

        return pl.BlockSpec((S, *x.shape[1:]), address)

    def scratch(rows: tuple[int, ...], array: Array, width: int) -> Any:
        """Room for `width` positions of an array of the cache, for each of these rows."""
        if array.ndim == 4:  # scales
            shape: tuple[int, ...] = (width,)
        elif layout.transposed:
            shape = (H, width)
        else:
            shape = (width, H)
        return pltpu.VMEM((*rows, *shape), array.dtype)

    in_memory = pl.BlockSpec(memory_space=pl.ANY)
    column = pltpu.VMEM((S * K, G, 1), jnp.float32)
    buffers = [scratch((2, S, K), x, layout.block_positions) for x in cache]
    tiles = []
    for x in cache:
        is_scale = x.ndim == 4
        width = TILE_WIDTH if is_scale else layout.tile_positions
        tiles.append(scratch((S, K), x, width))
    # of new keys, values and their scales
    rounded_widths = (H, H, 1, 1) if scaled else ()

    out, *updated = pl.pallas_call(
        functools.partial(_decode_kernel, layout, scaled),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=SCALARS,
            grid=(layout.cores, live.steps.max()),
            in_specs=[*map(group_spec, operands), *[in_memory] * len(cache)],
            out_specs=[group_spec(grouped_queries), *[in_memory] * len(cache)],
            # in the order in which `name_refs` takes them
            scratch_shapes=[
                *buffers,
                *tiles,
                column,
                column,
                pltpu.VMEM((S * K, G, H), jnp.float32),
                pltpu.SemaphoreType.DMA((2, len(cache), S)),
                pltpu.SemaphoreType.DMA((len(cache), S)),
                *(pltpu.VMEM((S, K, width), jnp.float32) for width in rounded_widths),
            ],
        ),
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (grouped_queries, *cache)],
        # Each array of the cache is written in place: as input it follows scalars and operands, as
        # output it follows `out`.
        input_output_aliases={SCALARS + len(operands) + i: 1 + i for i in range(len(cache))},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=interpret,
        name="flash_decode",
    )(layer.reshape(1), written, last, *live, *operands, *cache)
    return out.reshape(R, N, H), tuple(updated)
