"""A sweep killed at any instant goes on as if nothing had been; a finished one grows without
touching what it has."""

from __future__ import annotations

import json
import shutil
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.compiler import AS_USERS_DO, flags
from tests.runs.test_loggers import curves, event_file

pytestmark = [pytest.mark.slow, pytest.mark.seconds(75)]

# the second of four cells, killed with so many of its 13 lines written
HALF_DONE = "8x2-s1"
LINES = 5
FIT_CLOCKS = ("fit", "runs/tiny", "--compute", "device_hours", "--replicates", "10", "--json")


def kill_in_mid_cell(isojax: Any, *words: str) -> None:
    """Start a sweep and kill -9 it when HALF_DONE has LINES lines."""
    ledger: Path = isojax.run() / "cells" / HALF_DONE / "records.jsonl"
    process = isojax.fork("isojax.launch", "tiny.yaml", *words)
    last = time.monotonic() + 200
    try:
        while not ledger.exists() or ledger.read_bytes().count(b"\n") < LINES:
            assert process.poll() is None and time.monotonic() < last, process.communicate()
            time.sleep(0.002)
    finally:
        process.kill()
        process.communicate()
    assert LINES <= ledger.read_bytes().count(b"\n") < 13, "the cell was finished before the kill"


def check_unbroken(isojax: Any, whole: Any, resumed: str, kept: dict[str, Any]) -> None:
    """The resumed sweep equals the unbroken one, and its first cell was left alone."""
    assert (
        isojax.snapshot("runs", "tiny", "cells", "8x2-s0") == kept
        and "run 8x2-s0: done before" in resumed
    )
    assert resumed.count("done before") == 1
    assert isojax.ledgers() == whole.ledgers()
    assert (isojax.run() / "fit.json").read_bytes() == (whole.run() / "fit.json").read_bytes()
    isojax.quick_ok(*FIT_CLOCKS)  # the clocks next to the records are complete too
    for cell in isojax.ledgers():
        check_curves(isojax, cell)


def check_curves(isojax: Any, cell: str) -> None:
    """A cell's TensorBoard file holds the numbers of each point of its ledger, once."""
    rows, result = isojax.rows(cell), curves(event_file(isojax.run() / "cells" / cell))
    assert [step for step, _ in result] == [row["rollouts"] for row in rows]
    for row, (_, values) in zip(rows, result, strict=True):
        train = {f"train/{name}": value for name, value in row["train"].items()}
        assert values == pytest.approx(
            {**row["metrics"], **train, "M": row["M"], "tokens": row["tokens"]}, rel=1e-6
        )


def states(isojax: Any) -> dict[str, str]:
    """What `isojax status` says of each cell."""
    (sweep,) = json.loads(isojax.quick_ok("status", "runs/tiny", "--json").stdout)["sweeps"]
    return {cell["name"]: cell["state"] for cell in sweep["cells"]}


def test_killed_before_a_checkpoint(isojax: Any, whole: Any) -> None:
    """The half-done cell runs again from its start and finds its first points recorded. --resume
    also starts where nothing is.
    """
    kill_in_mid_cell(isojax, "--resume")
    remaining = isojax.snapshot("runs", "tiny", "cells", "8x2-s0")
    half = isojax.ledgers()[HALF_DONE]
    done = isojax.swept("isojax.launch", "tiny.yaml", "--resume", fit=True)
    check_unbroken(isojax, whole, done.stderr, remaining)
    assert isojax.ledgers()[HALF_DONE].startswith(half[: half.rindex(b"\n") + 1])


def test_killed_between_checkpoints(isojax: Any, whole: Any) -> None:
    """The half-done cell goes on from its checkpoint; a last line torn by the kill, of its records
    or its clocks, is written again.
    """
    kill_in_mid_cell(isojax, "run.checkpoint_seconds=0")
    cell: Path = isojax.run() / "cells" / HALF_DONE
    assert [p for p in (cell / "checkpoint").iterdir() if p.name.isdigit()]
    for name, line in (
        ("records.jsonl", '{"kind": "eval", "target": 2'),
        ("timing.jsonl", '{"kind": "timing", "tar'),
    ):
        with (cell / name).open("a") as f:
            f.write(line)
    remaining = isojax.snapshot("runs", "tiny", "cells", "8x2-s0")
    path = event_file(cell)
    seen, inode = path.read_bytes(), path.stat().st_ino
    assert states(isojax) == {
        "8x2-s0": "done",
        HALF_DONE: "interrupted",
        "8x4-s0": "waiting",
        "8x4-s1": "waiting",
    }
    (sweep,) = json.loads(isojax.quick_ok("status", "runs/tiny", "--json").stdout)["sweeps"]
    begun = next(cell["rollouts"] for cell in sweep["cells"] if cell["name"] == HALF_DONE)
    plan = isojax.quick_ok("isojax.launch", "tiny.yaml", "--resume", "--dry-run").stderr
    left = f"what remains of tiny: {3 * 1856 - begun:,} of {4 * 1856:,} rollouts"
    end = f"{HALF_DONE} has C = {begun:,}"
    assert f"{left}; 1 of 4 runs are done; {end}\n" in plan
    done = isojax.swept(
        "isojax.launch", "tiny.yaml", "--resume", "run.checkpoint_seconds=0", fit=True
    )
    check_unbroken(isojax, whole, done.stderr, remaining)
    # a TensorBoard that is open goes on
    assert path.read_bytes().startswith(seen) and path.stat().st_ino == inode
    assert set(states(isojax).values()) == {"done"}

    # A state that is past what the ledger holds, as a power cut may leave it: the one before it
    # goes on.
    ledger = (cell / "records.jsonl").read_bytes()
    (cell / "records.jsonl").write_bytes(ledger[: ledger.rindex(b'{"kind": "eval"') + 30])
    done = isojax.swept("isojax.launch", "tiny.yaml", "--resume", "run.checkpoint_seconds=0")
    assert "the ledger lacks an evaluation before it; moved to" in " ".join(done.stderr.split())
    assert isojax.ledgers() == whole.ledgers()
    isojax.quick_ok(*FIT_CLOCKS)


