"""The mean over problems of the mean over all tokens of their responses (ScaleRL,
arXiv:2510.13786)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from isojax.rl.aggregations import CountedResponses, aggregation


@aggregation
def weight(responses: CountedResponses) -> Float[Array, "*r"]:
    """1 / (tokens of the response's group * groups that have any)."""
    tokens, groups = responses.tokens.reshape(-1), responses.groups.reshape(-1)
    group_tokens = jax.ops.segment_sum(tokens, groups, responses.num_groups)
    tokens_of_own_group = jnp.maximum(group_tokens, 1)[responses.groups]
    return 1.0 / (tokens_of_own_group * jnp.maximum((group_tokens > 0).sum(), 1))
