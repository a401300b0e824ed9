"""The mean over problems of the mean over all tokens of their responses (ScaleRL,
arXiv:2510.13786)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from isojax.rl.aggregations import CountedResponses, aggregation


@aggregation
def weight(responses: CountedResponses) -> Float[Array, "*r"]:
    """1 / (tokens of the response's group * groups that have any)."""
    tokens = responses.tokens.reshape(-1)
    groups = responses.groups.reshape(-1)
    tokens_by_group = jax.ops.segment_sum(tokens, groups, responses.num_groups)

    num_groups = jnp.maximum((tokens_by_group > 0).sum(), 1)
    tokens_of_group = jnp.maximum(tokens_by_group, 1)[responses.groups]
    return 1.0 / (tokens_of_group * num_groups)
