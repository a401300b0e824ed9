"""The command line: `isojax launch|train|status|records|fit|recommend|report|curve|compare`, `python -m isojax.launch`
and
`-m isojax.train`.

It loads what a command needs when it runs, so that only launch and train load jax. Whatever a user can mend is an
InputError anywhere below: one line `error: ...` on standard error and exit code 2. With --json, standard output holds
one JSON document and nothing else.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from rich.console import Console

from benchmarks.bandit.command import bandit
from isojax import __version__
from isojax.cli.compare_command import compare
from isojax.cli.config_options import (
    ConfigArguments,
    CoordinatorOption,
    MeshOption,
    ProcessCountOption,
    ProcessIndexOption,
    RayOption,
    read_config,
)
from isojax.cli.difficulty_command import difficulty
from isojax.cli.fit_curve_command import FrontierOption, WhereOption, curve, fit_frontier_file, reject_run_options
from isojax.cli.formatting import print_fit
from isojax.cli.lr_search_command import lr_search
from isojax.cli.model_command import app as model_app
from isojax.cli.recommend_command import print_recommendation, recommend
from isojax.cli.records_command import app as records_app
from isojax.cli.saved_fits import (
    DEFAULT_MODE,
    FitOptions,
    IncludeFlaggedOption,
    fitted_runs,
    make_fit,
    other_fits,
    read_fit,
    sweep_folder,
    warn,
)
from isojax.cli.status_command import status
from isojax.cli.validate_option import make_validation, print_validation
from isojax.core.config import Config
from isojax.core.errors import InputError, RunFailed
from isojax.core.memory_pages import use_huge_pages
from isojax.core.preemption import Preempted
from isojax.launch.processes.process_group import ProcessGroup, parse_process_group
from isojax.runs.store import display_path, localize, remote_workspace, working_folder

JAX_COMMANDS = ("launch", "train", "difficulty", "lr-anchor")  # commands that run a policy
ComputeUnit = Literal["rollouts", "tokens", "device_hours"]
FitMode = Literal["hierarchical", "paper"]

_TYPER_STYLE: dict[str, Any] = {"rich_markup_mode": "rich", "pretty_exceptions_enable": False, "add_completion": False}
_HELP_SETTINGS = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(no_args_is_help=True, context_settings=_HELP_SETTINGS, **_TYPER_STYLE)
launch_app = typer.Typer(context_settings=_HELP_SETTINGS, **_TYPER_STYLE)
train_app = typer.Typer(context_settings=_HELP_SETTINGS, **_TYPER_STYLE)

MetricOption = Annotated[
    str | None, typer.Option(help="Validation metric to fit, such as avg@4.", show_default="the ledger's avg@k")
]
ComputeOption = Annotated[ComputeUnit, typer.Option(help="What compute is counted in.")]
ModeOption = Annotated[
    FitMode,
    typer.Option(
        help="hierarchical: all points, intervals, says when n makes no difference. paper: the published workflow, step by step."
    ),
]
BootstrapOption = Annotated[int, typer.Option(metavar="N", min=0, help="Replicates behind the intervals; 0 for none.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Of the replicates' draws.")]
RunSdOption = Annotated[
    float | None,
    typer.Option(
        metavar="SD",
        min=0.0,
        max=1.0,
        help="Standard deviation of the final reward between runs that differ in their seed alone.",
        show_default="estimated from the seeds; .01 where there is one",
    ),
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Go on with what is in the run's folder, or start where nothing is.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on standard output, and nothing else there.")
]


app.add_typer(records_app, name="records")
app.add_typer(model_app, name="model")


def _write_report(folder: Path, fit_document: dict[str, Any]) -> Path:
    from isojax.report.write import write_report
    from isojax.runs.ledger import read_runs

    run_records = read_runs([folder], warn)
    return write_report(
        folder, [fit_document, *other_fits(run_records, fit_document)], fitted_runs(run_records, fit_document)
    )


def _print_gains(console: Console, folder: Path) -> None:
    from isojax.report.gains import report_gains
    from isojax.runs.ledger import read_runs

    report_gains(console, folder, read_runs([folder], warn))


@app.command()
@launch_app.command()
def launch(
    words: ConfigArguments = None,
    mesh: MeshOption = None,
    ray: RayOption = None,
    resume: ResumeOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and show the plan; run nothing.")
    ] = False,
    processes: ProcessCountOption = None,
    process: ProcessIndexOption = None,
    coordinator: CoordinatorOption = None,
    topology: Annotated[
        str | None,
        typer.Option(
            metavar="KIND:SHAPE",
            help="With --dry-run: compile for TPUs that are not here, such as v5e:4x4, and say what fits.",
        ),
    ] = None,
    no_report: Annotated[
        bool, typer.Option("--no-report", help="Train and fit; draw no figures (isojax report RUN does that later).")
    ] = False,
) -> None:
    """Run a sweep over (B_p, n), then fit the law and write the report.

    CONFIG is a YAML file, or the name of one in ./configs or among those isojax brings; of several, later ones lie over
    earlier ones.

    Without CONFIG: quickstart.

    \b
    [bold]Examples[/bold]
      isojax launch                               the quickstart
      isojax launch quickstart --dry-run          what would run, what it takes and how long
      isojax launch gsm8k models/llama-3.1-8b-instruct --dry-run --topology v5e:4x4 --mesh fsdp=4,tensor=4
      isojax launch --resume sweep.budget=500000  go on with twice the budget
      isojax launch my.yaml --mesh data=4,tensor=2 'sweep.n=\\[2,4,8]' name=mine
      isojax launch gsm8k models/qwen2.5-7b-instruct cell.model.path=FOLDER
      isojax launch my.yaml --processes auto --mesh fsdp=-1      on every host of a TPU pod, or by srun: docs/hosts.md
      isojax launch my.yaml --ray auto run.gang.tpu=v5e:4x4      cells on the slices of a Ray cluster: docs/clusters.md
    """
    config = read_config(words, mesh, "quickstart", ray)
    process_group = parse_process_group(coordinator, processes, process)
    if topology is not None:
        if not dry_run:
            raise InputError(f"--topology {topology} runs nothing and --dry-run is not given; expected both together.")
        from isojax.launch.local.compile_for_topology import compile_for_topology as compile_for

        compile_for(config, topology)
        return
    with remote_workspace(config.run.dir, config.name, process_group.is_multi_process, dry_run):
        _run_sweep(config, resume, dry_run, process_group, not no_report)


def _run_sweep(config: Config, resume: bool, dry_run: bool, process_group: ProcessGroup, with_report: bool) -> None:
    """What `launch` runs: the cells, the fit, the report."""
    if config.run.ray is not None:
        from isojax.launch.ray.ray_driver import launch as run_sweep
    else:
        from isojax.launch.local.local_runner import launch as run_sweep

    run_failure: RunFailed | None = None
    sweep_dir: Path | None = None
    try:
        sweep_dir = run_sweep(config, resume, dry_run, process_group)
    except RunFailed as e:  # what ran is fitted and reported all the same
        run_failure, sweep_dir = e, working_folder(config.run.dir, config.name)
        if process_group.is_multi_process:
            raise
    if dry_run or sweep_dir is None:
        return
    try:
        fit_document = make_fit([sweep_dir], None, "rollouts")
        report_path = _write_report(sweep_dir, fit_document) if with_report else None
    except InputError as e:
        raise run_failure or RunFailed(
            f"the cells ran and are recorded in {sweep_dir}, but the fit or the report failed: {e}"
        ) from e
    console = Console()
    print_fit(console, fit_document)
    from isojax.scaling.allocate.recommend import recommend as choose

    for budget in (config.sweep.budget, 4 * config.sweep.budget):
        try:  # runs end at their last evaluation, so 4 times the budget may be more than 4 times what was measured
            print_recommendation(console, choose(fit_document, budget, extrapolate=True), budget)
        except InputError as e:  # the sweep and its fit are there, only this budget has no answer
            warn(f"no recommendation for {budget} rollouts: {e}")
    _print_gains(console, sweep_dir)
    if report_path is not None:
        console.print(f"report: {display_path(report_path)}", soft_wrap=True, highlight=False, markup=False)
    if run_failure is not None:
        raise run_failure


@app.command()
@train_app.command()
def train(
    words: ConfigArguments = None,
    mesh: MeshOption = None,
    resume: ResumeOption = False,
    processes: ProcessCountOption = None,
    process: ProcessIndexOption = None,
    coordinator: CoordinatorOption = None,
) -> None:
    """Train one run: a config whose sweep is a single cell. Its records lie where a sweep's would: runs/<name>/cells/.

    \b
    [bold]Examples[/bold]
      isojax train quickstart name=one 'sweep.B_p=\\[16]' 'sweep.n=\\[8]' sweep.seeds=1
      isojax train best.yaml      from: isojax recommend RUN --budget C --write best.yaml
    """
    config = read_config(words, mesh, None)
    from isojax.launch.local.local_runner import train as run_cell

    process_group = parse_process_group(coordinator, processes, process)
    with remote_workspace(config.run.dir, config.name, process_group.is_multi_process):
        folder, console = run_cell(config, resume, process_group), Console()
        if folder is None:
            return
        _print_gains(console, folder)
        console.print(f"run: {display_path(folder)}", soft_wrap=True, highlight=False, markup=False)


@app.command()
def fit(
    runs: Annotated[list[Path] | None, typer.Argument(help="Sweep folders, cell folders or ledgers.")] = None,
    metric: MetricOption = None,
    compute: ComputeOption = "rollouts",
    mode: ModeOption = DEFAULT_MODE,
    bootstrap: BootstrapOption = 500,
    seed: SeedOption = 0,
    run_sd: RunSdOption = None,
    frontier: FrontierOption = None,
    where: WhereOption = None,
    validate: Annotated[
        bool, typer.Option("--validate", help="Hide runs from the fit, predict them, and report how well.")
    ] = False,
    include_flagged: IncludeFlaggedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fit the reward curves, the compute-optimal frontier and n*(C) to finished runs.

    A single sweep's folder also gets the result as fit.json; with --metric, --compute or --mode as a file of its own,
    such as fit-tokens.json. --metric train/reward fits the training reward. Runs that are flagged as broken (a
    collapse, a loss that is not finite: docs/recipes.md) are left out, and named.

    \b
    [bold]Examples[/bold]
      isojax fit runs/quickstart
      isojax fit runs/quickstart --compute tokens --json | jq .n_star
      isojax fit --frontier points.csv --where set=easy
      isojax fit runs/quickstart --validate               the top 4x of compute, the largest n, one seed;
      validation.json
    """
    options = FitOptions(mode, bootstrap, seed, run_sd, include_flagged)
    if frontier is not None:
        run_options = {
            "--validate": validate,
            "--metric": metric,
            "--compute": compute != "rollouts",
            **options.non_default_options,
        }
        reject_run_options(option for option, is_set in run_options.items() if is_set)
    if fit_frontier_file(runs, frontier, where, mode, as_json):
        return
    fit_document = make_fit(runs or [], metric, compute, options)
    validation = make_validation(runs or [], metric, compute, options) if validate else None
    if as_json:
        print(json.dumps(fit_document | ({"validation": validation} if validation else {}), indent=1, allow_nan=False))
        return
    print_fit(Console(), fit_document)
    if validation:
        print_validation(Console(), validation)


