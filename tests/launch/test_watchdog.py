"""watchdogs: the processes of a run end together, whatever ends one of them, and a line says which."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isojax.launch.watchdog import GRACE_SECONDS

# A process of a run that hangs, as in a collective, until it receives how to go on.
MEMBER = """
import os, socket, sys, time
from isojax.launch.watchdog import WatchdogClient
process, port = int(sys.argv[1]), int(sys.argv[2])
listener = socket.socket(fileno=int(sys.argv[3])) if sys.argv[3] else None
leave = (lambda: None) if sys.argv[4] == "deaf" else (lambda: os._exit(1))
watch = WatchdogClient(process, 3, "127.0.0.1", port, listener, leave)
print(watch._watchdog.pid, flush=True)
how = sys.stdin.readline().strip()
if how in ("well", "failed"):
    watch.close(succeeded=how == "well")
    sys.exit(0 if how == "well" else 2)
os.abort() if how == "abort" else time.sleep(60)
"""


class Run:
    """Three processes with watchdogs."""

    def __init__(self, folder: Path, deaf: int = -1):
        listener = socket.create_server(("", 0))
        port, fd = listener.getsockname()[1], listener.fileno()
        self.errors = [folder / f"error{i}" for i in range(3)]
        self.members: list[subprocess.Popen[str]] = []
        for i in range(3):
            words = [str(i), str(port), str(fd) if i == 0 else "", "deaf" if i == deaf else ""]
            with self.errors[i].open("w") as error:
                command, fds = [sys.executable, "-c", MEMBER, *words], (fd,) if i == 0 else ()
                member = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=error, pass_fds=fds, text=True
                )
            self.members.append(member)
        listener.close()
        self.watchdogs = [int(member.stdout.readline()) for member in self.members if member.stdout is not None]
        time.sleep(2)  # until all watchdogs have met, also where processors are busy

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.kill()
            member.communicate()

    def tell(self, i: int, how: str) -> None:
        stdin = self.members[i].stdin
        assert stdin is not None
        stdin.write(how + "\n")
        stdin.flush()

    def codes(self, within: float) -> list[int]:
        last = time.monotonic() + within
        return [member.wait(max(0.1, last - time.monotonic())) for member in self.members]

    def said(self, i: int) -> str:
        """What it has said by now, and what its watchdog has."""
        last = time.monotonic() + 2
        while not self.errors[i].read_text() and time.monotonic() < last:
            time.sleep(0.02)
        return self.errors[i].read_text()


@pytest.mark.parametrize("dead", [0, 1, 2])
def test_a_death_ends_all(tmp_path: Path, dead: int) -> None:
    """Killed, process 0 with the listening watchdog or another: the others are gone at once, and name it."""
    with Run(tmp_path) as run:
        run.members[dead].send_signal(signal.SIGKILL)
        assert [code for i, code in enumerate(run.codes(5)) if i != dead] == [1, 1]
        pid, host = run.members[dead].pid, socket.gethostname()
        for i in {0, 1, 2} - {dead}:
            assert run.said(i).startswith(
                f"error: process {dead} of 3 (on {host}, pid {pid}) ended before the run did, so process {i} of 3"
            )
            assert run.said(i).count("error:") == 1 and "--resume" in run.said(i)


def test_one_that_aborts_itself_names_the_lost_process(tmp_path: Path) -> None:
    """As JAX does it to all processes when the first is gone. The watchdog is stopped until its parent has ended."""
    with Run(tmp_path) as run:
        os.kill(run.watchdogs[1], signal.SIGSTOP)
        run.members[0].send_signal(signal.SIGKILL)
        assert run.members[0].wait(5) == -signal.SIGKILL
        run.tell(1, "abort")
        assert run.members[1].wait(5) == -signal.SIGABRT
        os.kill(run.watchdogs[1], signal.SIGCONT)
        assert "process 0 of 3" in run.said(1)


def test_one_that_cannot_end_itself_is_killed(tmp_path: Path) -> None:
    with Run(tmp_path, deaf=2) as run:
        run.members[1].send_signal(signal.SIGKILL)
        assert run.codes(GRACE_SECONDS + 5)[2] == -signal.SIGKILL


def test_a_good_end_is_no_death(tmp_path: Path) -> None:
    """Whoever ends first, and whatever the others still do."""
    with Run(tmp_path) as run:
        for i in (2, 0):
            run.tell(i, "well")
            time.sleep(0.3)
        assert run.members[1].poll() is None
        run.tell(1, "well")
        assert run.codes(5) == [0, 0, 0] and not any(error.read_text() for error in run.errors)


def test_an_error_of_all_is_reported_once_by_each(tmp_path: Path) -> None:
    """Processes that fail alike have the time to; one that does not fail is ended."""
    with Run(tmp_path) as run:
        for i in range(3):
            run.tell(i, "failed")
        assert run.codes(5) == [2, 2, 2] and not any(error.read_text() for error in run.errors)
    with Run(tmp_path) as run:
        run.tell(2, "failed")
        assert run.codes(GRACE_SECONDS + 5) == [1, 1, 2] and "process 2 of 3" in run.said(1)


def test_a_watchdog_that_process_0_does_not_answer_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    inputs = {"name": "process 1 of 2", "address": "127.0.0.1", "port": port, "listener": None}
    done = subprocess.run(
        [sys.executable, "-m", "isojax.launch.watchdog", json.dumps(inputs)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (
        done.returncode == 1
        and done.stderr.startswith("warning: process 1 of 2 does not reach")
        and done.stderr.count("\n") == 1
    )
