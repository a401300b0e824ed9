"""Qwen3 (dense): each head's queries and keys are normalised before they are rotated."""

from collections.abc import Mapping
from typing import Any

from isojax.models.families import family
from isojax.models.hf import hf_config
from isojax.models.transformer import Decoder

DEFAULT_HEAD_DIM = 128  # where config.json has none: the architecture's own, whatever the width


def settings(config_json: Mapping[str, Any]) -> dict[str, Any]:
    hf_config.require_value(config_json, "attention_bias", False, "the decoder has no such bias for Qwen3")
    return hf_config.common_settings(config_json, DEFAULT_HEAD_DIM) | {"qk_norm": True}


build = family(architectures=("Qwen3ForCausalLM",), settings=settings)(Decoder)
