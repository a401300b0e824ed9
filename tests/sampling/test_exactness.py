"""What is sampled, token by token, against the exact distribution's inverse: prefix groups and
slots, meshes, large vocabularies, any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from isojax.core.config import SamplingConfig
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import shard_count
from isojax.models.decode import Decoding
from isojax.models.transformer import Decoder, Params
from isojax.sampling import engine as engine_module
from isojax.sampling.batch import ProblemArrays, SamplingBatch
from isojax.sampling.engine import SamplerWeights, build_engine, build_sampler
from isojax.sampling.layout import Layout
from isojax.sampling.logits import NEG_INF, log_probs, rollout_keys, sample_token, uniforms
from isojax.tasks.protocol import StopConditions
from tests.device import (
    CONFIG,
    EOS,
    MESHES,
    VOCAB,
    P,
    gather,
    mesh,
    policy,
    quick_jit,
    random_problems,
    response_logits,
)

pytestmark = [pytest.mark.slow, pytest.mark.seconds(30)]

T = 5
CELLS = [
    (1, 1),
    (13, 7),
    (16, 2),
    (5, 32),
]  # n below, above and no multiple of a prefix group's width; groups across shards; few problems
PROBLEMS = random_problems(16, seed=4)
STOPS = StopConditions((EOS,), None)


@pytest.fixture(autouse=True, scope="module")
def short_chunks() -> Iterator[None]:
    """Two tokens in a chunk, so that slots are refilled while others are in mid-response."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "CHUNK_TOKENS", 2)
        yield


def weights(vocab: int) -> Params:
    """The small policy, over another vocabulary."""
    rng = np.random.default_rng(vocab)
    embed, unembed = (
        rng.normal(0, 0.4, shape).astype(np.float32)
        for shape in ((vocab, CONFIG.width), (CONFIG.width, vocab))
    )
    return policy() if vocab == VOCAB else {**policy(), "embed": embed, "unembed": unembed}


