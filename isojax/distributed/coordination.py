"""The coordination service of jax.distributed, with which every process of a run is connected.

JAX has no public name for it (looked for in jax 0.10.2 and 0.11.2), and what is public cannot take
its place: jax.experimental.multihost_utils gathers by a program on the devices of all processes,
whereas here some of the processes exchange messages, and a second thread does so while other
programs run. This is the only module that imports jax._src.
"""

from collections.abc import Sequence
from typing import Any

import jax
from jax._src import distributed

# milliseconds: where a process ends, the launcher's watchdog ends the others
_NO_TIMEOUT = 2**31 - 1


def coordinator_address() -> str:
    """HOST:PORT of process 0's service, as given or as JAX has detected it; "" without one."""
    return distributed.global_state.coordinator_address or ""


def exchange(message: bytes, name: str, round_number: int, processes: Sequence[int]) -> list[bytes]:
    """The messages of these processes, of which this one is one, in the order of `processes`.

    All call it with the same `name` and the same `processes`, and with `round_number` 0, 1, 2, ...
    of that name, without a gap. It returns when all have called it; there is no limit of time.
    """
    client: Any = distributed.global_state.client
    folder = f"{name}/{round_number}/"
    client.key_value_set_bytes(f"{folder}{jax.process_index()}", message)

    # Two names of barriers in turn: the service keeps every name that it has heard.
    client.wait_at_barrier(f"{name}/{round_number % 2}", _NO_TIMEOUT, list(processes))
    messages = dict(client.key_value_dir_get_bytes(folder))

    # All have read the messages of the round before, for they are in this one. Those of this round
    # must stay: another process may not have read them yet.
    if jax.process_index() == processes[0] and round_number:
        client.key_value_delete(f"{name}/{round_number - 1}/")
    return [messages[f"{folder}{process}"] for process in processes]
