"""Qwen2 and Qwen2.5: queries, keys and values have a bias; the first layers are full, later ones
may slide."""

from collections.abc import Mapping
from typing import Any

from isojax.core.config import ModelConfig
from isojax.models.architecture import Architecture, make_architecture
from isojax.models.families import family, read_options
from isojax.models.hf.config_values import read_flag, read_size
from isojax.models.hf.gguf_traits import GGUFTraits
from isojax.models.hf.hf_config import common_config_json, common_settings
from isojax.models.layers.attention_layer import Attention
from isojax.models.layers.block import Block, pre_norm_block
from isojax.models.layers.gated_mlp import GatedMLP
from isojax.models.layers.rope import Rope
from isojax.models.windows import WindowOptions, read_windows, warn_of_windows, windows_config_json

DEFAULT_FULL_LAYERS = 28  # before the first that slides, where config.json has no max_window_layers


def settings(config_json: Mapping[str, Any]) -> dict[str, Any]:
    return common_settings(config_json) | {"qkv_bias": True, "options": window_options(config_json)}


def window_options(config_json: Mapping[str, Any]) -> dict[str, Any] | None:
    """Beside use_sliding_window = false, as in all of Qwen2.5, a sliding_window means nothing."""
    has_windows = read_flag(config_json, "use_sliding_window")
    first = 0
    if has_windows and config_json.get("max_window_layers") != 0:  # 0: all layers slide
        first = read_size(config_json, "max_window_layers", DEFAULT_FULL_LAYERS)
    return read_windows(config_json, lambda layer: has_windows and layer >= first) or None


def config_json(config: ModelConfig) -> dict[str, Any]:
    return common_config_json(config) | window_config_json(config)


def window_config_json(config: ModelConfig) -> dict[str, Any]:
    """The way back from `window_options`."""
    options = read_options(config, WindowOptions)
    return {
        "use_sliding_window": options.window is not None,
        **windows_config_json(options, config.layers),
    }


@family(
    architectures=("Qwen2ForCausalLM",),
    settings=settings,
    config_json=config_json,
    gguf=GGUFTraits("qwen2", write=warn_of_windows),
)
def qwen2(config: ModelConfig, vocab: int) -> Architecture:
    options = read_options(config, WindowOptions)
    rope = Rope(config.head_dim, config.rope_base, config.rope_scaling)

    def block(kind: object) -> Block:
        attention = Attention(config, rope, window=options.window_of(kind), bias=config.qkv_bias)
        return pre_norm_block(config, attention, GatedMLP(config))

    return make_architecture(config, vocab, options.kinds(config.layers), block)
