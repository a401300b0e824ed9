"""The command line. A module of commands/ is imported when its command is called, so that `isojax status` waits for
neither SciPy nor jax; an InputError is one line `error: ...` on standard error and exit code 2."""

import importlib
import sys
from typing import Annotated, NamedTuple, NoReturn

import typer

from isojax import __version__
from isojax.cli.options import new_app
from isojax.core.errors import InputError, RunFailed
from isojax.core.machine import use_huge_pages
from isojax.core.preemption import Preempted
from isojax.runs.workspace import display_path, localize


class LazyCommand(NamedTuple):
    """A command: its name, the first sentence of its help, and whether it computes with jax in this process."""

    name: str
    summary: str
    loads_jax: bool = False

    def load(self) -> typer.Typer:
        """Import it: the typer app of its module, or an app of the function that has the command's name."""
        function_name = self.name.replace("-", "_")
        module = importlib.import_module(f"isojax.cli.commands.{function_name}_command")
        if "app" in vars(module):
            return module.app
        command_app = new_app()
        command_app.command()(vars(module)[function_name])
        return command_app


LAUNCH = LazyCommand("launch", "Run a sweep over (B_p, n), then fit the law and write the report.", True)
TRAIN = LazyCommand("train", "Train one run: a config whose sweep is a single cell.", True)
COMMANDS = (
    LAUNCH,
    TRAIN,
    LazyCommand("status", "Show where sweeps stand."),
    LazyCommand("fit", "Fit the reward curves, the compute-optimal frontier and n*(C) to finished runs."),
    LazyCommand("recommend", "Recommend how to spend a budget of rollouts."),
    LazyCommand("report", "Rebuild a sweep's figures and report.html from its ledgers and its fit.json."),
    LazyCommand("compare", "Compare sweeps."),
    LazyCommand("records", "Import other trainers' logs, and check ledgers before a fit."),
    LazyCommand("fit-curve", "Fit a reward curve to one run, or to several seeds of it."),
    LazyCommand("fit-law", "Fit n*(C) to the points of a file."),
    LazyCommand("model", "Import, show and export language models."),
    LazyCommand("difficulty", "Label problems by the base model's avg@k, and split them by difficulty.", True),
    LazyCommand("lr-search", "Find the learning rate by short runs at one batch size.", True),
)
# The command that is imported reads its own options; whoever finds it takes none.
PASS_ARGUMENTS = {
    "allow_extra_args": True, "allow_interspersed_args": False, "help_option_names": [], "ignore_unknown_options": True,
}  # fmt: skip

app = new_app(no_args_is_help=True)


def _add_command(command: LazyCommand) -> None:
    def run(ctx: typer.Context) -> None:
        command.load()(ctx.args, prog_name=ctx.command_path)

    app.command(command.name, help=command.summary, context_settings=PASS_ARGUMENTS)(run)


for _command in COMMANDS:
    _add_command(_command)


def _print_version(requested: bool) -> None:
    if requested:
        print(__version__)
        raise typer.Exit


VersionOption = Annotated[bool, typer.Option(callback=_print_version, is_eager=True, help="Print the version.")]


@app.callback()
def _root(version: VersionOption = False) -> None:
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
    _run(LAUNCH.load(), "python -m isojax.launch")


def main_train() -> NoReturn:
    """`python -m isojax.train`."""
    use_huge_pages()
    _run(TRAIN.load(), "python -m isojax.train")


def _run(typer_app: typer.Typer, program: str) -> NoReturn:
    """Run a command and exit: 0; 2 after an InputError, as after usage errors; 1 after a failed run; 143 after
    SIGTERM."""
    try:
        with localize(sys.argv[1:]) as arguments:
            typer_app(arguments, prog_name=program)
    except InputError as e:
        _exit("error", e, 2)
    except PermissionError as e:  # merely to ask whether a file exists may raise it
        _exit("error", f"{e}. Expected a place that you may use.", 2)
    except RunFailed as e:
        _exit("error", e, 1)
    except Preempted as e:
        _exit("stopped", e, 128 + e.signum)
    sys.exit(0)


def _exit(label: str, message: object, code: int) -> NoReturn:
    print(f"{label}: {display_path(message)}", file=sys.stderr)
    sys.exit(code)
