"""A stream's rollouts are the sampler's, bit for bit; each is reported once, when it has finished;
nothing large moves between its chunks.

Bits are compared where both are compiled for it (`same_bits_jit`), which takes longer: on one
device, on a mesh, and in other precisions. Elsewhere the two agree to rounding, and with one
device.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import jax
import numpy as np
import pytest

from isojax.core.config import SamplingConfig
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import shard_count
from isojax.models.transformer import ComputeOptions, Decoder
from isojax.sampling import engine
from isojax.sampling.batch import ProblemArrays, Rollouts, response_tokens
from isojax.sampling.engine import build_engine, build_sampler
from isojax.sampling.layout import Layout
from isojax.sampling.stream import Stream, build_prepare_weights, build_stream
from isojax.tasks.protocol import StopConditions
from tests.device import (
    CONFIG,
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
    same_bits_jit,
)
from tests.hlo import check_separate, collectives

pytestmark = [pytest.mark.slow, pytest.mark.seconds(30)]

T, SLOTS = 5, 12
CELLS = [(1, 1), (13, 7), (5, 32)]
PROBLEMS = random_problems(16)
# of each, whether bits are compared
AXES = {"auto": True, MESHES[0]: True, MESHES[1]: False}


@dataclass
class Pair:
    """A sampler and a stream of the same shapes, and what the stream reported in its last batch."""

    axes: str
    bits: bool = True
    decoder: Decoder = DECODER

    def __post_init__(self) -> None:
        on = mesh(self.axes)
        self.sampler_shapes = SamplerShapes(CELLS, shard_count(on), SLOTS, 8, P, T)
        inputs = (
            self.decoder,
            self.sampler_shapes,
            on,
            SamplingConfig(temperature=0.8, top_p=0.9),
            StopConditions((EOS,), None),
        )
        jit = same_bits_jit if self.bits else quick_jit
        self.sample = jit(build_sampler(*inputs))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jax, "jit", jit)
            self.stream: Stream = build_stream(*inputs)
        self.params = placed(policy(), on)
        self.chunks: list[int] = []
        self.tokens: dict[int, list[int]] = {}

    def tell(self, rollouts: np.ndarray, tokens: list[np.ndarray]) -> None:
        self.chunks.append(len(rollouts))
        assert not set(rollouts.tolist()) & set(self.tokens)
        self.tokens |= {int(r): row.tolist() for r, row in zip(rollouts, tokens, strict=True)}

    def both(self, B_p: int, n: int, key: int = 0) -> tuple[Rollouts, Rollouts]:
        """The sampler's rollouts and the stream's."""
        inputs = self.params, self.problems(), np.int32(B_p), np.int32(n), jax.random.key(key)
        return self.sample(*inputs), self.streamed(B_p, n, key)

    def streamed(self, B_p: int, n: int, key: int = 0) -> Rollouts:
        self.chunks, self.tokens = [], {}
        return self.stream.run(self.params, self.problems(), B_p, n, jax.random.key(key), self.tell)

    def problems(self) -> ProblemArrays:
        rows = self.sampler_shapes.problem_rows
        return ProblemArrays(*(np.resize(x, (rows, *x.shape[1:])) for x in PROBLEMS))

    def check(self, one: Rollouts, two: Rollouts) -> None:
        """The same rollouts, in the same places."""
        for name, x, y in zip(Rollouts._fields, one, two, strict=True):
            assert (x.shape, x.dtype) == (y.shape, y.dtype) and x.sharding.is_equivalent_to(
                y.sharding, x.ndim
            ), name
            exact = self.bits or x.dtype != np.float32
            np.testing.assert_allclose(
                np.asarray(x), np.asarray(y), rtol=0, atol=0 if exact else 1e-5, err_msg=name
            )


@cache
def made(axes: str) -> Pair:
    return Pair(axes, AXES[axes])


@pytest.fixture(autouse=True, scope="module")
def short_chunks() -> Iterator[None]:
    """Two tokens in a chunk, so that slots are refilled and reported while others are in
    mid-response."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "CHUNK_TOKENS", 2)
        yield