def test_killed_before_anything_was_written(isojax: Any) -> None:
    """A kill while config.yaml is written leaves a temporary file, and nothing that stands in the
    way of a new start.
    """
    isojax.run().mkdir(parents=True)
    (isojax.run() / ".config.yaml.12345").write_text("name: ti")
    isojax.quick_ok("isojax.launch", "tiny.yaml", "--resume", "--dry-run")


def test_a_finished_sweep_grows(isojax: Any, whole: Any) -> None:
    isojax.swept("isojax.launch", "tiny.yaml", "sweep.budget=700", "sweep.seeds=1")
    short = isojax.ledgers()
    assert len(short) == 2 and all(ledger.count(b"\n") == 10 for ledger in short.values())

    # More budget goes on where the cells ended, and more seeds begin: the first lines stand, and
    # the rest is what one long run would have written.
    isojax.swept("isojax.launch", "tiny.yaml", "--resume", fit=True)
    assert all(isojax.ledgers()[cell].startswith(ledger) for cell, ledger in short.items())
    assert isojax.ledgers() == whole.ledgers()
    assert (isojax.run() / "fit.json").read_bytes() == (whole.run() / "fit.json").read_bytes()

    # A longer grid runs what is missing, and nothing else.
    cells = isojax.snapshot("runs", "tiny", "cells")
    done = isojax.swept("isojax.launch", "tiny.yaml", "--resume", "sweep.n=[2,3,4]")
    grown = isojax.snapshot("runs", "tiny", "cells")
    assert {path: grown[path] for path in cells} == cells
    assert set(isojax.ledgers()) == {f"8x{n}-s{seed}" for n in (2, 3, 4) for seed in (0, 1)}
    assert done.stderr.count("done before") == 4
    assert [row["target"] for row in isojax.rows("8x3-s1")] == [
        row["target"] for row in whole.rows("8x2-s0")
    ]

    # A finished sweep resumed as it is runs no cell.
    done = isojax.swept("isojax.launch", "tiny.yaml", "--resume", "sweep.n=[2,3,4]")
    assert (
        isojax.snapshot("runs", "tiny", "cells") == grown and done.stderr.count("done before") == 6
    )


@pytest.mark.nightly
def test_more_budget_where_one_update_reaches_two_targets(isojax: Any) -> None:
    """B = 32 passes 60, 72, 86 and 104 at M = 2, 3, 3 and 4. A budget that ends between 72 and 86,
    then a larger one: no C stands twice.

    Compiled as users do, as the other resumptions are not."""
    words = ("tiny.yaml", "cell.eval.start=20", "cell.eval.ratio=1.2", "sweep.n=[4]")
    words += ("sweep.seeds=1",)
    usual = flags(AS_USERS_DO)
    isojax.swept("train", *words, "sweep.budget=80", XLA_FLAGS=usual)
    short = isojax.ledgers()
    assert [row["rollouts"] for row in isojax.rows("8x4-s0")] == [0, 32, 64, 96]
    isojax.swept("train", *words, "--resume", "sweep.budget=300", XLA_FLAGS=usual)
    assert all(isojax.ledgers()[cell].startswith(ledger) for cell, ledger in short.items())
    for cell in isojax.ledgers():
        rollouts = [row["rollouts"] for row in isojax.rows(cell)]
        assert all(a < b for a, b in pairwise(rollouts)), rollouts
    isojax.swept("train", *words, "sweep.budget=300", "name=at-once", XLA_FLAGS=usual)
    assert isojax.ledgers("at-once") == isojax.ledgers()


def test_a_line_lost_from_a_finished_ledger_is_measured_again(isojax: Any, whole: Any) -> None:
    """The saved state is past the lost line, so the cell runs again from its start and finds the
    other points recorded.
    """
    shutil.copytree(whole.run(), isojax.run())
    ledger: Path = isojax.run() / "cells" / HALF_DONE / "records.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[:-1]))
    isojax.swept("isojax.launch", "tiny.yaml", "--resume")
    assert isojax.ledgers() == whole.ledgers()


def test_a_run_that_diverges_is_recorded(isojax: Any) -> None:
    """A learning rate that no policy survives: exit code 1, and the reason in the ledger."""
    done = isojax.quick(
        "isojax.launch",
        "tiny.yaml",
        "cell.rl.learning_rate=1e9",
        "sweep.n=[2]",
        "sweep.seeds=1",
        fit=False,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr and "not finite" in done.stderr
    last = json.loads(
        (isojax.run() / "cells" / "8x2-s0" / "records.jsonl").read_text().splitlines()[-1]
    )
    assert last["kind"] == "failed" and "not finite" in last["reason"]
