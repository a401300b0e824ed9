"""What a sweep has to fit on this machine, and how long it will take: the planner's questions to the devices. jax is loaded inside."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isojax.config import Config
from isojax.launch.fitting import GB, Room, host_memory
from isojax.launch.speed import Forecast, Rates, forecast, from_clocks
from isojax.launch.speed import work as work_of
from isojax.records import read_runs
from isojax.types import Cell

if TYPE_CHECKING:
    from isojax.meshes import MeshShape
    from isojax.tasks.base import Task


def room_of(config: Config, pairs: list[tuple[int, int]], shape: MeshShape, task: Task, at_work: int) -> Room:
    """What the sweep has to fit on this machine; `at_work`: devices that work at the same time."""
    import jax

    from isojax import hosts
    from isojax.probe import device_memory
    from isojax.tasks.base import on_device

    given, cell, machines = config.run.device_memory, config.cell, hosts.everyone(socket.gethostname())
    here = max(1, at_work * machines.count(socket.gethostname()) // len(machines))  # devices at work that share this machine's memory
    memory = int(given * GB) if given else min(hosts.everyone(device_memory(jax.local_devices()[0]) or host_memory() // here))
    return Room(cell, pairs, shape, cell.model.vocab or task.vocab, on_device(task), jax.default_backend(), memory)


def expect(config: Config, cells: list[Cell], room: Room, at_once: int, folder: Path, devices: list[Any]) -> Forecast:
    """How long the sweep will take: by its own clocks where cells have run, else by what the devices can do, which takes a second."""
    import jax

    from isojax.probe import rates

    last, mesh, sweep = config.cell.eval.grid(config.sweep.budget)[-1], room.mesh, config.sweep
    runs = read_runs([folder], lambda _: None) if any(folder.glob("cells/*/records.jsonl")) else []
    clocks = from_clocks(runs, room.pairs, mesh.data * mesh.fsdp * mesh.sequence * mesh.tensor)
    if clocks:
        return forecast(cells, last, at_once, clocks, None)
    given = work_of(room.cell, sweep, room.pairs, mesh, room.vocab, room.on_device, room.backend)
    rows, model = (given.sizes.geometry.slots, given.sizes.t), given.sizes
    kept = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)  # a dry run writes nothing
    try:
        found = rates(devices, rows, model.D, model.F, room.cell.precision.compute)
    finally:
        jax.config.update("jax_enable_compilation_cache", kept)
    return forecast(cells, last, at_once, {}, (given, Rates(*found), config.cell.eval.samples))
