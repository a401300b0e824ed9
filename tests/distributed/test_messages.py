"""What processes send each other arrives as it was, and nothing else is taken."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from isojax.core.config import Config, load_config
from isojax.core.errors import InputError
from isojax.core.nouns import Cell
from isojax.core.schedule import Stage
from isojax.distributed import coordination, messages, multiprocess
from isojax.distributed.messages import SentArray
from isojax.launch.strategies import CellTarget
from isojax.sampling.replies import SlotReply, WaitingSlot

STAGES = (Stage(0, 4, 2), Stage(64, 4, 4))
TARGETS = [
    CellTarget(Cell(4, 2, 0, "growing", STAGES, n_max=8), 100, STAGES[:1]),
    CellTarget(Cell.of_spend(4, 2), 600),
]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, None),
        (None, int | None),
        (True, bool),
        ({3: 2, 5: 2.5, 8: 3.0}, dict[int, int | float]),
        (Counter(timeout=2), Counter[str]),
        (TARGETS, list[CellTarget]),
    ],
)
def test_a_value_arrives_as_it_was(value: Any, kind: Any) -> None:
    arrived = messages.decode(messages.encode(value, kind), kind)
    assert arrived == value and type(arrived) is type(value)


@pytest.mark.parametrize(
    "array", [np.array([[0.1, 1.5]], np.float32), np.array([True]), np.zeros(0, int)]
)
def test_an_array_arrives_to_the_bit(array: np.ndarray) -> None:
    arrived = messages.decode(messages.encode(array, SentArray), SentArray)
    assert arrived.dtype == array.dtype and arrived.shape == array.shape
    assert arrived.tobytes() == array.tobytes()

    reply = SlotReply(WaitingSlot(shard=0, slot=1, buffer_row=2, length=3), array)
    (arrived,) = messages.decode(messages.encode([reply], list[SlotReply]), list[SlotReply])
    assert arrived.slot == reply.slot and arrived.context.tobytes() == array.tobytes()


def test_a_config_arrives_with_what_was_set() -> None:
    """Some defaults depend on whether a setting was given."""
    config = load_config("quickstart", ["cell.rl.learning_rate=1e-3"])
    arrived = messages.decode(messages.encode(config, Config), Config)
    assert arrived == config
    assert arrived.model_fields_set == config.model_fields_set
    assert arrived.cell.rl.model_fields_set == config.cell.rl.model_fields_set


class _RunsCode:
    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.remove, ("a file of yours",)


def test_what_is_no_message_is_refused_and_no_pickle_is_read() -> None:
    for message in (pickle.dumps(_RunsCode()), b"", b'{"a": 1}', b"[1, 2"):
        with pytest.raises(ValidationError):
            messages.decode(message, list[int])

    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        messages.encode(np.array([_RunsCode()]), SentArray)


@pytest.fixture
def two_processes(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """As process 1 of two sees them; what process 0 sends is put into the list."""
    from_process_0: list[bytes] = []

    def exchange(message: bytes, name: str, round_number: int, processes: list[int]) -> list[bytes]:
        assert processes == [0, 1] and name == "isojax/0-1/main"
        return [from_process_0.pop(0), message]

    monkeypatch.setattr(multiprocess, "members", lambda: range(2))
    monkeypatch.setattr(multiprocess, "is_primary", lambda: False)
    monkeypatch.setattr(coordination, "exchange", exchange)
    return from_process_0


def test_each_process_gets_the_values_of_all(two_processes: list[bytes]) -> None:
    two_processes += [b"7", b"8"]
    assert multiprocess.allgather(3, int) == [7, 3]
    assert multiprocess.broadcast(3, int) == 8


def test_what_process_0_makes_or_is_refused_holds_for_all(two_processes: list[bytes]) -> None:
    def make() -> int:
        pytest.fail("this is not process 0")

    two_processes += [b'{"made": "5"}', b'{"refusal": "no such folder"}']
    assert multiprocess.run_on_primary(make, int) == 5
    with pytest.raises(InputError, match="no such folder"):
        multiprocess.run_on_primary(make, int)