app.command()(recommend)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A sweep's folder.")], include_flagged: IncludeFlaggedOption = False
) -> None:
    """Rebuild a sweep's figures and report.html from its ledgers and its fit.json.

    \b
    [bold]Example[/bold]
      isojax report runs/quickstart
    """
    folder = sweep_folder(run)
    report_path = _write_report(folder, read_fit(folder, include_flagged))
    Console().print(f"report: {display_path(report_path)}", soft_wrap=True, highlight=False, markup=False)


app.command()(curve)
app.command()(status)
app.command()(compare)
app.command()(difficulty)
app.command("lr-anchor")(lr_search)
app.command()(bandit)


def _version(requested: bool) -> None:
    if requested:
        print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Given a base model, a problem set and a budget of C rollouts: which (B_p, n, M) gives the best policy?

    [bold]launch[/bold] runs a sweep, fits it and reports; the other commands are its parts.
    """


def _run(typer_app: typer.Typer, program: str) -> NoReturn:
    """Run a command; an InputError is one line on standard error and exit code 2, as usage errors are; an end by
    SIGTERM is exit code 143."""
    try:
        with localize(sys.argv[1:]) as arguments:
            typer_app(arguments, prog_name=program)
    except InputError as e:
        print(f"error: {display_path(e)}", file=sys.stderr)
        sys.exit(2)
    except PermissionError as e:  # merely to ask whether there is a file may raise it
        print(f"error: {display_path(e)}. Expected a place that you may use.", file=sys.stderr)
        sys.exit(2)
    except RunFailed as e:
        print(f"error: {display_path(e)}", file=sys.stderr)
        sys.exit(1)
    except Preempted as e:
        print(f"stopped: {display_path(e)}", file=sys.stderr)
        sys.exit(128 + e.signum)
    sys.exit(0)


def main() -> NoReturn:
    """The console script `isojax`: like `python -m`, it finds a fork's modules in the folder it is called in."""
    if sys.argv[1:2] and sys.argv[1] in JAX_COMMANDS:
        use_huge_pages()
    sys.path.insert(0, "")
    _run(app, "isojax")


def main_launch() -> NoReturn:
    """`python -m isojax.launch`."""
    use_huge_pages()
    _run(launch_app, "python -m isojax.launch")


def main_train() -> NoReturn:
    """`python -m isojax.train`."""
    use_huge_pages()
    _run(train_app, "python -m isojax.train")
