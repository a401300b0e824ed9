"""Layers as periods and repeats. A run's checkpoints have the stacks that follow, so these plans
must stay."""

from __future__ import annotations

import pytest

from isojax.core.config import ModelConfig
from isojax.models.architecture import Architecture, make_architecture
from isojax.models.families import family
from isojax.models.layers.attention_layer import Attention
from isojax.models.layers.block import Block, pre_norm_block
from isojax.models.layers.gated_mlp import GatedMLP
from isojax.models.layers.rope import Rope
from isojax.models.stack import plan
from isojax.models.transformer import Decoder
from tests.refusals import refused


def gemma(layers: int) -> str:
    return "".join("F" if (i + 1) % 6 == 0 else "S" for i in range(layers))


@pytest.mark.parametrize(
    ("kinds", "periods"),
    [
        (gemma(26), [("SSSSSF", 4), ("S", 2)]),  # Gemma 3 1B
        (gemma(18), [("SSSSSF", 3)]),  # 270M
        (gemma(34), [("SSSSSF", 5), ("S", 4)]),  # 4B
        (gemma(48), [("SSSSSF", 8)]),  # 12B
        (gemma(62), [("SSSSSF", 10), ("S", 2)]),  # 27B
        ("F" * 28, [("F", 28)]),
        ("FFSSS", [("F", 2), ("S", 3)]),  # Qwen2: full layers first
        ("SFSFSF", [("SF", 3)]),
        ("SFFSFFS", [("SFF", 2), ("S", 1)]),
        ("D" + "SSSF" * 4, [("D", 1), ("SSSF", 4)]),
        ("ABC", [("A", 1), ("B", 1), ("C", 1)]),
        ("F", [("F", 1)]),
    ],
)
def test_plans(kinds: str, periods: list[tuple[str, int]]) -> None:
    assert [
        ("".join(map(str, period)), repeats) for period, repeats in plan(list(kinds))
    ] == periods


def test_each_stack_holds_its_layers_of_the_model() -> None:
    """Eight layers of Gemma 3 whose window is 5: five sliding ones, a full one, two sliding
    ones."""
    options = {"window": 5, "sliding_layers": [0, 1, 2, 3, 4, 6, 7]}
    decoder = Decoder(ModelConfig(family="gemma3", layers=8, options=options), 11)
    places = {stack.name: (list(stack.layers), stack.attention.window) for stack in decoder.stacks}
    assert places == {
        "blocks": ([0, 1, 2, 3, 4], 5),
        "blocks_1": ([5], None),
        "blocks_2": ([6, 7], 5),
    }
    assert [(stack.name, i) for stack, i in decoder.layers[4:7]] == [
        ("blocks", 4),
        ("blocks_1", 0),
        ("blocks_2", 0),
    ]
    tensors = decoder.specs()["blocks_2"]["query"].tensor_names()
    assert tensors == (
        "model.layers.6.self_attn.q_proj.weight",
        "model.layers.7.self_attn.q_proj.weight",
    )


class Deaf(Block):
    """A layer without attention."""

    def __call__(self, x, rotations, attend, first_tokens=None):
        return x + self.mlp(x, first_tokens), None


@family
def deaf(config: ModelConfig, vocab: int) -> Architecture:
    rope = Rope(config.head_dim, config.rope_base)

    def block(kind: object) -> Block:
        return Deaf(Attention(config, rope), GatedMLP(config))

    return make_architecture(config, vocab, ["full"] * config.layers, block)


@family
def llama_without_norms(config: ModelConfig, vocab: int) -> Architecture:
    rope = Rope(config.head_dim, config.rope_base)
    return make_architecture(
        config,
        vocab,
        ["full"] * config.layers,
        lambda _: pre_norm_block(config, Attention(config, rope), GatedMLP(config)),
    )


def test_a_layer_that_does_not_attend_is_refused() -> None:
    assert (
        Decoder(ModelConfig(family=f"{__name__}.llama_without_norms"), 11)
        .stacks[0]
        .attention.window
        is None
    )
    with refused():
        Decoder(ModelConfig(family=f"{__name__}.deaf"), 11)
