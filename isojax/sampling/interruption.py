"""Forced length interruption (ScaleRL, arXiv:2510.13786): a response of `after` tokens that has not ended its thinking
gets a phrase's tokens, which are not in the loss, and continues after them.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from isojax.tasks.stop_strings import Interruption


def in_forced_phrase(
    interruption: Interruption, t: Int[Array, "*#r"], thinking_ended: Bool[Array, "*#r"]
) -> Bool[Array, "*#r"]:
    """Whether response token t is one of the phrase's; `thinking_ended`: whether `unless_token` is in the response."""
    return ~thinking_ended & (t >= interruption.after) & (t < interruption.after + len(interruption.tokens))


def apply_interruption(
    interruption: Interruption,
    t: Int[Array, " R"],
    thinking_ended: Bool[Array, " R"],
    token: Int[Array, " R"],
    logp: Float[Array, " R"],
) -> tuple[Int[Array, " R"], Float[Array, " R"], Bool[Array, " R"]]:
    """Token t of each response, its log-probability (0 in the phrase) and `thinking_ended` after it."""
    in_phrase = in_forced_phrase(interruption, t, thinking_ended)
    phrase = jnp.array(interruption.tokens, jnp.int32)
    phrase_token = phrase[jnp.clip(t - interruption.after, 0, len(phrase) - 1)]
    if interruption.unless_token is not None:
        thinking_ended = thinking_ended | ((t < interruption.after) & (token == interruption.unless_token))
    return jnp.where(in_phrase, phrase_token, token), jnp.where(in_phrase, 0.0, logp), thinking_ended


def policy_token_mask(interruption: Interruption, thinking_ended: Bool[Array, "*r"], T: int) -> Bool[Array, "*r T"]:
    """Which of a response's T tokens are not the phrase's."""
    t = jnp.arange(T).reshape(*(1,) * thinking_ended.ndim, T)
    return ~in_forced_phrase(interruption, t, thinking_ended[..., None])
