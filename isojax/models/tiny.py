"""The quickstart's policy: the decoder at about 0.1M parameters, untied, from scratch."""

from isojax.config import ModelConfig
from isojax.models.decoder import Decoder


def build(config: ModelConfig, vocab: int) -> Decoder:
    """The decoder for a vocabulary of `vocab` tokens."""
    return Decoder(config, vocab)
