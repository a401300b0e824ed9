"""Forms of a layer's matrices for the sampler: how each is stored, and the product that goes with
it.

A form is a module made of a `Linear`. Where only the shape differs, as of the matrices that a TPU
takes out of a stack, there is none: `Linear` multiplies by a matrix as by its own axes.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int8

from isojax.distributed.sharding import sum_over_experts
from isojax.models.cpu import small_batch_matmul
from isojax.models.layers.linear import Linear, complete
from isojax.models.layers.mixture import ExpertMLP, Routing, weights_by_expert
from isojax.models.spec import Constant, LayerDescription, Spec, param, spec_of

SCALE = "_scale"  # how the name of an int8 matrix's scales ends
# the name of a layer's number in its stack, for experts that stay there
LAYER_OF_EXPERTS = "expert_layer"
LARGEST = 127  # the largest magnitude of an int8, on both sides of 0


class OutputMajor(nnx.Module):
    """A Linear whose matrix is stored as [outputs, inputs], for a CPU's products of few rows."""

    def __init__(self, linear: Linear):
        self.linear = linear

    @property
    def spec(self) -> Spec:
        return self.linear.spec

    def __call__(self, x: Float[Array, "*b _"], first_tokens: None = None) -> Array:
        return self.complete(self.product(x))

    def product(self, x: Float[Array, "*b _"], first_tokens: None = None) -> Array:
        rows = self.spec.to_rows(x)
        dtype = jnp.float32 if self.linear.in_float32 else None
        y = small_batch_matmul(rows, self.linear.weight[...], dtype)
        return self.spec.from_rows(y, x)

    def complete(self, product: Array) -> Array:
        return self.linear.complete(product)


class Int8Linear(nnx.Module):
    """A Linear whose matrix is int8, with a float32 scale for each output: x W is (x values) *
    scale.

    XLA converts the values within the product that reads them, so that memory delivers a byte of
    each weight."""

    def __init__(self, linear: Linear, stacked: bool):
        """`stacked`: whether the values are taken out of a stack, in a scan over layers."""
        spec = linear.spec
        self.stacked = stacked
        self.values = param(replace(spec, dtype="int8"))
        # A scale is the sampler's alone: no checkpoint has a tensor of it.
        self.scale = param(Spec(spec.name + SCALE, (), spec.outputs, Constant(1.0), tensor=""))
        self.bias = linear.bias

    @property
    def spec(self) -> Spec:
        return spec_of(self.values)

    def __call__(self, x: Float[Array, "*b _"], first_tokens: slice | None = None) -> Array:
        return self.complete(self.product(x))

    def product(self, x: Float[Array, "*b _"], first_tokens: slice | None = None) -> Array:
        """Multiply x [*b, *inputs] by the matrix: [*b, *outputs], without the bias.

        Sums are in x's precision, so that devices over `tensor` send no more than for other
        weights; the scale multiplies in float32. `first_tokens` is not used: it would change less
        than int8 rounds."""
        rows = self.spec.to_rows(x)
        values = self.values[...]
        if not self.stacked:
            # XLA would convert them in front of the loop over tokens, and hold both.
            values, rows = lax.optimization_barrier((values, rows))

        sums = rows @ self.spec.to_matrix(values).astype(rows.dtype)
        y = sums.astype(jnp.float32) * self.scale[...].reshape(1, -1)
        return self.spec.from_rows(y.astype(rows.dtype), x)

    def complete(self, product: Array) -> Array:
        return complete(product, self.spec, self.bias)


class StackedExperts(nnx.Module):
    """Experts whose matrices stay in the stack of all layers, where a TPU's kernel reads those of
    `layer`: a scan would copy them out of it, which takes a TPU several times as long as reading
    them."""

    def __init__(self, experts: ExpertMLP, interpret: bool):
        """`interpret`: whether the kernel is interpreted, on any backend."""
        self.gate, self.up, self.down = experts.gate, experts.up, experts.down
        self.layer = param(Spec(LAYER_OF_EXPERTS, (), (), Constant(0), tensor="", dtype="int32"))
        self.interpret = interpret

    def __call__(self, rows: Float[Array, "r D"], routing: Routing) -> Float[Array, "r D"]:
        """Add up what each row's experts make of it, as `ExpertMLP`; for few rows.

        `rows` [r D], at most MAX_ROWS_OF_ALL_EXPERTS. The matrices are those of all layers, [L E D
        F] twice and [L E F D]; `self.layer` says which layer's are meant."""
        from isojax.models.kernels.tpu_experts import multiply_by_all_experts  # loads Pallas

        def of_device(
            first: Any, matrices: Any, rows: Array, chosen: Array, weights: Array, layer: Array
        ) -> Array:
            """Return what the device's experts add to rows [r D] that chose k experts [r k].

            `first`: the number of its first expert; `matrices`: [L E ...] of all layers; `weights`:
            [r k], of the choices; `layer`: the index in L."""
            experts_here = matrices[0].shape[1]
            by_expert = weights_by_expert(first, experts_here, chosen, weights)
            return multiply_by_all_experts(rows, by_expert, matrices, layer, self.interpret)

        # `sum_over_experts` calls `of_device` on each device, with the number of its first expert,
        # its part of the matrices by their axes, and all of the inputs, and adds up the results.
        # is_kernel: XLA cannot split the function over any axis.
        parameters = (self.gate, self.up, self.down)
        matrices = [parameter[...] for parameter in parameters]
        axes = [("layer", *spec_of(parameter).axes) for parameter in parameters]
        inputs = (rows, routing.experts, routing.weights, self.layer[...])
        return sum_over_experts(of_device, matrices, axes, *inputs, is_kernel=True)


