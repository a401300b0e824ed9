"""What a sweep has to fit on this machine, and how long it will take: the planner's questions to the devices. jax is
loaded inside.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import jax

from isojax.core.config import Config
from isojax.core.nouns import Cell
from isojax.distributed import multiprocess
from isojax.distributed.device_probe import device_memory, measure_rates
from isojax.distributed.mesh_spec import MeshShape
from isojax.launch.autosize import GIB, DeviceBudget, host_memory
from isojax.launch.time_estimate import DeviceRates, Forecast, make_forecast, rates_from_timing
from isojax.launch.time_estimate import device_workload as device_workload
from isojax.runs.ledger_reader import read_runs
from isojax.tasks.protocol import Task, is_on_device


def make_device_budget(
    config: Config, pairs: list[tuple[int, int]], mesh_shape: MeshShape, task: Task, active_devices: int
) -> DeviceBudget:
    """What the sweep has to fit on this machine; `at_work`: devices that work at the same time."""
    configured_gib, cell, hostnames = (
        config.run.device_memory,
        config.cell,
        multiprocess.allgather(socket.gethostname()),
    )
    local_active_devices = max(
        1, active_devices * hostnames.count(socket.gethostname()) // len(hostnames)
    )  # devices at work that share this machine's memory
    memory = (
        int(configured_gib * GIB)
        if configured_gib
        else min(multiprocess.allgather(device_memory(jax.local_devices()[0]) or host_memory() // local_active_devices))
    )
    return DeviceBudget(
        cell, pairs, mesh_shape, cell.model.vocab or task.vocab, is_on_device(task), jax.default_backend(), memory
    )


def forecast_sweep(
    config: Config,
    cells: list[Cell],
    device_budget: DeviceBudget,
    concurrent_cells: int,
    folder: Path,
    devices: list[Any],
) -> Forecast:
    """How long the sweep will take: by its own clocks where cells have run, else by what the devices can do, which
    takes a second.
    """
    final_target, mesh, sweep = (
        config.cell.eval.evaluation_targets(config.sweep.budget)[-1],
        device_budget.mesh,
        config.sweep,
    )
    runs = read_runs([folder], lambda _: None) if any(folder.glob("cells/*/records.jsonl")) else []
    measured_rates = rates_from_timing(runs, device_budget.pairs, mesh.data * mesh.fsdp * mesh.sequence * mesh.tensor)
    if measured_rates:
        return make_forecast(cells, final_target, concurrent_cells, measured_rates, None)
    workload = device_workload(
        device_budget.cell,
        sweep,
        device_budget.pairs,
        mesh,
        device_budget.vocab,
        device_budget.on_device,
        device_budget.backend,
    )
    matmul_rows, sizes = (workload.sizes.geometry.slots, workload.sizes.microbatch_tokens), workload.sizes
    cache_enabled = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)  # a dry run writes nothing
    try:
        probed_rates = measure_rates(devices, matmul_rows, sizes.D, sizes.F, device_budget.cell.precision.compute)
    finally:
        jax.config.update("jax_enable_compilation_cache", cache_enabled)
    return make_forecast(
        cells, final_target, concurrent_cells, {}, (workload, DeviceRates(*probed_rates), config.cell.eval.samples)
    )
