"""What XLA says that the programs of a sweep take, in bytes of one device, on this machine's
devices or on chips that are not here. Nothing is run: no weights, tokenizer or problems are needed.

`launch --dry-run --topology --compile`: a sweep's sizes chosen for TPUs that are not here, and
confirmed by their compiler. Where compiler and planner disagree, the compiler is right: what it
finds too large is chosen again, smaller.
"""

import importlib.util
import multiprocessing
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import jax
from jax.sharding import Mesh

from isojax.core.config import CellConfig, Config, SweepConfig
from isojax.core.errors import InputError, RunFailed
from isojax.core.machine import silence_libtpu
from isojax.core.shapes import ASSUMED_TRAINING_PROBLEMS
from isojax.distributed.mesh_spec import parse_mesh
from isojax.distributed.sharding import make_mesh
from isojax.launch import device_budget
from isojax.launch.device_budget import DeviceBudget, fit_to_memory, format_sizes
from isojax.launch.display import print_text
from isojax.launch.local.compiled_times import compiled_times
from isojax.launch.local.topology_plan import (
    AbstractTask,
    SliceDevices,
    TimedPlan,
    Topology,
    TopologyPlan,
    chip_rates,
    describe_slice,
    larger_topologies,
    plan_topology,
    planning_task,
    print_topology_plan,
    with_sizes,
)
from isojax.launch.memory_model import MemoryEstimate
from isojax.launch.planner import plan_cells, with_kernels
from isojax.launch.time_estimate import GIB, program_times
from isojax.launch.tpu_hosts import is_single_host, slice_shape
from isojax.report.console import TextTable
from isojax.rl.recipe_checks import check_algorithm
from isojax.tasks.task import Task
from isojax.train.programs import SweepPrograms

T = TypeVar("T")
# On a TPU v4, jax has the two cores of a chip as one device, for which libtpu has to be asked. On
# v5p it has so too, without a word; on v3 and TPU7x each half of a chip is a device.
CHIP_CONFIGS = {"v4": "megacore"}
MAX_COMPILATIONS = 3  # of a program, each time with smaller sizes
# What libtpu's compiler says of a program that, with its arguments, exceeds a chip's memory.
OOM_PATTERNS = (
    r"HLO temporaries \(([\d.]+)([MGT])\) exceeds available HBM",
    r"Used ([\d.]+)([MGT]) of [\d.]+[MGT]",
)
UNIT_BYTES = {"M": 2**20, "G": 2**30, "T": 2**40}


