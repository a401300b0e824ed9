"""A sweep prepared in a process: everything that can be refused is, sizes are chosen, and programs wait for cells."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from isojax.core.config import Config, DataConfig, PrecisionConfig, save_config
from isojax.core.errors import InputError
from isojax.core.machine import cores, silence_libtpu
from isojax.core.nouns import Cell
from isojax.distributed import multiprocess
from isojax.distributed.mesh_spec import MeshShape
from isojax.launch import strategy
from isojax.launch.autosize import DeviceBudget, autosize_sweep
from isojax.launch.local.cell_devices import CellDevices, assign_devices, make_device_budget
from isojax.launch.resume import BASE_FOLDER, CONFIG_FILE, config_for_folder
from isojax.models.attention_autotune import select_attention
from isojax.models.hf import hf_load
from isojax.rl import algorithm
from isojax.runs import loggers
from isojax.runs.workspace import working_folder
from isojax.tasks.problem_selection import preview_selection
from isojax.tasks.required_settings import LEARNING_RATE, LENGTHS, require_settings
from isojax.tasks.task import Task, build_task, is_on_device, tokenize
from isojax.train.base_policy import PROBLEMS_FILE, BasePolicy, prepare_base_policy
from isojax.train.programs import SweepPrograms


def start_jax(config: Config) -> None:
    """Configure jax before its first use: a device for every core of a CPU, and the persistent compilation cache."""
    silence_libtpu()
    if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", cores())
    if config.run.compilation_cache and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        cache_folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "isojax" / "xla"
        jax.config.update("jax_compilation_cache_dir", str(cache_folder))


def resolve_config(config: Config) -> Config:
    """The config with its model's shape, read from its checkpoint if any, and its precision on this backend."""
    model = hf_load.resolve_model(config.cell.model)
    hf_load.check_weights(model)
    precision = config.cell.precision.for_platform(jax.default_backend())
    if precision.compute == "float32":  # the default of accelerators has fewer bits
        jax.config.update("jax_default_matmul_precision", "highest")
    return config.model_copy(update={"cell": config.cell.model_copy(update={"model": model, "precision": precision})})


@contextmanager
def open_task(config: Config) -> Iterator[Task]:
    """The task of `cell.task`, with its verifier running; both end with the context."""
    task, model = build_task(config.cell, config.run.verifier_workers), config.cell.model
    if is_on_device(task):
        if model.path is not None and model.vocab != task.vocab:
            raise InputError(
                f"cell.task = {config.cell.task} has {task.vocab} tokens of its own, and the model in {model.path} has "
                f"{model.vocab} others; expected a task in text with cell.model.path, such as cell.task=addition or "
                "cell.task=jsonl:FILE."
            )
        yield task
        return
    require_settings(config.cell, task, *LENGTHS)
    try:
        task.start_verifier()
        yield task
    finally:
        task.close()


@dataclass(frozen=True)
class SweepSetup:
    config: Config  # with all sizes chosen
    cells: list[Cell]
    folder: Path
    task: Task
    device_budget: DeviceBudget
    cell_devices: CellDevices
    programs: list[SweepPrograms]  # a set for each cell that runs at a time; on a CPU's single devices the same one

    def prepare(self, on_progress: Callable[[str, float], None]) -> BasePolicy:
        """Make or load the base policy and its problems; then save the config, as nothing can be refused any more."""
        first_programs, folder = self.programs[0], self.folder
        if multiprocess.is_primary() and not (folder / CONFIG_FILE).exists():
            (folder / BASE_FOLDER / PROBLEMS_FILE).unlink(missing_ok=True)  # of settings that may have changed since
        base_policy = prepare_base_policy(folder / BASE_FOLDER, first_programs, on_progress)
        check_batch([(c.B_p, c.n) for c in self.cells], len(base_policy.training))
        if multiprocess.is_primary():
            save_config(self.config, folder / CONFIG_FILE)
        return base_policy

    def verifier_failures(self) -> dict[str, str]:
        """The first failure of each kind that the verifier has met; the ledger counts them all."""
        return {} if is_on_device(self.task) else self.task.failure_examples()


