"""Rollouts of one compiled sampler: distributed as the policy says, whatever the batch, the slots
and the mesh."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from isojax.core.config import SamplingConfig
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import shard_count
from isojax.models.transformer import Decoder
from isojax.sampling import engine as engine_module
from isojax.sampling.batch import ProblemArrays, Rollouts
from isojax.sampling.engine import build_sampler
from isojax.sampling.layout import Layout
from isojax.tasks.protocol import StopConditions
from isojax.tasks.tokenizer import build_stop_table
from tests.device import (
    CONFIG,
    DECODER,
    EOS,
    MESHES,
    VOCAB,
    P,
    gather,
    log_softmax,
    mesh,
    placed,
    policy,
    quick_jit,
    random_problems,
    response_logits,
)
from tests.hlo import check_separate, collectives

pytestmark = pytest.mark.seconds(12)

T = 5
NO_STRINGS = StopConditions((EOS,), None)
CELLS = [(1, 1), (13, 7), (16, 2), (5, 32)]
PROBLEMS = random_problems(16)
# The text of the 24 tokens; None is a special token. The stop strings lie across up to three of
# them, and one inside `xbbx`.
PIECES = [
    None,
    b"a",
    b"b",
    None,
    b"ab",
    b"ba",
    b"x",
    b"end",
    b"a",
    b"b",
    b"bb",
    b"aa",
    b"",
    b"x",
    None,
    b"ab",
    b"b",
    b"a",
    b"xbbx",
]
PIECES += [b"ba", b"a", b"b", "é".encode(), b"\n"]
STRINGS = ("abba", "bbx", "é\n")
SAMPLES = 40


@dataclass
class Engine:
    """A compiled sampler, and its rollouts in the order of their numbers."""

    axes: str = "auto"
    temperature: float = 1.0
    slots: int = 12
    prompts: int = 4
    prefixes: int | None = None
    top_p: float = 1.0
    stops: StopConditions = NO_STRINGS

    def __post_init__(self) -> None:
        on = mesh(self.axes)
        chosen = {} if self.prefixes is None else {"prefix_entries": self.prefixes}
        shapes_class: type[SamplerShapes] = type("Shapes", (SamplerShapes,), chosen)
        self.sampler_shapes = shapes_class(
            CELLS, shard_count(on), self.slots, 8, P, T, self.prompts
        )
        sampling = SamplingConfig(temperature=self.temperature, top_p=self.top_p)
        self.program = quick_jit(
            build_sampler(DECODER, self.sampler_shapes, on, sampling, self.stops)
        )
        self.params = placed(policy(), on)

    def args(self, B_p: int, n: int, key: int, order: np.ndarray) -> tuple[object, ...]:
        problems = ProblemArrays(
            *(
                np.resize(x[order], (self.sampler_shapes.problem_rows, *x.shape[1:]))
                for x in PROBLEMS
            )
        )
        return self.params, problems, np.int32(B_p), np.int32(n), jax.random.key(key)

    def rollouts(self, B_p: int, n: int, key: int = 0, order: np.ndarray | None = None) -> Rollouts:
        """All that the sampler says, [B ...], of problems PROBLEMS[order], and of nothing that pads
        them."""
        rollouts = self.program(*self.args(B_p, n, key, np.arange(B_p) if order is None else order))
        layout = Layout(jnp.int32(B_p), jnp.int32(n), self.sampler_shapes.shards)
        live = layout.holds_rollout(self.sampler_shapes.buffer_rows)
        # rows that hold no rollout count for nothing
        assert not np.asarray(rollouts.mask)[~np.asarray(live)].any()
        return Rollouts(*(gather(self.sampler_shapes, B_p * n, x) for x in rollouts))

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Their tokens, logps and mask, [B T]."""
        result = self.rollouts(*args, **kwargs)
        return np.asarray(result.tokens), np.asarray(result.logps), np.asarray(result.mask)

    def log_p(self, logits: np.ndarray) -> np.ndarray:
        """The distribution that is drawn from, by sorting; -inf outside the nucleus."""
        log_p = log_softmax(np, logits / self.temperature)
        if self.top_p == 1:
            return log_p
        order = np.argsort(-log_p, -1)
        before = np.cumsum(np.exp(np.take_along_axis(log_p, order, -1)), -1) - np.exp(
            np.take_along_axis(log_p, order, -1)
        )
        inside = np.empty(log_p.shape, bool)
        np.put_along_axis(inside, order, before < self.top_p, -1)
        return log_softmax(np, np.where(inside, log_p, -np.inf))


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """One device; two tokens in a chunk, so that slots are refilled while others are in
    mid-response."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "CHUNK_TOKENS", 2)
        yield Engine(prompts=4, prefixes=12)


@pytest.fixture(scope="module")
def cool() -> Engine:
    """At another temperature, with a prefix table smaller than the batch and than the slots."""
    return Engine(temperature=0.6, slots=11, prompts=2, prefixes=4)


@pytest.fixture(scope="module")
def narrow() -> Engine:
    """Top-p .9 at temperature .6."""
    return Engine(temperature=0.6, slots=11, top_p=0.9)


@pytest.fixture(params=["engine", "cool", "narrow"])
def either(request: pytest.FixtureRequest) -> Engine:
    return request.getfixturevalue(request.param)


def exact(engine: Engine, problem: int, first: int | None = None) -> np.ndarray:
    """Distribution of the first response token, or of the second after `first`."""
    tokens = np.array([[first or 0, 0]])
    out = response_logits(np, policy(), PROBLEMS, np.array([problem]), tokens)[
        0, 0 if first is None else 1
    ]
    return np.exp(engine.log_p(out))


def p_value(seen: np.ndarray, expected: np.ndarray) -> float:
    """Pearson's test; outcomes expected fewer than 5 times are taken together."""
    expected = expected.astype(np.float64)
    rare = expected < 5
    seen, expected = (np.append(x[~rare], x[rare].sum()) for x in (seen, expected))
    keep = expected > 0
    return float(chisquare(seen[keep], expected[keep] * (seen.sum() / expected[keep].sum())).pvalue)


