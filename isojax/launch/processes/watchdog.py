"""Watches over the processes of one run, from beside each of them: when one has ended before the run did, or its
machine is gone, the others are ended, with a line that says which. Without it they would wait for it in a collective
for ever.

A sentinel is a process of its own, so that it works whatever its parent is stuck in. That of process 0 listens; the
others connect to it and say who they are. A connection that breaks is a death; where a machine falls silent, TCP's
keepalive breaks it after `SILENCE` seconds. A parent that ends well says so first; one that ends with an error of its
own says that, and as the others may be about to end with the same, they have `GRACE` seconds to. No jax here.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES = (
    10,
    5,
    3,
)  # keepalive: seconds of silence before the first probe, between probes, how many unanswered
KEEPALIVE_TIMEOUT = KEEPALIVE_IDLE + KEEPALIVE_INTERVAL * KEEPALIVE_PROBES
LOSS_REPORT_TIMEOUT = 3.0  # seconds in which the death of process 0 is heard of, where this one's was caused by it
GRACE_SECONDS = 5.0  # seconds that a parent has to end by itself, before it is killed
LOST, BYE, FAILED, NAME = "lost", "bye", "failed", "name"


class WatchdogClient:
    """The parent's end of its sentinel."""

    def __init__(
        self,
        process_id: int,
        num_processes: int,
        address: str,
        port: int,
        listener: socket.socket | None,
        on_peer_lost: Callable[[], None],
    ):
        """`listener`: process 0's, on `port` of `address`. `ended` is called, in a thread, when another process has
        ended.
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
        threading.Thread(target=self._wait_for_loss, args=(on_peer_lost,), daemon=True, name="sentinel").start()

    def _wait_for_loss(self, on_peer_lost: Callable[[], None]) -> None:
        assert self._watchdog.stdout is not None
        if self._watchdog.stdout.readline().strip() == LOST.encode():
            on_peer_lost()

    def close(self, succeeded: bool) -> None:
        """This process has done its part of the run, or ends with an error."""
        assert self._watchdog.stdin is not None
        with suppress(OSError):
            self._watchdog.stdin.write((BYE if succeeded else FAILED).encode())
            self._watchdog.stdin.close()
        self._watchdog.wait()


class WatchdogPeer:
    """A connection to another sentinel: lines of JSON."""

    def __init__(self, connection: socket.socket):
        self.connection, self.name, self.said_goodbye = connection, "", False
        self._buffer = b""
        for option, value in (
            (socket.TCP_KEEPIDLE, KEEPALIVE_IDLE),
            (socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL),
            (socket.TCP_KEEPCNT, KEEPALIVE_PROBES),
        ):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def receive(self) -> list[dict[str, str]] | None:
        """What has come; None where the other end is gone."""
        try:
            data = self.connection.recv(65536)
        except OSError:
            return None
        if not data:
            return None
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        try:
            return [dict(json.loads(line)) for line in lines]
        except (ValueError, TypeError):  # no sentinel
            return None

    def send(self, **message: str) -> None:
        """Told, where the other end is there."""
        with suppress(OSError):
            self.connection.sendall(json.dumps(message).encode() + b"\n")


class Watchdog:
    """One sentinel at work."""

    def __init__(self, name: str, address: str, port: int, listener: int | None):
        self.name, self.parent_pid = name, os.getppid()
        self.selector = selectors.DefaultSelector()
        self.peers: list[WatchdogPeer] = []
        self.listener: socket.socket | None = None
        self.first_failure: tuple[str, float] | None = None  # the first that failed, and when this parent has to end
        self.selector.register(sys.stdin.fileno(), selectors.EVENT_READ, None)
        if listener is None:
            self._add_peer(WatchdogPeer(socket.create_connection((address, port), timeout=60)))
            self.peers[0].connection.settimeout(None)
            self.peers[0].send(**{NAME: name})
        else:
            self.listener = socket.socket(fileno=listener)
            self.selector.register(self.listener, selectors.EVENT_READ, self.listener)

    def _add_peer(self, peer: WatchdogPeer) -> None:
        self.peers.append(peer)
        self.selector.register(peer.connection, selectors.EVENT_READ, peer)

    def run(self) -> None:
        """Until the parent has ended, or has to."""
        while True:
            for key, _ in self.selector.select(timeout=0.5):
                if isinstance(key.data, WatchdogPeer):
                    self._receive(key.data)
                elif key.data is None:
                    message = os.read(sys.stdin.fileno(), 64).decode()
                    return self._announce_end(message or LOST)
                elif self.listener is not None:
                    peer = WatchdogPeer(self.listener.accept()[0])
                    peer.send(**{NAME: self.name})
                    self._add_peer(peer)
            if os.getppid() != self.parent_pid:  # whatever else holds the pipe
                return self._announce_end(LOST)
            if self.first_failure is not None and time.monotonic() > self.first_failure[1]:
                self._end_parent(self.first_failure[0])

    def _receive(self, peer: WatchdogPeer) -> None:
        messages = peer.receive()
        for message in messages or ():
            if NAME in message:
                peer.name = message[NAME]
            elif BYE in message:
                peer.said_goodbye = True
            elif LOST in message:
                self._end_parent(message[LOST])
            elif FAILED in message:
                peer.said_goodbye = True
                self.first_failure = self.first_failure or (message[FAILED], time.monotonic() + GRACE_SECONDS)
                for other in self.peers:
                    if other is not peer:
                        other.send(**message)
        if messages is None:
            self.selector.unregister(peer.connection)
            self.peers.remove(peer)
            if (
                peer.name and not peer.said_goodbye
            ):  # who never said a name was none of the run's, but a scanner of ports
                self._end_parent(peer.name)

    def _announce_end(self, end_kind: str) -> None:
        """The parent has ended. Where JAX has ended it, because process 0 is gone, its user is told so, if that is
        heard of in time.
        """
        for peer in self.peers:
            peer.send(**{end_kind: self.name})
        deadline = time.monotonic() + LOSS_REPORT_TIMEOUT
        while end_kind == LOST and self.listener is None and (seconds_left := deadline - time.monotonic()) > 0:
            for key, _ in self.selector.select(timeout=seconds_left):
                if not isinstance(key.data, WatchdogPeer):
                    self.selector.unregister(key.fileobj)
                    continue
                if (messages := key.data.receive()) is None:
                    return
                if lost_names := [message[LOST] for message in messages if message.get(LOST, self.name) != self.name]:
                    return self._print_loss(lost_names[0])

    def _print_loss(self, name: str) -> None:
        message = f"error: {name} ended before the run did, so {self.name} ends too. What the other one printed last says why."
        print(f"{message} Start all processes again with --resume.", file=sys.stderr, flush=True)

    def _end_parent(self, name: str) -> None:
        """Ends the parent, and the other processes."""
        if os.getppid() != self.parent_pid and self.listener is not None:  # it was the first to go
            self._announce_end(LOST)
            sys.exit(1)
        for peer in self.peers:
            peer.send(**{LOST: name})
        self._print_loss(name)
        with suppress(OSError):
            print(LOST, flush=True)
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline and os.getppid() == self.parent_pid:
            time.sleep(0.05)
        if os.getppid() == self.parent_pid:
            os.kill(self.parent_pid, signal.SIGKILL)
        sys.exit(1)


def main(arguments: dict[str, Any]) -> None:
    """The sentinel's process. It ends with its parent, not by signals meant for that."""
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.SIG_IGN)
    try:
        watchdog = Watchdog(**arguments)
    except OSError as e:
        unreachable_text = f"the sentinel of process 0 at {arguments['address']}:{arguments['port']} ({e})"
        print(
            f"warning: {arguments['name']} does not reach {unreachable_text}: when another process ends, JAX alone ends this one.",
            file=sys.stderr,
        )
        sys.exit(1)
    watchdog.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