def expert_names(described: LayerDescription) -> list[str]:
    """The weights of a layer that are experts'."""
    return [name for name, spec in described.specs.items() if "expert" in dict(spec.stacked)]


def change_modules(
    described: LayerDescription, kind: type, change: Callable[[Any], Any]
) -> LayerDescription:
    """A layer with another module in the place of each of this kind."""

    def is_of_kind(x: Any) -> bool:
        return isinstance(x, kind)

    def change_if_of_kind(x: Any) -> Any:
        return change(x) if is_of_kind(x) else x

    changed = jax.tree.map(change_if_of_kind, described.layer, is_leaf=is_of_kind)
    return LayerDescription(changed)


def stacked_experts_layer(described: LayerDescription, interpret: bool) -> LayerDescription:
    """A layer whose experts are as `StackedExperts` has them."""

    return change_modules(described, ExpertMLP, lambda x: StackedExperts(x, interpret))


def int8_layer(described: LayerDescription, stacked: bool) -> LayerDescription:
    """A layer whose matrices are stored as `to_int8` has them."""

    def change(linear: Linear) -> Any:
        return Int8Linear(linear, stacked) if linear.spec.quantises else linear

    return change_modules(described, Linear, change)


def to_int8(weights: Mapping[str, Array], specs: Mapping[str, Spec]) -> dict[str, Array]:
    """All layers' weights, with int8 values of each matrix that `quantises` and their scales."""
    stored: dict[str, Array] = {}
    for name, w in weights.items():
        if specs[name].quantises:
            stored[name], stored[name + SCALE] = quantise(w, specs[name])
        else:
            stored[name] = w
    return stored


def quantise(w: Float[Array, "*w"], spec: Spec) -> tuple[Int8[Array, "*w"], Float[Array, "*_"]]:
    """Return int8 values, symmetric about 0, and float32 scales [*stacked, *outputs].

    w is values * scale, within scale / 2. `w`: in all layers, with the axes of `spec` behind any
    stacked ones."""
    first_input = w.ndim - len(spec.inputs) - len(spec.outputs)
    input_axes = tuple(range(first_input, first_input + len(spec.inputs)))
    w = w.astype(jnp.float32)

    scale = jnp.abs(w).max(input_axes) / LARGEST
    divisor = jnp.where(scale > 0, scale, 1.0)  # an output of zeros stays zero
    return jnp.round(w / jnp.expand_dims(divisor, input_axes)).astype(jnp.int8), scale


def output_major_layer(described: LayerDescription) -> LayerDescription:
    """A layer whose matrices are stored as `to_output_major` has them."""

    return change_modules(described, Linear, OutputMajor)


def to_output_major(weights: Mapping[str, Array], specs: Mapping[str, Spec]) -> dict[str, Array]:
    """One layer's weights, with each Linear's matrix as its transpose."""
    return {
        name: specs[name].to_matrix(w).T if specs[name].in_linear else w
        for name, w in weights.items()
    }


def to_stacked_matrices(
    weights: Mapping[str, Array], specs: Mapping[str, Spec]
) -> dict[str, Array]:
    """Return all layers' weights, with the matrices of Linears as [L inputs outputs].

    A TPU takes a layer with an axis of heads out of its stack at a quarter of the memory's speed.
    """

    def flatten(w: Array, spec: Spec) -> Array:
        if not spec.in_linear:
            return w
        inputs = math.prod(w.shape[1 : 1 + len(spec.inputs)])
        return w.reshape(len(w), inputs, -1)

    return {name: flatten(w, specs[name]) for name, w in weights.items()}
