"""The command line: `isojax launch|train|fit|recommend|report`, `python -m isojax.launch` and `python -m isojax.train`.

It loads what a command needs when it runs, so that fit, recommend and report never load jax. Whatever a user can mend is an
InputError anywhere below: one line `error: ...` on standard error and exit code 2. With --json, standard output holds one JSON
document and nothing else.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from rich.console import Console

from isojax import __version__
from isojax.cli_curve import Frontier, Where, fitted_frontier
from isojax.cli_records import app as records_app
from isojax.cli_words import budget_number, fixed_values, plain, print_fit, print_recommendation
from isojax.config import Config, load_config, read_saved, save_config
from isojax.files import write_text
from isojax.types import InputError, RunFailed

if TYPE_CHECKING:
    from isojax.scaling.recommend import Recommendation

Compute = Literal["rollouts", "tokens", "device_hours"]
Mode = Literal["debiased", "paper"]

_STYLE: dict[str, Any] = {"rich_markup_mode": "rich", "pretty_exceptions_enable": False, "add_completion": False}
_HELP = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(no_args_is_help=True, context_settings=_HELP, **_STYLE)
launch_app = typer.Typer(context_settings=_HELP, **_STYLE)
train_app = typer.Typer(context_settings=_HELP, **_STYLE)

Mesh = Annotated[str | None, typer.Option(metavar="auto|AXIS=N,...", help="Device mesh, such as data=2,tensor=1; the same as run.mesh=...")]
Metric = Annotated[str | None, typer.Option(help="Validation metric to fit, such as avg@4.", show_default="the ledger's avg@k")]
ComputeOption = Annotated[Compute, typer.Option(help="What compute is counted in.")]
ModeOption = Annotated[
    Mode | None, typer.Option(help="paper: the published workflow, step by step.", show_default="paper; debiased with --frontier")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what is in the run's folder, or start where nothing is.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output, and nothing else there.")]


app.add_typer(records_app, name="records")


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def _split(args: Sequence[str] | None, default: str | None) -> tuple[str, list[str]]:
    """([CONFIG] [KEY=VALUE ...]) -> config and overrides; the first word is an override when it has a '=' and is no file."""
    words = list(args or ())
    if words and ("=" not in words[0] or Path(words[0]).is_file()):
        return words[0], words[1:]
    if default is None:
        raise InputError("no config given; expected a YAML file or a config's name first, such as quickstart.")
    return default, words


def _config(args: Sequence[str] | None, mesh: str | None, default: str | None) -> Config:
    name, overrides = _split(args, default)
    return load_config(name, [*overrides, *([f"run.mesh={mesh}"] if mesh is not None else [])])


def _fit(paths: Sequence[Path], metric: str | None, compute: str, mode: str) -> dict[str, Any]:
    """Fit the runs; a single sweep's folder gets its fit.json, or fit-METRIC-COMPUTE.json where another metric or compute was asked."""
    from isojax.records import read_runs
    from isojax.scaling.fit import fit as fit_runs

    runs = read_runs(paths, _warn)
    first = runs[0].points[0]
    name = metric or (f"avg@{first.samples}" if f"avg@{first.samples}" in first.metrics else min(first.metrics, default=""))
    document = plain(fit_runs(runs, name, compute, mode))
    if len(paths) == 1 and _is_sweep(paths[0]):
        asked = [*([metric.replace("/", "-")] if metric else []), *([compute] if compute != "rollouts" else [])]
        file = "-".join(["fit", *asked]) + ".json"
        write_text(paths[0] / file, json.dumps(document, indent=1, allow_nan=False) + "\n")
    return document


def _is_sweep(path: Path) -> bool:
    return path.is_dir() and (path / "cells").is_dir()


def _sweep_folder(run: Path) -> Path:
    if not _is_sweep(run):
        raise InputError(f"{run} is no sweep's folder; expected one that holds cells/, such as runs/quickstart.")
    return run


def _read_fit(run: Path) -> dict[str, Any]:
    """A sweep's fit.json, or that file itself; a sweep that has none is fitted."""
    path = run / "fit.json" if run.is_dir() else run
    if run.is_dir() and not path.exists():
        return _fit([_sweep_folder(run)], None, "rollouts", "paper")
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as e:
        raise InputError(f"cannot read {path}: {e}. Expected a sweep's folder or a fit.json; `isojax fit RUN` writes one.") from e
    if not isinstance(document, dict) or document.get("schema") != 1:
        raise InputError(f"{path} is no fit: expected an object with curves, frontier and n_star; `isojax fit RUN` writes one.")
    if run.is_dir() and _is_sweep(run) and _is_stale(document, run):
        _warn(f"{path} is older than the ledgers beside it and is made again")
        return _fit([run], None, "rollouts", "paper")
    return document


