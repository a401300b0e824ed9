"""A command is one file: found by its name, and imported when it is called."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from isojax.cli import app, commands
from isojax.cli.command_files import ORDER, LazyCommand, find_commands
from tests.cli.conftest import Isojax, Outcome, error_of

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


def _example(name: str) -> str:
    code = re.search(rf"```python\n# {name}\n(.*?)```", PAGE.read_text(), re.S)
    assert code is not None
    return code[1]


def _add_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> LazyCommand:
    """The command of a further file in the folder of commands."""
    folder.mkdir()
    (folder / f"{name}_command.py").write_text(text)
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(folder)])
    return find_commands()[-1]


def test_isojaxs_own_commands_are_the_order_of_the_help() -> None:
    assert tuple(command.name for command in find_commands()) == ORDER
    assert [command.name for command in app.COMMANDS if command.is_run] == [
        "launch",
        "train",
        "spend",
        "difficulty",
        "lr-search",
        "accelerator",
    ]


def test_the_command_of_the_page_and_its_test(
    isojax: Isojax, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = _add_command(tmp_path / "further", monkeypatch, "best", _example("best_command.py"))
    assert best[:3] == ("best", "Show the best evaluation of each run of a sweep.", False)
    assert "isojax.cli.commands.best_command" not in sys.modules

    def call(name: str, *words: str) -> Outcome:
        assert name == "best"
        return isojax(*words, main=partial(app.main_module, best))

    scope: dict[str, Any] = {}
    exec(_example("test_best.py"), scope)
    scope["test_the_best_evaluation_of_each_run"](call)


def test_a_file_without_the_function_is_refused(
    isojax: Isojax, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "IS_RUN = True\n\n\ndef other() -> None: ...\n"
    empty = _add_command(tmp_path / "further", monkeypatch, "no_function", text)
    assert empty[:3] == ("no-function", "", True)
    monkeypatch.setattr(app, "_COMMAND_OF_NAME", {"status": empty})
    err = error_of(isojax("status"))
    assert "no_function_command.py: no function no_function and no typer app" in err


def _write_own(name: str, text: str) -> None:
    """A file in the working directory, which is the empty folder of the test."""
    Path(f"{name}_command.py").write_text(text)


def test_a_file_in_the_working_directory_is_a_command(isojax: Isojax) -> None:
    _write_own(
        "say_hello",
        '"""Say hello."""\n\n\ndef say_hello(name: str) -> None:\n    print("hello", name)\n',
    )
    assert isojax("say-hello", "you") == (0, "hello you\n", "")

    code, out, _ = isojax("--help")
    assert code == 0
    assert re.search(r"say-hello +Say hello\.$", out, re.M)


def test_isojaxs_own_command_is_used_where_both_are_there(isojax: Isojax) -> None:
    _write_own("status", "raise SystemExit(9)")
    assert "Usage: isojax status" in isojax("status", "--help")[1]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def mine(:", "mine_command.py:1: SyntaxError"),
        ("import no_such_module", "needs the module no_such_module"),
        ("def other(): ...", "no function mine and no typer app"),
        ("def mine() -> None:\n    1 / 0\n", "the plug-in failed at"),
        ("caf\udce9", "mine_command.py:1: SyntaxError"),
    ],
)
def test_mistakes_in_a_command_of_ones_own_are_named(
    isojax: Isojax, text: str, problem: str
) -> None:
    Path("mine_command.py").write_bytes(text.encode("utf-8", "surrogateescape"))
    code, _, err = isojax("mine")
    assert code in (1, 2)
    assert problem in err
    assert "please report it" not in err