@pytest.fixture(scope="module", params=AXES)
def pair(request: pytest.FixtureRequest) -> Pair:
    return made(request.param)


@pytest.mark.parametrize(("B_p", "n"), CELLS)
def test_the_rollouts_are_the_samplers_and_each_is_reported_once(
    pair: Pair, B_p: int, n: int
) -> None:
    one, two = pair.both(B_p, n, key=B_p)
    pair.check(one, two)
    assert sum(pair.chunks) == B_p * n
    layout = Layout(B_p, n, pair.sampler_shapes.shards)
    assert [pair.tokens[r] for r in range(B_p * n)] == [
        row.tolist() for row in response_tokens(one, layout)
    ]
    if B_p * n > 1:
        # some end at once, some are cut
        assert {1, T} <= {len(row) for row in pair.tokens.values()}
        # as they finish
        assert np.count_nonzero(pair.chunks) > 3 and list(pair.tokens) != sorted(pair.tokens)


def chunks_by_hand(lengths: list[int], chunk_tokens: int) -> int:
    """How many chunks a queue of responses of these lengths takes: one ends after `chunk_tokens`
    steps, or once finished slots have waited SLOTS steps in all while responses wait for them."""
    waiting = list(lengths)
    tokens_left = [0] * SLOTS
    chunks = 0
    while waiting or any(tokens_left):
        chunks += 1
        for slot in range(SLOTS):
            if tokens_left[slot] == 0 and waiting:
                tokens_left[slot] = waiting.pop(0)

        began_busy = [left > 0 for left in tokens_left]
        idle_steps = 0
        for _ in range(chunk_tokens):
            tokens_left = [max(left - 1, 0) for left in tokens_left]
            finished = [b and left == 0 for b, left in zip(began_busy, tokens_left, strict=True)]
            idle_steps += sum(finished)
            if not any(tokens_left) or (waiting and idle_steps >= SLOTS):
                break
    return chunks


