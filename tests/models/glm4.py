"""GLM-4 (0414), as somebody would add it by docs/extending.md: norms before and after attention and
MLP, neighbouring numbers of a part of each head rotated, biases of queries, keys and values, and
gate and up in one tensor."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from isojax.core.config import ModelConfig
from isojax.core.config.section import PositiveFloat, Section
from isojax.models.architecture import Architecture, make_architecture
from isojax.models.families import family, read_options
from isojax.models.hf.config_values import read_flag
from isojax.models.hf.hf_config import common_config_json, common_settings
from isojax.models.hf.rope_config import read_rotated_share
from isojax.models.layers.attention_layer import Attention
from isojax.models.layers.block import Block
from isojax.models.layers.gated_mlp import GatedMLP
from isojax.models.layers.norm import RMSNorm
from isojax.models.layers.rope import Rope
from isojax.models.windows import FULL, refuse_windows

SHARE = "partial_rotary_factor"


class Glm4Options(Section):
    rotated_share: PositiveFloat = 0.5  # of a head's numbers


def settings(config_json: Mapping[str, Any]) -> dict[str, Any]:
    refuse_windows(config_json)
    options = {"rotated_share": read_rotated_share(config_json, 0.5)}
    common = common_settings(config_json, 128, own_keys=(SHARE,))
    return common | {"qkv_bias": read_flag(config_json, "attention_bias"), "options": options}


def config_json(config: ModelConfig) -> dict[str, Any]:
    common = common_config_json(config)
    share = {SHARE: read_options(config, Glm4Options).rotated_share}
    rope = {"rope_parameters": common["rope_parameters"] | share}
    return common | share | rope | {"attention_bias": config.qkv_bias}


@family(architectures=("Glm4ForCausalLM",), settings=settings, config_json=config_json)
def glm4(config: ModelConfig, vocab: int) -> Architecture:
    rotated = int(config.head_dim * read_options(config, Glm4Options).rotated_share)
    rope = Rope(rotated, config.rope_base, config.rope_scaling, neighbours=True)
    norm = partial(RMSNorm, axes={"embed": config.width}, eps=config.norm_eps)

    def block(kind: object) -> Block:
        return Block(
            Attention(config, rope, bias=config.qkv_bias),
            GatedMLP(config),
            attention_norm=norm("attention_norm", tensor="input_layernorm"),
            attention_out_norm=norm("attention_out_norm", tensor="post_self_attn_layernorm"),
            mlp_norm=norm("mlp_norm", tensor="post_attention_layernorm"),
            mlp_out_norm=norm("mlp_out_norm", tensor="post_mlp_layernorm"),
        )

    fused = {"mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj")}
    return make_architecture(config, vocab, [FULL] * config.layers, block, fused=fused)