def _is_stale(document: dict[str, Any], run: Path) -> bool:
    """Whether the ledgers hold other points than the fit was made from."""
    from isojax.records import read_runs

    there = {(r.cell.B_p, r.cell.n, r.cell.seed, len(r.points)) for r in read_runs([run])}
    return there != {(r["B_p"], r["n"], r["seed"], r["points"]) for r in document["runs"]}


def _report(folder: Path, document: dict[str, Any]) -> Path:
    from isojax import report
    from isojax.records import read_runs

    return report.write(folder, document, read_runs([folder], _warn))


@app.command()
@launch_app.command()
def launch(
    args: Annotated[list[str] | None, typer.Argument(metavar="CONFIG|KEY=VALUE", help="A config first, then overrides.")] = None,
    mesh: Mesh = None,
    resume: Resume = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and show the plan; run nothing.")] = False,
) -> None:
    """Run a sweep over (B_p, n), then fit the law and write the report.

    CONFIG is a YAML file, or the name of one in ./configs or among those isojax brings.

    Without CONFIG: quickstart.

    \b
    [bold]Examples[/bold]
      isojax launch                               the quickstart
      isojax launch quickstart --dry-run          what would run
      isojax launch --resume sweep.budget=500000  go on with twice the budget
      isojax launch my.yaml --mesh data=4,tensor=2 'sweep.n=\\[2,4,8]' name=mine
    """
    config = _config(args, mesh, "quickstart")
    from isojax.launch.local import launch as run_sweep

    failed: RunFailed | None = None
    try:
        folder = run_sweep(config, resume, dry_run)
    except RunFailed as e:  # what ran is fitted and reported all the same
        failed, folder = e, Path(config.run.dir) / config.name
    if dry_run:
        return
    try:
        document = _fit([folder], None, "rollouts", "paper")
        page = _report(folder, document)
    except InputError as e:
        raise failed or RunFailed(f"the cells ran and are recorded in {folder}, but the fit or the report failed: {e}") from e
    console = Console()
    print_fit(console, document)
    from isojax.scaling.recommend import recommend as choose

    for budget in (config.sweep.budget, 4 * config.sweep.budget):
        try:
            print_recommendation(console, choose(document, budget, None, None), budget)
        except InputError as e:  # the sweep and its fit are there, only this budget has no answer
            _warn(f"no recommendation for {budget} rollouts: {e}")
    console.print(f"report: {page}", soft_wrap=True, highlight=False)
    if failed is not None:
        raise failed


@app.command()
@train_app.command()
def train(
    args: Annotated[list[str] | None, typer.Argument(metavar="CONFIG|KEY=VALUE", help="A config first, then overrides.")] = None,
    mesh: Mesh = None,
    resume: Resume = False,
) -> None:
    """Train one run: a config whose sweep is a single cell. Its records lie where a sweep's would: runs/<name>/cells/.

    \b
    [bold]Examples[/bold]
      isojax train quickstart name=one 'sweep.B_p=\\[16]' 'sweep.n=\\[8]' sweep.seeds=1
      isojax train best.yaml      from: isojax recommend RUN --budget C --write best.yaml
    """
    config = _config(args, mesh, None)
    from isojax.launch.local import train as run_cell

    Console().print(f"run: {run_cell(config, resume)}", soft_wrap=True, highlight=False)


@app.command()
def fit(
    runs: Annotated[list[Path] | None, typer.Argument(help="Sweep folders, cell folders or ledgers.")] = None,
    metric: Metric = None,
    compute: ComputeOption = "rollouts",
    mode: ModeOption = None,
    frontier: Frontier = None,
    where: Where = None,
    as_json: Json = False,
) -> None:
    """Fit the reward curves, the compute-optimal frontier and n*(C) to finished runs.

    A single sweep's folder also gets the result as fit.json; with --metric or --compute as a file of its own, such as fit-tokens.json.

    \b
    [bold]Examples[/bold]
      isojax fit runs/quickstart
      isojax fit runs/quickstart --compute tokens --json | jq .n_star
      isojax fit --frontier points.csv --where set=easy
    """
    if fitted_frontier(runs, frontier, where, mode, as_json):
        return
    document = _fit(runs or [], metric, compute, mode or "paper")
    if as_json:
        print(json.dumps(document, indent=1, allow_nan=False))
    else:
        print_fit(Console(), document)


