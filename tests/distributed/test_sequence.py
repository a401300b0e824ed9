"""Positions of prompts split over devices: what crosses between these, what each holds, and that
`sequence` alone compiles and agrees.

(That a whole run's arithmetic agrees with one device's is in test_meshes.py.)
"""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.core.config import CellConfig, RLConfig, SamplingConfig, SweepConfig
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import shard_count
from isojax.models.attention_autotune import select_attention
from isojax.models.transformer import ComputeOptions, Decoder
from isojax.rl.gradient import ResponseBatch, build_gradient
from isojax.rl.objective import (
    LossWeights,
    PolicyInputs,
    PolicyObjective,
    UpdateInputs,
    make_coefficients,
)
from isojax.sampling.batch import ProblemArrays
from isojax.sampling.engine import build_engine
from isojax.sampling.stream import build_stream
from isojax.tasks.protocol import StopConditions
from tests.device import CONFIG, DECODER, EOS, VOCAB, mesh, placed, policy, quick_jit
from tests.hlo import collectives
from tests.refusals import refused

pytestmark = pytest.mark.slow

N, K, H, D, F = CONFIG.heads, CONFIG.kv_heads, CONFIG.head_dim, CONFIG.width, CONFIG.mlp
# 37 positions of a prompt: 38 where two devices share them
P = 37
T = 5
SLOTS = 6
WIDTH = 2
PROMPTS = 2
EVERYWHERE = "data=2,sequence=2,tensor=2"
SEQUENCE = ({0, 2}, {1, 3}, {4, 6}, {5, 7})  # devices that share a prompt, there
TENSOR = ({0, 1}, {2, 3}, {4, 5}, {6, 7})


