"""The devices of a sweep: which a cell takes, how many cells run at once, and how long that will take."""

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
from isojax.launch.autosize import DeviceBudget, host_memory
from isojax.launch.device_kinds import GIB
from isojax.launch.process_group import check_multi_process
from isojax.runs.ledger import read_runs
from isojax.tasks.task import Task, is_on_device


@dataclass(frozen=True)
class CellDevices:
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
        devices = f"{self.devices_per_cell} of {len(self.devices)} {jax.default_backend()} devices"
        return f"{self.concurrent_cells} at once, {devices} per cell"

    def meshes(self) -> list[tuple[Mesh, Mesh | None]]:
        """For each set of compiled programs, the mesh of training and that of a sampler with devices of its own."""
        meshes = []
        for i in range(1 if self.shares_programs else self.concurrent_cells):
            devices = self.devices[i * self.devices_per_cell :]
            sampler_devices = devices[self.mesh_shape.devices :]
            sampler_mesh = make_mesh(self.sampler_shape, sampler_devices) if self.sampler_shape else None
            meshes.append((make_mesh(self.mesh_shape, devices), sampler_mesh))
        return meshes


def assign_devices(config: Config, num_cells: int) -> CellDevices:
    """InputError where the meshes do not fit the devices, or several processes cannot be one run."""
    run, max_staleness = config.run, config.cell.rl.max_staleness
    devices, is_multiprocess = jax.devices(), multiprocess.is_multiprocess()
    mesh_shape = parse_mesh("data=-1" if run.mesh == "auto" and is_multiprocess else run.mesh, len(devices))
    if is_multiprocess:
        check_multi_process(config, mesh_shape.devices, len(devices), jax.process_count())
    sampler_shape = None
    if run.sampler_mesh is not None:
        if not max_staleness:
            raise InputError(
                f"run.sampler_mesh = {run.sampler_mesh} with cell.rl.max_staleness = {max_staleness}: one of sampler "
                "and trainer would always wait for the other. Expected cell.rl.max_staleness of 1 or more, or a "
                "sampler that shares the trainer's mesh."
            )
        sampler_shape = parse_mesh(run.sampler_mesh, len(devices), mesh_shape.devices)
    one_cell = CellDevices(mesh_shape, sampler_shape, devices)
    device_groups = len(devices) // one_cell.devices_per_cell
    default_cells = device_groups
    if is_multiprocess:  # all processes work on one cell
        default_cells = 1
    elif jax.default_backend() == "cpu":  # simulated devices beyond the cores add nothing
        default_cells = min(device_groups, max(1, cores() // one_cell.devices_per_cell))
    concurrent_cells = min(run.cells_at_once or default_cells, device_groups, num_cells)
    return replace(one_cell, concurrent_cells=concurrent_cells)


def make_device_budget(
    config: Config, pairs: list[tuple[int, int]], cell_devices: CellDevices, task: Task
) -> DeviceBudget:
    """What the sweep has to fit on this machine, whose memory the used devices of all its processes share."""
    cell, hostnames = config.cell, multiprocess.allgather(socket.gethostname())
    if config.run.device_memory:
        memory = int(config.run.device_memory * GIB)
    else:
        used_devices = cell_devices.devices_per_cell * cell_devices.concurrent_cells
        used_here = max(1, used_devices * hostnames.count(socket.gethostname()) // len(hostnames))
        memory = min(multiprocess.allgather(device_memory(jax.local_devices()[0]) or host_memory() // used_here))
    vocab, backend = cell.model.vocab or task.vocab, jax.default_backend()
    return DeviceBudget(cell, pairs, cell_devices.mesh_shape, vocab, is_on_device(task), backend, memory)


def forecast_sweep(
    config: Config, cells: list[Cell], budget: DeviceBudget, cell_devices: CellDevices, folder: Path
) -> time_estimate.Forecast:
    """How long the sweep will take: by its own timing where cells have run, else by a short probe of the devices."""
    runs = read_runs([folder], lambda _: None) if any(folder.glob("cells/*/records.jsonl")) else []
    concurrent_cells = cell_devices.concurrent_cells
    if pair_rates := time_estimate.rates_from_timing(runs, budget.pairs, budget.mesh.devices):
        last_target = config.cell.eval.evaluation_targets(config.sweep.budget)[-1]
        source = "this sweep's own timing, evaluations included"
        return time_estimate.make_forecast(cells, last_target, concurrent_cells, pair_rates, 0.0, source)
    s, devices = budget.sizes(config.sweep), cell_devices.used_local_devices
    matmul_rows, compute_type = (s.shapes.slots, s.microbatch_tokens), budget.cell.precision.compute
    cache_enabled = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)  # a dry run writes nothing
    try:
        rates = time_estimate.DeviceRates(*measure_rates(devices, matmul_rows, s.D, s.F, compute_type))
    finally:
        jax.config.update("jax_enable_compilation_cache", cache_enabled)
    return time_estimate.forecast_from_rates(s, cells, config.sweep.budget, concurrent_cells, rates)
