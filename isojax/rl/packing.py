"""Responses of like length share a microbatch, and a microbatch is as wide as its longest response needs.

Within each block of g prompts the responses are put in order, longest first. A microbatch is then computed at the smallest of a few
static widths that holds all of it (each width is compiled), so that a short response is not paid for as a long one. Which width it is
must be the same on every shard: with the model split over `tensor` there are collectives inside.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from isojax.sampling.batch import Share
from isojax.sharding import ROWS

NARROWEST, WIDTHS = 16, 4


def widths(T: int) -> tuple[int, ...]:
    """The widths that are compiled, narrowest first: T, T/2, T/4, T/8, as long as they are even and not below `NARROWEST`."""
    found = [T]
    while len(found) < WIDTHS and found[0] % 2 == 0 and found[0] // 2 >= NARROWEST:
        found.insert(0, found[0] // 2)
    return tuple(found)


def lengths(mask: Bool[Array, "rows T"]) -> Int[Array, " rows"]:
    """How many positions of each response are needed: up to its last token that counts."""
    return jnp.where(mask, jnp.arange(1, mask.shape[-1] + 1)[None], 0).max(-1)


def order(length: Int[Array, " rows"], part: Share, n: Int[Array, ""], g: int, T: int) -> Int[Array, " rows"]:
    """The rows of a shard with each block's responses longest first: a block keeps the places it has. Rows without a rollout come last."""
    row = jnp.arange(len(length))
    block = ((part.first + row) // n - part.group) // g
    last = jnp.iinfo(jnp.int32).max
    return jnp.argsort(jnp.where(row < part.count, block * (T + 1) + T - length, last), stable=True)


def width_choices(
    length: Int[Array, " rows"], low: Int[Array, ""], high: Int[Array, ""], m: int, choices: tuple[int, ...], shards: int
) -> Int[Array, " _"]:
    """For each microbatch of the rows [low, high), in order, which of the widths holds its longest response on every shard."""
    first = low + m * jnp.arange(-(-len(length) // m))
    longest = jnp.where(first < high, length[jnp.minimum(first, len(length) - 1)], 0)
    if shards > 1:
        longest = lax.pmax(longest, ROWS)
    return jnp.searchsorted(jnp.array(choices), longest)
