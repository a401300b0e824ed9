"""k3 = exp(d) - 1 - d with d = log p_base - log p: unbiased as a value and never negative (GRPO's,
arXiv:2402.03300, equation 4); its gradient is that of KL(base || policy). Neither d nor the
estimate is clamped (verl clamps both)."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from isojax.rl.kl_estimators import kl_estimator


@kl_estimator
def estimate(logps: Float[Array, "m T"], base_logps: Float[Array, "m T"]) -> Float[Array, "m T"]:
    d = base_logps - logps
    return jnp.exp(d) - 1 - d
