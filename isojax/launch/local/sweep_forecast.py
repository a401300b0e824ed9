"""What a sweep has to fit on this machine, and how long it will take: the planner's questions to the devices."""

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
from isojax.launch import time_estimate
from isojax.launch.autosize import GIB, DeviceBudget, host_memory
from isojax.runs.ledger_reader import read_runs
from isojax.tasks.protocol import Task, is_on_device


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
