"""A sweep made ready in this process: everything that can be refused is, sizes are chosen, and programs wait for cells.

The local runner opens one for all devices here; a process of a gang on a Ray cluster one for its own. Only functions import jax.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isojax import loggers
from isojax.config import Config, DataConfig, PrecisionConfig, save_config
from isojax.launch import rounds
from isojax.launch.display import Shows
from isojax.launch.fitting import Room, sized
from isojax.launch.forecast import room_of
from isojax.launch.gang import check_several
from isojax.launch.resume import BASE, CONFIG, settle
from isojax.launch.workers import tell_failures
from isojax.machine import cores
from isojax.meshes import MeshShape, parse_mesh
from isojax.storage import folder_of
from isojax.types import Cell, InputError

if TYPE_CHECKING:
    from isojax.base import Base
    from isojax.tasks.base import Task
    from isojax.train import Programs


@dataclass(frozen=True)
class Site:
    """`config`: with all sizes chosen. `programs`: a set for each cell that runs at a time, on a CPU's single devices the same one.
    `here`: devices, in words."""

    config: Config
    cells: list[Cell]
    folder: Path
    task: Task
    room: Room
    programs: list[Programs]
    devices: list[Any]
    here: str

    def prepare(self, display: Shows) -> Base:
        """The base policy and its problems; then the config is saved, as nothing can be refused any more."""
        from isojax import hosts
        from isojax.base import PROBLEMS, prepare

        first, folder, cell = self.programs[0], self.folder, self.config.cell
        if hosts.writes() and not (folder / CONFIG).exists():
            (folder / BASE / PROBLEMS).unlink(missing_ok=True)  # of settings that may have changed since
        base = prepare(folder / BASE, cell, first.decoder, first.task, first.labeller, first.mesh, display.step)
        check_batch([(c.B_p, c.n) for c in self.cells], len(base.training))
        tell_failures(display, first.task)
        if hosts.writes():
            save_config(self.config, folder / CONFIG)
        return base


@contextmanager
def opened(jax: Any, config: Config, cells: list[Cell], resume: bool) -> Iterator[Site]:
    """The sweep, ready; its verifier ends with the context.

    Raises:
        InputError: the recipe contradicts itself, the mesh does not fit, the folder holds another sweep, or the problems or the model
            cannot be used.
    """
    folder = folder_of(config.run.dir, config.name)
    pairs = sorted({(c.B_p, c.n) for c in cells})
    from isojax import hosts
    from isojax.models.choice import with_kernels
    from isojax.rl import recipe
    from isojax.rl.pipeline import sampler_shape
    from isojax.sharding import make_mesh
    from isojax.train import Programs

    recipe.check(config.cell.rl, cells)
    rounds.check(config, cells)
    hosts.by_first(lambda: loggers.check(config.run.loggers))
    devices = jax.devices()
    shape = parse_mesh("data=-1" if config.run.mesh == "auto" and hosts.several() else config.run.mesh, len(devices))
    if hosts.several():
        check_several(config, shape.devices, len(devices), jax.process_count())
    apart = sampler_shape(config.cell.rl, config.run, len(devices), shape.devices, jax.default_backend())
    in_process = config.run.sampler_process
    work = shape.devices + (apart.devices if apart else 0)  # devices that a cell keeps at work, of which it takes `each` of this process
    each = shape.devices if in_process else work
    resolved, asked = resolve_config(config), config.sweep
    check_precision(resolved.cell.precision, shape, jax.default_backend())
    config = hosts.by_first(lambda: settle(resolved, folder, resume, shape.shards))
    at_once = min(config.run.cells_at_once or cells_side_by_side(jax, work), len(devices) // each, len(cells))
    check_data(config.cell.data)
    with open_task(config) as task, ExitStack() as ending:
        check_problems(config, task, pairs)
        room = room_of(config, pairs, shape, task, work * at_once)
        settled = config
        config = hosts.by_first(lambda: sized(settled, asked, room, fresh=not (folder / CONFIG).exists()))
        shared = jax.default_backend() == "cpu" and work == 1  # it computes for several threads at once, and compiles for one device
        parts = [devices[i * each :] for i in range(1 if shared else at_once)]
        meshes = [make_mesh(shape, part) for part in parts]
        left = [part[shape.devices :] for part in parts]
        samplers = [make_mesh(apart, mine) if apart and not in_process else apart for mine in left]
        config = config.model_copy(update={"sweep": hosts.first(with_kernels(config.cell, config.sweep, meshes[0]))})
        both = zip(meshes, samplers, strict=True)
        programs = [Programs(config.cell, config.sweep, pairs, mesh, task, sampler) for mesh, sampler in both]
        for mine in programs:
            ending.callback(mine.close)
        programs = programs * at_once if shared else programs
        beside = f" and {apart.devices} of its sampler's process" if apart and in_process else ""
        at = f"{each} of {len(devices)} {jax.default_backend()} devices a cell{beside}"
        own = [d for d in devices[: each * at_once] if d.process_index == jax.process_index()]
        yield Site(config, cells, folder, task, room, programs, own, at)


def resolve_config(config: Config) -> Config:
    """The config with its model's shape read from the checkpoint, where it names one, and its precision decided for this backend.

    Raises:
        InputError: the checkpoint cannot be run, or some of its weights are not there.
    """
    import jax

    from isojax.models import hf

    model = hf.resolve(config.cell.model)
    hf.check_weights(model)
    precision = config.cell.precision.on(jax.default_backend())
    if precision.compute == "float32":  # which is what accelerators then compute, and not their default of fewer bits
        jax.config.update("jax_default_matmul_precision", "highest")
    return config.model_copy(update={"cell": config.cell.model_copy(update={"model": model, "precision": precision})})


@contextmanager
def open_task(config: Config) -> Iterator[Task]:
    """The task of `cell.task`, its verifier at work; both end with the context.

    Raises:
        InputError: what `cell.task`, `cell.prompt`, `cell.verifier` or the tokenizer ask for cannot be had.
    """
    from isojax.tasks.base import build_task, on_device

    task, model = build_task(config.cell, config.run.verifier_workers), config.cell.model
    if on_device(task):
        if model.path is not None and model.vocab != task.vocab:
            raise InputError(
                f"cell.task = {config.cell.task} has {task.vocab} tokens of its own, the model in {model.path} {model.vocab} others; "
                "expected a task in text with cell.model.path, such as cell.task=addition or cell.task=jsonl:FILE."
            )
        yield task
        return
    try:
        task.start()
        yield task
    finally:
        task.close()


def check_problems(config: Config, task: Task, pairs: list[tuple[int, int]]) -> None:
    """InputError where the problems do not fit the sampler, are too few for a batch or cannot be judged, as far as can be told before
    any work."""
    from isojax.base import encode
    from isojax.problems import preview
    from isojax.tasks.base import on_device

    cell = config.cell
    if on_device(task):
        check_batch(pairs, cell.data.candidates - cell.data.validation)
        encode(task, cell, task.problems(cell.data.candidates, np.random.default_rng(0)))
        return
    chosen = preview(cell, task)
    if chosen is None:
        sets = [task.problems(cell.data.candidates, np.random.default_rng([cell.data.seed, 0]))]
        check_batch(pairs, len(sets[0]) - (0 if cell.data.held_out else cell.data.validation))
    else:
        check_batch(pairs, len(chosen.training))
        sets = [chosen.training, chosen.validation, *chosen.extra.values()]
    for problems in sets:
        task.check(problems)


def start_jax(config: Config) -> Any:
    """jax, with a device for every core of a CPU machine (unless XLA_FLAGS says otherwise) and the persistent compilation cache."""
    import jax

    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", cores())
    if config.run.compilation_cache and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "isojax" / "xla"
        jax.config.update("jax_compilation_cache_dir", str(cache))
    return jax


def cells_side_by_side(jax: Any, devices: int) -> int:
    """How many cells run at once by default: one on every part of the devices; simulated CPU devices beyond the cores add nothing, and of
    several processes all work at one."""
    if jax.process_count() > 1:
        return 1
    parts = max(1, len(jax.local_devices()) // devices)  # a cell whose sampler is a process has devices that are not among these
    return min(parts, max(1, cores() // devices)) if jax.default_backend() == "cpu" else parts


def check_precision(precision: PrecisionConfig, shape: MeshShape, backend: str) -> None:
    """InputError where XLA:CPU would end this process: it cannot compile a sum of bfloat16 over the devices that split prompts."""
    if (backend, precision.compute) == ("cpu", "bfloat16") and shape.sequence > 1:
        raise InputError(
            f"cell.precision.compute=bfloat16 on a mesh with sequence={shape.sequence}: a CPU cannot train so; expected float32 (or auto, "
            "which is float32 on a CPU), or a mesh without sequence."
        )


def check_data(data: DataConfig) -> None:
    """InputError where no split can come of these numbers."""
    low, high = data.difficulty
    if low > high:
        raise InputError(f"cell.data.difficulty: given [{low}, {high}], expected the lower end first.")
    if data.candidates < 2 * data.validation and not (data.held_out or data.mixture):
        raise InputError(
            f"cell.data.candidates = {data.candidates} and cell.data.validation = {data.validation}; expected at least twice as many "
            "candidates as are held out."
        )


def check_batch(pairs: list[tuple[int, int]], problems: int) -> None:
    """InputError where a batch takes more problems than there are (or, before they are labelled, than there can be) to train on."""
    B_p = max(B_p for B_p, _ in pairs)
    if B_p > problems:
        raise InputError(
            f"sweep.B_p holds {B_p} and the training set {problems} problems; a batch takes each once. "
            "Lower B_p or raise cell.data.candidates."
        )
