"""Which devices of this machine, or of all processes of a run, a cell of a sweep takes, how many
cells run at a time on them, and what they can do."""

import socket
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from isojax.core.config import Config
from isojax.core.errors import InputError
from isojax.core.machine import cores
from isojax.core.nouns import Cell
from isojax.core.terminal import note
from isojax.distributed import multiprocess
from isojax.distributed.device_probe import device_memory, measure_rates
from isojax.distributed.mesh_spec import MeshShape, parse_mesh
from isojax.distributed.sharding import make_mesh
from isojax.launch.checkpoint_plan import CheckpointPlan
from isojax.launch.device_budget import DeviceBudget, host_memory
from isojax.launch.device_sizes import DeviceSizes
from isojax.launch.forecast import Forecast, forecast_sweep_times, label_rollouts
from isojax.launch.measured_rates import measured_rates
from isojax.launch.memory_model import plan_sampling
from isojax.launch.process_group import check_multi_process, sampler_processes
from isojax.launch.time_estimate import GIB, DeviceRates, program_times
from isojax.models.describe_sizes import describe_sizes
from isojax.tasks.task import Task, is_on_device


class CellMeshes(NamedTuple):
    """The meshes of the programs that train a cell."""

    training: Mesh
    sampler: Mesh | None  # where the sampler has devices of its own


@dataclass(frozen=True)
class CellDevices:
    """The devices of a run, and how its cells share them."""

    mesh_shape: MeshShape  # of training
    sampler_shape: MeshShape | None  # of the sampler, where it has a mesh of its own
    devices: list[Any]  # jax's, of the run; in several processes, those of training first
    concurrent_cells: int = 1

    @property
    def devices_per_cell(self) -> int:
        """Devices that a cell takes, its sampler's included."""
        sampler_devices = self.sampler_shape.devices if self.sampler_shape else 0
        return self.mesh_shape.devices + sampler_devices

    @property
    def shares_programs(self) -> bool:
        """Whether all cells run the same compiled programs: a CPU runs a program in several threads
        at once."""
        return jax.default_backend() == "cpu" and self.devices_per_cell == 1

    @property
    def leaves_first_device(self) -> bool:
        """Whether some programs run on devices among which the run's first is not."""
        return self.sampler_shape is not None or self.concurrent_cells > 1

    @property
    def description(self) -> str:
        devices = f"{self.devices_per_cell} of {len(self.devices)} {jax.default_backend()} devices"
        plural = "s" * (self.concurrent_cells > 1)
        return f"{self.concurrent_cells} run{plural} at once, {devices} per run"

    def meshes(self) -> list[CellMeshes]:
        """The meshes of each set of compiled programs, over devices that no other set has.

        There is a set for each cell that runs at a time, or a single one if cells share programs.
        Of a set's `devices_per_cell` devices, training takes the first: a mesh is made of as many
        as it needs, from the beginning of a list.
        """
        num_sets = 1 if self.shares_programs else self.concurrent_cells
        meshes = []
        for i in range(num_sets):
            devices = self.devices[i * self.devices_per_cell :]
            sampler_mesh = None
            if self.sampler_shape:
                sampler_mesh = make_mesh(self.sampler_shape, devices[self.mesh_shape.devices :])
            meshes.append(CellMeshes(make_mesh(self.mesh_shape, devices), sampler_mesh))
        return meshes