@dataclass(frozen=True)
class Case:
    """A sampler: R slots per shard in prefix groups of W, on a mesh, at a temperature and top-p,
    over a vocabulary."""

    R: int
    W: int = 1
    axes: str = "auto"
    temperature: float = 1.0
    top_p: float = 1.0
    vocab: int = VOCAB

    @property
    def sampling(self) -> SamplingConfig:
        return SamplingConfig(temperature=self.temperature, top_p=self.top_p)

    def sample(
        self, B_p: int, n: int, key: int = 0, order: np.ndarray | None = None
    ) -> tuple[np.ndarray, ...]:
        """Tokens, log-probs and mask, each [B_p n T], of problems PROBLEMS[order]."""
        sampler_shapes, program, params = compiled(self)
        order = np.arange(B_p) if order is None else order
        problems = ProblemArrays(
            *(np.resize(x[order], (sampler_shapes.problem_rows, *x.shape[1:])) for x in PROBLEMS)
        )
        result = program(params, problems, np.int32(B_p), np.int32(n), jax.random.key(key))
        return tuple(
            gather(sampler_shapes, B_p * n, x) for x in (result.tokens, result.logps, result.mask)
        )

    def exact(self, group: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Probabilities [B T V] in float64 that tokens are drawn from, after those before them."""
        logits = (
            response_logits(np, weights(self.vocab), PROBLEMS, group, tokens).astype(np.float64)
            / self.temperature
        )
        p = np.exp(logits - logits.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        if self.top_p == 1:
            return p
        falling = -np.sort(-p, -1)
        last = np.take_along_axis(
            falling, (falling.cumsum(-1) < self.top_p).sum(-1, keepdims=True), -1
        )
        p = np.where(p >= last, p, 0)
        return p / p.sum(-1, keepdims=True)


@cache
def compiled(case: Case) -> tuple[Any, ...]:
    on = mesh(case.axes)
    sampler_shapes = SamplerShapes(CELLS, shard_count(on), case.R, 8, P, T, slots_per_prefix=case.W)
    decoder = Decoder(CONFIG, case.vocab)
    params = jax.device_put(weights(case.vocab), decoder.shardings(on))
    return (
        sampler_shapes,
        quick_jit(build_sampler(decoder, sampler_shapes, on, case.sampling, STOPS)),
        params,
    )


def inverse(p: np.ndarray, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first token of each row whose cumulative probability exceeds the uniform number; and how
    near that comes to an edge.
    """
    edges = p.cumsum(-1)
    edges /= edges[..., -1:]
    token = (edges <= uniform[..., None]).sum(-1)
    return token, np.abs(edges - uniform[..., None]).min(-1)


ONE_DEVICE = [
    Case(7),
    Case(12, 4),
    Case(36, 4, temperature=0.7, top_p=0.9),
    Case(9, 3, vocab=1000),
]
SHARDED = [Case(12, 4, MESHES[0]), Case(6, 2, MESHES[1])]


@pytest.mark.parametrize("case", ONE_DEVICE + SHARDED, ids=str)
def test_every_token_is_the_exact_distributions_inverse_at_its_own_uniform_number(
    case: Case,
) -> None:
    """That number is known from the problem, the rollout and the position; rounding may tell
    otherwise only next to an edge.
    """
    for B_p, n in CELLS:
        tokens, logps, mask = case.sample(B_p, n)
        group, rollout = np.divmod(np.arange(B_p * n), n)
        keys = rollout_keys(
            jax.random.key(0), jnp.asarray(PROBLEMS.ids[group]), jnp.asarray(rollout, jnp.int32)
        )
        uniform = np.stack(
            [np.asarray(uniforms(keys, jnp.full(B_p * n, t, jnp.int32))) for t in range(T)], 1
        ).astype(np.float64)
        p = case.exact(group, tokens)
        expected, margin = inverse(p, uniform)
        wrong = mask & (tokens != expected)
        assert (margin[wrong] < 3e-6).all(), (B_p, n, margin[wrong])
        assert wrong.sum() <= 0.01 * mask.sum()
        with np.errstate(divide="ignore"):
            np.testing.assert_allclose(
                logps[mask],
                np.log(np.take_along_axis(p, tokens[..., None], -1)[..., 0][mask]),
                atol=1e-5,
            )
        ends = (tokens == EOS) & mask
        length = np.where(ends.any(1), ends.argmax(1) + 1, T)
        np.testing.assert_array_equal(mask, np.arange(T)[None] < length[:, None])


@pytest.mark.parametrize("case", [*ONE_DEVICE[:2], *SHARDED], ids=str)
def test_any_order_of_the_queue_gives_the_same_bits(case: Case) -> None:
    """Problems in another order meet other slots, groups, neighbours and shards."""
    rng = np.random.default_rng(case.R)
    for B_p, n in ((13, 7), (16, 2)):
        straight = [x.reshape(B_p, n, T) for x in case.sample(B_p, n)]
        for order in (np.arange(B_p)[::-1], np.roll(np.arange(B_p), 1), rng.permutation(B_p)):
            for one, other in zip(straight, case.sample(B_p, n, order=order), strict=True):
                np.testing.assert_array_equal(one[order], other.reshape(B_p, n, T))


@pytest.mark.parametrize("case", [Case(7), Case(20, 4)], ids=str)
def test_any_order_of_slots_and_lanes_gives_the_same_bits(case: Case) -> None:
    """Slots in mid-response change places, with what their cache holds; prefix groups do, and slots
    within them."""
    sampler_shapes, _, params = compiled(case)
    engine = build_engine(Decoder(CONFIG, VOCAB), sampler_shapes, mesh(), case.sampling, STOPS)
    n, rng = jnp.int32(7), np.random.default_rng(0)
    problems = ProblemArrays(
        *(jnp.asarray(np.resize(x, (sampler_shapes.problem_rows, *x.shape[1:]))) for x in PROBLEMS)
    )
    batch = SamplingBatch(
        problems, Layout(jnp.int32(13), n, 1).shard_slice(jnp.int32(0)), n, jax.random.key(0)
    )
    specific = engine.decoding.prepare_weights(params)
    state = quick_jit(
        lambda: engine.decode_chunk(
            SamplerWeights(specific, params), batch, engine.init_state(jnp.int32(0))
        )[0]
    )()
    decode = quick_jit(engine.decode_step)
    assert int(state.slots.t.max()) == 2
    ended = jnp.arange(case.R) % 5 == 0
    first = jnp.repeat(state.group_last_hidden, case.W, axis=0)
    plain = decode(specific, state.slots, state.cache, first, ended)
    for _ in range(3):
        groups = rng.permutation(case.R // case.W)
        slots = np.concatenate([group * case.W + rng.permutation(case.W) for group in groups])
        cache = type(state.cache)(
            slot_kv=moved(state.cache.slot_kv, slots),
            prefix_kv=moved(state.cache.prefix_kv, groups),
        )
        got = decode(specific, moved(state.slots, slots), cache, first[slots], ended[slots])
        wanted = moved((plain[0], plain[1].slot_kv, plain[2]), slots)
        jax.tree.map(np.testing.assert_array_equal, (got[0], got[1].slot_kv, got[2]), wanted)


class Counting(Decoding):
    """A decoding that counts its steps."""

    steps: ClassVar[list[int]] = []

    def step(self, *args: Any) -> Any:
        jax.debug.callback(lambda: self.steps.append(1))
        return super().step(*args)


def test_first_tokens_run_no_layers() -> None:
    """Of T tokens of slots that begin together T - 1 are steps; slots that begin during others'
    responses go along with theirs.
    """
    case = Case(8)
    sampler_shapes, _, params = compiled(case)
    engine = build_engine(
        Decoder(CONFIG, VOCAB), sampler_shapes, mesh(), case.sampling, StopConditions((), None)
    )
    engine = replace(engine, decoding=Counting(**vars(engine.decoding)))
    problems = ProblemArrays(
        *(jnp.asarray(np.resize(x, (sampler_shapes.problem_rows, *x.shape[1:]))) for x in PROBLEMS)
    )
    n = jnp.int32(4)
    batch = SamplingBatch(
        problems, Layout(jnp.int32(2), n, 1).shard_slice(jnp.int32(0)), n, jax.random.key(0)
    )
    specific = engine.decoding.prepare_weights(params)
    decode_chunk = quick_jit(
        lambda state: engine.decode_chunk(SamplerWeights(specific, params), batch, state)[0]
    )
    state, Counting.steps[:] = engine.init_state(jnp.int32(0)), []
    while bool(engine.has_work(batch, state)):
        state = decode_chunk(state)
    jax.effects_barrier()
    assert len(Counting.steps) == T - 1


def moved(tree: Any, order: np.ndarray) -> Any:
    """Every array's rows in another order."""
    return jax.tree.map(lambda x: x[order], tree)


@pytest.mark.parametrize("case", [Case(7, temperature=1e-4), Case(8, 2, top_p=1e-6)], ids=str)
def test_greedy_is_the_plain_decoders_argmax(case: Case) -> None:
    """At a temperature near 0, and with a nucleus of the one most probable token."""
    tokens, logps, mask = case.sample(13, 7)
    group, T_each = np.arange(91) // 7, np.zeros((91, T), np.int64)
    clear = np.ones(91, bool)
    for t in range(T):
        logits = response_logits(np, policy(), PROBLEMS, group, T_each)[:, t]
        T_each[:, t] = logits.argmax(-1)
        first, second = -np.sort(-logits, -1)[:, :2].T
        clear &= first - second > 2e-3
        compared = clear & mask[:, t]
        np.testing.assert_array_equal(tokens[compared, t], T_each[compared, t])
        assert compared.sum() > 0.5 * mask[:, t].sum() > 10
    assert (
        np.abs(logps[clear][mask[clear]]).max()
        < 1e-5 + 2e-7 * np.abs(logits).max() / case.temperature
    )  # as float32 rounds a quotient


@pytest.mark.parametrize("case", [Case(12, 4), Case(12, 4, MESHES[0])], ids=str)
def test_lanes_draw_from_the_exact_distribution(case: Case) -> None:
    """The first token and the second given it, over 30 updates of 5 problems by 32 rollouts."""
    drawn = np.stack(
        [case.sample(5, 32, key)[0].reshape(5, 32, T) for key in range(30)], 1
    ).reshape(5, -1, T)
    for problem in range(5):
        first = case.exact(np.array([problem]), np.zeros((1, T), int))[0, 0]
        after = case.exact(
            np.full(VOCAB, problem), np.arange(VOCAB)[:, None] * np.ones((1, T), int)
        )[:, 1]
        seen = np.zeros((VOCAB, VOCAB))
        np.add.at(seen, (drawn[problem, :, 0], drawn[problem, :, 1]), 1)
        assert p_value(seen.sum(1), first * len(drawn[problem])) > 1e-3
        going = np.arange(VOCAB) != EOS
        pairs = (first[:, None] * after)[going].reshape(-1)
        assert p_value(seen[going].reshape(-1), pairs / pairs.sum() * seen[going].sum()) > 1e-3


def p_value(seen: np.ndarray, expected: np.ndarray) -> float:
    """Pearson's test; outcomes expected fewer than 5 times are taken together."""
    rare = expected < 5
    seen, expected = (np.append(x[~rare], x[rare].sum()) for x in (seen, expected))
    remaining = expected > 0
    return float(
        chisquare(
            seen[remaining], expected[remaining] * (seen.sum() / expected[remaining].sum())
        ).pvalue
    )


def large(V: int) -> dict[str, np.ndarray]:
    """Log-probabilities f32[4 V]: flat, noise, one token far above, a long tail, and most tokens
    impossible."""
    rng = np.random.default_rng(V)
    peaked = rng.normal(0, 1, (4, V))
    peaked[:, V // 2] += 12
    holes = rng.normal(0, 2, (4, V))
    holes[rng.random((4, V)) < 0.9] = NEG_INF
    holes[:, : V // 3] = -np.inf
    tail = -1.5 * np.log(rng.permuted(np.tile(np.arange(1.0, V + 1), (4, 1)), axis=1))
    shapes = {
        "flat": np.zeros((4, V)),
        "noise": rng.normal(0, 3, (4, V)),
        "peaked": peaked,
        "tail": tail,
        "holes": holes,
    }
    return {
        name: np.asarray(log_probs(jnp.asarray(x, jnp.float32), 1.0)) for name, x in shapes.items()
    }


@pytest.mark.parametrize("V", [1009, 1022, 4096])
def test_the_draw_from_a_large_vocabulary_is_the_plain_inverse(V: int) -> None:
    """In blocks or, of a prime, as one: float64's token save within 1e-6 of an edge, never an
    impossible one."""
    many = jax.jit(jax.vmap(sample_token, (None, 0)))
    uniform = np.random.default_rng(0).random((2000, 4), np.float32)
    # the least and the largest that jax.random.uniform gives
    uniform[0], uniform[1] = 0, 1 - 2**-23
    for name, log_p in large(V).items():
        got, logp = (np.asarray(x) for x in many(log_p, uniform))
        p = np.exp(log_p.astype(np.float64))
        for row in range(4):
            edges = p[row].cumsum() / p[row].sum()
            expected = np.searchsorted(edges, uniform[:, row].astype(np.float64), side="right")
            wrong = np.flatnonzero(got[:, row] != expected)
            gap = np.abs(edges[np.minimum(got[wrong, row], expected[wrong])] - uniform[wrong, row])
            assert (gap < 1e-6).all() and len(wrong) < 40, (name, row, len(wrong), gap.max())
            assert (p[row, got[:, row]] > 0).all()
            np.testing.assert_array_equal(logp[:, row], log_p[row, got[:, row]])
            # neighbours taken together
            bins = np.minimum(50 * (edges - p[row] / 2), 49).astype(int)
            seen = np.bincount(bins[got[2:, row]], minlength=50)
            mass = np.bincount(bins, p[row], 50)
            assert p_value(seen.astype(float), mass * 1998) > 1e-4, (name, row)