def test_a_chunk_ends_early_where_slots_have_waited_long_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One device, chunks as long as a response: without that rule, 13 x 7 responses of at most T
    tokens in 12 slots take 8 chunks."""
    monkeypatch.setattr(engine, "CHUNK_TOKENS", T)
    pair = Pair("auto", bits=False)
    pair.streamed(13, 7)
    lengths = [len(pair.tokens[rollout]) for rollout in range(13 * 7)]
    assert len(pair.chunks) == chunks_by_hand(lengths, T) > 8


def test_nothing_is_sampled_of_no_problems(pair: Pair) -> None:
    pair.check(*pair.both(0, 7))
    assert pair.tokens == {}


def test_one_set_of_programs_serves_every_cell(pair: Pair) -> None:
    for B_p, n in CELLS:
        pair.streamed(B_p, n)
    assert pair.stream.advance_chunk.jitted._cache_size() == 1


def test_between_chunks_nothing_is_gathered_and_the_state_stays_in_place(pair: Pair) -> None:
    inputs, state = pair.stream.begin(
        pair.params, pair.problems(), np.int32(5), np.int32(7), jax.random.key(0)
    )
    compiled = pair.stream.advance_chunk.jitted.lower(inputs, state).compile()
    memory = compiled.memory_analysis()
    ours = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(state))
    assert memory.alias_size_in_bytes == ours  # all of a device's state is donated
    state, result = pair.stream.advance_chunk(inputs, state)
    assert (
        sum(x.nbytes for x in jax.tree.leaves(result))
        < 3 * pair.sampler_shapes.shards * SLOTS * T * 4
    )
    if pair.axes == "auto":
        return
    hlo = compiled.as_text()
    check_separate(hlo, P + T, SLOTS, SLOTS)
    check_separate(
        hlo, P, pair.sampler_shapes.prefix_entries, max(pair.sampler_shapes.prefix_entries, SLOTS)
    )
    outside = [c for c in collectives(hlo, mesh(pair.axes).size) if c.depth == 0]
    # is any shard still at work?
    waits = [] if pair.sampler_shapes.shards == 1 else [("all-reduce", "s32[]")]
    assert [(c.kind, c.result) for c in outside] == waits
    specific = [x.addressable_shards[0].data.shape for x in state.cache.slot_kv[0]]
    assert specific == [
        (SLOTS, CONFIG.kv_heads // 2, CONFIG.head_dim, P + T),
        (SLOTS, CONFIG.kv_heads // 2, P + T, CONFIG.head_dim),
    ]


def test_a_model_that_is_split_samples_what_one_device_samples() -> None:
    """Both drawn by the host's chunks, over devices that share every weight; the log-probabilities
    to rounding."""
    axes = MESHES[1]
    for B_p, n in CELLS:
        one, two = (made(at).streamed(B_p, n, key=3) for at in ("auto", axes))
        for name in Rollouts._fields:
            x, y = (
                gather(made(at).sampler_shapes, B_p * n, getattr(rollouts, name))
                for at, rollouts in (("auto", one), (axes, two))
            )
            np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 if x.dtype == np.float32 else 0)


def test_other_precisions() -> None:
    """A cast, of which the last bit may decide an int8; stacked layers. (Slots that share prompts:
    tests/distributed/test_sequence.py.)"""
    options = {"compute_dtype": "bfloat16", "cache_dtype": "int8"}
    decoder = DECODER.with_options(DECODER.options._replace(**options))
    pair = Pair("auto", decoder=decoder)
    one, two = pair.both(13, 7)
    pair.check(one, two)
    assert len(pair.tokens) == 91 and one.tokens.max() < VOCAB


def test_int8_weights() -> None:
    """The stream makes them of shards, the sampler in one program of what it has gathered: the same
    rollouts."""
    axes = MESHES[1]
    decoder = DECODER.with_options(DECODER.options._replace(rollout_weights="int8"))
    pair = Pair(axes, False, decoder=decoder)
    one, two = pair.both(13, 7)
    pair.check(one, two)
    plain, _ = made(axes).both(13, 7)
    assert np.abs(np.asarray(one.logps) - np.asarray(plain.logps)).max() > 1e-4


@pytest.mark.parametrize("rollout_weights", ["compute", "int8"])
def test_stacked_layers_are_gathered_one_by_one(rollout_weights: str) -> None:
    """As a TPU's are, and on a CPU with an int8 cache: bit for bit what one device makes of the
    policy, and no gather has more than a layer's part of a matrix, or than the embedding."""
    on = mesh("data=2,fsdp=2,tensor=2")
    options = ComputeOptions(
        compute_dtype="bfloat16", cache_dtype="int8", rollout_weights=rollout_weights
    )
    decoder = DECODER.with_options(options)
    shapes = SamplerShapes(CELLS, shard_count(on), SLOTS, 8, P, T)
    sampling = SamplingConfig(prompt_length=P, response_length=T)
    engine_on = build_engine(decoder, shapes, on, sampling, StopConditions((EOS,), None))
    assert not engine_on.decoding.unrolled_layers

    prepare = build_prepare_weights(engine_on, on)
    params = placed(policy(), on)
    expected = jax.jit(engine_on.decoding.prepare_weights)(policy())
    jax.tree.map(np.testing.assert_array_equal, prepare(params).decode, expected)

    gathers = [
        x
        for x in collectives(prepare.program.jitted.lower(params).compile().as_text())
        if "gather" in x.kind
    ]
    largest = CONFIG.width * CONFIG.mlp // on.shape["tensor"]
    assert {moved.depth for moved in gathers} == {0, 1}
    for moved in gathers:
        sizes = [
            math.prod(map(int, dims.split(",")))
            for dims in re.findall(r"\[([\d,]+)\]", moved.result)
        ]
        assert max(sizes) <= largest, moved
