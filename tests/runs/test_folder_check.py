"""A disk that cannot keep a run is refused before any work."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from isojax.runs.folder_check import is_whole, trial_folder
from tests.refusals import refused


def test_a_disk_that_can_is_left_as_it_was(tmp_path: Path) -> None:
    with trial_folder(tmp_path) as trial:
        assert is_whole(trial) and [path.name for path in tmp_path.iterdir()] == [trial.name]
    assert not is_whole(trial) and not list(tmp_path.iterdir())


def test_a_disk_that_renames_no_folders_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As gcsfuse does without --rename-dir-limit."""

    def rename(*_: Path) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "rename", rename)
    with (
        refused(where="run.dir", found="cannot keep a run: Too many open files"),
        trial_folder(tmp_path),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_a_disk_that_loses_what_was_replaced_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "replace", lambda *_: None)
    with refused(where="run.dir", found="does not hold what was written"), trial_folder(tmp_path):
        pass
    assert not list(tmp_path.iterdir())
