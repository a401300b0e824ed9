"""A sweep's programs compiled ahead of time for TPUs that are not here: do they fit, by XLA's own figures, beside the planner's.

Neither weights nor a tokenizer nor problems are read. The work is isojax/compiled.py's; jax is loaded when it begins.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rich.table import Table

from isojax.config import Config
from isojax.launch.display import console
from isojax.launch.fitting import GB, Room, fit, size
from isojax.launch.planner import plan
from isojax.types import InputError

if TYPE_CHECKING:
    from isojax.compiled import OutOfMemory, Taken


def dry_run(config: Config, topology: str) -> None:
    """Compile and print.

    Raises:
        InputError: the sweep contradicts itself, there is no libtpu or no such topology, the mesh does not fit it, or nothing says how
            many tokens the model has.
    """
    import jax

    jax.config.update("jax_platforms", "cpu")  # chips that are here are not asked for: these are described, not opened
    from isojax import compiled
    from isojax.meshes import parse_mesh
    from isojax.models import hf
    from isojax.rl import recipe
    from isojax.sharding import make_mesh

    cells = plan(config.sweep)
    recipe.check(config.cell.rl, cells)
    pairs = sorted({(c.B_p, c.n) for c in cells})
    cell = config.cell.model_copy(update={"model": hf.resolve(config.cell.model), "precision": config.cell.precision.on("tpu")})
    task = _task(config)
    devices = compiled.chips(topology)
    shape = parse_mesh(config.run.mesh, len(devices))
    memory = int(config.run.device_memory * GB) if config.run.device_memory else compiled.chip_memory(devices[0])
    room = Room(cell, pairs, shape, cell.model.vocab or task.vocab, task.on_device, "tpu", memory)
    try:
        sweep = fit(config.sweep, room)
    except InputError as e:  # then XLA is asked about the smallest there is
        console.print(f"by the planner: {e}", soft_wrap=True, highlight=False)
        sweep = room.resolved(config.sweep.model_copy(update={"slots": 1, "microbatch": 1}))
    console.print(
        f"{config.name} on {shape.devices} of the {len(devices)} chips of {topology} ({devices[0].device_kind}, {size(memory)} each), mesh "
        f"{config.run.mesh}: R = {sweep.slots}, m = {sweep.microbatch}, g = {sweep.prompts}, lanes of {sweep.lane_width}",
        highlight=False,
    )
    table = Table()
    for head in ("program", "arguments", "outputs", "temporaries", "peak", "planner", "", "compiled in"):
        table.add_column(head, justify="right")
    jax.config.update("jax_enable_compilation_cache", False)  # what is compiled for chips that are not here cannot be read back
    planned, mesh = room.takes(sweep).programs, make_mesh(shape, devices)
    for name, program in compiled.programs(cell, sweep, pairs, mesh, task).items():
        began = time.monotonic()
        found = compiled.compile_ahead(program)
        table.add_row(name, *_columns(found, memory, planned[name]), f"{time.monotonic() - began:.0f} s")
    console.print(table)


def _columns(found: Taken | OutOfMemory, memory: int, planned: int) -> tuple[str, ...]:
    """What a program takes, as a row of the table."""
    from isojax.compiled import OutOfMemory

    if isinstance(found, OutOfMemory):
        wanted = f"{found.used:.2f} of {found.available:.2f} GiB"
        where = ("", "", wanted, "") if found.of == "temporaries" else ("", "", "", wanted)
        return *where, size(planned), "does not fit"
    verdict = "fits" if found.peak <= memory else "does not fit"
    return size(found.arguments), size(found.outputs), size(found.temporaries), size(found.peak), size(planned), verdict


def _task(config: Config) -> Any:
    """The task, where it is judged on device; of one in text, its vocabulary and an end of responses stand for it."""
    from isojax import registry
    from isojax.compiled import Shaped
    from isojax.models import hf
    from isojax.tasks.base import build_task

    module = registry.load("tasks", config.cell.task.partition(":")[0], "build", "source")
    if "build" in vars(module):
        return build_task(config.cell)
    vocab = hf.resolve(config.cell.model).vocab
    if vocab is None:
        raise InputError(
            "cell.model.vocab is null and cell.task is in text: nothing says how many tokens there are. Add a model's config, such as "
            "models/llama-3.1-8b-instruct, or set cell.model.vocab."
        )
    return Shaped(vocab)
