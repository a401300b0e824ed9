"""CISPO (MiniMax-M1, arXiv:2506.13585): REINFORCE whose importance weights are truncated above and
carry no gradient, so that no token's gradient is stopped. ScaleRL's loss (arXiv:2510.13786)."""

import jax.numpy as jnp
from jax import lax

from isojax.rl.losses import Clip, LossAndMetrics, Mask, Tokens, loss, ratios


@loss(advantage="group", aggregation="token", clip=1.0, clip_high=4.0, advantage_only=True)
def cispo(
    logps: Tokens, old_logps: Tokens, advantages: Tokens, mask: Mask, clip: Clip
) -> LossAndMetrics:
    """-sg(clip(r, 1 - low, 1 + high)) A log p; with low = 1 there is no lower bound (equations 4
    and 5)."""
    ratio = lax.stop_gradient(ratios(logps, old_logps, mask))
    clipped_ratio = jnp.clip(ratio, 1 - clip.low, 1 + clip.high)
    value = -clipped_ratio * advantages * logps

    is_clipped = mask & (ratio != clipped_ratio)
    return jnp.where(mask, value, 0.0), {"clip_fraction": is_clipped.astype(jnp.float32)}
