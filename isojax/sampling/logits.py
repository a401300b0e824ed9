"""From logits to a token: temperature, then one uniform number a row put through the inverse of the distribution function.

One cumulative sum gives the token, and its log-probability comes for free; no noise the size of the vocabulary is drawn.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray


def log_probs(logits: Float[Array, "*b V"], temperature: float) -> Float[Array, "*b V"]:
    """Log-probabilities at the sampling temperature; the sampler's and the trainer's, so that both mean the same policy."""
    return jax.nn.log_softmax(logits.astype(jnp.float32) / temperature, -1)


def draw(log_p: Float[Array, "R V"], uniform: Float[Array, " R"]) -> tuple[Int[Array, " R"], Float[Array, " R"]]:
    """The first token whose cumulative probability exceeds `uniform`, and its log-probability; never a token of probability 0.

    The cumulative sum and the sum differ by rounding, so for a `uniform` near 1 no token may exceed it: then the last possible one is
    drawn. No slice along V: over a split vocabulary it would be a collective, inside loops whose trip counts differ between shards.
    """
    p = jnp.exp(log_p)
    place = jnp.arange(p.shape[-1], dtype=jnp.int32)[None]
    last = jnp.where(p > 0, place, 0).max(-1, keepdims=True)
    above = (jnp.cumsum(p, -1) > uniform[:, None] * p.sum(-1, keepdims=True)) & (p > 0)
    token = jnp.where(above, place, last).min(-1)
    return token, jnp.take_along_axis(log_p, token[:, None], -1)[:, 0]


def rollout_keys(key: PRNGKeyArray, problem_id: Int[Array, " R"], rollout_id: Int[Array, " R"]) -> PRNGKeyArray:
    """One key a rollout, from the update's key, the problem and the rollout's number in its group: never from its slot."""
    return jax.vmap(lambda p, r: jax.random.fold_in(jax.random.fold_in(key, p), r))(problem_id, rollout_id)


def uniforms(keys: PRNGKeyArray, position: Int[Array, " R"]) -> Float[Array, " R"]:
    """One number in [0, 1) a row, from its key and the response position."""
    return jax.vmap(lambda k, t: jax.random.uniform(jax.random.fold_in(k, t)))(keys, position)
