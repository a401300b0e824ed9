"""Rollouts and their grades: which problem each response is judged by, on the host and on a device,
with an engine that samples nothing."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from isojax.core.config import SamplingConfig
from isojax.core.nouns import Problem
from isojax.core.shapes import SamplerShapes
from isojax.rl.engines import EngineSetup, Listener, SampleRequest
from isojax.rl.graded_sampler import GradedSampler, verify_on_device
from isojax.sampling.layout import Layout
from isojax.tasks.protocol import Grades
from tests.device import DECODER, P, Parity, T, mesh
from tests.refusals import refused

SHAPES = SamplerShapes([(3, 4)], 2, 4, 4, P, T)


class Engine:
    """A response is its problem's id and its number; they finish from the last one on."""

    def sample(self, params: Any, request: SampleRequest, listener: Listener | None) -> Any:
        if listener is not None:
            for r in reversed(range(request.B)):
                problem = request.problems[r // request.n]
                listener.on_finished(np.array([r]), [np.array([problem.id, r % request.n])])
        return f"rollouts of {request.B}"

    def compile(self, params: Any) -> Any:
        return params


def request_of(ids: Sequence[int], n: int) -> SampleRequest:
    arrays: Any = None
    return SampleRequest([Problem(i, "", "") for i in ids], arrays, n, jax.random.key(0))


def grade_tokens(problems: Sequence[Problem], responses: Sequence[np.ndarray]) -> Grades:
    """A response is judged by its own problem; its reward is its number."""
    for problem, response in zip(problems, responses, strict=True):
        assert problem.id == response[0]
    rewards = np.array([response[1] for response in responses], np.float32)
    return Grades(rewards, rewards > 0, {})


def test_responses_to_several_requests_are_graded_together() -> None:
    task: Any = SimpleNamespace(
        on_device=False, stops=SimpleNamespace(host_replies=False), grade_tokens=grade_tokens
    )
    engine: Any = Engine()
    sampler = GradedSampler(engine, task, SHAPES, mesh("data=2"))
    requests = [request_of([5, 6], 3), request_of([9], 2), request_of([5], 1)]
    kept, grades = sampler.sample_and_grade({}, requests, lambda *x: (x[0].n, *x[1:]))
    assert kept == [
        (3, "rollouts of 6", None),
        (2, "rollouts of 2", None),
        (1, "rollouts of 1", None),
    ]
    assert grades is not None and grades.rewards.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 0]


def test_a_device_judges_each_row_by_its_problems_answer() -> None:
    """The tokens of the response alone; context too, unlike what stands behind its end."""
    layout = Layout(3, 4, 2)
    rows = SHAPES.buffer_rows
    answers = 10 + np.arange(SHAPES.problem_rows)[:, None] * np.ones((1, T), int)
    problems: Any = SimpleNamespace(answers=answers)
    lengths = np.resize(np.arange(T + 1), (2, rows))
    rollouts: Any = SimpleNamespace(
        tokens="tokens", response_mask=np.arange(T) < lengths[..., None]
    )
    asked: list[Any] = []
    task: Any = SimpleNamespace(verify=lambda *x: asked.append(x) or "rewards")
    n: Any = 4
    assert verify_on_device(task, SHAPES, problems, rollouts, n - 1, n) == "rewards"
    [(of_rows, tokens, mask)] = asked
    assert layout.in_order(of_rows)[:, 0].tolist() == [10] * 4 + [11] * 4 + [12] * 4
    assert tokens == "tokens" and mask is rollouts.response_mask


def test_where_a_device_verifies_there_are_no_grades() -> None:
    engine: Any = Engine()
    sampler = GradedSampler(engine, Parity(), SHAPES, mesh("data=2"))
    assert sampler.verify is not None
    sampler.verify = lambda arrays, rollouts, B_p, n: (rollouts, int(B_p), int(n))  # type: ignore[assignment]
    kept, grades = sampler.sample_and_grade({}, [request_of([5, 6], 3)], lambda *x: x[1:])
    assert kept == [("rollouts of 6", ("rollouts of 6", 2, 3))] and grades is None


def test_an_engine_says_which_shapes_its_rollouts_have() -> None:
    engine: Any = Engine()
    task: Any = SimpleNamespace(on_device=False)
    sampler = GradedSampler(engine, task, SHAPES, mesh("data=2"))
    for top_p, width in ((1.0, 1), (0.9, T)):
        sampling = SamplingConfig(top_p=top_p)
        rollouts: Any = EngineSetup(
            DECODER, Parity(), SHAPES, mesh("data=2"), sampling
        ).rollout_shapes
        assert sampler.compile(rollouts) is rollouts
        assert rollouts.nucleus_mass.shape == (2, SHAPES.buffer_rows, width)
    with refused():
        sampler.compile({})
