"""Attention on NVIDIA GPUs by cuDNN, through jax.nn.dot_product_attention; bfloat16 and float16
alone.

Prefix and responses are one row of keys under a mask, because jax gives cuDNN's log-sum-exp no
gradient.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# keys and values [b K p H]; how many positions of each row are live, i[b]
PrefixKV = tuple[Array, Array, Array]


def cudnn_attention(
    q: Float[Array, "b t N H"],
    k: Float[Array, "b K t H"],
    v: Float[Array, "b K t H"],
    prefix: PrefixKV | None = None,
    window: int | None = None,
) -> Float[Array, "b t N H"]:
    """Causal attention of q over k, v and the live part of `prefix`. Differentiable. `window`: as
    in models/attention.py."""
    if prefix is None:
        k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
        # positions before a token, and after it
        local_window = None if window is None else (window - 1, 0)
        return jax.nn.dot_product_attention(
            q, k, v, is_causal=True, local_window_size=local_window, implementation="cudnn"
        )
    t, p = q.shape[1], prefix[0].shape[2]
    # with a mask, cuDNN's gradient wants even numbers of queries and of keys
    padding = t % 2, (p + t) % 2
    k, v = (jnp.concatenate([before, x], 2) for before, x in zip(prefix[:2], (k, v), strict=True))
    k, v = (jnp.pad(x, ((0, 0), (0, 0), (0, padding[1]), (0, 0))).swapaxes(1, 2) for x in (k, v))
    q = jnp.pad(q, ((0, 0), (0, padding[0]), (0, 0), (0, 0)))
    key_positions = jnp.arange(p + t + padding[1])[None, None]
    queries = jnp.arange(t + padding[0])[None, :, None]
    lengths = jnp.minimum(prefix[2], p)[:, None, None]
    causal = (key_positions >= p) & (key_positions - p <= queries)
    in_prefix = key_positions < lengths
    if window is not None:
        causal &= key_positions - p > queries - window
        in_prefix &= key_positions > lengths + queries - window
    mask = causal | in_prefix
    return jax.nn.dot_product_attention(q, k, v, mask=mask[:, None], implementation="cudnn")[:, :t]
