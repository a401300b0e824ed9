"""What the models do for XLA:CPU alone, where small matrix products and their layout decide the
time."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from isojax.distributed.sharding import weights_are_split

MAX_SUMMED_INPUTS = 384  # inputs that `sum_in_blocks` adds up at once
# positions of keys and values up to which `sum_over_queries` transposes a matrix
MAX_TRANSPOSED_POSITIONS = 128
# `small_head_products` is for heads and positions within these
MAX_SMALL_HEAD_DIM = 32
MIN_PRODUCT_POSITIONS = 32


def small_batch_matmul(
    x: Float[Array, "r i"], output_major: Float[Array, "o i"], dtype: Any = None
) -> Float[Array, "r o"]:
    """Multiply few rows x by a matrix that is stored as its transpose.

    w is then packed in the order in which it is stored. `dtype`: of the result; None: x's. The
    barriers keep XLA from reversing the product again, and from moving a transpose in front of a
    loop."""
    stored = lax.optimization_barrier(output_major)
    product = jnp.einsum("oi,ri->or", stored, x, preferred_element_type=dtype)
    return lax.optimization_barrier(product).T


def small_head_products(
    q: Float[Array, "Z K g H"], keys: Float[Array, "Z K H c"]
) -> Float[Array, "Z K g c"]:
    """Return each query's products with keys, in float32.

    Few and small ones are computed as a sum over the H numbers of a head, which XLA:CPU runs as one
    loop."""
    H, c = keys.shape[2:]
    if H > MAX_SMALL_HEAD_DIM or c >= MIN_PRODUCT_POSITIONS:
        return jnp.einsum("zkgh,zkhc->zkgc", q, keys, preferred_element_type=jnp.float32)
    q, keys = q.astype(jnp.float32), keys.astype(jnp.float32)
    return functools.reduce(jnp.add, [q[..., h, None] * keys[:, :, None, h] for h in range(H)])


def sum_over_queries(
    x: Float[Array, "b K q c"], y: Float[Array, "b K q H"]
) -> Float[Array, "b K c H"]:
    """Compute the gradient of keys or values, a sum over queries: x transposed, times y.

    `x`: weights of keys, or gradients of scores; `y`: gradients of outputs, or queries; q counts
    the queries of all heads of a key. XLA:CPU does many small products together where queries are
    the last axis, which a barrier enforces; with more than MAX_TRANSPOSED_POSITIONS keys, the
    transpose takes as long as it saves."""

    def plain(x: Array, y: Array) -> Array:
        return jnp.einsum("bkqc,bkqh->bkch", x, y)

    def transposed(x: Array, y: Array) -> Array:
        return jnp.einsum("bkcq,bkqh->bkch", lax.optimization_barrier(x.swapaxes(-1, -2)), y)

    if x.shape[-1] > MAX_TRANSPOSED_POSITIONS:
        return plain(x, y)
    # decided when the program is compiled for a platform, not while it is traced
    return lax.platform_dependent(x, y, cpu=transposed, default=plain)


def sum_in_blocks(
    mlp_out: Float[Array, "b t D"],
    gated: Float[Array, "b t F"],
    down: Float[Array, "F D"],
    first_tokens: slice,
) -> Float[Array, "b t D"]:
    """Correct `mlp_out` = gated @ down at sequences' first tokens, by sums over blocks of inputs.

    In some models (SmolLM2) large activations cancel at a first token, and one sum over all inputs
    would be most of float32's error; a block has at most MAX_SUMMED_INPUTS. `gated`: the inputs of
    the product; `down`: its matrix. `first_tokens`: the tokens on axis 1 that begin sequences, such
    as slice(1), or slice(0, g P, P) where g prompts are in one row. The gradient is that of
    `mlp_out`, which comes back as it is where inputs are few, in other precisions, and where
    devices share weights."""
    inputs, outputs = down.shape
    is_split = weights_are_split(jax.sharding.get_abstract_mesh())
    if inputs <= MAX_SUMMED_INPUTS or mlp_out.dtype != jnp.float32 or is_split:
        return mlp_out

    # as few blocks as fit, of one size
    blocks = -(-inputs // MAX_SUMMED_INPUTS)
    while inputs % blocks:
        blocks += 1

    x = gated[:, first_tokens]
    w = down.reshape(blocks, -1, outputs)
    x = x.reshape(*x.shape[:2], blocks, -1)
    blocked_sum = jnp.einsum("btki,kio->btko", x, w).sum(2)
    # Only the rounding differs, so no gradient goes through the difference.
    correction = lax.stop_gradient(blocked_sum - mlp_out[:, first_tokens])
    return mlp_out.at[:, first_tokens].add(correction)