def test_one_program_serves_every_cell(either: Engine) -> None:
    assert all(B_p * n % either.sampler_shapes.slots for B_p, n in CELLS)
    for B_p, n in CELLS:
        either(B_p, n)
    assert either.program._cache_size() == 1


@pytest.mark.parametrize(("B_p", "n"), CELLS)
def test_log_probs_are_the_policys_and_the_mask_ends_with_the_end_token(
    either: Engine, B_p: int, n: int
) -> None:
    tokens, logps, mask = either(B_p, n)
    group = np.arange(B_p * n) // n
    expected = either.log_p(response_logits(np, policy(), PROBLEMS, group, tokens))
    np.testing.assert_allclose(
        logps[mask], np.take_along_axis(expected, tokens[..., None], -1)[..., 0][mask], atol=1e-5
    )
    for row, remaining in zip(tokens.tolist(), mask, strict=True):
        length = row.index(EOS) + 1 if EOS in row else T
        assert remaining.tolist() == [t < length for t in range(T)]
    assert B_p == 1 or {1, T} <= set(mask.sum(1))  # some end at once, some are cut


def test_a_group_draws_its_first_tokens_from_one_distribution(either: Engine) -> None:
    """To the bit, whichever slots its rollouts were given, and whether at the start or in
    mid-response of others."""
    B_p, n = 4, 32
    tokens, logps, _ = either(B_p, n)
    for group in range(B_p):
        first = {(int(tokens[r, 0]), float(logps[r, 0])) for r in range(group * n, (group + 1) * n)}
        assert len(first) == len({token for token, _ in first}) > 1


def test_tokens_follow_the_exact_distribution(either: Engine) -> None:
    """First token, and second given each first, by enumeration, over 40 updates of 5 problems by 32
    rollouts."""
    drawn = np.stack(
        [either(5, 32, key)[0].reshape(5, 32, T) for key in range(SAMPLES)], 1
    ).reshape(5, -1, T)
    for problem in range(5):
        first = exact(either, problem)
        assert (
            p_value(np.bincount(drawn[problem, :, 0], minlength=VOCAB), first * SAMPLES * 32) > 1e-3
        )
        pairs = np.stack([first[a] * exact(either, problem, a) for a in range(VOCAB) if a != EOS])
        going = drawn[problem][drawn[problem, :, 0] != EOS]
        seen = np.zeros((VOCAB, VOCAB))
        np.add.at(seen, (going[:, 0], going[:, 1]), 1)
        assert (
            p_value(
                np.delete(seen, EOS, 0).reshape(-1), pairs.reshape(-1) * len(going) / pairs.sum()
            )
            > 1e-3
        )


