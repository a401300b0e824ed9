"""Qwen3 (dense): each head's queries and keys are normalised before they are rotated."""

from collections.abc import Mapping
from typing import Any

from isojax.core.config import ModelConfig
from isojax.models.architecture import Architecture, make_architecture
from isojax.models.families import family, read_options
from isojax.models.families.qwen2 import window_config_json, window_options
from isojax.models.hf.config_values import require_value
from isojax.models.hf.gguf_traits import GGUFTraits
from isojax.models.hf.hf_config import common_config_json, common_settings
from isojax.models.layers.attention_layer import Attention
from isojax.models.layers.block import Block, pre_norm_block
from isojax.models.layers.gated_mlp import GatedMLP
from isojax.models.layers.norm import RMSNorm
from isojax.models.layers.rope import Rope
from isojax.models.windows import WindowOptions, warn_of_windows

DEFAULT_HEAD_DIM = 128  # where config.json has none: the architecture's own, whatever the width


def settings(config_json: Mapping[str, Any]) -> dict[str, Any]:
    require_value(config_json, "attention_bias", False, "Qwen3 has no such bias here")
    options = window_options(config_json)
    return common_settings(config_json, DEFAULT_HEAD_DIM) | {"qk_norm": True, "options": options}


def config_json(config: ModelConfig) -> dict[str, Any]:
    return common_config_json(config) | window_config_json(config)


@family(
    architectures=("Qwen3ForCausalLM",),
    settings=settings,
    config_json=config_json,
    gguf=GGUFTraits("qwen3", write=warn_of_windows),
)
def qwen3(config: ModelConfig, vocab: int) -> Architecture:
    """Describe Qwen3's layers, some of which may slide; `vocab`: tokens of the embedding."""
    options = read_options(config, WindowOptions)
    rope = Rope(config.head_dim, config.rope_base, config.rope_scaling)
    head, eps = {"head_dim": config.head_dim}, config.norm_eps

    # `kind`: SLIDING or FULL. A norm over {"head_dim": H} is of each head by itself; its third
    # argument is its name in a layer of a checkpoint.
    def block(kind: object) -> Block:
        attention = Attention(
            config,
            rope,
            window=options.window_of(kind),
            query_norm=RMSNorm("query_norm", head, "self_attn.q_norm", eps),
            key_norm=RMSNorm("key_norm", head, "self_attn.k_norm", eps),
        )
        return pre_norm_block(config, attention, GatedMLP(config))

    return make_architecture(config, vocab, options.kinds(config.layers), block)
