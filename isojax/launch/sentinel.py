"""Watches over the processes of one run, from beside each of them: when one has ended before the run did, or its machine is gone, the
others are ended, with a line that says which. Without it they would wait for it in a collective for ever.

A sentinel is a process of its own, so that it works whatever its parent is stuck in. That of process 0 listens; the others connect to it
and say who they are. A connection that breaks is a death; where a machine falls silent, TCP's keepalive breaks it after `SILENCE` seconds.
A parent that ends well says so first; one that ends with an error of its own says that, and as the others may be about to end with the
same, they have `GRACE` seconds to. No jax here.
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

IDLE, EVERY, TIMES = 10, 5, 3  # keepalive: seconds of silence before the first probe, between probes, how many unanswered
SILENCE = IDLE + EVERY * TIMES
NEWS = 3.0  # seconds in which the death of process 0 is heard of, where this one's was caused by it
GRACE = 5.0  # seconds that a parent has to end by itself, before it is killed
LOST, BYE, FAILED, NAME = "lost", "bye", "failed", "name"


class Watch:
    """The parent's end of its sentinel."""

    def __init__(self, process: int, processes: int, address: str, port: int, listener: socket.socket | None, ended: Callable[[], None]):
        """`listener`: process 0's, on `port` of `address`. `ended` is called, in a thread, when another process has ended."""
        name = f"process {process} of {processes} (on {socket.gethostname()}, pid {os.getpid()})"
        given = {"name": name, "address": address, "port": port, "listener": None if listener is None else listener.fileno()}
        command = [sys.executable, "-m", "isojax.launch.sentinel", json.dumps(given)]
        fds = () if listener is None else (listener.fileno(),)
        self._sentinel = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=fds, start_new_session=True)
        threading.Thread(target=self._listen, args=(ended,), daemon=True, name="sentinel").start()

    def _listen(self, ended: Callable[[], None]) -> None:
        assert self._sentinel.stdout is not None
        if self._sentinel.stdout.readline().strip() == LOST.encode():
            ended()

    def close(self, well: bool) -> None:
        """This process has done its part of the run, or ends with an error."""
        assert self._sentinel.stdin is not None
        with suppress(OSError):
            self._sentinel.stdin.write((BYE if well else FAILED).encode())
            self._sentinel.stdin.close()
        self._sentinel.wait()


class Peer:
    """A connection to another sentinel: lines of JSON."""

    def __init__(self, connection: socket.socket):
        self.connection, self.name, self.left = connection, "", False
        self._heard = b""
        for option, value in ((socket.TCP_KEEPIDLE, IDLE), (socket.TCP_KEEPINTVL, EVERY), (socket.TCP_KEEPCNT, TIMES)):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def hear(self) -> list[dict[str, str]] | None:
        """What has come; None where the other end is gone."""
        try:
            data = self.connection.recv(65536)
        except OSError:
            return None
        if not data:
            return None
        *lines, self._heard = (self._heard + data).split(b"\n")
        try:
            return [dict(json.loads(line)) for line in lines]
        except (ValueError, TypeError):  # no sentinel
            return None

    def say(self, **message: str) -> None:
        """Told, where the other end is there."""
        with suppress(OSError):
            self.connection.sendall(json.dumps(message).encode() + b"\n")


class Sentinel:
    """One sentinel at work."""

    def __init__(self, name: str, address: str, port: int, listener: int | None):
        self.name, self.parent = name, os.getppid()
        self.selector = selectors.DefaultSelector()
        self.peers: list[Peer] = []
        self.listener: socket.socket | None = None
        self.failed: tuple[str, float] | None = None  # the first that failed, and when this parent has to end
        self.selector.register(sys.stdin.fileno(), selectors.EVENT_READ, None)
        if listener is None:
            self._add(Peer(socket.create_connection((address, port), timeout=60)))
            self.peers[0].connection.settimeout(None)
            self.peers[0].say(**{NAME: name})
        else:
            self.listener = socket.socket(fileno=listener)
            self.selector.register(self.listener, selectors.EVENT_READ, self.listener)

    def _add(self, peer: Peer) -> None:
        self.peers.append(peer)
        self.selector.register(peer.connection, selectors.EVENT_READ, peer)

    def run(self) -> None:
        """Until the parent has ended, or has to."""
        while True:
            for key, _ in self.selector.select(timeout=0.5):
                if isinstance(key.data, Peer):
                    self._hear(key.data)
                elif key.data is None:
                    said = os.read(sys.stdin.fileno(), 64).decode()
                    return self._leave(said or LOST)
                elif self.listener is not None:
                    peer = Peer(self.listener.accept()[0])
                    peer.say(**{NAME: self.name})
                    self._add(peer)
            if os.getppid() != self.parent:  # whatever else holds the pipe
                return self._leave(LOST)
            if self.failed is not None and time.monotonic() > self.failed[1]:
                self._lose(self.failed[0])

    def _hear(self, peer: Peer) -> None:
        messages = peer.hear()
        for message in messages or ():
            if NAME in message:
                peer.name = message[NAME]
            elif BYE in message:
                peer.left = True
            elif LOST in message:
                self._lose(message[LOST])
            elif FAILED in message:
                peer.left = True
                self.failed = self.failed or (message[FAILED], time.monotonic() + GRACE)
                for other in self.peers:
                    if other is not peer:
                        other.say(**message)
        if messages is None:
            self.selector.unregister(peer.connection)
            self.peers.remove(peer)
            if peer.name and not peer.left:  # who never said a name was none of the run's, but a scanner of ports
                self._lose(peer.name)

    def _leave(self, how: str) -> None:
        """The parent has ended. Where JAX has ended it, because process 0 is gone, its user is told so, if that is heard of in time."""
        for peer in self.peers:
            peer.say(**{how: self.name})
        last = time.monotonic() + NEWS
        while how == LOST and self.listener is None and (left := last - time.monotonic()) > 0:
            for key, _ in self.selector.select(timeout=left):
                if not isinstance(key.data, Peer):
                    self.selector.unregister(key.fileobj)
                    continue
                if (messages := key.data.hear()) is None:
                    return
                if others := [message[LOST] for message in messages if message.get(LOST, self.name) != self.name]:
                    return self._tell(others[0])

    def _tell(self, name: str) -> None:
        said = f"error: {name} ended before the run did, so {self.name} ends too. What the other one printed last says why."
        print(f"{said} Start all processes again with --resume.", file=sys.stderr, flush=True)

    def _lose(self, name: str) -> None:
        """Ends the parent, and the other processes."""
        if os.getppid() != self.parent and self.listener is not None:  # it was the first to go
            self._leave(LOST)
            sys.exit(1)
        for peer in self.peers:
            peer.say(**{LOST: name})
        self._tell(name)
        with suppress(OSError):
            print(LOST, flush=True)
        last = time.monotonic() + GRACE
        while time.monotonic() < last and os.getppid() == self.parent:
            time.sleep(0.05)
        if os.getppid() == self.parent:
            os.kill(self.parent, signal.SIGKILL)
        sys.exit(1)


def main(given: dict[str, Any]) -> None:
    """The sentinel's process. It ends with its parent, not by signals meant for that."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        sentinel = Sentinel(**given)
    except OSError as e:
        to = f"the sentinel of process 0 at {given['address']}:{given['port']} ({e})"
        print(f"warning: {given['name']} does not reach {to}: when another process ends, JAX alone ends this one.", file=sys.stderr)
        sys.exit(1)
    sentinel.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
