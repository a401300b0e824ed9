"""A run goes on when its terminal, or the `head` that it prints to, goes away; `isojax status`
tells. A command that is no run ends quietly."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from isojax.core import machine
from isojax.launch.status_file import DriverStatus, read_status
from isojax.launch.sweep_status import read_sweep_status
from tests.e2e.command_line import SCRIPT, SECONDS, Isojax, settings

pytestmark = [pytest.mark.slow, pytest.mark.seconds(30)]

WORDS = ("launch", "tiny.yaml", "--no-report")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def lost_status(folder: Path) -> DriverStatus | None:
    status = read_status(folder) if folder.exists() else None
    return status if status is not None and status.output_lost is not None else None


def start_on_terminal(isojax: Isojax) -> tuple[subprocess.Popen[bytes], int]:
    """The run as the leader of a terminal's session, and the terminal's other end."""
    environment = {
        k: v for k, v in settings().items() if k not in ("NO_COLOR", machine.TUNABLES_VARIABLE)
    }
    terminal, own_end = pty.openpty()
    take_terminal = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", take_terminal + SCRIPT, *WORDS],
        cwd=isojax.folder,
        env=environment | {"TERM": "xterm"},
        stdin=own_end,
        stdout=own_end,
        stderr=own_end,
        start_new_session=True,
    )
    os.close(own_end)
    return process, terminal


def test_a_run_outlives_its_terminal(isojax: Isojax, whole: Isojax) -> None:
    """Closing a terminal's other end sends SIGHUP to its session, and every write fails from then
    on."""
    process, terminal = start_on_terminal(isojax)
    os.set_blocking(terminal, False)

    def has_begun() -> bool:
        with suppress(BlockingIOError):
            os.read(terminal, 65536)
        return (isojax.run() / "cells" / "8x2-s0" / "records.jsonl").exists()

    try:
        wait_until(has_begun)
    finally:
        os.close(terminal)
    wait_until(lambda: lost_status(isojax.run()) is not None)
    status, sweep = lost_status(isojax.run()), read_sweep_status(isojax.run())
    assert status is not None and status.pid == process.pid
    if sweep.running:
        assert (
            f"nobody reads what process {process.pid} on" in sweep.unread
            and f"kill {process.pid}" in sweep.unread
        )
    assert process.wait(SECONDS) == 0
    assert isojax.ledgers() == whole.ledgers()
    assert (lost_status(isojax.run()) or status).ended and read_sweep_status(
        isojax.run()
    ).unread == ""


def test_a_run_outlives_head(isojax: Isojax, whole: Isojax) -> None:
    """Both streams into a pipe that is closed after a line; and the sweep goes on in a terminal
    afterwards."""
    reader, writer = os.pipe()
    command = [sys.executable, "-c", SCRIPT, *WORDS]
    with subprocess.Popen(
        command, cwd=isojax.folder, env=settings(), stdout=writer, stderr=writer
    ) as process:
        os.close(writer)
        assert b"tiny" in os.read(reader, 64)
        os.close(reader)
        assert process.wait(SECONDS) == 0
    assert isojax.ledgers() == whole.ledgers() and (isojax.run() / "fit.json").exists()
    status = lost_status(isojax.run())
    assert status is not None and status.ended and status.pid == process.pid
    isojax.swept(*WORDS, "--resume")
    assert lost_status(isojax.run()) is None


def test_sigterm_still_saves_a_run_without_a_terminal(isojax: Isojax, whole: Isojax) -> None:
    """SIGHUP is ignored, by the processes that a run starts too; SIGTERM is not."""
    with isojax.start(*WORDS, "run.checkpoint_seconds=1000") as process:
        wait_until((isojax.run() / "cells" / "8x2-s0" / "records.jsonl").exists)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        err = process.communicate(timeout=SECONDS)[1]
    assert process.returncode == 143 and "have saved their state" in err, err
    isojax.swept(*WORDS, "--resume")
    assert isojax.ledgers() == whole.ledgers()


@pytest.mark.parametrize(
    "words", [("status", "runs/tiny"), ("fit", "runs/tiny", "--json"), ("--help",)]
)
def test_other_commands_end_as_tools_do(whole: Isojax, words: tuple[str, ...]) -> None:
    """Nothing on standard error; 141 is what a shell says of a program that SIGPIPE ended."""
    command = [sys.executable, "-c", SCRIPT, *words]
    with subprocess.Popen(
        command, cwd=whole.folder, env=settings(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (141, b"")


def test_a_full_disk_is_no_closed_pipe(whole: Isojax) -> None:
    command = [sys.executable, "-c", SCRIPT, "fit", "runs/tiny", "--json"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command,
            cwd=whole.folder,
            env=settings(),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=SECONDS,
            check=False,
        )
    assert done.returncode == 1
    assert (
        done.stderr == b"error: cannot write what this command prints: No space left on device.\n"
    )
    assert json.loads((whole.run() / "fit.json").read_text())