def test_the_mass_of_each_nucleus_is_handed_on(narrow: Engine, engine: Engine) -> None:
    """What the trainer rebuilds a nucleus from: the probability that the kept tokens held before
    they were renormalised.
    """
    result = narrow.rollouts(13, 7)
    logits = response_logits(np, policy(), PROBLEMS, np.arange(91) // 7, result.tokens)
    inside = np.isfinite(narrow.log_p(logits))
    held = np.where(inside, np.exp(log_softmax(np, logits / 0.6)), 0).sum(-1)
    assert 1 < inside.sum(-1).mean() < VOCAB / 2
    np.testing.assert_allclose(result.nucleus_mass[result.mask], held[result.mask], atol=1e-5)
    assert engine.rollouts(13, 7).nucleus_mass.shape == (91, 1)


@pytest.fixture(scope="module")
def stopping() -> Engine:
    """With two end tokens and two stop strings, on a mesh of eight devices."""
    return Engine(axes=MESHES[0], stops=StopConditions((EOS, 7), build_stop_table(PIECES, STRINGS)))


def test_stop_strings_and_stop_tokens_end_a_rollout_at_once(stopping: Engine) -> None:
    """At the first token after which a stop string stands in the text, whether it spans tokens or
    is inside one; `ended` knows it.
    """
    result = [stopping.rollouts(5, 32, key) for key in range(12)]
    tokens, _, mask, _, ended, lengths = (np.concatenate(x) for x in zip(*result, strict=True))
    by_string = spanning = 0
    for row, remaining, stopped, there in zip(tokens.tolist(), mask, ended, lengths, strict=True):
        length, stop = T, False
        for i, token in enumerate(row):
            since = max(
                (j + 1 for j in range(i) if PIECES[row[j]] is None), default=0
            )  # a special token is no text: it parts two
            text = b"".join(PIECES[t] or b"" for t in row[since : i + 1])
            completed = any(string.encode() in text for string in STRINGS)
            if completed or token in (EOS, 7):
                length, stop = i + 1, True
                by_string += completed
                spanning += completed and not any(
                    string.encode() in (PIECES[token] or b"") for string in STRINGS
                )
                break
        assert remaining.tolist() == [t < length for t in range(T)] and (stopped, there) == (
            stop,
            length,
        ), (
            row,
            remaining,
            stopped,
        )
    assert by_string > 100 and spanning > 50 and 0 < (~ended).mean() < 0.9
    assert {EOS, 7} <= {row[m.sum() - 1] for row, m in zip(tokens.tolist(), mask, strict=True)}


def test_a_problems_rollouts_depend_on_no_other_problem_and_on_no_slot(engine: Engine) -> None:
    tokens, logps, mask = (x.reshape(13, 7, T) for x in engine(13, 7))
    for p in (0, 5, 12):
        single = engine(1, 7, order=np.array([p]))
        for x, y in zip(single, (tokens, logps, mask), strict=True):
            np.testing.assert_array_equal(x, y[p])
    mixed = np.random.default_rng(0).permutation(13)
    for x, y in zip(engine(13, 7, order=mixed), (tokens, logps, mask), strict=True):
        np.testing.assert_array_equal(x.reshape(13, 7, T), y[mixed])
    # rollouts of one number are the same in a larger group
    np.testing.assert_array_equal(engine(5, 32)[0].reshape(5, 32, T)[:, :7], tokens[:5])


def test_rollouts_of_a_problem_differ_and_another_update_draws_others(engine: Engine) -> None:
    one, two = (engine(5, 32, key)[0].reshape(5, 32, T) for key in (0, 1))
    np.testing.assert_array_equal(one, engine(5, 32, 0)[0].reshape(5, 32, T))
    for p in range(5):
        meet = exact(engine, p)
        meet = float((meet**2).sum())  # how often two draws of the first token agree by chance
        bound = meet + 4 * np.sqrt(meet * (1 - meet) / 32)
        assert (one[p, :, 0] == two[p, :, 0]).mean() < bound
        assert (one[p, 1:, 0] == one[p, :-1, 0]).mean() < bound


def test_one_slot_and_one_prefix(engine: Engine) -> None:
    small = Engine(slots=1, prompts=1, prefixes=1)
    for B_p, n in [(16, 2), (13, 7)]:
        close(small(B_p, n), engine(B_p, n))


@pytest.fixture(scope="module", params=[pytest.param(MESHES[0], marks=pytest.mark.slow), MESHES[1]])
def many(request: pytest.FixtureRequest) -> Engine:
    return Engine(axes=request.param)


def test_shards_sample_what_one_device_samples(engine: Engine, many: Engine) -> None:
    """With groups of 7 and 32 across shard boundaries (23 and 40 rollouts per shard), and 1 rollout
    for 4 shards."""
    both = [(many(B_p, n), engine(B_p, n)) for B_p, n in CELLS]
    assert many.program._cache_size() == 1
    for one, two in both[1:]:
        close(one, two)
    np.testing.assert_array_equal(both[0][0][0], both[0][1][0])


def test_the_loops_hold_no_collective_that_should_not_be_there(many: Engine) -> None:
    hlo = many.program.lower(*many.args(1, 1, 0, np.arange(1))).compile().as_text()
    result = collectives(hlo)
    # the cache and the prefix table: this shard's rows, this device's heads
    check_separate(hlo, P + T, many.slots, many.slots)
    check_separate(
        hlo,
        P,
        many.sampler_shapes.prefix_entries,
        max(many.sampler_shapes.prefix_entries, many.slots),
    )
    # fsdp's weights are gathered once, before the loop
    assert bool([c for c in result if c.depth == 0 and c.kind == "all-gather"]) == (
        "fsdp" in many.axes
    )
    # once in a chunk, all shards: is any still at work?
    assert [(c.kind, c.result) for c in result if c.depth == 1] == [("all-reduce", "s32[]")]
    # shards leave the inner loops at times of their own: there only tensor's pairs may meet, and
    # gather one step's distribution at most
    inside = [c for c in result if c.depth > 1]
    assert inside
    for c in inside:
        assert all(group in ({0, 1}, {2, 3}, {4, 5}, {6, 7}) for group in c.groups), c.line
        assert c.kind == "all-reduce" or (c.kind, c.result) == (
            "all-gather",
            f"f32[{many.slots},{VOCAB}]",
        ), c.line


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_a_split_vocabulary_is_drawn_from_in_place(top_p: float) -> None:
    """Of 4096 tokens on two devices, what crosses between them at a token are sums of blocks: never
    a row of logits."""
    V, on = 4096, mesh("data=4,tensor=2")
    decoder = Decoder(CONFIG, V)
    sampler_shapes = SamplerShapes([(13, 7)], 4, 12, 8, P, T)
    sample = quick_jit(
        build_sampler(decoder, sampler_shapes, on, SamplingConfig(top_p=top_p), NO_STRINGS)
    )
    params = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
        decoder.shapes(),
        decoder.shardings(on),
    )
    problems = ProblemArrays(
        *(np.resize(x, (sampler_shapes.problem_rows, *x.shape[1:])) for x in PROBLEMS)
    )
    hlo = (
        sample.lower(params, problems, np.int32(13), np.int32(7), jax.random.key(0))
        .compile()
        .as_text()
    )
    gathered = [c.result for c in collectives(hlo) if c.depth > 1 and c.kind != "all-reduce"]
    assert gathered == [f"f32[12,{V // 512}]"]


