"""GRPO's clipped surrogate (DeepSeekMath, arXiv:2402.03300, equation 3), token by token.

Departs from it in the reduction, a mean over all tokens of the batch at once, and in the ratio, which is taken against
the sampler's own log-probabilities. With one update a batch the ratio is 1 and the gradient is the plain policy
gradient.
"""

from jaxtyping import Array, Bool, Float

from isojax.rl.losses import Clip, clipped_surrogate, ratios

ADVANTAGE_ONLY = True
DEFAULTS = {"advantage": "group", "aggregation": "token", "clip": 0.2}


def loss(
    logps: Float[Array, "m T"],
    sampler_logps: Float[Array, "m T"],
    advantages: Float[Array, "m T"],
    mask: Bool[Array, "m T"],
    clip: Clip,
) -> tuple[Float[Array, "m T"], dict[str, Float[Array, "m T"]]]:
    """-min(r A, clip(r, 1 - low, 1 + high) A), r the ratio of trainer to sampler."""
    return clipped_surrogate(ratios(logps, sampler_logps, mask), advantages, mask, clip)
