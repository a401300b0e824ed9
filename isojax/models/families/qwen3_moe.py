"""Qwen3-MoE: Qwen3's attention, and experts in all layers but those that config.json names."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from isojax.core.config import ModelConfig
from isojax.core.config.section import PositiveInt
from isojax.core.errors import InputError
from isojax.models.architecture import Architecture, make_architecture
from isojax.models.families import family, read_options
from isojax.models.hf.config_values import FIX, read_flag, read_size, require_value
from isojax.models.hf.hf_config import common_config_json, common_settings
from isojax.models.layers.attention_layer import Attention
from isojax.models.layers.block import Block, pre_norm_block
from isojax.models.layers.gated_mlp import GatedMLP
from isojax.models.layers.mixture import MixtureOfExperts
from isojax.models.layers.norm import RMSNorm
from isojax.models.layers.rope import Rope
from isojax.models.windows import SLIDING, WindowOptions, read_windows

DENSE, SPARSE = "dense", "sparse"  # kinds of layers


class Qwen3MoeOptions(WindowOptions):
    experts: PositiveInt = 8
    top_k: PositiveInt = 2  # experts of a token
    expert_mlp: PositiveInt = 64  # hidden width of an expert; `mlp` is that of dense layers
    renormalises: bool = True  # whether the weights of a token's experts are divided by their sum
    # the numbers of the layers without experts, from 0; null: none
    dense_layers: list[int] | None = None


class LayerKind(NamedTuple):
    """Layers of one kind have the same program."""

    reach: str  # how far its attention sees: SLIDING or FULL (windows.py)
    mlp: str  # DENSE or SPARSE


def settings(config_json: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `cell.model` that a published config.json of Qwen3-MoE stands for.

    `options` holds the keys of Qwen3MoeOptions. InputError for a bias of attention, or a value that
    cannot be used."""
    require_value(config_json, "attention_bias", False, "Qwen3-MoE has no such bias here")
    slides = read_flag(config_json, "use_sliding_window")
    # transformers has written the number under either name
    experts_key = "num_experts"
    if config_json.get(experts_key) is None:
        experts_key = "num_local_experts"

    # without layer_types, all layers slide or none
    options = read_windows(config_json, lambda layer: slides) | {
        "experts": read_size(config_json, experts_key),
        "top_k": read_size(config_json, "num_experts_per_tok"),
        "expert_mlp": read_size(config_json, "moe_intermediate_size"),
        "renormalises": read_flag(config_json, "norm_topk_prob"),
    }
    dense_layers = read_dense_layers(config_json)
    if dense_layers:
        options["dense_layers"] = dense_layers
    return common_settings(config_json) | {"qk_norm": True, "options": options}


def read_dense_layers(config_json: Mapping[str, Any]) -> list[int]:
    """Return the numbers of the layers without experts, from 0.

    Layer i has experts if it is not in mlp_only_layers and i + 1 is a multiple of
    decoder_sparse_step. InputError where mlp_only_layers is no list of whole numbers."""
    named = config_json.get("mlp_only_layers") or []
    if not isinstance(named, list) or not all(isinstance(i, int) for i in named):
        raise InputError(
            where="config.json",
            found=f"mlp_only_layers = {named!r}",
            expected="a list of layers' numbers",
            fix=FIX,
        )
    step = read_size(config_json, "decoder_sparse_step", 1)
    layers = read_size(config_json, "num_hidden_layers")
    return [i for i in range(layers) if i in named or (i + 1) % step]


def config_json(config: ModelConfig) -> dict[str, Any]:
    """Return the keys of config.json, as `settings` reads them back.

    InputError where some layers slide and others do not: transformers would run all alike."""
    options = read_options(config, Qwen3MoeOptions)
    reaches = set(options.kinds(config.layers))  # of the layers' attention: sliding, or full
    if len(reaches) > 1:
        raise InputError(
            where="cell.model.options.sliding_layers",
            found="all layers of a Qwen3-MoE slide, or none",
            expected="null",
        )

    of_experts = {
        "num_experts": options.experts,
        "num_experts_per_tok": options.top_k,
        "moe_intermediate_size": options.expert_mlp,
        "norm_topk_prob": options.renormalises,
        # Each layer has experts but those that are named.
        "decoder_sparse_step": 1,
        "mlp_only_layers": options.dense_layers or [],
    }
    of_attention = {
        "use_sliding_window": reaches == {SLIDING},
        "sliding_window": options.window,
    }
    return common_config_json(config) | of_experts | of_attention


@family(architectures=("Qwen3MoeForCausalLM",), settings=settings, config_json=config_json)
def qwen3_moe(config: ModelConfig, vocab: int) -> Architecture:
    """Describe Qwen3-MoE's layers, with experts or dense; `vocab`: tokens of the embedding."""
    options = read_options(config, Qwen3MoeOptions)
    rope = Rope(config.head_dim, config.rope_base, config.rope_scaling)
    head, eps = {"head_dim": config.head_dim}, config.norm_eps

    def block(kind: LayerKind) -> Block:
        """Describe a layer of a kind; options, rope, head and eps are from outside."""
        attention = Attention(
            config,
            rope,
            window=options.window_of(kind.reach),
            query_norm=RMSNorm("query_norm", head, "self_attn.q_norm", eps),
            key_norm=RMSNorm("key_norm", head, "self_attn.k_norm", eps),
        )

        if kind.mlp == DENSE:
            return pre_norm_block(config, attention, GatedMLP(config))
        experts = MixtureOfExperts(
            config,
            experts=options.experts,
            hidden=options.expert_mlp,
            top_k=options.top_k,
            renormalises=options.renormalises,
        )
        return pre_norm_block(config, attention, experts)

    dense_layers = options.dense_layers or []
    mlp_kinds = [DENSE if i in dense_layers else SPARSE for i in range(config.layers)]
    reaches = options.kinds(config.layers)
    kinds = [LayerKind(*kind) for kind in zip(reaches, mlp_kinds, strict=True)]
    return make_architecture(config, vocab, kinds, block)
