"""Validation: how many of k rollouts of each problem are right. Per-problem counts are kept; every metric follows from them.

The draws belong to (seed, evaluation, problem, rollout): cells of one seed meet the same draws at the same evaluation, so that what
differs between them is the policy.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from isojax.models.decoder import Decoder, Params
from isojax.rl.step import EVAL
from isojax.sampling.sampler import Geometry, Problems, batch_rows, build_sampler, make_geometry
from isojax.sharding import replicated
from isojax.tasks.base import DeviceTask, Encoded


class Evaluator:
    """Counts right answers, `problems` problems by `samples` rollouts a call of one compiled program."""

    def __init__(self, decoder: Decoder, task: DeviceTask, mesh: Mesh, problems: int, samples: int, like: Geometry, temperature: float):
        self.problems, self.samples, self.mesh = problems, samples, mesh
        self.geometry = make_geometry(
            [(problems, samples)], like.shards, like.slots, like.microbatch, like.prompt_length, like.response_length, like.prompts
        )
        self._count = self._build(decoder, task, temperature)

    def _build(self, decoder: Decoder, task: DeviceTask, temperature: float) -> Callable[..., tuple[Array, Array]]:
        geometry = self.geometry
        sample = build_sampler(decoder, geometry, self.mesh, temperature, task.eos)

        def count(params: Params, problems: Problems, Q: Array, seed: Array, stream: Array, evaluation: Array) -> tuple[Array, Array]:
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), stream), evaluation)
            rollouts = sample(params, problems, Q, jnp.int32(self.samples), key)
            groups, live = batch_rows(geometry, Q, jnp.int32(self.samples))
            right = task.verify(problems.answers[groups], rollouts.tokens, rollouts.mask) * live
            counts = jax.ops.segment_sum(right.reshape(-1), groups.reshape(-1), geometry.problem_rows)
            return counts.astype(jnp.int32), rollouts.tokens

        given = (decoder.shardings(self.mesh), None, None, None, None, None)
        return jax.jit(count, in_shardings=given, out_shardings=replicated(self.mesh))

    def pad(self, encoded: Encoded) -> Problems:
        """At most `problems` problems as the program's buffers."""
        extra = self.geometry.problem_rows - len(encoded.ids)
        return Problems(*(np.concatenate([x, np.repeat(x[:1], extra, 0)]) for x in encoded))

    def counts(
        self, params: Params, encoded: Encoded, seed: int, evaluation: int, repeats: int = 1, stream: int = EVAL
    ) -> tuple[np.ndarray, np.ndarray]:
        """Right answers of each problem out of repeats * samples, i32[Q], and the tokens of its first rollout, i32[Q T].

        The draws belong to (seed, stream, evaluation, repeat, problem, rollout).
        """
        counts, firsts = [], []
        for start in range(0, len(encoded.ids), self.problems):
            part = Encoded(*(x[start : start + self.problems] for x in encoded))
            Q, problems = len(part.ids), self.pad(part)
            total = np.zeros(Q, np.int32)
            for repeat in range(repeats):
                key = (np.int32(seed), np.int32(stream), np.int32(evaluation * 1024 + repeat))
                c, tokens = self._count(params, problems, np.int32(Q), *key)
                total += np.asarray(c)[:Q]
            counts.append(total)
            firsts.append(first_rollouts(np.asarray(tokens), Q, self.samples))
        return np.concatenate(counts), np.concatenate(firsts)


def first_rollouts(tokens: np.ndarray, Q: int, n: int) -> np.ndarray:
    """From tokens i32[S rows T], the first rollout of each of Q groups of n."""
    shards = tokens.shape[0]
    block = -(-Q * n // shards)
    r = np.arange(Q) * n
    return tokens[r // block, r % block]


def average(counts: Sequence[int] | np.ndarray, samples: int) -> float:
    """avg@samples: the mean over problems of right answers / samples."""
    return float(np.mean(np.asarray(counts) / samples))
