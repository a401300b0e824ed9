"""Ends all processes of one run when one of them ends early, and says which: the others would wait forever.

Each process has a watchdog, a process of its own; those of the others connect to that of process 0, and begin with the
run's token. A broken connection means a dead process. A process that ends well sends BYE first; one that ends by an
error sends FAILED, and the others, which may meet the same error, have GRACE_SECONDS to end by themselves.

Connections without the token mean nothing: process 0 sends them nothing, and drops them at their first line, after
HELLO_TIMEOUT, or where more than MAX_STRANGERS wait. Once all watchdogs are there, nothing listens any more.
"""

import hmac
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

from isojax.core.terminal import guard_output, printable, warn

KEEPALIVE_IDLE = 10  # seconds without data before the first probe
KEEPALIVE_INTERVAL = 5  # seconds between probes
KEEPALIVE_PROBES = 3  # unanswered probes until the connection breaks
LOSS_REPORT_TIMEOUT = 3.0  # seconds to wait for the news that process 0 has died, where that has ended this process
GRACE_SECONDS = 5.0  # seconds that a parent has to end by itself before it is killed
HELLO_TIMEOUT = 10.0  # seconds until a connection must have shown the token
MAX_STRANGERS = 32  # connections that have not; the oldest gives way to the next
MAX_LINE_BYTES = 4096
SEND_TIMEOUT = 5.0  # seconds
TOKEN_VARIABLE = "ISOJAX_WATCHDOG_TOKEN"  # of the environment, which other users cannot read, as they can arguments
# What watchdogs send, each with the name of a process; a parent sends its watchdog BYE or FAILED. HELLO has the token
# and the name.
LOST, BYE, FAILED, NAME, HELLO = "lost", "bye", "failed", "name", "hello"


