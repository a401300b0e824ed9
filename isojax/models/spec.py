"""What there is to know of a parameter, stated once, where its layer makes it.

A policy is first a description: Flax NNX modules whose Params hold ShapeDtypeStructs, each with one
`Spec`. All else walks over the Specs: initial values, shardings, a checkpoint's tensors, adapters,
sizes. A Spec is static metadata and hashable, so that descriptions that are equal trace to one
program.

Letters are those of distributed/sharding.py.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, PRNGKeyArray

from isojax.core.errors import InputError

Axes = tuple[tuple[str, int], ...]  # logical names and sizes: (("heads", N), ("head_dim", H))
Sizes = Mapping[str, int]  # the same, as layers write it: {"heads": N, "head_dim": H}
NO_AXES: Sizes = {}


class Init(Protocol):
    """How a parameter begins. Frozen dataclasses, as a Spec must be hashable.

    `is_drawn`: whether the key counts, so that `init_layer` gives it one."""

    @property
    def is_drawn(self) -> bool: ...

    def __call__(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Array: ...


@dataclass(frozen=True)
class Constant:
    """Every entry is `value`; no key is used."""

    value: float
    is_drawn: bool = False

    def __call__(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
        return jnp.full(shape, self.value, jnp.float32)


@dataclass(frozen=True)
class Normal:
    """Of standard deviation gain / sqrt(fan_in)."""

    fan_in: int
    gain: float = 1.0
    is_drawn: bool = True

    def __call__(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
        return jax.random.normal(key, shape) * self.gain * self.fan_in**-0.5


@dataclass(frozen=True)
class Uniform:
    """Within -bound and bound."""

    bound: float
    is_drawn: bool = True

    def __call__(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
        return jax.random.uniform(key, shape, minval=-self.bound, maxval=self.bound)


@dataclass(frozen=True)
class Part:
    """The place of a parameter in a tensor of a checkpoint that holds several, as Phi-3's qkv_proj.

    They lie one after the other along the tensor's outputs."""

    first: int  # output of the tensor
    total: int  # outputs of the tensor


