"""Llama 2, 3, 3.1, 3.2 and models of their architecture (SmolLM2), with Llama 3.1's stretched
rotary positions."""

from collections.abc import Mapping
from typing import Any

from isojax.core.config import ModelConfig
from isojax.core.config.section import Section
from isojax.models.architecture import Architecture, make_architecture
from isojax.models.families import family, read_options
from isojax.models.hf.config_values import read_flag, require_value
from isojax.models.hf.gguf_traits import GGUFTraits
from isojax.models.hf.hf_config import common_config_json, common_settings
from isojax.models.layers.attention_layer import Attention
from isojax.models.layers.block import Block, pre_norm_block
from isojax.models.layers.gated_mlp import GatedMLP
from isojax.models.layers.rope import Rope
from isojax.models.windows import FULL, refuse_windows


class LlamaOptions(Section):
    attention_bias: bool = False  # whether queries, keys, values and the output projection have one
    mlp_bias: bool = False


def settings(config_json: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `cell.model` that a published config.json of Llama stands for."""
    require_value(config_json, "use_sliding_window", False, "Llama's layers do not slide")
    refuse_windows(config_json)
    biases = {key: True for key in LlamaOptions.model_fields if read_flag(config_json, key)}
    return common_settings(config_json) | {"options": biases or None}


def config_json(config: ModelConfig) -> dict[str, Any]:
    return common_config_json(config) | read_options(config, LlamaOptions).model_dump()


@family(
    architectures=("LlamaForCausalLM",),
    settings=settings,
    config_json=config_json,
    gguf=GGUFTraits("llama", adjacent_pairs=True),
)
def llama(config: ModelConfig, vocab: int) -> Architecture:
    options = read_options(config, LlamaOptions)
    rope = Rope(config.head_dim, config.rope_base, config.rope_scaling)

    def block(kind: object) -> Block:
        attention = Attention(
            config, rope, bias=options.attention_bias, out_bias=options.attention_bias
        )
        return pre_norm_block(config, attention, GatedMLP(config, bias=options.mlp_bias))

    return make_architecture(config, vocab, [FULL] * config.layers, block)
