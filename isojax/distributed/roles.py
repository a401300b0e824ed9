"""Processes of two roles in one run: the first train, the last only sample. Those of one role are
one program (distributed/multiprocess.py). Between the roles go messages, which Ray carries
(launch/ray/ray_actor.py), from each process to each of the other role in the order of sending; a
process that ends is noticed by its watchdog and by Ray.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from queue import SimpleQueue
from threading import Lock
from typing import Any

import jax

from isojax.core.errors import InputError, RunFailed
from isojax.core.preemption import Preempted
from isojax.distributed import multiprocess

# The kind of the last message of a process that trains: (END, None), or (END, the error)
END = "end"

# Its kind, such as "sampled", and anything that can be pickled
Message = tuple[Any, ...]


class TrainingFailed(Exception):
    """The processes that train have ended by an error, its cause."""


class Link:
    """Messages with one process of the other role."""

    def __init__(self, deliver: Callable[[int, Message], object]):
        """deliver: called with (number, message). It carries them to the link in the other process,
        whose `receive` is called there, and returns at once. Messages may arrive in any order, in
        several threads; a message is sent as it is at the call, and may be changed after it."""
        self._deliver = deliver
        self._numbers = count()
        self._early: dict[int, Message] = {}  # that have come before their turn
        self._next_number = 0
        self._receiving = Lock()
        self.incoming = SimpleQueue[Message]()
        self.on_message: Callable[[Message], object] = self.incoming.put

    def send(self, message: Message) -> None:
        self._deliver(next(self._numbers), message)

    def receive(self, number: int, message: Message) -> None:
        """Hand on this message, and those after it that were waiting for it; or keep it until its
        turn comes. `number` counts the messages of the other process from 0."""
        with self._receiving:
            self._early[number] = message
            while self._next_number in self._early:
                in_turn = self._early.pop(self._next_number)
                self._next_number += 1
                self.on_message(in_turn)


@dataclass(frozen=True)
class Role:
    """What this process does in a run of two roles. Each process of a role is assigned to one of
    the other role: the process of rank r to the peer of rank r modulo their number."""

    trains: bool  # else it only samples
    rank: int  # of this process in its role
    size: int  # processes of its role
    # the processes of the other role, by their index in the run, in rising order
    peers: Mapping[int, Link]
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
        """The next message of the peer to which this process is assigned, as a list without its
        kind; None at the end of the run.

        kind: the only one that the message may have, but for END. It waits until there is one.
        Raises TrainingFailed where an error has ended the run.
        """
        received_kind, *content = received(self.own_peer)
        assert received_kind in (kind, END), received_kind
        return None if received_kind == END else content


def received(link: Link) -> Any:
    """The next message of a process that trains, which it waits for. Raises TrainingFailed where an
    error has ended that process."""
    message = link.incoming.get()
    if message[0] == END and message[1] is not None:
        raise TrainingFailed from message[1]
    return message


def processes_of_roles(num_processes: int, sampler_processes: int) -> tuple[range, range]:
    """The processes that train, and those that only sample, by their index: the last ones."""
    trainers = num_processes - sampler_processes
    return range(trainers), range(trainers, num_processes)


@contextmanager
def divide_roles(sampler_processes: int, links: Mapping[int, Link]) -> Iterator[Role | None]:
    """The role of this process, until the context ends; None where all processes do the same.

    sampler_processes: so many, the last ones of this run, sample for the others; 0: none does.
    links: with all processes of the other role, by their index in the run, in rising order.

    Within the context, the members of distributed/multiprocess.py are the processes of this role. A
    process that trains sends what ended it, or None, to those that sample.
    """
    if not sampler_processes:
        yield None
        return

    training, sampling = processes_of_roles(jax.process_count(), sampler_processes)
    index = jax.process_index()
    trains = index in training
    processes = training if trains else sampling
    role = Role(trains, rank=processes.index(index), size=len(processes), peers=links)

    with multiprocess.only_among(processes):
        error: BaseException | None = None
        try:
            yield role
        except BaseException as e:
            # These can be pickled, to be sent; of another error its text is sent.
            is_known = isinstance(e, InputError | RunFailed | Preempted)
            error = e if is_known else RunFailed(f"{type(e).__name__}: {e}")
            raise
        finally:
            if trains:
                for link in role.peers.values():
                    link.send((END, error))
