"""Attention of the decoder."""

import functools

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

NEVER = -1e30


def attend(q: Float[Array, "b t N H"], parts: list[tuple[Array, Array, Bool[Array, "b t c"]]]) -> Float[Array, "b t N H"]:
    """Softmax attention over the concatenation of `parts`, each (keys [b K c H], values [b K c H], mask [b t c]), without joining them.

    Scores and softmax in float32.
    """
    b, t, heads, head_dim = q.shape
    kv_heads = parts[0][0].shape[1]
    q = q.reshape(b, t, kv_heads, heads // kv_heads, head_dim) * head_dim**-0.5
    scores = [
        jnp.where(mask[:, None, None], jnp.einsum("btkgh,bkch->bkgtc", q, k, preferred_element_type=jnp.float32), NEVER)
        for k, _, mask in parts
    ]
    top = scores[0].max(-1)
    for s in scores[1:]:
        top = jnp.maximum(top, s.max(-1))
    top = lax.stop_gradient(top)[..., None]
    weights = [jnp.exp(s - top) for s in scores]
    total = functools.reduce(jnp.add, [w.sum(-1) for w in weights])
    mixed = functools.reduce(
        jnp.add, [jnp.einsum("bkgtc,bkch->btkgh", w.astype(v.dtype), v) for w, (_, v, _) in zip(weights, parts, strict=True)]
    )
    return (mixed / total.transpose(0, 3, 1, 2)[..., None].astype(q.dtype)).reshape(b, t, heads, head_dim)
