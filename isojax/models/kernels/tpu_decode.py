"""One token a slot on a TPU: its keys and values written into the cache of all layers in place, and its query attended to what is there.

The grid is (slot, block of positions). Layer and positions are prefetched scalars: the layer is picked by a block's address, so that none
is sliced out of the cache, and the address of a block past the last position is that of the last live one, which the pipeline holds
already and does not fetch again. Softmax runs online over the blocks in float32 (Dao et al., arXiv:2205.14135, algorithm 1, for one row
of queries), and begins with the token itself. jax's paged_attention wants pages [K, pages, positions, H] and does not write.

The write is part of the kernel because XLA's is not free beside one: its scatter wants the cache as [L, R, C, K, H] in memory, so that
beside a kernel that reads [L, R, K, C, H] it turned the whole cache round in every layer (seen in the HLO for v5e). The kernel takes a
narrow head (H below the 128 lanes) as [L, R, K, H, C], which is how XLA lays such a cache out itself; else half of it were padding.
"""

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

NEVER = -1e30
LANES = 128
UNITS = (1, 2, 3, 4, 5, 6, 7, 8)  # of 128 positions in a block, whichever is the most that divides the cache
BLOCK_BYTES = 1 << 20  # of keys, and as many of values; both are held twice, and v5e lets a kernel have 16 MB


class _Form(NamedTuple):
    """How the cache lies: turned is [H, C], else [C, H]. `tile` positions are written back around a new one."""

    turned: bool
    block: int
    tile: int

    @property
    def axis(self) -> int:
        """Positions in a block [K C H] or [K H C]."""
        return 2 if self.turned else 1

    @property
    def letters(self) -> str:
        return "khc" if self.turned else "kch"


