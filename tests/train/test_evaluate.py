"""Counts of right answers against exact probabilities; the same seeds count the same, and padding
counts for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from isojax.core.config import CellConfig
from isojax.core.nouns import Problem
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import shard_count
from isojax.models.transformer import Params
from isojax.sampling.batch import ProblemArrays
from isojax.tasks.protocol import Grades, TokenizedProblems
from isojax.train.evaluate import KEPT_ROLLOUTS, Evaluator
from tests.device import (
    DECODER,
    MESHES,
    P,
    Parity,
    T,
    log_softmax,
    mesh,
    placed,
    policy,
    random_problems,
    response_logits,
)

PROBLEMS, SAMPLES, COUNT = 16, 8, 40  # two calls of 16 problems and one of 8
TASK = Parity()
ALL = TASK.problems(COUNT, np.random.default_rng(0))
ENCODED = TASK.encode(ALL, P, T)
SET = TokenizedProblems(ALL, ENCODED)
FAILING = 5  # odd: wrong in any case


class Spoken(Parity):
    """The same text task, and a check that never ends where the first token is FAILING."""

    on_device: ClassVar[Literal[False]] = False

    def decode(self, tokens: np.ndarray) -> str:
        return "lost" if tokens[0] == FAILING else super().decode(tokens)

    def grade_tokens(self, problems: Sequence[Problem], responses: Sequence[np.ndarray]) -> Grades:
        texts = [self.decode(tokens) for tokens in responses]
        right = np.array(
            [text == p.answer for p, text in zip(problems, texts, strict=True)], np.float32
        )
        lost = np.array([text == "lost" for text in texts])
        return Grades(right, ~lost, {"timeout": int(lost.sum())} if lost.any() else {})


def build(axes: str = "auto", task: Any = TASK) -> Evaluator:
    on = mesh(axes)
    return Evaluator(
        DECODER,
        task,
        on,
        PROBLEMS,
        SAMPLES,
        SamplerShapes([(4, 4)], shard_count(on), 12, 8, P, T),
        CellConfig(),
    )


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return build()


def always(token: int) -> Params:
    """A policy that answers one token: all embeddings are alike, so is every hidden state, and the
    unembedding picks the token.
    """
    params = policy()
    embed = np.repeat(params["embed"][:1], DECODER.vocab, 0)
    hidden = hidden_state({**params, "embed": embed})
    unembed = np.zeros_like(params["unembed"])
    unembed[:, token] = 100 * hidden / (hidden @ hidden)
    return {**params, "embed": embed, "unembed": unembed}


def hidden_state(params: Params) -> np.ndarray:
    """The last hidden state, read off logits under an unembedding that is the identity."""
    identity = {**params, "unembed": np.eye(DECODER.config.width, dtype=np.float32)}
    return response_logits(
        np, identity, random_problems(1), np.array([0]), np.zeros((1, 1), np.int32)
    )[0, 0]


def counts(
    evaluator: Evaluator, params: Params, chosen: TokenizedProblems = SET, **kwargs: Any
) -> np.ndarray:
    kwargs = {"seed": 0, "evaluation": 1} | kwargs
    return evaluator.evaluate(placed(params, evaluator.mesh), chosen, **kwargs).reward_sums


def test_a_policy_that_is_always_right_and_one_that_never_is(evaluator: Evaluator) -> None:
    assert counts(evaluator, always(4)).tolist() == [SAMPLES] * COUNT
    assert counts(evaluator, always(5)).tolist() == [0] * COUNT
    result = evaluator.evaluate(placed(always(4), evaluator.mesh), SET, 0, 0)
    np.testing.assert_array_equal(result.first_responses, np.full((COUNT, T), 4))
    assert result.rewards[:, 0].tolist() == [1] * COUNT and result.ended == 0


def test_counts_follow_the_exact_probabilities(evaluator: Evaluator) -> None:
    """Right is an even first token: its probability for each problem is a sum over the
    vocabulary."""
    first = log_softmax(
        np,
        response_logits(
            np, policy(), ProblemArrays(*ENCODED), np.arange(COUNT), np.zeros((COUNT, 1), np.int32)
        ),
    )[:, 0]
    p = np.exp(first)[:, ::2].sum(1)
    assert p.min() < 0.3 and p.max() > 0.7
    repeats = 25
    right = counts(evaluator, policy(), repeats=repeats)
    k = repeats * SAMPLES
    z = (right - k * p) / np.sqrt(k * p * (1 - p))
    assert np.abs(z).max() < 4.5
    assert abs((z**2).mean() - 1) < 4 * np.sqrt(2 / COUNT)


def test_the_same_draws_for_a_seed_and_an_evaluation_and_others_for_others(
    evaluator: Evaluator,
) -> None:
    one = counts(evaluator, policy())
    np.testing.assert_array_equal(one, counts(evaluator, policy()))
    assert (one != counts(evaluator, policy(), seed=1)).any()
    assert (one != counts(evaluator, policy(), evaluation=2)).any()


def test_a_problems_count_depends_on_no_other_problem(evaluator: Evaluator) -> None:
    """Nor on its place, nor on the copies of a problem that fill a call up."""
    full = counts(evaluator, policy())
    for selected in (np.arange(5), np.array([39]), np.random.default_rng(0).permutation(COUNT)):
        np.testing.assert_array_equal(
            counts(evaluator, policy(), SET.select(selected)), full[selected]
        )


def test_first_rollouts_are_the_problems_own(evaluator: Evaluator) -> None:
    """What is shown of a problem is its first rollout: even where all of its rollouts were right,
    odd where none was.
    """
    result = evaluator.evaluate(placed(policy(), evaluator.mesh), SET, 0, 1)
    right = result.reward_sums
    for count, tokens, first in zip(
        right, result.first_responses, result.rewards[:, 0], strict=True
    ):
        assert first == (tokens[0] % 2 == 0)
        assert count not in (0, SAMPLES) or (tokens[0] % 2 == 0) == (count == SAMPLES)
    assert {0, SAMPLES} & set(right.tolist())
    for first, samples in zip(result.first_responses, result.samples, strict=True):
        assert samples[0].tokens is first and len(samples) == min(SAMPLES, KEPT_ROLLOUTS)
        assert all(sample.reward == (sample.tokens[0] % 2 == 0) for sample in samples)


def test_eight_devices_count_what_one_counts(evaluator: Evaluator) -> None:
    one, eight = counts(evaluator, policy()), counts(build(MESHES[0]), policy())
    assert np.abs(one - eight).sum() <= 0.01 * one.sum()


def test_a_verifier_on_the_host_counts_what_one_on_device_counts() -> None:
    """Three repeats of three calls, whose grades come back in any order: everything else equal, and
    failures counted over all of them.
    """
    device, host = build(MESHES[0]), build(MESHES[0], Spoken())
    one, two = (e.evaluate(placed(policy(), e.mesh), SET, 0, 1, repeats=3) for e in (device, host))
    np.testing.assert_array_equal(one.reward_sums, two.reward_sums)
    np.testing.assert_array_equal(one.rewards, two.rewards)
    assert [row.tolist() for row in one.first_responses] == [
        row.tolist() for row in two.first_responses
    ] and one.ended == two.ended > 0
    lost = two.failures["timeout"]
    shown = sum(row[0] == FAILING for row in two.first_responses)
    assert all(s.parsed == (s.tokens[0] != FAILING) for samples in two.samples for s in samples)
    assert two.parsed == COUNT * SAMPLES * 3 - lost and 0 < shown < lost < COUNT * SAMPLES * 3 / 4
