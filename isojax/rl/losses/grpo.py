"""GRPO's clipped surrogate (DeepSeekMath, arXiv:2402.03300, equation 3), token by token.

Departs from it in the reduction, which the update does over all tokens of the batch at once (token mean), and in the ratio, which
is taken against the sampler's own log-probabilities. With one update a batch the ratio is 1 and the gradient is the plain policy
gradient.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

ADVANTAGE_ONLY = True  # nothing where the advantage is 0, so groups without one need not be computed (rl/compact.py)


def loss(
    logps: Float[Array, "m T"],
    sampler_logps: Float[Array, "m T"],
    advantages: Float[Array, " m"],
    mask: Bool[Array, "m T"],
    clip: Float[Array, ""],
) -> tuple[Float[Array, "m T"], dict[str, Float[Array, "m T"]]]:
    """-min(r A, clip(r, 1-clip, 1+clip) A) for each token, r the ratio of trainer to sampler; where the mask is false, 0."""
    ratio = jnp.exp(jnp.where(mask, logps - sampler_logps, 0.0))
    gain = advantages[:, None]
    clipped = jnp.clip(ratio, 1 - clip, 1 + clip)
    value = -jnp.minimum(ratio * gain, clipped * gain)
    return jnp.where(mask, value, 0.0), {"clip_fraction": (mask & (ratio != clipped)).astype(jnp.float32)}
