"""What a user writes for a mesh, and the sizes it means; distributed/sharding.py makes the mesh."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from isojax.core.errors import InputError
from isojax.core.policy_sizes import SizedAxes

AXES = ("data", "fsdp", "sequence", "tensor")
ROLLOUT_AXES = ("data", "fsdp")  # the mesh axes that split rollouts

# The one table from logical axes of arrays to axes of a mesh; only it and distributed/sharding.py name these.
LOGICAL_AXIS_RULES: Mapping[str, str | tuple[str, ...] | None] = {
    "shard": ROLLOUT_AXES,
    "layer": None,
    "vocab": "tensor",
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "expert": "tensor",
    "choice": None,  # a router's outputs, one for each expert
    "rank": None,
    "head_dim": None,
    "fused": None,  # of matrices that a checkpoint has as one
    "position": "sequence",
    "token": "tensor",  # of hidden states between products (`split_tokens`)
}


@dataclass(frozen=True)
class MeshShape:
    data: int = 1
    fsdp: int = 1
    sequence: int = 1
    tensor: int = 1

    def __str__(self) -> str:
        return ",".join(f"{axis}={size}" for axis in AXES if (size := vars(self)[axis]) > 1) or "auto"

    @property
    def devices(self) -> int:
        return self.data * self.fsdp * self.sequence * self.tensor

    @property
    def shards(self) -> int:
        """S: into how many parts the rollouts are split."""
        return self.data * self.fsdp

    def split(self, *axes: str) -> "MeshSplit":
        """What these axes alone split."""
        return MeshSplit(tuple((axis, vars(self)[axis]) for axis in axes))


@dataclass(frozen=True)
class MeshSplit:
    """How some axes of a mesh split arrays, by the rules of distributed/sharding.py."""

    parts: tuple[tuple[str, int], ...]  # (axis, size)

    def __call__(self, axes: SizedAxes) -> SizedAxes:
        """A device's part. An axis that its mesh axes do not divide stays whole, and so does one whose mesh axes split
        an earlier one."""
        sizes, used, device_axes = dict(self.parts), set[str](), []
        for name, size in axes:
            rule = LOGICAL_AXIS_RULES[name]
            mesh_axes = (rule,) if isinstance(rule, str) else rule or ()
            num_parts = math.prod(sizes.get(axis, 1) for axis in mesh_axes)
            is_split = num_parts > 1 and size % num_parts == 0 and used.isdisjoint(mesh_axes)
            used.update(mesh_axes if is_split else ())
            device_axes.append((name, size // num_parts if is_split else size))
        return tuple(device_axes)

    def size(self, axes: SizedAxes) -> int:
        """Numbers of a device's part."""
        return math.prod(size for _, size in self(axes))


def parse_mesh(text: str, available: int, devices_in_use: int = 0) -> MeshShape:
    """`auto` (one device) or "data=2,tensor=1"; at most one size may be -1, which takes the devices that are left,
    of those `available` without the `devices_in_use` of another mesh."""
    sizes: dict[str, int] = {}
    for axis_size in () if text == "auto" else text.split(","):
        axis, _, size = (part.strip() for part in axis_size.partition("="))
        if axis not in AXES or axis in sizes:
            raise InputError(
                f"mesh {text!r}: {axis!r} is not a new axis of {', '.join(AXES)}. Write, for example, data=2,tensor=1."
            )
        sizes[axis] = int(size) if re.fullmatch(r"-?\d{1,9}", size) else 0
        if sizes[axis] < 1 and sizes[axis] != -1:
            raise InputError(f"mesh {text!r}: size of {axis} is {size!r}; expected a positive integer or -1, the rest.")
    open_axes = [axis for axis, size in sizes.items() if size == -1]
    if len(open_axes) > 1:
        raise InputError(f"mesh {text!r}: only one axis may be -1, not {' and '.join(open_axes)}.")
    if open_axes:
        fixed_devices = math.prod(size for size in sizes.values() if size != -1)
        sizes[open_axes[0]] = max(1, (available - devices_in_use) // fixed_devices)
    shape = MeshShape(**sizes)
    if (devices_needed := shape.devices + devices_in_use) > available:
        in_use_note = f" in addition to the {devices_in_use} of another mesh" if devices_in_use else ""
        raise InputError(
            f"mesh {text!r} needs {shape.devices} devices{in_use_note} and this machine shows {available}. Use smaller "
            f"axes, try --topology, or on a CPU XLA_FLAGS=--xla_force_host_platform_device_count={devices_needed}."
        )
    return shape
