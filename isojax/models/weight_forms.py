"""Forms of a layer's matrices for the sampler: how each is stored, and the product that goes with it.

A form is a module made of a `Linear`. Where only the shape differs, as of the matrices that a TPU takes out of a stack,
there is none: `Linear` multiplies by a matrix as by its own axes.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from isojax.models.cpu import small_batch_matmul
from isojax.models.layers.linear import Linear
from isojax.models.spec import LayerDescription, Spec


class OutputMajor(nnx.Module):
    """A Linear whose matrix is stored as [outputs, inputs], for a CPU's products of few rows."""

    def __init__(self, linear: Linear):
        self.linear = linear

    @property
    def spec(self) -> Spec:
        return self.linear.spec

    def __call__(self, x: Float[Array, "*b _"], first_tokens: None = None) -> Array:
        return self.add_bias(self.product(x))

    def product(self, x: Float[Array, "*b _"], first_tokens: None = None) -> Array:
        rows = self.spec.to_rows(x)
        return self.spec.from_rows(small_batch_matmul(rows, self.linear.weight[...]), x)

    def add_bias(self, y: Array) -> Array:
        return self.linear.add_bias(y)


def output_major_layer(described: LayerDescription) -> LayerDescription:
    """A layer whose matrices are stored as `to_output_major` has them."""

    def change(x: Any) -> Any:
        return OutputMajor(x) if isinstance(x, Linear) else x

    return LayerDescription(jax.tree.map(change, described.layer, is_leaf=lambda x: isinstance(x, Linear)))


def to_output_major(weights: Mapping[str, Array], specs: Mapping[str, Spec]) -> dict[str, Array]:
    """One layer's weights, with each matrix as its transpose."""
    return {name: specs[name].to_matrix(w).T if specs[name].is_matrix else w for name, w in weights.items()}


def to_stacked_matrices(weights: Mapping[str, Array], specs: Mapping[str, Spec]) -> dict[str, Array]:
    """All layers' weights, with each layer's matrix of two axes: a TPU takes a layer with an axis of heads out of its
    stack at a quarter of the memory's speed."""

    def flatten(w: Array, spec: Spec) -> Array:
        if not spec.is_matrix:
            return w
        inputs = math.prod(w.shape[1 : 1 + len(spec.inputs)])
        return w.reshape(len(w), inputs, -1)

    return {name: flatten(w, specs[name]) for name, w in weights.items()}
