"""Responses that are interrupted: before, in and after the phrase against the exact distribution's
inverse; on the host's chunks too.

The text of token i is the letter `a` + i, and `ge`, `he`, `ie` and `je` are stop strings: where one
of `g` to `j` is the last token before the phrase, the response ends with the phrase's first token,
`e`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.core.config import SamplingConfig
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import shard_count
from isojax.sampling import engine
from isojax.sampling.batch import ProblemArrays, Rollouts, response_tokens
from isojax.sampling.engine import build_sampler
from isojax.sampling.layout import Layout
from isojax.sampling.logits import rollout_keys, uniforms
from isojax.sampling.stream import build_stream
from isojax.tasks.protocol import Interruption, StopConditions
from isojax.tasks.tokenizer import build_stop_table
from isojax.tasks.turns import plain_tokens
from tests.device import (
    DECODER,
    EOS,
    MESHES,
    VOCAB,
    P,
    gather,
    mesh,
    placed,
    policy,
    quick_jit,
    random_problems,
    response_logits,
)

pytestmark = pytest.mark.slow

T, AFTER, PHRASE, UNLESS = 9, 3, (4, 21), 5
LAST = AFTER + len(PHRASE)  # where it goes on from
CELLS = [(13, 7), (5, 32)]
PROBLEMS = random_problems(16, seed=4)
PLAIN = StopConditions(
    (EOS,), build_stop_table([bytes([97 + i]) for i in range(VOCAB)], ["ge", "he", "ie", "je"])
)
STOPS = replace(PLAIN, interruption=Interruption(AFTER, PHRASE, UNLESS))
ALWAYS = replace(PLAIN, interruption=Interruption(AFTER, PHRASE, None))
TEMPERATURE = 0.8


@pytest.fixture(autouse=True, scope="module")
def short_chunks() -> Iterator[None]:
    """Two tokens in a chunk, so that slots are refilled while others are in mid-phrase."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "CHUNK_TOKENS", 2)
        yield


@dataclass
class Case:
    """A sampler and a stream of the same shapes."""

    stops: StopConditions
    axes: str = "auto"
    top_p: float = 1.0
    width: int = 1

    def __post_init__(self) -> None:
        self.on = mesh(self.axes)
        self.sampler_shapes = SamplerShapes(
            CELLS, shard_count(self.on), 12, 8, P, T, slots_per_prefix=self.width
        )
        self.given = (
            DECODER,
            self.sampler_shapes,
            self.on,
            SamplingConfig(temperature=TEMPERATURE, top_p=self.top_p),
            self.stops,
        )
        self.program, self.params = quick_jit(build_sampler(*self.given)), placed(policy(), self.on)

    def problems(self, order: np.ndarray) -> ProblemArrays:
        return ProblemArrays(
            *(
                np.resize(x[order], (self.sampler_shapes.problem_rows, *x.shape[1:]))
                for x in PROBLEMS
            )
        )

    def __call__(self, B_p: int, n: int, order: np.ndarray | None = None) -> Any:
        """The Rollouts in their order, [B ...], on the host."""
        problems = self.problems(np.arange(B_p) if order is None else order)
        result = self.program(self.params, problems, np.int32(B_p), np.int32(n), jax.random.key(0))
        return Rollouts(*(gather(self.sampler_shapes, B_p * n, x) for x in result))

    @cached_property
    def thirteen(self) -> Any:
        return self(13, 7)


@pytest.fixture(scope="module")
def some() -> Case:
    return Case(STOPS)


@pytest.fixture(scope="module")
def narrow() -> Case:
    """In prefix groups, on a mesh, within a nucleus, and every long response is interrupted."""
    return Case(ALWAYS, MESHES[0], top_p=0.9, width=4)


def expected(
    p: np.ndarray, uniform: np.ndarray, interruption: Interruption, row: np.ndarray
) -> tuple[list[int], bool, bool, float]:
    """(tokens, whether the phrase is among them, whether a stop ended them, how near a draw came to
    an edge), from p [T V] after `row`.
    """
    out: list[int] = []
    closed, margin = False, 1.0
    for t in range(T):
        interrupted = not closed and AFTER <= t < LAST
        if interrupted:
            token = PHRASE[t - AFTER]
        else:
            edges = p[t].cumsum() / p[t].sum()
            token = int((edges <= uniform[t]).sum())
            margin = min(margin, np.abs(edges - uniform[t]).min())
        out.append(token)
        closed |= t < AFTER and token == interruption.unless_token
        if token == EOS or (token == 4 and out[-2:][0] in (6, 7, 8, 9)):
            return out, not closed and len(out) > AFTER, True, margin
        if token != row[t]:  # what follows was drawn after another token
            return out, False, False, margin
    return out, not closed, False, margin


