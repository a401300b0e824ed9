"""Slots R and microbatch m that a device has the memory for; and which mesh would have it, where none does.

What planner.resolve_sweep_sizes chooses for speed are upper bounds. Where the estimate of memory_model.py is over the
device's memory, the size that decides the peak is halved: the slots, or the microbatch. What the config sets is never
changed.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from isojax.core.config import CellConfig, Config, SweepConfig
from isojax.core.errors import InputError
from isojax.core.shapes import make_sampler_shapes
from isojax.distributed.mesh_spec import MeshShape
from isojax.launch.device_sizes import DeviceSizes
from isojax.launch.memory_model import MemoryEstimate, estimate_memory
from isojax.launch.planner import resolve_sweep_sizes

MEMORY_UTILIZATION = 0.85  # of a device's memory that a plan may take: estimates are within 15% of what XLA allocates
MAX_MESH_DEVICES = 4096  # of the meshes that are searched
CGROUP_LIMIT_FILES = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
GIB = 2**30  # bytes


@dataclass(frozen=True)
class DeviceBudget:
    """What a sweep has to fit: all (B_p, n), the mesh of a cell, and the bytes of a device. `on_device`: where
    responses are verified."""

    cell: CellConfig
    pairs: Sequence[tuple[int, int]]
    mesh: MeshShape
    vocab: int
    on_device: bool
    backend: str
    device_memory: int

    @property
    def usable_memory(self) -> int:
        """Bytes of a device that a plan may take."""
        return int(MEMORY_UTILIZATION * self.device_memory)

    def sizes(self, sweep: SweepConfig) -> DeviceSizes:
        """A device's part of a sweep whose sizes are chosen."""
        assert sweep.decode_slots and sweep.microbatch and sweep.prefill_batch, "the planner chooses them"
        shapes = make_sampler_shapes(
            self.pairs,
            self.mesh.shards,
            sweep.decode_slots,
            sweep.microbatch,
            self.cell.sampling.prompt_length,
            self.cell.sampling.response_length,
            sweep.prefill_batch,
            sweep.slots_per_prefix or 1,
        )
        return DeviceSizes(self.cell, sweep.remat == "layer", shapes, self.mesh, self.vocab, self.backend)

    def estimate(self, sweep: SweepConfig) -> MemoryEstimate:
        """The estimate for a sweep whose sizes are chosen."""
        return estimate_memory(self.sizes(sweep), self.on_device)

    def resolve_sizes(self, sweep: SweepConfig) -> SweepConfig:
        """The sweep with its sizes chosen for speed, where they are not set."""
        return resolve_sweep_sizes(sweep, self.mesh.shards, self.cell)


def fit_to_memory(requested: SweepConfig, budget: DeviceBudget) -> SweepConfig:
    """The sweep with its static sizes chosen for speed, then cut until a device's memory holds them.

    Sizes that `requested` sets stay as they are, also where they are estimated not to fit.

    Raises:
        InputError: not even one slot and a microbatch of one response fit; it says which mesh would do.
    """
    sweep = budget.resolve_sizes(requested)
    while True:
        memory = budget.estimate(sweep)
        smaller_sizes = _reduce_sizes(requested, sweep, memory, budget.usable_memory)
        if smaller_sizes is None:
            break
        sweep = budget.resolve_sizes(requested.model_copy(update=smaller_sizes))
    if memory.peak > budget.usable_memory and requested.decode_slots is None and requested.microbatch is None:
        mesh = smallest_fitting_mesh(requested, budget)
        fitting = f"--mesh {mesh}" if mesh else f"no mesh of up to {MAX_MESH_DEVICES} such devices"
        remat_hint = "" if requested.remat == "layer" else ", sweep.remat=layer takes less"
        raise InputError(
            f"sweep.decode_slots = 1 and sweep.microbatch = 1 are {_shortage(memory, budget)} "
            f"{fitting} would fit{remat_hint}; where a device has more, set run.device_memory=GIB."
        )
    return sweep


