"""What a user writes for a mesh, and the sizes it means; distributed/sharding.py makes the mesh."""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from isojax.core.errors import InputError
from isojax.core.policy_sizes import SizedAxes

AXES = ("data", "fsdp", "sequence", "tensor", "expert")
ROLLOUT_AXES = ("data", "fsdp")  # the mesh axes that split rollouts

# Those that split the weights of a layer among devices with the same rollouts. Experts are the
# larger part of a model that has them, but a mesh that is wide enough for experts is too wide for
# its few key/value heads. So `expert` splits experts, and what else its devices divide; the cache,
# by heads, is then split over `tensor` alone.
WEIGHT_AXES = ("tensor", "expert")

# The one table from logical axes of arrays to axes of a mesh; only it and distributed/sharding.py
# name these. Of several mesh axes, `axes_that_split` takes those that make the most parts.
LOGICAL_AXIS_RULES: Mapping[str, tuple[str, ...]] = {
    "shard": ROLLOUT_AXES,
    "layer": (),
    "vocab": WEIGHT_AXES,
    "embed": ("fsdp",),
    "heads": WEIGHT_AXES,
    "kv_heads": WEIGHT_AXES,
    "mlp": WEIGHT_AXES,
    "expert": WEIGHT_AXES,
    "choice": (),  # a router's outputs, one for each expert
    "rank": (),
    "head_dim": (),
    "fused": (),  # of matrices that a checkpoint has as one
    "position": ("sequence",),
    "token": WEIGHT_AXES,  # of hidden states between products (`split_tokens`)
}


def axes_that_split(
    name: str, size: int, mesh: Mapping[str, int], used: Collection[str] = ()
) -> tuple[str, ...]:
    """The axes of a mesh that split a logical axis of an array, such as ("tensor",).

    Of the mesh axes that LOGICAL_AXIS_RULES has for it and that are not `used`, they are the ones
    whose product divides its size and is largest; () where it stays whole.

    name: a key of LOGICAL_AXIS_RULES, such as "heads". size: of the axis in the array, such as 32.
    mesh: the size of each mesh axis, such as {"data": 2, "tensor": 4}; 1 of one that is not there.
    used: mesh axes that split an earlier axis of the same array; one splits only one of them.
    """
    candidates = [
        axis for axis in LOGICAL_AXIS_RULES[name] if mesh.get(axis, 1) > 1 and axis not in used
    ]
    best: tuple[str, ...] = ()
    for count in range(1, len(candidates) + 1):
        for axes in combinations(candidates, count):
            parts = count_parts(axes, mesh)
            # `>`, so that of equal choices the first stays: fewer axes, in the table's order. An
            # axis of size 0 stays whole.
            if size and size % parts == 0 and parts > count_parts(best, mesh):
                best = axes
    return best


def count_parts(axes: Iterable[str], mesh: Mapping[str, int]) -> int:
    """Into how many parts these axes of a mesh split an array: the product of their sizes, 1 of
    none."""
    return math.prod(mesh.get(axis, 1) for axis in axes)


@dataclass(frozen=True)
class MeshShape:
    """The size of each axis of a mesh; 1 of those that split nothing. Its fields are AXES, in that
    order."""

    data: int = 1
    fsdp: int = 1
    sequence: int = 1
    tensor: int = 1
    expert: int = 1

    def __str__(self) -> str:
        """As `parse_mesh` reads it: "data=2,tensor=4", or "auto" of a single device."""
        used_axes = [f"{axis}={size}" for axis, size in self.sizes.items() if size > 1]
        return ",".join(used_axes) or "auto"

    @property
    def devices(self) -> int:
        return math.prod(self.sizes.values())

    @property
    def sizes(self) -> Mapping[str, int]:
        """The size of each axis, all of AXES in their order."""
        return {axis: vars(self)[axis] for axis in AXES}

    @property
    def weight_parts(self) -> int:
        """How many devices have the same rollouts and, each, a part of a layer's weights."""
        return count_parts(WEIGHT_AXES, self.sizes)

    @property
    def shards(self) -> int:
        """S: into how many parts the rollouts are split."""
        return self.data * self.fsdp

    def split(self, *axes: str) -> "MeshSplit":
        """How these mesh axes alone split arrays, such as split("fsdp", "tensor")."""
        return MeshSplit(tuple((axis, vars(self)[axis]) for axis in axes))


