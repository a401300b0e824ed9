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

TILE_WIDTH = 128
PrefixKV = tuple[Array, Array, Array]  # keys and values [b K p H], live lengths i[b]


@functools.cache
def _make_kernel(
    heads: int, queries: int, keys: int, offset: int, window: int | None, interpret: bool
) -> splash.SplashAttentionKernel:
    head_mask: Any = masks.CausalMask((queries, keys), offset)
    if window is not None:
        head_mask = masks.LocalMask((queries, keys), (window - 1, 0), offset)
    mask = masks.MultiHeadMask([head_mask] * heads)
    q, k = (
        next(block for block in (512, 384, 256, 128) if size % block == 0)
        for size in (queries, keys)
    )
    query_blocks: dict[str, Any] = dict.fromkeys(("block_q", "block_q_dkv", "block_q_dq"), q)
    key_names = (
        "block_kv",
        "block_kv_compute",
        "block_kv_dkv",
        "block_kv_dkv_compute",
        "block_kv_dq",
    )
    key_blocks: dict[str, Any] = dict.fromkeys(key_names, k)
    sizes = splash.BlockSizes(**query_blocks, **key_blocks)
    # the mask's tables are constants, made while something is traced
    with jax.ensure_compile_time_eval():
        return splash.make_splash_mha_single_device(mask, block_sizes=sizes, interpret=interpret)


def splash_attention(
    q: Float[Array, "b t N H"],
    k: Float[Array, "b K t H"],
    v: Float[Array, "b K t H"],
    prefix: PrefixKV | None = None,
    window: int | None = None,
    interpret: bool = False,
) -> Float[Array, "b t N H"]:
    """Causal attention of q over k, v and the live part of `prefix`. Differentiable; scores and
    softmax in float32. `window`: as in models/attention.py."""
    b, t, N, H = q.shape
    p = 0 if prefix is None else prefix[0].shape[2]
    queries = -(-t // TILE_WIDTH) * TILE_WIDTH
    keys = -(-(p + t) // TILE_WIDTH) * TILE_WIDTH
    key_segments = jnp.ones((b, keys), jnp.int32)
    if prefix is not None:
        before, lengths = prefix[:2], prefix[2]
        is_live = jnp.arange(p)[None] < lengths[:, None]
        if window is not None:
            # A mask of distances is the same for all rows, so prefixes end where their rows begin.
            before = [
                jax.vmap(lambda x, shift: jnp.roll(x, shift, 1))(x, p - lengths) for x in before
            ]
            is_live = jnp.arange(p)[None] >= p - lengths[:, None]
        k, v = (
            jnp.concatenate([of_prefix, x], 2) for of_prefix, x in zip(before, (k, v), strict=True)
        )
        key_segments = jnp.pad(is_live, ((0, 0), (0, keys - p)), constant_values=True).astype(
            jnp.int32
        )
    q = (q * H**-0.5).astype(q.dtype).swapaxes(1, 2)
    q = jnp.pad(q, ((0, 0), (0, 0), (0, queries - t), (0, 0)))
    k, v = (jnp.pad(x, ((0, 0), (0, 0), (0, keys - p - t), (0, 0))) for x in (k, v))
    segments = splash.SegmentIds(q=jnp.ones((b, queries), jnp.int32), kv=key_segments)
    out: Any = jax.vmap(_make_kernel(N, queries, keys, p, window, interpret))(q, k, v, segments)
    return out[:, :, :t].swapaxes(1, 2)
