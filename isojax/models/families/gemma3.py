"""Gemma 3 (text): five sliding layers to a full one, each kind with its rotary table; norms before
and after."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from isojax.core.config import ModelConfig
from isojax.core.config.section import PositiveFloat
from isojax.core.errors import InputError
from isojax.models.architecture import FINAL_NORM, Architecture, make_architecture
from isojax.models.families import TextPart, family, read_options
from isojax.models.hf.config_values import read_number, read_size, require_value
from isojax.models.hf.gguf_traits import GGUFTraits
from isojax.models.hf.hf_config import shape_config_json, shape_settings
from isojax.models.layers.attention_layer import Attention
from isojax.models.layers.block import Block
from isojax.models.layers.gated_mlp import GatedMLP, gelu_tanh
from isojax.models.layers.norm import RMSNorm
from isojax.models.layers.rope import Rope
from isojax.models.windows import (
    FULL_TYPE,
    SLIDING,
    SLIDING_TYPE,
    WindowOptions,
    read_windows,
    windows_config_json,
)

# What absent keys mean, by the class of transformers: files of 4B and larger leave most of them
# out.
DEFAULTS = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262_208,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "max_position_embeddings": 131_072,
}
# layers, of which the last is full, where the file has neither layer_types nor a pattern
PERIOD = 6
LAYERS_OF_27B = 62
# keys that must have this value, or be absent or null
COMPUTED = {
    "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False,
    "use_bidirectional_attention": False,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}


class Gemma3Options(WindowOptions):
    # theta of sliding layers; `rope_base` is that of full ones
    local_rope_base: PositiveFloat = 1e4
    rope_factor: PositiveFloat = 1.0  # by which positions of full layers are stretched
    query_scalar: PositiveFloat = 256.0  # scores are divided by its square root


def settings(config_json: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `cell.model` that a published config.json of Gemma 3 stands for.

    InputError for a value that isojax does not compute. `options` holds the keys of Gemma3Options.
    """
    config_json = DEFAULTS | {key: value for key, value in config_json.items() if value is not None}
    for key, value in COMPUTED.items():
        require_value(config_json, key, value, "isojax computes Gemma 3 with that alone")

    # newer files have it with "_" before its name
    period = read_size(
        config_json, "sliding_window_pattern", config_json.get("_sliding_window_pattern", PERIOD)
    )
    ropes = read_ropes(config_json)
    # without layer_types, the last layer of each period is full
    options = read_windows(config_json, lambda layer: (layer + 1) % period != 0) | {
        "local_rope_base": ropes.local_base,
        "rope_factor": ropes.full_factor,
        "query_scalar": read_number(config_json, "query_pre_attn_scalar"),
    }
    shape = shape_settings(config_json, tied=True)
    return shape | {"rope_base": ropes.full_base, "options": options}


class Ropes(NamedTuple):
    """The rotary positions of a config.json."""

    full_base: float  # theta of full layers
    full_factor: float  # by which their positions are stretched
    local_base: float  # theta of sliding layers


def read_ropes(config_json: Mapping[str, Any]) -> Ropes:
    """Return the rotary positions of full and of sliding layers.

    `config_json`: with DEFAULTS in the place of absent keys. transformers 5 has a section for each
    kind of layer; in 4, rope_scaling is for full layers alone. InputError for positions other than
    plain ones, and stretched ones in full layers."""
    sections = config_json.get("rope_parameters") or {}
    full = {"rope_theta": config_json["rope_theta"], **(config_json.get("rope_scaling") or {})}
    full |= sections.get(FULL_TYPE) or {}
    local = {"rope_theta": config_json["rope_local_base_freq"]} | (sections.get(SLIDING_TYPE) or {})

    require_value(
        local, "rope_type", "default", "sliding layers of Gemma 3 have plain rotary positions"
    )
    rope_type = full.get("rope_type", full.get("type", "default"))
    if rope_type not in ("default", "linear"):
        raise InputError(
            where="config.json",
            found=f"rope_type = {rope_type!r}",
            expected="default or linear",
            fix="This model cannot run here.",
        )
    factor = read_number(full, "factor") if rope_type == "linear" else 1.0
    return Ropes(
        full_base=read_number(full, "rope_theta"),
        full_factor=factor,
        local_base=read_number(local, "rope_theta"),
    )


def config_json(config: ModelConfig) -> dict[str, Any]:
    """Return config.json's keys as both transformers 5 and 4 read them.

    The last entry, rope_parameters, is for 5, the three before it for 4."""
    options = read_options(config, Gemma3Options)
    scaling = None
    if options.rope_factor != 1:
        scaling = {"rope_type": "linear", "factor": options.rope_factor}
    full = {"rope_theta": config.rope_base, **(scaling or {"rope_type": "default"})}
    local = {"rope_theta": options.local_rope_base, "rope_type": "default"}
    scalar = options.query_scalar
    return {
        **shape_config_json(config),
        **COMPUTED,
        **windows_config_json(options, config.layers),
        # transformers 5 takes no float
        "query_pre_attn_scalar": int(scalar) if scalar.is_integer() else scalar,
        "rope_theta": config.rope_base,
        "rope_local_base_freq": options.local_rope_base,
        "rope_scaling": scaling,
        "rope_parameters": {FULL_TYPE: full, SLIDING_TYPE: local},
    }