class WatchdogClient:
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
        """`token`: a secret of the run's processes. `listener`: the socket of process 0 at `address` and `port`.
        `on_peer_lost` is called in a thread."""
        name = f"process {process_id} of {num_processes} (on {socket.gethostname()}, pid {os.getpid()})"
        passed_fds = () if listener is None else (listener.fileno(),)
        arguments = {"name": name, "address": address, "port": port, "num_peers": num_processes - 1}
        arguments["listener"] = next(iter(passed_fds), None)
        self._watchdog = subprocess.Popen(
            [sys.executable, "-m", "isojax.launch.watchdog", json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=passed_fds,
            start_new_session=True,
            env={**os.environ, TOKEN_VARIABLE: token},
        )
        threading.Thread(target=self._wait_for_loss, args=(on_peer_lost,), daemon=True, name="watchdog").start()

    def _wait_for_loss(self, on_peer_lost: Callable[[], None]) -> None:
        assert self._watchdog.stdout is not None
        if self._watchdog.stdout.readline().strip() == LOST.encode():
            on_peer_lost()

    def close(self, succeeded: bool) -> None:
        """Report to the watchdog that this process has done its part of the run, or ends by an error."""
        assert self._watchdog.stdin is not None
        with suppress(OSError):
            self._watchdog.stdin.write((BYE if succeeded else FAILED).encode())
            self._watchdog.stdin.close()
        self._watchdog.wait()


class WatchdogPeer:
    """A connection to another watchdog, over which both send lines: what has happened, and to which process."""

    def __init__(self, connection: socket.socket):
        self.connection, self.name, self.said_goodbye = connection, "", False
        self._buffer = b""
        connection.settimeout(SEND_TIMEOUT)
        with suppress(OSError):  # where the other end has gone already
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def receive(self) -> list[tuple[str, str]] | None:
        """The messages that have arrived; None where the other end is gone, or sends what no watchdog does."""
        try:
            data = self.connection.recv(65536)
        except OSError:
            return None
        if not data:
            return None
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if max(map(len, [*lines, self._buffer])) > MAX_LINE_BYTES:
            return None
        messages = [line.decode(errors="replace").partition(" ") for line in lines]
        return [(kind, name) for kind, _, name in messages]

    def send(self, kind: str, name: str) -> None:
        """Send a message, if the other end is still there."""
        with suppress(OSError):
            self.connection.sendall(f"{kind} {name}\n".encode())


class Watchdog:
    def __init__(self, name: str, address: str, port: int, listener: int | None, num_peers: int):
        """`listener`: the descriptor of the socket to which all `num_peers` other watchdogs connect."""
        self.name, self.parent_pid, self.token = name, os.getppid(), os.environ[TOKEN_VARIABLE]
        self.missing_peers = num_peers
        self.strangers: dict[WatchdogPeer, float] = {}  # connections without the token yet, and when they end
        self.selector = selectors.DefaultSelector()
        self.peers: list[WatchdogPeer] = []
        self.listener: socket.socket | None = None
        self.first_failure: tuple[str, float] | None = None  # who failed first, and when this parent has to have ended
        self.selector.register(sys.stdin.fileno(), selectors.EVENT_READ, None)
        if listener is None:
            peer = WatchdogPeer(socket.create_connection((address, port), timeout=60))
            peer.send(HELLO, f"{self.token} {self.name}")
            self.peers.append(peer)
            self.selector.register(peer.connection, selectors.EVENT_READ, peer)
        else:
            self.listener = socket.socket(fileno=listener)
            self.listener.setblocking(False)
            self.selector.register(self.listener, selectors.EVENT_READ, self.listener)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # it has gone, or no descriptor is free
            stranger = WatchdogPeer(listener.accept()[0])
            if len(self.strangers) >= MAX_STRANGERS:
                self._drop(next(iter(self.strangers)))
            self.strangers[stranger] = time.monotonic() + HELLO_TIMEOUT
            self.selector.register(stranger.connection, selectors.EVENT_READ, stranger)

    def _drop(self, stranger: WatchdogPeer) -> None:
        del self.strangers[stranger]
        self.selector.unregister(stranger.connection)
        stranger.connection.close()

    def _admit(self, stranger: WatchdogPeer, kind: str, text: str) -> bool:
        """Make a peer of a connection whose first message has the token."""
        token, _, name = text.partition(" ")
        if kind != HELLO or not hmac.compare_digest(token.encode(), self.token.encode()):
            return False
        del self.strangers[stranger]
        stranger.name = name
        self.peers.append(stranger)
        self.missing_peers -= 1
        if not self.missing_peers and self.listener is not None:
            for other in list(self.strangers):
                self._drop(other)
            self.selector.unregister(self.listener)
            self.listener.close()
        stranger.send(NAME, self.name)
        return True

    def run(self) -> None:
        """Watch until the parent has ended, or has to end."""
        while True:
            for key, _ in self.selector.select(timeout=0.5):
                if isinstance(key.data, WatchdogPeer):
                    self._receive(key.data)
                elif key.data is None:
                    message = os.read(sys.stdin.fileno(), 64).decode()
                    return self._announce_end(message or LOST)
                elif self.missing_peers:
                    self._accept(key.data)
            for stranger in [s for s, deadline in self.strangers.items() if time.monotonic() > deadline]:
                self._drop(stranger)
            if os.getppid() != self.parent_pid:  # the parent is gone, though another process holds its pipe
                return self._announce_end(LOST)
            if self.first_failure is not None and time.monotonic() > self.first_failure[1]:
                self._end_parent(self.first_failure[0])

    def _receive(self, peer: WatchdogPeer) -> None:
        if peer not in self.peers and peer not in self.strangers:
            return  # dropped since the selector returned
        messages = peer.receive()
        if peer in self.strangers:
            if messages is None or (messages and not self._admit(peer, *messages.pop(0))):
                return self._drop(peer)
            if not messages:
                return None
        for kind, name in messages or ():
            if kind == NAME:
                peer.name = name
            elif kind == BYE:
                peer.said_goodbye = True
            elif kind == LOST:
                self._end_parent(name)
            elif kind == FAILED:
                peer.said_goodbye = True
                self.first_failure = self.first_failure or (name, time.monotonic() + GRACE_SECONDS)
                for other in self.peers:
                    if other is not peer:
                        other.send(FAILED, name)
        if messages is None:
            self.selector.unregister(peer.connection)
            self.peers.remove(peer)
            if peer.name and not peer.said_goodbye:
                self._end_parent(peer.name)

    def _announce_end(self, end_kind: str) -> None:
        """Send the others how the parent has ended. Where JAX has ended it because process 0 is gone, print that."""
        for peer in self.peers:
            peer.send(end_kind, self.name)
        deadline = time.monotonic() + LOSS_REPORT_TIMEOUT
        while end_kind == LOST and self.listener is None and (seconds_left := deadline - time.monotonic()) > 0:
            for key, _ in self.selector.select(timeout=seconds_left):
                if not isinstance(key.data, WatchdogPeer):
                    self.selector.unregister(key.fileobj)
                    continue
                if (messages := key.data.receive()) is None:
                    return
                lost_names = [name for kind, name in messages if kind == LOST and name != self.name]
                if lost_names:
                    return self._print_loss(lost_names[0])

    def _print_loss(self, name: str) -> None:
        message = f"error: {name} ended before the run did, so {self.name} ends too."
        advice = "What the other one printed last says why. Start all processes again with --resume."
        print(printable(f"{message} {advice}"), file=sys.stderr, flush=True)

    def _end_parent(self, name: str) -> None:
        """End the parent, and the other processes."""
        if os.getppid() != self.parent_pid and self.listener is not None:  # it ended before the peer did
            self._announce_end(LOST)
            sys.exit(1)
        for peer in self.peers:
            peer.send(LOST, name)
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
    """The watchdog's process. It ends with its parent, and ignores the signals that are meant for the parent."""
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.SIG_IGN)
    guard_output(is_run=True)
    try:
        watchdog = Watchdog(**arguments)
    except OSError as e:
        address = f"{arguments['address']}:{arguments['port']}"
        failure = f"{arguments['name']} does not reach the watchdog of process 0 at {address} ({e})"
        warn(f"{failure}: when another process ends, only JAX's heartbeat ends this one.")
        sys.exit(1)
    watchdog.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
