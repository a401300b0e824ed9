"""Several processes that are one run: each calls the same functions in the same order, with the
same numbers. JAX's arrays span their devices; what the host alone knows is exchanged here. With one
process this does nothing. Where some processes only sample (distributed/roles.py), all of this is
among those of one role."""

import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jax._src import distributed  # the coordination service, which has no public name

from isojax.core.errors import InputError

T = TypeVar("T")
# milliseconds: where a process ends, the launcher's watchdog ends the others
_NO_TIMEOUT = 2**31 - 1
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


def allgather(value: T, channel: str = "main") -> list[T]:
    """Each process's value, by process; anything that can be pickled. Each thread that calls it has
    its `channel`."""
    if not is_multiprocess():
        return [value]

    client: Any = distributed.global_state.client
    processes = list(members())
    name = f"isojax/{processes[0]}-{processes[-1]}/{channel}"
    message_round = next(_rounds[name])
    folder = f"{name}/{message_round}/"
    client.key_value_set_bytes(f"{folder}{jax.process_index()}", pickle.dumps(value))

    # Two names of barriers in turn: the service keeps every name that it has heard.
    client.wait_at_barrier(f"{name}/{message_round % 2}", _NO_TIMEOUT, processes)
    messages = dict(client.key_value_dir_get_bytes(folder))

    # All have read the messages of the round before, for they are in this one.
    if jax.process_index() == processes[0] and message_round:
        client.key_value_delete(f"{name}/{message_round - 1}/")
    return [pickle.loads(messages[f"{folder}{process}"]) for process in processes]


def broadcast(value: T) -> T:
    """Process 0's value."""
    return allgather(value)[0]


def run_on_primary(make: Callable[[], T]) -> T:
    """What process 0 makes; every process raises the InputError that this raises."""
    result, error = None, None
    if is_primary():
        try:
            result = make()
        except InputError as e:
            error = e
    result, error = broadcast((result, error))
    if error is not None:
        raise error
    return cast(T, result)


def barrier(name: str) -> None:
    allgather(name)


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
