"""Attention on NVIDIA GPUs by cuDNN, through jax.nn.dot_product_attention; bfloat16 and float16
alone.

Prefix and responses are one row of keys under a mask, because jax gives cuDNN's log-sum-exp no
gradient.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from isojax.models.kernels.prefix import PrefixKV


def cudnn_attention(
    q: Float[Array, "b t N H"],
    k: Float[Array, "b K t H"],
    v: Float[Array, "b K t H"],
    prefix: PrefixKV | None = None,
    window: int | None = None,
) -> Float[Array, "b t N H"]:
    """Attend causally from q over k, v and the live part of `prefix`, by cuDNN; differentiable.

    In bfloat16 or float16. `prefix`: the prompt that each row continues, keys and values [b K p H],
    of which only the first `lengths` positions are live. `window`: a token sees itself and window -
    1 positions before it; None: all."""
    if prefix is None:
        k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
        # positions before a token, and after it
        local_window = None if window is None else (window - 1, 0)
        return jax.nn.dot_product_attention(
            q, k, v, is_causal=True, local_window_size=local_window, implementation="cudnn"
        )

    t = q.shape[1]
    p = prefix.keys.shape[2]
    # With a mask, cuDNN's gradient wants even numbers of queries and of keys.
    query_padding = t % 2
    key_padding = (p + t) % 2

    # From here on, keys are the prompt's p, the row's t, and padding: [b K p+t+pad H]. jax wants
    # heads behind positions: [b c K H].
    k = jnp.concatenate([prefix.keys, k], 2)
    v = jnp.concatenate([prefix.values, v], 2)
    k = jnp.pad(k, ((0, 0), (0, 0), (0, key_padding), (0, 0))).swapaxes(1, 2)
    v = jnp.pad(v, ((0, 0), (0, 0), (0, key_padding), (0, 0))).swapaxes(1, 2)
    q = jnp.pad(q, ((0, 0), (0, query_padding), (0, 0), (0, 0)))

    # Keys p and later are the row's own; query i of a row is at position lengths + i of the text.
    keys = jnp.arange(p + t + key_padding)[None, None]
    queries = jnp.arange(t + query_padding)[None, :, None]
    lengths = jnp.minimum(prefix.lengths, p)[:, None, None]
    # Padded keys come after every true query of the row, so the causal test leaves them out.
    in_row = (keys >= p) & (keys - p <= queries)
    in_prefix = keys < lengths
    if window is not None:
        in_row &= keys - p > queries - window
        in_prefix &= keys > lengths + queries - window
    mask = in_row | in_prefix

    out = jax.nn.dot_product_attention(q, k, v, mask=mask[:, None], implementation="cudnn")
    return out[:, :t]
