"""Links between the processes that train and those that only sample."""

from __future__ import annotations

import itertools
import pickle
import socket
from contextlib import ExitStack
from queue import Empty, SimpleQueue
from threading import Thread

import numpy as np
import pytest

from isojax.core import preemption
from isojax.distributed import roles
from isojax.distributed.roles import Link, Role


def linked() -> tuple[Link, Link]:
    a, b = socket.socketpair()
    return Link(a), Link(b)


def test_messages_arrive_in_order_as_they_were_when_sent_and_before_the_link_closes() -> None:
    here, there = linked()
    x = np.zeros(1_000_000)
    for i in range(20):
        x[:] = i
        here.send(("x", x))
    here.close()
    arrived = [there.incoming.get(timeout=10)[1] for _ in range(20)]
    assert [a[0] for a in arrived] == [a[-1] for a in arrived] == list(range(20))
    there.close()


def test_who_receives_a_message_is_decided_when_it_arrives() -> None:
    here, there = linked()
    here.send((1,))
    assert there.incoming.get(timeout=10) == (1,)  # it waits for the next one now
    others = SimpleQueue[tuple[int]]()
    there.on_message = others.put
    here.send((2,))
    assert others.get(timeout=10) == (2,) and there.incoming.empty()
    here.close()
    there.close()


def test_a_connection_without_the_token_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "HELLO_TIMEOUT", 0.2)
    hellos = {b"t" * roles.TOKEN_BYTES + rank.to_bytes(2): 5 + rank for rank in range(2)}
    found: dict[int, Link] = {}
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        thread = Thread(target=lambda: found.update(roles._accept(listener, hellos)))
        thread.start()

        def connect(hello: bytes) -> socket.socket:
            connection = stack.enter_context(socket.create_connection(listener.getsockname(), 10))
            connection.sendall(hello)
            return connection

        strangers = [connect(hello) for hello in (b"GET / HTTP/1.1\r\n", b"t" * roles.TOKEN_BYTES + b"\xff\xff", b"")]
        peers = [connect(hello) for hello in reversed(hellos)]
        thread.join(30)
        assert list(found) == [5, 6]
        assert all(stranger.recv(1) == b"" for stranger in strangers)
        found[6].send(("for the first",))
        assert pickle.loads(peers[0].recv(100)) == ("for the first",)
        for link in found.values():
            link.close()


@pytest.mark.parametrize(("trainers", "samplers"), list(itertools.product((1, 2, 3), repeat=2)))
def test_each_process_has_one_that_it_asks_and_all_are_asked(trainers: int, samplers: int) -> None:
    def role(size: int, others: int, rank: int) -> Role:
        return Role(True, rank, size, {i: i for i in range(others)})  # type: ignore[dict-item]

    train, sample = (
        [role(*sizes, rank) for rank in range(sizes[0])] for sizes in ((trainers, samplers), (samplers, trainers))
    )
    for mine, theirs in ((train, sample), (sample, train)):
        assert sorted(i for a in mine for i in a.assigned_peers) == list(range(len(theirs)))
        for i, a in enumerate(mine):
            assert all(theirs[j].own_peer == i for j in a.assigned_peers)
            assert {j for j, b in enumerate(theirs) if i in b.partners} == a.partners


def test_a_process_that_was_asked_to_end_is_heard_before_anything_begins() -> None:
    here, there = linked()
    with preemption.handle_sigterm():
        here.send(roles.PREEMPTED)
        here.send(("after it",))
        assert there.incoming.get(timeout=10) == ("after it",) and preemption.REQUESTED.is_set()
    here.close()
    there.close()


def test_a_broken_link_ends_the_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Not at once: the watchdog may know why. Once training has ended, links close."""
    ended = SimpleQueue[int]()
    monkeypatch.setattr(roles, "LOSS_TIMEOUT", 0.3)
    monkeypatch.setattr(roles.os, "_exit", ended.put)
    here, there = linked()
    here.send((roles.END, None))
    here.close()
    with pytest.raises(Empty):
        ended.get(timeout=1)
    there.close()

    a, b = socket.socketpair()
    link = Link(a)
    b.close()
    assert ended.get(timeout=10) == 1
    assert "connection with another process of this run has broken (EOFError" in capsys.readouterr().err
    link.close()
