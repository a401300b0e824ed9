"""Processes of two roles in one run: the first train, the last only sample. Those of one role are one program
(distributed/multiprocess.py); between the roles, messages go over TCP, each pair of processes in the order of sending.
"""

import os
import pickle
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import jax
from jax._src import distributed  # the coordination service, which has no public name

from isojax.core import preemption
from isojax.core.errors import InputError, RunFailed
from isojax.core.machine import keep_alive
from isojax.core.preemption import Preempted
from isojax.core.terminal import warn
from isojax.distributed import multiprocess

HELLO_TIMEOUT = 10  # seconds until a connection must have shown the token
CONNECT_TIMEOUT = 60
LOSS_TIMEOUT = 30  # seconds after a link has broken in which the launcher's watchdog may end this process, and say why
TOKEN_BYTES = 16
PREEMPTED = ("preempted",)  # a process that samples was asked to end
END = "end"  # training has ended, and by which error


class Link:
    """A connection with a process of the other role. Where it breaks, this process ends."""

    def __init__(self, connection: socket.socket):
        connection.settimeout(None)
        keep_alive(connection)
        self._connection, self._closed = connection, Event()
        self._outgoing = SimpleQueue[bytes | None]()
        self.incoming = SimpleQueue[Any]()
        self.on_message: Callable[[Any], object] = self.incoming.put  # called in a thread
        self._sender = Thread(target=self._end_if_broken, args=(self._send_all,), daemon=True, name="link")
        self._sender.start()
        Thread(target=self._end_if_broken, args=(self._receive_all,), daemon=True, name="link").start()

    def send(self, message: tuple[Any, ...]) -> None:
        """What it is about, and anything that can be pickled, as it is now; returns at once."""
        self._outgoing.put(pickle.dumps(message))

    def close(self) -> None:
        """Once all messages are on their way."""
        self._closed.set()
        self._outgoing.put(None)
        self._sender.join(CONNECT_TIMEOUT)
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _end_if_broken(self, transfer: Callable[[], None]) -> None:
        try:
            transfer()
        except Exception as e:  # whatever it is, the other process would wait forever
            if not self._closed.wait(LOSS_TIMEOUT):
                warn(f"the connection with another process of this run has broken ({type(e).__name__}: {e})")
                os._exit(1)

    def _send_all(self) -> None:
        while (message := self._outgoing.get()) is not None:
            self._connection.sendall(message)

    def _receive_all(self) -> None:
        with self._connection.makefile("rb") as stream:
            while True:
                message = pickle.load(stream)
                if message[0] == END:
                    self._closed.set()  # as the other process does next
                if message == PREEMPTED:
                    preemption.REQUESTED.set()
                else:
                    self.on_message(message)  # who receives it may have changed while it was on its way
                del message  # it may be all weights


@dataclass(frozen=True)
class Role:
    """What this process does in a run of two roles. Each process of a role is assigned to one of the other role."""

    trains: bool
    rank: int  # of this process in its role
    size: int  # processes of its role
    peers: dict[int, Link]  # the processes of the other role, by their index in the run
    job_numbers: Iterator[int] = field(default_factory=count)  # the same in all processes of a role

    @property
    def own_peer(self) -> Link:
        """The peer to which this process is assigned."""
        return list(self.peers.values())[self.rank % len(self.peers)]

    @property
    def assigned_peers(self) -> list[Link]:
        """The peers that are assigned to this process."""
        return list(self.peers.values())[self.rank :: self.size]

    @property
    def partners(self) -> set[Link]:
        """The peers that are assigned to this process, or it to them."""
        return {self.own_peer, *self.assigned_peers}

    def next_message(self, kind: str) -> Any:
        """What the peer to which this process is assigned sends as the next message, of this kind; None at the end of
        the run, whose error, if any, is raised."""
        found, *content = received(self.own_peer)
        assert found in (kind, END), found
        return None if found == END else content


def received(link: Link) -> Any:
    """The next message of a process that trains; raises what has ended it."""
    message = link.incoming.get()
    if message[0] == END and message[1] is not None:
        raise message[1]
    return message


@contextmanager
def divide_roles(sampler_processes: int) -> Iterator[Role | None]:
    """Until the context ends, the last `sampler_processes` of this run's processes sample for the others; None: all do
    the same. What ends a process that trains is raised in those that sample."""
    if not sampler_processes:
        yield None
        return
    trainers, index = jax.process_count() - sampler_processes, jax.process_index()
    roles = range(trainers), range(trainers, jax.process_count())
    mine, others = roles if index in roles[0] else roles[::-1]
    trains, rank = mine is roles[0], mine.index(index)
    with ExitStack() as stack:
        role = Role(trains, rank, len(mine), _connect(trains, rank, others))
        for link in role.peers.values():
            stack.callback(link.close)
        stack.enter_context(multiprocess.only_among(mine))
        error: BaseException | None = None
        try:
            yield role
        except BaseException as e:
            error = e if isinstance(e, InputError | RunFailed | Preempted) else RunFailed(f"{type(e).__name__}: {e}")
            raise
        finally:
            for link in role.peers.values() if trains else ():
                link.send((END, error))


def _connect(trains: bool, rank: int, others: range) -> dict[int, Link]:
    """The links with all processes of the other role: those that sample listen, those that train connect."""
    token, links, listener = secrets.token_bytes(TOKEN_BYTES), {}, None
    if not trains:
        address = _own_address()
        listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    endpoints: list[Any] = multiprocess.allgather((listener and listener.getsockname()[:2], token))
    if listener is not None:
        with listener:
            return _accept(listener, {token + i.to_bytes(2): process for i, process in enumerate(others)})
    for process in others:
        address, token = endpoints[process]
        try:
            connection = socket.create_connection(address, CONNECT_TIMEOUT)
        except OSError as e:
            raise InputError(
                f"run.sampler_processes: this process does not reach process {process}, which samples, at port "
                f"{address[1]} of {address[0]} ({e}). Let the hosts of the run reach each other at any port."
            ) from e
        connection.sendall(token + rank.to_bytes(2))
        links[process] = Link(connection)
    return links


def _accept(listener: socket.socket, hellos: Mapping[bytes, int]) -> dict[int, Link]:
    """A link with each of these processes, by what it says first; a connection that says something else is closed."""
    links: dict[int, Link] = {}
    while len(links) < len(hellos):
        connection, _ = listener.accept()
        connection.settimeout(HELLO_TIMEOUT)
        hello = b""
        with suppress(OSError):
            while len(hello) < TOKEN_BYTES + 2 and (part := connection.recv(TOKEN_BYTES + 2 - len(hello))):
                hello += part
        if hello in hellos:
            links[hellos[hello]] = Link(connection)
        else:
            connection.close()
    return dict(sorted(links.items()))


def _own_address() -> str:
    """The address of this host from which it reaches process 0."""
    address = distributed.global_state.coordinator_address
    assert address is not None, "jax.distributed is initialised"
    host, _, port = address.rpartition(":")
    family, _, _, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])
