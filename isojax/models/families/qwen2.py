"""Qwen2 and Qwen2.5: queries, keys and values with a bias."""

from collections.abc import Mapping
from typing import Any

from isojax.models.hf import hf_config
from isojax.models.transformer import Decoder

build = Decoder
ARCHITECTURES = ("Qwen2ForCausalLM",)


def settings(config_json: Mapping[str, Any]) -> dict[str, Any]:
    return hf_config.common_settings(config_json) | {"qkv_bias": True}
