"""Several processes that are one run: each calls the same functions in the same order, with the
same numbers. JAX's arrays span their devices; what the host alone knows is exchanged here. With one
process this does nothing. Where some processes only sample (distributed/roles.py), all of this is
among those of one role."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeVar

import jax
import numpy as np
from pydantic import BaseModel

from isojax.core.errors import InputError
from isojax.distributed import coordination, messages

T = TypeVar("T")
# The number of the next exchange, by the name that its members and channel give it
_rounds: defaultdict[str, Iterator[int]] = defaultdict(count)
_members: list[int] = []  # of `members`; empty: all processes


def members() -> Sequence[int]:
    """The processes that call the same functions as this one, by their index."""
    return _members or range(jax.process_count())


@contextmanager
def only_among(processes: Sequence[int]) -> Iterator[None]:
    """Within this context, these processes alone are the members (`members`), by their index in
    the run, rising. This process is one of them; contexts are not nested."""
    _members[:] = processes
    try:
        yield
    finally:
        _members.clear()


def is_multiprocess() -> bool:
    """Whether this process has others to agree with: not so for the only one of its role."""
    return len(members()) > 1


def is_primary() -> bool:
    """Whether this process writes the run's files and talks to its user."""
    return jax.process_index() == 0


def allgather(value: T, kind: Any, channel: str = "main") -> list[T]:
    """The values of all members, in the order of the processes; every member has to call it.

    kind: the type of `value`, by which it is sent as JSON (messages.py), such as `int` or
        `dict[str, str]`.
    channel: a name for each thread that calls it, so that calls of two threads do not mix.
    """
    if not is_multiprocess():
        return [value]

    processes = list(members())
    name = f"isojax/{processes[0]}-{processes[-1]}/{channel}"
    message = messages.encode(value, kind)
    received = coordination.exchange(message, name, next(_rounds[name]), processes)
    return [messages.decode(message, kind) for message in received]


def broadcast(value: T, kind: Any) -> T:
    """The value of the first member, of the type `kind`; those of the others are ignored. Every
    member has to call it."""
    return allgather(value, kind)[0]


class _Outcome(BaseModel):
    """What came of a call in process 0: what it made, as a message, or why it was refused."""

    made: str = ""  # by messages.encode, as text; "" where it was refused
    refusal: str | None = None  # the InputError's text; None: it was not refused


def run_on_primary(make: Callable[[], T], kind: Any) -> T:
    """What `make` returns in process 0, which alone calls it; every member has to call this.

    Process 0 has to be a member, so several processes that only sample (distributed/roles.py)
    cannot use it. A process without others calls `make` itself.

    kind: the type of what it returns, by which it is sent as JSON (messages.py). An InputError of
    `make` is raised in every process; any other exception in process 0 alone, while the others wait
    until the launcher's watchdog ends them.
    """
    if not is_multiprocess():
        return make()

    outcome = _Outcome()
    error: InputError | None = None
    if is_primary():
        try:
            outcome = _Outcome(made=messages.encode(make(), kind).decode())
        except InputError as e:
            error = e
            outcome = _Outcome(refusal=str(e))

    outcome = broadcast(outcome, _Outcome)
    if outcome.refusal is not None:
        raise error or InputError(outcome.refusal)
    return messages.decode(outcome.made.encode(), kind)


def barrier(name: str) -> None:
    """Wait until every member has called it. `name` says where, for whoever reads the call."""
    allgather(name, str)


def start_host_copy(arrays: Iterable[Any]) -> None:
    """Begins to copy to the host what `local_shard_rows` will read of these arrays [S ...]."""
    for x in arrays:
        if is_multiprocess():
            for shard in x.addressable_shards:
                shard.data.copy_to_host_async()
        else:
            x.copy_to_host_async()


def local_shard_rows(x: Any) -> tuple[np.ndarray, np.ndarray]:
    """The part of an array [S ...] that belongs to this process: (indices i[s], rows [s ...]).

    The array is sharded along its first axis over the processes, and `indices` are of that axis,
    rising. Each row belongs to one process, also where several hold a copy; a process may have none
    (s = 0). With one process s = S.
    """
    if not is_multiprocess():
        return np.arange(len(x)), np.asarray(x)

    # Of the copies of a part, the one with replica_id 0.
    shards = [shard for shard in x.addressable_shards if shard.replica_id == 0]
    if not shards:
        return np.zeros(0, np.int64), np.zeros((0, *x.shape[1:]), x.dtype)

    # `start` is None where the first axis is not split.
    shards.sort(key=lambda shard: shard.index[0].start or 0)
    shard_ids = [np.arange(len(x))[shard.index[0]] for shard in shards]
    return np.concatenate(shard_ids), np.concatenate([np.asarray(shard.data) for shard in shards])
