"""`launch --dry-run --topology`: compile a sweep's programs for absent TPUs, and compare XLA's memory with ours."""

import time
from typing import Any

import jax

from isojax.core import registry
from isojax.core.config import Config
from isojax.core.errors import InputError
from isojax.distributed.mesh_spec import parse_mesh
from isojax.distributed.sharding import make_mesh
from isojax.launch.autosize import GIB, DeviceBudget, fit_to_memory, format_bytes
from isojax.launch.display import console, print_line
from isojax.launch.planner import plan_cells
from isojax.models.hf import hf_load
from isojax.report.console import TextTable
from isojax.rl import algorithm
from isojax.tasks.task import build_task
from isojax.train import memory_analysis
from isojax.train.memory_analysis import AbstractTask, OutOfMemory, ProgramMemory


def compile_for_topology(config: Config, topology: str) -> None:
    """Compile and print; InputError where the sweep, the mesh or the topology cannot be used."""
    jax.config.update("jax_platforms", "cpu")  # TPUs of this machine stay free
    cells = plan_cells(config.sweep)
    algorithm.check_algorithm(config.cell.rl, cells)
    pairs = sorted({(c.B_p, c.n) for c in cells})
    model, precision = hf_load.resolve_model(config.cell.model), config.cell.precision.for_platform("tpu")
    cell = config.cell.model_copy(update={"model": model, "precision": precision})
    task = _planning_task(config)
    devices = memory_analysis.topology_devices(topology)
    chip, mesh_shape = devices[0], parse_mesh(config.run.mesh, len(devices))
    configured_memory = config.run.device_memory
    device_memory = int(configured_memory * GIB) if configured_memory else memory_analysis.chip_memory(chip)
    vocab = model.vocab or task.vocab
    budget = DeviceBudget(cell, pairs, mesh_shape, vocab, task.on_device, "tpu", device_memory)
    try:
        sweep = fit_to_memory(config.sweep, budget)
    except InputError as e:  # then XLA is asked about the smallest sizes
        print_line(f"by the planner: {e}")
        sweep = budget.resolve_sizes(config.sweep.model_copy(update={"decode_slots": 1, "microbatch": 1}))
    console.print(
        f"{config.name} on {mesh_shape.devices} of the {len(devices)} chips of {topology} ({chip.device_kind}, "
        f"{format_bytes(device_memory)} each), mesh {config.run.mesh}: R = {sweep.decode_slots}, "
        f"m = {sweep.microbatch}, g = {sweep.prefill_batch}, W = {sweep.slots_per_prefix}"
    )
    headings = ("program", "arguments", "outputs", "temporaries", "peak", "planner", "", "compiled in")
    rows = []
    # What is compiled for chips that are not here cannot be read back from the cache.
    jax.config.update("jax_enable_compilation_cache", False)
    planned_bytes, mesh = budget.estimate(sweep).program_bytes, make_mesh(mesh_shape, devices)
    for name, program in memory_analysis.build_abstract_programs(cell, sweep, pairs, mesh, task).items():
        started_at = time.monotonic()
        columns = _usage_columns(memory_analysis.compile_for_memory(*program), device_memory, planned_bytes[name])
        rows.append([name, *columns, f"{time.monotonic() - started_at:.0f} s"])
    console.print(TextTable("", headings, rows, text_columns=1))


def _usage_columns(usage: ProgramMemory | OutOfMemory, device_memory: int, planned_bytes: int) -> tuple[str, ...]:
    if isinstance(usage, OutOfMemory):
        needed = f"{usage.needed_gib:.2f} of {usage.available_gib:.2f} GiB"
        columns = ("", "", needed, "") if usage.scope == "temporaries" else ("", "", "", needed)
        return *columns, format_bytes(planned_bytes), "does not fit"
    numbers = (usage.arguments, usage.outputs, usage.temporaries, usage.peak, planned_bytes)
    return *map(format_bytes, numbers), "fits" if usage.peak <= device_memory else "does not fit"


def _planning_task(config: Config) -> Any:
    """The task, where its verifier runs on devices; for one in text, a vocabulary and an end of responses."""
    module = registry.load(("tasks.device", "tasks.sources"), config.cell.task.partition(":")[0], "build", "source")
    if "build" in vars(module):
        return build_task(config.cell)
    vocab = hf_load.resolve_model(config.cell.model).vocab
    if vocab is None:
        raise InputError(
            "cell.model.vocab is null and cell.task is in text: nothing says how many tokens there are. "
            "Add a model's config, such as models/llama-3.1-8b-instruct, or set cell.model.vocab."
        )
    return AbstractTask(vocab)
