"""GRPO's clipped surrogate (DeepSeekMath, arXiv:2402.03300, equation 3), token by token.

Departs from it in the reduction, a mean over all tokens of the batch at once, and in the ratio,
which is taken against the sampler's log-probabilities. With one update per batch the ratio is 1 and
the gradient the plain policy gradient.
"""

from isojax.rl.losses import Clip, LossAndMetrics, Mask, Tokens, clipped_surrogate, loss, ratios


@loss(advantage="group", aggregation="token", clip=0.2, advantage_only=True)
def grpo(
    logps: Tokens, old_logps: Tokens, advantages: Tokens, mask: Mask, clip: Clip
) -> LossAndMetrics:
    """-min(r A, clip(r, 1 - low, 1 + high) A), r the ratio of trainer to sampler."""
    return clipped_surrogate(ratios(logps, old_logps, mask), advantages, mask, clip)
