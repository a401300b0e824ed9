"""What a sweep for TPUs that are not here is planned with, by the estimate alone: it needs neither
libtpu nor a device.

`launch --dry-run --topology` prints it within seconds. With `--compile`, the TPU's compiler
confirms the sizes (launch/local/compile_for_topology.py).
"""

import math
import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax

from isojax.core.config import Config, ModelConfig, SweepConfig
from isojax.core.errors import InputError
from isojax.core.terminal import warn
from isojax.distributed.mesh_spec import parse_mesh
from isojax.launch import device_budget
from isojax.launch.checkpoint_plan import plan_checkpoints
from isojax.launch.device_budget import DeviceBudget, fit_to_memory, format_bytes
from isojax.launch.display import Rent, print_plan, print_text
from isojax.launch.forecast import forecast_sweep_times, label_rollouts
from isojax.launch.measured_rates import measured_rates
from isojax.launch.memory_model import plan_sampling
from isojax.launch.planner import plan_cells
from isojax.launch.time_estimate import (
    GIB,
    DeviceRates,
    ProgramTimes,
    find_chip,
    program_times,
)
from isojax.launch.tpu_hosts import CHIPS_OF_A_HOST, num_hosts
from isojax.models.describe_sizes import describe_sizes
from isojax.models.hf import hf_load
from isojax.rl.algorithm import describe_algorithm
from isojax.rl.recipe_checks import check_algorithm
from isojax.tasks.context_limit import describe_excess
from isojax.tasks.device_tasks import device_task_of
from isojax.tasks.protocol import StopConditions
from isojax.tasks.task_defaults import with_task_defaults
from isojax.tasks.turns import describe_turns, find_reply
from isojax.train.label_settings import problems_have_labels


@dataclass(frozen=True)
class TpuGeneration:
    """A kind of TPU as topologies name it."""

    device_kind: str  # as jax names its devices
    axes: int  # of a topology
    devices_per_chip: int = 1
    has_kernels: bool = True  # whether its compiler takes kernels with products of bfloat16


GENERATIONS = {
    "v3": TpuGeneration("TPU v3", axes=2, devices_per_chip=2, has_kernels=False),
    "v4": TpuGeneration("TPU v4", axes=3),
    "v5e": TpuGeneration("TPU v5 lite", axes=2),
    "v5p": TpuGeneration("TPU v5", axes=3),
    "v6e": TpuGeneration("TPU v6 lite", axes=2),
}


@dataclass(frozen=True)
class AbstractTask:
    """Stands for a text task where only the shapes of its programs matter.

    One token, whose number does not matter, ends a response.
    """

    vocab: int
    stops: StopConditions = field(
        default_factory=lambda: StopConditions(tokens=(0,), transitions=None)
    )
    on_device: ClassVar[bool] = False


class Topology(NamedTuple):
    """A TPU slice that one can ask for."""

    name: str  # such as v5e:4x4
    chips: int


@dataclass(frozen=True)
class SliceDevices:
    """The devices of a slice, as far as a plan needs them."""

    kind: str  # as jax names them, such as "TPU v5 lite"
    count: int

    @property
    def chips(self) -> int:
        """A v3 chip has two devices; of other kinds a device is a chip."""
        per_chip = [g.devices_per_chip for g in GENERATIONS.values() if g.device_kind == self.kind]
        return self.count // (per_chip[0] if per_chip else 1)


def read_topology(topology: str) -> SliceDevices:
    """The devices of a topology such as "v5e:4x4", by its name alone.

    InputError where it is no topology of a kind that is known here; libtpu may know others.
    """
    name, _, sides = topology.partition(":")
    generation = GENERATIONS.get(name)
    shape = [int(side) for side in re.findall(r"\d+", sides)]
    has_axes = re.fullmatch(r"\d+(x\d+)*", sides) and len(shape) == (
        generation.axes if generation else 0
    )
    # Slices have whole hosts of 2 x 2 chips, or a part of one; larger sides have multiples of 4.
    if generation is None or not has_axes or any(side not in (1, 2) and side % 4 for side in shape):
        raise InputError(
            where=f"--topology {topology}",
            found=f"no topology of {', '.join(GENERATIONS)}",
            expected="a kind of TPU and its chips, such as v5e:4x4, v5p:2x2x2 or v6e:2x4",
        )
    return SliceDevices(generation.device_kind, math.prod(shape) * generation.devices_per_chip)


