"""A sweep prepared in a process: what can be refused is, sizes are chosen, devices and programs are
ready for cells."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jax
from jax.sharding import Mesh

from isojax.core.config import CellConfig, Config, SweepConfig, save_config
from isojax.core.errors import InputError
from isojax.core.machine import cores, reserve_gpu_memory, silence_libtpu
from isojax.core.nouns import Cell
from isojax.core.terminal import warn
from isojax.distributed import multiprocess
from isojax.distributed.roles import Role
from isojax.launch import strategy
from isojax.launch.device_budget import DeviceBudget, autosize_sweep
from isojax.launch.local.cell_devices import (
    CellDevices,
    assign_devices,
    avoid_unsafe_cache,
    make_device_budget,
)
from isojax.launch.local.sweep_checks import (
    check_batch,
    check_data,
    check_engine,
    check_precision,
    check_problems,
    check_text_settings,
    has_evaluations,
    note_problem_counts,
)
from isojax.launch.local.sweep_servers import check_servers, record_servers
from isojax.launch.planner import with_kernels
from isojax.launch.prompt_date import store_date
from isojax.launch.resume import BASE_FOLDER, config_for_folder
from isojax.launch.sweep_status import CONFIG_FILE
from isojax.models.attention_autotune import (
    CHANGE_MACHINE,
    CHANGE_SETTING,
    CHANGE_SIZES,
    select_attention,
)
from isojax.models.describe_sizes import count_parameters
from isojax.models.hf import hf_load
from isojax.rl.recipe_checks import check_algorithm
from isojax.runs import loggers
from isojax.runs.mirror import working_folder
from isojax.tasks.grading import FailureCallback
from isojax.tasks.problem_selection import LENGTHS, require_settings
from isojax.tasks.task import Task, build_task, is_on_device
from isojax.tasks.task_defaults import with_task_defaults
from isojax.train import update_hooks
from isojax.train.base_policy import PARAMS_FILE, PROBLEMS_FILE, BasePolicy, prepare_base_policy
from isojax.train.programs import RolloutOptions, SweepPrograms
from isojax.train.verifier_copies import changed_verifier_files


def start_jax(config: Config) -> None:
    """Configure jax before its first use: devices of a CPU, and the compilation cache.

    A CPU has a device for every core, or as many as XLA_FLAGS says.
    """
    silence_libtpu()
    reserve_gpu_memory()

    xla_flags = os.environ.get("XLA_FLAGS", "")
    simulated = re.search(r"xla_force_host_platform_device_count=(\d+)", xla_flags)
    num_devices = int(simulated[1]) if simulated else cores()
    if not simulated:
        jax.config.update("jax_num_cpu_devices", num_devices)
    # XLA's threads on a CPU wait for those of the other mesh, or of other processes: with as many
    # threads as devices, all may wait. NPROC is how many there are.
    if config.run.sampler_mesh is not None:
        os.environ.setdefault("NPROC", str(4 * num_devices))

    if config.run.compilation_cache and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        user_cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(user_cache / "isojax" / "xla"))


def resolve_config(config: Config, reads_weights: bool = True) -> Config:
    """The config with what is not written in it: task defaults, model shape and precision.

    The model's shape is read from its checkpoint, if it has one; precision is that of this backend,
    and products in float32 get all bits from here on. reads_weights: whether weights will be read,
    so that they must be there. InputError where the checkpoint cannot be used.
    """
    config = config.model_copy(update={"cell": with_task_defaults(config.cell)})
    model = hf_load.resolve_model(config.cell.model)
    if reads_weights:
        hf_load.check_weights(model)

    precision = config.cell.precision.for_platform(jax.default_backend())
    if precision.compute == "float32":  # the default of accelerators has fewer bits
        jax.config.update("jax_default_matmul_precision", "highest")
    return config.with_settings(cell={"model": model, "precision": precision})


@contextmanager
def open_task(config: Config) -> Iterator[Task]:
    """The task of `cell.task`, with its verifier running; both end with the context.

    A task on the device has no verifier. config: of `resolve_config`. InputError where the model
    does not fit the task, or a text task lacks a setting that it needs.
    """
    task = build_task(config.cell, config.run.verifier_workers)
    model = config.cell.model
    if is_on_device(task):
        if model.path is not None and model.vocab != task.vocab:
            raise InputError(
                where="cell.task",
                found=(
                    f"given {config.cell.task}, which has {task.vocab} tokens of its own, and "
                    f"the model in {model.path} has {model.vocab} others"
                ),
                expected=(
                    "a text task with cell.model.path, such as cell.task=addition or "
                    "cell.task=jsonl:FILE"
                ),
            )
        yield task
        return

    # The lengths of prompts and responses, whose defaults suit no text; the error suggests values.
    require_settings(config.cell, task, count_parameters, *LENGTHS)
    try:
        task.start_verifier()
        yield task
    finally:
        task.close()


def print_warnings(task: Task) -> None:
    """Print what is doubtful of tokenizer, chat template and lengths, in the primary process.

    They are the last lines of a plan, so that a reader sees them.
    """
    if not is_on_device(task) and multiprocess.is_primary():
        for warning in task.warnings:
            warn(warning)


@dataclass(frozen=True)
class SweepSetup:
    """A sweep whose cells can be trained, once `prepare` has made their base policy."""

    config: Config  # with all sizes chosen
    cells: list[Cell]
    folder: Path
    task: Task
    device_budget: DeviceBudget
    cell_devices: CellDevices
    # a set for each cell that runs at a time; on a CPU's single devices the same one
    programs: list[SweepPrograms]

    def prepare(
        self, on_progress: Callable[[str, float], None], on_failure: FailureCallback
    ) -> BasePolicy:
        """Make or load the base policy and its problems; then save the config.

        Only then, as a folder with a config holds a run, and nothing can be refused any more.
        on_progress: called with a text and the fraction done. on_failure: called, from now on, with
        (kind, what happened) when the verifier meets a kind of failure for the first time.
        InputError where problems do not suffice.
        """
        if not is_on_device(self.task):
            self.task.start_verifier().on_failure = on_failure

        base_folder = self.folder / BASE_FOLDER
        is_primary = multiprocess.is_primary()
        is_new_run = not (self.folder / CONFIG_FILE).exists()
        if is_primary and (is_new_run or self._has_mended_verifier()):
            for name in (PROBLEMS_FILE, PARAMS_FILE):  # of settings that may have changed since
                (base_folder / name).unlink(missing_ok=True)
        if is_primary and is_new_run:
            store_date(self.config.cell, base_folder)

        # Another sweep's base policy and labels, which are copied where its settings are equal.
        base_from = self.config.run.base_from
        source = Path(base_from) / BASE_FOLDER if base_from else None
        first_programs = self.programs[0]
        base_policy = prepare_base_policy(base_folder, first_programs, on_progress, source)
        check_batch([pair for cell in self.cells for pair in cell.pairs], len(base_policy.training))
        if self.config.cell.data.attempts:  # else `check_problems` has said it
            note_problem_counts(base_policy.training, base_policy.validation)
        if is_primary:
            save_config(self.config, self.folder / CONFIG_FILE)
            record_servers(self.config, first_programs, self.folder)
        return base_policy

    def _has_mended_verifier(self) -> bool:
        """Whether the verifier has changed before any evaluation was recorded.

        Then the problems, which the old one has judged, are chosen once more.
        """
        if is_on_device(self.task) or has_evaluations(self.folder):
            return False
        use = self.config.cell.verifier.use
        return bool(changed_verifier_files(self.folder / BASE_FOLDER, use))


@contextmanager
def open_sweep(
    config: Config, cells: list[Cell], resume: bool, role: Role | None = None
) -> Iterator[SweepSetup]:
    """Prepare a sweep, or refuse it by an InputError; its verifier ends with the context.

    cells: of `plan_cells`. resume: whether the folder may hold a run. role: where some processes
    only sample, this one's, that trains; those assigned to it get the config with all sizes chosen.
    Every process of a run must call this, as they wait for each other.
    """
    folder = working_folder(config.run.dir, config.name)
    pairs = sorted({pair for cell in cells for pair in cell.pairs})
    check_algorithm(config.cell.rl, cells)
    strategy.check(config, cells)
    # What process 0 refuses, all refuse; None is the type of what it returns.
    multiprocess.run_on_primary(lambda: loggers.check_loggers(config.run.loggers), None)
    update_hooks.load_hook(config.run.on_update)  # for its InputError, where there is none
    check_engine(config, len(cells))

    cell_devices = assign_devices(config, len(cells))
    resolved_config = resolve_config(config)
    check_precision(resolved_config.cell.precision, cell_devices.mesh_shape, jax.default_backend())
    # What process 0 reads in the folder holds for all: another may see it a moment later.
    config = multiprocess.run_on_primary(
        lambda: config_for_folder(resolved_config, folder, resume), Config
    )
    check_data(config.cell.data)

    with open_task(config) as task:
        is_new_run = not (folder / CONFIG_FILE).exists()
        check_problems(config, task, pairs, is_new_run)
        if not is_on_device(task):
            multiprocess.run_on_primary(lambda: check_text_settings(config.cell, folder), None)

        budget = make_device_budget(config, pairs, cell_devices, task)
        sized_sweep = multiprocess.run_on_primary(
            lambda: autosize_sweep(config.sweep, budget, is_new_run), SweepConfig
        )
        avoid_unsafe_cache(cell_devices)
        meshes = cell_devices.meshes()
        training_mesh = meshes[0].training
        # What process 0 finds wrong or slow, all leave out, or refuse.
        sweep = multiprocess.run_on_primary(
            lambda: _with_fastest_attention(
                config.cell, sized_sweep, budget, training_mesh, is_new_run
            ),
            SweepConfig,
        )

        rollouts = RolloutOptions(
            engine=config.run.rollouts,
            has_hook=config.run.on_update is not None,
            server=config.run.server,
            eval_server=config.run.eval_server,
            run_name=config.name,
        )
        programs = [
            SweepPrograms(
                config.cell, sweep, pairs, of_cell.training, task, of_cell.sampler, role, rollouts
            )
            for of_cell in meshes
        ]
        if cell_devices.shares_programs:
            programs = programs * cell_devices.concurrent_cells  # the same set for each thread
        multiprocess.run_on_primary(lambda: check_servers(config, programs[0], folder), None)

        final_config = config.model_copy(update={"sweep": sweep})
        for link in role.assigned_peers if role else ():
            link.send(("sweep", final_config))
        yield SweepSetup(final_config, cells, folder, task, budget, cell_devices, programs)


def _with_fastest_attention(
    cell: CellConfig, sweep: SweepConfig, budget: DeviceBudget, mesh: Mesh, is_new_run: bool
) -> SweepConfig:
    """The sweep with the kinds of attention that are fastest here, measured where they are not set.

    sweep: with all sizes chosen; those of a run that goes on have its attention too, which is only
    checked. InputError where a kernel that is set is wrong here.
    """
    fix = CHANGE_SETTING if is_new_run else CHANGE_MACHINE
    fastest = select_attention(cell, sweep, mesh, fix)
    if budget.fits(fastest):
        return fastest
    # Sizes were chosen for kernels, which hold no scores; plain attention does.
    undecided = fastest.model_copy(update={"forward_attention": sweep.forward_attention})
    with_kernel = with_kernels(undecided, budget.mesh, budget.backend, cell)
    return select_attention(cell, with_kernel, mesh, CHANGE_SIZES if is_new_run else fix)
