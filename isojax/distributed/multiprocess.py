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
_rounds: defaultdict[str, Iterator[int]] = defaultdict(count)  # of messages, by members and channel
_members: list[int] = []  # where these are not all processes


def members() -> Sequence[int]:
    """The processes that call the same functions as this one, by their index."""
    return _members or range(jax.process_count())


@contextmanager
def only_among(processes: Sequence[int]) -> Iterator[None]:
    """Within this context, these processes alone are the members, of which this one is one."""
    _members[:] = processes
    try:
        yield
    finally:
        _members.clear()


def is_multiprocess() -> bool:
    return len(members()) > 1


def is_primary() -> bool:
    """Whether this process writes the run's files and talks to its user."""
    return jax.process_index() == 0


def allgather(value: T, kind: Any, channel: str = "main") -> list[T]:
    """Each process's value, by process, as JSON of its type `kind` (messages.py). Each thread that
    calls it has its `channel`."""
    if not is_multiprocess():
        return [value]

    processes = list(members())
    name = f"isojax/{processes[0]}-{processes[-1]}/{channel}"
    message = messages.encode(value, kind)
    received = coordination.exchange(message, name, next(_rounds[name]), processes)
    return [messages.decode(message, kind) for message in received]


def broadcast(value: T, kind: Any) -> T:
    """Process 0's value, of the type `kind`."""
    return allgather(value, kind)[0]


class _Outcome(BaseModel):
    """What came of a call in process 0: what it made, as a message, or why it was refused."""

    made: str = ""
    refusal: str | None = None


def run_on_primary(make: Callable[[], T], kind: Any) -> T:
    """What process 0 makes, of the type `kind`; every process raises the InputError that this
    raises."""
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
    allgather(name, str)


def start_host_copy(arrays: Iterable[Any]) -> None:
    """Begins to copy to the host what `local_shard_rows` will read."""
    for x in arrays:
        if is_multiprocess():
            for shard in x.addressable_shards:
                shard.data.copy_to_host_async()
        else:
            x.copy_to_host_async()


def local_shard_rows(x: Any) -> tuple[np.ndarray, np.ndarray]:
    """Of an array [S ...] that is sharded over processes: the indices of the shards of this
    process, and their rows. Each shard belongs to one process, also where several hold it."""
    if not is_multiprocess():
        return np.arange(len(x)), np.asarray(x)

    shards = [shard for shard in x.addressable_shards if shard.replica_id == 0]
    if not shards:
        return np.zeros(0, np.int64), np.zeros((0, *x.shape[1:]), x.dtype)

    shards.sort(key=lambda shard: shard.index[0].start or 0)
    shard_ids = [np.arange(len(x))[shard.index[0]] for shard in shards]
    return np.concatenate(shard_ids), np.concatenate([np.asarray(shard.data) for shard in shards])
