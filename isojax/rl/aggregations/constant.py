"""The sum over tokens divided by a constant that no response's length enters (Dr. GRPO,
arXiv:2503.20783)."""

from jaxtyping import Array, Float

from isojax.rl.aggregations import CountedResponses, aggregation


@aggregation
def weight(responses: CountedResponses) -> Float[Array, ""]:
    """1 / (T * responses), with T the longest response allowed."""
    return 1.0 / (responses.response_length * responses.num_counted)
