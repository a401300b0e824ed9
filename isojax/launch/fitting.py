"""Slots R and microbatch m that a device has the memory for; and which mesh would have it, where none does. No jax here.

What planner.resolve chooses for speed are upper bounds. Where the estimate of memory.py is over the device's memory, what is at its peak
is halved: the slots where it is sampling, the microbatch where it is the update. What the config sets is never changed.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from isojax.config import CellConfig, Config, SweepConfig
from isojax.launch.memory import Memory, estimate
from isojax.launch.planner import resolve
from isojax.launch.sizes import MeshSizes
from isojax.types import InputError

FILLED = 0.85  # of a device's memory that a plan may take: estimates are within 15% of what XLA allocates
MORE_DEVICES = 4096  # the largest mesh that is looked for
CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
GB = 10**9


class Axes(NamedTuple):
    """Sizes of a mesh's axes."""

    data: int = 1
    fsdp: int = 1
    sequence: int = 1
    tensor: int = 1


@dataclass(frozen=True)
class Room:
    """What a sweep has to fit: its settings but slots and microbatch, every (B_p, n), the mesh of a cell, and bytes of a device."""

    cell: CellConfig
    pairs: Sequence[tuple[int, int]]
    mesh: MeshSizes
    vocab: int
    on_device: bool
    backend: str
    device_memory: int

    @property
    def usable(self) -> int:
        """Bytes of a device that a plan may take."""
        return int(FILLED * self.device_memory)

    def takes(self, sweep: SweepConfig) -> Memory:
        """The estimate for a sweep whose sizes are chosen."""
        return estimate(self.cell, sweep, self.pairs, self.mesh, self.vocab, self.on_device, self.backend)

    def resolved(self, sweep: SweepConfig) -> SweepConfig:
        """The sweep with its sizes chosen for speed, where they are not set."""
        return resolve(sweep, self.mesh.data * self.mesh.fsdp, self.cell)


def fit(asked: SweepConfig, room: Room) -> SweepConfig:
    """The sweep with slots, microbatch, prompts and lanes chosen: for speed, then cut until a device's memory holds them.

    Sizes that `asked` sets stay as they are, also where they are estimated not to fit: `warning` says so.

    Raises:
        InputError: not even one slot and a microbatch of one response fit; it says what they take, what there is, and which mesh would do.
    """
    sweep = room.resolved(asked)
    while True:
        found = room.takes(sweep)
        cut = _cut(asked, sweep, found, room.usable)
        if cut is None:
            break
        sweep = room.resolved(asked.model_copy(update=cut))
    if found.peak > room.usable and asked.slots is None and asked.microbatch is None:
        raise InputError(_too_small(asked, room, found))
    return sweep


def _cut(asked: SweepConfig, sweep: SweepConfig, found: Memory, usable: int) -> dict[str, int | None] | None:
    """Smaller sizes, where those of the sweep do not fit and something can be cut."""
    R, m, W = sweep.slots or 1, sweep.microbatch or 1, asked.lane_width or 1
    if found.sampling > usable and asked.slots is None and R >= 2 * W:
        return {"slots": R // 2 // W * W, "microbatch": m}
    if found.update > usable and asked.microbatch is None and m > 1:
        return {"slots": R, "microbatch": m // 2}
    return None


def warning(sweep: SweepConfig, room: Room) -> str:
    """What is to be said of sizes that were set and do not seem to fit; empty where they do."""
    found = room.takes(sweep)
    if found.peak <= room.usable:
        return ""
    return (
        f"sweep.slots = {sweep.slots} and sweep.microbatch = {sweep.microbatch} are estimated to take {size(found.peak)} of each "
        f"device, and {size(room.usable)} of its {size(room.device_memory)} may be planned with. A new run that leaves them "
        "out gets sizes that fit."
    )


def fitting_microbatch(sweep: SweepConfig, room: Room) -> int | None:
    """The largest microbatch below the sweep's that should fit where this one ran out of memory; None where none does.

    The estimate was wrong there, or other work took memory, so that what is wanted is FILLED of what that sweep was estimated to take
    too, not only of the device.
    """
    assert sweep.microbatch, "the planner chooses it"
    wanted = min(room.usable, int(FILLED * room.takes(sweep).peak))
    smaller = (sweep.model_copy(update={"microbatch": m}) for m in range(sweep.microbatch - 1, 0, -1))
    return next((one.microbatch for one in smaller if room.takes(one).peak <= wanted), None)


def _too_small(asked: SweepConfig, room: Room, found: Memory) -> str:
    mesh = mesh_that_fits(asked, room)
    would = f"--mesh {mesh} would fit" if mesh else f"no mesh of up to {MORE_DEVICES} such devices would fit"
    saving = "" if asked.remat == "layer" else ", sweep.remat=layer takes less"
    return (
        f"sweep.slots = 1 and sweep.microbatch = 1 are estimated to take {size(found.peak)} of each device, and "
        f"{size(room.usable)} of its {size(room.device_memory)} may be planned with. {would}{saving}; where a device has more, "
        "say so by run.device_memory=GB."
    )


def mesh_that_fits(asked: SweepConfig, room: Room) -> str:
    """The smallest mesh, of powers of two, on which one slot and a microbatch of one response fit; empty where there is none."""
    least = asked.model_copy(update={"slots": 1, "microbatch": 1})
    for axes in _meshes(room):
        other = replace(room, mesh=axes)
        if other.takes(other.resolved(least)).peak <= room.usable:
            return ",".join(f"{name}={size}" for name, size in axes._asdict().items() if size > 1) or "auto"
    return ""


def _meshes(room: Room) -> Iterator[Axes]:
    """Meshes from the smallest on; of those alike in size, with the most fsdp first. Axes must divide what they split."""
    model = room.cell.model
    powers = [2**i for i in range(MORE_DEVICES.bit_length())]
    ways = [(f, t) for f, t in itertools.product(powers, powers) if model.width % f == 0 and model.kv_heads % t == 0]
    for fsdp, tensor in sorted(ways, key=lambda x: (x[0] * x[1], x[1])):
        if fsdp * tensor <= MORE_DEVICES:
            yield Axes(fsdp=fsdp, tensor=tensor)


def sized(config: Config, asked: SweepConfig, room: Room, fresh: bool) -> Config:
    """The config with slots and microbatch that fit, where this run is a fresh one; a resumed one keeps its own. `asked`: the sweep as it
    was given. What does not seem to fit and is not to be changed is told on standard error.

    Raises:
        InputError: as `fit`.
    """
    sweep = config.sweep
    if fresh:
        sweep = fit(asked, room)
    if said := warning(sweep, room):
        print(f"warning: {said}", file=sys.stderr)
    return config.model_copy(update={"sweep": sweep})


def size(number: float) -> str:
    """Bytes for a person: 12.3 GB."""
    for unit, one in (("GB", GB), ("MB", 10**6)):
        if number >= one:
            return f"{number / one:.3g} {unit}" if number < 1000 * one else f"{number / one:,.0f} {unit}"
    return f"{number / 1e3:.3g} kB"


def host_memory() -> int:
    """Bytes of memory that this process may use: the machine's, or its cgroup's where that is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [path.read_text().strip() for path in CGROUPS if path.is_file()]
    return min([machine, *(int(limit) for limit in limits if limit.isdigit())])