def close(one: tuple[np.ndarray, ...], two: tuple[np.ndarray, ...]) -> None:
    """At least 99% of tokens equal, and where whole responses are, their log-probabilities within
    1e-5."""
    assert (one[0] == two[0]).mean() >= 0.99
    same = (one[0] == two[0]).all(1)
    np.testing.assert_array_equal(one[2][same], two[2][same])
    np.testing.assert_allclose(one[1][same], two[1][same], atol=1e-5)


def test_the_shapes_by_hand() -> None:
    g = SamplerShapes([(16, 2), (13, 7), (5, 32)], 4, 12, 8, 6, 5, prefill_batch=2)
    # 160 rollouts over 4 shards and max(R, m) rows of padding; 16 problems and g of padding
    assert (g.B_cap, g.buffer_rows, g.Q_cap, g.problem_rows) == (160, 40 + 12, 16, 16 + 2)
    assert g.prefill_batch == 2 and g.prefix_entries % g.prefill_batch == 0
    # 4 fills of 12 slots by 5 tokens; one of 64 slots; slots that are not few
    assert [
        g.transpose_weights,
        replace(g, slots=64).transpose_weights,
        replace(g, slots=65, response_length=50).transpose_weights,
    ] == [True, False, False]
    assert replace(g, slots=64, response_length=12).transpose_weights


@pytest.mark.parametrize(("B_p", "n"), [(1, 1), (13, 7), (3, 5)])
def test_rows_and_groups_of_the_buffers(B_p: int, n: int) -> None:
    sampler_shapes = SamplerShapes([(13, 7), (5, 32)], 4, 12, 8, P, T)
    layout = Layout(jnp.int32(B_p), jnp.int32(n), sampler_shapes.shards)
    groups, live = map(np.asarray, layout.row_groups(sampler_shapes.buffer_rows))
    assert live.sum() == B_p * n
    assert gather(sampler_shapes, B_p * n, live).all()
    assert gather(sampler_shapes, B_p * n, groups).tolist() == [r // n for r in range(B_p * n)]
