"""The devices of a sweep: which a cell takes, how many cells run at once, what they have to fit, and how long it will
take."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from isojax.core.config import Config
from isojax.core.errors import InputError
from isojax.core.machine import cores
from isojax.core.nouns import Cell
from isojax.distributed import multiprocess
from isojax.distributed.device_probe import device_memory, measure_rates
from isojax.distributed.mesh_spec import MeshShape, parse_mesh
from isojax.distributed.sharding import make_mesh
from isojax.launch import time_estimate
from isojax.launch.autosize import GIB, DeviceBudget, host_memory
from isojax.launch.process_group import check_multi_process
from isojax.runs.ledger_reader import read_runs
from isojax.tasks.protocol import Task, is_on_device


@dataclass(frozen=True)
class CellDevices:
    """The devices of a sweep's cells."""

    mesh_shape: MeshShape  # of training
    sampler_shape: MeshShape | None  # of the sampler, where it has a mesh of its own
    devices: list[Any]  # of the run
    concurrent_cells: int = 1

    @property
    def devices_per_cell(self) -> int:
        """Devices that a cell takes, its sampler's included."""
        return self.mesh_shape.devices + (self.sampler_shape.devices if self.sampler_shape else 0)

    @property
    def shares_programs(self) -> bool:
        """Whether all cells run the same compiled programs: a CPU runs a program in several threads at once."""
        return jax.default_backend() == "cpu" and self.devices_per_cell == 1

    @property
    def used_local_devices(self) -> list[Any]:
        """Devices of this process that some cell takes."""
        used = self.devices[: self.devices_per_cell * self.concurrent_cells]
        return [device for device in used if device.process_index == jax.process_index()]

    @property
    def description(self) -> str:
        return f"{self.devices_per_cell} of {len(self.devices)} {jax.default_backend()} devices per cell"

    def meshes(self) -> list[tuple[Mesh, Mesh | None]]:
        """For each set of compiled programs, the mesh of training and that of a sampler with devices of its own."""
        num_sets = 1 if self.shares_programs else self.concurrent_cells
        return [self._meshes_from(i * self.devices_per_cell) for i in range(num_sets)]

    def _meshes_from(self, first_device: int) -> tuple[Mesh, Mesh | None]:
        devices = self.devices[first_device:]
        mesh = make_mesh(self.mesh_shape, devices)
        if self.sampler_shape is None:
            return mesh, None
        return mesh, make_mesh(self.sampler_shape, devices[self.mesh_shape.devices :])


def assign_devices(config: Config, num_cells: int) -> CellDevices:
    """The devices of a sweep's cells; InputError where the meshes do not fit them, or several processes cannot be one
    run."""
    devices, is_multiprocess = jax.devices(), multiprocess.is_multiprocess()
    mesh_text = "data=-1" if config.run.mesh == "auto" and is_multiprocess else config.run.mesh
    mesh_shape = parse_mesh(mesh_text, len(devices))
    if is_multiprocess:
        check_multi_process(config, mesh_shape.devices, len(devices), jax.process_count())
    sampler_shape = _sampler_mesh_shape(config, len(devices), mesh_shape.devices)
    one_cell = CellDevices(mesh_shape, sampler_shape, devices)
    concurrent_cells = min(
        config.run.cells_at_once or _default_concurrent_cells(one_cell.devices_per_cell),
        len(devices) // one_cell.devices_per_cell,
        num_cells,
    )
    return replace(one_cell, concurrent_cells=concurrent_cells)


def _sampler_mesh_shape(config: Config, devices: int, trainer_devices: int) -> MeshShape | None:
    """The mesh of a sampler with devices of its own, out of those that the trainer leaves; None where it has none."""
    run, max_staleness = config.run, config.cell.rl.max_staleness
    if run.sampler_mesh is None:
        return None
    if not max_staleness:
        raise InputError(
            f"run.sampler_mesh = {run.sampler_mesh} with cell.rl.max_staleness = {max_staleness}: one of sampler and "
            "trainer would always wait for the other. Expected cell.rl.max_staleness of 1 or more, or a sampler that "
            "shares the trainer's mesh."
        )
    return parse_mesh(run.sampler_mesh, devices, trainer_devices)


def _default_concurrent_cells(devices_per_cell: int) -> int:
    """One on each group of devices. Simulated CPU devices beyond the cores add nothing; several processes all work on
    one cell."""
    if multiprocess.is_multiprocess():
        return 1
    device_groups = len(jax.local_devices()) // devices_per_cell
    if jax.default_backend() != "cpu":
        return device_groups
    return min(device_groups, max(1, cores() // devices_per_cell))


def make_device_budget(
    config: Config, pairs: list[tuple[int, int]], mesh_shape: MeshShape, task: Task, active_devices: int
) -> DeviceBudget:
    """What the sweep has to fit on this machine, where so many devices of all processes work at the same time."""
    cell, hostnames = config.cell, multiprocess.allgather(socket.gethostname())
    # Devices that share this machine's memory.
    local_active_devices = max(1, active_devices * hostnames.count(socket.gethostname()) // len(hostnames))
    if config.run.device_memory:
        memory = int(config.run.device_memory * GIB)
    else:
        local_memory = device_memory(jax.local_devices()[0]) or host_memory() // local_active_devices
        memory = min(multiprocess.allgather(local_memory))
    vocab, backend = cell.model.vocab or task.vocab, jax.default_backend()
    return DeviceBudget(cell, pairs, mesh_shape, vocab, is_on_device(task), backend, memory)


def forecast_sweep(
    config: Config, cells: list[Cell], budget: DeviceBudget, concurrent_cells: int, folder: Path, devices: list[Any]
) -> time_estimate.Forecast:
    """How long the sweep will take: by its own timing where cells have run, else by what the devices can do, which
    takes a second to measure."""
    targets = config.cell.eval.evaluation_targets(config.sweep.budget)
    runs = read_runs([folder], lambda _: None) if any(folder.glob("cells/*/records.jsonl")) else []
    measured_rates = time_estimate.rates_from_timing(runs, budget.pairs, budget.mesh.devices)
    if measured_rates:
        return time_estimate.forecast_from_timing(cells, targets[-1], concurrent_cells, measured_rates)
    s = budget.sizes(config.sweep)
    matmul_rows, compute_type = (s.shapes.slots, s.microbatch_tokens), budget.cell.precision.compute
    cache_enabled = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)  # a dry run writes nothing
    try:
        rates = time_estimate.DeviceRates(*measure_rates(devices, matmul_rows, s.D, s.F, compute_type))
    finally:
        jax.config.update("jax_enable_compilation_cache", cache_enabled)
    return time_estimate.forecast_from_probe(cells, targets[-1], concurrent_cells, s, rates, len(targets))
