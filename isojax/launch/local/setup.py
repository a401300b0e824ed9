"""A sweep made ready in this process: everything that can be refused is, sizes are chosen, and programs wait for cells.

The local runner opens one for all devices here; a process of a gang on a Ray cluster one for its own. Only functions
import jax.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isojax.core.config import Config, DataConfig, PrecisionConfig, save_config
from isojax.core.config.text_settings import require_learning_rate
from isojax.core.errors import InputError
from isojax.core.machine import cores
from isojax.core.nouns import Cell
from isojax.distributed.mesh_spec import MeshShape, parse_mesh
from isojax.launch import strategy
from isojax.launch.autosize import DeviceBudget, autosize_config
from isojax.launch.display import ProgressReporter
from isojax.launch.local.cell_threads import report_verifier_failures
from isojax.launch.local.sweep_forecast import make_device_budget
from isojax.launch.processes.process_group import check_multi_process
from isojax.launch.resume import BASE_FOLDER, CONFIG_FILE, config_for_folder
from isojax.runs import loggers
from isojax.runs.workspace import working_folder

if TYPE_CHECKING:
    from isojax.tasks.protocol import Task
    from isojax.train.base_policy import BasePolicy
    from isojax.train.programs import SweepPrograms


@dataclass(frozen=True)
class SweepSetup:
    """`config`: with all sizes chosen. `programs`: a set for each cell that runs at a time, on a CPU's single devices
    the same one.
    `here`: devices, in words."""

    config: Config
    cells: list[Cell]
    folder: Path
    task: Task
    device_budget: DeviceBudget
    programs: list[SweepPrograms]
    devices: list[Any]
    device_description: str

    def prepare(self, display: ProgressReporter) -> BasePolicy:
        """The base policy and its problems; then the config is saved, as nothing can be refused any more."""
        from isojax.distributed import multiprocess
        from isojax.train.base_policy import PROBLEMS_FILE, prepare_base_policy

        first_programs, folder, cell = self.programs[0], self.folder, self.config.cell
        if multiprocess.is_primary() and not (folder / CONFIG_FILE).exists():
            (folder / BASE_FOLDER / PROBLEMS_FILE).unlink(missing_ok=True)  # of settings that may have changed since
        base_policy = prepare_base_policy(
            folder / BASE_FOLDER,
            cell,
            first_programs.decoder,
            first_programs.task,
            first_programs.labeller,
            first_programs.mesh,
            display.show_preparation,
        )
        check_batch([(c.B_p, c.n) for c in self.cells], len(base_policy.training))
        report_verifier_failures(display, first_programs.task)
        if multiprocess.is_primary():
            save_config(self.config, folder / CONFIG_FILE)
        return base_policy


@contextmanager
def open_sweep(jax: Any, config: Config, cells: list[Cell], resume: bool) -> Iterator[SweepSetup]:
    """The sweep, ready; its verifier ends with the context.

    Raises:
        InputError: the recipe contradicts itself, the mesh does not fit, the folder holds another sweep, or the
        problems or the model
            cannot be used.
    """
    folder = working_folder(config.run.dir, config.name)
    pairs = sorted({(c.B_p, c.n) for c in cells})
    from isojax.distributed import multiprocess
    from isojax.distributed.sharding import make_mesh
    from isojax.models.attention_autotune import select_attention
    from isojax.rl import algorithm
    from isojax.rl.async_rl import sampler_mesh
    from isojax.train.programs import SweepPrograms

    algorithm.check_algorithm(config.cell.rl, cells)
    strategy.check(config, cells)
    multiprocess.run_on_primary(lambda: loggers.check_loggers(config.run.loggers))
    devices = jax.devices()
    mesh_shape = parse_mesh(
        "data=-1" if config.run.mesh == "auto" and multiprocess.is_multiprocess() else config.run.mesh, len(devices)
    )
    if multiprocess.is_multiprocess():
        check_multi_process(config, mesh_shape.devices, len(devices), jax.process_count())
    sampler_mesh_shape = sampler_mesh.sampler_mesh_shape(
        config.cell.rl, config.run, len(devices), mesh_shape.devices, jax.default_backend()
    )
    sampler_in_process = config.run.sampler_process
    devices_per_cell = mesh_shape.devices + (
        sampler_mesh_shape.devices if sampler_mesh_shape else 0
    )  # devices that a cell keeps at work, of which it takes `each` of this process
    local_devices_per_cell = mesh_shape.devices if sampler_in_process else devices_per_cell
    resolved_config, requested_sweep = resolve_config(config), config.sweep
    check_precision(resolved_config.cell.precision, mesh_shape, jax.default_backend())
    config = multiprocess.run_on_primary(lambda: config_for_folder(resolved_config, folder, resume, mesh_shape.shards))
    concurrent_cells = min(
        config.run.cells_at_once or default_concurrent_cells(jax, devices_per_cell),
        len(devices) // local_devices_per_cell,
        len(cells),
    )
    check_data(config.cell.data)
    with open_task(config) as task, ExitStack() as stack:
        check_problems(config, task, pairs)
        device_budget = make_device_budget(config, pairs, mesh_shape, task, devices_per_cell * concurrent_cells)
        settled_config = config
        config = multiprocess.run_on_primary(
            lambda: autosize_config(
                settled_config, requested_sweep, device_budget, is_new_run=not (folder / CONFIG_FILE).exists()
            )
        )
        shares_programs = (
            jax.default_backend() == "cpu" and devices_per_cell == 1
        )  # it computes for several threads at once, and compiles for one device
        device_groups = [
            devices[i * local_devices_per_cell :] for i in range(1 if shares_programs else concurrent_cells)
        ]
        meshes = [make_mesh(mesh_shape, part) for part in device_groups]
        sampler_devices = [part[mesh_shape.devices :] for part in device_groups]
        samplers = [
            make_mesh(sampler_mesh_shape, sampler_group)
            if sampler_mesh_shape and not sampler_in_process
            else sampler_mesh_shape
            for sampler_group in sampler_devices
        ]
        config = config.model_copy(
            update={"sweep": multiprocess.broadcast(select_attention(config.cell, config.sweep, meshes[0]))}
        )
        mesh_pairs = zip(meshes, samplers, strict=True)
        programs = [
            SweepPrograms(config.cell, config.sweep, pairs, mesh, task, sampler) for mesh, sampler in mesh_pairs
        ]
        for sampler_group in programs:
            stack.callback(sampler_group.close)
        programs = programs * concurrent_cells if shares_programs else programs
        sampler_note = (
            f" and {sampler_mesh_shape.devices} of its sampler's process"
            if sampler_mesh_shape and sampler_in_process
            else ""
        )
        device_description = (
            f"{local_devices_per_cell} of {len(devices)} {jax.default_backend()} devices a cell{sampler_note}"
        )
        local_devices = [
            d for d in devices[: local_devices_per_cell * concurrent_cells] if d.process_index == jax.process_index()
        ]
        yield SweepSetup(config, cells, folder, task, device_budget, programs, local_devices, device_description)


def resolve_config(config: Config) -> Config:
    """The config with its model's shape read from the checkpoint, where it names one, and its precision decided for
    this backend.

    Raises:
        InputError: the checkpoint cannot be run, or some of its weights are not there.
    """
    import jax

    from isojax.models.hf import hf_load

    model = hf_load.resolve_model(config.cell.model)
    hf_load.check_weights(model)
    precision = config.cell.precision.for_platform(jax.default_backend())
    if precision.compute == "float32":  # which is what accelerators then compute, and not their default of fewer bits
        jax.config.update("jax_default_matmul_precision", "highest")
    return config.model_copy(update={"cell": config.cell.model_copy(update={"model": model, "precision": precision})})


@contextmanager
def open_task(config: Config) -> Iterator[Task]:
    """The task of `cell.task`, its verifier at work; both end with the context.

    Raises:
        InputError: what `cell.task`, `cell.prompt`, `cell.verifier` or the tokenizer ask for cannot be had.
    """
    from isojax.tasks.build import build_task
    from isojax.tasks.protocol import is_on_device

    task, model = build_task(config.cell, config.run.verifier_workers), config.cell.model
    if is_on_device(task):
        if model.path is not None and model.vocab != task.vocab:
            raise InputError(
                f"cell.task = {config.cell.task} has {task.vocab} tokens of its own, the model in {model.path} {model.vocab} others; "
                "expected a task in text with cell.model.path, such as cell.task=addition or cell.task=jsonl:FILE."
            )
        yield task
        return
    try:
        task.start_verifier()
        yield task
    finally:
        task.close()


def check_problems(config: Config, task: Task, pairs: list[tuple[int, int]]) -> None:
    """InputError where the problems do not fit the sampler, are too few for a batch or cannot be judged, as far as can
    be told before any work."""
    from isojax.tasks.problem_selection import preview_selection
    from isojax.tasks.protocol import is_on_device
    from isojax.train.base_policy import encode_problems

    cell = config.cell
    if is_on_device(task):
        check_batch(pairs, cell.data.candidates - cell.data.validation)
        encode_problems(task, cell, task.problems(cell.data.candidates, np.random.default_rng(0)))
        return
    require_learning_rate(cell)
    split_problems = preview_selection(cell, task)
    if split_problems is None:
        problem_sets = [task.problems(cell.data.candidates, np.random.default_rng([cell.data.seed, 0]))]
        check_batch(pairs, len(problem_sets[0]) - (0 if cell.data.held_out else cell.data.validation))
    else:
        check_batch(pairs, len(split_problems.training))
        problem_sets = [split_problems.training, split_problems.validation, *split_problems.extra_sets.values()]
    for problems in problem_sets:
        task.check_problems(problems)


def start_jax(config: Config) -> Any:
    """jax, with a device for every core of a CPU machine (unless XLA_FLAGS says otherwise) and the persistent
    compilation cache.
    """
    import jax

    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", cores())
    if config.run.compilation_cache and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        cache_folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "isojax" / "xla"
        jax.config.update("jax_compilation_cache_dir", str(cache_folder))
    return jax


def default_concurrent_cells(jax: Any, devices_per_cell: int) -> int:
    """How many cells run at once by default: one on every part of the devices; simulated CPU devices beyond the cores
    add nothing, and of several processes all work at one."""
    if jax.process_count() > 1:
        return 1
    device_groups = max(
        1, len(jax.local_devices()) // devices_per_cell
    )  # a cell whose sampler is a process has devices that are not among these
    return min(device_groups, max(1, cores() // devices_per_cell)) if jax.default_backend() == "cpu" else device_groups


def check_precision(precision: PrecisionConfig, mesh_shape: MeshShape, backend: str) -> None:
    """InputError where XLA:CPU would end this process: it cannot compile a sum of bfloat16 over the devices that split
    prompts.
    """
    if (backend, precision.compute) == ("cpu", "bfloat16") and mesh_shape.sequence > 1:
        raise InputError(
            f"cell.precision.compute=bfloat16 on a mesh with sequence={mesh_shape.sequence}: a CPU cannot train so; expected float32 (or auto, "
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
    """InputError where a batch takes more problems than there are (or, before they are labelled, than there can be) to
    train on.
    """
    B_p = max(B_p for B_p, _ in pairs)
    if B_p > problems:
        raise InputError(
            f"sweep.B_p holds {B_p} and the training set {problems} problems; a batch takes each once. "
            "Lower B_p or raise cell.data.candidates."
        )
