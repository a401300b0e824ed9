"""`cell.model`, `cell.base`, `cell.precision`, `cell.sampling`: the policy, its base, number
formats, sampling."""

from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from isojax.core.config.marks import PluginName
from isojax.core.config.section import PositiveFloat, PositiveInt, ReadPath, Section, Text
from isojax.core.limits import MAX_LAYERS, MAX_VOCAB, MAX_WIDTH

Width = Annotated[int, Field(gt=0, le=MAX_WIDTH)]


class RopeScaling(Section):
    """Llama 3's stretched rotary positions (`rope_type: llama3` of a config.json), for contexts
    beyond the original."""

    factor: PositiveFloat = 8.0  # by which low frequencies are divided
    # frequencies of fewer turns over the original context are low
    low_freq_factor: PositiveFloat = 1.0
    # frequencies of more turns stay as they are; those between are blended
    high_freq_factor: PositiveFloat = 4.0
    original_max_position_embeddings: PositiveInt = 8192  # tokens of the original context


LoraTarget = Literal["query", "key", "value", "out", "gate", "up", "down", "experts"]


class LoraConfig(Section):
    """Low-rank adapters (arXiv:2106.09685): each target W of a layer is used as x W + (alpha /
    rank) (x A) B. A and B are trained, and all else stays as in the base policy."""

    rank: Annotated[int, Field(gt=0, le=MAX_WIDTH)] = 16  # columns of A, rows of B
    alpha: PositiveFloat = 32.0  # alpha / rank scales the adapters
    # Which matrices have adapters: the attention's query, key, value and out, the MLP's gate, up
    # and down; and `experts`, the gate, up and down of each expert.
    targets: Annotated[tuple[LoraTarget, ...], Field(min_length=1)] = (
        "query", "key", "value", "out", "gate", "up", "down"
    )  # fmt: skip

    @field_validator("targets")
    @classmethod
    def _check_targets(cls, targets: tuple[LoraTarget, ...]) -> tuple[LoraTarget, ...]:
        if len(set(targets)) < len(targets):
            raise PydanticCustomError("targets", "each target once")
        return targets


OptionValue = bool | int | float | Text | list[int] | list[Text]


class ModelConfig(Section):
    """The policy's shape, and which of its weights are trained."""

    family: Annotated[str, PluginName(("models.families",))] = (
        "tiny"  # a file in isojax/models/families/
    )
    # A folder with config.json, *.safetensors and a tokenizer, as a model hub has it. The shape is
    # then read from its config.json, and what is set here must agree with it.
    path: ReadPath | None = None
    layers: Annotated[int, Field(gt=0, le=MAX_LAYERS)] = 3  # transformer blocks
    width: Width = 64  # of the residual stream
    heads: Width = 4  # of queries
    kv_heads: Width = 2  # of keys and values
    head_dim: Width = 16  # numbers per head
    mlp: Width = 128  # hidden width of the MLP
    # Rows of the embedding; null takes the task's own vocabulary.
    vocab: Annotated[int, Field(gt=0, le=MAX_VOCAB)] | None = None
    norm_eps: PositiveFloat = 1e-6  # added to the mean square in RMSNorm
    rope_base: PositiveFloat = 10_000.0  # theta of the rotary positions
    rope_scaling: RopeScaling | None = None  # null: the positions are not stretched
    qkv_bias: bool = False  # whether queries, keys and values have a bias, as in Qwen2
    qk_norm: bool = False  # whether queries and keys are normalised, as in Qwen3
    tied: bool = False  # whether the unembedding is the embedding
    # Settings of this family alone, such as the window of sliding layers; its file lists them.
    # Null: its defaults.
    options: dict[str, OptionValue] | None = None
    lora: LoraConfig | None = None  # null: all weights are trained


class BasePolicyConfig(Section):
    """How the base policy is made where a task brings its own: supervised learning on the task's
    demonstrations."""

    steps: PositiveInt = 1500  # updates
    batch: PositiveInt = 512  # demonstrations per update
    learning_rate: PositiveFloat = 2e-2  # the largest one
    # of the demonstrations and of the initial weights
    seed: int = Field(default=0, ge=0, le=2**31 - 1)


class PrecisionConfig(Section):
    """Number formats. Trained parameters, Adam's moments, softmax, log-probabilities and sums are
    always float32."""

    # of matrix products; auto: float32 on CPUs, else bfloat16
    compute: Literal["auto", "float32", "bfloat16"] = "auto"
    # of the sampler's keys and values; auto: as compute
    cache: Literal["auto", "float32", "bfloat16", "int8"] = "auto"
    # Of the sampler's matrices in layers: as products are computed, or int8 with a scale for each
    # output.
    rollout_weights: Literal["compute", "int8"] = "compute"

    def for_platform(self, platform: str) -> "PrecisionConfig":
        """With `auto` decided for a platform: cpu, gpu or tpu."""
        default_dtype: Literal["float32", "bfloat16"] = (
            "float32" if platform == "cpu" else "bfloat16"
        )
        compute = default_dtype if self.compute == "auto" else self.compute
        return PrecisionConfig(
            compute=compute,
            cache=compute if self.cache == "auto" else self.cache,
            rollout_weights=self.rollout_weights,
        )


class InterruptConfig(Section):
    """Writes `text` into a response of `after` tokens that lacks `unless`: counted for verifier and
    length, never in the loss. The default text is ScaleRL's (arXiv:2510.13786)."""

    after: PositiveInt  # tokens
    # What is written.
    text: Annotated[Text, Field(min_length=1)] = (
        "Okay, time is up. Let me stop thinking and formulate a final answer now. </think>"
    )
    # one token that exempts a response; empty: every long response is interrupted
    unless: Text = "</think>"


class SamplingConfig(Section):
    """How rollouts are drawn."""

    # P, the most tokens of a prompt; a text task must set it, and null proposes a value for it.
    prompt_length: PositiveInt = 6
    # T, the most tokens of a response; a text task must set it, and null proposes a value for it.
    response_length: PositiveInt = 4
    temperature: PositiveFloat = 1.0  # of the softmax
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0  # the probability mass of the nucleus
    interrupt: InterruptConfig | None = None  # what ends a response that goes on for too long
