"""How much better a rollout did than others: from rewards to advantages, f32 with the shape of the rewards.

Groups may have any size: sums over a group are segment sums over group = rollout // n, with n a traced number. One entry of
`ADVANTAGES` an estimator; the critic's (gae) is in rl/critic.py.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

EPS = 1e-6
EPS_WHITEN = 1e-8


class Rewarded(NamedTuple):
    """A batch as estimators read it.

    Attributes:
        rewards: f32[*r], 0 where `live` is false.
        lengths: i32[*r], response tokens that were drawn.
        groups: i32[*r], the problem's place in the batch.
        live: bool[*r], whether the row holds a rollout.
        n: i32[], rollouts a group.
        num_groups: a static bound of the number of groups.
    """

    rewards: Float[Array, "*r"]
    lengths: Int[Array, "*r"]
    groups: Int[Array, "*r"]
    live: Bool[Array, "*r"]
    n: Int[Array, ""]
    num_groups: int

    def of_group(self, x: Array) -> Array:
        """Of each row, the sum of x over the rows of its group."""
        return jax.ops.segment_sum(jnp.where(self.live, x, 0).reshape(-1), self.groups.reshape(-1), self.num_groups)[self.groups]


def centred(given: Rewarded) -> Float[Array, "*r"]:
    """reward - mean of its group; exactly 0 in a group whose rewards are all alike, whatever the mean was rounded to."""
    return jnp.where(given.live & ~silent(given), given.rewards - given.of_group(given.rewards) / given.n, 0.0)


def silent(given: Rewarded) -> Bool[Array, "*r"]:
    """Whether all rollouts of the row's group got the same reward."""
    flat, groups = given.rewards.reshape(-1), given.groups.reshape(-1)
    low, high = (
        f(jnp.where(given.live.reshape(-1), flat, other), groups, given.num_groups)
        for f, other in ((jax.ops.segment_min, jnp.inf), (jax.ops.segment_max, -jnp.inf))
    )
    return given.live & (high - low < EPS)[given.groups]


def group(given: Rewarded) -> Float[Array, "*r"]:
    """(reward - mean) / (std + 1e-6) of the group (DeepSeekMath, arXiv:2402.03300); std is the sample's (n - 1), as in verl and TRL."""
    gains = centred(given)
    return gains / (jnp.sqrt(given.of_group(gains**2) / jnp.maximum(given.n - 1, 1)) + EPS)


def mean(given: Rewarded) -> Float[Array, "*r"]:
    """reward - mean of the group (Dr. GRPO, arXiv:2503.20783)."""
    return centred(given)


def leave_one_out(given: Rewarded) -> Float[Array, "*r"]:
    """reward - mean of the group's other rewards (RLOO, arXiv:2402.14740): n / (n - 1) times reward - mean."""
    return centred(given) * given.n / jnp.maximum(given.n - 1, 1)


def batch(given: Rewarded) -> Float[Array, "*r"]:
    """(reward - mean of the group) / (std, with B - 1, of these over the whole batch + 1e-6) (ScaleRL, arXiv:2510.13786)."""
    gains = centred(given)
    return gains / (jnp.sqrt((gains**2).sum() / jnp.maximum(given.live.sum() - 1, 1)) + EPS)


def whiten(given: Rewarded) -> Float[Array, "*r"]:
    """(reward - mean) / std over all response tokens of the batch, each with its response's reward (REINFORCE++, arXiv:2501.03262)."""
    weight = jnp.where(given.live, given.lengths, 0).astype(jnp.float32)
    gains = whitened(given.rewards, weight)
    return jnp.where(given.live, gains, 0.0)


def whitened(x: Float[Array, "*r"], weight: Float[Array, "*r"]) -> Float[Array, "*r"]:
    """x less its mean over its standard deviation (n - 1, as verl's masked whitening), with each entry counted `weight` times."""
    total = weight.sum()
    off = x - (weight * x).sum() / jnp.maximum(total, 1)
    variance = (weight * off**2).sum() / jnp.maximum(total - 1, 1)
    return off * jax.lax.rsqrt(variance + EPS_WHITEN)


ADVANTAGES: dict[str, Callable[[Rewarded], Array]] = {f.__name__: f for f in (group, mean, leave_one_out, batch, whiten)}
