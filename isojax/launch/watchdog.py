"""Ends all processes of one run when one of them ends early, and says which: the others would wait forever.

Each process has a watchdog, a process of its own; those of the others connect to that of process 0, and begin with the
run's token. A broken connection means a dead process. A process that ends well sends BYE first; one that ends by an
error sends FAILED, and the others, which may meet the same error, have GRACE_SECONDS to end by themselves.

Connections without the token mean nothing: process 0 sends them nothing, and drops them at their first line, after
HELLO_TIMEOUT, or where more than MAX_STRANGERS wait. Once all watchdogs are there, nothing listens any more.
"""

import asyncio
import hmac
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

from isojax.core.machine import keep_alive
from isojax.core.terminal import guard_output, printable, warn

LOSS_REPORT_TIMEOUT = 3.0  # seconds to wait for the news that process 0 has died, where that has ended this process
GRACE_SECONDS = 5.0  # seconds that a parent has to end by itself before it is killed
HELLO_TIMEOUT = 10.0  # seconds until a connection must have shown the token
MAX_STRANGERS = 32  # connections that have not; the oldest gives way to the next
MAX_LINE_BYTES = 4096
CONNECT_TIMEOUT = 60.0  # seconds in which the watchdog of process 0 answers
PARENT_CHECK_INTERVAL = 0.5  # seconds between two looks at whether the parent is there
TOKEN_VARIABLE = "ISOJAX_WATCHDOG_TOKEN"  # of the environment, which other users cannot read, as they can arguments
# What watchdogs send, each with the name of a process; a parent sends BYE or FAILED. HELLO has the token too.
LOST, BYE, FAILED, NAME, HELLO = "lost", "bye", "failed", "name", "hello"


