"""The one error that a sweep ends with where its cells failed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from isojax.core.config import Config
from isojax.core.errors import RunFailed
from isojax.core.nouns import Cell
from isojax.launch.cell_failures import raise_cell_failures
from isojax.launch.planner import plan_cells
from isojax.rl.losses import loss

CONFIG = Config().with_settings(sweep={"B_p": (8,), "n": (2, 4)})


def test_where_every_run_failed_no_others_are_spoken_of(tmp_path: Path) -> None:
    failures: list[tuple[Cell, Exception]] = [
        (cell, RunFailed("no room")) for cell in plan_cells(CONFIG.sweep)
    ]
    with pytest.raises(RunFailed) as seen:
        raise_cell_failures(failures, len(failures), tmp_path)
    assert seen.value.args[0] == f"2 of 2 runs failed; what was recorded is in {tmp_path}."


def failing(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as e:
        return e
    raise AssertionError


def test_an_error_that_nobody_foresaw_keeps_its_type_and_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = plan_cells(CONFIG.sweep)

    def forget() -> None:
        assert not cells

    decorated = (
        "from isojax.rl.losses import loss\n@loss\ndef forgetful(x):\n    return {}['beta']\n"
    )
    (tmp_path / "forgetful_loss.py").write_text(decorated)
    monkeypatch.chdir(tmp_path)
    plugin = loss.load("forgetful_loss")
    missing = KeyError("foo")
    missing.add_note("a note of\njax's")
    errors = [
        failing(forget),
        missing,
        failing(lambda: plugin(1)),
        OSError(28, "No space left on device", "x"),
    ]
    with pytest.raises(RunFailed) as seen:
        raise_cell_failures(list(zip(cells * 2, errors, strict=True)), 9, tmp_path)
    assertion, key, of_plugin, disk = (line.split(": ", 1)[1] for line in seen.value.args[1:])
    assert (
        re.match(r"test_cell_failures\.py:\d+: AssertionError", assertion)
        and key == "KeyError: 'foo'"
    )
    place = f"{tmp_path / 'forgetful_loss.py'}, line 4"
    assert of_plugin == f"the plug-in failed at {place}: forgetful_loss.py:4: KeyError: 'beta'"
    assert disk == "[Errno 28] No space left on device: 'x'"
