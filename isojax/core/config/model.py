"""`cell.model`, `cell.base` and `cell.precision`: the policy, how a base policy is made, and the number formats."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from isojax.core.config.section import Section


class RopeScaling(Section):
    """Llama 3's stretched rotary positions (`rope_type: llama3` of a config.json), for contexts beyond the original."""

    factor: PositiveFloat = 8.0
    low_freq_factor: PositiveFloat = 1.0
    high_freq_factor: PositiveFloat = 4.0
    original_max_position_embeddings: PositiveInt = 8192


class ModelConfig(Section):
    """The policy's shape.

    Attributes:
        family: a file in isojax/models/families/.
        path: a folder with config.json, *.safetensors and a tokenizer, as a model hub gives it; the shape is then read
            from its config.json, and what is set here must agree with it.
        vocab: rows of the embedding; null takes the task's own vocabulary.
    """

    family: str = "tiny"
    path: str | None = None
    layers: PositiveInt = 3
    width: PositiveInt = 64
    heads: PositiveInt = 4
    kv_heads: PositiveInt = 2
    head_dim: PositiveInt = 16
    mlp: PositiveInt = 128
    vocab: PositiveInt | None = None
    norm_eps: PositiveFloat = 1e-6
    rope_base: PositiveFloat = 10_000.0
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    qk_norm: bool = False
    tied: bool = False


class BasePolicyConfig(Section):
    """How the base policy is made where a task brings its own: supervised learning on the task's demonstrations."""

    steps: PositiveInt = 1500
    batch: PositiveInt = 512
    learning_rate: PositiveFloat = 2e-2
    seed: int = Field(default=0, ge=0, le=2**31 - 1)


class PrecisionConfig(Section):
    """The number formats. Parameters, Adam's moments, softmax, log-probabilities and sums are always float32.

    Attributes:
        compute: of matrix products; auto: float32 on a CPU and bfloat16 elsewhere.
        cache: of the keys and values that the sampler keeps; auto: as `compute`.
    """

    compute: Literal["auto", "float32", "bfloat16"] = "auto"
    cache: Literal["auto", "float32", "bfloat16", "int8"] = "auto"

    def for_platform(self, platform: str) -> PrecisionConfig:
        """With `auto` decided for a platform: cpu, gpu or tpu."""
        default_dtype: Literal["float32", "bfloat16"] = "float32" if platform == "cpu" else "bfloat16"
        compute = default_dtype if self.compute == "auto" else self.compute
        return PrecisionConfig(compute=compute, cache=compute if self.cache == "auto" else self.cache)


FLOAT32_PRECISION = PrecisionConfig(compute="float32", cache="float32")
