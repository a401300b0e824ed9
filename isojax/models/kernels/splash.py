"""Causal attention on a TPU by jax's splash attention, with prefix and responses as one row of
keys.

Positions of the prefix that are not live have another segment than the queries.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jaxtyping import Array, Float

from isojax.models.kernels.prefix import PrefixKV

TILE_WIDTH = 128
BLOCK_SIZES = (512, 384, 256, 128)  # positions of a block; the first that divides the row


@functools.cache
def _make_kernel(
    heads: int, queries: int, keys: int, offset: int, window: int | None, interpret: bool
) -> splash.SplashAttentionKernel:
    """Make the kernel of rows of these sizes; one is kept for each set of arguments.

    `heads`: N. `queries`, `keys`: padded to whole tiles (multiples of TILE_WIDTH), so that a block
    size divides them. `offset`: keys before the one of the first query, p of a prompt. `window`: a
    query sees itself and window - 1 keys before it; None: all. `interpret`: for tests, on any
    backend."""
    head_mask: Any = masks.CausalMask((queries, keys), offset)
    if window is not None:
        head_mask = masks.LocalMask((queries, keys), (window - 1, 0), offset)
    mask = masks.MultiHeadMask([head_mask] * heads)

    # the same blocks in the forward pass and in both kernels of the gradient
    query_block = _block_size(queries)
    key_block = _block_size(keys)
    sizes = splash.BlockSizes(
        block_q=query_block,
        block_q_dkv=query_block,
        block_q_dq=query_block,
        block_kv=key_block,
        block_kv_compute=key_block,
        block_kv_dkv=key_block,
        block_kv_dkv_compute=key_block,
        block_kv_dq=key_block,
    )
    # the mask's tables are constants, made while something is traced
    with jax.ensure_compile_time_eval():
        return splash.make_splash_mha_single_device(mask, block_sizes=sizes, interpret=interpret)


def _block_size(positions: int) -> int:
    return next(size for size in BLOCK_SIZES if positions % size == 0)


def _whole_tiles(positions: int) -> int:
    """The next multiple of TILE_WIDTH."""
    return -(-positions // TILE_WIDTH) * TILE_WIDTH


def splash_attention(
    q: Float[Array, "b t N H"],
    k: Float[Array, "b K t H"],
    v: Float[Array, "b K t H"],
    prefix: PrefixKV | None = None,
    window: int | None = None,
    interpret: bool = False,
) -> Float[Array, "b t N H"]:
    """Attend causally from q over k, v and the live part of `prefix`, by splash attention.

    Differentiable; scores and softmax are in float32. `prefix`: the prompt that each row continues,
    keys and values [b K p H], of which only the first `lengths` positions are live. `window`: a
    token sees itself and window - 1 positions before it; None: all. `interpret`: whether the kernel
    is interpreted, on any backend, for tests. Positions are padded to whole tiles, and the padding
    is cut off again."""
    b, t, N, H = q.shape
    p = 0 if prefix is None else prefix.keys.shape[2]
    queries = _whole_tiles(t)
    keys = _whole_tiles(p + t)

    # Queries are of segment 1, and see no key of another segment.
    key_segments = jnp.ones((b, keys), jnp.int32)
    if prefix is not None:
        prefix_kv = [prefix.keys, prefix.values]
        lengths = prefix.lengths
        is_live = jnp.arange(p)[None] < lengths[:, None]
        if window is not None:
            # A mask of distances is the same for all rows, so prefixes end where their rows begin.
            move_right = jax.vmap(lambda x, shift: jnp.roll(x, shift, 1))
            prefix_kv = [move_right(x, p - lengths) for x in prefix_kv]
            # the prompts have moved to the right end of their p positions
            is_live = jnp.arange(p)[None] >= p - lengths[:, None]

        k = jnp.concatenate([prefix_kv[0], k], 2)
        v = jnp.concatenate([prefix_kv[1], v], 2)
        # [b keys]. The row's own keys, and padding after them, may be of the queries' segment: the
        # causal mask alone keeps queries from later keys.
        is_seen = jnp.pad(is_live, ((0, 0), (0, keys - p)), constant_values=True)
        key_segments = is_seen.astype(jnp.int32)

    q = (q * H**-0.5).astype(q.dtype).swapaxes(1, 2)
    q = jnp.pad(q, ((0, 0), (0, 0), (0, queries - t), (0, 0)))
    k = jnp.pad(k, ((0, 0), (0, 0), (0, keys - p - t), (0, 0)))
    v = jnp.pad(v, ((0, 0), (0, 0), (0, keys - p - t), (0, 0)))

    segments = splash.SegmentIds(q=jnp.ones((b, queries), jnp.int32), kv=key_segments)
    kernel = _make_kernel(N, queries, keys, p, window, interpret)
    out: Any = jax.vmap(kernel)(q, k, v, segments)
    return out[:, :, :t].swapaxes(1, 2)
