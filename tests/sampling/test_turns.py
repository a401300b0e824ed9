"""Responses of several turns, after each of which a table replies with 0 to 3 tokens: every token
against the table or the exact distribution's inverse.

The text of token i is the letter `a` + i. `ge`, `he`, `ie` and `je` are stop strings, and tokens 3
and 10 to 13 end a turn; all of them occur in replies too, where they end nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
from isojax.sampling.slots import Slots
from isojax.sampling.stream import build_stream
from isojax.tasks.protocol import StopConditions
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

T, TEMPERATURE = 14, 0.8
CELLS = [(13, 7), (5, 32)]
END_TOKENS = (EOS, 10, 11, 12, 13)
TRANSITIONS = build_stop_table([bytes([97 + i]) for i in range(VOCAB)], ["ge", "he", "ie", "je"])
PROBLEMS = random_problems(16, seed=4)._replace(
    answers=np.tile(np.arange(16, dtype=np.int32)[:, None], (1, T))
)
rng = np.random.default_rng(7)
# of problem q's reply to a response of t tokens
COUNTS = rng.integers(0, 4, (16, T + 1)).astype(np.int32)
CONTEXT = rng.integers(0, VOCAB, (16, T + 1, 3)).astype(np.int32)


def reply(answers: Any, tokens: Any, lengths: Any) -> tuple[Any, Any]:
    problem = answers[:, 0]
    return jnp.asarray(CONTEXT)[problem, lengths], jnp.asarray(COUNTS)[problem, lengths]


DEVICE = StopConditions(END_TOKENS, TRANSITIONS, reply=reply)
HOST = StopConditions(END_TOKENS, TRANSITIONS, host_replies=True)


@pytest.fixture(autouse=True, scope="module")
def short_chunks() -> Iterator[None]:
    """Two tokens in a chunk, so that slots are refilled while others are in the middle of a
    reply."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "CHUNK_TOKENS", 2)
        yield


