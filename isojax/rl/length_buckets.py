"""Within each block of g prompts the responses are put in order, longest first. A microbatch is then computed at the
smallest of a few static widths that holds all of it, the same on every shard: with the model split over `tensor` there
are collectives inside."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from isojax.distributed.sharding import ROLLOUT_AXES
from isojax.sampling.batch import ShardSlice


def response_lengths(mask: Bool[Array, "rows T"]) -> Int[Array, " rows"]:
    """How many positions of each response are needed: up to its last token that counts."""
    return jnp.where(mask, jnp.arange(1, mask.shape[-1] + 1)[None], 0).max(-1)


def sort_by_length(
    lengths: Int[Array, " rows"], shard_slice: ShardSlice, n: Int[Array, ""], g: int, T: int
) -> Int[Array, " rows"]:
    """The rows of a shard with each block's responses longest first; blocks stay in order. Rows without a rollout come
    last."""
    row = jnp.arange(len(lengths))
    block = ((shard_slice.first_rollout + row) // n - shard_slice.first_group) // g
    sort_last = jnp.iinfo(jnp.int32).max
    sort_key = jnp.where(row < shard_slice.rollout_count, block * (T + 1) + T - lengths, sort_last)
    return jnp.argsort(sort_key, stable=True)


def microbatch_buckets(
    lengths: Int[Array, " rows"],
    low: Int[Array, ""],
    high: Int[Array, ""],
    m: int,
    widths: tuple[int, ...],
    shards: int,
) -> Int[Array, " _"]:
    """For each microbatch of the rows [low, high), in order, which of the widths holds its longest response on every
    shard."""
    starts = low + m * jnp.arange(-(-len(lengths) // m))
    longest = jnp.where(starts < high, lengths[jnp.minimum(starts, len(lengths) - 1)], 0)
    if shards > 1:
        longest = lax.pmax(longest, ROLLOUT_AXES)
    return jnp.searchsorted(jnp.array(widths), longest)
