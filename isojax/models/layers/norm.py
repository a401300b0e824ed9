"""Norms."""

from typing import Any, Protocol

import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from isojax.models.fsdp import all_gather_weight
from isojax.models.spec import NO_AXES, Constant, Init, Sizes, Spec, param, spec_of


class Norm(Protocol):
    """What the last norm needs besides its call; a policy's other norms need the call alone."""

    def __call__(self, x: Float[Array, "*b _"]) -> Float[Array, "*b _"]: ...

    def gathered_scale(self) -> Any:
        """Its whole weights, where fsdp splits them: to be used by `apply` more than once."""
        ...

    def apply(self, scale: Any, x: Float[Array, "*b _"]) -> Float[Array, "*b _"]: ...


class RMSNorm(nnx.Module):
    """x / rms(x) times a scale, over the axes that it is given: {"embed": D}, {"head_dim": H} for
    each head, or {"heads": N, "head_dim": H} for all heads together."""

    def __init__(
        self,
        name: str,
        axes: Sizes,
        tensor: str,
        eps: float,
        *,
        each: Sizes = NO_AXES,
        plus_one: bool = False,
        rounds_last: bool = False,
    ):
        """Describe a norm over the last axes of an array.

        `name`: in its layer, such as "attention_norm". `axes`: those that are averaged over, in
        order, such as {"embed": 64}. `tensor`: its name in a layer of a published checkpoint,
        without ".weight", such as "input_layernorm". `eps`: added to the mean square. `each`: axes
        before those of the norm, with separate scales for each index, such as {"heads": N}; a
        checkpoint has [N, H] of them. `plus_one`: the scale is 1 + w. `rounds_last`: x is rounded
        to its own precision after the product with the scale, not before it."""
        start = Constant(0.0 if plus_one else 1.0)
        self.scale = norm_parameter(name, axes, each, start, f"{tensor}.weight")
        self.axes = normalised_axes(axes)
        self.eps, self.plus_one, self.rounds_last = eps, plus_one, rounds_last

    def __call__(self, x: Float[Array, "*b _"]) -> Float[Array, "*b _"]:
        return self.apply(self.gathered_scale(), x)

    def gathered_scale(self) -> Array:
        """The whole scale, where fsdp splits it: to be used by `apply` more than once."""
        return all_gather_weight(self.scale[...], 0, spec_of(self.scale).shape[0])

    def apply(self, scale: Array, x: Float[Array, "*b _"]) -> Float[Array, "*b _"]:
        """Normalise x, with the scale that `gathered_scale` returns.

        The mean square is in float32, the scale in x's own precision unless `rounds_last`."""
        y = x.astype(jnp.float32)
        normed = y * lax.rsqrt(jnp.mean(y * y, self.axes, keepdims=True) + self.eps)

        scale = as_trailing_axes(scale, x)
        if self.plus_one:
            scale = 1 + scale.astype(jnp.float32)
        if self.rounds_last:
            return (normed * scale).astype(x.dtype)
        return normed.astype(x.dtype) * scale


class LayerNorm(nnx.Module):
    """(x - mean) / standard deviation (arXiv:1607.06450) times a scale, and a bias if it has one,
    over the axes that it is given as `RMSNorm`. In float32, rounded last."""

    def __init__(
        self,
        name: str,
        axes: Sizes,
        tensor: str,
        eps: float,
        *,
        each: Sizes = NO_AXES,
        bias: bool = False,
    ):
        """Describe a norm over the last axes of an array.

        `name`, `axes`, `tensor`, `eps`, `each`: as in `RMSNorm`. `bias`: whether one is added,
        `tensor` with ".bias" in a checkpoint."""
        self.scale = norm_parameter(name, axes, each, Constant(1.0), f"{tensor}.weight")
        # One assignment of self.bias: NNX fixes at the first whether it holds parameters.
        bias_parameter = norm_parameter(f"{name}_bias", axes, each, Constant(0.0), f"{tensor}.bias")
        self.bias = bias_parameter if bias else None
        self.axes = normalised_axes(axes)
        self.eps = eps

    def __call__(self, x: Float[Array, "*b _"]) -> Float[Array, "*b _"]:
        return self.apply(self.gathered_scale(), x)

    def gathered_scale(self) -> list[Array]:
        """The whole scale, and the whole bias if there is one."""
        parameters = [parameter for parameter in (self.scale, self.bias) if parameter is not None]
        return [all_gather_weight(p[...], 0, spec_of(p).shape[0]) for p in parameters]

    def apply(self, scale_and_bias: list[Array], x: Float[Array, "*b _"]) -> Float[Array, "*b _"]:
        in_float32 = [as_trailing_axes(w, x).astype(jnp.float32) for w in scale_and_bias]

        y = x.astype(jnp.float32)
        y = y - jnp.mean(y, self.axes, keepdims=True)
        y = y * lax.rsqrt(jnp.mean(y * y, self.axes, keepdims=True) + self.eps)
        y = y * in_float32[0]
        if self.bias is not None:
            y = y + in_float32[1]
        return y.astype(x.dtype)


def norm_parameter(name: str, axes: Sizes, each: Sizes, init: Init, tensor: str) -> nnx.Param:
    """A scale or a bias of a norm over `axes`, for each index of those before."""
    outputs = (*each.items(), *axes.items())
    return param(Spec(name, (), outputs, init, tensor, joins_outputs=not each))


def normalised_axes(axes: Sizes) -> tuple[int, ...]:
    """Return the numbers of an array's last axes, as many as the norm has: (-1,), or (-2, -1)."""
    return tuple(range(-len(axes), 0))


def as_trailing_axes(w: Array, x: Array) -> Array:
    """A weight of x's last axes, with axes of size 1 before them."""
    return w.reshape((1,) * (x.ndim - w.ndim) + w.shape)