def topology_devices(topology: str) -> list[Any]:
    """The chips of a TPU topology such as "v5e:4x4", as jax devices to compile for.

    None of them need be here. libtpu stays loaded in this process. InputError where it is not
    installed, or knows no such topology.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise InputError(
            where="--topology",
            found=f"given {topology}, which needs libtpu (Linux on x86)",
            fix="Type: pip install 'isojax[tpu]'",
        )
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # there is no metadata server to ask
    # no chip is opened, so another process may do the same
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
    silence_libtpu()
    from jax.experimental.topologies import get_topology_desc

    options: dict[str, Any] = {}
    bounds = host_bounds(topology)
    if bounds is not None:
        options["chips_per_host_bounds"] = bounds
    kind, _, _ = topology.partition(":")
    if kind in CHIP_CONFIGS:
        options["chip_config_name"] = CHIP_CONFIGS[kind]
    try:
        description = get_topology_desc(platform="tpu", topology_name=topology, **options)
        return list(description.devices)
    except (jax.errors.JaxRuntimeError, ValueError) as e:
        raise InputError(
            where=f"--topology {topology}",
            found=str(e),
            expected="a kind of TPU and its chips, such as v5e:4x4, v5p:2x2x2 or v6e:2x4",
        ) from e


def host_bounds(topology: str) -> tuple[int, int, int] | None:
    """The chips of a host along each axis, for libtpu; None: its own 2 x 2 x 1.

    libtpu needs them for a slice that is one host of 8 chips, or a part of a host, such as the
    v5e:1x1 of a notebook.
    """
    shape = slice_shape(topology)
    if shape is None or not is_single_host(topology):  # libtpu refuses what is no slice
        return None
    x, y, z = [*shape, 1][:3]
    return x, y, z


@dataclass(frozen=True)
class CompiledProgram:
    """What a compiler says of a program."""

    peak_bytes: int  # of one device, by XLA's schedule
    hlo: str = ""  # optimized; "" where the program exceeds the chip's memory


def compile_program(function: Any, arguments: tuple[Any, ...]) -> CompiledProgram:
    """Compile a jitted function for arguments of these shapes.

    arguments: ShapeDtypeStructs with shardings, for which it is compiled. A TPU's compiler refuses
    a program that exceeds the chip's memory, and its message has the figure. JaxRuntimeError where
    the compiler fails otherwise.
    """
    try:
        compiled = function.lower(*arguments).compile()
    except jax.errors.JaxRuntimeError as e:
        for pattern in OOM_PATTERNS:
            match = re.search(pattern, str(e))
            if match:
                needed, unit = match.groups()
                return CompiledProgram(int(float(needed) * UNIT_BYTES[unit]))
        raise
    return CompiledProgram(compiled.memory_analysis().peak_memory_in_bytes, compiled.as_text())


def program_peak(function: Any, arguments: tuple[Any, ...]) -> int:
    """Bytes of one device that a jitted function takes at its peak; as `compile_program`."""
    return compile_program(function, arguments).peak_bytes


def build_abstract_programs(
    cell: CellConfig, sweep: SweepConfig, pairs: Sequence[tuple[int, int]], mesh: Mesh, task: Any
) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """By name, the jitted functions of a sweep that take the most memory, with their arguments.

    The names are "train" where the device verifies; else "weights", which makes the sampler's
    weights, "decode", a chunk of the sampler's steps, and "learn", the update. Arguments are
    ShapeDtypeStructs. cell: of `topology_budget`, with model and precision resolved. sweep: with
    all sizes chosen. pairs: every (B_p, n). task: a Task or an AbstractTask.
    """
    # An asynchronous run has the same functions, in two threads.
    synchronous_cell = cell.with_settings(rl={"max_staleness": None})
    programs = SweepPrograms(synchronous_cell, sweep, pairs, mesh, task)
    rollouts: Any = programs.rollout_programs
    # Their arguments: a batch, and what else an update reads, such as a table of so many problems.
    main_programs = rollouts.main_programs(programs.update_shapes(ASSUMED_TRAINING_PROBLEMS))
    return {
        name: (program.jitted, arguments) for name, (program, arguments) in main_programs.items()
    }


class CompilerPlan(NamedTuple):
    """What a sweep is compiled with for chips that are not here."""

    config: Config  # with the model and precision of runs there
    devices: list[Any]  # the topology's chips, as jax's devices
    budget: DeviceBudget


def topology_budget(config: Config, topology: str) -> CompilerPlan:
    """What a sweep may take of the chips of a topology such as "v5e:4x4", by `plan_topology`."""
    devices = topology_devices(topology)
    plan = plan_topology(config, topology, SliceDevices(devices[0].device_kind, len(devices)))
    return CompilerPlan(plan.config, devices, plan.budget)


def compile_for_topology(config: Config, topology: str, price: float | None = None) -> None:
    """Choose sizes for a topology such as "v5e:4x4", compile the programs and print the plan.

    price: of a chip's hour, None where it is not asked for. The plan's hours come from the
    compiler's cycles, where the clock of the chips is known. InputError where sweep, mesh or
    topology are unusable, or nothing fits.
    """
    check_algorithm(config.cell.rl, plan_cells(config.sweep))
    config, devices, budget = topology_budget(config, topology)
    kind = devices[0].device_kind
    plan = TopologyPlan(config, SliceDevices(kind, len(devices)), budget)
    print_text(f"{config.name} on {describe_slice(plan, topology)}")
    confirmed = confirm_sizes(config, budget, larger_topologies(topology, len(devices)))

    sweep = confirmed.sweep
    times = compiled_times(confirmed.hlo, config.cell, kind) if confirmed.hlo else None
    source = "its compiler's cycles, an estimate"
    if times is None:
        rates = chip_rates(kind)
        times = program_times(budget.sizes(sweep), rates)
        source = str(rates)
    verdict = "it fits, by the compiler's figures"
    print_topology_plan(with_sizes(plan, sweep), topology, TimedPlan(times, source, verdict), price)


@dataclass(frozen=True)
class ConfirmedSizes:
    """A sweep whose sizes the compiler has confirmed."""

    sweep: SweepConfig
    # Optimized HLO by program; empty where some program was not compiled with these very sizes.
    hlo: Mapping[str, str]


def confirm_sizes(
    config: Config, budget: DeviceBudget, topologies: Sequence[Topology]
) -> ConfirmedSizes:
    """The sweep with sizes that the compiler confirms for the first of these topologies.

    config: of `topology_budget`, whose sizes may be set or None. topologies: the first is compiled
    for; larger ones are only suggested. InputError where nothing fits; it names what would, on the
    first or on a larger one.
    """
    requested = config.sweep
    topology = topologies[0].name
    device_counts = [(f"--topology {larger.name}", larger.chips) for larger in topologies]

    device_budget.check_moments(requested, budget)
    sweep = fit_to_memory(requested, budget) or budget.smallest_sizes(requested)
    memory = budget.estimate(sweep)
    # Where the estimate is over by more than it may be wrong, no compiler needs to be asked.
    if memory.peak * device_budget.MEMORY_UTILIZATION > budget.device_memory:
        shortage = device_budget.describe_shortage(sweep, budget)
        suggestion = device_budget.suggest_fit(requested, budget, device_counts)
        raise InputError(
            found=shortage,
            fix=suggestion,
        )

    # The compiler corrects the estimate of a program that is over, until sizes fit or none do. A
    # program that it has found to fit is compiled again only where its estimate has grown.
    confirmed_bytes = dict[str, int]()
    for _ in range(MAX_COMPILATIONS):
        print_text(f"compiling with {format_sizes(sweep)}")
        unconfirmed = [
            name
            for name, size in memory.program_bytes.items()
            if size > confirmed_bytes.get(name, 0)
        ]
        try:
            compiled = run_in_child_process(compile_programs, config, sweep, topology, unconfirmed)
        except RunFailed as e:
            suggestion = device_budget.suggest_mesh(requested, budget, device_counts)
            raise InputError(
                where=f"mesh {budget.mesh}",
                found=f"the TPU's compiler fails: {e}",
                fix=suggestion,
            ) from e

        # Bytes of a device while each program runs, with what the run holds meanwhile.
        needed = {
            name: program.peak_bytes + memory.resident_bytes(name)
            for name, program in compiled.items()
        }
        print_text(usage_table(needed, memory, budget.device_memory))
        over = {name: size for name, size in needed.items() if size > budget.device_memory}
        if not over:
            hlo = {name: program.hlo for name, program in compiled.items()}
            all_compiled = compiled.keys() == memory.program_bytes.keys()
            return ConfirmedSizes(sweep, hlo if all_compiled else {})

        for name in compiled.keys() - over.keys():
            confirmed_bytes[name] = memory.program_bytes[name]
        # The most that the estimate of a program may be, so that what it really takes fits, if
        # that exceeds the estimate by the same factor for other sizes.
        limits = dict(budget.program_limits)
        for name, size in over.items():
            limits[name] = memory.program_bytes[name] / (size / budget.device_memory)
        budget = replace(budget, program_limits=limits)
        smaller_sweep = fit_to_memory(requested, budget)
        if smaller_sweep is None:
            break
        sweep = smaller_sweep
        memory = budget.estimate(sweep)

    suggestion = device_budget.suggest_fit(requested, budget, device_counts)
    raise InputError(
        found=f"with {format_sizes(sweep)} it does not fit, by the compiler's figures",
        fix=suggestion,
    )


def run_in_child_process(function: Callable[..., T], *arguments: Any) -> T:
    """The result of a call in another process, where a crash of the compiler ends that one alone.

    function, arguments and the result are pickled. RunFailed where the process ends so; what the
    function raises is raised here.
    """
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            return pool.submit(function, *arguments).result()
    except BrokenProcessPool as e:
        raise RunFailed(
            "its process ended without an answer, by a crash or for lack of this machine's memory."
        ) from e


def programs_on_topology(
    config: Config, sweep: SweepConfig, topology: str
) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """The programs of `build_abstract_programs`, for the chips of a topology such as "v5e:4x4".

    config: of `topology_budget`. sweep: with all sizes chosen.
    """
    jax.config.update("jax_platforms", "cpu")
    # What is compiled for chips that are not here cannot be read back from the cache.
    jax.config.update("jax_enable_compilation_cache", False)

    devices = topology_devices(topology)
    shape = parse_mesh(config.run.mesh, len(devices))
    mesh = make_mesh(shape, devices)
    sweep = with_kernels(sweep, shape, "tpu", config.cell)
    pairs = sorted({pair for cell in plan_cells(sweep) for pair in cell.pairs})
    task: AbstractTask | Task = planning_task(config)
    return build_abstract_programs(config.cell, sweep, pairs, mesh, task)


def compile_programs(
    config: Config, sweep: SweepConfig, topology: str, programs: list[str]
) -> dict[str, CompiledProgram]:
    """What their compiler says of these programs, by name.

    programs: names such as "decode", of `build_abstract_programs`. RunFailed where it fails.
    """
    try:
        # Building compiles already the program that makes the sampler's weights.
        built = programs_on_topology(config, sweep, topology)
        return {program: compile_program(*built[program]) for program in programs}
    except jax.errors.JaxRuntimeError as e:
        raise RunFailed(f"{first_line(e)}.") from e


def first_line(error: Exception) -> str:
    """The first line of a compiler's message, without its full stop."""
    line, _, _ = str(error).partition("\n")
    return line.strip().rstrip(".")


def usage_table(needed: dict[str, int], memory: MemoryEstimate, device_memory: int) -> TextTable:
    """A table of what each program takes, by the compiler and as planned, and whether that fits.

    needed: by program, bytes of a device while it runs, with what the run holds meanwhile. memory:
    the planner's estimate. device_memory: bytes.
    """
    rows = []
    for program, size in needed.items():
        resident = memory.resident_bytes(program)
        planned = memory.program_bytes[program] + resident
        excess = size - device_memory
        verdict = "fits" if excess <= 0 else f"over by {_format_gib(excess)}"
        rows.append(
            [
                program,
                _format_gib(size - resident),
                _format_gib(size),
                _format_gib(planned),
                verdict,
            ]
        )

    return TextTable(
        f"GiB of a device, of {_format_gib(device_memory)}",
        ("program", "the program alone", "in a run", "planned", ""),
        rows,
        text_columns=1,  # the first column and the last are texts, the others numbers
        last_is_text=True,
    )


def _format_gib(num_bytes: float) -> str:
    gib = num_bytes / GIB
    return f"{gib:.2f}" if gib >= 0.1 else f"{gib:.2g}"
