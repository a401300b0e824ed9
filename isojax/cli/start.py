"""How the process of a command begins: with large pages of memory where it computes.

glibc learns of them when a process starts, so that the process starts once more. That is decided
here, before app.py is imported, which takes a second.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

from isojax.cli.command_text import COMMAND_ENDING, computes, says_it_is_a_run
from isojax.core.cycle_collection import cycle_collection_paused
from isojax.core.machine import use_huge_pages

COMMANDS_FOLDER = Path(__file__).parent / "commands"


def main() -> None:
    """The console script `isojax`."""
    _prepare_process(sys.argv[1] if len(sys.argv) > 1 else "")
    _import_app().main()


def main_module(name: str) -> None:
    """`python -m isojax.launch` and `python -m isojax.train`; name: "launch" or "train"."""
    _prepare_process(name)
    app = _import_app()
    app.main_module(app.find_command(name))


def _prepare_process(name: str) -> None:
    """Start the process once more, with large pages, for a command of isojax's that computes.

    Of the user's own commands app.py knows more; it does the same for them.
    """
    is_name = name.replace("-", "").isalpha()
    file = COMMANDS_FOLDER / f"{name.replace('-', '_')}{COMMAND_ENDING}"
    is_run = is_name and file.is_file() and says_it_is_a_run(file.read_text("utf-8"))
    if computes(is_run, sys.argv[1:]):
        use_huge_pages()


def _import_app() -> Any:
    with cycle_collection_paused():
        return importlib.import_module("isojax.cli.app")
