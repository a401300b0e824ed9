"""Qwen2 and Qwen2.5: queries, keys and values with a bias."""

from collections.abc import Mapping
from typing import Any

from isojax.models.families import family
from isojax.models.hf import hf_config
from isojax.models.transformer import Decoder


def settings(config_json: Mapping[str, Any]) -> dict[str, Any]:
    return hf_config.common_settings(config_json) | {"qkv_bias": True}


build = family(architectures=("Qwen2ForCausalLM",), settings=settings)(Decoder)
