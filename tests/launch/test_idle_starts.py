"""A sweep that is started again and again, and records nothing, is refused at last."""

from __future__ import annotations

from pathlib import Path

import pytest

from isojax.launch.idle_starts import count_start
from isojax.launch.resume import STARTS_FILE, holds_run
from tests.refusals import refused


def record(folder: Path, what: str) -> None:
    path = folder / what
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("a line\n")


@pytest.mark.parametrize(
    "what",
    ["base/labels.jsonl", "cells/8x4-s0/records.jsonl", "cells/8x4-s0/checkpoint/16/state"],
)
def test_starts_that_record_something_are_not_counted(tmp_path: Path, what: str) -> None:
    for M in range(5):
        record(tmp_path, what.replace("16", str(16 + M)))
        count_start(tmp_path, 2)


def test_the_start_after_as_many_idle_ones_is_refused_and_the_next_is_not(tmp_path: Path) -> None:
    record(tmp_path, "cells/8x4-s0/records.jsonl")
    for _ in range(2):
        count_start(tmp_path, 2)
        # what a kill in the middle of a save leaves is no checkpoint
        record(tmp_path, "cells/8x4-s0/checkpoint/16.orbax-checkpoint-tmp/state")
    with refused(where="run.max_idle_starts", found="recorded nothing"):
        count_start(tmp_path, 2)
    count_start(tmp_path, 2)


def test_progress_begins_the_count_anew(tmp_path: Path) -> None:
    for _ in range(3):
        count_start(tmp_path, 2)
        count_start(tmp_path, 2)
        record(tmp_path, "cells/8x4-s0/records.jsonl")


def test_without_a_limit_nothing_is_written(tmp_path: Path) -> None:
    for _ in range(9):
        count_start(tmp_path, None)
    assert not list(tmp_path.iterdir())


def test_a_count_alone_is_no_run(tmp_path: Path) -> None:
    """A start that was killed before it saved its config may be repeated without --resume. A file
    of others by that name counts as none."""
    count_start(tmp_path, 2)
    assert (tmp_path / STARTS_FILE).exists() and not holds_run(tmp_path, resume=False)
    (tmp_path / STARTS_FILE).write_text("[]")
    count_start(tmp_path, 1)
