"""What the published architectures have in common: reading a config.json, and the names of a checkpoint's weights.

A config.json is read in transformers 4's spelling (`rope_theta`, `rope_scaling`) and in 5's (`rope_parameters`). Whatever would make
another function of the weights than the decoder's is refused, by its key: nothing is ignored that changes a logit.
"""

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from isojax.config import RopeScaling
from isojax.types import InputError

LAYER = "model.layers.{layer}."
NAMES = {
    "embed": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "unembed": "lm_head.weight",
    "blocks.attention_norm": LAYER + "input_layernorm.weight",
    "blocks.query": LAYER + "self_attn.q_proj.weight",
    "blocks.key": LAYER + "self_attn.k_proj.weight",
    "blocks.value": LAYER + "self_attn.v_proj.weight",
    "blocks.out": LAYER + "self_attn.o_proj.weight",
    "blocks.mlp_norm": LAYER + "post_attention_layernorm.weight",
    "blocks.gate": LAYER + "mlp.gate_proj.weight",
    "blocks.up": LAYER + "mlp.up_proj.weight",
    "blocks.down": LAYER + "mlp.down_proj.weight",
}
BIAS_NAMES = {
    "blocks.query_bias": LAYER + "self_attn.q_proj.bias",
    "blocks.key_bias": LAYER + "self_attn.k_proj.bias",
    "blocks.value_bias": LAYER + "self_attn.v_proj.bias",
}
QK_NORM_NAMES = {
    "blocks.query_norm": LAYER + "self_attn.q_norm.weight",
    "blocks.key_norm": LAYER + "self_attn.k_norm.weight",
}
ROPE_THETA = 10_000.0  # transformers' own, where a config.json has none (Llama 1 and 2)


@functools.cache
def families() -> dict[str, str]:
    """Each architecture's name in config.json, and the family that runs it (a file of isojax/models/)."""
    package = importlib.import_module("isojax.models")
    modules = {m.name: importlib.import_module(f"isojax.models.{m.name}") for m in pkgutil.iter_modules(package.__path__)}
    return {a: name for name, module in modules.items() for a in vars(module).get("ARCHITECTURES", ())}


def find_family(architecture: str) -> str:
    """The family of a name in config.json's `architectures`.

    Raises:
        InputError: no family has it; lists those there are.
    """
    known = families()
    if architecture not in known:
        raise InputError(
            f"config.json: architectures names {architecture!r}, which no family here runs; expected one of {', '.join(sorted(known))}. "
            "A family of your own is a file like isojax/models/qwen3.py."
        )
    return known[architecture]


def common_settings(hf: Mapping[str, Any], head_dim: int | None = None) -> dict[str, Any]:
    """ModelConfig's fields that every published family reads alike from a config.json.

    `head_dim`: the family's own where the file has none; None: width / heads.

    Raises:
        InputError: a key that is missing or cannot be used, by name.
    """
    refuse_unless(hf, "hidden_act", "silu", "the decoder's MLP is SwiGLU")
    for key in ("mlp_bias", "use_sliding_window"):
        refuse_unless(hf, key, False, "the decoder has no such thing")
    if hf.get("quantization_config"):
        raise InputError(
            "config.json: quantization_config is set; expected weights in float32, bfloat16 or float16. Dequantise them first."
        )
    width, heads = size(hf, "hidden_size"), size(hf, "num_attention_heads")
    if hf.get("head_dim") is None and head_dim is None and width % heads:
        raise InputError(
            f"config.json: no head_dim, and hidden_size = {width} is no multiple of num_attention_heads = {heads}. Add head_dim to it."
        )
    return {
        "layers": size(hf, "num_hidden_layers"),
        "width": width,
        "heads": heads,
        "kv_heads": size(hf, "num_key_value_heads", heads),
        "head_dim": size(hf, "head_dim", head_dim or width // heads),
        "mlp": size(hf, "intermediate_size"),
        "vocab": size(hf, "vocab_size"),
        "norm_eps": number(hf, "rms_norm_eps"),
        "tied": flag(hf, "tie_word_embeddings"),
        **rope_settings(hf),
    }


def rope_settings(hf: Mapping[str, Any]) -> dict[str, Any]:
    """rope_base and rope_scaling, from `rope_theta` and `rope_scaling` (transformers 4) or from `rope_parameters` alone (5)."""
    key = "rope_scaling" if hf.get("rope_scaling") else "rope_parameters"
    rope = hf.get(key) or {}
    if not isinstance(rope, Mapping):
        raise InputError(f"config.json: {key} = {rope!r}; expected an object such as {{'rope_type': 'default', 'rope_theta': 10000.0}}.")
    base = number({"rope_theta": ROPE_THETA} | {k: v for k, v in [*hf.items(), *rope.items()] if k == "rope_theta"}, "rope_theta")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise InputError(
            f"config.json: {key} has rope_type = {kind!r}; expected default or llama3. Within the original context, where such a model "
            "needs no stretching, remove it from a copy of config.json."
        )
    for given in (hf, rope):
        refuse_unless(given, "partial_rotary_factor", 1.0, "the decoder turns whole heads")
    if kind == "default":
        return {"rope_base": base, "rope_scaling": None}
    scaling = RopeScaling(
        factor=number(rope, "factor", key),
        low_freq_factor=number(rope, "low_freq_factor", key),
        high_freq_factor=number(rope, "high_freq_factor", key),
        original_max_position_embeddings=size(rope, "original_max_position_embeddings", inside=key),
    )
    return {"rope_base": base, "rope_scaling": scaling}


def refuse_unless(hf: Mapping[str, Any], key: str, allowed: Any, why: str) -> None:
    """InputError where `key` is set to anything but `allowed`; absent and null are the architecture's default, which is `allowed`."""
    given = hf.get(key)
    if given is not None and given != allowed:
        raise InputError(f"config.json: {key} = {given!r}; expected {allowed!r}: {why}. This checkpoint cannot be run here.")


def size(hf: Mapping[str, Any], key: str, default: int | None = None, inside: str = "") -> int:
    """A whole number, at least 1."""
    given = hf.get(key)
    if given is None and default is not None:
        return default
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise wrong(hf, key, inside, "a whole number, at least 1")
    return given


def number(hf: Mapping[str, Any], key: str, inside: str = "") -> float:
    """A number above 0."""
    given = hf.get(key)
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given < float("inf"):
        raise wrong(hf, key, inside, "a number above 0")
    return float(given)


def flag(hf: Mapping[str, Any], key: str) -> bool:
    """true or false; absent and null are false."""
    given = hf.get(key)
    if not isinstance(given, (bool, type(None))):
        raise wrong(hf, key, "", "true or false")
    return bool(given)


def wrong(hf: Mapping[str, Any], key: str, inside: str, expected: str) -> InputError:
    """The error for a value that is missing or cannot be used."""
    given = f"{key} = {hf[key]!r}" if key in hf else f"no {key}"
    return InputError(f"config.json: {f'{inside} has ' if inside else ''}{given}; expected {expected}. Mend the file, or fetch it again.")
