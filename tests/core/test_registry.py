"""Plug-ins by name or path, and what a refusal says is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from isojax.core.errors import InputError
from isojax.core.registry import load


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
    assert "needs the module a_package_nobody_has, which is not there" in refused("registry_fork.needy", "build")
    assert "cannot be imported: SyntaxError: expected ':' (broken.py, line 1)" in refused("registry_fork.broken")