def from_gguf(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of config.json that only Gemma 3 has, from a GGUF file's metadata.

    `metadata`: without the architecture's name before its keys, such as "block_count". Where a file
    says nothing of the pattern of layers, theta of sliding layers or the scale of scores, it is
    what llama.cpp computes."""
    layers = metadata["block_count"]
    window = metadata.get("attention.sliding_window")
    pattern = metadata.get("attention.sliding_window_pattern", PERIOD)
    if not window:
        slides = [False] * layers
    # a truth value for each layer, else the length of a period
    elif isinstance(pattern, list):
        slides = pattern
    else:
        slides = [(layer + 1) % pattern != 0 for layer in range(layers)]

    full_rope = {"rope_type": "default", "rope_theta": metadata.get("rope.freq_base", 1e4)}
    if metadata.get("rope.scaling.type") == "linear":
        full_rope |= {"rope_type": "linear", "factor": metadata["rope.scaling.factor"]}
    local_base = metadata.get("rope.freq_base_swa", DEFAULTS["rope_local_base_freq"])
    scalar = gguf_scalar(layers, metadata["embedding_length"], metadata["attention.head_count"])
    return {
        # both names that Gemma's files have had for it
        "hidden_act": COMPUTED["hidden_activation"],
        "hidden_activation": COMPUTED["hidden_activation"],
        # None: llama.cpp divides by the root of head_dim
        "query_pre_attn_scalar": scalar or metadata["attention.key_length"],
        "sliding_window": window or DEFAULTS["sliding_window"],
        "layer_types": [SLIDING_TYPE if slides[layer] else FULL_TYPE for layer in range(layers)],
        "rope_local_base_freq": local_base,
        "rope_parameters": {
            FULL_TYPE: full_rope,
            SLIDING_TYPE: {"rope_type": "default", "rope_theta": local_base},
        },
        "attn_logit_softcapping": metadata.get("attn_logit_softcapping"),
        "final_logit_softcapping": metadata.get("final_logit_softcapping"),
    }


def to_gguf(config: ModelConfig) -> dict[str, Any]:
    """Return the metadata of a GGUF file where it differs from llama.cpp's defaults.

    InputError where llama.cpp would scale scores otherwise: it goes by the number of layers."""
    options = read_options(config, Gemma3Options)
    scalar = gguf_scalar(config.layers, config.width, config.heads) or config.head_dim
    if options.query_scalar != scalar:
        held = f"query_pre_attn_scalar = {options.query_scalar:g}"
        raise InputError(
            found=(
                f"{held}; llama.cpp computes a Gemma 3 of {config.layers} layers with "
                f"{scalar:g} alone"
            ),
        )

    metadata: dict[str, Any] = {}
    slides = [kind == SLIDING for kind in options.kinds(config.layers)]
    default_slides = [(layer + 1) % PERIOD != 0 for layer in range(config.layers)]
    if any(slides):
        metadata["attention.sliding_window"] = options.window
        if slides != default_slides:
            metadata["attention.sliding_window_pattern"] = slides

    if options.local_rope_base != DEFAULTS["rope_local_base_freq"]:
        metadata["rope.freq_base_swa"] = options.local_rope_base
    if options.rope_factor != 1:
        metadata |= {"rope.scaling.type": "linear", "rope.scaling.factor": options.rope_factor}
    return metadata


def gguf_scalar(layers: int, width: int, heads: int) -> float | None:
    """Return the number by whose root llama.cpp divides scores; None: head_dim.

    It knows Gemma 3 27B by its number of layers, and divides by width / heads there."""
    return width / heads if layers == LAYERS_OF_27B else None


@family(
    architectures=("Gemma3ForCausalLM",),
    model_type="gemma3_text",
    settings=settings,
    config_json=config_json,
    text_part=TextPart("Gemma3ForConditionalGeneration", DEFAULTS),
    gguf=GGUFTraits("gemma3", norm_offset=1.0, read=from_gguf, write=to_gguf),
)
def gemma3(config: ModelConfig, vocab: int) -> Architecture:
    """Describe Gemma 3's layers; `vocab`: tokens of the embedding.

    Norms have scales of 1 + w and round after the product with them, as Gemma's code does."""
    options = read_options(config, Gemma3Options)
    full = Rope(config.head_dim, config.rope_base, linear_factor=options.rope_factor)
    local = Rope(config.head_dim, options.local_rope_base)
    norm = partial(RMSNorm, eps=config.norm_eps, plus_one=True, rounds_last=True)
    embed, head = {"embed": config.width}, {"head_dim": config.head_dim}

    # The last argument of a norm is its name in a layer of a checkpoint, without ".weight".
    def block(kind: object) -> Block:
        """Describe a layer of a kind, SLIDING or FULL; all but `kind` is from outside."""
        attention = Attention(
            config,
            local if kind == SLIDING else full,
            window=options.window_of(kind),
            scale=options.query_scalar**-0.5,
            query_norm=norm("query_norm", head, "self_attn.q_norm"),
            key_norm=norm("key_norm", head, "self_attn.k_norm"),
        )
        return Block(
            attention,
            GatedMLP(config, gelu_tanh),
            attention_norm=norm("attention_norm", embed, "input_layernorm"),
            attention_out_norm=norm("attention_out_norm", embed, "post_attention_layernorm"),
            mlp_norm=norm("mlp_norm", embed, "pre_feedforward_layernorm"),
            mlp_out_norm=norm("mlp_out_norm", embed, "post_feedforward_layernorm"),
        )

    kinds = options.kinds(config.layers)
    final_norm = norm("norm", embed, FINAL_NORM)
    return make_architecture(
        config, vocab, kinds, block, norm=final_norm, embedding_scale=config.width**0.5
    )
