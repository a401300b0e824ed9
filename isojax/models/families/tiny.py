"""The quickstart's policy: the decoder at about 0.1M parameters, untied, from scratch."""

from isojax.core.config import ModelConfig
from isojax.models.transformer import Decoder


def build(config: ModelConfig, vocab: int) -> Decoder:
    return Decoder(config, vocab)
