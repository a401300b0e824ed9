"""From logits to a token: temperature, top-p, then the inverse of the distribution function at a
uniform number.

The sampler passes on each nucleus's mass, from which the trainer rebuilds it, whatever the rounding
at its edge.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

# log-probability of what cannot be drawn: finite, so that p log p and its gradient are 0, not NaN
NEG_INF = -1e30
DRAW_BLOCK_TOKENS = 512  # at most so many tokens of a large vocabulary make a block of the draw
BISECTIONS = 32  # of float32's own numbers, so that the threshold is exact
# Mass by which the trainer's nucleus may be smaller than the sampler's: more than rounding, less
# than a likely token.
NUCLEUS_MASS_TOLERANCE = 2e-5


def log_probs(logits: Float[Array, "*b V"], temperature: float) -> Float[Array, "*b V"]:
    """Log-probabilities at the sampling temperature, for the sampler and the trainer alike."""
    return jax.nn.log_softmax(logits.astype(jnp.float32) / temperature, -1)


def nucleus(
    logits: Float[Array, "*b V"], log_p: Float[Array, "*b V"], target_mass: ArrayLike
) -> tuple[Bool[Array, "*b V"], Float[Array, "*b"]]:
    """Return (the smallest set of most probable tokens that holds `target_mass`, its mass).

    The mass is f32[*b]. target_mass: a number or f32[*b], 0 to 1, such as top_p (arXiv:1904.09751).
    logits and log_p are of the same tokens, and log_p is normalised. The set is found by bisection
    of a threshold; tokens that tie with the last one are in it. Tokens are ranked by `logits`,
    because a compiler may compute `log_p` again, and round it differently, in each place where it
    is used.
    """
    p = jnp.exp(log_p)
    required_mass = jnp.broadcast_to(jnp.asarray(target_mass, jnp.float32), log_p.shape[:-1])

    # The bits of a float, read as a whole number, are in the order of the floats; those of negative
    # ones in the reverse order, until all bits but the sign are turned.
    bits = lax.bitcast_convert_type(logits.astype(jnp.float32), jnp.int32)
    rank = jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # i32[*b V]

    def mass_above(threshold: Int[Array, "*b"]) -> Float[Array, "*b"]:
        return jnp.where(rank >= threshold[..., None], p, 0.0).sum(-1)

    def bisect(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        """Invariant: the mass above `low` is enough, that above `high` is not."""
        low, high = bounds
        midpoint = (low & high) + ((low ^ high) >> 1)  # their mean, rounded down, without overflow
        enough = mass_above(midpoint) >= required_mass
        return jnp.where(enough, midpoint, low), jnp.where(enough, high, midpoint)

    # No token is above the largest rank + 1, the first `high`, where the mass is 0.
    threshold, _ = lax.fori_loop(0, BISECTIONS, bisect, (rank.min(-1), rank.max(-1) + 1))
    return rank >= threshold[..., None], mass_above(threshold)


def renormalize(
    log_p: Float[Array, "*b V"], in_nucleus: Bool[Array, "*b V"]
) -> Float[Array, "*b V"]:
    """The distribution renormalised over the nucleus: log-probabilities there, NEG_INF
    elsewhere."""
    log_mass = jax.nn.logsumexp(jnp.where(in_nucleus, log_p, NEG_INF), -1, keepdims=True)
    return jnp.where(in_nucleus, log_p - log_mass, NEG_INF)


def sample_token(
    log_p: Float[Array, "R V"], uniform: Float[Array, " R"]
) -> tuple[Int[Array, " R"], Float[Array, " R"]]:
    """Draw a token of each row: (token, its log-probability).

    It is the first token of p > 0 whose cumulative probability exceeds `uniform`, one number in
    [0, 1) for each row. log_p: NEG_INF of tokens that cannot be drawn.
    """
    p = jnp.exp(log_p)
    V = p.shape[-1]
    block_size = draw_block_size(V)
    if V <= DRAW_BLOCK_TOKENS or block_size == V:
        token = first_index_above(p, uniform * p.sum(-1))
    else:
        token = draw_by_blocks(p, uniform, block_size)
    return token, jnp.take_along_axis(log_p, token[:, None], -1)[:, 0]


def draw_block_size(V: int) -> int:
    """How many tokens a block of a draw has: a size that divides V, or V itself where none does.

    Of the sizes from 64 to 512, those are preferred of which as many of 8 devices as possible can
    share the blocks evenly, and of these the largest.
    """
    sizes = [w for w in range(DRAW_BLOCK_TOKENS // 8, DRAW_BLOCK_TOKENS + 1) if V % w == 0]
    return max(sizes, key=lambda w: (math.gcd(V // w, 8), w), default=V)


def draw_by_blocks(
    p: Float[Array, "R V"], uniform: Float[Array, " R"], block_size: int
) -> Int[Array, " R"]:
    """Draw tokens in two steps: a block by the blocks' masses, then a token of the block.

    p: probabilities, which need not sum to exactly 1. block_size: divides V. Nothing is sliced
    along V: over a split vocabulary a slice would be a collective, inside loops whose trip counts
    differ between shards.
    """
    num_rows, V = p.shape
    blocks = p.reshape(num_rows, V // block_size, block_size)

    block_mass = blocks.sum(-1)
    drawn_mass = uniform * block_mass.sum(-1)
    block = first_index_above(block_mass, drawn_mass)

    is_before = jnp.arange(V // block_size)[None] < block[:, None]
    mass_before = jnp.where(is_before, block_mass, 0.0).sum(-1)
    block_probs = jnp.take_along_axis(blocks, block[:, None, None], 1)[:, 0]
    return block * block_size + first_index_above(block_probs, drawn_mass - mass_before)


def first_index_above(p: Float[Array, "R c"], mass: Float[Array, " R"]) -> Int[Array, " R"]:
    """The first index with p > 0 whose cumulative sum exceeds `mass`; the last one where rounding
    leaves none."""
    index = jnp.arange(p.shape[-1], dtype=jnp.int32)[None]
    last = jnp.where(p > 0, index, 0).max(-1, keepdims=True)
    above = (jnp.cumsum(p, -1) > mass[:, None]) & (p > 0)
    return jnp.where(above, index, last).min(-1)


def rollout_keys(
    keys: PRNGKeyArray, problem_id: Int[Array, " R"], rollout_id: Int[Array, " R"]
) -> PRNGKeyArray:
    """One key per rollout, from its update's key, its problem and its number in the group, never
    from its slot."""

    def rollout_key(key: Array, problem: Array, rollout: Array) -> Array:
        return jax.random.fold_in(jax.random.fold_in(key, problem), rollout)

    keys = jnp.broadcast_to(keys, problem_id.shape)
    return jax.vmap(rollout_key)(keys, problem_id, rollout_id)


def uniforms(keys: PRNGKeyArray, position: Int[Array, " R"]) -> Float[Array, " R"]:
    """One number in [0, 1) per row, from its key and the response position."""

    def uniform_at(key: Array, t: Array) -> Array:
        return jax.random.uniform(jax.random.fold_in(key, t))

    return jax.vmap(uniform_at)(keys, position)
