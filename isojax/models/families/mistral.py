"""Mistral: Llama's layer, and all layers slide if config.json has a window."""

from collections.abc import Mapping
from typing import Any

from isojax.core.config import ModelConfig
from isojax.models.architecture import Architecture, make_architecture
from isojax.models.families import family, read_options
from isojax.models.hf.gguf_traits import GGUFTraits
from isojax.models.hf.hf_config import common_settings
from isojax.models.layers.attention_layer import Attention
from isojax.models.layers.block import Block, pre_norm_block
from isojax.models.layers.gated_mlp import GatedMLP
from isojax.models.layers.rope import Rope
from isojax.models.windows import WindowOptions, read_windows, warn_of_windows


def settings(config_json: Mapping[str, Any]) -> dict[str, Any]:
    slides = config_json.get("sliding_window") is not None
    return common_settings(config_json) | {"options": read_windows(config_json, lambda layer: slides) or None}


@family(
    architectures=("MistralForCausalLM",),
    settings=settings,
    gguf=GGUFTraits("llama", adjacent_pairs=True, write=warn_of_windows),
)
def mistral(config: ModelConfig, vocab: int) -> Architecture:
    options = read_options(config, WindowOptions)
    rope = Rope(config.head_dim, config.rope_base, config.rope_scaling)

    def block(kind: object) -> Block:
        attention = Attention(config, rope, window=options.window_of(kind))
        return pre_norm_block(config, attention, GatedMLP(config))

    return make_architecture(config, vocab, options.kinds(config.layers), block)
