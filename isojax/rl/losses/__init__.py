"""Policy losses, one file each: `loss(logps, old_logps, advantages, mask, clip) -> (per-token loss,
per-token metrics)`.

All are [m T]; where the mask is false nothing counts, and the loss is 0. `old_logps` are the
log-probabilities that the ratio is taken against: the sampler's, with TIS the trainer's own. `clip`
has `low` and `high`. A loss reduces nothing: the update gives each response its weight in the whole
batch (rl/objective.py).

A file has one function with the decorator `@loss(...)`, whose arguments are its `LossTraits`."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from isojax.core.plugins import PluginKind

Tokens = Float[Array, "m T"]
Mask = Bool[Array, "m T"]
LossAndMetrics = tuple[Tokens, dict[str, Tokens]]


@dataclass(frozen=True)
class LossTraits:
    """A loss's recipe, which is used where `cell.rl` leaves a setting null, and what else is known
    of it."""

    advantage: str = "group"
    aggregation: str = "token"
    clip: float = 0.2
    clip_high: float | None = None  # None: as `clip`

    # Nothing, gradient included, comes of a response whose advantage is 0, so that it need not be
    # computed (`drop_groups` of rl/train_step.py).
    advantage_only: bool = False
    clips: bool = True  # whether it has a use for `clip`
    needs_critic: bool = False


loss = PluginKind("loss", "rl.losses", LossTraits)


class Clip(NamedTuple):
    """How far below and above 1 a ratio may go, f32[] each."""

    low: Any
    high: Any


def ratios(logps: Tokens, old_logps: Tokens, mask: Mask) -> Tokens:
    """The probability of each token over its old one; 1 where the mask is false."""
    return jnp.exp(jnp.where(mask, logps - old_logps, 0.0))


def clipped_surrogate(ratio: Tokens, advantages: Tokens, mask: Mask, clip: Clip) -> LossAndMetrics:
    """-min(r A, clip(r, 1 - low, 1 + high) A) (PPO, arXiv:1707.06347, eq. 7); metric: the share of
    tokens stopped."""
    clipped_ratio = jnp.clip(ratio, 1 - clip.low, 1 + clip.high)
    unclipped = ratio * advantages
    clipped = clipped_ratio * advantages
    value = -jnp.minimum(unclipped, clipped)

    gradient_stopped = mask & (clipped < unclipped)
    return jnp.where(mask, value, 0.0), {"clip_fraction": gradient_stopped.astype(jnp.float32)}