@lru_cache(maxsize=4096)  # a planner asks for the same arrays again for every size that it tries
def _device_part(parts: tuple[tuple[str, int], ...], axes: SizedAxes) -> SizedAxes:
    """The shape of a device's part of an array; as `MeshSplit` has it."""
    sizes = dict(parts)
    used: set[str] = set()
    device_axes = []
    for name, size in axes:
        split_axes = axes_that_split(name, size, sizes, used)
        used.update(split_axes)
        device_axes.append((name, size // count_parts(split_axes, sizes)))
    return tuple(device_axes)


@dataclass(frozen=True)
class MeshSplit:
    """How some axes of a mesh split arrays, by LOGICAL_AXIS_RULES, without a mesh of devices.

    `SizedAxes` is an array's shape with the logical names of its axes: (("embed", 576), ("mlp",
    1536)).
    """

    parts: tuple[tuple[str, int], ...]  # (axis, size)

    def __call__(self, axes: SizedAxes) -> SizedAxes:
        """The shape of a device's part of an array of this shape.

        Each axis is divided by the mesh axes that split it; axes take them in their order, and one
        that has split an earlier axis splits no later one.
        """
        return _device_part(self.parts, tuple(axes))

    def size(self, axes: SizedAxes) -> int:
        """How many numbers a device's part of an array of this shape has."""
        return math.prod(size for _, size in self(axes))


def parse_mesh(text: str, available: int, devices_in_use: int = 0) -> MeshShape:
    """The mesh that a user writes: "auto" (one device), or such as "data=2,tensor=1".

    One size may be -1: the devices that are left over, of those `available` without the
    `devices_in_use` of another mesh, and at least 1. InputError for another text, and for a mesh of
    more devices than are left.
    """
    sizes = {} if text == "auto" else _read_sizes(text)

    open_axes = [axis for axis, size in sizes.items() if size == -1]
    if len(open_axes) > 1:
        raise InputError(
            where=f"mesh {text!r}",
            found=f"only one axis may be -1, not {' and '.join(open_axes)}",
        )
    if open_axes:
        fixed_devices = math.prod(size for size in sizes.values() if size != -1)
        sizes[open_axes[0]] = max(1, (available - devices_in_use) // fixed_devices)

    shape = MeshShape(**sizes)
    devices_needed = shape.devices + devices_in_use
    if devices_needed > available:
        in_use_note = ""
        if devices_in_use:
            in_use_note = f" in addition to the {devices_in_use} of another mesh"
        xla_flag = f"--xla_force_host_platform_device_count={devices_needed}"
        raise InputError(
            where="mesh",
            found=(
                f"given {text!r}, which needs {shape.devices} devices{in_use_note} and this "
                f"machine shows {available}"
            ),
            fix=f"Use smaller axes, try --topology, or on a CPU XLA_FLAGS={xla_flag}.",
        )
    return shape


def _read_sizes(text: str) -> dict[str, int]:
    """The sizes in "data=2,tensor=-1", by axis: {"data": 2, "tensor": -1}. InputError for an axis
    that is unknown or there twice, and for a size that is neither positive nor -1."""
    sizes: dict[str, int] = {}
    for axis_size in text.split(","):
        axis, _, size = (part.strip() for part in axis_size.partition("="))
        if axis not in AXES or axis in sizes:
            raise InputError(
                where=f"mesh {text!r}",
                found=f"{axis!r} is not a new axis of {', '.join(AXES)}",
                fix="Write, for example, data=2,tensor=1.",
            )

        # What is no number of up to nine digits is refused as 0 is.
        sizes[axis] = int(size) if re.fullmatch(r"-?\d{1,9}", size) else 0
        if sizes[axis] < 1 and sizes[axis] != -1:
            raise InputError(
                where=f"mesh {text!r}",
                found=f"size of {axis} is {size!r}",
                expected="a positive integer or -1, the rest",
            )
    return sizes
