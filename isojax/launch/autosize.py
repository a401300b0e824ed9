"""Slots R and microbatch m that a device has the memory for; and which mesh would have it, where none does. No jax
here.

What planner.resolve chooses for speed are upper bounds. Where the estimate of memory_model.py is over the device's
memory, what is at its peak
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

from isojax.core.config import CellConfig, Config, SweepConfig
from isojax.core.errors import InputError
from isojax.launch.device_sizes import MeshSizes
from isojax.launch.memory_model import MemoryEstimate, estimate_memory
from isojax.launch.planner import resolve_sweep_sizes

MEMORY_UTILIZATION = 0.85  # of a device's memory that a plan may take: estimates are within 15% of what XLA allocates
MAX_MESH_DEVICES = 4096  # the largest mesh that is looked for
CGROUP_LIMIT_FILES = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
GIB = 2**30  # bytes


class MeshAxes(NamedTuple):
    """Sizes of a mesh's axes."""

    data: int = 1
    fsdp: int = 1
    sequence: int = 1
    tensor: int = 1


@dataclass(frozen=True)
class DeviceBudget:
    """What a sweep has to fit: its settings but slots and microbatch, every (B_p, n), the mesh of a cell, and bytes of
    a device.
    """

    cell: CellConfig
    pairs: Sequence[tuple[int, int]]
    mesh: MeshSizes
    vocab: int
    on_device: bool
    backend: str
    device_memory: int

    @property
    def usable_memory(self) -> int:
        """Bytes of a device that a plan may take."""
        return int(MEMORY_UTILIZATION * self.device_memory)

    def estimate(self, sweep: SweepConfig) -> MemoryEstimate:
        """The estimate for a sweep whose sizes are chosen."""
        return estimate_memory(self.cell, sweep, self.pairs, self.mesh, self.vocab, self.on_device, self.backend)

    def resolve_sizes(self, sweep: SweepConfig) -> SweepConfig:
        """The sweep with its sizes chosen for speed, where they are not set."""
        return resolve_sweep_sizes(sweep, self.mesh.data * self.mesh.fsdp, self.cell)


def fit_to_memory(requested: SweepConfig, device_budget: DeviceBudget) -> SweepConfig:
    """The sweep with slots, microbatch, prompts and lanes chosen: for speed, then cut until a device's memory holds
    them.

    Sizes that `asked` sets stay as they are, also where they are estimated not to fit: `warning` says so.

    Raises:
        InputError: not even one slot and a microbatch of one response fit; it says what they take, what there is, and
        which mesh would do.
    """
    sweep = device_budget.resolve_sizes(requested)
    while True:
        memory = device_budget.estimate(sweep)
        smaller_sizes = _reduce_sizes(requested, sweep, memory, device_budget.usable_memory)
        if smaller_sizes is None:
            break
        sweep = device_budget.resolve_sizes(requested.model_copy(update=smaller_sizes))
    if memory.peak > device_budget.usable_memory and requested.decode_slots is None and requested.microbatch is None:
        raise InputError(_too_small_message(requested, device_budget, memory))
    return sweep


