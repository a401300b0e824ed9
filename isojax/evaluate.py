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
from jaxtyping import Array, PRNGKeyArray

from isojax import hosts
from isojax.config import SamplingConfig
from isojax.models.decoder import Decoder, Params
from isojax.rl.step import EVAL
from isojax.sampling.batch import Geometry, Problems, Rollouts, batch_rows, make_geometry, places, responses
from isojax.sampling.sampler import build_sampler
from isojax.sampling.stream import build_stream
from isojax.sharding import replicated
from isojax.tasks.base import DeviceTask, Encoded, HostTask, Task, on_device
from isojax.tasks.grading import Grading
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
        interrupted: how many rollouts were told to come to an end; None where none ever is.
    """

    right: np.ndarray
    tokens: list[np.ndarray]
    first: np.ndarray
    ended: int
    answered: int
    failures: Counter[str]
    interrupted: int | None = None


class Call(NamedTuple):
    """What one call sampled of Q problems: each one's first response, and how many of all met a stop, and were interrupted."""

    first: list[np.ndarray]
    ended: int
    interrupted: int


Key = tuple[np.int32, np.int32, np.int32]  # seed, stream, evaluation and repeat
Found = tuple[list[Call], np.ndarray, int, Counter[str]]  # calls, rewards of all their rollouts in order, answered, failures


class Evaluator:
    """Counts right answers, `problems` problems by `samples` rollouts a call, always through the same compiled programs."""

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
        self.problems, self.samples, self.mesh = problems, samples, mesh
        self._interrupts = task.stops.interruption is not None
        sizes = like.shards, like.slots, like.microbatch, like.prompt_length, like.response_length, like.prompts
        self.geometry = make_geometry([(problems, samples)], *sizes, like.width if samples >= like.width else 1)
        self._find = self._on_device(decoder, task, sampling) if on_device(task) else self._on_host(decoder, task, sampling)

    def _on_device(self, decoder: Decoder, task: DeviceTask, sampling: SamplingConfig) -> Callable[..., Found]:
        geometry = self.geometry
        sample = build_sampler(decoder, geometry, self.mesh, sampling, task.stops)

        def draw(params: Params, problems: Problems, Q: Array, *key: Array) -> tuple[Rollouts, Array]:
            rollouts = sample(params, problems, Q, jnp.int32(self.samples), key_of(*key))
            groups, _ = batch_rows(geometry, Q, jnp.int32(self.samples))
            return rollouts, task.verify(problems.answers[groups], rollouts.tokens, rollouts.present)

        given = (decoder.shardings(self.mesh), None, None, None, None, None)
        drawn = jax.jit(draw, in_shardings=given, out_shardings=replicated(self.mesh))

        def find(params: Params, calls: list[tuple[ProblemSet, Key]]) -> Found:
            found, rewards = [], []
            for part, key in calls:
                Q = len(part.problems)
                rollouts, graded = drawn(params, self.pad(part.arrays), np.int32(Q), *key)
                found.append(self._call(rollouts, Q))
                rewards.append(np.asarray(graded)[places(Q * self.samples, geometry.shards)])
            return found, np.concatenate(rewards), sum(c.ended for c in found), Counter()

        return find

    def _on_host(self, decoder: Decoder, task: HostTask, sampling: SamplingConfig) -> Callable[..., Found]:
        stream = build_stream(decoder, self.geometry, self.mesh, sampling, task.stops)
        whole: Callable[[Rollouts], Rollouts] = jax.jit(lambda rollouts: rollouts, out_shardings=replicated(self.mesh))
        keyed = jax.jit(key_of, out_shardings=replicated(self.mesh))

        def find(params: Params, calls: list[tuple[ProblemSet, Key]]) -> Found:
            found: list[Call] = []
            with Grading(task, [p for part, _ in calls for p in part.problems for _ in range(self.samples)]) as grading:
                before = 0
                for part, key in calls:
                    Q = len(part.problems)

                    def told(rollouts: np.ndarray, tokens: list[np.ndarray], before: int = before) -> None:
                        grading.add(before + rollouts, tokens)

                    rollouts = stream.run(params, self.pad(part.arrays), Q, self.samples, keyed(*key), told)
                    found.append(self._call(whole(rollouts) if hosts.several() else rollouts, Q))
                    before += Q * self.samples
                grades = grading.grades()
            return found, grades.rewards, int(grades.answered.sum()), Counter(grades.failures)

        return find

    def _call(self, rollouts: Rollouts, Q: int) -> Call:
        at = places(Q * self.samples, self.geometry.shards)
        ended, lengths, drawn = (np.asarray(x)[at] for x in (rollouts.ended, rollouts.lengths, rollouts.mask))
        return Call(responses(rollouts, Q * self.samples)[:: self.samples], int(ended.sum()), int((drawn.sum(-1) < lengths).sum()))

    def pad(self, encoded: Encoded) -> Problems:
        """At most `problems` problems as the program's buffers."""
        extra = self.geometry.problem_rows - len(encoded.ids)
        return Problems(*(np.concatenate([x, np.repeat(x[:1], extra, 0)]) for x in encoded))

    def counts(self, params: Params, chosen: ProblemSet, seed: int, evaluation: int, repeats: int = 1, stream: int = EVAL) -> Counts:
        """Right answers of each problem out of repeats * samples.

        The draws belong to (seed, stream, evaluation, repeat, problem, rollout).
        """
        keys = [(np.int32(seed), np.int32(stream), np.int32(evaluation * 1024 + repeat)) for repeat in range(repeats)]
        parts = self._parts(chosen)
        calls, rewards, answered, failures = self._find(params, [(part, key) for part in parts for key in keys])
        ends = np.cumsum([len(part.problems) * repeats * self.samples for part in parts])
        by_part = [r.reshape(repeats, -1, self.samples) for r in np.split(rewards, ends[:-1])]
        return Counts(
            right=np.concatenate([r.sum((0, 2)) for r in by_part]).astype(np.int32),
            tokens=[tokens for call in calls[::repeats] for tokens in call.first],
            first=np.concatenate([r[0, :, 0] for r in by_part]),
            ended=sum(call.ended for call in calls),
            answered=answered,
            failures=failures,
            interrupted=sum(call.interrupted for call in calls) if self._interrupts else None,
        )

    def _parts(self, chosen: ProblemSet) -> list[ProblemSet]:
        """The problems in calls of at most `self.problems`."""
        starts = range(0, len(chosen.problems), self.problems)
        cuts = [slice(start, start + self.problems) for start in starts]
        return [ProblemSet(chosen.problems[cut], Encoded(*(x[cut] for x in chosen.arrays))) for cut in cuts]


def key_of(seed: Array, stream: Array, evaluation: Array) -> PRNGKeyArray:
    """The key of an evaluation's draws."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), stream), evaluation)


def average(counts: Sequence[int] | np.ndarray, samples: int) -> float:
    """avg@samples: the mean over problems of right answers / samples."""
    return float(np.mean(np.asarray(counts) / samples))
