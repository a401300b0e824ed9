"""Products with a matrix that may have several axes of inputs or of outputs, and LoRA's adapters
of it."""

import math
from collections.abc import Sequence
from dataclasses import replace

import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from isojax.distributed.sharding import (
    constrain_last_axes,
    devices_of_a_layer,
    keep_undivided_whole,
)
from isojax.models import fsdp
from isojax.models.cpu import sum_in_blocks
from isojax.models.spec import Constant, Init, Normal, Sizes, Spec, Uniform, param, spec_of

ADAPTER_A, ADAPTER_B = "_lora_a", "_lora_b"  # how the names of a target's adapter end


class Linear(nnx.Module):
    """x times a matrix, and a bias if it has one: Linear("query", {"embed": D}, {"heads": N,
    "head_dim": H}, ...)."""

    # whether the product of x and weights is in float32, whatever precision they are in
    in_float32 = False

    def __init__(
        self,
        name: str,
        inputs: Sizes,
        outputs: Sizes,
        tensor: str,
        *,
        bias: bool = False,
        init: Init | None = None,
        adapts: bool = True,
        quantises: bool = True,
    ):
        """Describe a matrix [*inputs, *outputs], and a bias [*outputs] if it has one.

        `name`: in its layer and in a run's checkpoints, such as "query". `inputs`, `outputs`:
        logical axes and sizes in order, such as {"embed": 64} and {"heads": 4, "head_dim": 16}.
        `tensor`: its name in a layer of a published checkpoint, without ".weight", such as
        "self_attn.q_proj". `init`: None: normal, such that outputs vary as much as inputs.
        `adapts`: whether cell.model.lora.targets may name it. `quantises`: whether it is int8 where
        cell.precision.rollout_weights says so."""
        outputs_spec = tuple(outputs.items())
        weight = Spec(
            name=name,
            inputs=tuple(inputs.items()),
            outputs=outputs_spec,
            init=init or Normal(math.prod(inputs.values())),
            tensor=f"{tensor}.weight",
            # published checkpoints have [outputs, inputs]
            transposed=True,
            in_linear=True,
            adapts=name if adapts else "",
            quantises=quantises,
        )
        self.weight = param(weight)

        # NNX fixes at its first assignment whether an attribute holds parameters.
        bias_spec = Spec(f"{name}_bias", (), outputs_spec, Constant(0.0), f"{tensor}.bias")
        self.bias = param(bias_spec) if bias else None

    @property
    def spec(self) -> Spec:
        return spec_of(self.weight)

    def __call__(self, x: Float[Array, "*b _"], first_tokens: slice | None = None) -> Array:
        """Multiply x [*b, *inputs] by the matrix and add the bias: [*b, *outputs].

        `first_tokens`: the tokens on axis 1 that begin sequences, such as slice(1), for
        `sum_in_blocks`."""
        return self.complete(self.product(x, first_tokens))

    def product(self, x: Float[Array, "*b _"], first_tokens: slice | None = None) -> Array:
        """Multiply x [*b, *inputs] by the matrix, without the bias: [*b, *outputs]."""
        spec = self.spec
        inputs, outputs = spec.matrix_shape  # whole, where fsdp has made a part of the matrix
        rows = spec.to_rows(x)
        matrix = spec.to_matrix(self.weight[...])
        if self.in_float32:
            whole = fsdp.all_gather_weight(matrix, 0, inputs)
            return spec.from_rows(float32_product(rows, whole), x)

        y = spec.from_rows(fsdp.matmul(rows, matrix, outputs), x)
        if first_tokens is not None:
            y = sum_in_blocks(y, x, matrix, first_tokens)
        return y

    def complete(self, product: Array) -> Array:
        return complete(product, self.spec, self.bias)


class Float32Linear(Linear):
    in_float32 = True


def float32_product(x: Float[Array, "r i"], w: Float[Array, "i o"]) -> Float[Array, "r o"]:
    """x @ w in float32: a TPU would round float32 operands to bfloat16 by itself."""
    return jnp.dot(x, w, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


def complete(y: Array, spec: Spec, bias: nnx.Param | None) -> Array:
    """Lay out a product [*b, *outputs] over devices as the matrix's outputs are, and add the bias.

    `spec`: of the matrix. `bias`: [*outputs]; None: there is none."""
    y = keep_undivided_whole(y, spec.outputs)
    if bias is None:
        return y
    values = fsdp.all_gather_weight(bias[...], 0, spec_of(bias).shape[0])
    return y + values.reshape((1,) * (y.ndim - values.ndim) + values.shape)


def split_fused(y: Float[Array, "*_"], ends: Sequence[int], axis: int) -> list[Array]:
    """Split the products [*b, *outputs] of matrices that a checkpoint has as one.

    `ends`: where along `axis` each part but the last ends. As those of the whole matrix, each
    device has all of them."""
    parts = jnp.split(y, ends, axis)
    if devices_of_a_layer() == 1:
        return parts
    num_axes = y.ndim - axis % y.ndim
    return [constrain_last_axes(part, PartitionSpec(*[None] * num_axes)) for part in parts]


class Adapted(nnx.Module):
    """A Linear and its adapter (arXiv:2106.09685): x W + alpha / rank * (x A) B."""

    def __init__(self, base: Linear, rank: int, alpha: float):
        """A begins as PEFT draws it, uniform within 1 / sqrt(inputs), and B as 0."""
        self.base = base
        self.scale = alpha / rank

        spec = base.spec
        tensor = spec.tensor.removesuffix(".weight")
        inputs, outputs = dict(spec.inputs), dict(spec.outputs)
        between = {"rank": rank}
        num_inputs, _ = spec.matrix_shape
        begin_a = Uniform(num_inputs**-0.5)
        begin_b = Constant(0.0)
        self.a = adapter_part(spec.name + ADAPTER_A, inputs, between, f"{tensor}.lora_A", begin_a)
        self.b = adapter_part(spec.name + ADAPTER_B, between, outputs, f"{tensor}.lora_B", begin_b)

    def __call__(self, x: Float[Array, "*b _"], first_tokens: slice | None = None) -> Array:
        product = self.base.product(x, first_tokens)
        return self.base.complete(product + self.scale * self.b(self.a(x)))


def adapter_part(name: str, inputs: Sizes, outputs: Sizes, tensor: str, init: Init) -> Linear:
    part = Linear(name, inputs, outputs, tensor, init=init, adapts=False, quantises=False)
    part.weight = param(replace(part.spec, is_adapter=True))
    return part
