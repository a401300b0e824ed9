"""`isojax launch`: the cells of a sweep, the fit of its runs, and the report."""

import importlib
from pathlib import Path
from typing import Annotated

from typer import Option

from isojax.cli import options
from isojax.cli.commands.fit_command import print_fit
from isojax.cli.commands.recommend_command import print_recommendation
from isojax.cli.commands.report_command import draw_report, print_gains
from isojax.cli.formatting import print_line, warn
from isojax.cli.saved_fits import make_fit
from isojax.core.config import Config
from isojax.core.errors import InputError, RunFailed
from isojax.launch.process_group import ProcessGroup, parse_process_group
from isojax.report.console import SafeConsole
from isojax.runs.workspace import display_path, remote_workspace, working_folder
from isojax.scaling.allocate.recommend import recommend
from isojax.scaling.result import FitResult

TOPOLOGY_HELP = "With --dry-run: compile for TPUs that are not here, such as v5e:4x4, and say what fits."
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
    no_report: Annotated[bool, Option("--no-report", help=NO_REPORT_HELP)] = False,
) -> None:
    """Run a sweep over (B_p, n), then fit the law and write the report.

    CONFIG is a YAML file, or the name of one in ./configs or among those isojax brings; the settings of later configs
    replace those of earlier ones.

    Without CONFIG: quickstart.

    \b
    Examples
      isojax launch                               the quickstart
      isojax launch quickstart --dry-run          what would run, what it takes and how long
      isojax launch gsm8k models/llama-3.1-8b-instruct --dry-run --topology v5e:4x4 --mesh fsdp=4,tensor=4
      isojax launch --resume sweep.budget=500000  go on with twice the budget
      isojax launch my.yaml --mesh data=4,tensor=2 'sweep.n=[2,4,8]' name=mine
      isojax launch gsm8k models/qwen2.5-7b-instruct cell.model.path=FOLDER
      isojax launch my.yaml --processes auto --mesh fsdp=-1      on every host of a TPU pod, or by srun: docs/hosts.md
      isojax launch my.yaml --ray auto run.process_group.tpu=v5e:4x4   cells on TPU slices: docs/clusters.md
    """
    config = options.read_config(words, mesh, "quickstart", ray)
    process_group = parse_process_group(coordinator, processes, process)
    if topology is not None:
        if not dry_run:
            raise InputError(f"--topology {topology} runs nothing and --dry-run is not given; expected both together.")
        importlib.import_module("isojax.launch.local.compile_for_topology").compile_for_topology(config, topology)
        return
    with remote_workspace(config.run.dir, config.name, process_group.is_multi_process, dry_run):
        _run_sweep(config, resume, dry_run, process_group, not no_report)


def _run_sweep(config: Config, resume: bool, dry_run: bool, process_group: ProcessGroup, with_report: bool) -> None:
    """The cells, the fit, the report. What ran is fitted and reported where some cells failed, too."""
    on_ray = config.run.ray is not None
    runner = importlib.import_module("isojax.launch.ray.ray_driver" if on_ray else "isojax.launch.local.local_runner")
    run_failure: RunFailed | None = None
    try:
        sweep_dir: Path | None = runner.launch(config, resume, dry_run, process_group)
    except RunFailed as e:
        if process_group.is_multi_process:
            raise
        run_failure, sweep_dir = e, working_folder(config.run.dir, config.name)
    if dry_run or sweep_dir is None:
        return
    try:
        fit = make_fit([sweep_dir], None, "rollouts")
        report_path = draw_report(sweep_dir, fit) if with_report else None
    except InputError as e:
        raise run_failure or RunFailed(
            f"the cells ran and are recorded in {sweep_dir}, but the fit or the report failed: {e}"
        ) from e
    console = SafeConsole()
    print_fit(console, fit)
    _print_recommendations(console, config, fit)
    print_gains(console, sweep_dir)
    if report_path is not None:
        print_line(f"report: {display_path(report_path)}")
    if run_failure is not None:
        raise run_failure


def _print_recommendations(console: SafeConsole, config: Config, fit: FitResult) -> None:
    """How to spend the sweep's own budget per cell, and 4 times as much."""
    for budget in (config.sweep.budget, 4 * config.sweep.budget):
        try:  # runs end at their last evaluation, so 4 times the budget may be more than 4 times what was measured
            print_recommendation(console, recommend(fit, budget, extrapolate=True), budget)
        except InputError as e:  # the sweep and its fit are there, only this budget has no answer
            warn(f"no recommendation for {budget} rollouts: {e}")
