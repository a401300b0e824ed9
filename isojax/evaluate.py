"""Validation: how many of k rollouts of each problem are right. Per-problem counts are kept; every metric follows from them.

The draws belong to (seed, evaluation, problem, rollout): cells of one seed meet the same draws at the same evaluation, so that what
differs between them is the policy.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from isojax.config import SamplingConfig
from isojax.models.decoder import Decoder, Params
from isojax.rl.step import EVAL
from isojax.sampling.batch import Geometry, Problems, Rollouts, batch_rows, make_geometry, places, responses
from isojax.sampling.sampler import build_sampler
from isojax.sharding import replicated
from isojax.tasks.base import Encoded, Task, on_device
from isojax.types import Problem


class ProblemSet(NamedTuple):
    """Problems as text and as arrays."""

    problems: list[Problem]
    arrays: Encoded


class Counts(NamedTuple):
    """What an evaluation found.

    Attributes:
        right: i32[Q], right answers of each problem.
        tokens: the response tokens of each problem's first rollout.
        first: f32[Q], its reward.
        ended: how many rollouts met a stop. answered: how many held an answer in the right form (those that ended, on device).
        failures: checks of the verifier that did not come to an end, by kind.
    """

    right: np.ndarray
    tokens: list[np.ndarray]
    first: np.ndarray
    ended: int
    answered: int
    failures: Counter[str]


class Evaluator:
    """Counts right answers, `problems` problems by `samples` rollouts a call of one compiled program."""

    def __init__(
        self,
        decoder: Decoder,
        task: Task,
        mesh: Mesh,
        problems: int,
        samples: int,
        like: Geometry,
        sampling: SamplingConfig,
    ):
        self.task, self.problems, self.samples, self.mesh = task, problems, samples, mesh
        self.geometry = make_geometry(
            [(problems, samples)], like.shards, like.slots, like.microbatch, like.prompt_length, like.response_length, like.prompts
        )
        self._sample = self._build(decoder, sampling)

    def _build(self, decoder: Decoder, sampling: SamplingConfig) -> Callable[..., tuple[Rollouts, Array]]:
        geometry, task = self.geometry, self.task
        sample = build_sampler(decoder, geometry, self.mesh, sampling, task.stops)

        def draw(params: Params, problems: Problems, Q: Array, seed: Array, stream: Array, evaluation: Array) -> tuple[Rollouts, Array]:
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), stream), evaluation)
            rollouts = sample(params, problems, Q, jnp.int32(self.samples), key)
            groups, _ = batch_rows(geometry, Q, jnp.int32(self.samples))
            if on_device(task):
                return rollouts, task.verify(problems.answers[groups], rollouts.tokens, rollouts.mask)
            return rollouts, jnp.zeros(groups.shape)

        given = (decoder.shardings(self.mesh), None, None, None, None, None)
        return jax.jit(draw, in_shardings=given, out_shardings=replicated(self.mesh))

    def pad(self, encoded: Encoded) -> Problems:
        """At most `problems` problems as the program's buffers."""
        extra = self.geometry.problem_rows - len(encoded.ids)
        return Problems(*(np.concatenate([x, np.repeat(x[:1], extra, 0)]) for x in encoded))

    def counts(self, params: Params, chosen: ProblemSet, seed: int, evaluation: int, repeats: int = 1, stream: int = EVAL) -> Counts:
        """Right answers of each problem out of repeats * samples.

        The draws belong to (seed, stream, evaluation, repeat, problem, rollout).
        """
        found = [
            self._call(params, part, (np.int32(seed), np.int32(stream), np.int32(evaluation * 1024 + repeat)))
            for part in self._parts(chosen)
            for repeat in range(repeats)
        ]
        firsts = found[::repeats]
        right = [sum(c.right for c in found[i : i + repeats]) for i in range(0, len(found), repeats)]
        return Counts(
            right=np.concatenate(right),
            tokens=[tokens for c in firsts for tokens in c.tokens],
            first=np.concatenate([c.first for c in firsts]),
            ended=sum(c.ended for c in found),
            answered=sum(c.answered for c in found),
            failures=sum((c.failures for c in found), Counter()),
        )

    def _parts(self, chosen: ProblemSet) -> list[ProblemSet]:
        """The problems in calls of at most `self.problems`."""
        starts = range(0, len(chosen.problems), self.problems)
        cuts = [slice(start, start + self.problems) for start in starts]
        return [ProblemSet(chosen.problems[cut], Encoded(*(x[cut] for x in chosen.arrays))) for cut in cuts]

    def _call(self, params: Params, part: ProblemSet, key: tuple[np.int32, ...]) -> Counts:
        Q = len(part.problems)
        rollouts, rewards = self._sample(params, self.pad(part.arrays), np.int32(Q), *key)
        at = places(Q * self.samples, self.geometry.shards)
        tokens = responses(rollouts, Q * self.samples)
        ended = int(np.asarray(rollouts.ended)[at].sum())
        answered, failures = ended, Counter()
        if on_device(self.task):
            graded = np.asarray(rewards)[at]
        else:
            texts = [self.task.decode(row) for row in tokens]
            grades = self.task.grade([p for p in part.problems for _ in range(self.samples)], texts)
            graded, answered, failures = grades.rewards, int(grades.answered.sum()), Counter(grades.failures)
        by_problem = graded.reshape(Q, self.samples)
        return Counts(by_problem.sum(1).astype(np.int32), tokens[:: self.samples], by_problem[:, 0], ended, answered, failures)


def average(counts: Sequence[int] | np.ndarray, samples: int) -> float:
    """avg@samples: the mean over problems of right answers / samples."""
    return float(np.mean(np.asarray(counts) / samples))
