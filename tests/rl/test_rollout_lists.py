"""The local sampler's rollouts, made lists and buffers again, are the same; lists that are no
rollouts are refused."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from isojax.core.config import SamplingConfig
from isojax.core.nouns import Problem
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import shard_count
from isojax.rl.engines import EngineSetup, SampleRequest
from isojax.rl.engines.local import local_engine
from isojax.rl.rollout_lists import SampledResponse, lists_from_rollouts, rollouts_from_lists
from isojax.sampling.batch import ProblemArrays, Rollouts
from isojax.sampling.layout import Layout
from isojax.tasks.protocol import Interruption, StopConditions
from tests.device import DECODER, EOS, MESHES, P, Parity, mesh, placed, policy, random_problems
from tests.refusals import refused

T, B_p, n = 5, 5, 7
TABLE = random_problems(16)


def engine_setup(axes: str, top_p: float = 1.0, interrupted: bool = False) -> EngineSetup:
    on = mesh(axes)
    task = Parity()
    interruption = Interruption(after=2, tokens=(9, 10), unless_token=None) if interrupted else None
    task.stops = StopConditions((EOS,), None, interruption=interruption)
    shapes = SamplerShapes([(B_p, n)], shard_count(on), 4, 8, P, T)
    return EngineSetup(DECODER, task, shapes, on, SamplingConfig(temperature=0.8, top_p=top_p))


def make_request(setup: EngineSetup) -> SampleRequest:
    rows = setup.shapes.problem_rows
    arrays = ProblemArrays(*(np.resize(x, (rows, *x.shape[1:])) for x in TABLE))
    problems = [Problem(int(i), str(i), "") for i in TABLE.ids[:B_p]]
    return SampleRequest(problems, arrays, n, jax.random.key(3))


@pytest.mark.parametrize(
    ("axes", "top_p", "interrupted"),
    [
        ("data=1", 1.0, False),
        pytest.param(MESHES[0], 0.9, False, marks=pytest.mark.slow),
        ("data=8", 0.9, True),
    ],
)
def test_the_local_samplers_rollouts_as_lists_and_back(
    axes: str, top_p: float, interrupted: bool
) -> None:
    setup = engine_setup(axes, top_p, interrupted)
    request = make_request(setup)
    layout = Layout(request.B_p, request.n, setup.shapes.shards)
    sampled = local_engine(setup).sample(placed(policy(), setup.mesh), request, None)
    assert isinstance(sampled, Rollouts)

    responses = lists_from_rollouts(sampled, layout)
    assert len({response.stopped for response in responses}) == 2  # some were cut
    assert interrupted == any((np.asarray(response.tokens) < 0).any() for response in responses)
    rebuilt = rollouts_from_lists(setup, request, responses)

    for name, before, after in zip(Rollouts._fields, sampled, rebuilt, strict=True):
        assert (before.shape, before.dtype) == (after.shape, after.dtype), name
        assert after.sharding.is_equivalent_to(before.sharding, before.ndim), name
        np.testing.assert_array_equal(layout.in_order(after), layout.in_order(before), err_msg=name)


def test_a_response_by_hand() -> None:
    """Cut at T; context is marked; what is not there is padding."""
    setup = engine_setup("data=1")
    request = dataclasses.replace(
        make_request(setup), problems=make_request(setup).problems[:1], n=2
    )
    long = SampledResponse([5, 6, 7, 8, 9, 4], [-1, -2, -3, -4, -5, -6], stopped=True)
    short = SampledResponse([5, ~6, EOS], [-1, 0, -3], stopped=True)

    rollouts = rollouts_from_lists(setup, request, [long, short])
    tokens, logps, mask, mass, stopped, lengths = (np.asarray(x)[0, :2] for x in rollouts)
    assert tokens.tolist() == [[5, 6, 7, 8, 9], [5, 6, EOS, 0, 0]]
    assert logps.tolist() == [[-1, -2, -3, -4, -5], [-1, 0, -3, 0, 0]]
    assert mask.tolist() == [[True] * 5, [True, False, True, False, False]]
    assert mass.tolist() == [[1], [1]]
    assert (stopped.tolist(), lengths.tolist()) == ([False, True], [5, 3])


@pytest.mark.parametrize(
    "responses",
    [
        [SampledResponse([3], [-1], True)],
        [SampledResponse([3], [-1], True), SampledResponse([5, 24], [-1, -1], True)],
        [SampledResponse([3], [], True)] * 2,
        [SampledResponse([3], [-1], True), SampledResponse([5, ~24], [-1, 0], True)],
    ],
)
def test_lists_that_are_no_rollouts(responses: list[SampledResponse]) -> None:
    setup = engine_setup("data=1")
    request = dataclasses.replace(
        make_request(setup), problems=make_request(setup).problems[:1], n=2
    )
    with refused():
        rollouts_from_lists(setup, request, responses)
