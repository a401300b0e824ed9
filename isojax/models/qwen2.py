"""Qwen2 and Qwen2.5: queries, keys and values with a bias."""

from collections.abc import Mapping
from typing import Any

from isojax.config import ModelConfig
from isojax.models import published
from isojax.models.decoder import Decoder

ARCHITECTURES = ("Qwen2ForCausalLM",)
NAMES = published.NAMES | published.BIAS_NAMES


def settings(hf: Mapping[str, Any]) -> dict[str, Any]:
    """ModelConfig's fields, without family and path, from a config.json; InputError for what the decoder cannot do."""
    return published.common_settings(hf) | {"qkv_bias": True}


def build(config: ModelConfig, vocab: int) -> Decoder:
    """The decoder for a vocabulary of `vocab` tokens."""
    return Decoder(config, vocab)
