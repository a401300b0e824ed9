"""Which commands there are: one for each file NAME_command.py of commands/, and of the folders
where plug-ins are looked up.

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
from isojax.cli.command_text import COMMAND_ENDING, says_it_is_a_run
from isojax.cli.options import new_app
from isojax.core.errors import InputError
from isojax.core.registry import import_first, plugin_folders
from isojax.core.user_code import note_plugin_file

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
    "pack",
    "accelerator",
    "clean",
    "settings",
    "template",
)
_SUMMARY = re.compile(r'r?"""(.*?)(?:"""|\n)')


class LazyCommand(NamedTuple):
    """A command, whose module is imported when it is called."""

    name: str
    summary: str  # the first sentence of its help
    is_run: bool  # it trains, or samples: hours of jax in this process
    file: Path
    is_plugin: bool = False  # a user's own, which is not in the package

    def load(self) -> typer.Typer:
        """The typer app of its module, or an app of the function that has the command's name.

        InputError where the module has neither, and where a user's own cannot be imported.
        """
        function_name = self.name.replace("-", "_")
        if self.is_plugin:
            # An error while it runs is then reported as the plug-in's, with its line.
            note_plugin_file(str(self.file))
            module = import_first([self.file], label=f"the command {self.name}")
            assert module is not None  # The file is there.
        else:
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

    def stub(self) -> typer.Typer:
        """A typer app with the command's summary, for the list of commands; it does nothing."""
        stub = new_app()
        stub.command(self.name, help=self.summary, short_help=self.summary)(lambda: None)
        return stub


def find_own_commands() -> dict[str, LazyCommand]:
    """The user's own commands by name, of the files in the folders of plug-ins; none is imported.

    Where two folders have a command of one name, it is that of the first.
    """
    own: dict[str, LazyCommand] = {}
    for folder in plugin_folders():
        files = [file for file in Path(folder).glob(f"*{COMMAND_ENDING}") if file.is_file()]
        for file in sorted(files):
            command = _read_command(file)._replace(is_plugin=True)
            own.setdefault(command.name, command)
    return own


def find_commands() -> tuple[LazyCommand, ...]:
    """The commands of the package in the order of --help; none is imported."""
    pattern = f"*{COMMAND_ENDING}"
    files = [file for folder in commands.__path__ for file in Path(folder).glob(pattern)]
    found = [_read_command(file) for file in files]
    places = {name: place for place, name in enumerate(ORDER)}
    return tuple(
        sorted(found, key=lambda command: (places.get(command.name, len(ORDER)), command.name))
    )


def _read_command(file: Path) -> LazyCommand:
    """What the text of a command's file gives."""
    try:
        # Another program's file may be in another encoding.
        text = file.read_text("utf-8", errors="replace")
    except OSError:
        text = ""  # The list of commands needs no summary; a call says why the file is not read.
    summary = _SUMMARY.match(text)
    return LazyCommand(
        name=file.name.removesuffix(COMMAND_ENDING).replace("_", "-"),
        summary=summary[1] if summary else "",
        is_run=says_it_is_a_run(text),
        file=file,
    )
