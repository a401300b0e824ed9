"""Llama 2, 3, 3.1, 3.2 and models of their architecture (SmolLM2), with Llama 3.1's stretched rotary positions."""

from collections.abc import Mapping
from typing import Any

from isojax.models.families import family
from isojax.models.hf import hf_config
from isojax.models.transformer import Decoder


def settings(config_json: Mapping[str, Any]) -> dict[str, Any]:
    hf_config.require_value(config_json, "attention_bias", False, "the decoder has no such bias for Llama")
    return hf_config.common_settings(config_json)


build = family(architectures=("LlamaForCausalLM",), settings=settings)(Decoder)
