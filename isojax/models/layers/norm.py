"""Norms."""

import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from isojax.models.fsdp import all_gather_weight
from isojax.models.spec import Constant, Sizes, Spec, param, spec_of


class RMSNorm(nnx.Module):
    """x / rms(x) times a scale, over the axes that it is given: {"embed": D}, or {"head_dim": H} for each head."""

    def __init__(self, name: str, axes: Sizes, tensor: str, eps: float):
        """`tensor`: its name in a layer of a checkpoint, without ".weight"."""
        self.scale = param(Spec(name, (), tuple(axes.items()), Constant(1.0), f"{tensor}.weight"))
        self.eps = eps

    def __call__(self, x: Float[Array, "*b D"]) -> Float[Array, "*b D"]:
        (width,) = spec_of(self.scale).shape
        return rms_norm(x, all_gather_weight(self.scale[...], 0, width), self.eps)


def rms_norm(x: Float[Array, "*b D"], scale: Float[Array, " D"], eps: float) -> Float[Array, "*b D"]:
    """x / rms(x) * scale: rms in float32, the scale in x's own precision, as the published models do it."""
    y = x.astype(jnp.float32)
    normed = (y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + eps)).astype(x.dtype)
    return normed * scale.reshape((1,) * (x.ndim - 1) + (-1,))
