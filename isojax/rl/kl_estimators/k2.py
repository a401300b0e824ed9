"""k2 = (log p - log p_base)^2 / 2: on the policy's own tokens its gradient is that of KL(policy ||
base)."""

from jaxtyping import Array, Float

from isojax.rl.kl_estimators import kl_estimator


@kl_estimator
def estimate(logps: Float[Array, "m T"], base_logps: Float[Array, "m T"]) -> Float[Array, "m T"]:
    return 0.5 * (logps - base_logps) ** 2
