"""`isojax train`: one run."""

from __future__ import annotations

from rich.console import Console

from isojax.cli.commands.report_command import print_gains
from isojax.cli.config_options import (
    ConfigArguments,
    CoordinatorOption,
    MeshOption,
    ProcessCountOption,
    ProcessIndexOption,
    read_config,
)
from isojax.cli.lazy_commands import load_module, new_app
from isojax.cli.options import ResumeOption
from isojax.launch.process_group import parse_process_group
from isojax.runs.workspace import display_path, remote_workspace

app = new_app()


@app.command()
def train(
    words: ConfigArguments = None,
    mesh: MeshOption = None,
    resume: ResumeOption = False,
    processes: ProcessCountOption = None,
    process: ProcessIndexOption = None,
    coordinator: CoordinatorOption = None,
) -> None:
    """Train one run: a config whose sweep is a single cell. It is recorded as a sweep's cell is: runs/<name>/cells/.

    \b
    [bold]Examples[/bold]
      isojax train quickstart name=one 'sweep.B_p=\\[16]' 'sweep.n=\\[8]' sweep.seeds=1
      isojax train best.yaml      from: isojax recommend RUN --budget C --write best.yaml
    """
    config = read_config(words, mesh, None)
    process_group = parse_process_group(coordinator, processes, process)
    runner = load_module("isojax.launch.local.local_runner")
    with remote_workspace(config.run.dir, config.name, process_group.is_multi_process):
        folder, console = runner.train(config, resume, process_group), Console()
        if folder is None:
            return
        print_gains(console, folder)
        console.print(f"run: {display_path(folder)}", soft_wrap=True, highlight=False, markup=False)
