"""Ends all processes of one run when one of them is lost, and says which: the others would wait
forever.

Each process has a watchdog, a process of its own; those of the others connect to that of process 0,
and begin with the run's token. A process that ends well sends BYE first. One that ends by an error
sends FAILED, and the others, which may meet the same error, have GRACE_SECONDS to end by
themselves. Any other process is lost

- when it ends: its watchdog sends LOST, or, killed with it, breaks its connection;
- when it is stopped: its watchdog sends SILENT after SILENT_BEATS;
- when its host is frozen or cut off: nothing has come from its watchdog for SILENT_BEATS.

Watchdogs count their own beats, not seconds. One that was frozen itself blames nobody when it goes
on, and on a machine with far too much to do, where beats come late, they come late on both sides.

Connections without the token mean nothing: process 0 sends them nothing, and drops them at their
first line, after HELLO_TIMEOUT, or where more than MAX_STRANGERS wait. Once all watchdogs are
there, nothing listens any more.
"""

import asyncio
import hmac
import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from isojax.core.terminal import guard_output, printable, warn

BEAT_SECONDS = 0.5  # between two lines to each peer, and two looks at the parent
SILENT_BEATS = 40  # without a sign until a process counts as lost: 20 seconds
# seconds to wait for the news that process 0 has died, where that has ended this process
LOSS_REPORT_TIMEOUT = 3.0
GRACE_SECONDS = 5.0  # seconds that a parent has to end by itself before it is killed
HELLO_TIMEOUT = 10.0  # seconds until a connection must have shown the token
CONNECT_TIMEOUT = 60.0  # seconds in which the watchdog of process 0 answers
MAX_STRANGERS = 32  # connections that have not; the oldest gives way to the next
MAX_LINE_BYTES = 4096
UNREACHABLE_CODE = 3  # the exit code of a watchdog that process 0 does not answer
# of the environment, which other users cannot read, as they can arguments
TOKEN_VARIABLE = "ISOJAX_WATCHDOG_TOKEN"

# What watchdogs send, each with the name of a process; a parent sends BYE or FAILED. HELLO has the
# token too.
BEAT = "beat"
LOST = "lost"
SILENT = "silent"
BYE = "bye"
FAILED = "failed"
NAME = "name"
HELLO = "hello"

# What a user reads.
SILENT_SECONDS = BEAT_SECONDS * SILENT_BEATS
WHAT_HAPPENED = {
    LOST: "ended before the run did",
    SILENT: f"gave no sign for {SILENT_SECONDS:.0f} seconds (stopped, frozen or cut off)",
}
LOOK_AT_LOG = "The last lines of the other process say why."
RESTART_ADVICE = "Start all processes again with --resume."


class FirstFailure(NamedTuple):
    name: str  # of the process that failed
    end_by: float  # when this one has to have ended, by time.monotonic()


@dataclass(eq=False)
class Peer:
    """The watchdog of another process."""

    name: str  # of the process; "" where it has not been told yet
    writer: asyncio.StreamWriter
    said_goodbye: bool = False
    silent_beats: int = 0  # of this watchdog, since the last line came

    def send(self, kind: str, about: str) -> None:
        self.writer.write(f"{kind} {about}\n".encode())


