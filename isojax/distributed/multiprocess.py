"""Several processes that are one run: each calls the same functions in the same order, with the same numbers. JAX's
arrays span their devices; what the host alone knows is exchanged here. With one process this does nothing."""

import pickle
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jax.experimental import multihost_utils

from isojax.core.errors import InputError

T = TypeVar("T")
_MIN_MESSAGE_BYTES = 1 << 12  # each length of a message compiles a program, so there are few


def is_multiprocess() -> bool:
    return jax.process_count() > 1


def is_primary() -> bool:
    """Whether this process writes the run's files and talks to its user."""
    return jax.process_index() == 0


def allgather(value: T) -> list[T]:
    """Each process's value, by process; anything that can be pickled."""
    if not is_multiprocess():
        return [value]
    data = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(len(data)))
    padded = np.zeros(max(_MIN_MESSAGE_BYTES, 1 << (int(sizes.max()) - 1).bit_length()), np.uint8)
    padded[: len(data)] = data
    messages = multihost_utils.process_allgather(padded)
    return [pickle.loads(np.asarray(row[:size]).tobytes()) for row, size in zip(messages, sizes, strict=True)]


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
    if is_multiprocess():
        multihost_utils.sync_global_devices(name)


def start_host_copy(arrays: Iterable[Any]) -> None:
    """Begins to copy to the host what `local_shard_rows` will read."""
    for x in arrays:
        for part in [shard.data for shard in x.addressable_shards] if is_multiprocess() else [x]:
            part.copy_to_host_async()


def local_shard_rows(x: Any) -> tuple[np.ndarray, np.ndarray]:
    """Of an array [S ...] that is sharded over processes: the indices of the shards of this process, and their rows.
    Each shard belongs to one process, also where several hold it."""
    if not is_multiprocess():
        return np.arange(len(x)), np.asarray(x)
    shards = [shard for shard in x.addressable_shards if shard.replica_id == 0]
    if not shards:
        return np.zeros(0, np.int64), np.zeros((0, *x.shape[1:]), x.dtype)
    shards = sorted(shards, key=lambda shard: shard.index[0].start or 0)
    shard_ids = [np.arange(len(x))[shard.index[0]] for shard in shards]
    return np.concatenate(shard_ids), np.concatenate([np.asarray(shard.data) for shard in shards])
