"""Processes of two roles in one run: the first train, the last only sample. Those of one role are one program
(distributed/multiprocess.py); between the roles, messages go over TCP, each pair of processes in the order of sending.
"""

import pickle
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Any

import jax
from jax._src import distributed  # the coordination service, which has no public name

from isojax.core.errors import InputError, RunFailed
from isojax.core.preemption import Preempted
from isojax.distributed import multiprocess

HELLO_TIMEOUT = 10  # seconds until a connection must have shown the token
CONNECT_TIMEOUT = 60
TOKEN_BYTES = 16


class Link:
    """A connection with a process of the other role. A process that dies is the launcher's watchdog's business, so
    nothing is raised here."""

    def __init__(self, connection: socket.socket):
        connection.settimeout(None)
        self._connection = connection
        self._outgoing = SimpleQueue[bytes | None]()
        self.incoming = SimpleQueue[Any]()
        self.on_message: Callable[[Any], object] = self.incoming.put  # called in a thread
        self._sender = Thread(target=self._send_all, daemon=True, name="link")
        self._sender.start()
        Thread(target=self._receive_all, daemon=True, name="link").start()

    def send(self, message: Any) -> None:
        """Anything that can be pickled, as it is now; returns at once."""
        self._outgoing.put(pickle.dumps(message))

    def close(self) -> None:
        """Once all messages are on their way."""
        self._outgoing.put(None)
        self._sender.join(CONNECT_TIMEOUT)
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _send_all(self) -> None:
        with suppress(OSError):
            while (message := self._outgoing.get()) is not None:
                self._connection.sendall(message)

    def _receive_all(self) -> None:
        with suppress(OSError, EOFError), self._connection.makefile("rb") as stream:
            while True:
                message = pickle.load(stream)
                self.on_message(message)  # who receives it may have changed while it was on its way


@dataclass(frozen=True)
class Role:
    """What this process does in a run of two roles. Each process of a role is assigned to one of the other role."""

    trains: bool
    rank: int  # of this process in its role
    size: int  # processes of its role
    peers: dict[int, Link]  # the processes of the other role, by their index in the run

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
        found, content = self.own_peer.incoming.get()
        if found == "end" and content is not None:
            raise content
        assert found in (kind, "end"), found
        return None if found == "end" else content


@contextmanager
def divide_roles(sampler_processes: int) -> Iterator[Role | None]:
    """Until the context ends, the last `sampler_processes` of this run's processes sample for the others; None: all do
    the same. What ends a process that trains is raised in those that sample."""
    if not sampler_processes:
        yield None
        return
    count, index = jax.process_count(), jax.process_index()
    roles = range(count - sampler_processes), range(count - sampler_processes, count)
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
                link.send(("end", error))


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
        connection = socket.create_connection(address, CONNECT_TIMEOUT)
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
            hello = connection.recv(TOKEN_BYTES + 2, socket.MSG_WAITALL)
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
