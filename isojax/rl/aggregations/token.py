"""The mean over all tokens of the batch (DAPO, arXiv:2503.14476)."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from isojax.rl.aggregations import CountedResponses, aggregation


@aggregation
def weight(responses: CountedResponses) -> Float[Array, ""]:
    """1 / tokens of the batch."""
    return 1.0 / jnp.maximum(responses.tokens.sum(), 1)