@dataclass(frozen=True)
class Spec:
    """One parameter. Its axes are in this order: stacked ones, inputs, outputs."""

    # in its layer: "query"; the parameters' tree and a run's checkpoints have it by this name
    name: str
    inputs: Axes  # what a product with it sums over; none: it is no matrix
    outputs: Axes
    init: Init

    # its name in a published checkpoint: "model.layers.{layer}.self_attn.q_proj.weight"
    tensor: str
    transposed: bool = False  # whether it is [outputs, inputs] there
    joins_outputs: bool = True  # whether all outputs are one axis there
    part: Part | None = None  # of that tensor; None: it is all of it

    stacked: Axes = ()  # layers and experts: each index is a tensor of its own in a checkpoint
    layers: range = range(0)  # the model's layers that are stacked
    share: float = 1.0  # of its entries, how many a token is multiplied by: k / E of the experts'
    # the name in cell.model.lora.targets by which it gets an adapter; empty: never
    adapts: str = ""
    is_adapter: bool = False
    # whether a Linear multiplies by it, so that the sampler may store it in another shape
    in_linear: bool = False
    quantises: bool = False  # whether the sampler may hold it as int8 (weight_forms.py)
    dtype: str = "float32"  # that it is described in; products are computed in another

    @property
    def axes(self) -> tuple[str, ...]:
        """The logical axes, by which distributed/sharding.py splits it."""
        return tuple(name for name, _ in self.stacked + self.inputs + self.outputs)

    @property
    def shape(self) -> tuple[int, ...]:
        return sizes(self.stacked + self.inputs + self.outputs)

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """Its sizes with all inputs as one axis, and all outputs as one."""
        return math.prod(sizes(self.inputs)), math.prod(sizes(self.outputs))

    def to_matrix(self, w: Array) -> Array:
        """Return its value in one layer, or a part of it that fsdp made, as a matrix.

        XLA:CPU transposes weights or activations in products of more axes."""
        if w.ndim == 2:  # a sampler's is one already
            return w
        return w.reshape(math.prod(w.shape[: len(self.inputs)]), -1)

    def to_rows(self, x: Array) -> Array:
        """[*b, *inputs] as rows for a product with the matrix."""
        return x.reshape(-1, self.matrix_shape[0])

    def from_rows(self, y: Array, x: Array) -> Array:
        """The products of x's rows as [*b, *outputs]."""
        batch_shape = x.shape[: x.ndim - len(self.inputs)]
        return y.reshape(*batch_shape, *sizes(self.outputs))

    @property
    def stored_groups(self) -> list[tuple[int, ...]]:
        """Sizes of its axes in one layer, as a checkpoint joins them: [(D,), (N, H)]."""
        outputs = [self.outputs] if self.joins_outputs else [(axis,) for axis in self.outputs]
        return [sizes(axes) for axes in (self.inputs, *outputs) if axes]

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Of each of its tensors in a checkpoint, with what else is in them."""
        stored_sizes = [math.prod(group) for group in self.stored_groups]
        if self.part is not None:
            stored_sizes[-1] = self.part.total
        return tuple(stored_sizes[::-1] if self.transposed else stored_sizes)

    @property
    def stored_outputs_axis(self) -> int:
        """The axis of its tensors in a checkpoint along which several may be one."""
        return 0 if self.transposed else len(self.stored_groups) - 1

    def tensor_names(self) -> tuple[str, ...]:
        """Return the names of the tensors of a checkpoint that hold it.

        One for each index of its stacked axes, the last one fastest, such as
        "model.layers.0.self_attn.q_proj.weight" and that of layer 1."""
        names = []
        for index in np.ndindex(*sizes(self.stacked)):
            numbers = {name: i for (name, _), i in zip(self.stacked, index, strict=True)}
            # from the place in the stack to the number in the model
            if "layer" in numbers:
                numbers["layer"] = self.layers[numbers["layer"]]
            names.append(self.tensor.format(**numbers))
        return tuple(names)


def sizes(axes: Axes) -> tuple[int, ...]:
    return tuple(size for _, size in axes)


def param(spec: Spec) -> nnx.Param:
    """A described parameter, without values."""
    return nnx.Param(jax.ShapeDtypeStruct(spec.shape, spec.dtype), spec=spec)


def spec_of(parameter: nnx.Param) -> Spec:
    return parameter.get_metadata()["spec"]


def specs_of(module: Any) -> Iterator[Spec]:
    """Yield the Specs of a module and of its submodules, in the order in which they were made."""
    for value in vars(module).values():
        if isinstance(value, nnx.Param):
            yield spec_of(value)
        elif isinstance(value, nnx.Module):
            yield from specs_of(value)


def stack_spec(spec: Spec, layers: range, prefix: str) -> Spec:
    """The Spec of one layer as that of these layers of the model, on a new first axis."""
    return replace(
        spec,
        stacked=(("layer", len(layers)), *spec.stacked),
        layers=layers,
        tensor=prefix + spec.tensor,
    )


def rename_tensor(spec: Spec, renamed: Mapping[str, str]) -> Spec:
    """Return the Spec with parts of its name in a checkpoint replaced.

    `renamed`: such as {"mlp.gate_proj": "block_sparse_moe.w1"}."""
    tensor = spec.tensor
    for described, published in renamed.items():
        tensor = tensor.replace(described, published)
    return replace(spec, tensor=tensor)


def fuse_specs(specs: Sequence[Spec], fused: Mapping[str, Sequence[str]]) -> list[Spec]:
    """Describe those parameters of one layer as parts of one tensor that a checkpoint has fused.

    `fused`: the tensor's name in a layer -> those of its parts here, in its order, all without
    ".weight" or ".bias": {"mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj")}. Return: all Specs
    in the order given. InputError where a layer has some of the parts and lacks another."""
    by_tensor = {spec.tensor: spec for spec in specs}
    fused_specs: dict[str, Spec] = {}  # by the Spec's own name
    for whole, parts in fused.items():
        for ending in (".weight", ".bias"):
            names = [part + ending for part in parts]
            missing = [name for name in names if name not in by_tensor]
            if len(missing) == len(names):  # no bias, or a layer of another kind
                continue
            if missing:
                raise InputError(
                    found=(
                        f"the family fuses {', '.join(parts)} as {whole}, and a layer of it "
                        f"has no {missing[0]}"
                    ),
                    fix="Name the tensors as the layer's modules do.",
                )

            part_specs = [by_tensor[name] for name in names]
            total = sum(math.prod(sizes(spec.outputs)) for spec in part_specs)
            # where the next part begins along the tensor's outputs
            first = 0
            for spec in part_specs:
                part = Part(first, total)
                fused_specs[spec.name] = replace(spec, tensor=whole + ending, part=part)
                first += math.prod(sizes(spec.outputs))
    return [fused_specs.get(spec.name, spec) for spec in specs]


class LayerDescription:
    """A described layer, and `bind`, which puts arrays into it.

    `layer`: a module whose Params hold ShapeDtypeStructs. `specs`: of its parameters, by name."""

    def __init__(self, layer: Any):
        parameters = jax.tree.leaves(layer, is_leaf=lambda x: isinstance(x, nnx.Param))
        self.layer = layer
        self.specs = {spec_of(parameter).name: spec_of(parameter) for parameter in parameters}
        self._names = [spec_of(parameter).name for parameter in parameters]
        self._structure = jax.tree.structure(layer)

    def bind(self, weights: Mapping[str, Any]) -> Any:
        """Return the layer with these values, by the names of its Specs.

        Values of other names are left out."""
        return jax.tree.unflatten(self._structure, [weights[name] for name in self._names])
