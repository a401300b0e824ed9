"""What a run meets on a real machine: a full disk, damaged files, SIGTERM. It says what has
happened, loses nothing that was recorded, and goes on to the bits of a run that met nothing."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command_line import SCRIPT, SECONDS, Fork, Isojax, Nursery
from tests.e2e.test_text import FLAGS, prepare

pytestmark = [pytest.mark.slow, pytest.mark.seconds(60)]

WORDS = (
    "train",
    "tiny.yaml",
    "sweep.n=[4]",
    "sweep.seeds=1",
    "run.checkpoint_seconds=0",
    "--resume",
)
CELL = Path("cells", "8x4-s0")
TEXT = (
    "train",
    "sums.yaml",
    "sweep.n=[4]",
    "cell.rl.max_staleness=2",
    "run.checkpoint_seconds=0",
    "--resume",
)


def left(
    place: Isojax, name: str = "tiny", cell: Path = CELL
) -> tuple[bytes, bytes, dict[str, Any]]:
    """What a run leaves that is to be equal: its ledger, its samples, and of its last checkpoint
    what the host knew, with a checksum of every array."""
    folder = place.run(name) / cell
    return (
        (folder / "records.jsonl").read_bytes(),
        (folder / "samples.txt").read_bytes(),
        host_data(newest(folder)[-1]),
    )


def newest(cell: Path) -> list[Path]:
    """The checkpoints, in the order of their updates."""
    return sorted(
        (p for p in (cell / "checkpoint").iterdir() if p.name.isdigit()), key=lambda p: int(p.name)
    )


def host_data(checkpoint: Path, item: str = "host") -> dict[str, Any]:
    return json.loads((checkpoint / item / "metadata").read_text())


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Isojax:
    """Where the run has met nothing; to be read only."""
    location = Isojax(tmp_path_factory.mktemp("unbroken") / "work", nursery)
    location.swept(*WORDS)
    return location


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Isojax:
    """Where it has used a third of its budget; to be copied."""
    location = Isojax(tmp_path_factory.mktemp("half") / "work", nursery)
    location.swept(*WORDS, "sweep.budget=800")
    return location


@pytest.fixture
def begun(isojax: Isojax, half: Isojax) -> Isojax:
    shutil.copytree(half.run(), isojax.run())
    return isojax


def largest(checkpoint: Path) -> Path:
    """The file that holds most of the numbers."""
    return max(
        (p for p in (checkpoint / "state").rglob("d/*") if p.is_file()),
        key=lambda p: p.stat().st_size,
    )


def flip(path: Path) -> None:
    """A bit of every 256 bytes: not all of a file is in use."""
    data = bytearray(path.read_bytes())
    data[::256] = bytes(byte ^ 16 for byte in data[::256])
    path.write_bytes(data)


def test_damaged_checkpoints(begun: Isojax, unbroken: Isojax) -> None:
    """Where all are damaged, the cell starts again from the base policy; the damaged ones stay for
    a person to look at. Where the newest alone is, the one before is taken, as
    tests/train/test_checkpoint.py shows; a run goes on from such a one below.
    """
    *earlier, last = newest(begun.run() / CELL)
    assert len(earlier) == 1
    for checkpoint in (last, *earlier):
        flip(largest(checkpoint))
    done = begun.swept(*WORDS)
    lines = [
        line for line in done.stderr.splitlines() if line.startswith("warning: the checkpoint ")
    ]
    assert (
        str(last) in lines[0]
        and f"checkpoint-damaged-{last.name}; going on from the one of update {earlier[0].name}"
        in lines[0]
    )
    assert (
        str(earlier[0]) in lines[1] and "there is none before it: the cell starts again" in lines[1]
    )
    assert len(lines) == 2
    assert left(begun) == left(unbroken)
    assert (begun.run() / CELL / f"checkpoint-damaged-{last.name}" / "state").is_dir()


@pytest.mark.parametrize("what", ["the ledger", "a checkpoint"])
def test_a_full_disk(begun: Isojax, unbroken: Isojax, what: str) -> None:
    """One message with the place and the mending, exit code 1; with room again it goes on."""
    ledger = begun.run() / CELL / "records.jsonl"
    before = ledger.read_bytes()
    limit = {"the ledger": len(before) + 1000, "a checkpoint": 16000}[
        what
    ]  # the ledger has 8 KiB in the end, an array 8
    rarely = "run.checkpoint_seconds=1000" if what == "the ledger" else "run.checkpoint_seconds=0"
    done = begun.quick(*WORDS, rarely, file_bytes=limit)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    [error] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert (
        error.startswith("error: 8x4-s0: ")
        and "File too large" in error
        and "continue with --resume." in error
    )
    assert (
        f"runs/tiny/{CELL}/records.jsonl"
        if what == "the ledger"
        else "a checkpoint cannot be written to"
    ) in error
    assert ledger.read_bytes().startswith(before)
    begun.swept(*WORDS)
    assert left(begun) == left(unbroken)


def test_killed_between_the_last_point_and_the_last_state(isojax: Isojax, unbroken: Isojax) -> None:
    """The cell is trained to its end again; one whose states somebody has removed is left alone."""
    shutil.copytree(unbroken.run(), isojax.run())
    shutil.rmtree(newest(isojax.run() / CELL)[-1])
    isojax.swept(*WORDS)
    assert left(isojax) == left(unbroken)
    shutil.rmtree(isojax.run() / CELL / "checkpoint")
    assert "done before" in isojax.swept(*WORDS).stderr


def sigterm(process: subprocess.Popen[str] | Fork, ledger: Path, lines: int) -> None:
    """SIGTERM when the ledger has so many lines: the process says that its state is saved, and the
    whole command to go on.
    """
    with process:
        last = time.monotonic() + SECONDS
        while not ledger.exists() or ledger.read_bytes().count(b"\n") < lines:
            assert process.poll() is None and time.monotonic() < last, process.communicate()
            time.sleep(0.002)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 143 and "Traceback" not in err, err
    said, found, command = err.splitlines()[-1].partition("have saved their state. Go on by: ")
    assert said.startswith("stopped: ") and found, err
    began = [word for word in process.args if word not in (sys.executable, "-c", SCRIPT)]
    resume = [] if "--resume" in began else ["--resume"]
    assert shlex.split(command) == ["isojax", *began, *resume], err


def test_sigterm(isojax: Isojax, unbroken: Isojax) -> None:
    sigterm(
        isojax.start(*WORDS, "run.checkpoint_seconds=1000"),
        isojax.run() / CELL / "records.jsonl",
        4,
    )
    checkpoints = newest(isojax.run() / CELL)
    assert checkpoints, "the state is saved because it was asked to end, and only then"
    evaluation = host_data(checkpoints[-1])["evaluation"]
    seconds = host_data(checkpoints[-1], "clock")["seconds"]
    isojax.swept(*WORDS)
    assert left(isojax) == left(unbroken)
    timing = (isojax.run() / CELL / "timing.jsonl").read_text().splitlines()
    assert json.loads(timing[evaluation + 1])["seconds"] > seconds > 0  # of both starts


def test_sigterm_and_damage_while_an_asynchronous_run_has_rollouts_under_way(
    isojax: Isojax,
) -> None:
    """A language model whose sampler is two updates ahead. What is under way is a part of a
    checkpoint, and checked as the rest is.
    """
    prepare(isojax)
    isojax.swept(*TEXT, "name=whole", XLA_FLAGS=FLAGS)
    cell = Path("cells", "4x4-s0")
    location = isojax.run("broken") / cell
    sigterm(isojax.fork(*TEXT, "name=broken", XLA_FLAGS=FLAGS), location / "records.jsonl", 4)
    last = newest(location)[-1]
    assert host_data(last)["pending"]["next_batch"] == int(last.name) + 3
    for path in (last / "pending").rglob("d/*"):
        flip(path)
    done = isojax.swept(*TEXT, "name=broken", XLA_FLAGS=FLAGS)
    assert f"warning: the checkpoint {last}" in done.stderr
    assert left(isojax, "broken", cell) == left(isojax, "whole", cell)
