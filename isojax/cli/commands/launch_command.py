"""`isojax launch`: the cells of a sweep, the fit of its runs, and the report."""

import importlib
from pathlib import Path
from typing import Annotated

from typer import Option

from isojax.cli import options
from isojax.cli.formatting import warn_of_start
from isojax.core.config import Config
from isojax.core.errors import InputError, RunFailed
from isojax.launch.display import print_line
from isojax.launch.process_group import ProcessGroup, parse_process_group
from isojax.runs.mirror import remote_workspace, working_folder

TOPOLOGY_HELP = "With --dry-run: choose sizes that fit TPUs that are not here, such as v5e:4x4, by their compiler."
COMPILE_HELP = (
    "With --dry-run: compile for the devices here, and show the memory by their compiler beside the estimate. With "
    "--ray on TPU slices a sweep's programs are compiled before any slice is asked for, unless --no-compile."
)
NO_REPORT_HELP = "Train and fit; draw no figures (isojax report RUN does that later)."


def launch(
    words: options.ConfigArguments = None,
    mesh: options.MeshOption = None,
    ray: options.RayOption = None,
    resume: options.ResumeOption = False,
    dry_run: options.DryRunOption = False,
    processes: options.ProcessCountOption = None,
    process: options.ProcessIndexOption = None,
    coordinator: options.CoordinatorOption = None,
    topology: Annotated[str | None, Option(metavar="KIND:SHAPE", help=TOPOLOGY_HELP)] = None,
    compile_first: Annotated[
        bool | None, Option("--compile/--no-compile", help=COMPILE_HELP)
    ] = None,
    no_report: Annotated[bool, Option("--no-report", help=NO_REPORT_HELP)] = False,
) -> None:
    """Run a sweep over (B_p, n), then fit the law and write the report.

    CONFIG is a YAML file, or the name of one in ./configs or among those isojax brings; the
    settings of later configs replace those of earlier ones.

    Without CONFIG: quickstart. All settings, their defaults and what they mean: isojax settings.

    \b
    Examples
      isojax launch                               the quickstart
      isojax launch quickstart --dry-run          what would run, what it takes and how long
      isojax launch quickstart --dry-run --compile   the same, its memory by the compiler
      isojax launch gsm8k models/qwen2.5-7b-instruct --dry-run --topology v5e:4x4 --mesh fsdp=4,tensor=4
      isojax launch --resume sweep.budget=278000  go on with twice the budget
      isojax launch my.yaml --mesh data=4,tensor=2 'sweep.n=[2,4,8]' name=mine
      isojax launch gsm8k models/qwen2.5-7b-instruct cell.model.path=FOLDER
      isojax launch my.yaml run.rollouts=server run.server.url=URL run.server.weights=DIR   by a server: docs/servers.md
      isojax launch my.yaml --processes auto --mesh fsdp=-1      on every host of a TPU pod, or by srun: docs/hosts.md
      isojax launch my.yaml --ray auto run.process_group.tpu=v5e:4x4   runs on TPU slices: docs/clusters.md
    """
    config = options.read_config(words, mesh, "quickstart", ray)
    importlib.import_module("isojax.launch.strategy").check_evaluations(config)
    process_group = parse_process_group(coordinator, processes, process)
    if topology is not None:
        if not dry_run:
            raise InputError(
                f"--topology {topology} runs nothing and --dry-run is not given; expected both together."
            )
        importlib.import_module("isojax.launch.local.compile_for_topology").compile_for_topology(
            config, topology
        )
        return
    check_compile_option(config, dry_run, compile_first)
    with remote_workspace(config.run.dir, config.name, process_group.is_multi_process, dry_run):
        sweep_dir, run_failure = run_cells(config, resume, dry_run, process_group, compile_first)
        if dry_run and config.run.ray is not None:  # the driver of a run never imports jax
            print_line(
                importlib.import_module("isojax.rl.algorithm").describe_algorithm(config.cell.rl)
            )
        if dry_run or sweep_dir is None:
            return
        try:  # what ran is fitted and reported where some cells failed, too
            report = importlib.import_module("isojax.cli.commands.report_command")
            report.fit_and_report(sweep_dir, not no_report)
        except InputError as e:
            failure = RunFailed(
                f"the cells are recorded in {sweep_dir}; the fit or report failed: {e}"
            )
            raise run_failure or failure from e
        warn_of_start(sweep_dir)
        if run_failure is not None:
            raise run_failure


def check_compile_option(config: Config, dry_run: bool, compile_first: bool | None) -> None:
    """InputError where nothing would be compiled before the run itself is."""
    on_slices = config.run.ray is not None and config.run.process_group.tpu is not None
    if compile_first is None or on_slices:
        return
    option = "--compile" if compile_first else "--no-compile"
    if config.run.ray is not None:
        problem = f"{option} with --ray and without run.process_group.tpu: only for a named TPU slice is one compiled"
        raise InputError(
            f"{problem} before the run; expected such as run.process_group.tpu=v5e:4x4, or no {option}."
        )
    if not dry_run:
        problem = f"{option} without --dry-run: a run here compiles as it begins"
        raise InputError(f"{problem}; expected both together, or no {option}.")


def run_cells(
    config: Config,
    resume: bool,
    dry_run: bool,
    process_group: ProcessGroup,
    compile_first: bool | None = None,
) -> tuple[Path | None, RunFailed | None]:
    """Run the cells, here or on a Ray cluster; the sweep's folder (None where another process
    writes to it), and the error that names the cells that failed, if any. `compile_first`: as the
    option says, None where it is not given."""
    on_ray = config.run.ray is not None
    runner = importlib.import_module(
        "isojax.launch.ray.ray_driver" if on_ray else "isojax.launch.local.local_runner"
    )
    try:
        return runner.launch(config, resume, dry_run, process_group, compile_first), None
    except RunFailed as e:
        if process_group.is_multi_process:
            raise
        return working_folder(config.run.dir, config.name), e
