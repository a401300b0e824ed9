"""Where each parameter is in a checkpoint.

A checkpoint stores one matrix per layer, [out, in], with heads joined; a decoder's parameters stack their layers and
keep heads separate, [L, in..., out...]. The embedding alone is stored as it is used, [V, D].
"""

import math
from dataclasses import dataclass

import numpy as np

from isojax.core import registry
from isojax.core.config import ModelConfig
from isojax.core.yaml_files import flatten
from isojax.models.transformer import Decoder


@dataclass(frozen=True)
class WeightLayout:
    """One of our parameters, and the tensors it is stored in."""

    key: str
    shape: tuple[int, ...]
    tensor_names: tuple[str, ...]  # one for each layer, or one
    axis_groups: tuple[
        tuple[int, ...], ...
    ]  # sizes of its axes in a layer, as the stored axes join them: ((D,), (N, H))
    transposed: bool  # whether it is stored as [out, in]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        sizes = tuple(math.prod(group) for group in self.axis_groups)
        return sizes[::-1] if self.transposed else sizes

    def stored_index(self, index: tuple[slice, ...]) -> tuple[slice, ...]:
        """The part of each stored tensor that holds a part of the parameter in one layer."""
        slices = []
        for group in self.axis_groups:
            outer, inner, index = index[0], index[1 : len(group)], index[len(group) :]
            whole = [slice(0, n) for n in group[1:]]
            assert list(inner) == whole, f"{self.key}: sharding.py splits the inner axis of a stored one"
            inner_size = math.prod(group[1:])
            slices.append(slice(outer.start * inner_size, outer.stop * inner_size))
        return tuple(slices[::-1] if self.transposed else slices)

    def to_stored(self, value: np.ndarray) -> np.ndarray:
        matrix = value.reshape([math.prod(group) for group in self.axis_groups])
        return matrix.T if self.transposed else matrix


def weight_layouts(config: ModelConfig, decoder: Decoder) -> list[WeightLayout]:
    """Every parameter of the decoder with its place in a checkpoint of the config's family, in the decoder's order."""
    name_templates = registry.load("models.families", config.family, "settings").NAMES
    axes = dict(flatten(decoder.logical_axes()))
    layouts = []
    for key, parameter in flatten(decoder.shapes()):
        layered = key.startswith("blocks.")
        layers = parameter.shape[0] if layered else 1
        axis_groups: list[tuple[int, ...]] = []
        for axis, size in zip(axes[key][layered:], parameter.shape[layered:], strict=True):
            if axis == "head_dim" and axis_groups:
                axis_groups[-1] += (size,)
            else:
                axis_groups.append((size,))
        tensor_names = tuple(name_templates[key].format(layer=i) for i in range(layers))
        transposed = len(axis_groups) == 2 and key != "embed"
        layouts.append(WeightLayout(key, parameter.shape, tensor_names, tuple(axis_groups), transposed))
    return layouts
