"""The learning rate: it grows with the batch from an anchor, as its square root in the paper (IsoCompute Playbook,
section 3, factor 3; Fig. 4 compares the rules); warmed up, then constant."""

from collections.abc import Callable
from typing import Literal

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

LRScaling = Literal["constant", "linear", "sqrt"]
LR_SCALINGS: dict[LRScaling, Callable[[Array], Array]] = {
    "constant": jnp.ones_like,
    "linear": lambda x: x,
    "sqrt": jnp.sqrt,
}


def learning_rate(
    step: Int[Array, ""],
    B: Int[Array, ""],
    reference_lr: ArrayLike,
    lr_reference_batch: int,
    warmup: int,
    scaling: LRScaling = "sqrt",
) -> Float[Array, ""]:
    """anchor * s(B / lr_reference_batch) * min(1, (step + 1) / warmup), step counted from 0; s(x) is 1, x or sqrt(x) by
    `scaling`.

    Args:
        step: updates done before this one.
        B: rollouts an update.
        anchor: the rate at B = lr_reference_batch, whatever the rule.
        warmup: updates until the rate is reached, at least 1.
        scaling: static; one program holds one rule.
    """
    warmup_factor = jnp.minimum(1.0, (step + 1) / warmup)
    return jnp.asarray(reference_lr) * LR_SCALINGS[scaling](B / lr_reference_batch) * warmup_factor
