"""The weights that processes which train send to those which only sample; the runs are in
tests/e2e/test_hosts.py."""

from __future__ import annotations

import pickle
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from isojax.distributed.mesh_spec import MeshShape
from isojax.distributed.roles import Link, Role
from isojax.distributed.sharding import make_mesh
from isojax.rl.async_rl.remote_worker import (
    RemoteWorker,
    WeightPart,
    _overlap,
    next_request,
    place_weights,
    weight_parts,
)
from isojax.rl.async_rl.rollout_worker import RolloutJob
from tests.device import DECODER, policy


@pytest.mark.parametrize(
    ("trainer", "sampler"),
    [
        (MeshShape(fsdp=2, tensor=2), MeshShape(data=4)),
        (MeshShape(data=4), MeshShape(fsdp=2, tensor=2)),
    ],
)
def test_weights_arrive_whole(trainer: MeshShape, sampler: MeshShape) -> None:
    """Each part is sent once, however many devices have it; only what the sampler's devices need is
    filled."""
    devices = jax.devices()
    shardings = DECODER.shardings(make_mesh(sampler, devices[4:]))
    in_bfloat16 = jax.tree.map(lambda x: x.astype("bfloat16"), policy())
    params = jax.device_put(in_bfloat16, DECODER.shardings(make_mesh(trainer, devices)))
    parts = pickle.loads(pickle.dumps(weight_parts(params, shardings, process=0)))
    assert sum(x.size for _, _, x in parts) == sum(x.size for x in jax.tree.leaves(params))
    placed = place_weights(parts, params, shardings)
    jax.tree.map(np.testing.assert_array_equal, placed, params)
    assert jax.tree.map(lambda x: x.sharding, placed) == shardings
    assert not weight_parts(params, shardings, process=1)  # it has none of the sampler's devices


def test_parts_that_touch_have_no_element_in_common() -> None:
    """Of a matrix 4 x 6: two of its quarters, and a row with a column."""
    quarter, other, row = np.s_[:2, :3], np.s_[:2, 3:], np.s_[1:2, :]
    below = np.s_[2:, :3]
    assert not _overlap(quarter, other, (4, 6)) and not _overlap(other, quarter, (4, 6))
    assert not _overlap(quarter, below, (4, 6)) and not _overlap(below, quarter, (4, 6))
    assert _overlap(quarter, row, (4, 6)) and _overlap(row, other, (4, 6))
    assert not _overlap(row, below, (4, 6)) and _overlap(quarter, quarter, (4, 6))


def test_what_grading_raises_arrives_where_the_batch_is_awaited() -> None:
    def grade(batch: int, index: np.ndarray, responses: list[np.ndarray]) -> None:
        raise ValueError(f"no grade for {index.tolist()} of batch {batch}")

    def send_there(number: int, message: tuple[Any, ...]) -> None:
        there.receive(number, message)

    here = Link(send_there)
    there = Link(here.receive)
    filler: Any = None
    job = RolloutJob(4, 2, first_batch=0, filler_problem=filler, on_finished=grade)
    worker = RemoteWorker(filler, job, Role(trains=True, rank=0, size=1, peers={1: here}), filler)
    assert there.incoming.get(timeout=10) == ("begin", 0, replace(job, on_finished=None))
    for number in (7, 0):  # another job's is none of its business
        there.send(("finished", number, number, np.array([1, 2]), [np.zeros(3)] * 2))
        there.send(("sampled", number, 0, (filler, {}), 1.0))
    with pytest.raises(ValueError, match=r"no grade for \[1, 2\] of batch 0"):
        worker.take_batch(0)
    worker.close()
    assert there.incoming.get(timeout=10) == ("close",)


def test_requests_of_the_trainer_are_calls_of_the_worker() -> None:
    """Weights come in parts from all processes that train; the version with the worker's own."""
    on = make_mesh(MeshShape(data=4), jax.devices()[4:])
    shardings = DECODER.shardings(on)
    params = policy()
    names = list(params)
    parts = [
        WeightPart(i, (slice(None),) * x.ndim, x) for i, x in enumerate(jax.tree.leaves(params))
    ]
    links = [Link(lambda number, message: None) for _ in range(2)]
    role = Role(trains=False, rank=0, size=1, peers=dict(enumerate(links)))
    calls: list[Any] = []
    worker: Any = SimpleNamespace(
        programs=SimpleNamespace(param_shardings=shardings),
        publish_weights=lambda version, weights: calls.append((version, weights)),
        begin_batch=lambda *arguments: calls.append(arguments),
    )
    own = role.own_peer
    [other] = [link for link in links if link is not own]
    messages = [
        ("begin_batch", 3, "problems", "key"),
        ("publish_weights", 7, parts[::2]),
        ("close",),
    ]
    for number, message in enumerate(messages):
        own.receive(number, message)
    other.receive(0, ("publish_weights", 7, parts[1::2]))

    while (request := next_request(worker, role, params)) is not None:
        request()

    assert calls[0] == (3, "problems", "key")
    version, weights = calls[1]
    assert version == 7 and len(calls) == 2 and list(weights) == names
    jax.tree.map(np.testing.assert_array_equal, weights, params)