def _shortage(memory: MemoryEstimate, budget: DeviceBudget) -> str:
    return (
        f"estimated to take {format_bytes(memory.peak)} of each device, and {format_bytes(budget.usable_memory)} "
        f"of its {format_bytes(budget.device_memory)} may be planned with."
    )


def _reduce_sizes(
    requested: SweepConfig, sweep: SweepConfig, memory: MemoryEstimate, usable_memory: int
) -> dict[str, int] | None:
    """Smaller sizes, where those of the sweep do not fit and something can be cut."""
    R, m, W = sweep.decode_slots or 1, sweep.microbatch or 1, requested.slots_per_prefix or 1
    if memory.sampling_peak > usable_memory and requested.decode_slots is None and R >= 2 * W:
        return {"decode_slots": R // 2 // W * W, "microbatch": m}
    if memory.update_peak > usable_memory and requested.microbatch is None and m > 1:
        return {"decode_slots": R, "microbatch": m // 2}
    return None


def largest_fitting_microbatch(sweep: SweepConfig, budget: DeviceBudget) -> int | None:
    """The largest microbatch below the sweep's that should fit where this one ran out of memory; None where none does.

    The estimate was wrong there, or something else took memory: so it must also fit into a part of what this sweep was
    estimated to take.
    """
    assert sweep.microbatch, "the planner chooses it"
    memory_limit = min(budget.usable_memory, int(MEMORY_UTILIZATION * budget.estimate(sweep).peak))
    for microbatch in range(sweep.microbatch - 1, 0, -1):
        if budget.estimate(sweep.model_copy(update={"microbatch": microbatch})).peak <= memory_limit:
            return microbatch
    return None


def smallest_fitting_mesh(requested: SweepConfig, budget: DeviceBudget) -> str:
    """The smallest mesh, of powers of two, on which one slot and a microbatch of one response fit; empty where there is
    none."""
    minimal_sweep = requested.model_copy(update={"decode_slots": 1, "microbatch": 1})
    for mesh in _candidate_meshes(budget):
        budget_on_mesh = replace(budget, mesh=mesh)
        if budget_on_mesh.estimate(budget_on_mesh.resolve_sizes(minimal_sweep)).peak <= budget.usable_memory:
            return ",".join(f"{axis}={size}" for axis, size in asdict(mesh).items() if size > 1) or "auto"
    return ""


def _candidate_meshes(budget: DeviceBudget) -> Iterator[MeshShape]:
    """Meshes whose axes divide what they split, from the smallest on; of equal sizes, with the most fsdp first."""
    model = budget.cell.model
    powers = [2**i for i in range(MAX_MESH_DEVICES.bit_length())]
    axis_sizes = [
        (fsdp, tensor)
        for fsdp, tensor in itertools.product(powers, powers)
        if fsdp * tensor <= MAX_MESH_DEVICES and model.width % fsdp == 0 and model.kv_heads % tensor == 0
    ]
    for fsdp, tensor in sorted(axis_sizes, key=lambda sizes: (sizes[0] * sizes[1], sizes[1])):
        yield MeshShape(fsdp=fsdp, tensor=tensor)


def autosize_config(config: Config, requested: SweepConfig, budget: DeviceBudget, is_new_run: bool) -> Config:
    """The config with slots and microbatch that fit, where the run is new; a resumed one keeps its own. What is set and
    does not seem to fit is warned of on standard error."""
    sweep = fit_to_memory(requested, budget) if is_new_run else config.sweep
    memory = budget.estimate(sweep)
    if memory.peak > budget.usable_memory:
        print(
            f"warning: sweep.decode_slots = {sweep.decode_slots} and sweep.microbatch = {sweep.microbatch} are "
            f"{_shortage(memory, budget)} A new run that leaves them out gets sizes that fit.",
            file=sys.stderr,
        )
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
