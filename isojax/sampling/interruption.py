"""Forced length interruption (ScaleRL, arXiv:2510.13786): a response that goes on for too long is told to come to its answer.

A response that has `after` tokens without the one that ends its thinking gets the tokens of a phrase, and goes on from there. The phrase
is context, as the prompt is: no token of it was drawn, so none is in the loss. As it always stands in the same place, one flag a response
says where it is.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from isojax.tasks.stops import Interruption


def forced(cut: Interruption, t: Int[Array, "*#r"], closed: Bool[Array, "*#r"]) -> Bool[Array, "*#r"]:
    """Whether response token t is one of the phrase's; `closed`: whether the first `after` tokens hold `unless`."""
    return ~closed & (t >= cut.after) & (t < cut.after + len(cut.tokens))


def interrupt(
    cut: Interruption, t: Int[Array, " R"], closed: Bool[Array, " R"], token: Int[Array, " R"], logp: Float[Array, " R"]
) -> tuple[Int[Array, " R"], Float[Array, " R"], Bool[Array, " R"]]:
    """(token t of each response, its log-probability, `closed` with it), of what has been drawn; 0 is the phrase's log-probability."""
    told = forced(cut, t, closed)
    phrase = jnp.array(cut.tokens, jnp.int32)[jnp.clip(t - cut.after, 0, len(cut.tokens) - 1)]
    if cut.unless is not None:
        closed = closed | ((t < cut.after) & (token == cut.unless))
    return jnp.where(told, phrase, token), jnp.where(told, 0.0, logp), closed


def drawn(cut: Interruption, closed: Bool[Array, "*r"], T: int) -> Bool[Array, "*r T"]:
    """Where in a response of T places no token of the phrase lies."""
    return ~forced(cut, jnp.arange(T).reshape(*(1,) * closed.ndim, T), closed[..., None])
