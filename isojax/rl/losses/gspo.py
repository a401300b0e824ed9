"""GSPO (arXiv:2507.18071): a response has one ratio, the geometric mean of its tokens', and is
clipped whole."""

import jax.numpy as jnp
from jax import lax

from isojax.rl.losses import Clip, LossAndMetrics, Mask, Tokens, clipped_surrogate, loss


@loss(advantage="group", aggregation="sequence", clip=3e-4, clip_high=4e-4, advantage_only=True)
def gspo(
    logps: Tokens, old_logps: Tokens, advantages: Tokens, mask: Mask, clip: Clip
) -> LossAndMetrics:
    """The clipped surrogate with s = exp(mean over tokens of the log ratio) in the place of r
    (equation 7). Each token has s, and by stop-gradients (equation 14) its part of s' gradient: the
    mean over a response is the response's."""
    log_ratio = jnp.where(mask, logps - old_logps, 0.0)
    num_tokens = jnp.maximum(mask.sum(-1, keepdims=True), 1)
    response_log_ratio = log_ratio.sum(-1, keepdims=True) / num_tokens  # log s, [m 1]

    # 0, with the gradient of the token's log-probability.
    token_gradient = jnp.where(mask, logps - lax.stop_gradient(logps), 0.0)
    s = jnp.exp(lax.stop_gradient(response_log_ratio) + token_gradient)
    return clipped_surrogate(s, advantages, mask, clip)
