"""A sweep on a Ray cluster: each cell runs in a group of processes that Ray places and kills as a
whole, and that starts again from the newest checkpoint.

The driver never imports jax, so it claims no accelerator.
"""

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from isojax.core import preemption
from isojax.core.config import Config
from isojax.core.errors import InputError
from isojax.core.machine import cores
from isojax.core.registry import import_extra
from isojax.core.terminal import note, warn
from isojax.launch import strategy
from isojax.launch.cell_failures import raise_cell_failures
from isojax.launch.display import Display, print_cells, print_line
from isojax.launch.idle_starts import count_start
from isojax.launch.packing.pack_file import pack_bytes
from isojax.launch.packing.pack_plan import plan_pack, with_host_paths_in
from isojax.launch.planner import plan_cells
from isojax.launch.process_group import SINGLE_PROCESS, ProcessGroup
from isojax.launch.prompt_date import describe_date, with_new_date
from isojax.launch.ray.check_on_slice import check_on_slice
from isojax.launch.ray.checkpoint_room import plan_room
from isojax.launch.ray.placement import process_group_spec, require_capacity
from isojax.launch.ray.scheduler import RayScheduler
from isojax.launch.resume import BASE_FOLDER, holds_run, print_remaining
from isojax.runs.folder_check import trial_folder
from isojax.runs.mirror import working_folder
from isojax.runs.storage import error_summary, exclusive_lock, run_in_thread
from isojax.tasks.context_limit import describe_excess

# Values of run.ray, beside HOST:PORT.
LOCAL = "local"
AUTO = "auto"
CONNECT_TIMEOUT = 20.0  # seconds in which a cluster answers
# environment variables of Ray >= 2.52
AUTH_MODE = "RAY_AUTH_MODE"
AUTH_TOKEN = "RAY_AUTH_TOKEN"


def launch(
    config: Config,
    resume: bool,
    dry_run: bool,
    process_group: ProcessGroup = SINGLE_PROCESS,
    compile_first: bool | None = None,
) -> Path:
    """Run every cell (run) of the sweep that is not finished on the cluster of `run.ray`.

    Returns the sweep's folder. resume: whether to go on with a run that the folder holds. dry_run:
    print the plan, and train nothing. process_group: has to be a single process. compile_first:
    whether programs for a TPU slice are compiled before; None: in a new run. InputError before any
    work, where the cluster does not answer, cannot hold a process group, or the sweep does not fit
    a slice's chips. RunFailed at the end names the cells that failed; Preempted after SIGTERM or
    Ctrl-C.
    """
    _refuse_other_launchers(config, process_group)
    cells = plan_cells(config.sweep)
    folder = working_folder(config.run.dir, config.name).absolute()
    is_new_run = not holds_run(folder, resume or dry_run)
    if is_new_run:
        # One date for all nodes; a run that goes on has its own.
        config = with_new_date(config, folder / BASE_FOLDER)
    strategy.check(config, cells)

    # Refused before a cluster is asked: what the config refers to goes to every process of it. The
    # processes of this machine alone work in this folder.
    plan = None
    if config.run.ray != LOCAL:
        plan = plan_pack(config, is_shared=True)

    with connect_ray(config.run.ray or LOCAL) as ray:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        spec = process_group_spec(config, nodes)
        num_groups = require_capacity(spec, nodes)
        concurrent_groups = min(num_groups, len(cells), config.run.cells_at_once or len(cells))

        print_cells(config, cells, folder)
        print_line(
            f"{concurrent_groups} process groups at once on {len(nodes)} nodes, each of {spec}"
        )
        if plan is not None:
            print_line(f"{plan.summary}, go to each process (isojax pack --list --shared)")
            for text in plan.notes:
                note(text)
        date_line = describe_date(config.cell)
        if date_line:
            print_line(date_line)
        # The process that finds out how large they are takes seconds: a policy without a model's
        # folder is small.
        if dry_run or config.cell.model.path is not None:
            config = plan_room(config, cells, folder, concurrent_groups)
        if dry_run:
            print_remaining(config, folder, resume)
        if config.cell.model.path:
            excess = describe_excess(Path(config.cell.model.path), config.cell.sampling)
            if excess:
                warn(excess)

        compiles = is_new_run and not dry_run if compile_first is None else compile_first
        if compiles and config.run.process_group.tpu is not None:
            check_on_slice(config)

        if not dry_run:
            with (
                exclusive_lock(folder),
                Display(config) as display,
                preemption.end_after(config.run.time_limit_seconds),
                preemption.handle_sigterm(),
            ):
                with trial_folder(folder):  # for its InputError
                    count_start(folder, config.run.max_idle_starts)
                pack = None
                if plan is not None:
                    pack = ray.put(pack_bytes(plan))
                    config = with_host_paths_in(plan.config, os.getcwd())
                failures = RayScheduler(ray, config, cells, folder, spec, display, pack).run()
            raise_cell_failures(failures, len(cells), folder)
    return folder


