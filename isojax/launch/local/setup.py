"""A sweep prepared in a process: what can be refused is, sizes are chosen, devices and programs are
ready for cells."""

import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from isojax.core.config import CellConfig, Config, DataConfig, PrecisionConfig, save_config
from isojax.core.config.load import LEARNING_RATE
from isojax.core.config.sweep import LOCAL_ROLLOUTS
from isojax.core.errors import InputError
from isojax.core.machine import cores, reserve_gpu_memory, silence_libtpu
from isojax.core.nouns import Cell, Problem
from isojax.core.table_files import paths_below
from isojax.core.terminal import note, warn
from isojax.distributed import multiprocess
from isojax.distributed.device_probe import device_memory, measure_rates
from isojax.distributed.mesh_spec import MeshShape, parse_mesh
from isojax.distributed.roles import Role
from isojax.distributed.sharding import make_mesh
from isojax.launch import strategy, time_estimate
from isojax.launch.device_budget import DeviceBudget, autosize_sweep, host_memory
from isojax.launch.local.sweep_servers import check_servers, record_servers
from isojax.launch.planner import with_kernels
from isojax.launch.process_group import check_multi_process, sampler_processes
from isojax.launch.prompt_date import store_date
from isojax.launch.resume import BASE_FOLDER, config_for_folder
from isojax.launch.sweep_status import CONFIG_FILE
from isojax.launch.time_estimate import GIB
from isojax.models.attention_autotune import select_attention
from isojax.models.describe_sizes import count_parameters, describe_sizes
from isojax.models.hf import hf_load
from isojax.rl import algorithm
from isojax.rl.engines import load_engine
from isojax.runs import loggers
from isojax.runs.ledger import RECORDS_FILE
from isojax.runs.mirror import working_folder
from isojax.tasks.grading import FailureCallback
from isojax.tasks.problem_selection import LENGTHS, LabelsNeeded, require_settings, select_problems
from isojax.tasks.reference_check import check_references
from isojax.tasks.task import Task, build_task, is_on_device, tokenize
from isojax.tasks.task_defaults import with_task_defaults
from isojax.train import update_hooks
from isojax.train.base_policy import PARAMS_FILE, PROBLEMS_FILE, BasePolicy, prepare_base_policy
from isojax.train.label_settings import warn_of_other_labels
from isojax.train.programs import RolloutOptions, SweepPrograms
from isojax.train.verifier_copies import changed_verifier_files, check_verifier_files


@dataclass(frozen=True)
class CellDevices:
    mesh_shape: MeshShape  # of training
    sampler_shape: MeshShape | None  # of the sampler, where it has a mesh of its own
    devices: list[Any]  # of the run
    concurrent_cells: int = 1

    @property
    def devices_per_cell(self) -> int:
        """Devices that a cell takes, its sampler's included."""
        return self.mesh_shape.devices + (self.sampler_shape.devices if self.sampler_shape else 0)

    @property
    def shares_programs(self) -> bool:
        """Whether all cells run the same compiled programs: a CPU runs a program in several threads
        at once."""
        return jax.default_backend() == "cpu" and self.devices_per_cell == 1

    @property
    def description(self) -> str:
        devices = f"{self.devices_per_cell} of {len(self.devices)} {jax.default_backend()} devices"
        return f"{self.concurrent_cells} run{'s' * (self.concurrent_cells > 1)} at once, {devices} per run"

    def meshes(self) -> list[tuple[Mesh, Mesh | None]]:
        """For each set of compiled programs, the mesh of training and that of a sampler with
        devices of its own."""
        meshes = []
        for i in range(1 if self.shares_programs else self.concurrent_cells):
            devices = self.devices[i * self.devices_per_cell :]
            sampler_devices = devices[self.mesh_shape.devices :]
            sampler_mesh = (
                make_mesh(self.sampler_shape, sampler_devices) if self.sampler_shape else None
            )
            meshes.append((make_mesh(self.mesh_shape, devices), sampler_mesh))
        return meshes


