"""AdamW, and its learning rate: warmed up, then constant, and growing with the batch from a reference batch, as its
square root in the paper (IsoCompute Playbook, section 3, factor 3; Fig. 4 compares the rules)."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int

from isojax.models.transformer import Params

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


B1, B2, EPS = 0.9, 0.999, 1e-8  # Adam's


def adam() -> optax.GradientTransformation:
    """Adam's moments. Clipping, weight decay and the learning rate are traced, and `adamw_update` applies them."""
    return optax.scale_by_adam(b1=B1, b2=B2, eps=EPS)


def adamw_update(
    params: Params,
    moments: Any,
    gradient: Params,
    *,
    grad_norm: Array,
    max_grad_norm: ArrayLike,
    lr: Array,
    weight_decay: ArrayLike,
    skip: Array,
) -> tuple[Params, Any]:
    """AdamW (arXiv:1711.05101) on a gradient clipped by its global norm: the new parameters and moments, or the old
    ones where `skip` is true.

    The barrier completes the new moments before anything reads them. Without it XLA computes the parameters from the
    old moments once more, and keeps a copy of all moments for that.
    """
    clip_scale = jnp.minimum(1.0, max_grad_norm / jnp.maximum(grad_norm, 1e-30))
    _, new_moments = adam().update(jax.tree.map(lambda g: g * clip_scale, gradient), moments)
    moments = lax.optimization_barrier(jax.tree.map(partial(jnp.where, skip), moments, new_moments))
    means = optax.tree.bias_correction(moments.mu, B1, moments.count)
    squares = optax.tree.bias_correction(moments.nu, B2, moments.count)

    def step_parameter(p: Array, m: Array, v: Array) -> Array:
        return jnp.where(skip, p, p - lr * (m / (jnp.sqrt(v) + EPS) + weight_decay * p))

    return jax.tree.map(step_parameter, params, means, squares), moments
