"""k1 = log p - log p_base: unbiased as a value, but its gradient has mean 0 on the policy's own
tokens, so that it regularises nothing as a term of the loss."""

from jaxtyping import Array, Float

from isojax.rl.kl_estimators import kl_estimator


@kl_estimator
def estimate(logps: Float[Array, "m T"], base_logps: Float[Array, "m T"]) -> Float[Array, "m T"]:
    return logps - base_logps
