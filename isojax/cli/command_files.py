"""Which commands there are: one for each file NAME_command.py of commands/.

A file is imported when its command is called. Until then its text gives what --help lists: the
first line of its docstring; and whether it has the line `IS_RUN = True`, of a command that trains
or samples.
"""

import importlib
import re
from pathlib import Path
from typing import NamedTuple

import typer

from isojax.cli import commands
from isojax.cli.options import new_app
from isojax.core.errors import InputError

ENDING = "_command.py"
# Of --help; commands that are not here come after these, by their names.
ORDER = (
    "launch",
    "train",
    "spend",
    "status",
    "fit",
    "recommend",
    "quote",
    "report",
    "compare",
    "records",
    "watch",
    "fit-curve",
    "fit-law",
    "model",
    "difficulty",
    "lr-search",
    "clean",
    "settings",
    "template",
)
_SUMMARY = re.compile(r'r?"""(.*?)(?:"""|\n)')
_IS_RUN = re.compile(r"^IS_RUN = True\b", re.MULTILINE)


class LazyCommand(NamedTuple):
    """A command, whose module is imported when it is called."""

    name: str
    summary: str  # the first sentence of its help
    is_run: bool  # it trains, or samples: hours of jax in this process
    file: Path

    def load(self) -> typer.Typer:
        """The typer app of its module, or an app of the function that has the command's name.

        InputError where the module has neither.
        """
        function_name = self.name.replace("-", "_")
        module = importlib.import_module(f"{commands.__name__}.{function_name}_command")
        if "app" in vars(module):
            return module.app
        if function_name not in vars(module):
            raise InputError(
                where=self.file,
                found=f"no function {function_name} and no typer app",
                expected=f"def {function_name}(...), which the command calls (docs/extending.md)",
            )

        command_app = new_app()
        command_app.command()(vars(module)[function_name])
        return command_app


def find_commands() -> tuple[LazyCommand, ...]:
    """The commands in the order of --help; none is imported."""
    files = [file for folder in commands.__path__ for file in Path(folder).glob(f"*{ENDING}")]
    found = [_read_command(file) for file in files]
    places = {name: place for place, name in enumerate(ORDER)}
    return tuple(
        sorted(found, key=lambda command: (places.get(command.name, len(ORDER)), command.name))
    )


def _read_command(file: Path) -> LazyCommand:
    """What the text of a command's file gives."""
    text = file.read_text("utf-8")
    summary = _SUMMARY.match(text)
    return LazyCommand(
        name=file.name.removesuffix(ENDING).replace("_", "-"),
        summary=summary[1] if summary else "",
        is_run=_IS_RUN.search(text) is not None,
        file=file,
    )
