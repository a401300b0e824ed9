"""Links between the processes that train and those that only sample."""

from __future__ import annotations

import itertools
import random
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest

from isojax.core.errors import RunFailed
from isojax.distributed import roles
from isojax.distributed.roles import (
    Link,
    Role,
    TrainingFailed,
    divide_roles,
    processes_of_roles,
    received,
)


class Carrier:
    """What Ray does: it carries messages with their numbers, and keeps no order."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, Any]] = []

    def __call__(self, number: int, message: Any) -> None:
        self.calls.append((number, message))


def one_way() -> tuple[Link, Carrier, Link]:
    carrier = Carrier()
    return Link(carrier), carrier, Link(lambda *_: None)


def test_messages_are_handed_on_in_the_order_of_sending() -> None:
    """However they come, and in however many threads."""
    here, carrier, there = one_way()
    for i in range(200):
        here.send(("x", i))
    random.Random(0).shuffle(carrier.calls)
    parts = [carrier.calls[i::4] for i in range(4)]
    threads = [
        Thread(target=lambda part=part: [there.receive(*call) for call in part]) for part in parts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [there.incoming.get(timeout=10) for _ in range(200)] == [("x", i) for i in range(200)]


def test_a_message_waits_for_those_before_it() -> None:
    here, carrier, there = one_way()
    here.send(("weights",))
    here.send(("begin",))
    there.receive(*carrier.calls[1])
    assert there.incoming.empty()
    there.receive(*carrier.calls[0])
    assert [there.incoming.get(timeout=1), there.incoming.get(timeout=1)] == [
        ("weights",),
        ("begin",),
    ]


def test_who_receives_a_message_is_decided_when_it_arrives() -> None:
    here, carrier, there = one_way()
    here.send((1,))
    here.send((2,))
    there.receive(*carrier.calls[0])
    others = SimpleQueue[Any]()
    there.on_message = others.put
    there.receive(*carrier.calls[1])
    assert (
        there.incoming.get(timeout=1) == (1,)
        and others.get(timeout=1) == (2,)
        and there.incoming.empty()
    )


def test_the_last_processes_sample() -> None:
    assert processes_of_roles(5, 2) == (range(3), range(3, 5))


@pytest.mark.parametrize("error", [None, RunFailed("the disk is full"), OSError("no space")])
def test_what_ends_training_is_told_to_those_that_sample(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """As it is, where it is a message for the user, or by its name."""
    monkeypatch.setattr(roles.jax, "process_count", lambda: 3)
    monkeypatch.setattr(roles.jax, "process_index", lambda: 0)
    here, carrier, there = one_way()
    try:
        with divide_roles(1, {2: here}) as role:
            assert role is not None and role.trains and (role.rank, role.size) == (0, 2)
            if error is not None:
                raise error
    except Exception as e:
        assert e is error
    there.receive(*carrier.calls[0])
    if error is None:
        assert received(there) == (roles.END, None)
        return
    with pytest.raises(TrainingFailed) as ended:
        received(there)
    cause = ended.value.__cause__
    assert isinstance(cause, RunFailed) and str(error) in str(cause)
    assert (cause is error) == isinstance(error, RunFailed)


@pytest.mark.parametrize(("trainers", "samplers"), list(itertools.product((1, 2, 3), repeat=2)))
def test_each_process_has_one_that_it_asks_and_all_are_asked(trainers: int, samplers: int) -> None:
    def role(size: int, others: int, rank: int) -> Role:
        return Role(True, rank, size, {i: i for i in range(others)})  # type: ignore[dict-item]

    train, sample = (
        [role(*sizes, rank) for rank in range(sizes[0])]
        for sizes in ((trainers, samplers), (samplers, trainers))
    )
    for mine, theirs in ((train, sample), (sample, train)):
        assert sorted(i for a in mine for i in a.assigned_peers) == list(range(len(theirs)))
        for i, a in enumerate(mine):
            assert all(theirs[j].own_peer == i for j in a.assigned_peers)
            assert {j for j, b in enumerate(theirs) if i in b.partners} == a.partners