def _refuse_other_launchers(config: Config, process_group: ProcessGroup) -> None:
    """InputError for processes and meshes that only a run without Ray can have."""
    if process_group.is_multi_process:
        raise InputError(
            found="--ray starts the processes of its process groups itself",
            fix="Leave out --processes, --process and --coordinator.",
        )
    if config.run.sampler_mesh is not None and not config.run.sampler_processes:
        raise InputError(
            where=f"--ray with run.sampler_mesh = {config.run.sampler_mesh}",
            found="a process under Ray trains or samples",
            fix=(
                "Say by run.sampler_processes how many only sample, or leave run.sampler_mesh out."
            ),
        )


@contextmanager
def connect_ray(address: str) -> Iterator[Any]:
    """The module ray, connected to a cluster until the context ends.

    address: "local", a new cluster of this machine alone; "auto", the one that this machine is a
    node of; or HOST:PORT. InputError where ray is not installed, or no cluster answers.
    """
    # Ray reads these when it is imported.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # a thread that is late does not start another Ray
    # A process that asks for no GPU keeps the environment's choice of devices.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Processes that Ray starts here are the work of this machine, not something beside it.
    os.environ.setdefault("RAY_worker_niceness", "0")
    if address == LOCAL:
        # It listens at all addresses of this host: nobody without the token may run code in it.
        os.environ[AUTH_MODE] = "token"
        os.environ.setdefault(AUTH_TOKEN, secrets.token_hex(32))

    # InputError, of "--ray", says that isojax[ray] is to be installed for the module ray.
    ray = import_extra("ray", "--ray", "ray")
    init_options: dict[str, Any] = {
        "logging_level": "ERROR",
        "log_to_driver": False,
        "namespace": "isojax",
    }
    if address == LOCAL:
        try:
            ray.init(address=LOCAL, num_cpus=cores(), include_dashboard=False, **init_options)
        except (OSError, RuntimeError, ValueError) as e:  # Ray's own are among them
            raise InputError(
                where="--ray local",
                found=f"Ray cannot start ({error_summary(e)})",
                fix="Correct it, or leave it out.",
            ) from e
    else:
        _connect_to_cluster(ray, address, init_options)
        _warn_if_open(ray.get_runtime_context().gcs_address)

    try:
        yield ray
    finally:
        ray.shutdown()


def _connect_to_cluster(ray: Any, address: str, init_options: dict[str, Any]) -> None:
    """Connect to the cluster at HOST:PORT or `auto`.

    init_options: further arguments of ray.init. InputError where it does not answer within
    CONNECT_TIMEOUT.
    """
    host, _, port = address.rpartition(":")
    if address != AUTO and (not host or "/" in host or not port.isdecimal()):
        raise InputError(
            where="--ray",
            found=f"given {address!r}",
            expected="local, auto, or HOST:PORT of the cluster that this machine is a node of",
            fix=(
                "From a machine that is none, hand it in: ray job submit --address "
                "http://HEAD:8265 --working-dir . -- isojax launch ... --ray auto."
            ),
        )

    # In a thread: Ray tries for a minute and more, and cannot be interrupted.
    def connect() -> None:
        if address != AUTO:  # fails at once where nothing listens
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        ray.init(address=address, **init_options)

    try:
        error = run_in_thread(connect).exception(CONNECT_TIMEOUT)
    except TimeoutError:
        error = TimeoutError(f"no answer in {CONNECT_TIMEOUT:.0f} seconds")
    if error is not None:
        location = "that this machine is a node of" if address == AUTO else f"at {address}"
        raise InputError(
            where=f"--ray {address}",
            found=f"no Ray cluster {location} ({error_summary(error)})",
            fix=(
                "Start one by `ray start --head --port=6379`, join it by `ray start "
                "--address=HOST:6379`, or run on this machine alone by --ray local. A cluster "
                f"that asks for a token is reached with {AUTH_MODE}=token and its {AUTH_TOKEN}."
            ),
        ) from error


def _warn_if_open(gcs_address: str) -> None:
    """Warn where the cluster answers a process that has no token. gcs_address: its HOST:PORT."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check"]
    command += ["--address", gcs_address]
    without_token = {**os.environ, AUTH_MODE: "disabled"}
    try:
        check_without_token = subprocess.run(
            command, env=without_token, capture_output=True, timeout=CONNECT_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return

    if check_without_token.returncode == 0:
        print_line(
            f"warning: whoever reaches the Ray cluster at {gcs_address} may run code on it: it asks"
            f" for no token. Set {AUTH_MODE}=token and one {AUTH_TOKEN} on all its nodes"
            " (docs/clusters.md)."
        )
