"""Where each parameter is in a checkpoint.

A checkpoint stores one matrix per layer, [out, in], with heads joined; a decoder's parameters stack their layers and
keep heads separate, [L, in..., out...]. The embedding alone is stored as it is used, [V, D].
"""

from dataclasses import dataclass

import numpy as np

from isojax.core import registry
from isojax.core.config import ModelConfig
from isojax.core.yaml_files import flatten
from isojax.models.transformer import Decoder

IndexRange = tuple[int, int]
StoredRegion = tuple[IndexRange, IndexRange, IndexRange]  # layers, rows, columns


@dataclass(frozen=True)
class WeightLayout:
    """One of our parameters, and the tensors it is stored in.

    `tensor_names`: one for each layer, or one. `axis_groups`: the sizes of the parameter's axes (without the layers'),
    grouped as the stored matrix has them, such as ((D,), (N, H)). `transposed`: stored as [out, in].
    """

    key: str
    shape: tuple[int, ...]
    tensor_names: tuple[str, ...]
    axis_groups: tuple[tuple[int, ...], ...]
    transposed: bool

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of each stored tensor."""
        sizes = tuple(int(np.prod(group)) for group in self.axis_groups)
        return sizes[::-1] if self.transposed else sizes

    def stored_region(self, index: tuple[slice, ...]) -> StoredRegion:
        """A device's part of the parameter, by its index: which layers, and which rows and columns of the stored
        tensors.
        """
        ranges = [i.indices(n)[:2] for i, n in zip(index, self.shape, strict=True)]
        layers = ranges.pop(0) if self.key.startswith("blocks.") else (0, 1)
        extents = []
        for group in self.axis_groups:
            (first, last), rest = ranges[0], ranges[1 : len(group)]
            inner = int(np.prod(group[1:]))
            assert rest == [(0, n) for n in group[1:]], f"{self.key}: sharding.py splits the inner axis of a stored one"
            extents.append((first * inner, last * inner))
            ranges = ranges[len(group) :]
        rows, columns = (*extents, (0, 1))[:2]
        return (layers, columns, rows) if self.transposed else (layers, rows, columns)

    def to_stored(self, value: np.ndarray) -> np.ndarray:
        """One layer's values, as the checkpoint has them."""
        matrix = value.reshape([int(np.prod(group)) for group in self.axis_groups])
        return matrix.T if self.transposed else matrix


def weight_layouts(config: ModelConfig, decoder: Decoder) -> list[WeightLayout]:
    """Every parameter of the decoder with its place in a checkpoint of the config's family, in the decoder's order."""
    name_templates = registry.load("models.families", config.family, "settings").NAMES
    shapes, axes = dict(flatten(decoder.shapes())), dict(flatten(decoder.logical_axes()))
    layouts = []
    for key, shape in shapes.items():
        layered = key.startswith("blocks.")
        layer_axes, sizes = axes[key][layered:], shape.shape[layered:]
        axis_groups: list[tuple[int, ...]] = []
        for i, (axis, n) in enumerate(zip(layer_axes, sizes, strict=True)):
            if axis == "head_dim" and i > 0:
                axis_groups[-1] += (n,)
            else:
                axis_groups.append((n,))
        tensor_names = tuple(name_templates[key].format(layer=i) for i in range(shape.shape[0] if layered else 1))
        layouts.append(
            WeightLayout(key, shape.shape, tensor_names, tuple(axis_groups), len(axis_groups) == 2 and key != "embed")
        )
    return layouts
