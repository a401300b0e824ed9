"""Rollouts and their rewards: the one place where responses of an engine meet the verifier, for
training, evaluations and labels. A verifier on the host judges responses while others are
sampled."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import Program, replicated, shape_on
from isojax.models.transformer import Params
from isojax.rl.engines import Listener, RolloutEngine, SampleRequest
from isojax.sampling.batch import ProblemArrays, Rollouts, RoutedRollouts, problem_shapes
from isojax.sampling.layout import Layout
from isojax.tasks.grading import BackgroundGrader
from isojax.tasks.protocol import DeviceTask, Grades
from isojax.tasks.task import Task, is_on_device

T = TypeVar("T")
# What is kept of a request's rollouts; with their rewards f32[S rows] where a device verifies them,
# else None.
Keep = Callable[[SampleRequest, Rollouts | RoutedRollouts, Any], T]


def verify_on_device(
    task: DeviceTask,
    shapes: SamplerShapes,
    problems: ProblemArrays,
    rollouts: Rollouts | RoutedRollouts,
    B_p: Array,
    n: Array,
) -> Array:
    """The rewards f32[S rows] of rollouts in their rows, to be called inside a jit.

    Padding rows have any reward. problems: `problem_rows` of them, with answers i32[Q T].
    """
    groups, _ = Layout(B_p, n, shapes.shards).row_groups(shapes.buffer_rows)
    return task.verify(problems.answers[groups], rollouts.tokens, rollouts.response_mask)


def build_verify(task: Task, shapes: SamplerShapes, mesh: Mesh) -> Program | None:
    """`verify(problems, rollouts, B_p, n) -> f32[S rows]`; None where the host verifies."""
    if not is_on_device(task):
        return None

    def verify(problems: ProblemArrays, rollouts: Rollouts, B_p: Array, n: Array) -> Array:
        return verify_on_device(task, shapes, problems, rollouts, B_p, n)

    return Program(jax.jit(verify, out_shardings=replicated(mesh)))


class GradedSampler:
    """Samples by an engine, and grades."""

    def __init__(
        self, engine: RolloutEngine, task: Task, shapes: SamplerShapes, mesh: Mesh
    ) -> None:
        self.engine, self.task, self.shapes, self.mesh = engine, task, shapes, mesh
        self.verify = build_verify(task, shapes, mesh)

    def compile(self, params: Params) -> Rollouts | RoutedRollouts:
        """Compile all programs for parameters of these shapes; returns the rollouts' shapes.

        Raises:
            InputError: an engine of a fork's does not say which shapes its rollouts have.
        """
        rollouts = self.engine.compile(params)
        if not isinstance(rollouts, Rollouts | RoutedRollouts):
            name = type(self.engine).__qualname__
            raise InputError(
                found=(
                    f"{name}.compile of {type(self.engine).__module__} returns a "
                    f"{type(rollouts).__name__}"
                ),
                expected="the shapes of its rollouts: `return self.setup.rollout_shapes`",
            )

        if self.verify is not None:
            scalar = shape_on(replicated(self.mesh))
            problems = problem_shapes(
                self.shapes, self.mesh, self.shapes.problem_rows, self.shapes.response_length
            )
            self.verify.compile(problems, rollouts, scalar, scalar)
        return rollouts

    def sample_and_grade(
        self, params: Params, requests: Sequence[SampleRequest], keep: Keep[T]
    ) -> tuple[list[T], Grades | None]:
        """Sample and verify requests: (what `keep` makes of the rollouts of each, the grades).

        keep(request, rollouts, rewards): rewards are f32[S rows] where a device verifies, else
        None. grades: of all rollouts, in the order of requests and rollouts, where the host
        verifies; else None. Raises what the engine or the verifier has raised.
        """
        if self.verify is not None:
            return [self._sample_and_verify(params, request, keep) for request in requests], None
        assert not is_on_device(self.task)

        # The grader counts the rollouts of all requests, those of the first one first: entry r is
        # the problem of rollout r.
        problem_of_rollout: list[Problem] = []
        for request in requests:
            for problem in request.problems:
                problem_of_rollout += [problem] * request.n

        # Gives the context that follows a turn, in a task of turns; None in any other.
        reply_tokens = self.task.reply_tokens if self.task.stops.host_replies else None
        kept: list[T] = []
        rollouts_before = 0
        with BackgroundGrader(self.task.grade_tokens, problem_of_rollout, reply_tokens) as grading:
            for request in requests:
                listener = listen_from(rollouts_before, grading)
                rollouts = self.engine.sample(params, request, listener)
                kept.append(keep(request, rollouts, None))
                rollouts_before += request.B
            return kept, grading.collect_grades()  # waits until all are graded

    def _sample_and_verify(self, params: Params, request: SampleRequest, keep: Keep[T]) -> T:
        assert self.verify is not None
        rollouts = self.engine.sample(params, request, None)
        rewards = self.verify(request.arrays, rollouts, np.int32(request.B_p), np.int32(request.n))
        return keep(request, rollouts, rewards)


def listen_from(first: int, grading: BackgroundGrader) -> Listener:
    """Make a listener that passes one request's responses on to a grader of several requests.

    first: the number, in the grader, of the request's first rollout.
    """

    def on_finished(rollouts: np.ndarray, responses: list[np.ndarray]) -> None:
        grading.add_responses(first + rollouts, responses)

    def reply(rollouts: np.ndarray, responses: list[np.ndarray]) -> list[np.ndarray]:
        return grading.reply(first + rollouts, responses)

    return Listener(on_finished, reply)