@pytest.mark.parametrize("name", ["some", "narrow"])
def test_every_token_is_the_phrases_or_drawn_after_what_came_before_it(
    name: str, request: pytest.FixtureRequest
) -> None:
    case: Case = request.getfixturevalue(name)
    result, (B_p, n), interruption = case.thirteen, (13, 7), case.stops.interruption
    assert interruption is not None
    group, rollout = np.divmod(np.arange(B_p * n), n)
    logits = (
        response_logits(np, policy(), PROBLEMS, group, result.tokens).astype(np.float64)
        / TEMPERATURE
    )
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    falling = -np.sort(-p, -1)
    last = np.take_along_axis(
        falling, (falling.cumsum(-1) < case.top_p).sum(-1, keepdims=True).clip(max=VOCAB - 1), -1
    )
    p = np.where(p >= last, p, 0)
    p /= p.sum(-1, keepdims=True)
    keys = rollout_keys(
        jax.random.key(0), jnp.asarray(PROBLEMS.ids[group]), jnp.asarray(rollout, jnp.int32)
    )
    uniform = np.stack(
        [np.asarray(uniforms(keys, jnp.full(B_p * n, t, jnp.int32))) for t in range(T)], 1
    )
    counted = within_phrase = 0
    for r in range(B_p * n):
        tokens, interrupted, ended, margin = expected(
            p[r], uniform[r], interruption, result.tokens[r]
        )
        if margin < 3e-6:
            continue
        length = len(tokens)
        assert result.tokens[r, :length].tolist() == tokens and (
            result.lengths[r],
            result.stopped[r],
        ) == (
            length,
            ended,
        )
        drawn = [t < length and not (interrupted and AFTER <= t < LAST) for t in range(T)]
        assert result.mask[r].tolist() == drawn
        exact = np.log(p[r, range(T), result.tokens[r]], where=result.mask[r], out=np.zeros(T))
        np.testing.assert_allclose(np.where(result.mask[r], result.logps[r], 0), exact, atol=1e-5)
        assert not result.logps[r, :length][~result.mask[r, :length]].any()
        counted += interrupted
        within_phrase += interrupted and length == AFTER + 1
    assert counted > 20 and within_phrase > 0
    closed = (result.tokens[:, :AFTER] == UNLESS).any(-1) & (result.lengths > AFTER)
    if interruption.unless_token is not None:
        assert closed.sum() > 3 and result.mask[closed].sum() == result.lengths[closed].sum()


def test_what_is_not_interrupted_is_the_plain_samplers_bit_for_bit(some: Case) -> None:
    plain, result = Case(PLAIN).thirteen, some.thirteen
    interrupted = result.mask.sum(-1) < result.lengths
    assert 0.2 < interrupted.mean() < 0.9
    for x, y in zip(plain, result, strict=True):
        np.testing.assert_array_equal(x[~interrupted], y[~interrupted])
    for x, y in ((plain.tokens, result.tokens), (plain.logps, result.logps)):
        np.testing.assert_array_equal(x[interrupted, :AFTER], y[interrupted, :AFTER])
    np.testing.assert_array_equal(plain.mask.sum(-1), plain.lengths)


@pytest.mark.parametrize("name", ["some", "narrow"])
def test_any_order_of_the_queue_gives_the_same_bits(
    name: str, request: pytest.FixtureRequest
) -> None:
    """Problems in another order meet other slots, neighbours and shards."""
    case: Case = request.getfixturevalue(name)
    straight = [x.reshape(13, 7, *x.shape[1:]) for x in case.thirteen]
    for order in (np.arange(13)[::-1], np.random.default_rng(0).permutation(13)):
        for one, other in zip(straight, case(13, 7, order), strict=True):
            np.testing.assert_array_equal(one[order], other.reshape(one.shape))


@pytest.mark.parametrize("name", ["some", "narrow"])
def test_chunks_from_the_host_give_the_same(name: str, request: pytest.FixtureRequest) -> None:
    """And tell the whole response, phrase and all, to the verifier."""
    case: Case = request.getfixturevalue(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "jit", quick_jit)
        stream = build_stream(*case.given)
    streamed: dict[int, list[int]] = {}

    def tell(rollouts: np.ndarray, tokens: list[np.ndarray]) -> None:
        streamed.update({int(r): row.tolist() for r, row in zip(rollouts, tokens, strict=True)})

    run = stream.run(case.params, case.problems(np.arange(13)), 13, 7, jax.random.key(0), tell)
    for part, x, buffer in zip(Rollouts._fields, case.thirteen, run, strict=True):
        y = gather(case.sampler_shapes, 91, buffer)
        np.testing.assert_allclose(
            x, y, rtol=0, atol=1e-5 if x.dtype == np.float32 else 0, err_msg=part
        )
    full = [x.tolist() for x in response_tokens(run, Layout(13, 7, case.sampler_shapes.shards))]
    assert [streamed[r] for r in range(91)] == full
    assert sum(row[AFTER:LAST] == [~token for token in PHRASE] for row in full) > 20
    assert [plain_tokens(np.array(row)).tolist() for row in full] == [
        row[:length].tolist()
        for row, length in zip(case.thirteen.tokens, case.thirteen.lengths, strict=True)
    ]
