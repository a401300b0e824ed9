"""Mistral: Llama's layer, and all layers slide if config.json has a window."""

from collections.abc import Mapping
from typing import Any

from isojax.core.config import ModelConfig
from isojax.core.errors import InputError
from isojax.models.architecture import Architecture, make_architecture
from isojax.models.families import family, read_options
from isojax.models.hf.config_values import read_size
from isojax.models.hf.gguf_traits import GGUFTraits
from isojax.models.hf.hf_config import common_config_json, common_settings
from isojax.models.layers.attention_layer import Attention
from isojax.models.layers.block import Block, pre_norm_block
from isojax.models.layers.gated_mlp import GatedMLP
from isojax.models.layers.rope import Rope
from isojax.models.windows import (
    FULL_TYPE,
    SLIDING_TYPE,
    WindowOptions,
    check_layer_types,
    read_windows,
    warn_of_windows,
)


def settings(config_json: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `cell.model` that a published config.json of Mistral stands for."""
    slides = config_json.get("sliding_window") is not None
    layer_types = config_json.get("layer_types")
    if layer_types is not None:
        # Ministral mixes them; as a Mistral, transformers would run all layers alike.
        layers = read_size(config_json, "num_hidden_layers")
        check_layer_types(layer_types, layers, (layer_type(slides),))
    settings = common_settings(config_json)
    return settings | {"options": read_windows(config_json, lambda layer: slides) or None}


def layer_type(slides: bool) -> str:
    return SLIDING_TYPE if slides else FULL_TYPE


def config_json(config: ModelConfig) -> dict[str, Any]:
    """Return the keys of config.json, as `settings` reads them back.

    InputError where some layers slide and others do not: a Mistral's config.json cannot say so."""
    options = read_options(config, WindowOptions)
    if len(set(options.kinds(config.layers))) > 1:
        raise InputError(
            where="cell.model.options.sliding_layers",
            found="all layers of a Mistral slide, or none",
            expected="null",
        )
    return common_config_json(config) | {"sliding_window": options.window}


@family(
    architectures=("MistralForCausalLM",),
    settings=settings,
    config_json=config_json,
    gguf=GGUFTraits("llama", adjacent_pairs=True, write=warn_of_windows),
)
def mistral(config: ModelConfig, vocab: int) -> Architecture:
    options = read_options(config, WindowOptions)
    rope = Rope(config.head_dim, config.rope_base, config.rope_scaling)

    def block(kind: object) -> Block:
        attention = Attention(config, rope, window=options.window_of(kind))
        return pre_norm_block(config, attention, GatedMLP(config))

    return make_architecture(config, vocab, options.kinds(config.layers), block)