def larger_topologies(topology: str, chips: int) -> list[Topology]:
    """This topology, such as "v5e:4x4" with 16 chips, and larger ones up to MAX_MESH_GROWTH times.

    Each has twice the chips of the one before: the last of its shortest sides is doubled. Nobody
    rents two chips, so that four come after one.
    """
    kind, _, sides = topology.partition(":")
    shape = [int(side) for side in sides.split("x")]
    topologies = []
    for doublings in range(device_budget.MAX_MESH_GROWTH.bit_length()):
        shape_text = "x".join(map(str, shape))
        if doublings == 0 or chips << doublings >= CHIPS_OF_A_HOST:
            topologies.append(Topology(f"{kind}:{shape_text}", chips << doublings))
        last_shortest = max(i for i, side in enumerate(shape) if side == min(shape))
        shape[last_shortest] *= 2
    return topologies


class TopologyPlan(NamedTuple):
    """What a sweep for chips that are not here is planned with."""

    config: Config  # with the model and precision of runs there
    devices: SliceDevices
    budget: DeviceBudget


def plan_topology(config: Config, topology: str, devices: SliceDevices) -> TopologyPlan:
    """What a sweep may take of the chips of a topology such as "v5e:4x4".

    devices: of the topology. Where run.mesh is "auto", its mesh is the fastest of the fewest chips
    that fit by the estimate. From here on jax in this process uses the CPU alone. InputError where
    the sweep cannot run there.
    """
    if config.run.sampler_mesh:
        raise InputError(
            found="--topology plans one mesh, and run.sampler_mesh is set",
            fix="Leave it out, plan each by --mesh.",
        )
    for key in ("decode_attention", "forward_attention"):
        kernel = getattr(config.sweep, key)
        if kernel not in (None, "plain", "pallas"):
            raise InputError(
                where=f"--topology {topology}",
                found=f"sweep.{key}={kernel} is for GPUs",
                expected="plain or pallas",
            )
    jax.config.update("jax_platforms", "cpu")  # TPUs of this machine stay free

    if any(g.device_kind == devices.kind and not g.has_kernels for g in GENERATIONS.values()):
        # A run on such a chip tries the kernels, and goes on without them.
        attention = {
            "decode_attention": config.sweep.decode_attention or "plain",
            "forward_attention": config.sweep.forward_attention or "plain",
        }
        config = config.with_settings(sweep=attention)

    model = planning_model(config.cell.model)
    precision = config.cell.precision.for_platform("tpu")
    cell = with_task_defaults(config.cell).with_settings(model=model, precision=precision)
    config = config.model_copy(update={"cell": cell})

    task = planning_task(config)
    chip_gib, _ = find_chip(devices.kind)
    budget = DeviceBudget(
        config.cell,
        pairs=sorted({pair for cell in plan_cells(config.sweep) for pair in cell.pairs}),
        mesh=parse_mesh(config.run.mesh, devices.count),
        policy=describe_sizes(model, model.vocab or task.vocab),
        sampling=plan_sampling(config.run, task.on_device),
        backend="tpu",
        device_memory=int(GIB * (config.run.device_memory or chip_gib)),
    )
    if config.run.mesh == "auto":
        mesh = device_budget.fewest_devices_that_fit(config.sweep, budget, devices.count)
        if mesh is not None and mesh.devices > 1:
            print_text(f"a chip alone is too small: planned with --mesh {mesh}")
            budget = replace(budget, mesh=mesh)
            config = config.with_settings(run={"mesh": str(mesh)})
    return TopologyPlan(config, devices, budget)


def planning_model(model: ModelConfig) -> ModelConfig:
    """The model with its whole shape, from its folder or, where that is not here, from the config.

    InputError where the folder is missing and the config lacks some of the shape.
    """
    # A config with a vocabulary has the whole shape: no folder is needed for it.
    if model.path and model.vocab and not os.path.isdir(model.path):
        print_text(
            f"{model.path} is not on this machine: the plan takes the model's shape from the config"
        )
        model = model.model_copy(update={"path": None})
    return hf_load.resolve_model(model)


def planning_task(config: Config) -> Any:
    """The task itself, where a device verifies it; for one in text, an AbstractTask.

    InputError where nothing says the vocabulary of a text task.
    """
    on_device = device_task_of(config.cell)
    if on_device is not None:
        return on_device

    vocab = hf_load.resolve_model(config.cell.model).vocab
    if vocab is None:
        raise InputError(
            where="cell.model.vocab",
            found="null and cell.task is in text: nothing says how many tokens there are",
            fix=(
                "Add a model's config, such as models/llama-3.1-8b-instruct, or set "
                "cell.model.vocab."
            ),
        )
    # One token ends a response, and there is no stop string; but the host may reply to the policy.
    host_replies = find_reply(config.cell.task) is not None
    stops = StopConditions(tokens=(0,), transitions=None, host_replies=host_replies)
    return AbstractTask(vocab, stops)


