"""Plug-ins by name or path, and what a refusal says is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from isojax.core.errors import InputError
from isojax.core.registry import load, set_plugin_folders


@pytest.fixture
def fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with the package `registry_fork`."""
    (tmp_path / "registry_fork").mkdir()
    (tmp_path / "registry_fork" / "__init__.py").write_text("")
    (tmp_path / "registry_fork" / "rewards.py").write_text(
        "def build(argument): return argument\ndef other(): return 7\n"
    )
    (tmp_path / "registry_fork" / "needy.py").write_text("import a_package_nobody_has\n")
    (tmp_path / "registry_fork" / "broken.py").write_text("def build(argument)\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def refused(name: str, *functions: str) -> str:
    with pytest.raises(InputError) as e:
        load("tasks.verifiers", name, *functions)
    return str(e.value)


def test_a_name_a_module_path_and_a_function_path(fork: Path) -> None:
    assert load("tasks.verifiers", "exact", "build").__name__ == "isojax.tasks.verifiers.exact"
    assert load("tasks.verifiers", "registry_fork.rewards", "build").build("x") == "x"
    assert load("tasks.verifiers", "registry_fork.rewards.other", "build").build() == 7


def test_what_is_missing_is_said(fork: Path) -> None:
    assert "plug-in 'exat': no such module; expected one of exact" in refused("exat", "build")
    assert refused("exat", "build").endswith("Did you mean 'exact'?")
    assert "plug-in 'registry_frok.rewards': no such module" in refused("registry_frok.rewards", "build")
    assert "the module registry_fork.rewards has no function and no submodule 'oter'" in refused(
        "registry_fork.rewards.oter", "build"
    )
    assert "the module registry_fork.rewards has no function judge" in refused("registry_fork.rewards", "judge")
    assert "Did you mean" not in refused("exact", "judge")  # a name is no hint for itself
    assert "needs the module a_package_nobody_has, which is not there" in refused("registry_fork.needy", "build")
    assert "cannot be imported: broken.py:1: SyntaxError: expected ':'" in refused("registry_fork.broken")


def test_a_file_of_a_name_is_found_in_a_stated_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """isojax's own, then beside the configs (the later first), then in the working directory."""
    folders = [tmp_path / name for name in ("later", "earlier", "working")]
    for folder in folders:
        folder.mkdir()
        (folder / "a_file_of_mine.py").write_text(f"import helper_of_mine\ndef build(argument): return {folder.name!r}")
        (folder / "helper_of_mine.py").write_text("")
        (folder / "exact.py").write_text("def build(argument): return 'not reached'")
    monkeypatch.chdir(folders[2])
    monkeypatch.setenv("ISOJAX_PLUGIN_FOLDERS", "")
    for expected in ("later", "earlier", "working"):
        set_plugin_folders([str(folder) for folder in folders[:2]])
        assert load("tasks.verifiers", "a_file_of_mine", "build").build("") == expected
        assert load("tasks.verifiers", "a_file_of_mine", "build") is load("tasks.verifiers", "a_file_of_mine", "build")
        (tmp_path / expected / "a_file_of_mine.py").unlink()
    assert load("tasks.verifiers", "exact", "build").__name__ == "isojax.tasks.verifiers.exact"
    places = ", ".join(str(folder / "a_file_of_mine.py") for folder in folders)
    assert f", a file of your own ({places}), or the module path of" in refused("a_file_of_mine", "build")
    (folders[0] / "broken_file.py").write_text("def build(argument)")
    assert "'broken_file' cannot be imported: broken_file.py:1: SyntaxError: expected ':'" in refused("broken_file")
    (folders[0] / "other_file.py").write_text("def judge(argument): ...")
    assert "'other_file': the module other_file has no function build" in refused("other_file", "build")


def test_a_file_that_exits_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "exits_at_once.py").write_text("import sys; sys.exit(0)")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"'exits_at_once' cannot be imported: exits_at_once.py:1: SystemExit"):
        load("rl.losses", "exits_at_once", "loss")
