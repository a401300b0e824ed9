"""Validation: how many of k rollouts of each problem are right. Per-problem counts are kept; every metric follows from
them.

The draws belong to (seed, evaluation, problem, rollout): cells of one seed meet the same draws at the same evaluation,
so that what differs between them is the policy.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, PRNGKeyArray

from isojax.core.config import SamplingConfig
from isojax.core.nouns import Problem
from isojax.distributed import multiprocess
from isojax.distributed.sharding import replicated
from isojax.models.transformer import Decoder, Params
from isojax.rl.train_step import EVAL_STREAM
from isojax.sampling.batch import (
    ProblemArrays,
    Rollouts,
    SamplerShapes,
    buffer_row_groups,
    make_sampler_shapes,
    response_tokens,
    row_index,
)
from isojax.sampling.engine import build_sampler
from isojax.sampling.stream import build_stream
from isojax.tasks.grading.background_grading import BackgroundGrader
from isojax.tasks.protocol import DeviceTask, EncodedProblems, HostTask, Task, is_on_device


class TokenizedProblems(NamedTuple):
    """Problems as text and as arrays."""

    problems: list[Problem]
    arrays: EncodedProblems


class EvalCounts(NamedTuple):
    """What an evaluation found.

    Attributes:
        right: i32[Q], right answers of each problem.
        tokens: the response tokens of each problem's first rollout.
        first: f32[Q], its reward.
        ended: how many rollouts met a stop. answered: how many held an answer in the right form (those that ended, on
        device).
        failures: checks of the verifier that did not come to an end, by kind.
        interrupted: how many rollouts were told to come to an end; None where none ever is.
    """

    correct: np.ndarray
    first_responses: list[np.ndarray]
    first_rewards: np.ndarray
    ended: int
    parsed: int
    failures: Counter[str]
    interrupted: int | None = None


class CallSamples(NamedTuple):
    """What one call sampled of Q problems: each one's first response, and how many of all met a stop, and were
    interrupted.
    """

    first_responses: list[np.ndarray]
    ended: int
    interrupted: int


EvalKey = tuple[np.int32, np.int32, np.int32]  # seed, stream, evaluation and repeat
GradedCalls = tuple[
    list[CallSamples], np.ndarray, int, Counter[str]
]  # calls, rewards of all their rollouts in order, answered, failures


class Evaluator:
    """Counts right answers, `problems` problems by `samples` rollouts a call, always through the same compiled
    programs.
    """

    def __init__(
        self,
        decoder: Decoder,
        task: Task,
        mesh: Mesh,
        problems_per_call: int,
        samples_per_problem: int,
        trainer_geometry: SamplerShapes,
        sampling: SamplingConfig,
    ):
        self.problems_per_call, self.samples_per_problem, self.mesh = problems_per_call, samples_per_problem, mesh
        self._has_interruption = task.stops.interruption is not None
        shape_args = (
            trainer_geometry.shards,
            trainer_geometry.slots,
            trainer_geometry.microbatch,
            trainer_geometry.prompt_length,
            trainer_geometry.response_length,
            trainer_geometry.prefill_batch,
        )
        self.geometry = make_sampler_shapes(
            [(problems_per_call, samples_per_problem)],
            *shape_args,
            trainer_geometry.slots_per_prefix if samples_per_problem >= trainer_geometry.slots_per_prefix else 1,
        )
        self._sample_and_grade = (
            self._device_verified(decoder, task, sampling)
            if is_on_device(task)
            else self._host_verified(decoder, task, sampling)
        )

    def _device_verified(
        self, decoder: Decoder, task: DeviceTask, sampling: SamplingConfig
    ) -> Callable[..., GradedCalls]:
        geometry = self.geometry
        sample = build_sampler(decoder, geometry, self.mesh, sampling, task.stops)

        def draw(params: Params, problems: ProblemArrays, Q: Array, *key: Array) -> tuple[Rollouts, Array]:
            rollouts = sample(params, problems, Q, jnp.int32(self.samples_per_problem), make_eval_key(*key))
            groups, _ = buffer_row_groups(geometry, Q, jnp.int32(self.samples_per_problem))
            return rollouts, task.verify(problems.answers[groups], rollouts.tokens, rollouts.response_mask)

        in_shardings = (decoder.shardings(self.mesh), None, None, None, None, None)
        sample_and_verify = jax.jit(draw, in_shardings=in_shardings, out_shardings=replicated(self.mesh))

        def sample_and_grade(params: Params, calls: list[tuple[TokenizedProblems, EvalKey]]) -> GradedCalls:
            samples, rewards = [], []
            for call_problems, key in calls:
                Q = len(call_problems.problems)
                rollouts, call_rewards = sample_and_verify(params, self.pad(call_problems.arrays), np.int32(Q), *key)
                samples.append(self._summarize_call(rollouts, Q))
                rewards.append(np.asarray(call_rewards)[row_index(Q * self.samples_per_problem, geometry.shards)])
            return samples, np.concatenate(rewards), sum(c.ended for c in samples), Counter()

        return sample_and_grade

    def _host_verified(self, decoder: Decoder, task: HostTask, sampling: SamplingConfig) -> Callable[..., GradedCalls]:
        stream = build_stream(decoder, self.geometry, self.mesh, sampling, task.stops)
        replicate: Callable[[Rollouts], Rollouts] = jax.jit(
            lambda rollouts: rollouts, out_shardings=replicated(self.mesh)
        )
        make_key = jax.jit(make_eval_key, out_shardings=replicated(self.mesh))

        def sample_and_grade(params: Params, calls: list[tuple[TokenizedProblems, EvalKey]]) -> GradedCalls:
            samples: list[CallSamples] = []
            with BackgroundGrader(
                task, [p for part, _ in calls for p in part.problems for _ in range(self.samples_per_problem)]
            ) as grading:
                rollouts_before = 0
                for part, key in calls:
                    Q = len(part.problems)

                    def on_finished(
                        rollout_index: np.ndarray, responses: list[np.ndarray], rollouts_before: int = rollouts_before
                    ) -> None:
                        grading.add_responses(rollouts_before + rollout_index, responses)

                    rollouts = stream.run(
                        params, self.pad(part.arrays), Q, self.samples_per_problem, make_key(*key), on_finished
                    )
                    samples.append(
                        self._summarize_call(replicate(rollouts) if multiprocess.is_multiprocess() else rollouts, Q)
                    )
                    rollouts_before += Q * self.samples_per_problem
                grades = grading.collect_grades()
            return samples, grades.rewards, int(grades.parsed.sum()), Counter(grades.failures)

        return sample_and_grade

    def _summarize_call(self, rollouts: Rollouts, Q: int) -> CallSamples:
        rows = row_index(Q * self.samples_per_problem, self.geometry.shards)
        ended, lengths, sampled_mask = (
            np.asarray(x)[rows] for x in (rollouts.stopped, rollouts.lengths, rollouts.mask)
        )
        return CallSamples(
            response_tokens(rollouts, Q * self.samples_per_problem)[:: self.samples_per_problem],
            int(ended.sum()),
            int((sampled_mask.sum(-1) < lengths).sum()),
        )

    def pad(self, encoded: EncodedProblems) -> ProblemArrays:
        """At most `problems` problems as the program's buffers."""
        padding = self.geometry.problem_rows - len(encoded.ids)
        return ProblemArrays(*(np.concatenate([x, np.repeat(x[:1], padding, 0)]) for x in encoded))

    def count_correct(
        self,
        params: Params,
        problem_set: TokenizedProblems,
        seed: int,
        evaluation: int,
        repeats: int = 1,
        stream: int = EVAL_STREAM,
    ) -> EvalCounts:
        """Right answers of each problem out of repeats * samples.

        The draws belong to (seed, stream, evaluation, repeat, problem, rollout).
        """
        keys = [(np.int32(seed), np.int32(stream), np.int32(evaluation * 1024 + repeat)) for repeat in range(repeats)]
        problem_blocks = self._split_into_calls(problem_set)
        calls, rewards, parsed, failures = self._sample_and_grade(
            params, [(part, key) for part in problem_blocks for key in keys]
        )
        block_ends = np.cumsum([len(part.problems) * repeats * self.samples_per_problem for part in problem_blocks])
        rewards_by_block = [
            r.reshape(repeats, -1, self.samples_per_problem) for r in np.split(rewards, block_ends[:-1])
        ]
        return EvalCounts(
            correct=np.concatenate([r.sum((0, 2)) for r in rewards_by_block]).astype(np.int32),
            first_responses=[tokens for call in calls[::repeats] for tokens in call.first_responses],
            first_rewards=np.concatenate([r[0, :, 0] for r in rewards_by_block]),
            ended=sum(call.ended for call in calls),
            parsed=parsed,
            failures=failures,
            interrupted=sum(call.interrupted for call in calls) if self._has_interruption else None,
        )

    def _split_into_calls(self, problem_set: TokenizedProblems) -> list[TokenizedProblems]:
        """The problems in calls of at most `self.problems`."""
        starts = range(0, len(problem_set.problems), self.problems_per_call)
        slices = [slice(start, start + self.problems_per_call) for start in starts]
        return [
            TokenizedProblems(problem_set.problems[cut], EncodedProblems(*(x[cut] for x in problem_set.arrays)))
            for cut in slices
        ]


def make_eval_key(seed: Array, stream: Array, evaluation: Array) -> PRNGKeyArray:
    """The key of an evaluation's draws."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), stream), evaluation)


def mean_accuracy(correct: Sequence[int] | np.ndarray, samples: int) -> float:
    """avg@samples: the mean over problems of right answers / samples."""
    return float(np.mean(np.asarray(correct) / samples))
