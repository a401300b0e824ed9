"""Aggregations, one file each: `weight(responses) -> f32[*r]`, what a response's sum of token
losses is multiplied by. It is read only where the response is counted. The function has the
decorator `@aggregation`."""

from typing import NamedTuple

from jaxtyping import Array, Bool, Float, Int

from isojax.core.plugins import NoTraits, PluginKind

aggregation = PluginKind("aggregation", "rl.aggregations", NoTraits)


class CountedResponses(NamedTuple):
    """The responses of a batch, of which a term of the loss counts some."""

    lengths: Int[Array, "*r"]  # how many tokens of each response the policy drew
    tokens: Float[Array, "*r"]  # the same; 0 where the response is not counted
    groups: Int[Array, "*r"]  # the row of each response's problem in the batch
    counted: Bool[Array, "*r"]  # whether the term counts the response
    num_counted: Float[Array, ""]  # how many it counts, at least 1
    num_groups: int  # a static bound of the number of groups
    response_length: int  # T, the longest response allowed
