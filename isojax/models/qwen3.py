"""Qwen3 (dense): each head's queries and keys are normalised before they are turned."""

from collections.abc import Mapping
from typing import Any

from isojax.config import ModelConfig
from isojax.models import published
from isojax.models.decoder import Decoder

ARCHITECTURES = ("Qwen3ForCausalLM",)
NAMES = published.TENSOR_NAMES | published.QK_NORM_TENSOR_NAMES
DEFAULT_HEAD_DIM = 128  # where config.json has none: the architecture's own, whatever the width


def settings(config_json: Mapping[str, Any]) -> dict[str, Any]:
    """ModelConfig's fields, without family and path, from a config.json; InputError for what the decoder cannot do."""
    published.require_value(config_json, "attention_bias", False, "the decoder has no such bias for Qwen3")
    return published.common_settings(config_json, DEFAULT_HEAD_DIM) | {"qk_norm": True}


def build(config: ModelConfig, vocab: int) -> Decoder:
    """The decoder for a vocabulary of `vocab` tokens."""
    return Decoder(config, vocab)