def estimate_for_topology(config: Config, topology: str, price: float | None = None) -> None:
    """Choose sizes for a topology such as "v5e:4x4" by the estimate, and print the plan.

    price: of a chip's hour, None where it is not asked for. InputError where sweep, mesh or
    topology are unusable, or nothing fits.
    """
    check_algorithm(config.cell.rl, plan_cells(config.sweep))
    plan = plan_topology(config, topology, read_topology(topology))
    requested = plan.config.sweep
    budget = plan.budget

    device_budget.check_moments(requested, budget)
    sweep = fit_to_memory(requested, budget)
    if sweep is None:
        raise does_not_fit(requested, budget, topology, plan.devices.count)

    rates = chip_rates(plan.devices.kind)
    times = program_times(budget.sizes(sweep), rates)
    print_topology_plan(
        with_sizes(plan, sweep),
        topology,
        TimedPlan(times, str(rates), "it fits by the estimate (--compile asks the compiler)"),
        price,
    )


@dataclass(frozen=True)
class TimedPlan:
    """How long the programs of a plan take, and what that and its sizes come from."""

    times: ProgramTimes
    source: str  # of the times
    verdict: str  # whether it fits, and who says so


def with_sizes(plan: TopologyPlan, sweep: SweepConfig) -> TopologyPlan:
    """The plan with a sweep whose sizes are chosen."""
    return plan._replace(config=plan.config.model_copy(update={"sweep": sweep}))


def chip_rates(kind: str) -> DeviceRates:
    """The rates of a kind of chip: measured where there is a file of them, else published."""
    _, published = find_chip(kind)
    return measured_rates(kind) or published


def does_not_fit(
    requested: SweepConfig, budget: DeviceBudget, topology: str, num_devices: int
) -> InputError:
    """The error for a sweep of which no sizes fit; it says what would, here or on more chips."""
    smallest = budget.smallest_sizes(requested)
    device_counts = [
        (f"--topology {larger.name}", larger.chips)
        for larger in larger_topologies(topology, num_devices)
    ]
    return InputError(
        found=device_budget.describe_shortage(smallest, budget),
        fix=device_budget.suggest_fit(requested, budget, device_counts),
    )


def describe_slice(plan: TopologyPlan, topology: str) -> str:
    """What a plan takes of a slice.

    A text such as "8 of the 16 chips of v5e:4x4 (4 hosts, TPU v5 lite, 15.8 GiB each), mesh
    fsdp=8".
    """
    budget = plan.budget
    hosts = num_hosts(topology)
    memory = format_bytes(budget.device_memory)
    return (
        f"{budget.mesh.devices} of the {plan.devices.count} chips of {topology}"
        f" ({hosts} host{'s' * (hosts > 1)}, {plan.devices.kind}, {memory} each), mesh"
        f" {plan.config.run.mesh}"
    )


def print_topology_plan(
    plan: TopologyPlan, topology: str, timed: TimedPlan, price: float | None
) -> None:
    """Print the plan of a sweep whose sizes are chosen, for the chips of a topology.

    price: of a chip's hour, None where it is not asked for.
    """
    config, devices, budget = plan
    cells = plan_cells(config.sweep)
    num_at_once = min(
        config.run.cells_at_once or len(cells), devices.count // budget.mesh.devices, len(cells)
    )
    checkpoints = plan_checkpoints(
        config.run,
        budget.checkpoint_bytes(config.sweep),
        runs=len(cells),
        concurrent_runs=num_at_once,
    )
    forecast = forecast_sweep_times(
        budget.sizes(config.sweep),
        cells,
        config.sweep.budget,
        num_at_once,
        timed.times,
        timed.source,
        labels=label_rollouts(config.cell, problems_have_labels(config.cell)),
        checkpoints=checkpoints,
    )

    runs = f"{num_at_once} run{'s' * (num_at_once > 1)} at once"
    description = f"{timed.verdict}: {runs}, {describe_slice(plan, topology)}"
    folder = f"{config.run.dir}/{config.name}"
    rent = Rent(devices.chips, "chip", price)
    print_plan(config, cells, folder, description, budget, forecast, rent)
    print_text(checkpoints.describe())

    print_text(describe_algorithm(config.cell.rl))
    if planning_task(config).stops.has_turns:
        print_text(describe_turns(config.cell))
    model_path = config.cell.model.path  # None where it is not on this machine
    if model_path:
        excess = describe_excess(Path(model_path), config.cell.sampling)
        if excess:
            warn(excess)
