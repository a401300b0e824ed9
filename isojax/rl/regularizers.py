"""What keeps a policy near its base and spread out: KL to the base, and entropy. Per token, unreduced."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def k3(logps: Float[Array, "m T"], base_logps: Float[Array, "m T"]) -> Float[Array, "m T"]:
    """Schulman's k3 estimate of KL(policy || base) from tokens of the policy: exp(d) - 1 - d with d = base - policy; never negative."""
    d = base_logps - logps
    return jnp.exp(d) - 1 - d


def entropy(log_p: Float[Array, "*b V"]) -> Float[Array, "*b"]:
    """Exact entropy of the next-token distribution, in nats."""
    return -(jnp.exp(log_p) * log_p).sum(-1)