def _form(kv_heads: int, positions: int, head_dim: int, item_bytes: int) -> _Form:
    turned = head_dim % LANES != 0
    units, most = positions // LANES, BLOCK_BYTES // (kv_heads * LANES * head_dim * item_bytes)
    block = LANES * max(d for d in UNITS if units % d == 0 and d <= max(most, 1))
    return _Form(turned, block, LANES if turned else 32 // item_bytes)


def whole_blocks(positions: int) -> int:
    """The next number of positions that divides into blocks: a multiple of 128, and above 1024 one without small blocks alone."""
    units = -(-positions // LANES)
    return LANES * next(u for u in itertools.count(units) if u <= max(UNITS) or any(u % d == 0 for d in UNITS[3:]))


def _put(form: _Form, offset: Any, block: Any, new: Any, out: Any) -> None:
    """The tile around `offset` of a block, with one position new [K H], to `out`."""
    start = pl.multiple_of(offset // form.tile * form.tile, form.tile)
    old = block[:, :, pl.ds(start, form.tile)] if form.turned else block[:, pl.ds(start, form.tile), :]
    here = lax.broadcasted_iota(jnp.int32, old.shape, form.axis) == offset - start
    wide = jnp.expand_dims(new.astype(jnp.float32), form.axis)  # float32 holds bfloat16 and int8; their own tiles cannot be turned
    out[...] = jnp.where(here, wide, old.astype(jnp.float32)).astype(out.dtype)


def _kernel(form: _Form, scaled: bool, layer: Any, last: Any, q: Any, *refs: Any) -> None:
    """One block of one slot. q, out [K G H]; new keys and values [K H]; cached [K block H]; scales [K] and [K block]."""
    count = 4 if scaled else 2
    new, cached, written = refs[:count], refs[count : 2 * count], refs[2 * count + 1 : -3]
    out, (top, total, mixed) = refs[2 * count], refs[-3:]
    del layer
    j, last = pl.program_id(1), last[pl.program_id(0)]
    query = q[...]

    @pl.when(j == 0)
    def _begin() -> None:
        k, v = (x[...].astype(jnp.float32) for x in new[:2])
        if scaled:
            k, v = k * new[2][...].T, v * new[3][...].T
        top[...] = (query.astype(jnp.float32) * k[:, None]).sum(-1, keepdims=True)
        total[...] = jnp.ones_like(total)
        mixed[...] = jnp.broadcast_to(v[:, None], mixed.shape)

    @pl.when(j * form.block < last)
    def _add() -> None:
        k, v = (x[...].astype(query.dtype) for x in cached[:2])
        s = jnp.einsum(f"kgh,{form.letters}->kgc", query, k, preferred_element_type=jnp.float32)
        if scaled:
            s = s * cached[2][...][:, None]
        seen = j * form.block + lax.broadcasted_iota(jnp.int32, s.shape, 2) < last
        s = jnp.where(seen, s, NEVER)
        highest = jnp.maximum(top[...], s.max(-1, keepdims=True))
        kept, weights = jnp.exp(top[...] - highest), jnp.exp(s - highest)
        total[...] = total[...] * kept + weights.sum(-1, keepdims=True)
        if scaled:
            weights = weights * cached[3][...][:, None]
        mixed[...] = mixed[...] * kept + jnp.einsum(
            f"kgc,{form.letters}->kgh", weights.astype(v.dtype), v, preferred_element_type=jnp.float32
        )
        top[...] = highest

    @pl.when(j == last // form.block)
    def _write() -> None:
        offset = last % form.block
        for i in range(2):
            _put(form, offset, cached[i], new[i][...], written[i])
        for i in range(2, count):
            start = pl.multiple_of(offset // LANES * LANES, LANES)
            old = cached[i][:, pl.ds(start, LANES)]
            here = lax.broadcasted_iota(jnp.int32, old.shape, 1) == offset - start
            written[i][...] = jnp.where(here, new[i][...].T, old)

    @pl.when(j == pl.num_programs(1) - 1)
    def _finish() -> None:
        out[...] = (mixed[...] / total[...]).astype(out.dtype)


def flash_decode(
    q: Float[Array, "R N H"],
    new: tuple[Array, ...],
    cache: tuple[Array, ...],
    layer: Int[Array, ""],
    positions: Int[Array, " R"],
    interpret: bool = False,
) -> tuple[Float[Array, "R N H"], tuple[Array, ...]]:
    """Attention over positions 0 .. positions[r] of `layer`, and the cache with the token at positions[r] in it.

    `new`: keys and values [R K H], of int8 ones also their scales [R K]. `cache`: keys [L R K H C], values [L R K C H], scales [L R K C],
    C as `whole_blocks` has it; updated in place.
    """
    R, N, H = q.shape
    K, C = cache[1].shape[2:4]
    form = _form(K, C, H, cache[0].dtype.itemsize)
    grouped = (q * H**-0.5).astype(q.dtype).reshape(R, K, N // K, H)

    def lay(cache: tuple[Array, ...]) -> tuple[Array, ...]:
        """As the kernel takes it, and back. To XLA a choice of layout, no copy: the cache of a loop lies as its kernel wants it."""
        keys, values, *scales = cache
        return (keys, values.swapaxes(-1, -2), *scales) if form.turned else (keys.swapaxes(-1, -2), values, *scales)

    kept = lay(cache)
    fresh = tuple(x if x.ndim == 3 else x[:, None] for x in new)

    def spec(x: Array, width: int, at: Any) -> pl.BlockSpec:
        """`width` positions of one slot in the layer, at the block `at(j, position)`."""

        def address(r: Any, j: Any, layer: Any, positions: Any) -> tuple:
            block = at(j, positions[r])
            tail = (block,) if x.ndim == 4 else (0, block) if form.turned else (block, 0)
            return layer[0], r, 0, *tail

        shape = (width,) if x.ndim == 4 else (H, width) if form.turned else (width, H)
        return pl.BlockSpec((None, None, K, *shape), address)

    def slot(x: Array) -> pl.BlockSpec:
        return pl.BlockSpec((None, *x.shape[1:]), lambda r, j, *_: (r, *[0] * (x.ndim - 1)))

    tiles = [form.tile if x.ndim == 5 else LANES for x in kept]
    reads = [spec(x, form.block, lambda j, last: jnp.minimum(j, last // form.block)) for x in kept]
    writes = [spec(x, tile, lambda j, last, tile=tile: last // tile) for x, tile in zip(kept, tiles, strict=True)]
    column = pltpu.VMEM((K, N // K, 1), jnp.float32)
    out, *written = pl.pallas_call(
        functools.partial(_kernel, form, len(cache) > 2),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(R, C // form.block),
            in_specs=[slot(grouped), *map(slot, fresh), *reads],
            out_specs=[slot(grouped), *writes],
            scratch_shapes=[column, column, pltpu.VMEM((K, N // K, H), jnp.float32)],
        ),
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (grouped, *kept)],
        input_output_aliases={3 + len(fresh) + i: 1 + i for i in range(len(kept))},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=interpret,
        name="flash_decode",
    )(layer.reshape(1), positions, grouped, *fresh, *kept)
    return out.reshape(R, N, H), lay(tuple(written))