@contextmanager
def open_sweep(config: Config, cells: list[Cell], resume: bool) -> Iterator[SweepSetup]:
    """Prepare a sweep, or refuse it by an InputError; its verifier ends with the context."""
    folder = working_folder(config.run.dir, config.name)
    pairs = sorted({(c.B_p, c.n) for c in cells})
    algorithm.check_algorithm(config.cell.rl, cells)
    strategy.check(config, cells)
    multiprocess.run_on_primary(lambda: loggers.check_loggers(config.run.loggers))
    cell_devices = assign_devices(config, len(cells))
    resolved_config = resolve_config(config)
    check_precision(resolved_config.cell.precision, cell_devices.mesh_shape, jax.default_backend())
    config = multiprocess.run_on_primary(lambda: config_for_folder(resolved_config, folder, resume))
    check_data(config.cell.data)
    with open_task(config) as task:
        check_problems(config, task, pairs)
        budget = make_device_budget(config, pairs, cell_devices, task)
        is_new_run = not (folder / CONFIG_FILE).exists()
        sweep = multiprocess.run_on_primary(lambda: autosize_sweep(config.sweep, budget, is_new_run))
        meshes = cell_devices.meshes()
        sweep = multiprocess.broadcast(select_attention(config.cell, sweep, meshes[0][0]))
        programs = [SweepPrograms(config.cell, sweep, pairs, mesh, task, sampler) for mesh, sampler in meshes]
        if cell_devices.shares_programs:
            programs = programs * cell_devices.concurrent_cells
        final_config = config.model_copy(update={"sweep": sweep})
        yield SweepSetup(final_config, cells, folder, task, budget, cell_devices, programs)


def check_problems(config: Config, task: Task, pairs: list[tuple[int, int]]) -> None:
    """InputError where problems do not fit the sampler, do not suffice for a batch or cannot be graded."""
    cell = config.cell
    if is_on_device(task):
        check_batch(pairs, cell.data.candidates - cell.data.validation)
        tokenize(task, cell.sampling, task.problems(cell.data.candidates, np.random.default_rng(0)))
        return
    require_settings(cell, task, LEARNING_RATE)
    split_problems = preview_selection(cell, task)
    if split_problems is None:
        problem_sets = [task.problems(cell.data.candidates, np.random.default_rng([cell.data.seed, 0]))]
        check_batch(pairs, len(problem_sets[0]) - (0 if cell.data.held_out else cell.data.validation))
    else:
        check_batch(pairs, len(split_problems.training))
        problem_sets = [split_problems.training, split_problems.validation, *split_problems.extra_sets.values()]
    for problems in problem_sets:
        task.check_problems(problems)


def check_precision(precision: PrecisionConfig, mesh_shape: MeshShape, backend: str) -> None:
    """InputError where XLA:CPU would abort: it cannot compile a bfloat16 sum over the devices that split prompts."""
    if (backend, precision.compute) == ("cpu", "bfloat16") and mesh_shape.sequence > 1:
        raise InputError(
            f"cell.precision.compute=bfloat16 on a mesh with sequence={mesh_shape.sequence}: a CPU cannot train so; "
            "expected float32 (or auto, which is float32 on a CPU), or a mesh without sequence."
        )


def check_data(data: DataConfig) -> None:
    """InputError where no training and validation set can be made of these numbers."""
    low, high = data.difficulty
    if low > high:
        raise InputError(f"cell.data.difficulty: given [{low}, {high}], expected the lower end first.")
    if data.candidates < 2 * data.validation and not (data.held_out or data.mixture):
        raise InputError(
            f"cell.data.candidates = {data.candidates} and cell.data.validation = {data.validation}; "
            "expected at least twice as many candidates as are held out."
        )


def check_batch(pairs: list[tuple[int, int]], problems: int) -> None:
    """InputError where a batch takes more problems than there are, or can be, to train on."""
    B_p = max(B_p for B_p, _ in pairs)
    if B_p > problems:
        raise InputError(
            f"sweep.B_p holds {B_p}, and the training set has {problems} problems, of which a batch takes each once. "
            "Lower B_p or raise cell.data.candidates."
        )
