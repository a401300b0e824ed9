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

from isojax.core.exit_codes import ExitCode
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
    """Starts this process's watchdog, and reports to it at the end of the context.

    It reports BYE, or FAILED where an exception ends the context.
    """

    def __init__(
        self,
        process_id: int,
        num_processes: int,
        address: str,
        port: int,
        token: str,
        listener: socket.socket | None,
        end_process: Callable[[ExitCode], None],
    ):
        """Start the watchdog, a process, and a thread that reads what it says.

        address, port: of process 0's watchdog. token: a secret that the run's processes share.
        listener: in process 0, the socket at that port; None in the others. end_process: called in
        the thread where this process has to end, with its exit code; the reason has been printed by
        then.
        """
        host_and_pid = f"on {socket.gethostname()}, pid {os.getpid()}"
        self._name = f"process {process_id} of {num_processes} ({host_and_pid})"
        self._end_process = end_process
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
        """Wait until the watchdog says that this process has to end, or ends itself.

        Nobody else in this process would notice the watchdog's end, while the watchdogs of the
        others take it for the end of this process.
        """
        assert self._watchdog.stdout is not None
        word = self._watchdog.stdout.readline().strip().decode()
        if word in (LOST, FAILED):
            self._end_process(ExitCode.PEER_LOST if word == LOST else ExitCode.FAILED)
            return

        code = self._watchdog.wait()
        if self._is_leaving or code == UNREACHABLE_CODE:  # of which it has warned
            return
        message = (
            f"error: the watchdog of {self._name} ended before the run did (exit code {code}), so"
            f" it ends too. {RESTART_ADVICE}"
        )
        print(printable(message), file=sys.stderr, flush=True)
        self._end_process(ExitCode.PEER_LOST)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Report that this process has done its part of the run, or ends by an error of any kind.

        Then wait for the watchdog, which passes it on to the others.
        """
        assert self._watchdog.stdin is not None
        self._is_leaving = True
        with suppress(OSError):
            self._watchdog.stdin.write((BYE if kind is None else FAILED).encode())
            self._watchdog.stdin.close()
        self._watchdog.wait()
