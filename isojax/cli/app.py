"""The command line: `isojax COMMAND`, `python -m isojax.launch` and `python -m isojax.train`.

A module of commands/ is imported when its command is called. Whatever a user can put right is an InputError anywhere
below: one line `error: ...` on standard error and exit code 2. With --json, standard output holds one JSON document and
nothing else.
"""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from isojax import __version__
from isojax.cli.lazy_commands import LazyCommand, add_lazy_command, load_module, new_app
from isojax.core.errors import InputError, RunFailed
from isojax.core.memory_pages import use_huge_pages
from isojax.core.preemption import Preempted
from isojax.runs.workspace import display_path, localize

_PACKAGE = "isojax.cli.commands"
LAUNCH_MODULE, TRAIN_MODULE = f"{_PACKAGE}.launch_command", f"{_PACKAGE}.train_command"

COMMANDS = (
    LazyCommand("launch", LAUNCH_MODULE, "Run a sweep over (B_p, n), then fit the law and write the report.", True),
    LazyCommand("train", TRAIN_MODULE, "Train one run: a config whose sweep is a single cell.", True),
    LazyCommand("status", f"{_PACKAGE}.status_command", "Show where sweeps stand."),
    LazyCommand(
        "fit",
        f"{_PACKAGE}.fit_command",
        "Fit the reward curves, the compute-optimal frontier and n*(C) to finished runs.",
    ),
    LazyCommand("recommend", f"{_PACKAGE}.recommend_command", "Recommend how to spend a budget of rollouts."),
    LazyCommand(
        "report",
        f"{_PACKAGE}.report_command",
        "Rebuild a sweep's figures and report.html from its ledgers and its fit.json.",
    ),
    LazyCommand("compare", f"{_PACKAGE}.compare_command", "Compare sweeps."),
    LazyCommand(
        "records", f"{_PACKAGE}.records_command", "Import other trainers' logs, and check ledgers before a fit."
    ),
    LazyCommand(
        "fit-curve", f"{_PACKAGE}.fit_curve_command", "Fit a reward curve to one run, or to several seeds of it."
    ),
    LazyCommand("fit-law", f"{_PACKAGE}.fit_law_command", "Fit n*(C) to the points of a file."),
    LazyCommand("model", f"{_PACKAGE}.model_command", "Import, show and export language models."),
    LazyCommand(
        "difficulty",
        f"{_PACKAGE}.difficulty_command",
        "Label problems by the base model's avg@k, and split them by difficulty.",
        True,
    ),
    LazyCommand(
        "lr-search", f"{_PACKAGE}.lr_search_command", "Find the learning rate by short runs at one batch size.", True
    ),
)

app = new_app(no_args_is_help=True)
for _command in COMMANDS:
    add_lazy_command(app, _command)


def _print_version(requested: bool) -> None:
    if requested:
        print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Given a base model, a problem set and a budget of C rollouts: which (B_p, n, M) gives the best policy?

    [bold]launch[/bold] runs a sweep, fits it and reports; the other commands are its parts.
    """


def main() -> NoReturn:
    """The console script `isojax`: like `python -m`, it finds a fork's modules in the folder it is called in."""
    if any(command.loads_jax for command in COMMANDS if command.name in sys.argv[1:2]):
        use_huge_pages()
    sys.path.insert(0, "")
    _run(app, "isojax")


def main_launch() -> NoReturn:
    """`python -m isojax.launch`."""
    use_huge_pages()
    _run(load_module(LAUNCH_MODULE).app, "python -m isojax.launch")


def main_train() -> NoReturn:
    """`python -m isojax.train`."""
    use_huge_pages()
    _run(load_module(TRAIN_MODULE).app, "python -m isojax.train")


def _run(typer_app: typer.Typer, program: str) -> NoReturn:
    """Run a command; an InputError is one line on standard error and exit code 2, as usage errors are; an end by
    SIGTERM is exit code 143."""
    try:
        with localize(sys.argv[1:]) as arguments:
            typer_app(arguments, prog_name=program)
    except InputError as e:
        _print_error("error", e)
        sys.exit(2)
    except PermissionError as e:  # merely to ask whether a file exists may raise it
        _print_error("error", f"{e}. Expected a place that you may use.")
        sys.exit(2)
    except RunFailed as e:
        _print_error("error", e)
        sys.exit(1)
    except Preempted as e:
        _print_error("stopped", e)
        sys.exit(128 + e.signum)
    sys.exit(0)


def _print_error(label: str, message: object) -> None:
    print(f"{label}: {display_path(message)}", file=sys.stderr)
