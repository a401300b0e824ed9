"""The learning rate: a square root of the batch from an anchor (IsoCompute Playbook, section 3, factor 3), warmed up, then constant."""

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int


def learning_rate(step: Int[Array, ""], B: Int[Array, ""], anchor: ArrayLike, anchor_batch: int, warmup: int) -> Float[Array, ""]:
    """anchor * sqrt(B / anchor_batch) * min(1, (step + 1) / warmup), step counted from 0."""
    ramp = jnp.minimum(1.0, (step + 1) / warmup)
    return jnp.asarray(anchor) * jnp.sqrt(B / anchor_batch) * ramp