@app.command()
def recommend(
    run: Annotated[Path, typer.Argument(help="A sweep's folder or a fit.json.")],
    budget: Annotated[str, typer.Option(metavar="C", help="Rollouts to spend, such as 1e6.")],
    B_max: Annotated[int | None, typer.Option("--B-max", metavar="N", min=1, help="Largest batch B_p n that fits your hardware.")] = None,
    fix: Annotated[list[str] | None, typer.Option(metavar="M=..|B=..|B_p=..", help="Hold this at a value.")] = None,
    write: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a config for `isojax train`; an existing file is kept.")] = None,
    as_json: Json = False,
) -> None:
    """Say how to spend a budget of rollouts: problems a batch, rollouts a problem, updates.

    By default n = n*(C), the smallest B_p not flagged unstable, M = floor(C / (n B_p)).

    \b
    [bold]Examples[/bold]
      isojax recommend runs/quickstart --budget 1e6
      isojax recommend runs/quickstart --budget 1e6 --B-max 512 --fix B_p=32
      isojax recommend runs/quickstart --budget 1e6 --write best.yaml
      isojax train best.yaml
    """
    rollouts, fixed = budget_number(budget), fixed_values(fix or ())
    if write is not None and write.exists():
        raise InputError(f"{write} exists already and is kept; give --write another name, or remove it.")
    saved = read_saved((run if run.is_dir() else run.parent) / "config.yaml") if write is not None else None
    document = _read_fit(run)
    from isojax.scaling.recommend import recommend as choose

    chosen = choose(document, rollouts, B_max, fixed or None)
    if write is not None and saved is not None:
        save_config(_single_cell(saved, chosen), write)
    if as_json:
        a = chosen.allocation
        answer = {"budget": rollouts, "B_p": a.B_p, "n": a.n, "M": a.M, "B": a.B, "C": a.C}
        rest = {key: getattr(chosen, key) for key in ("expected_reward", "extrapolated", "reasons", "candidates")}
        print(json.dumps(plain(answer | rest), indent=1, allow_nan=False))
        return
    print_recommendation(Console(), chosen, rollouts)
    if write is not None:
        Console().print(f"wrote {write}; run it with: isojax train {write}", soft_wrap=True, highlight=False)


def _single_cell(sweep: Config, chosen: Recommendation) -> Config:
    """The sweep's config with the chosen cell alone, under a name of its own: same task and recipe.

    Slots, microbatch and prompts are the planner's again: the sweep's were chosen for its smallest cell. The grid of evaluations is moved
    (by less than one ratio) so that its last value is the recommended C, where the run ends.
    """
    a, grid = chosen.allocation, sweep.cell.eval
    steps = max(0, math.floor(math.log(a.C / grid.start, grid.ratio)))
    evaluation = grid.model_copy(update={"start": a.C / grid.ratio**steps})
    cell = {"B_p": (a.B_p,), "n": (a.n,), "budget": a.C, "B_max": max(sweep.sweep.B_max, a.B), "seeds": 1}
    section = sweep.sweep.model_copy(update=cell | {"slots": None, "microbatch": None, "prompts": None})
    run = sweep.cell.model_copy(update={"eval": evaluation})
    return sweep.model_copy(update={"name": f"{sweep.name}-{a.B_p}x{a.n}-C{a.C}", "cell": run, "sweep": section})


@app.command()
def report(run: Annotated[Path, typer.Argument(help="A sweep's folder.")]) -> None:
    """Rebuild a sweep's figures and report.html from its ledgers and its fit.json.

    \b
    [bold]Example[/bold]
      isojax report runs/quickstart
    """
    folder = _sweep_folder(run)
    Console().print(f"report: {_report(folder, _read_fit(folder))}", soft_wrap=True, highlight=False)


def _version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def _root(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False) -> None:
    """Given a base model, a problem set and a budget of C rollouts: which (B_p, n, M) gives the best policy?

    [bold]launch[/bold] runs a sweep, fits it and reports; the other commands are its parts.
    """


def _run(application: typer.Typer, program: str) -> NoReturn:
    """Run a command; an InputError is one line on standard error and exit code 2, as usage errors are."""
    try:
        application(prog_name=program)
    except InputError as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(2)
    except RunFailed as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)


def main() -> NoReturn:
    """The console script `isojax`: like `python -m`, it finds a fork's modules in the folder it is called in."""
    sys.path.insert(0, "")
    _run(app, "isojax")


def main_launch() -> NoReturn:
    """`python -m isojax.launch`."""
    _run(launch_app, "python -m isojax.launch")


def main_train() -> NoReturn:
    """`python -m isojax.train`."""
    _run(train_app, "python -m isojax.train")
