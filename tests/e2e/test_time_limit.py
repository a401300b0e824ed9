"""Sessions that end by run.time_limit, each on another machine: the sweep's folder is moved after
each. Tasks in text, a bucket and `isojax difficulty`: tests/e2e/test_text.py; `isojax spend`:
tests/e2e/test_spend.py."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command_line import Isojax, Nursery
from tests.e2e.test_faults import left, newest

pytestmark = [pytest.mark.slow, pytest.mark.seconds(30)]

# The sweep's runs, in the order in which they are trained: 116 and 58 updates.
CELLS = ("8x2-s0", "8x4-s0")


def train_until(place: Isojax, point: str) -> None:
    """A session whose time limit is reached at a point; at once, by the clock, where that is ""."""
    environment = {"time_limit_at": point} if point else {}
    limit = "8h" if point else "1s"  # the process that the command is a fork of is older than this
    done = place.quick(
        "isojax.launch",
        "tiny.yaml",
        "sweep.seeds=1",
        "--resume",
        f"run.dir={place.folder / 'runs'}",
        f"run.time_limit={limit}",
        "run.checkpoint_seconds=0",
        fit=False,
        **environment,
    )
    assert done.returncode == 143 and "Traceback" not in done.stderr, done.stderr
    last_line = done.stderr.splitlines()[-1]
    assert last_line.startswith("stopped: ") and "asked to end (run.time_limit)" in last_line
    assert "Go on by: python -m isojax.launch tiny.yaml sweep.seeds=1 --resume" in last_line


def moved(place: Isojax, name: str, nursery: Nursery) -> Isojax:
    """What is there, on another machine: at another absolute path, and gone from the first."""
    folder = place.folder.with_name(name)
    shutil.move(place.folder, folder)
    return Isojax(folder, nursery)


def checkpoints(place: Isojax, cell: str) -> list[int]:
    """The updates after which a run has checkpoints, the newest last."""
    folder = place.run() / "cells" / cell
    return [int(path.name) for path in newest(folder)] if folder.exists() else []


def results(place: Isojax, cell: str) -> tuple[bytes, bytes, dict[str, Any]]:
    """A run's ledger, its samples, and a checksum of every array of its newest checkpoint.

    Not what that checkpoint knows besides: one that was saved between the last update and the last
    evaluation stays, and lacks the evaluation, which the ledger has.
    """
    ledger, samples, host = left(place, cell=Path("cells", cell))
    return ledger, samples, host["checksums"]


def test_a_sweep_in_six_sessions_leaves_the_bits_of_one(
    isojax: Isojax, whole: Isojax, nursery: Nursery
) -> None:
    train_until(isojax, "")  # while its problems are labelled
    assert not (isojax.run() / "cells").exists()

    place = moved(isojax, "first-checkpoint", nursery)
    train_until(place, "checkpoint")
    assert checkpoints(place, "8x2-s0")[-1] < 40

    place = moved(place, "middle", nursery)
    train_until(place, "8x2-s0 at 40")
    assert 40 <= checkpoints(place, "8x2-s0")[-1] < 100

    # With all its updates made, and the last evaluation not.
    place = moved(place, "near-the-end", nursery)
    train_until(place, "8x2-s0 at 116")
    assert checkpoints(place, "8x2-s0")[-1] == 116
    assert place.ledgers()["8x2-s0"] != whole.ledgers()["8x2-s0"]

    place = moved(place, "between-two-runs", nursery)
    train_until(place, "8x2-s0 ends")
    assert place.ledgers() == {"8x2-s0": whole.ledgers()["8x2-s0"]}

    place = moved(place, "last", nursery)
    done = place.swept("isojax.launch", "tiny.yaml", "sweep.seeds=1", "--resume")
    assert done.stderr.count("done before") == 1
    for cell in CELLS:
        assert results(place, cell) == results(whole, cell), cell