def assign_devices(config: Config, num_cells: int) -> CellDevices:
    """InputError where the meshes do not fit the devices, or several processes cannot be one
    run."""
    run, max_staleness = config.run, config.cell.rl.max_staleness
    devices, processes = jax.devices(), jax.process_count()
    is_multiprocess = processes > 1
    trainers = processes - sampler_processes(config, processes)
    available = len(devices) * trainers // processes
    mesh_shape = parse_mesh(
        "data=-1" if run.mesh == "auto" and is_multiprocess else run.mesh, available
    )
    sampler_shape = None
    if run.sampler_mesh is not None:
        if max_staleness is None:
            raise InputError(
                f"run.sampler_mesh = {run.sampler_mesh} without cell.rl.max_staleness, by how many updates the sampler "
                "may run ahead of the trainer. Set cell.rl.max_staleness of 1 or more (with 0 one of them always waits "
                "for the other), or leave run.sampler_mesh out."
            )
        sampler_shape = parse_mesh(run.sampler_mesh, len(devices), mesh_shape.devices)
    if is_multiprocess:
        sampler_devices = sampler_shape.devices if sampler_shape else 0
        check_multi_process(config, mesh_shape.devices, sampler_devices, len(devices), processes)
        # Those of training first: of each process that trains, as many.
        ranks = {
            device: i for p in range(processes) for i, device in enumerate(jax.local_devices(p))
        }
        devices = sorted(
            devices,
            key=lambda d: d.process_index >= trainers or ranks[d] >= mesh_shape.devices // trainers,
        )
    one_cell = CellDevices(mesh_shape, sampler_shape, devices)
    device_groups = len(devices) // one_cell.devices_per_cell
    default_cells = device_groups
    if is_multiprocess:  # all processes work on one cell
        default_cells = 1
    elif jax.default_backend() == "cpu":  # simulated devices beyond the cores add nothing
        default_cells = min(device_groups, max(1, cores() // one_cell.devices_per_cell))
    return replace(
        one_cell, concurrent_cells=min(run.cells_at_once or default_cells, device_groups, num_cells)
    )


def make_device_budget(
    config: Config, pairs: list[tuple[int, int]], cell_devices: CellDevices, task: Task
) -> DeviceBudget:
    """What the sweep has to fit on this machine, whose memory the used devices of all its processes
    share."""
    cell, hostnames = config.cell, multiprocess.allgather(socket.gethostname())
    if config.run.device_memory:
        memory = int(config.run.device_memory * GIB)
    else:
        used_devices = cell_devices.devices_per_cell * cell_devices.concurrent_cells
        used_here = max(1, used_devices * hostnames.count(socket.gethostname()) // len(hostnames))
        memory = min(
            multiprocess.allgather(
                device_memory(jax.local_devices()[0]) or host_memory() // used_here
            )
        )
    policy = describe_sizes(cell.model, cell.model.vocab or task.vocab)
    backend = jax.default_backend()
    return DeviceBudget(
        cell, pairs, cell_devices.mesh_shape, policy, is_on_device(task), backend, memory
    )


def forecast_sweep(
    config: Config, cells: list[Cell], budget: DeviceBudget, cell_devices: CellDevices
) -> time_estimate.Forecast:
    """How long the sweep will take, by a short probe of the devices."""
    s, concurrent_cells = budget.sizes(config.sweep), cell_devices.concurrent_cells
    num_used = cell_devices.devices_per_cell * concurrent_cells
    devices = [
        device
        for device in cell_devices.devices[:num_used]
        if device.process_index == jax.process_index()
    ]
    matmul_rows = (s.shapes.slots, s.microbatch_tokens)
    compute_type = budget.cell.precision.compute
    cache_enabled = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)  # a dry run writes nothing
    try:
        rates = time_estimate.DeviceRates(
            *measure_rates(devices, matmul_rows, s.D, s.mlp_width, compute_type)
        )
    finally:
        jax.config.update("jax_enable_compilation_cache", cache_enabled)
    return time_estimate.forecast_from_rates(s, cells, config.sweep.budget, concurrent_cells, rates)


def start_jax(config: Config) -> None:
    """Configure jax before its first use: a device for every core of a CPU, and the persistent
    compilation cache."""
    silence_libtpu()
    reserve_gpu_memory()
    simulated = re.search(
        r"xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", "")
    )
    if not simulated:
        jax.config.update("jax_num_cpu_devices", cores())
    # XLA's threads on a CPU, which wait for those of other processes
    if config.run.sampler_mesh is not None:
        os.environ.setdefault("NPROC", str(4 * (int(simulated[1]) if simulated else cores())))
    if config.run.compilation_cache and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        cache_folder = (
            Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "isojax" / "xla"
        )
        jax.config.update("jax_compilation_cache_dir", str(cache_folder))


def resolve_config(config: Config, reads_weights: bool = True) -> Config:
    """The config with what its task's file brings along, its model's shape, read from its
    checkpoint if any, and its precision on this backend."""
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
    """The task of `cell.task`, with its verifier running; both end with the context."""
    task = build_task(config.cell, config.run.verifier_workers)
    model = config.cell.model
    if is_on_device(task):
        if model.path is not None and model.vocab != task.vocab:
            raise InputError(
                f"cell.task = {config.cell.task} has {task.vocab} tokens of its own, and the model in {model.path} has "
                f"{model.vocab} others; expected a text task with cell.model.path, such as cell.task=addition or "
                "cell.task=jsonl:FILE."
            )
        yield task
        return
    require_settings(config.cell, task, count_parameters, *LENGTHS)
    try:
        task.start_verifier()
        yield task
    finally:
        task.close()


def print_warnings(task: Task) -> None:
    """What is doubtful of tokenizer, chat template and lengths; the last lines of a plan, which a
    reader sees."""
    if not is_on_device(task) and multiprocess.is_primary():
        for warning in task.warnings:
            warn(warning)


@dataclass(frozen=True)
class SweepSetup:
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
        """Make or load the base policy and its problems; then save the config, as nothing can be
        refused any more. `on_failure` is called, from now on, when the verifier meets a kind of
        failure for the first time."""
        first_programs, folder = self.programs[0], self.folder
        if not is_on_device(self.task):
            self.task.start_verifier().on_failure = on_failure
        is_new_run = not (folder / CONFIG_FILE).exists()
        if multiprocess.is_primary() and (is_new_run or self._has_mended_verifier()):
            for name in (PROBLEMS_FILE, PARAMS_FILE):  # of settings that may have changed since
                (folder / BASE_FOLDER / name).unlink(missing_ok=True)
        if multiprocess.is_primary() and is_new_run:
            store_date(self.config.cell, folder / BASE_FOLDER)
        source = (
            Path(self.config.run.base_from) / BASE_FOLDER if self.config.run.base_from else None
        )
        base_policy = prepare_base_policy(folder / BASE_FOLDER, first_programs, on_progress, source)
        check_batch([pair for cell in self.cells for pair in cell.pairs], len(base_policy.training))
        if self.config.cell.data.attempts:  # else `check_problems` has said it
            _note_problem_counts(base_policy.training, base_policy.validation)
        if multiprocess.is_primary():
            save_config(self.config, folder / CONFIG_FILE)
            record_servers(self.config, first_programs, folder)
        return base_policy

    def _has_mended_verifier(self) -> bool:
        """Whether the verifier has changed before anything was recorded: its problems are chosen
        once more."""
        if is_on_device(self.task) or has_evaluations(self.folder):
            return False
        return bool(
            changed_verifier_files(self.folder / BASE_FOLDER, self.config.cell.verifier.use)
        )


@contextmanager
def open_sweep(
    config: Config, cells: list[Cell], resume: bool, role: Role | None = None
) -> Iterator[SweepSetup]:
    """Prepare a sweep, or refuse it by an InputError; its verifier ends with the context. Processes
    that only sample, where this one has a `role`, get the config with all sizes chosen."""
    folder = working_folder(config.run.dir, config.name)
    pairs = sorted({pair for cell in cells for pair in cell.pairs})
    algorithm.check_algorithm(config.cell.rl, cells)
    strategy.check(config, cells)
    multiprocess.run_on_primary(lambda: loggers.check_loggers(config.run.loggers))
    update_hooks.load_hook(config.run.on_update)
    check_engine(config, len(cells))
    cell_devices = assign_devices(config, len(cells))
    resolved_config = resolve_config(config)
    check_precision(resolved_config.cell.precision, cell_devices.mesh_shape, jax.default_backend())
    config = multiprocess.run_on_primary(lambda: config_for_folder(resolved_config, folder, resume))
    check_data(config.cell.data)
    with open_task(config) as task:
        is_new_run = not (folder / CONFIG_FILE).exists()
        check_problems(config, task, pairs, is_new_run)
        if not is_on_device(task):
            multiprocess.run_on_primary(lambda: check_text_settings(config.cell, folder))
        budget = make_device_budget(config, pairs, cell_devices, task)
        sweep = multiprocess.run_on_primary(
            lambda: autosize_sweep(config.sweep, budget, is_new_run)
        )
        meshes = cell_devices.meshes()
        fastest = select_attention(config.cell, sweep, meshes[0][0])
        if not budget.fits(fastest):  # sizes are chosen for kernels, which hold no scores
            undecided = fastest.model_copy(update={"forward_attention": sweep.forward_attention})
            fastest = with_kernels(undecided, budget.mesh, budget.backend, config.cell)
        sweep = multiprocess.broadcast(fastest)
        rollouts = RolloutOptions(
            engine=config.run.rollouts,
            has_hook=config.run.on_update is not None,
            server=config.run.server,
            eval_server=config.run.eval_server,
            run_name=config.name,
        )
        programs = [
            SweepPrograms(config.cell, sweep, pairs, mesh, task, sampler, role, rollouts)
            for mesh, sampler in meshes
        ]
        if cell_devices.shares_programs:
            programs = programs * cell_devices.concurrent_cells
        multiprocess.run_on_primary(lambda: check_servers(config, programs[0], folder))
        final_config = config.model_copy(update={"sweep": sweep})
        for link in role.assigned_peers if role else ():
            link.send(("sweep", final_config))
        yield SweepSetup(final_config, cells, folder, task, budget, cell_devices, programs)


def check_engine(config: Config, num_cells: int) -> None:
    """InputError where the engines of training and evaluations are not there, or cannot sample for
    this sweep."""
    run, cell = config.run, config.cell
    load_engine(run.rollouts)
    if run.rollouts != LOCAL_ROLLOUTS and cell.rl.max_staleness is not None:
        problem = (
            f"run.rollouts = {run.rollouts} and cell.rl.max_staleness = {cell.rl.max_staleness}"
        )
        raise InputError(
            f"{problem}: isojax's own engine alone samples ahead of the trainer. Leave one of them out."
        )

    settings = {"run.rollouts": run.rollouts, "run.eval_server": run.eval_server or LOCAL_ROLLOUTS}
    for name, engine in settings.items():
        if engine == LOCAL_ROLLOUTS:
            continue
        if multiprocess.is_multiprocess():
            raise InputError(
                f"{name} = {engine} in a run of several processes; expected one process, or local."
            )
        if num_cells > 1 and run.cells_at_once != 1:
            problem = (
                f"{name} = {engine} holds one policy at a time, and the sweep has {num_cells} runs"
            )
            raise InputError(
                f"{problem}; add run.cells_at_once=1, so that they train one after the other."
            )


def check_problems(
    config: Config, task: Task, pairs: list[tuple[int, int]], is_new_run: bool = True
) -> None:
    """InputError where problems do not fit the sampler, do not suffice for a batch or cannot be
    graded; in a new run also where no response can be right."""
    cell, data = config.cell, config.cell.data
    if not is_on_device(task):
        require_settings(cell, task, count_parameters, LEARNING_RATE)
    try:
        selection = select_problems(cell, task)
    except LabelsNeeded as e:
        (problem_sets,) = e.args
        remaining = len(problem_sets[0]) - (0 if data.held_out else data.validation)
        check_batch(pairs, min(remaining, data.size or remaining))
    else:
        check_batch(pairs, len(selection.training))
        _note_problem_counts(selection.training, selection.validation)
        problem_sets = [selection.training, selection.validation, *selection.extra_sets.values()]
    if not is_on_device(task):
        check_references(cell, task, problem_sets, refuse=is_new_run)
    for problems in problem_sets:
        if not is_on_device(task):
            task.check_problems(problems)
        elif problems:
            tokenize(task, cell.sampling, problems)


def check_text_settings(cell: CellConfig, folder: Path) -> None:
    """A warning of labels made with other settings; InputError where the verifier of a sweep that
    has recorded an evaluation has changed. Before, it may be mended: nothing was judged by the old
    one but problems (`prepare`)."""
    warn_of_other_labels(cell)
    if has_evaluations(folder):
        check_verifier_files(folder / BASE_FOLDER, cell.verifier.use)


def has_evaluations(folder: Path) -> bool:
    """Whether a run of the sweep in this folder has recorded any, in a line after the header of its
    ledger."""
    return any(
        path.read_bytes().count(b"\n") > 1 for path in paths_below(folder / "cells", RECORDS_FILE)
    )


def _note_problem_counts(training: Sequence[Problem], validation: Sequence[Problem]) -> None:
    if multiprocess.is_primary():
        note(
            f"{len(training):,} problems train, {len(validation):,} validate (cell.data.validation)"
        )


def check_precision(precision: PrecisionConfig, mesh_shape: MeshShape, backend: str) -> None:
    """InputError where XLA:CPU would abort: it cannot compile all bfloat16 sums over devices of
    these axes."""
    axis, size = max(
        (("sequence", mesh_shape.sequence), ("fsdp", mesh_shape.fsdp)), key=lambda axis: axis[1]
    )
    if (backend, precision.compute) == ("cpu", "bfloat16") and size > 1:
        problem = (
            f"cell.precision.compute=bfloat16 on a mesh with {axis}={size}: a CPU cannot train so"
        )
        raise InputError(
            f"{problem}; expected float32 (or auto, which is float32 on a CPU), or a mesh without {axis}."
        )


def check_data(data: DataConfig) -> None:
    """InputError where no training and validation set can be made of these numbers."""
    low, high = data.difficulty
    if low > high:
        raise InputError(
            f"cell.data.difficulty: given [{low}, {high}], expected the lower end first."
        )
    if data.candidates < 2 * data.validation and not (data.held_out or data.mixture):
        problem = (
            f"cell.data.candidates = {data.candidates} and cell.data.validation = {data.validation}"
        )
        raise InputError(f"{problem}; expected at least twice as many candidates as are held out.")


def check_batch(pairs: list[tuple[int, int]], problems: int) -> None:
    """InputError where a batch takes more problems than there are, or can be, to train on."""
    B_p = max(B_p for B_p, _ in pairs)
    if B_p > problems:
        raise InputError(
            f"sweep.B_p holds {B_p}, and the training set has {max(problems, 0)} problems, of which a batch takes each "
            "once. Lower B_p or cell.data.validation, or raise cell.data.candidates or cell.data.size."
        )
