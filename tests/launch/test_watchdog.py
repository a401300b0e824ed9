"""watchdogs: the processes of a run end together, whatever ends one of them, and a line says
which."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from isojax.launch import watchdog
from isojax.launch.local.join_processes import listen_narrowly
from isojax.launch.watchdog import (
    BEAT_SECONDS,
    GRACE_SECONDS,
    MAX_STRANGERS,
    SILENT_BEATS,
    TOKEN_VARIABLE,
    UNREACHABLE_CODE,
)

pytestmark = [pytest.mark.slow, pytest.mark.seconds(70)]

# A process of a run that hangs, as in a collective, until it receives how to go on.
MEMBER = """
import os, socket, sys, time
from isojax.launch.watchdog_client import WatchdogClient
process, port = int(sys.argv[1]), int(sys.argv[2])
listener = socket.socket(fileno=int(sys.argv[3])) if sys.argv[3] else None
leave = (lambda code: None) if sys.argv[4] == "deaf" else os._exit
watch = WatchdogClient(process, 3, "127.0.0.1", port, "run-secret", listener, leave)
listener and listener.close()
print(watch._watchdog.pid, flush=True)
how = sys.stdin.readline().strip()
if how in ("well", "failed"):
    watch.__exit__(None if how == "well" else RuntimeError)
    sys.exit(0 if how == "well" else 2)
