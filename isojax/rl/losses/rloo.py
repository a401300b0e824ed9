"""RLOO (arXiv:2402.14740): REINFORCE with the mean of a group's other rewards as the baseline. A response's
log-probability is the sum over its tokens, so the sum over tokens is divided by a constant."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from isojax.rl.losses import Clip, ratios

ADVANTAGE_ONLY = True
CLIPS = False
DEFAULTS = {"advantage": "leave_one_out", "aggregation": "constant"}


def loss(
    logps: Float[Array, "m T"],
    sampler_logps: Float[Array, "m T"],
    advantages: Float[Array, "m T"],
    mask: Bool[Array, "m T"],
    clip: Clip,
) -> tuple[Float[Array, "m T"], dict[str, Float[Array, "m T"]]]:
    """-r A, never clipped: where the policy is the sampler's, r = 1 and the gradient is that of -A log p."""
    return jnp.where(mask, -ratios(logps, sampler_logps, mask) * advantages, 0.0), {}
