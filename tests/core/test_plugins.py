"""Plug-ins by name or path, the traits that their decorators state, and what a refusal says is
missing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from isojax.core.plugins import NoTraits, Plugin, PluginKind, load_plugin
from isojax.core.registry import set_plugin_folders
from isojax.models.families import family
from isojax.report.exporters import exporter
from isojax.rl import advantages
from isojax.rl.advantages import advantage
from isojax.rl.aggregations import aggregation
from isojax.rl.kl_estimators import kl_estimator
from isojax.rl.losses import LossTraits, loss
from isojax.runs.importers import importer
from isojax.runs.loggers import logger
from isojax.tasks.device import device_task
from isojax.tasks.sources import source
from isojax.tasks.verifiers import verifier
from tests.refusals import refused

KINDS = (
    advantage,
    aggregation,
    device_task,
    exporter,
    family,
    importer,
    kl_estimator,
    logger,
    loss,
    source,
    verifier,
)
VERIFIER = "from isojax.tasks.verifiers import verifier\n\n\n@verifier(isolated=False, pure=True)\n"


@pytest.fixture
def fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with the package `plugins_fork`, and also the working directory."""
    package = tmp_path / "plugins_fork"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "rewards.py").write_text(
        f"{VERIFIER}def echo(argument): return argument\ndef other(): return 7\n"
    )
    (package / "needy.py").write_text("import a_package_nobody_has\n")
    (package / "broken.py").write_text("def build(argument)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal_text(name: str, kind: PluginKind[Any] = verifier) -> str:
    with refused() as e:
        kind.load(name)
    return str(e.value)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_of_isojaxs_own_files_has_one_plug_in_of_the_kind(kind: PluginKind[Any]) -> None:
    assert kind.names()
    for name in kind.names():
        plugin = kind.load(name)
        assert (plugin.name, plugin.kind, plugin.is_own) == (name, kind, True)
        assert plugin.file.endswith(f"/{kind.folder.replace('.', '/')}/{name}.py")
        assert isinstance(plugin.traits, kind.traits_type) and callable(plugin.function)


def test_a_name_a_module_path_and_a_function_path(fork: Path) -> None:
    assert verifier.load("exact").module == "isojax.tasks.verifiers.exact"
    plugin = verifier.load("plugins_fork.rewards")
    assert plugin("x") == "x" and (plugin.traits.isolated, plugin.traits.pure) == (False, True)
    assert (plugin.name, plugin.is_own) == ("plugins_fork.rewards", False)
    assert plugin.file == str(fork / "plugins_fork" / "rewards.py")
    assert verifier.load("plugins_fork.rewards.echo") == Plugin(
        plugin.function,
        plugin.traits,
        verifier,
        "plugins_fork.rewards.echo",
        plugin.module,
        plugin.file,
    )


def test_what_is_missing_is_said(fork: Path) -> None:
    with refused(where="exat", expected="exact", fix="Did you mean 'exact'?"):
        verifier.load("exat")
    for name in ("plugins_frok.rewards", "plugins_fork.rewards.ecko", "plugins_fork.needy"):
        with refused(where=f"plug-in {name!r}"):
            verifier.load(name)
    with refused(where="losses plug-in 'plugins_fork'") as refusal:
        loss.load("plugins_fork")
    assert refusal.value.fix == ""  # a name is no hint for itself
    with refused(where="plugins_fork.broken", found="broken.py:1: SyntaxError"):
        verifier.load("plugins_fork.broken")


def test_a_file_of_a_name_is_found_in_a_stated_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """isojax's own, then beside the configs (the later first), then in the working directory."""
    folders = [tmp_path / name for name in ("later", "earlier", "working")]
    for folder in folders:
        folder.mkdir()
        text = f"import helper_of_mine\n{VERIFIER}def build(argument): return {folder.name!r}"
        (folder / "a_file_of_mine.py").write_text(text)
        (folder / "helper_of_mine.py").write_text("")
    monkeypatch.chdir(folders[2])
    monkeypatch.setenv("ISOJAX_PLUGIN_FOLDERS", "")
    for expected in ("later", "earlier", "working"):
        set_plugin_folders([str(folder) for folder in folders[:2]])
        assert verifier.load("a_file_of_mine")("") == expected
        assert verifier.load("a_file_of_mine") is verifier.load("a_file_of_mine")
        (tmp_path / expected / "a_file_of_mine.py").unlink()
    places = ", ".join(str(folder / "a_file_of_mine.py") for folder in folders)
    with refused(where="a_file_of_mine", expected=f"a file of your own ({places})"):
        verifier.load("a_file_of_mine")
    (folders[0] / "broken_file.py").write_text("def build(argument)")
    with refused(where="broken_file", found="broken_file.py:1: SyntaxError"):
        verifier.load("broken_file")
    (folders[0] / "empty_file.py").write_text("LIMIT = 3")
    with refused(where="empty_file", found="no function with the decorator @verifier"):
        verifier.load("empty_file")


def test_a_file_with_the_name_of_isojaxs_own_is_not_ignored(fork: Path) -> None:
    (fork / "exact.py").write_text("# a file of another purpose\n")
    assert verifier.load("exact").is_own
    (fork / "exact.py").write_text(f"{VERIFIER}def build(argument): ...")
    own_file = next(own.file for own in verifier.load_own() if own.name == "exact")
    with refused(where=f"{fork}/exact.py", found=own_file, fix="my_exact.py"):
        verifier.load("exact")
    (fork / "exact.py").rename(fork / "my_exact.py")
    assert verifier.load("exact").is_own and not verifier.load("my_exact").is_own


def test_a_function_with_other_arguments_has_its_file_and_line(fork: Path) -> None:
    text = "from isojax.rl.advantages import advantage\n\n\n@advantage\n"
    (fork / "two_arguments.py").write_text(f"{text}def mine(batch, extra):\n    return 1 + 'x'\n")
    with refused(where="two_arguments.py:4", found="positional argument: 'extra'"):
        advantage.load("two_arguments")(None)
    with pytest.raises(TypeError, match="unsupported operand"):
        advantage.load("two_arguments")(None, None)


def test_a_file_that_exits_ends_nothing(fork: Path) -> None:
    (fork / "exits_at_once.py").write_text("import sys; sys.exit(0)")
    with refused(where="exits_at_once", found="exits_at_once.py:1: SystemExit"):
        loss.load("exits_at_once")


def test_of_several_in_a_file_one_is_named(fork: Path) -> None:
    text = "from isojax.rl.losses import loss\nfrom isojax.rl.losses.grpo import grpo\n"
    text += (
        "narrow = loss(clip=0.1)(grpo)\nwide = loss(clip=0.9, advantage='mean')(grpo)\nsame = "
        "wide\n"
    )
    (fork / "two_losses.py").write_text(text)
    with refused(
        where="two_losses", found="2 plug-ins", fix="two_losses.narrow or two_losses.wide"
    ):
        loss.load("two_losses")
    narrow, wide = loss.load("two_losses.narrow"), loss.load("two_losses.wide")
    assert narrow.function is wide.function is loss.load("grpo").function
    # not grpo's advantage_only
    assert (narrow.name, narrow.traits) == ("two_losses.narrow", LossTraits(clip=0.1))
    assert wide.traits == LossTraits(advantage="mean", clip=0.9)


def test_one_that_a_file_imports_counts_where_it_has_none_of_its_own(fork: Path) -> None:
    (fork / "my_dapo.py").write_text("from isojax.rl.losses.dapo import dapo\n")
    assert loss.load("my_dapo") is loss.load("dapo")
    text = "from isojax.rl.losses import loss\nfrom isojax.rl.losses.dapo import dapo\n\n"
    (fork / "my_own.py").write_text(
        f"{text}@loss(clips=False)\ndef mine(*inputs):\n    return dapo(*inputs)\n"
    )
    assert loss.load("my_own").traits == LossTraits(clips=False)


def test_of_two_kinds_that_share_a_setting_the_file_decides(fork: Path) -> None:
    assert load_plugin((device_task, source), "solvers").kind == device_task
    assert load_plugin((device_task, source), "jsonl").kind == source
    text = (
        f"{VERIFIER}def build(argument): ...\n\nfrom isojax.tasks.sources import source\n@source\n"
        "def mine(*_): ...\n"
    )
    (fork / "a_task_and_its_verifier.py").write_text(text)
    assert load_plugin((device_task, source), "a_task_and_its_verifier").kind == source
    assert verifier.load("a_task_and_its_verifier").traits.pure


UNDECORATED = """
from isojax.core.config import PromptConfig
NEEDS_GROUP = True
NEEDS_CRITIC = None
ISOLATED, PURE = True, False
PROMPT = PromptConfig()
VERIFIER = f"function:{__name__}:judge"
ADVANTAGE_ONLY = True
DEFAULTS = {"advantage": "mean", "clip": 0.3}
FIELDS = {"step": ("s",)}

def advantage(batch): ...

def _helper(): ...

@property
def build(argument): ...
"""


@pytest.mark.parametrize(
    ("kind", "decorator"),
    [
        (advantage, "@advantage(needs_group=True)"),
        (aggregation, "@aggregation"),
        (loss, "@loss(advantage_only=True, **DEFAULTS)"),
        (verifier, "@verifier(isolated=True, pure=False)"),
        (source, "@source(prompt=PROMPT, verifier=VERIFIER)"),
        (importer, "@importer(fields=FIELDS)"),
        (exporter, "@exporter(how_to_run=...)"),
    ],
    ids=lambda value: value.name if isinstance(value, PluginKind) else "",
)
def test_a_file_without_the_decorator_is_told_the_line(
    fork: Path, kind: PluginKind[Any], decorator: str
) -> None:
    """What constants of its own once said is said by arguments."""
    module = f"undecorated_{kind.name}"
    (fork / f"{module}.py").write_text(UNDECORATED)
    problem = f"{fork}/{module}.py has no function with the decorator @{kind.name}"
    head = f"`from isojax.{kind.folder} import {kind.name}` at the head of the file"
    for name in (module, f"{module}.advantage"):
        said = (
            f"{problem}. Write `{decorator}` above line 12 (advantage), and {head} "
            f"(docs/extending.md)."
        )
        assert refusal_text(name, kind).endswith(said)


def test_a_reply_is_a_trait_and_no_candidate(fork: Path) -> None:
    (fork / "old_task.py").write_text(
        "def open_it(argument, data): ...\n\ndef reply(problem, turns): ...\n"
    )
    line = "Write `@source(reply=reply)` above line 1 (open_it) (move it below reply), and"
    assert line in refusal_text("old_task", source)
    (fork / "old_order.py").write_text(
        "def reply(problem, turns): ...\n\ndef open_it(argument, data): ...\n"
    )
    assert "Write `@source(reply=reply)` above line 3 (open_it), and" in refusal_text(
        "old_order", source
    )


def test_where_a_file_may_be_of_two_kinds_both_decorators_are_named(fork: Path) -> None:
    (fork / "old_device_task.py").write_text("def build(argument=''): ...\n")
    with refused(where="sources plug-in 'old_device_task'") as e:
        load_plugin((device_task, source), "old_device_task")
    assert "Write `@source` above line 1 (build), and" in str(e.value)
    assert ", or, where it is one, @device_task of isojax.tasks.device (docs/extending.md)." in str(
        e.value
    )


def test_of_several_functions_without_the_decorator_all_are_listed(fork: Path) -> None:
    (fork / "plain.py").write_text("def one(x): ...\ndef two(x): ...\n")
    assert (
        "Write `@aggregation` above line 1 (one) or line 2 (two), whichever it is"
        in refusal_text("plain", aggregation)
    )
    (fork / "named.py").write_text("def loss(x): ...\ndef two(x): ...\n")
    assert "Write `@loss` above line 1 (loss), and" in refusal_text("named", loss)


def test_a_file_in_isojaxs_folder_is_decorated_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain_advantage.py").write_text("def one(batch): ...\n")
    monkeypatch.setattr(advantages, "__path__", [*advantages.__path__, str(tmp_path)])
    assert "Write `@advantage` above line 1 (one)" in refusal_text("plain_advantage", advantage)


def test_a_librarys_function_is_decorated_elsewhere() -> None:
    lines = (
        "`from json import dumps`, `from isojax.rl.losses import loss` and `my_loss = loss(dumps)`"
    )
    assert f"In a file of your own, write {lines} (docs/extending.md)" in refusal_text(
        "json.dumps", loss
    )


@pytest.mark.parametrize(
    ("number", "decorator", "wrong"),
    [
        (1, "@loss(clipp=0.3)", "clipp"),
        (2, "@loss(clip='wide')", "clip = 'wide'"),
        (3, "@loss(clip_high=[1])", "clip_high = [1]"),
        (4, "@loss(advantage=1)", "advantage = 1"),
        (5, "@loss(0.3)", "a float"),
        (6, "@aggregation(pure=True)", "pure"),
        (7, "@verifier(isolated=True)", "no argument pure"),
        (8, "@verifier", "no argument isolated and no pure"),
    ],
)
def test_arguments_that_are_no_traits_have_their_line(
    fork: Path, number: int, decorator: str, wrong: str
) -> None:
    name = f"wrong_traits_{number}"  # a module is imported once
    imports = "from isojax.rl.aggregations import aggregation\nfrom isojax.rl.losses import loss\n"
    imports += "from isojax.tasks.verifiers import verifier\n"
    (fork / f"{name}.py").write_text(f"{imports}\n\n{decorator}\ndef mine(*inputs): ...\n")
    decorator_name = decorator.partition("(")[0]
    with refused(where=f"{name!r}: {name}.py:6: {decorator_name}", found=wrong):
        loss.load(name)


def test_a_decorated_function_is_called_as_itself() -> None:
    @dataclass(frozen=True)
    class Traits:
        unit: str = ""

    measure = PluginKind("measure", "rl.losses", Traits)

    @measure(unit="m")
    def length(x: float, scale: float = 1.0) -> float:
        return x * scale

    @measure
    def width(x: float) -> float:
        return x

    assert (
        length(3.0, scale=2.0) == 6.0 and length.traits == Traits("m") and width.traits == Traits()
    )
    assert measure(unit="cm")(length).function is length.function  # decorated again, not twice
    assert PluginKind("measure", "rl.losses", NoTraits) != measure
