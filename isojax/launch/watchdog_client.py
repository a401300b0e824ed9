"""A process's side of its watchdog (watchdog.py): it starts it, tells it how it ends, and ends
where it says so."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

from isojax.core.terminal import printable
from isojax.launch.watchdog import (
    BYE,
    FAILED,
    LOST,
    RESTART_ADVICE,
    TOKEN_VARIABLE,
    UNREACHABLE_CODE,
)


class WatchdogClient(AbstractContextManager["WatchdogClient"]):
    """Starts this process's watchdog, and tells it at the end of the context how the process
    ends."""

    def __init__(
        self,
        process_id: int,
        num_processes: int,
        address: str,
        port: int,
        token: str,
        listener: socket.socket | None,
        on_peer_lost: Callable[[], None],
    ):
        """`address`, `port`: of process 0's watchdog. `token`: a secret of the run's processes.
        `listener`: process 0's socket. A thread calls `on_peer_lost` where this process has to end;
        why has been said by then."""
        host_and_pid = f"on {socket.gethostname()}, pid {os.getpid()}"
        self._name = f"process {process_id} of {num_processes} ({host_and_pid})"
        self._on_peer_lost = on_peer_lost
        self._is_leaving = False  # whether this process has told its watchdog how it ends

        listener_fd = None if listener is None else listener.fileno()
        arguments = {
            "name": self._name,
            "address": address,
            "port": port,
            "listener": listener_fd,
            "num_peers": num_processes - 1,
        }
        self._watchdog = subprocess.Popen(
            [sys.executable, "-m", "isojax.launch.watchdog", json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=() if listener_fd is None else (listener_fd,),
            start_new_session=True,  # Ctrl-C of a terminal is not for it
            env={**os.environ, TOKEN_VARIABLE: token},
        )
        threading.Thread(target=self._follow_watchdog, daemon=True, name="watchdog").start()

    def _follow_watchdog(self) -> None:
        """Wait for what the watchdog says, or for its end: nobody else would notice it in this
        process, while the watchdogs of the others take it for this process's own."""
        assert self._watchdog.stdout is not None
        if self._watchdog.stdout.readline().strip() == LOST.encode():
            self._on_peer_lost()
            return

        code = self._watchdog.wait()
        if self._is_leaving or code == UNREACHABLE_CODE:  # of which it has warned
            return
        message = (
            f"error: the watchdog of {self._name} ended before the run did (exit code {code}), so"
            f" it ends too. {RESTART_ADVICE}"
        )
        print(printable(message), file=sys.stderr, flush=True)
        self._on_peer_lost()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Report to the watchdog that this process has done its part of the run, or ends by an
        error, of whatever kind: the others must learn of it."""
        assert self._watchdog.stdin is not None
        self._is_leaving = True
        with suppress(OSError):
            self._watchdog.stdin.write((BYE if kind is None else FAILED).encode())
            self._watchdog.stdin.close()
        self._watchdog.wait()
