"""Rings: a cache of a layer that slides holds its last positions alone, as many as its window.

Position p is at entry p mod the ring's size, where it replaces the one that no token sees any
longer.
"""

import jax.numpy as jnp
from jaxtyping import Array, Int

from isojax.distributed.sharding import with_logical_constraint
from isojax.models.cache_attention import SlotInts, SlotPositions
from isojax.models.stack import Stack
from isojax.models.transformer import KV


def ring_positions(positions: SlotInts, size: int) -> SlotPositions:
    """Return where a ring of `size` entries has these positions of the slots' tokens.

    A token sees all entries that are filled: keys are rotated already, so their order does not
    count."""
    return SlotPositions(write=positions % size, last=jnp.minimum(positions, size - 1))


def positions_in_cache(positions: SlotInts, row_length: int, stack: Stack) -> SlotPositions:
    """Where a stack's cache of rows of this length has the slots' positions."""
    ring = stack.attention.ring_size(row_length)
    if ring == row_length:
        return SlotPositions(write=positions, last=positions)
    return ring_positions(positions, ring)


def held_positions(lengths: Int[Array, " b"], ring: int) -> Int[Array, "b ring"]:
    """Return the position that each entry of a ring holds, of rows of these lengths.

    It is the last that fell on the entry; negative where none has yet. For length 5 and a ring of
    3: 3, 4, 2."""
    last = lengths[:, None] - 1
    return last - (last - jnp.arange(ring)[None]) % ring


def take_last_positions(kv: KV, lengths: Int[Array, " b"], ring: int) -> KV:
    """Of keys and values [L b K p H] of whole prompts, those that a ring holds, [L b K ring H]."""
    index = jnp.maximum(held_positions(lengths, ring), 0)[None, :, None, :, None]

    def take(x: Array) -> Array:
        # Where devices split positions: taken from a part, they would be fetched by a permutation,
        # for which shards that have left the loop are waited for.
        whole = with_logical_constraint(x, ("layer", None, "kv_heads", None, "head_dim"))
        return jnp.take_along_axis(whole, index, 3)

    keys, values = kv
    return take(keys), take(values)
