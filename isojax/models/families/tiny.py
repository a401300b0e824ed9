"""The quickstart's policy: Llama's layers at about 0.1M parameters, untied, from scratch."""

from isojax.core.config import ModelConfig
from isojax.models.architecture import Architecture, llama_architecture
from isojax.models.families import NoOptions, family, read_options


@family
def tiny(config: ModelConfig, vocab: int) -> Architecture:
    read_options(config, NoOptions)
    return llama_architecture(config, vocab)