def _reduce_sizes(
    requested: SweepConfig, sweep: SweepConfig, memory: MemoryEstimate, usable_memory: int
) -> dict[str, int | None] | None:
    """Smaller sizes, where those of the sweep do not fit and something can be cut."""
    R, m, W = sweep.decode_slots or 1, sweep.microbatch or 1, requested.slots_per_prefix or 1
    if memory.sampling_peak > usable_memory and requested.decode_slots is None and R >= 2 * W:
        return {"decode_slots": R // 2 // W * W, "microbatch": m}
    if memory.update_peak > usable_memory and requested.microbatch is None and m > 1:
        return {"decode_slots": R, "microbatch": m // 2}
    return None


def memory_warning(sweep: SweepConfig, device_budget: DeviceBudget) -> str:
    """What is to be said of sizes that were set and do not seem to fit; empty where they do."""
    memory = device_budget.estimate(sweep)
    if memory.peak <= device_budget.usable_memory:
        return ""
    return (
        f"sweep.decode_slots = {sweep.decode_slots} and sweep.microbatch = {sweep.microbatch} are estimated to take "
        f"{format_bytes(memory.peak)} of each device, and {format_bytes(device_budget.usable_memory)} of its "
        f"{format_bytes(device_budget.device_memory)} may be planned with. "
        "A new run that leaves them out gets sizes that fit."
    )


def largest_fitting_microbatch(sweep: SweepConfig, device_budget: DeviceBudget) -> int | None:
    """The largest microbatch below the sweep's that should fit where this one ran out of memory; None where none does.

    The estimate was wrong there, or other work took memory, so that what is wanted is FILLED of what that sweep was
    estimated to take too, not only of the device.
    """
    assert sweep.microbatch, "the planner chooses it"
    memory_limit = min(device_budget.usable_memory, int(MEMORY_UTILIZATION * device_budget.estimate(sweep).peak))
    candidates = (sweep.model_copy(update={"microbatch": m}) for m in range(sweep.microbatch - 1, 0, -1))
    return next(
        (candidate.microbatch for candidate in candidates if device_budget.estimate(candidate).peak <= memory_limit),
        None,
    )


def _too_small_message(requested: SweepConfig, device_budget: DeviceBudget, memory: MemoryEstimate) -> str:
    mesh = smallest_fitting_mesh(requested, device_budget)
    mesh_hint = f"--mesh {mesh} would fit" if mesh else f"no mesh of up to {MAX_MESH_DEVICES} such devices would fit"
    remat_hint = "" if requested.remat == "layer" else ", sweep.remat=layer takes less"
    return (
        f"sweep.decode_slots = 1 and sweep.microbatch = 1 are estimated to take {format_bytes(memory.peak)} of each "
        f"device, and {format_bytes(device_budget.usable_memory)} of its {format_bytes(device_budget.device_memory)} "
        f"may be planned with. {mesh_hint}{remat_hint}; where a device has more, say so by run.device_memory=GIB."
    )


def smallest_fitting_mesh(requested: SweepConfig, device_budget: DeviceBudget) -> str:
    """The smallest mesh, of powers of two, on which one slot and a microbatch of one response fit; empty where there is
    none.
    """
    minimal_sweep = requested.model_copy(update={"decode_slots": 1, "microbatch": 1})
    for axes in _candidate_meshes(device_budget):
        budget_on_mesh = replace(device_budget, mesh=axes)
        if budget_on_mesh.estimate(budget_on_mesh.resolve_sizes(minimal_sweep)).peak <= device_budget.usable_memory:
            return (
                ",".join(f"{name}={axis_size}" for name, axis_size in axes._asdict().items() if axis_size > 1) or "auto"
            )
    return ""


def _candidate_meshes(device_budget: DeviceBudget) -> Iterator[MeshAxes]:
    """Meshes from the smallest on; of those alike in size, with the most fsdp first. Axes must divide what they
    split.
    """
    model = device_budget.cell.model
    powers = [2**i for i in range(MAX_MESH_DEVICES.bit_length())]
    axis_sizes = [
        (f, t) for f, t in itertools.product(powers, powers) if model.width % f == 0 and model.kv_heads % t == 0
    ]
    for fsdp, tensor in sorted(axis_sizes, key=lambda x: (x[0] * x[1], x[1])):
        if fsdp * tensor <= MAX_MESH_DEVICES:
            yield MeshAxes(fsdp=fsdp, tensor=tensor)


def autosize_config(config: Config, requested: SweepConfig, device_budget: DeviceBudget, is_new_run: bool) -> Config:
    """The config with slots and microbatch that fit, where this run is a fresh one; a resumed one keeps its own.
    `asked`: the sweep as it was given. What does not seem to fit and is not to be changed is told on standard error.

    Raises:
        InputError: as `fit`.
    """
    sweep = config.sweep
    if is_new_run:
        sweep = fit_to_memory(requested, device_budget)
    if warning_text := memory_warning(sweep, device_budget):
        print(f"warning: {warning_text}", file=sys.stderr)
    return config.model_copy(update={"sweep": sweep})


def format_bytes(num_bytes: float) -> str:
    """Bytes for a person: 12.3 GiB."""
    for unit, unit_bytes in (("GiB", GIB), ("MiB", 2**20)):
        if num_bytes >= unit_bytes:
            size = num_bytes / unit_bytes
            return f"{size:.3g} {unit}" if size < 1000 else f"{size:,.0f} {unit}"
    return f"{num_bytes / 2**10:.3g} KiB"


def host_memory() -> int:
    """Bytes of memory that this process may use: the machine's, or its cgroup's where that is less."""
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cgroup_limits = [path.read_text().strip() for path in CGROUP_LIMIT_FILES if path.is_file()]
    return min([machine_bytes, *(int(limit) for limit in cgroup_limits if limit.isdigit())])