os.abort() if how == "abort" else time.sleep(60)
"""


class Run:
    """Three processes with watchdogs."""

    def __init__(self, folder: Path, deaf: int = -1, processes: int = 3):
        listener = socket.create_server(("127.0.0.1", 0))
        port, fd = listener.getsockname()[1], listener.fileno()
        self.port = port
        self.errors = [folder / f"error{i}" for i in range(processes)]
        self.members: list[subprocess.Popen[str]] = []
        for i in range(processes):
            words = [str(i), str(port), str(fd) if i == 0 else "", "deaf" if i == deaf else ""]
            with self.errors[i].open("w") as error:
                command = [sys.executable, "-c", MEMBER, *words]
                fds = (fd,) if i == 0 else ()
                member = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=error,
                    pass_fds=fds,
                    text=True,
                )
            self.members.append(member)
        listener.close()
        self.watchdogs = [
            int(member.stdout.readline()) for member in self.members if member.stdout is not None
        ]
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

    def signal_host(self, i: int, signal_number: int) -> None:
        """To the process and to its watchdog."""
        for pid in (self.members[i].pid, self.watchdogs[i]):
            os.kill(pid, signal_number)

    def said(self, i: int) -> str:
        """What it has said by now, and what its watchdog has."""
        last = time.monotonic() + 2
        while not self.errors[i].read_text() and time.monotonic() < last:
            time.sleep(0.02)
        return self.errors[i].read_text()


@pytest.mark.parametrize("dead", [0, 1])
def test_a_death_ends_all(tmp_path: Path, dead: int) -> None:
    """Killed, process 0 with the listening watchdog or another: the others are gone at once, and
    name it."""
    with Run(tmp_path) as run:
        run.members[dead].send_signal(signal.SIGKILL)
        # 75, not 1: nothing is wrong with the run, which goes on by --resume
        assert [code for i, code in enumerate(run.codes(5)) if i != dead] == [75, 75]
        pid, host = run.members[dead].pid, socket.gethostname()
        for i in {0, 1, 2} - {dead}:
            assert run.said(i).startswith(
                f"error: process {dead} of 3 (on {host}, pid {pid}) ended before the run did, so "
                f"process {i} of 3"
            )
            assert run.said(i).count("error:") == 1 and "--resume" in run.said(i)


def test_one_that_aborts_itself_names_the_lost_process(tmp_path: Path) -> None:
    """As JAX does it to all processes when the first is gone. The watchdog is stopped until its
    parent has ended."""
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


def test_silence_ends_all(tmp_path: Path) -> None:
    """20 seconds of it: of a frozen host, of a stopped process, of a host that is cut off. All at
    once, as each takes its time; beside them a run that is suspended as a whole for longer, and
    goes on."""
    silence = BEAT_SECONDS * SILENT_BEATS
    folders = [tmp_path / name for name in ("frozen", "stopped", "cut_off", "suspended")]
    for folder in folders:
        folder.mkdir()

    frozen, stopped, suspended = (Run(folders[i]) for i in (0, 1, 3))
    cut_off = Run(folders[2], processes=2)
    with frozen, stopped, cut_off, suspended:
        # It has the token, and never beats.
        silent = connect(cut_off.port, b"hello run-secret process 2 of 3 (silent)\n")
        frozen.signal_host(0, signal.SIGSTOP)
        stopped.members[1].send_signal(signal.SIGSTOP)
        for i in range(3):
            suspended.signal_host(i, signal.SIGSTOP)
        began = time.monotonic()

        time.sleep(silence - 2)
        going_on = [*frozen.members[1:], *stopped.members, *cut_off.members]
        assert [member.poll() for member in going_on] == [None] * 7

        by_its_watchdog = -signal.SIGKILL
        assert [member.wait(12) for member in frozen.members[1:]] == [75, 75]
        assert stopped.codes(5) == [75, by_its_watchdog, 75] and cut_off.codes(5) == [75, 75]
        assert time.monotonic() - began < 30

        gave_no_sign = "gave no sign for 20 seconds"
        assert f"pid {frozen.members[0].pid}) {gave_no_sign}" in frozen.said(2)
        assert f"pid {stopped.members[1].pid}) {gave_no_sign}" in stopped.said(0)
        assert f"process 2 of 3 (silent) {gave_no_sign}" in cut_off.said(1)
        assert "so it ends. Start all processes again with --resume" in stopped.said(1)
        silent.close()

        time.sleep(max(0.0, began + silence + 4 - time.monotonic()))
        for i in range(3):
            suspended.signal_host(i, signal.SIGCONT)
        time.sleep(2)
        assert [member.poll() for member in suspended.members] == [None] * 3
        for i in range(3):
            suspended.tell(i, "well")
        assert suspended.codes(5) == [0, 0, 0]


@pytest.mark.parametrize("dead", [0, 2])
def test_the_death_of_a_watchdog_ends_all(tmp_path: Path, dead: int) -> None:
    """Also the process that it watched, which says so."""
    with Run(tmp_path) as run:
        os.kill(run.watchdogs[dead], signal.SIGKILL)
        assert run.codes(5) == [75, 75, 75]
        pid = run.members[dead].pid
        assert run.said(dead).startswith(
            f"error: the watchdog of process {dead} of 3 (on {socket.gethostname()}, pid"
        )
        assert "exit code -9" in run.said(dead) and "--resume" in run.said(dead)
        assert f"pid {pid}) ended before the run did, so process 1 of 3" in run.said(1)


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
    """Processes that fail alike have the time to; one that does not fail is ended, with code 1: a
    start once more would fail as well."""
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
    inputs = {
        "name": "process 1 of 2",
        "address": "127.0.0.1",
        "port": port,
        "listener": None,
        "num_peers": 1,
    }
    done = subprocess.run(
        [sys.executable, "-m", "isojax.launch.watchdog", json.dumps(inputs)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, TOKEN_VARIABLE: "run-secret"},
    )
    assert (
        done.returncode == UNREACHABLE_CODE
        and done.stderr.startswith("warning: process 1 of 2 does not reach")
        and done.stderr.count("\n") == 1
    )


STRANGE = [
    b"lost process 1 of 3\n",
    b"name process 1 of 3\nlost process 1 of 3\n",
    b"hello wrong process 1 of 3\nfailed process 1 of 3\n",
    b"hello run-secre\xc3\xa9 process 1 of 3\nfailed process 1 of 3\n",
    b"hello\n\n\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x00\xff" + bytes(range(256)) * 300,
    b"x" * 5_000_000,
    b"lost",
    b"",
]


def connect(port: int, data: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=5)
    with contextlib.suppress(OSError):  # dropped meanwhile
        connection.sendall(data)
    return connection


def test_strangers_are_dropped_and_change_nothing(tmp_path: Path) -> None:
    """Two of three processes are there, so process 0 listens still."""
    with Run(tmp_path, processes=2) as run:
        for pid in run.watchdogs:
            # which everyone may read
            assert b"run-secret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        strangers = [connect(run.port, data) for data in STRANGE]
        flood = [connect(run.port) for _ in range(2 * MAX_STRANGERS)]
        for stranger in (*strangers, *flood[:MAX_STRANGERS]):
            with contextlib.suppress(ConnectionResetError):
                # process 0 says nothing to them, and ends the connection
                assert stranger.recv(100) == b""
        assert [member.poll() for member in run.members] == [None, None]
        assert not any(error.read_text() for error in run.errors)
        late = connect(run.port, b"hello run-secret process 2 of 3 (late)\n")
        assert late.recv(100).startswith(b"name process 0 of 3")
        with pytest.raises(ConnectionRefusedError):  # all are there: nothing listens any more
            connect(run.port)
        late.close()
        assert run.codes(GRACE_SECONDS + 5) == [75, 75]
        assert "process 2 of 3 (late) ended" in run.said(0)
        for connection in (*strangers, *flood):
            connection.close()


def test_a_hello_in_pieces_is_a_hello(tmp_path: Path) -> None:
    with Run(tmp_path, processes=2) as run:
        late = connect(run.port, b"hello run-")
        time.sleep(0.2)
        late.sendall(b"secret process 2 of 3\nbye process 2 of 3\n")
        assert late.recv(100).startswith(b"name process 0 of 3")
        late.close()
        for i in (0, 1):
            run.tell(i, "well")
        assert run.codes(5) == [0, 0]


def test_a_silent_stranger_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "run-secret")
    monkeypatch.setattr(watchdog, "HELLO_TIMEOUT", 0.1)
    listener = socket.create_server(("127.0.0.1", 0))
    read, write = os.pipe()
    with os.fdopen(read) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        guard = watchdog.Watchdog("process 0 of 2", "127.0.0.1", 0, listener.detach(), num_peers=1)
        assert guard.listener is not None
        watching = threading.Thread(target=asyncio.run, args=(guard.run(),))
        watching.start()
        with guard.listener, connect(guard.listener.getsockname()[1]) as silent:
            assert silent.recv(1) == b""
            os.write(write, watchdog.BYE.encode())
            os.close(write)
            watching.join(5)
            assert not watching.is_alive()


@pytest.mark.parametrize(
    ("addresses", "bound"),
    [
        ({"127.0.0.1"}, "127.0.0.1"),
        ({"127.0.0.1", "127.0.0.2"}, "0.0.0.0"),
        ({"192.0.2.7"}, "0.0.0.0"),
        ({""}, "0.0.0.0"),
    ],
)
def test_process_0_listens_at_the_narrowest_address(addresses: set[str], bound: str) -> None:
    with listen_narrowly(addresses) as listener:
        assert listener.getsockname()[0] == bound
