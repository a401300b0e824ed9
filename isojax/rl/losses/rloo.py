"""RLOO (arXiv:2402.14740): REINFORCE with the mean of a group's other rewards as the baseline. A
response's log-probability is the sum over its tokens, so the sum over tokens is divided by a
constant."""

import jax.numpy as jnp

from isojax.rl.losses import Clip, LossAndMetrics, Mask, Tokens, loss, ratios


@loss(advantage="leave_one_out", aggregation="constant", clips=False, advantage_only=True)
def rloo(
    logps: Tokens, old_logps: Tokens, advantages: Tokens, mask: Mask, clip: Clip
) -> LossAndMetrics:
    """-r A, never clipped: where the policy is the sampler's, r = 1 and the gradient is that of -A
    log p."""
    value = -ratios(logps, old_logps, mask) * advantages
    return jnp.where(mask, value, 0.0), {}