def assign_devices(config: Config, num_cells: int) -> CellDevices:
    """The devices of a run, and how many cells run at a time on them.

    num_cells: of the sweep; no more run at a time. InputError where the meshes do not fit the
    devices, or several processes cannot be one run.
    """
    run = config.run
    devices = jax.devices()
    processes = jax.process_count()
    is_multiprocess = processes > 1

    trainers = processes - sampler_processes(config, processes)
    # Processes have as many devices each (`check_even_devices`).
    trainers_devices = len(devices) * trainers // processes
    is_auto = run.mesh == "auto" and is_multiprocess
    mesh_shape = parse_mesh("data=-1" if is_auto else run.mesh, trainers_devices)
    sampler_shape = None
    if run.sampler_mesh is not None:
        if config.cell.rl.max_staleness is None:
            raise InputError(
                where="run.sampler_mesh",
                found=(
                    f"given {run.sampler_mesh} without cell.rl.max_staleness, by how many "
                    "updates the sampler may run ahead of the trainer"
                ),
                fix=(
                    "Set cell.rl.max_staleness of 1 or more (with 0 one of them always waits "
                    "for the other), or leave run.sampler_mesh out."
                ),
            )
        sampler_shape = parse_mesh(
            run.sampler_mesh, len(devices), devices_in_use=mesh_shape.devices
        )

    if is_multiprocess:
        sampler_devices = sampler_shape.devices if sampler_shape else 0
        check_multi_process(config, mesh_shape.devices, sampler_devices, len(devices), processes)
        devices = _training_first(devices, trainers, mesh_shape.devices // trainers)

    one_cell = CellDevices(mesh_shape, sampler_shape, devices)
    max_cells = len(devices) // one_cell.devices_per_cell
    default_cells = max_cells
    if is_multiprocess:  # all processes work on one cell
        default_cells = 1
    elif jax.default_backend() == "cpu":  # simulated devices beyond the cores add nothing
        default_cells = min(max_cells, max(1, cores() // one_cell.devices_per_cell))
    concurrent_cells = min(run.cells_at_once or default_cells, max_cells, num_cells)
    return replace(one_cell, concurrent_cells=concurrent_cells)


def avoid_unsafe_cache(cell_devices: CellDevices) -> None:
    """Keep no compiled programs on a TPU where some run without the first chip.

    Read back from disk, such a program halts the chips ("schecklt: Invalid logical z"; seen on v6e
    with libtpu 0.0.30, jax issue 38004): the first session would pass, and each later one fail.
    """
    if jax.default_backend() == "tpu" and cell_devices.leaves_first_device:
        jax.config.update("jax_enable_compilation_cache", False)
        note(
            "compiled programs are not kept: some of them run on other chips than the first, and "
            "a TPU cannot read those back (jax issue 38004)"
        )


def _training_first(devices: list[Any], trainers: int, training_per_process: int) -> list[Any]:
    """The devices, with those of training first and otherwise in their order.

    trainers: how many processes train; they are the first ones. training_per_process: how many
    devices of each of them train; the rest sample.
    """
    rank_in_process = {
        device: rank
        for process in range(jax.process_count())
        for rank, device in enumerate(jax.local_devices(process))
    }

    # Captures the arguments, and rank_in_process: {device: its number among its process's own}.
    def is_for_sampling(device: Any) -> bool:
        is_sampler = device.process_index >= trainers
        return is_sampler or rank_in_process[device] >= training_per_process

    return sorted(devices, key=is_for_sampling)


def make_device_budget(
    config: Config, pairs: list[tuple[int, int]], cell_devices: CellDevices, task: Task
) -> DeviceBudget:
    """What the sweep has to fit on this machine's devices.

    pairs: every (B_p, n) of the sweep. Memory is run.device_memory in GiB if it is set, else what a
    device has, the least over all processes. Every process must call this, as they exchange values.
    """
    cell = config.cell
    hostnames = multiprocess.allgather(socket.gethostname(), str)
    if config.run.device_memory:
        memory = int(config.run.device_memory * GIB)
    else:
        # A CPU's devices share the memory of their host, on which several processes may be.
        used_devices = cell_devices.devices_per_cell * cell_devices.concurrent_cells
        processes_here = hostnames.count(socket.gethostname())
        used_here = max(1, used_devices * processes_here // len(hostnames))
        accelerator_memory = device_memory(jax.local_devices()[0])
        memory_here = accelerator_memory or host_memory() // used_here
        memory = min(multiprocess.allgather(memory_here, int))

    return DeviceBudget(
        cell,
        pairs=pairs,
        mesh=cell_devices.mesh_shape,
        policy=describe_sizes(cell.model, cell.model.vocab or task.vocab),
        sampling=plan_sampling(config.run, is_on_device(task)),
        backend=jax.default_backend(),
        device_memory=memory,
    )


def forecast_sweep(
    config: Config,
    cells: list[Cell],
    budget: DeviceBudget,
    cell_devices: CellDevices,
    has_labels: bool,
    checkpoints: CheckpointPlan | None = None,
) -> Forecast:
    """How long the sweep will take, by what `isojax accelerator` has measured on this kind of chip.

    Without such a measurement, by a short probe of this process's used devices. config: with all
    sizes chosen. has_labels: whether the problems have labels already. checkpoints: None: they are
    not counted.
    """
    s = budget.sizes(config.sweep)
    concurrent_cells = cell_devices.concurrent_cells

    # A measurement of the kind of chip holds for all devices, as a run's are of one kind.
    rates = measured_rates(cell_devices.devices[0].device_kind)
    if rates is None:
        rates = _probe_rates(s, cell_devices)

    return forecast_sweep_times(
        s,
        cells,
        config.sweep.budget,
        concurrent_cells,
        program_times(s, rates),
        str(rates),
        labels=label_rollouts(config.cell, has_labels),
        checkpoints=checkpoints,
    )


def _probe_rates(s: DeviceSizes, cell_devices: CellDevices) -> DeviceRates:
    """The rates of this process's devices that the sweep uses, measured in about a second.

    s: a device's part of the sweep, whose rows and widths the products have.
    """
    num_used = cell_devices.devices_per_cell * cell_devices.concurrent_cells
    used_here = [
        device
        for device in cell_devices.devices[:num_used]
        if device.process_index == jax.process_index()
    ]
    matmul_rows = (s.shapes.slots, s.microbatch_tokens)  # of a decoding step, of an update

    cache_enabled = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)  # a dry run writes nothing
    try:
        decode_flops, update_flops, bandwidth = measure_rates(
            used_here,
            matmul_rows,
            width=s.D,
            columns=s.mlp_width,
            dtype=s.cell.precision.compute,
        )
    finally:
        jax.config.update("jax_enable_compilation_cache", cache_enabled)
    return DeviceRates(decode_flops, update_flops, bandwidth)
