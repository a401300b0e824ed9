"""Slots R and microbatch m that fit a device: planner.py's, halved until the estimate of memory_model.py fits."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isojax.core.config import CellConfig, SweepConfig
from isojax.core.errors import InputError
from isojax.core.shapes import make_sampler_shapes
from isojax.core.terminal import warn
from isojax.distributed.mesh_spec import MeshShape
from isojax.launch.memory_model import DeviceSizes, MemoryEstimate, estimate_memory
from isojax.launch.planner import resolve_sweep_sizes

MEMORY_UTILIZATION = 0.85  # of a device's memory that a plan may take: estimates are within 15% of what XLA allocates
CGROUP_LIMIT_FILES = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
GIB = 2**30  # bytes


@dataclass(frozen=True)
class DeviceBudget:
    """What a sweep has to fit. `on_device`: where responses are verified."""

    cell: CellConfig
    pairs: Sequence[tuple[int, int]]
    mesh: MeshShape
    vocab: int
    on_device: bool
    backend: str
    device_memory: int

    @property
    def usable_memory(self) -> int:
        return int(MEMORY_UTILIZATION * self.device_memory)

    def sizes(self, sweep: SweepConfig) -> DeviceSizes:
        """A device's part of a sweep whose sizes are chosen."""
        P, T = self.cell.sampling.prompt_length, self.cell.sampling.response_length
        R, m, g, W = sweep.decode_slots, sweep.microbatch, sweep.prefill_batch, sweep.slots_per_prefix
        assert R and m and g and W, "the planner chooses them"
        shapes = make_sampler_shapes(self.pairs, self.mesh.shards, R, m, P, T, g, W)
        return DeviceSizes(self.cell, sweep.remat == "layer", shapes, self.mesh, self.vocab, self.backend)

    def estimate(self, sweep: SweepConfig) -> MemoryEstimate:
        return estimate_memory(self.sizes(sweep), self.on_device)

    def resolve_sizes(self, sweep: SweepConfig) -> SweepConfig:
        """The sweep with its sizes chosen for speed, where they are not set."""
        return resolve_sweep_sizes(sweep, self.mesh.shards, self.cell)


def fit_to_memory(requested: SweepConfig, budget: DeviceBudget) -> SweepConfig:
    """The sweep with its static sizes chosen for speed, then cut until a device's memory holds them; sizes that are set
    stay. InputError where not even one slot and a microbatch of one response fit."""
    sweep = budget.resolve_sizes(requested)
    while smaller_sizes := _reduce_sizes(requested, sweep, budget):
        sweep = budget.resolve_sizes(requested.model_copy(update=smaller_sizes))
    chooses_all_sizes = requested.decode_slots is None and requested.microbatch is None
    if chooses_all_sizes and (shortage := _shortage(sweep, budget)):
        remat_hint = "" if requested.remat == "layer" else ", or set sweep.remat=layer, which takes less"
        raise InputError(
            f"{shortage} Give each cell a mesh with more devices on fsdp or tensor{remat_hint}; where a device has "
            "more memory, set run.device_memory=GIB."
        )
    return sweep


def _reduce_sizes(requested: SweepConfig, sweep: SweepConfig, budget: DeviceBudget) -> dict[str, int] | None:
    """Smaller sizes, where those of the sweep do not fit and something can be cut."""
    memory = budget.estimate(sweep)
    R, m, W = sweep.decode_slots or 1, sweep.microbatch or 1, requested.slots_per_prefix or 1
    if memory.sampling_peak > budget.usable_memory and requested.decode_slots is None and R >= 2 * W:
        return {"decode_slots": R // 2 // W * W, "microbatch": m}
    if memory.update_peak > budget.usable_memory and requested.microbatch is None and m > 1:
        return {"decode_slots": R, "microbatch": m // 2}
    return None


def _shortage(sweep: SweepConfig, budget: DeviceBudget) -> str:
    """A sentence about sizes that are estimated not to fit; empty where they do."""
    memory = budget.estimate(sweep)
    if memory.peak <= budget.usable_memory:
        return ""
    return (
        f"sweep.decode_slots = {sweep.decode_slots} and sweep.microbatch = {sweep.microbatch} are estimated to take "
        f"{format_bytes(memory.peak)} of each device, and {format_bytes(budget.usable_memory)} of its "
        f"{format_bytes(budget.device_memory)} may be planned with."
    )


def autosize_sweep(requested: SweepConfig, budget: DeviceBudget, is_new_run: bool) -> SweepConfig:
    """The sweep with sizes that fit, where the run is new; a warning names sizes that are set and do not seem to."""
    sweep = fit_to_memory(requested, budget) if is_new_run else requested
    if shortage := _shortage(sweep, budget):
        warn(f"{shortage} A new run that leaves them out gets sizes that fit.")
    return sweep


def format_bytes(num_bytes: float) -> str:
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
