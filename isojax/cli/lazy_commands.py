"""Commands that are imported when they are called: `isojax status` waits for neither SciPy nor jax."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import typer

HELP_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
STYLE: dict[str, Any] = {"rich_markup_mode": "rich", "pretty_exceptions_enable": False, "add_completion": False}
# The command that is imported reads its own options; whoever finds it takes none.
_PASS_ARGUMENTS: dict[str, Any] = {
    "allow_extra_args": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
    "ignore_unknown_options": True,
}


class LazyCommand(NamedTuple):
    """A command by its name.

    Attributes:
        module: where it is defined, a module with a typer app named `app`.
        summary: its line in the list of commands, the first sentence of its docstring.
        loads_jax: whether it computes with jax in this process.
    """

    name: str
    module: str
    summary: str
    loads_jax: bool = False


def new_app(**settings: Any) -> typer.Typer:
    """A typer app that looks as all of isojax's do."""
    return typer.Typer(context_settings=HELP_SETTINGS, **STYLE, **settings)


def add_lazy_command(app: typer.Typer, command: LazyCommand) -> None:
    """Add a command to `app` that imports its module when it is called."""

    def run(ctx: typer.Context) -> None:
        load_module(command.module).app(ctx.args, prog_name=ctx.command_path)

    app.command(command.name, help=command.summary, context_settings=_PASS_ARGUMENTS)(run)


def load_module(name: str) -> Any:
    """The module of that name, imported now: for what only some calls of a command need, such as jax."""
    return importlib.import_module(name)