@dataclass
class Case:
    """A sampler on a mesh."""

    axes: str = "auto"
    top_p: float = 1.0
    width: int = 1

    def __post_init__(self) -> None:
        self.on = mesh(self.axes)
        self.sampler_shapes = SamplerShapes(
            CELLS, shard_count(self.on), 12, 8, P, T, slots_per_prefix=self.width
        )
        self.sampling = SamplingConfig(temperature=TEMPERATURE, top_p=self.top_p)
        self.program = quick_jit(
            build_sampler(DECODER, self.sampler_shapes, self.on, self.sampling, DEVICE)
        )
        self.params = placed(policy(), self.on)

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
        return self.gathered(result, B_p * n)

    def gathered(self, rollouts: Rollouts, B: int) -> Any:
        return Rollouts(*(gather(self.sampler_shapes, B, x) for x in rollouts))

    def streamed(self, B_p: int, n: int) -> tuple[Any, dict[int, list[int]]]:
        """The same where the host replies, and what it was given of each finished rollout."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jax, "jit", quick_jit)
            stream = build_stream(DECODER, self.sampler_shapes, self.on, self.sampling, HOST)
        finished: dict[int, list[int]] = {}

        def on_finished(rollouts: np.ndarray, tokens: list[np.ndarray]) -> None:
            for r, row in zip(rollouts.tolist(), tokens, strict=True):
                assert r not in finished
                finished[r] = row.tolist()

        def host_reply(rollouts: np.ndarray, tokens: list[np.ndarray]) -> list[np.ndarray]:
            pairs = [(r // n, len(row)) for r, row in zip(rollouts.tolist(), tokens, strict=True)]
            return [CONTEXT[pair][: COUNTS[pair]] for pair in pairs]

        problems = self.problems(np.arange(B_p))
        result = stream.run(
            self.params, problems, B_p, n, jax.random.key(0), on_finished, host_reply
        )
        return result, finished

    @cached_property
    def thirteen(self) -> Any:
        return self(13, 7)


@pytest.fixture(scope="module")
def plain() -> Case:
    return Case()


@pytest.fixture(scope="module")
def narrow() -> Case:
    """In prefix groups, on a mesh and within a nucleus."""
    return Case(MESHES[0], top_p=0.9, width=4)


def expected(
    p: np.ndarray, uniform: np.ndarray, problem: int, row: np.ndarray
) -> tuple[list[int], list[bool], bool, int, float]:
    """(tokens, which of them were drawn, whether the reply ended them, turns, how near a draw came
    to an edge), from p [T V] after `row`.
    """
    out: list[int] = []
    drawn: list[bool] = []
    ahead: list[int] = []
    turn, turns, margin = "", 1, 1.0
    while len(out) < T:
        t = len(out)
        if ahead:
            out.append(ahead.pop(0))
            drawn.append(False)
            continue
        edges = p[t].cumsum() / p[t].sum()
        token = int((edges <= uniform[t]).sum())
        margin = min(margin, np.abs(edges - uniform[t]).min())
        out.append(token)
        drawn.append(True)
        turn += chr(97 + token)
        if token != row[t]:  # what follows was drawn after another token
            return out, drawn, False, turns, margin
        if token in END_TOKENS or turn[-2:] in ("ge", "he", "ie", "je"):
            ahead, turn = CONTEXT[problem, t + 1, : COUNTS[problem, t + 1]].tolist(), ""
            if not ahead or t + 1 + len(ahead) >= T:
                return out, drawn, not ahead, turns, margin
            turns += 1
    return out, drawn, False, turns, margin


@pytest.mark.parametrize("name", ["plain", "narrow"])
def test_every_token_is_the_tasks_or_drawn_after_what_came_before_it(
    name: str, request: pytest.FixtureRequest
) -> None:
    """And log-probabilities agree with one forward pass over the whole sequence."""
    case: Case = request.getfixturevalue(name)
    result, (B_p, n) = case.thirteen, (13, 7)
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
    turn_counts, ends = [], set()
    for r in range(B_p * n):
        tokens, drawn, ended, turns, margin = expected(p[r], uniform[r], group[r], result.tokens[r])
        if margin < 3e-6:
            continue
        length = len(tokens)
        assert result.tokens[r].tolist() == tokens + [0] * (T - length)
        assert (result.lengths[r], result.stopped[r]) == (length, ended)
        assert result.mask[r].tolist() == drawn + [False] * (T - length)
        exact = np.log(p[r, range(T), result.tokens[r]], where=result.mask[r], out=np.zeros(T))
        np.testing.assert_allclose(np.where(result.mask[r], result.logps[r], 0), exact, atol=1e-5)
        assert not result.logps[r, :length][~result.mask[r, :length]].any()
        turn_counts.append(turns)
        ends.add((ended, length == T))
    assert len(turn_counts) > 85 and sum(np.array(turn_counts) >= 3) > 10
    # by the reply, a reply without room, the length
    assert ends >= {(True, False), (False, False), (False, True)}


@pytest.mark.parametrize("name", ["plain", "narrow"])
def test_any_order_of_the_queue_gives_the_same_bits(
    name: str, request: pytest.FixtureRequest
) -> None:
    case: Case = request.getfixturevalue(name)
    straight = [x.reshape(13, 7, *x.shape[1:]) for x in case.thirteen]
    for order in (np.arange(13)[::-1], np.random.default_rng(0).permutation(13)):
        for one, other in zip(straight, case(13, 7, order), strict=True):
            np.testing.assert_array_equal(one[order], other.reshape(one.shape))


@pytest.mark.parametrize("name", ["plain", "narrow"])
def test_the_hosts_replies_give_the_same_rollouts(
    name: str, request: pytest.FixtureRequest
) -> None:
    """One table, both mechanisms; the verifier gets each response once, context as ~token."""
    case: Case = request.getfixturevalue(name)
    result, finished = case.streamed(13, 7)
    for part, x, y in zip(Rollouts._fields, case.thirteen, case.gathered(result, 91), strict=True):
        np.testing.assert_allclose(
            x, y, rtol=0, atol=1e-5 if x.dtype == np.float32 else 0, err_msg=part
        )
    full = response_tokens(result, Layout(13, 7, case.sampler_shapes.shards))
    assert [finished[r] for r in range(91)] == [row.tolist() for row in full]
    assert sum((row < 0).any() for row in full) > 30
    assert [plain_tokens(row).tolist() for row in full] == [
        row[:length].tolist()
        for row, length in zip(case.thirteen.tokens, case.thirteen.lengths, strict=True)
    ]


@pytest.mark.parametrize("room", [-1, 0, 1])
def test_context_is_written_whole_or_not_at_all(room: int) -> None:
    """Three tokens at t leave room for one more where t + 3 < T."""
    t = T - 3 - room
    zeros, rows = jnp.zeros(1, jnp.int32), jnp.zeros((1, T), jnp.int32)
    slots = Slots(
        zeros,
        zeros,
        zeros,
        zeros + t,
        zeros,
        zeros > 0,
        jnp.zeros((1, 2), jnp.uint32),
        rows,
        rows * 1.0,
        rows,
    )
    slots, overflow = slots.write_ahead(jnp.array([[7, 0, 9]]), jnp.array([3]))
    assert bool(overflow[0]) == (room < 1)
    assert slots.tokens[0].tolist() == (
        [0] * t + [~7, ~0, ~9] + [0] * (room) if room > 0 else [0] * T
    )
