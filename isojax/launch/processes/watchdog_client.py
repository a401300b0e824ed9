"""The parent's end of its watchdog: starts it, tells it how this process ends, and hears of others that have ended."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from isojax.launch.processes.watchdog import BYE, FAILED, LOST


class WatchdogClient:
    """A process's connection to its own watchdog."""

    def __init__(
        self,
        process_id: int,
        num_processes: int,
        address: str,
        port: int,
        listener: socket.socket | None,
        on_peer_lost: Callable[[], None],
    ):
        """Start the watchdog.

        Args:
            process_id: this process's number.
            num_processes: how many processes there are.
            address: the host of process 0.
            port: on which the watchdog of process 0 listens.
            listener: the socket on that port, in process 0; else None.
            on_peer_lost: called in a thread when another process has ended early.
        """
        name = f"process {process_id} of {num_processes} (on {socket.gethostname()}, pid {os.getpid()})"
        arguments = {
            "name": name,
            "address": address,
            "port": port,
            "listener": None if listener is None else listener.fileno(),
        }
        command = [sys.executable, "-m", "isojax.launch.processes.watchdog", json.dumps(arguments)]
        passed_fds = () if listener is None else (listener.fileno(),)
        self._watchdog = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=passed_fds, start_new_session=True
        )
        threading.Thread(target=self._wait_for_loss, args=(on_peer_lost,), daemon=True, name="watchdog").start()

    def _wait_for_loss(self, on_peer_lost: Callable[[], None]) -> None:
        assert self._watchdog.stdout is not None
        if self._watchdog.stdout.readline().strip() == LOST.encode():
            on_peer_lost()

    def close(self, succeeded: bool) -> None:
        """Tell the watchdog that this process has done its part of the run, or ends by an error."""
        assert self._watchdog.stdin is not None
        with suppress(OSError):
            self._watchdog.stdin.write((BYE if succeeded else FAILED).encode())
            self._watchdog.stdin.close()
        self._watchdog.wait()
