"""Where each parameter lies in a checkpoint.

A checkpoint stores one matrix a layer, [out, in], heads joined; a decoder's parameters stack their layers and keep heads apart,
[L, in..., out...]. The embedding alone is stored as it is used, [V, D].
"""

from dataclasses import dataclass

import numpy as np

from isojax import registry
from isojax.config import ModelConfig
from isojax.files import leaves
from isojax.models.decoder import Decoder

Span = tuple[int, int]
Box = tuple[Span, Span, Span]  # layers, rows, columns


@dataclass(frozen=True)
class Weight:
    """One of our parameters, and the tensors it is stored in.

    `names`: one a layer, or one. `axes`: the sizes of its own axes (without the layers'), grouped as the stored matrix has them, such
    as ((D,), (N, H)). `transposed`: stored as [out, in].
    """

    key: str
    shape: tuple[int, ...]
    names: tuple[str, ...]
    axes: tuple[tuple[int, ...], ...]
    transposed: bool

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of each stored tensor."""
        sizes = tuple(int(np.prod(group)) for group in self.axes)
        return sizes[::-1] if self.transposed else sizes

    def box(self, index: tuple[slice, ...]) -> Box:
        """A device's part of the parameter, by its index: which layers, and which rows and columns of the stored tensors."""
        spans = [i.indices(n)[:2] for i, n in zip(index, self.shape, strict=True)]
        layers = spans.pop(0) if self.key.startswith("blocks.") else (0, 1)
        found = []
        for group in self.axes:
            (first, last), rest = spans[0], spans[1 : len(group)]
            inner = int(np.prod(group[1:]))
            assert rest == [(0, n) for n in group[1:]], f"{self.key}: sharding.py splits the inner axis of a stored one"
            found.append((first * inner, last * inner))
            spans = spans[len(group) :]
        rows, columns = (*found, (0, 1))[:2]
        return (layers, columns, rows) if self.transposed else (layers, rows, columns)

    def to_stored(self, value: np.ndarray) -> np.ndarray:
        """One layer's values, as the checkpoint has them."""
        matrix = value.reshape([int(np.prod(group)) for group in self.axes])
        return matrix.T if self.transposed else matrix


def weights(config: ModelConfig, decoder: Decoder) -> list[Weight]:
    """Every parameter of the decoder with its place in a checkpoint of the config's family, in the decoder's order."""
    stored = registry.load("models", config.family, "settings").NAMES
    shapes, axes = dict(leaves(decoder.shapes())), dict(leaves(decoder.logical_axes()))
    found = []
    for key, shape in shapes.items():
        layered = key.startswith("blocks.")
        own, sizes = axes[key][layered:], shape.shape[layered:]
        groups: list[tuple[int, ...]] = []
        for i, (axis, n) in enumerate(zip(own, sizes, strict=True)):
            if axis == "head_dim" and i > 0:
                groups[-1] += (n,)
            else:
                groups.append((n,))
        names = tuple(stored[key].format(layer=i) for i in range(shape.shape[0] if layered else 1))
        found.append(Weight(key, shape.shape, names, tuple(groups), len(groups) == 2 and key != "embed"))
    return found
