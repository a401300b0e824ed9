"""Norms."""

import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from isojax.models.fsdp import all_gather_weight
from isojax.models.spec import Constant, Sizes, Spec, param, spec_of


class RMSNorm(nnx.Module):
    """x / rms(x) times a scale, over the axes that it is given: {"embed": D}, {"head_dim": H} for each head, or
    {"heads": N, "head_dim": H} for all heads together."""

    def __init__(
        self,
        name: str,
        axes: Sizes,
        tensor: str,
        eps: float,
        *,
        plus_one: bool = False,
        rounds_last: bool = False,
    ):
        """`tensor`: its name in a layer of a checkpoint, without ".weight". `plus_one`: the scale is 1 + w.
        `rounds_last`: x is rounded to its own precision after the product with the scale, not before it."""
        start = Constant(0.0 if plus_one else 1.0)
        self.scale = param(Spec(name, (), tuple(axes.items()), start, f"{tensor}.weight"))
        self.eps, self.plus_one, self.rounds_last = eps, plus_one, rounds_last

    def __call__(self, x: Float[Array, "*b _"]) -> Float[Array, "*b _"]:
        return self.apply(self.gathered_scale(), x)

    def gathered_scale(self) -> Array:
        """The whole scale, where fsdp splits it: to be used by `apply` more than once."""
        return all_gather_weight(self.scale[...], 0, spec_of(self.scale).shape[0])

    def apply(self, scale: Array, x: Float[Array, "*b _"]) -> Float[Array, "*b _"]:
        """The mean square is in float32, the scale in x's own precision unless `rounds_last`."""
        axes = tuple(range(-scale.ndim, 0))
        y = x.astype(jnp.float32)
        normed = y * lax.rsqrt(jnp.mean(y * y, axes, keepdims=True) + self.eps)

        scale = scale.reshape((1,) * (x.ndim - scale.ndim) + scale.shape)
        if self.plus_one:
            scale = 1 + scale.astype(jnp.float32)
        if self.rounds_last:
            return (normed * scale).astype(x.dtype)
        return normed.astype(x.dtype) * scale