class WatchdogClient(AbstractContextManager["WatchdogClient"]):
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
        """`token`: a secret of the run's processes. `listener`: process 0's socket. A thread calls `on_peer_lost`."""
        name = f"process {process_id} of {num_processes} (on {socket.gethostname()}, pid {os.getpid()})"
        fd, num_peers = None if listener is None else listener.fileno(), num_processes - 1
        arguments = {"name": name, "address": address, "port": port, "listener": fd, "num_peers": num_peers}
        self._watchdog = subprocess.Popen(
            [sys.executable, "-m", "isojax.launch.watchdog", json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=() if fd is None else (fd,),
            start_new_session=True,
            env={**os.environ, TOKEN_VARIABLE: token},
        )
        threading.Thread(target=self._wait_for_loss, args=(on_peer_lost,), daemon=True, name="watchdog").start()

    def _wait_for_loss(self, on_peer_lost: Callable[[], None]) -> None:
        assert self._watchdog.stdout is not None
        if self._watchdog.stdout.readline().strip() == LOST.encode():
            on_peer_lost()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Report to the watchdog that this process has done its part of the run, or ends by an error, of whatever
        kind: the others must learn of it."""
        assert self._watchdog.stdin is not None
        with suppress(OSError):
            self._watchdog.stdin.write((BYE if kind is None else FAILED).encode())
            self._watchdog.stdin.close()
        self._watchdog.wait()


class Watchdog:
    def __init__(self, name: str, address: str, port: int, listener: int | None, num_peers: int):
        """`listener`: the descriptor of the socket to which all `num_peers` other watchdogs connect."""
        self.name, self.parent_pid, self.token = name, os.getppid(), os.environ[TOKEN_VARIABLE]
        self.address, self.port, self.missing_peers = address, port, num_peers
        self.listener = None if listener is None else socket.socket(fileno=listener)
        self.strangers: list[asyncio.StreamWriter] = []  # connections without the token yet, the oldest first
        self.peers: list[asyncio.StreamWriter] = []
        self.is_leaving = False  # whether the parent has ended, and the others have been notified
        self.first_failure: tuple[str, float] | None = None  # who failed first, and when this parent has to have ended

    async def run(self) -> None:
        """Watch until the parent has ended, or has to end. OSError where process 0 does not answer."""
        loop, parent_message = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(lambda *_: None)  # a connection that breaks while it is accepted
        loop.add_reader(sys.stdin.fileno(), parent_message.set)
        if self.listener is None:
            connection = asyncio.open_connection(self.address, self.port, limit=MAX_LINE_BYTES)
            reader, writer = await asyncio.wait_for(connection, CONNECT_TIMEOUT)
            writer.write(f"{HELLO} {self.token} {self.name}\n".encode())
            self.following = asyncio.create_task(self._follow(reader, writer, ""))
        else:
            self.server = await asyncio.start_server(self._admit, sock=self.listener, limit=MAX_LINE_BYTES)
        while not parent_message.is_set() and os.getppid() == self.parent_pid:
            if self.first_failure is not None and time.monotonic() > self.first_failure[1]:
                self._end_parent(self.first_failure[0])
            with suppress(TimeoutError):
                await asyncio.wait_for(parent_message.wait(), PARENT_CHECK_INTERVAL)
        loop.remove_reader(sys.stdin.fileno())
        # Without a message the parent is gone, though another process may hold its pipe.
        message = os.read(sys.stdin.fileno(), 64) if parent_message.is_set() else b""
        await self._announce_end(message.decode() or LOST)

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Make a peer of a connection whose first line has the token, and drop any other."""
        self.strangers.append(writer)
        for oldest in self.strangers[:-MAX_STRANGERS]:
            oldest.close()
        hello = b""
        with suppress(OSError, ValueError):  # ValueError: of a line that is too long
            hello = await asyncio.wait_for(reader.readline(), HELLO_TIMEOUT)
        self.strangers.remove(writer)
        kind, _, text = hello.decode(errors="replace").rstrip("\n").partition(" ")
        token, _, name = text.partition(" ")
        if kind != HELLO or not hmac.compare_digest(token.encode(), self.token.encode()) or not self.missing_peers:
            return writer.close()
        self.missing_peers -= 1
        if not self.missing_peers:
            for stranger in self.strangers:
                stranger.close()
            self.server.close()
        writer.write(f"{NAME} {self.name}\n".encode())
        await self._follow(reader, writer, name)

    async def _follow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str) -> None:
        """Read what another watchdog sends, until its process has ended: in each line, what has happened to whom."""
        said_goodbye = False
        self.peers.append(writer)
        keep_alive(writer.get_extra_info("socket"))
        with suppress(OSError, ValueError):
            while (line := await reader.readline()).endswith(b"\n"):
                kind, _, about = line.decode(errors="replace").rstrip("\n").partition(" ")
                said_goodbye = said_goodbye or kind in (BYE, FAILED)
                if kind == NAME:
                    name = about
                elif kind == LOST and about != self.name:
                    self._end_parent(about)
                elif kind == FAILED:
                    self.first_failure = self.first_failure or (about, time.monotonic() + GRACE_SECONDS)
                    self._send_all(FAILED, about, except_to=writer)
        self.peers.remove(writer)
        writer.close()
        if name and not said_goodbye and not self.is_leaving:
            self._end_parent(name)

    def _send_all(self, kind: str, name: str, except_to: asyncio.StreamWriter | None = None) -> None:
        for peer in self.peers:
            if peer is not except_to:
                peer.write(f"{kind} {name}\n".encode())

    async def _announce_end(self, end_kind: str) -> None:
        """Send the others how the parent has ended. Where JAX may have ended it because process 0 is gone, wait for
        that news, which `_follow` prints."""
        self.is_leaving = True
        self._send_all(end_kind, self.name)
        deadline = time.monotonic() + LOSS_REPORT_TIMEOUT
        while end_kind == LOST and self.listener is None and self.peers and time.monotonic() < deadline:
            await asyncio.sleep(0.05)

    def _end_parent(self, name: str) -> None:
        parent_ended_first = os.getppid() != self.parent_pid and self.listener is not None
        self._send_all(LOST, self.name if parent_ended_first else name)
        if parent_ended_first:
            sys.exit(1)
        message = f"error: {name} ended before the run did, so {self.name} ends too."
        advice = "The last lines of the other process say why. Start all processes again with --resume."
        print(printable(f"{message} {advice}"), file=sys.stderr, flush=True)
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
        asyncio.run(Watchdog(**arguments).run())
    except OSError as e:
        address = f"{arguments['address']}:{arguments['port']}"
        failure = f"{arguments['name']} does not reach the watchdog of process 0 at {address} ({e})"
        warn(f"{failure}: when another process ends, only JAX's heartbeat ends this one.")
        sys.exit(1)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
