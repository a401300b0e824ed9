"""Train one run: a config whose sweep has one (B_p, n) and one seed."""

import importlib

from isojax.cli import options
from isojax.cli.formatting import print_line, warn_of_start
from isojax.core.config import WHOLE_GRID, Config
from isojax.core.errors import InputError
from isojax.core.terminal import warn
from isojax.launch.planner import plan_cells
from isojax.launch.process_group import parse_process_group
from isojax.report.console import SafeConsole
from isojax.report.gains import report_gains
from isojax.runs.ledger import read_runs
from isojax.runs.mirror import remote_workspace

IS_RUN = True  # for command_files.py


def train(
    words: options.ConfigArguments = None,
    mesh: options.MeshOption = None,
    resume: options.ResumeOption = False,
    dry_run: options.DryRunOption = False,
    processes: options.ProcessCountOption = None,
    process: options.ProcessIndexOption = None,
    coordinator: options.CoordinatorOption = None,
) -> None:
    """Train one run: a config whose sweep has one (B_p, n) and one seed. It is recorded in
    runs/<name>/cells/.

    \b
    Examples
      isojax train quickstart name=one 'sweep.B_p=[16]' 'sweep.n=[8]' sweep.seeds=1
      isojax train best.yaml      from: isojax recommend RUN --budget C --write best.yaml
    """
    config = options.read_config(words, mesh, None)
    if config.sweep.strategy != "grid":
        # A strategy divides a budget among runs; one run goes to the end of its own.
        config = config.with_settings(sweep=WHOLE_GRID)
    _check_single_run(config)
    process_group = parse_process_group(coordinator, processes, process)

    # Imported here, because it imports jax.
    runner = importlib.import_module("isojax.launch.local.local_runner")
    # Where run.dir is a URL, a folder here stands for it, and is uploaded as it is written.
    with remote_workspace(config.run.dir, config.name, process_group.is_multi_process, dry_run):
        folder = runner.launch(config, resume, dry_run, process_group)

        # Of several processes, only the one that writes the run's files gets their folder.
        if folder is not None and not dry_run:
            report_gains(SafeConsole(), folder, read_runs([folder], warn))
            print_line(f"run: {folder}")
            warn_of_start(folder)  # what was doubtful before the first update, once more


def _check_single_run(config: Config) -> None:
    cells = plan_cells(config.sweep)
    if len(cells) > 1:
        choice = f"sweep.B_p=[{cells[0].B_p}] sweep.n=[{cells[0].n}] sweep.seeds=1"
        raise InputError(
            found=f"this config holds {len(cells)} runs and `isojax train` runs one",
            fix=f"Choose it, for example by {choice}, or run them all by `isojax launch`.",
        )