class Watchdog:
    """Watches one process, its parent, and listens to the watchdogs of the others.

    All lines go through that of process 0, to which the others are connected. The parent writes BYE
    or FAILED to this process's standard input as it ends.
    """

    def __init__(self, name: str, address: str, port: int, listener: int | None, num_peers: int):
        """name: of the parent, such as "process 1 of 4 (on HOST, pid 123)".

        listener: in process 0, the file descriptor of the socket to which all `num_peers` other
        watchdogs connect; None where this one connects, to `address` and `port`. The token is read
        from the environment.
        """
        self.name = name  # of the parent, as the others hear of it
        self.address = address
        self.port = port
        self.listener = None if listener is None else socket.socket(fileno=listener)
        self.token = os.environ[TOKEN_VARIABLE]

        # connections without the token yet, the oldest first
        self.strangers: list[asyncio.StreamWriter] = []
        self.peers: list[Peer] = []
        self.missing_peers = num_peers
        self.first_failure: FirstFailure | None = None

        self.parent_pid = os.getppid()
        self.parent_stopped_beats = 0
        self.is_leaving = False  # whether the parent has ended, and the others have been notified

    async def run(self) -> None:
        """Watch until the parent has ended; where it has to end, end it and exit.

        OSError where the watchdog of process 0 does not answer.
        """
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)  # a connection that breaks while it is accepted
        parent_message = asyncio.Event()  # it says how the parent ends, or breaks off
        loop.add_reader(sys.stdin.fileno(), parent_message.set)
        await self._meet_peers()

        while not parent_message.is_set() and self._has_parent():
            self._beat()
            with suppress(TimeoutError):
                await asyncio.wait_for(parent_message.wait(), BEAT_SECONDS)

        loop.remove_reader(sys.stdin.fileno())
        # Without a message the parent is gone, though another process may hold its pipe.
        message = os.read(sys.stdin.fileno(), 64) if parent_message.is_set() else b""
        await self._announce_end(message.decode() or LOST)

    def _has_parent(self) -> bool:
        """Whether the parent lives: a process without its parent gets another one."""
        return os.getppid() == self.parent_pid

    async def _meet_peers(self) -> None:
        """Begin to listen, or connect to the watchdog that does."""
        if self.listener is not None:
            self.server = await asyncio.start_server(
                self._admit, sock=self.listener, limit=MAX_LINE_BYTES
            )
            return
        connection = asyncio.open_connection(self.address, self.port, limit=MAX_LINE_BYTES)
        reader, writer = await asyncio.wait_for(connection, CONNECT_TIMEOUT)
        writer.write(f"{HELLO} {self.token} {self.name}\n".encode())
        self.following = asyncio.create_task(self._follow(reader, Peer("", writer)))

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Make a peer of a connection whose first line has the token, and drop any other.

        Called by the server for each connection to process 0's watchdog; the first line has to be
        "hello TOKEN NAME".
        """
        self.strangers.append(writer)
        for oldest in self.strangers[:-MAX_STRANGERS]:
            oldest.close()

        hello = b""
        with suppress(OSError, ValueError):  # ValueError: of a line that is too long
            hello = await asyncio.wait_for(reader.readline(), HELLO_TIMEOUT)
        self.strangers.remove(writer)

        kind, _, text = hello.decode(errors="replace").rstrip("\n").partition(" ")
        token, _, name = text.partition(" ")
        has_token = hmac.compare_digest(token.encode(), self.token.encode())
        if kind != HELLO or not has_token or not self.missing_peers:
            return writer.close()

        self.missing_peers -= 1
        if not self.missing_peers:  # nothing needs to listen any more
            for stranger in self.strangers:
                stranger.close()
            self.server.close()

        peer = Peer(name, writer)
        peer.send(NAME, self.name)
        await self._follow(reader, peer)

    async def _follow(self, reader: asyncio.StreamReader, peer: Peer) -> None:
        """Read what another watchdog sends, until its process has ended.

        Each line is "KIND NAME": what has happened to whom. A connection that ends without BYE or
        FAILED before it means that the peer's process is lost.
        """
        self.peers.append(peer)
        with suppress(OSError, ValueError):
            while (line := await reader.readline()).endswith(b"\n"):
                peer.silent_beats = 0
                kind, _, about = line.decode(errors="replace").rstrip("\n").partition(" ")
                self._hear(peer, kind, about)

        self.peers.remove(peer)
        peer.writer.close()
        if peer.name and not peer.said_goodbye and not self.is_leaving:
            self._end_parent(LOST, peer.name)

    def _hear(self, peer: Peer, kind: str, about: str) -> None:
        """Take note of a line of another watchdog, "KIND ABOUT"; a BEAT needs nothing.

        The watchdog of process 0, to which all are connected, passes a failure on to the others
        here, and a loss in `_end_parent`; so the loss of its own parent comes back to a watchdog.
        """
        if kind == NAME:
            peer.name = about
        elif kind == BYE:
            peer.said_goodbye = True
        elif kind == FAILED:
            peer.said_goodbye = True
            if self.first_failure is None:
                self.first_failure = FirstFailure(about, time.monotonic() + GRACE_SECONDS)
            self._send_all(FAILED, about, except_to=peer)
        elif kind == SILENT or (kind == LOST and about != self.name):
            self._end_parent(kind, about)

    def _beat(self) -> None:
        """Give the others a sign, and look at all that may be lost."""
        self._send_all(BEAT, self.name)
        if self.first_failure is not None and time.monotonic() > self.first_failure.end_by:
            self._end_parent(LOST, self.first_failure.name)

        for peer in self.peers:
            peer.silent_beats += 1
            if peer.silent_beats > SILENT_BEATS and peer.name:
                self._end_parent(SILENT, peer.name)

        if is_stopped(self.parent_pid):
            self.parent_stopped_beats += 1
        else:
            self.parent_stopped_beats = 0
        if self.parent_stopped_beats > SILENT_BEATS:
            self._end_parent(SILENT, self.name)

    def _send_all(self, kind: str, about: str, except_to: Peer | None = None) -> None:
        for peer in self.peers:
            if peer is not except_to:
                peer.send(kind, about)

    async def _announce_end(self, end_kind: str) -> None:
        """Send the others how the parent has ended: BYE, FAILED or LOST.

        Where JAX may have ended it because process 0 is gone, wait for that news, which `_follow`
        passes to the user.
        """
        self.is_leaving = True
        self._send_all(end_kind, self.name)
        if end_kind != LOST or self.listener is not None:
            return
        deadline = time.monotonic() + LOSS_REPORT_TIMEOUT
        while self.peers and time.monotonic() < deadline:
            await asyncio.sleep(0.05)

    def _end_parent(self, kind: str, name: str) -> None:
        """End the parent and exit, as the process `name` is lost; the others hear of it first.

        kind: LOST or SILENT. The parent has GRACE_SECONDS to end by itself; then it is killed.
        """
        # Where the parent of process 0 ended first, the others follow from that, not from `name`.
        parent_ended_first = not self._has_parent() and self.listener is not None
        if parent_ended_first:
            self._send_all(LOST, self.name)
            sys.exit(1)
        self._send_all(kind, name)

        consequence = "it ends" if name == self.name else f"{self.name} ends too"
        advice = f"{LOOK_AT_LOG} {RESTART_ADVICE}" if kind == LOST else RESTART_ADVICE
        message = f"error: {name} {WHAT_HAPPENED[kind]}, so {consequence}. {advice}"
        print(printable(message), file=sys.stderr, flush=True)

        # The parent reads this, and ends (watchdog_client.py); a stopped one cannot. After an error
        # of another process it ends as that one does, not as after a loss.
        had_failed = self.first_failure is not None and self.first_failure.name == name
        with suppress(OSError):
            print(FAILED if had_failed else LOST, flush=True)
        deadline = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < deadline:
            if not self._has_parent() or is_stopped(self.parent_pid):
                break
            time.sleep(0.05)
        if self._has_parent():
            os.kill(self.parent_pid, signal.SIGKILL)
        sys.exit(1)


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal (SIGSTOP, Ctrl-Z).

    Always False where there is no /proc, as outside Linux; there JAX's heartbeat ends it.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state == "T"


def main(arguments: dict[str, Any]) -> None:
    """Run the watchdog's process, which ends with its parent.

    arguments: those of Watchdog, by name. Signals that are meant for the parent are ignored.
    """
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.SIG_IGN)
    guard_output(is_run=True)  # it goes on where nobody reads what it prints any more
    try:
        asyncio.run(Watchdog(**arguments).run())
    except OSError as e:
        address = f"{arguments['address']}:{arguments['port']}"
        failure = f"{arguments['name']} does not reach the watchdog of process 0 at {address} ({e})"
        warn(f"{failure}: when another process ends, only JAX's heartbeat ends this one.")
        sys.exit(UNREACHABLE_CODE)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
