"""How a stream's state is laid out on the devices between chunks, and which weights serve prompts:
shapes and shardings alone, nothing is compiled."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from jax.sharding import PartitionSpec

from isojax.core.config import SamplingConfig
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import shard_count
from isojax.models.transformer import ComputeOptions
from isojax.sampling.engine import Engine, build_engine
from isojax.sampling.stream import (
    _shapes_of_all_shards,
    build_prepare_weights,
    sampler_state_shardings,
)
from isojax.tasks.protocol import StopConditions
from tests.device import CONFIG, DECODER, P, mesh
from tests.refusals import refused

R, T = 12, 5
SHARDS = ("data", "fsdp")
HEADS, WIDTH, LAYERS = CONFIG.kv_heads, CONFIG.head_dim, CONFIG.layers


def engine_on(axes: str, slots: int = R, **options: Any) -> Engine:
    on = mesh(axes)
    decoder = DECODER.with_options(ComputeOptions(**options))
    shapes = SamplerShapes([(13, 7)], shard_count(on), slots, 8, P, T)
    return build_engine(decoder, shapes, on, SamplingConfig(), StopConditions((3,), None))


def test_rows_of_all_shards_and_heads_of_each_device() -> None:
    """Four shards of 12 slots and 8 prompts; keys have positions last, values before last."""
    engine = engine_on("data=4,tensor=2")
    state, shardings = (
        _shapes_of_all_shards(engine),
        sampler_state_shardings(engine, mesh("data=4,tensor=2")),
    )
    for layer in state.cache.slot_kv:
        assert [x.shape for x in layer] == [(48, HEADS, WIDTH, P + T), (48, HEADS, P + T, WIDTH)]
    for layer in state.prefix_table:
        assert [x.shape for x in layer] == [(32, HEADS, WIDTH, P), (32, HEADS, P, WIDTH)]
    assert state.slots.tokens.shape == (4, R, T) and state.queue.next_item.shape == (4,)

    by_head = PartitionSpec(SHARDS, "tensor", None, None)
    caches = jax.tree.leaves((shardings.cache, shardings.prefix_table))
    assert {x.spec for x in caches} == {by_head} and len(caches) == 4 * LAYERS
    assert shardings.slots.tokens.spec == PartitionSpec(SHARDS, None, None)


def test_prompts_are_split_by_position_and_responses_are_not() -> None:
    shardings = sampler_state_shardings(
        engine_on("data=2,sequence=2,tensor=2"), mesh("data=2,sequence=2,tensor=2")
    )
    keys, values = (
        PartitionSpec(SHARDS, "tensor", *positions)
        for positions in ((None, "sequence"), ("sequence", None))
    )
    for layers in (shardings.cache.prefix_kv, shardings.prefix_table):
        assert [tuple(x.spec for x in layer) for layer in layers] == [(keys, values)] * LAYERS
    whole = PartitionSpec(SHARDS, "tensor", None, None)
    assert {x.spec for x in jax.tree.leaves(shardings.cache.slot_kv)} == {whole}


def test_stacked_layers_have_their_axis_first() -> None:
    """As with an int8 cache, whose scales have no axis of the head's width."""
    engine = engine_on("fsdp=2,tensor=2", cache_dtype="int8")
    state, shardings = (
        _shapes_of_all_shards(engine),
        sampler_state_shardings(engine, mesh("fsdp=2,tensor=2")),
    )
    assert [x.shape[:3] for x in state.cache.slot_kv] == [(LAYERS, 24, HEADS)] * 4
    specs = [x.spec for x in shardings.cache.slot_kv]
    assert specs == [PartitionSpec(None, SHARDS, "tensor", *[None] * k) for k in (2, 2, 1, 1)]


@pytest.mark.parametrize(
    ("axes", "compute", "copy"),
    [
        ("data=1", "float32", None),
        ("data=2", "float32", None),
        ("data=2,fsdp=2", "float32", "float32"),
        ("data=1", "bfloat16", "bfloat16"),
    ],
)
def test_prompts_go_through_the_policys_own_weights_where_these_are_whole_and_alike(
    axes: str, compute: str, copy: str | None
) -> None:
    """Elsewhere through a copy, gathered or cast. A step's layers are unrolled, on a CPU."""
    engine = engine_on(axes, compute_dtype=compute)
    prepare = build_prepare_weights(engine, mesh(axes))
    assert prepare.prefills_params == (copy is None)
    _, stacked = jax.eval_shape(prepare.program.jitted, engine.decoding.decoder.shapes())
    if copy is None:
        assert stacked is None
        return
    assert {str(x.dtype) for x in jax.tree.leaves(stacked)} == {copy}
    assert jax.tree.map(lambda x: x.shape, stacked) == jax.tree.map(
        lambda x: x.shape, engine.decoding.decoder.shapes()
    )


def test_few_slots_of_a_cpu_hold_transposed_weights() -> None:
    assert engine_on("data=1").decoding.allow_transposed
    assert not engine_on("data=1", slots=1000).decoding.allow_transposed


@pytest.mark.parametrize(
    ("axes", "options", "is_allowed"),
    [
        ("sequence=2", {}, True),
        ("sequence=2", {"decode_attention": "interpret"}, False),
        ("sequence=2", {"cache_dtype": "int8"}, False),
        ("data=2", {"decode_attention": "interpret", "cache_dtype": "int8"}, True),
    ],
)
def test_kernels_and_int8_caches_hold_whole_positions(
    axes: str, options: dict[str, Any], is_allowed: bool
) -> None:
    if is_allowed:
        engine_on(axes, **options)
        return
    with refused():
        engine_on(axes, **options)
