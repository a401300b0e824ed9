"""OLMo 2: norms after attention and MLP and none before; queries and keys are normalised over all
heads together."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from isojax.core.config import ModelConfig
from isojax.core.errors import InputError
from isojax.models.architecture import FINAL_NORM, Architecture, make_architecture
from isojax.models.families import NoOptions, family, read_options
from isojax.models.hf.config_values import require_value
from isojax.models.hf.gguf_traits import GGUFTraits
from isojax.models.hf.hf_config import common_config_json, common_settings
from isojax.models.layers.attention_layer import Attention
from isojax.models.layers.block import Block
from isojax.models.layers.gated_mlp import GatedMLP
from isojax.models.layers.norm import RMSNorm
from isojax.models.layers.rope import Rope
from isojax.models.windows import FULL, refuse_windows


def settings(config_json: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `cell.model` that a published config.json of OLMo 2 stands for."""
    require_value(config_json, "attention_bias", False, "OLMo 2 has no such bias here")
    refuse_windows(config_json)
    return common_settings(config_json)


def check_shape(config: ModelConfig) -> dict[str, Any]:
    """InputError for what llama.cpp's OLMo 2 does not have."""
    if config.tied or config.head_dim * config.heads != config.width:
        raise InputError(
            found=(
                f"head_dim = {config.head_dim}, {config.heads} heads, width = {config.width}, "
                f"tied = {config.tied}; llama.cpp's OLMo 2 has a head of its own, and heads of "
                "width / heads"
            ),
        )
    return {}


@family(
    architectures=("Olmo2ForCausalLM",),
    settings=settings,
    config_json=common_config_json,
    gguf=GGUFTraits("olmo2", write=check_shape),
)
def olmo2(config: ModelConfig, vocab: int) -> Architecture:
    """Describe OLMo 2's layers, all of one kind; `vocab`: tokens of the embedding.

    Norms round after the product with their scale, as OLMo 2's code does and Llama's does not."""
    # InputError for any option: the family has none
    read_options(config, NoOptions)
    rope = Rope(config.head_dim, config.rope_base, config.rope_scaling)
    norm = partial(RMSNorm, eps=config.norm_eps, rounds_last=True)
    embed = {"embed": config.width}
    queries = {"heads": config.heads, "head_dim": config.head_dim}
    keys = {"kv_heads": config.kv_heads, "head_dim": config.head_dim}

    # The last argument of a norm is its name in a layer of a checkpoint, without ".weight".
    def block(kind: object) -> Block:
        # `kind` is always FULL
        attention = Attention(
            config,
            rope,
            query_norm=norm("query_norm", queries, "self_attn.q_norm"),
            key_norm=norm("key_norm", keys, "self_attn.k_norm"),
        )
        return Block(
            attention,
            GatedMLP(config),
            attention_out_norm=norm("attention_out_norm", embed, "post_attention_layernorm"),
            mlp_out_norm=norm("mlp_out_norm", embed, "post_feedforward_layernorm"),
        )

    final_norm = norm("norm", embed, FINAL_NORM)
    return make_architecture(config, vocab, [FULL] * config.layers, block, norm=final_norm)
