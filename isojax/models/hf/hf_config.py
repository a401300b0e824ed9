"""Reads config.json as transformers 4 and 5 write it, and names the weights that published architectures share."""

from collections.abc import Mapping
from typing import Any

from isojax.core import registry
from isojax.core.config import RopeScaling
from isojax.core.errors import InputError
from isojax.core.limits import MAX_LAYERS, MAX_SETTING, MAX_VOCAB, MAX_WIDTH

LAYER_PREFIX = "model.layers.{layer}."
TENSOR_NAMES = {
    "embed": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "unembed": "lm_head.weight",
    "blocks.attention_norm": LAYER_PREFIX + "input_layernorm.weight",
    "blocks.query": LAYER_PREFIX + "self_attn.q_proj.weight",
    "blocks.key": LAYER_PREFIX + "self_attn.k_proj.weight",
    "blocks.value": LAYER_PREFIX + "self_attn.v_proj.weight",
    "blocks.out": LAYER_PREFIX + "self_attn.o_proj.weight",
    "blocks.mlp_norm": LAYER_PREFIX + "post_attention_layernorm.weight",
    "blocks.gate": LAYER_PREFIX + "mlp.gate_proj.weight",
    "blocks.up": LAYER_PREFIX + "mlp.up_proj.weight",
    "blocks.down": LAYER_PREFIX + "mlp.down_proj.weight",
}
BIAS_TENSOR_NAMES = {
    "blocks.query_bias": LAYER_PREFIX + "self_attn.q_proj.bias",
    "blocks.key_bias": LAYER_PREFIX + "self_attn.k_proj.bias",
    "blocks.value_bias": LAYER_PREFIX + "self_attn.v_proj.bias",
}
QK_NORM_TENSOR_NAMES = {
    "blocks.query_norm": LAYER_PREFIX + "self_attn.q_norm.weight",
    "blocks.key_norm": LAYER_PREFIX + "self_attn.k_norm.weight",
}
DEFAULT_ROPE = {"rope_theta": 10_000.0}  # transformers' own, where a config.json has none (Llama 1 and 2)
MAX_SIZES = {"num_hidden_layers": MAX_LAYERS, "vocab_size": MAX_VOCAB, "original_max_position_embeddings": MAX_SETTING}
FIX = "Correct the file, or fetch it again."


def find_family(architecture: str) -> str:
    """The family of a name in config.json's `architectures`; InputError where there is none."""
    families = registry.plugin_names(("models.families",), ("settings",))
    modules = {name: registry.load("models.families", name, "settings") for name in families}
    family_of = {a: name for name, module in modules.items() for a in module.ARCHITECTURES}
    if architecture not in family_of:
        raise InputError(
            f"config.json: architectures names {architecture!r}, which no family here runs; expected one of "
            f"{', '.join(sorted(family_of))}. A family of your own is a file like isojax/models/families/qwen3.py."
        )
    return family_of[architecture]


def common_settings(config_json: Mapping[str, Any], head_dim: int | None = None) -> dict[str, Any]:
    """ModelConfig's fields that every published family reads alike; InputError for a key that cannot be used.
    `head_dim`: the family's own where the file has none; None: width / heads."""
    require_value(config_json, "hidden_act", "silu", "the decoder's MLP is SwiGLU")
    for key in ("mlp_bias", "use_sliding_window"):
        require_value(config_json, key, False, "the decoder has no such thing")
    if config_json.get("quantization_config"):
        raise InputError("config.json: quantization_config is set; expected float weights. Dequantise them first.")
    width, heads = read_size(config_json, "hidden_size"), read_size(config_json, "num_attention_heads")
    if config_json.get("head_dim") is None and head_dim is None and width % heads:
        problem = f"config.json: no head_dim, and hidden_size = {width} is no multiple of num_attention_heads = {heads}"
        raise InputError(f"{problem}. Add head_dim to it.")
    tied = config_json.get("tie_word_embeddings")
    if not isinstance(tied, (bool, type(None))):
        raise InputError(f"config.json: tie_word_embeddings = {tied!r}; expected true or false. {FIX}")
    return {
        "layers": read_size(config_json, "num_hidden_layers"),
        "width": width,
        "heads": heads,
        "kv_heads": read_size(config_json, "num_key_value_heads", heads),
        "head_dim": read_size(config_json, "head_dim", head_dim or width // heads),
        "mlp": read_size(config_json, "intermediate_size"),
        "vocab": read_size(config_json, "vocab_size"),
        "norm_eps": read_number(config_json, "rms_norm_eps"),
        "tied": bool(tied),
        **rope_settings(config_json),
    }


def rope_settings(config_json: Mapping[str, Any]) -> dict[str, Any]:
    """rope_base and rope_scaling, from `rope_theta` and `rope_scaling` (transformers 4) or `rope_parameters` (5)."""
    key = "rope_scaling" if config_json.get("rope_scaling") else "rope_parameters"
    rope_config = config_json.get(key) or {}
    if not isinstance(rope_config, Mapping):
        raise InputError(f"config.json: {key} = {rope_config!r}; expected an object with rope_type. {FIX}")
    theta_source = next((c for c in (rope_config, config_json) if "rope_theta" in c), DEFAULT_ROPE)
    rope_base = read_number(theta_source, "rope_theta")
    rope_type = rope_config.get("rope_type", rope_config.get("type", "default"))
    if rope_type not in ("default", "llama3"):
        raise InputError(
            f"config.json: {key} has rope_type = {rope_type!r}; expected default or llama3. Within the original "
            "context, where such a model needs no stretching, remove it from a copy of config.json."
        )
    for section in (config_json, rope_config):
        require_value(section, "partial_rotary_factor", 1.0, "the decoder rotates whole heads")
    if rope_type == "default":
        return {"rope_base": rope_base, "rope_scaling": None}
    scaling = RopeScaling(
        factor=read_number(rope_config, "factor", key),
        low_freq_factor=read_number(rope_config, "low_freq_factor", key),
        high_freq_factor=read_number(rope_config, "high_freq_factor", key),
        original_max_position_embeddings=read_size(rope_config, "original_max_position_embeddings", section=key),
    )
    return {"rope_base": rope_base, "rope_scaling": scaling}


def require_value(config_json: Mapping[str, Any], key: str, allowed: Any, reason: str) -> None:
    """InputError where `key` is set to anything but `allowed`, which is also what absent and null mean."""
    value = config_json.get(key)
    if value is not None and value != allowed:
        raise InputError(f"config.json: {key} = {value!r}; expected {allowed!r}: {reason}. This model cannot run here.")


def read_size(config_json: Mapping[str, Any], key: str, default: int | None = None, section: str = "") -> int:
    value = default if config_json.get(key) is None else config_json[key]
    most = MAX_SIZES.get(key, MAX_WIDTH)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise _invalid_value(config_json, key, section, f"a whole number, at least 1 and at most {most:,}")
    return value


def read_number(config_json: Mapping[str, Any], key: str, section: str = "") -> float:
    value = config_json.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MAX_SETTING:
        raise _invalid_value(config_json, key, section, f"a number above 0, at most {MAX_SETTING:,}")
    return float(value)


def _invalid_value(config_json: Mapping[str, Any], key: str, section: str, expected: str) -> InputError:
    description = f"{key} = {config_json[key]!r}" if key in config_json else f"no {key}"
    return InputError(f"config.json: {f'{section} has ' if section else ''}{description}; expected {expected}. {FIX}")
