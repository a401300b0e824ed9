"""Tokens that the sampler writes into a response itself: an interruption's phrase, and a task's reply to a turn.

A slot's row of tokens holds them as ~token, which is negative, from before the slot reaches their positions. There the
slot takes what is written instead of a draw. They are context: `Rollouts.mask` leaves them out of the loss.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from isojax.sampling.slots import Slots
from isojax.tasks.protocol import Interruption


def token_ahead(slots: Slots) -> Int[Array, " R"]:
    """What each slot's row holds at the position of its next token: 0 where nothing is written ahead."""
    return jnp.where(jnp.arange(slots.tokens.shape[-1])[None] == slots.t[:, None], slots.tokens, 0).sum(-1)


def write_ahead(slots: Slots, context: Int[Array, "#R K"], count: Int[Array, " R"]) -> tuple[Slots, Bool[Array, " R"]]:
    """Writes the first `count` tokens of `context` ahead of each slot; and which slots have no room for them and for a
    token drawn after them. There nothing is written: context is never cut."""
    T, K = slots.tokens.shape[-1], context.shape[-1]
    offset = jnp.arange(T)[None] - slots.t[:, None]
    overflow = (count > 0) & (slots.t + count >= T)
    written = (offset >= 0) & (offset < count[:, None]) & ~overflow[:, None]
    context = jnp.broadcast_to(context, (len(count), K))
    ahead = jnp.take_along_axis(context, jnp.clip(offset, 0, K - 1), 1)
    return slots._replace(tokens=jnp.where(written, ~ahead, slots.tokens)), overflow


def interrupted_slots(interruption: Interruption, slots: Slots) -> Bool[Array, " R"]:
    """Forced length interruption (ScaleRL, arXiv:2510.13786): whether a response is of `after` tokens now, and has not
    ended its thinking; it gets a phrase's tokens, and continues after them."""
    due = slots.t == interruption.after
    if interruption.unless_token is None:
        return due
    return due & ~(slots.tokens[:, : interruption.after] == interruption.unless_token).any(-1)
