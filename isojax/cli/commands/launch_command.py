"""Run a sweep over (B_p, n), then fit the law and write the report."""

import importlib
from pathlib import Path
from typing import Annotated, NamedTuple

from typer import Option

from isojax.cli import options
from isojax.cli.formatting import warn_of_start
from isojax.core.config import Config
from isojax.core.cycle_collection import cycle_collection_paused
from isojax.core.errors import InputError, RunFailed
from isojax.launch.display import print_line
from isojax.launch.evaluation_checks import check_evaluations
from isojax.launch.process_group import ProcessGroup, parse_process_group
from isojax.runs.mirror import remote_workspace, working_folder

IS_RUN = True  # for command_files.py

TOPOLOGY_HELP = (
    "With --dry-run: the plan for TPUs that are not here, such as v5e:4x4, by an estimate; with "
    "--compile by their compiler."
)
PRICE_HELP = "With --topology: what an hour of one chip costs; the plan has the price of each part."
COMPILE_HELP = (
    "With --dry-run: compile for the devices here, or for those of --topology, and compare "
    "their compiler's memory with the estimate. With --ray on TPU slices a sweep's programs are "
    "compiled before any slice is asked for, unless --no-compile."
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
    price: Annotated[float | None, Option(min=0, metavar="MONEY", help=PRICE_HELP)] = None,
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
      isojax launch gsm8k models/qwen2.5-7b-instruct --dry-run --topology v5e:4x4\
 --mesh fsdp=4,tensor=4
      isojax launch gsm8k models/qwen2.5-7b-instruct --dry-run --topology v5e:4x4 --compile\
   by their compiler, minutes
      isojax launch --resume sweep.budget=278000  go on with twice the budget
      isojax launch my.yaml --mesh data=4,tensor=2 'sweep.n=[2,4,8]' name=mine
      isojax launch gsm8k models/qwen2.5-7b-instruct cell.model.path=FOLDER
      isojax launch my.yaml run.rollouts=server run.server.url=URL run.server.weights=DIR\
   by a server: docs/servers.md
      isojax launch my.yaml --processes auto --mesh fsdp=-1\
      on every host of a TPU pod, or by srun: docs/hosts.md
      isojax launch my.yaml --ray auto run.process_group.tpu=v5e:4x4\
   runs on TPU slices: docs/clusters.md

    \b
    Exit codes (docs/faults.md)
      0    all runs are done
      1    a run failed, or an error
      2    refused, before any work
      75   another process of the run was lost: start all again with --resume
      130  Ctrl-C: go on by --resume
      143  SIGTERM or run.time_limit; the state is saved: go on by --resume
    """
    # What takes seconds to import, SciPy and jax, is imported where it is used: a refusal is quick.
    config = options.read_config(words, mesh, "quickstart", ray)
    # InputError where no cell will have as many evaluations as a fit needs; some: a warning.
    check_evaluations(config)
    process_group = parse_process_group(coordinator, processes, process)

    if topology is not None:
        if not dry_run:
            raise InputError(
                where="--topology",
                found=f"given {topology} without --dry-run, and it runs nothing",
                expected="both together",
            )
        if compile_first:
            compiler = importlib.import_module("isojax.launch.local.compile_for_topology")
            compiler.compile_for_topology(config, topology, price)
            return
        # All that it takes is imports, and what is made of the plan until the process ends.
        with cycle_collection_paused():
            planner = importlib.import_module("isojax.launch.local.topology_plan")
            planner.estimate_for_topology(config, topology, price)
        return

    if price is not None:
        raise InputError(
            where="--price",
            found=f"given {price:g} without --topology, by which chips are counted",
            expected="such as --dry-run --topology v5e:4x4 --price 1.2",
        )
    check_compile_option(config, dry_run, compile_first)
    # Where run.dir is a URL, a folder here stands for it, and is uploaded as it is written.
    with remote_workspace(config.run.dir, config.name, process_group.is_multi_process, dry_run):
        outcome = run_cells(config, resume, dry_run, process_group, compile_first)
        if dry_run and config.run.ray is not None:
            # A plan says how it trains; the driver of a cluster cannot, as it never imports jax.
            algorithm = importlib.import_module("isojax.rl.algorithm")
            print_line(algorithm.describe_algorithm(config.cell.rl))

        if not dry_run and outcome.folder is not None:
            _fit_what_ran(outcome.folder, outcome.failure, with_report=not no_report)


def _fit_what_ran(sweep_dir: Path, failure: RunFailed | None, with_report: bool) -> None:
    """Fit and report the cells that ran; the `failure` of others, if any, is raised last, so that
    what ran is not lost for it. RunFailed where the fit or report itself cannot be made."""
    report = importlib.import_module("isojax.cli.commands.report_command")
    try:
        report.fit_and_report(sweep_dir, with_report)
    except InputError as e:
        fit_failure = RunFailed(
            f"the cells are recorded in {sweep_dir}; the fit or report failed: {e}"
        )
        raise failure or fit_failure from e

    warn_of_start(sweep_dir)  # what was doubtful before the first updates, once more
    if failure is not None:
        raise failure


def check_compile_option(config: Config, dry_run: bool, compile_first: bool | None) -> None:
    """InputError where --compile or --no-compile has no effect.

    That is: where nothing would be compiled before the run itself is. compile_first: True of
    --compile, False of --no-compile, None where neither is given.
    """
    on_slices = config.run.ray is not None and config.run.process_group.tpu is not None
    if compile_first is None or on_slices:
        return

    option = "--compile" if compile_first else "--no-compile"
    if config.run.ray is not None:
        raise InputError(
            where=f"{option} with --ray and without run.process_group.tpu",
            found="only for a named TPU slice is one compiled before the run",
            expected=f"such as run.process_group.tpu=v5e:4x4, or no {option}",
        )
    if not dry_run:
        raise InputError(
            where=f"{option} without --dry-run",
            found="a run here compiles as it begins",
            expected=f"both together, or no {option}",
        )


class RunOutcome(NamedTuple):
    """What became of the cells that a command ran."""

    folder: Path | None  # the sweep's; None where another process writes to it
    failure: RunFailed | None = None  # it names the cells that failed, if any


def run_cells(
    config: Config,
    resume: bool,
    dry_run: bool,
    process_group: ProcessGroup,
    compile_first: bool | None = None,
) -> RunOutcome:
    """Run the cells of a config's sweep, here or on a Ray cluster (`run.ray`).

    resume: go on with what is in the sweep's folder. dry_run: show the plan alone.
    process_group: of which processes this one is one (docs/hosts.md). compile_first: as the option
    --compile says, None where it is not given.

    That cells failed is in the outcome, for there may be others to report. RunFailed where several
    processes run them: then each process ends with it.
    """
    on_ray = config.run.ray is not None
    with cycle_collection_paused():
        runner = importlib.import_module(
            "isojax.launch.ray.ray_driver" if on_ray else "isojax.launch.local.local_runner"
        )
    try:
        return RunOutcome(runner.launch(config, resume, dry_run, process_group, compile_first))
    except RunFailed as e:
        if process_group.is_multi_process:
            raise
        return RunOutcome(working_folder(config.run.dir, config.name), e)
