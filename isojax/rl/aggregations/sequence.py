"""The mean over responses of the mean over their tokens (GRPO, arXiv:2402.03300)."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from isojax.rl.aggregations import CountedResponses, aggregation


@aggregation
def weight(responses: CountedResponses) -> Float[Array, "*r"]:
    """1 / (tokens of the response * responses)."""
    return 1.0 / (jnp.maximum(responses.lengths, 1) * responses.num_counted)