def problems(rows: int, longest: int = P) -> ProblemArrays:
    rng = np.random.default_rng(0)
    lengths = np.resize([longest, 1, longest - longest // 3], rows).astype(np.int32)
    return ProblemArrays(
        rng.integers(4, VOCAB, (rows, longest)).astype(np.int32),
        lengths,
        np.zeros((rows, T), np.int32),
        np.arange(rows, dtype=np.int32),
    )


class Sampling:
    """A stream of greedy responses on a mesh."""

    def __init__(self, axes: str, width: int, longest: int = P, decoder: Decoder = DECODER):
        self.on = mesh(axes)
        self.sampler_shapes = SamplerShapes(
            [(5, 4)], shard_count(self.on), SLOTS, 4, longest, T, PROMPTS, width
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jax, "jit", quick_jit)
            settings = SamplingConfig(prompt_length=longest, response_length=T, temperature=1e-4)
            self.stream = build_stream(
                decoder, self.sampler_shapes, self.on, settings, StopConditions((EOS,), None)
            )
        self.given = placed(policy(), self.on), problems(self.sampler_shapes.problem_rows, longest)

    def responses(self) -> list[list[int]]:
        result: dict[int, list[int]] = {}

        def on_finished(rollouts: np.ndarray, tokens: list[np.ndarray]) -> None:
            result.update((int(r), row.tolist()) for r, row in zip(rollouts, tokens, strict=True))

        self.stream.run(*self.given, 5, 4, jax.random.key(0), on_finished)
        return [result[r] for r in range(20)]

    def program(self) -> tuple[str, Any]:
        """The HLO of a chunk, and the state that it is given."""
        inputs, state = self.stream.begin(*self.given, np.int32(5), np.int32(4), jax.random.key(0))
        return self.stream.advance_chunk.jitted.lower(inputs, state).compile().as_text(), state


@pytest.fixture(scope="module")
def one() -> list[list[int]]:
    return Sampling("auto", 1).responses()


def test_sequence_alone_samples_what_one_device_samples(one: list[list[int]]) -> None:
    """Slots of their own, which hold their prompts separately, as prefix groups do; 1, 25 and 37
    tokens."""
    assert Sampling("sequence=2", 1).responses() == one and len({tuple(row) for row in one}) > 3


def test_decoding_adds_up_sums_and_gathers_no_prompt(one: list[list[int]]) -> None:
    """Prefix groups of two slots. Each device holds 19 positions of one of the two heads; between
    those that share a prompt go, at a token, the maxima, sums and mixtures of its queries, and in a
    layer of a prompt its keys and values."""
    sampling = Sampling(EVERYWHERE, WIDTH)
    assert sampling.responses() == one
    hlo, state = sampling.program()
    prefix_groups, G = SLOTS // WIDTH, sampling.sampler_shapes.prefix_entries
    for layers, rows in ((state.cache.prefix_kv, prefix_groups), (state.prefix_table, G)):
        assert [x.addressable_shards[0].data.shape for x in layers[0]] == [
            (rows, K // 2, H, 19),
            (rows, K // 2, 19, H),
        ]
    assert state.cache.slot_kv[0][0].addressable_shards[0].data.shape == (SLOTS, K // 2, H, T)
    # no prompts whole
    assert not re.search(rf"f32\[(\d+,)?({prefix_groups}|{G}),[12],({H},3[78]|3[78],{H})\]", hlo)
    queries = WIDTH * N // 2  # of a prefix group, at a key's head
    actual = {
        (c.kind, c.result) for c in collectives(hlo) if all(group in SEQUENCE for group in c.groups)
    }
    sizes = {
        (kind, size) for kind, result in actual for size in re.findall(r"f32\[([\d,]+)\]", result)
    }
    top = f"{prefix_groups},{K // 2},{queries}"
    mixed = f"{prefix_groups},{K // 2},{queries},{H}"
    of_last = "all-reduce", f"{PROMPTS},1,{D}"  # the hidden state of each prompt's last token
    assert sizes == {
        ("all-reduce", top),
        ("all-reduce", mixed),
        ("all-gather", f"{PROMPTS},{K // 2},38,{H}"),
        of_last,
    }
    # shards leave the loops at times of their own
    inside = [c for c in collectives(hlo) if c.depth > 0]
    assert all(group in SEQUENCE + TENSOR for c in inside for group in c.groups)


def test_rings_too_are_filled_from_split_prompts() -> None:
    """A window of 5: of a prompt each device has 19 positions, and the ring the last 5. Shards
    prefill at times of their own, so that no device may wait for all others, as it does in a
    permutation."""
    sliding = CONFIG.model_copy(update={"family": "mistral", "options": {"window": 5}})
    decoder = Decoder(sliding, VOCAB)
    split = Sampling(EVERYWHERE, 1, decoder=decoder)

    inside = [c for c in collectives(split.program()[0]) if c.depth > 0]
    assert inside and all(group in SEQUENCE + TENSOR for c in inside for group in c.groups)
    assert split.responses() == Sampling("auto", 1, decoder=decoder).responses()


def test_bfloat16_samples_where_positions_are_split() -> None:
    """Greedy: most responses are one device's, to the last token; XLA:CPU has no sum of bfloat16
    over devices."""
    low = DECODER.with_options(ComputeOptions(compute_dtype="bfloat16", cache_dtype="bfloat16"))
    split, full = (Sampling(axes, 1, decoder=low).responses() for axes in ("sequence=2", "auto"))
    assert sum(a == b for a, b in zip(split, full, strict=True)) >= 10


def test_prompts_of_one_token_are_split_too() -> None:
    assert Sampling("sequence=2", 1, 1).responses() == Sampling("auto", 1, 1).responses()


def test_the_gradient_gathers_keys_and_values_alone() -> None:
    """Of a prompt's layers, 19 of 38 positions are on a device, in the MLP and in attention; what
    is gathered are a layer's keys and values, whose gradients go back in parts. Responses add up
    sums over the prompt."""
    on = mesh(EVERYWHERE)
    sampler_shapes = SamplerShapes([(5, 4)], shard_count(on), SLOTS, 4, P, T, PROMPTS)
    objective = PolicyObjective(
        DECODER, RLConfig(kl=0.0), SamplingConfig(prompt_length=P, response_length=T), True
    )
    gradient = build_gradient(
        objective, sampler_shapes, on, DECODER.logical_axes(), DECODER.shapes()
    )
    rows = jnp.zeros((sampler_shapes.shards, sampler_shapes.buffer_rows))
    tokens = jnp.zeros((*rows.shape, T), jnp.int32)
    responses = ResponseBatch(
        tokens,
        tokens > 0,
        PolicyInputs(tokens * 1.0, tokens[..., :1] * 1.0, LossWeights(rows, rows, rows, rows)),
    )
    inputs = UpdateInputs(
        placed(policy(), on),
        {},
        problems(sampler_shapes.problem_rows),
        make_coefficients(RLConfig()),
    )
    program = quick_jit(gradient, out_shardings=(DECODER.shardings(on), None))
    hlo = program.lower(inputs, responses, np.int32(5), np.int32(4)).compile().as_text()
    assert hlo
    shared = [c for c in collectives(hlo) if all(group in SEQUENCE for group in c.groups)]
    moved = {(c.kind, c.result) for c in shared if c.kind != "all-reduce"}
    assert moved == {
        ("all-gather", f"f32[{PROMPTS},1,38,{H}]"),
        ("reduce-scatter", f"f32[{PROMPTS},1,19,{H}]"),
    }
    assert f"f32[{PROMPTS * 19},{F // 2}]" in hlo and f"f32[{PROMPTS * 38},{F // 2}]" not in hlo
    queries = f"f32[{PROMPTS},1,{N // 2 * 19},38]"
    assert queries in hlo and queries.replace(str(N // 2 * 19), str(N // 2 * 38)) not in hlo


@pytest.mark.parametrize("name", ["decode_attention", "forward_attention"])
def test_kernels_are_refused_and_the_plain_form_chosen(name: str) -> None:
    wanted = SweepConfig.model_validate({name: "pallas"})
    with refused():
        select_attention(CellConfig(), wanted, mesh("sequence=2"))
    selected = select_attention(CellConfig(), SweepConfig(), mesh("sequence=2"))
    assert (selected.decode_attention, selected.forward_attention) == ("plain", "plain")


@pytest.mark.parametrize(
    "options", [ComputeOptions(decode_attention="pallas"), ComputeOptions(cache_dtype="int8")]
)
def test_a_sampler_that_holds_prompt_and_response_together_is_refused(
    options: ComputeOptions,
) -> None:
    """Also where its mesh is not the trainer's, whose attention was chosen."""
    sampler_shapes = SamplerShapes([(5, 4)], 1, SLOTS, 4, P, T)
    inputs = (
        DECODER.with_options(options),
        sampler_shapes,
        mesh("sequence=2"),
        SamplingConfig(),
        StopConditions((EOS,), None),
    )
    with refused():
        build_engine(*inputs)
