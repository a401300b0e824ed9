"""What keeps a policy near its base and spread out: KL to the base, and entropy. Per token, unreduced."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

Logps = Float[Array, "m T"]


def k1(logps: Logps, base_logps: Logps) -> Logps:
    """policy - base: unbiased as a value, but the mean of its gradient is 0 on the policy's own tokens: it regularises
    nothing.
    """
    return logps - base_logps


def k2(logps: Logps, base_logps: Logps) -> Logps:
    """(policy - base)^2 / 2: on the policy's own tokens its gradient is that of KL(policy || base)."""
    return 0.5 * (logps - base_logps) ** 2


def k3(logps: Logps, base_logps: Logps) -> Logps:
    """exp(d) - 1 - d with d = base - policy: unbiased as a value and never negative; its gradient is that of KL(base ||
    policy).
    """
    d = base_logps - logps
    return jnp.exp(d) - 1 - d


KL_ESTIMATORS: dict[str, Callable[[Logps, Logps], Logps]] = {f.__name__: f for f in (k1, k2, k3)}
"""Schulman's estimates of KL(policy || base) from tokens of the policy."""


def entropy(log_p: Float[Array, "*b V"]) -> Float[Array, "*b"]:
    """Exact entropy of the next-token distribution, in nats."""
    return -(jnp.exp(log_p) * log_p).sum(-1)
