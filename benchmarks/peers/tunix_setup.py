"""What Tunix's two children share: its Llama 3 model with SmolLM2's shape and weights, and the
tokenizer as it wants one.

(Tunix 0.1.7 does not pass `rope_theta` on to its rotary positions, so its samples are not
SmolLM2's; the work is the same.)
"""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from tokenizers import Tokenizer
from tunix.models.llama3.model import Llama3, ModelConfig
from tunix.models.llama3.params import create_model_from_safe_tensors


class Words:
    """The tokenizer without a first token, so that a prompt keeps its length, and with an end token
    that never comes.
    """

    def __init__(self, model: Path):
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def encode(self, text: str, **_: Any) -> list[int]:  # NumPy's strings too
        return self.tokenizer.encode(str(text), add_special_tokens=False).ids

    def decode(self, ids: list[int], **_: Any) -> str:
        return self.tokenizer.decode(ids)

    def bos_id(self) -> None:
        return None

    def eos_id(self) -> int:
        return -1

    def pad_id(self) -> int:
        return 0


def shape(model: Path) -> ModelConfig:
    """Tunix's config from config.json."""
    inputs = json.loads((model / "config.json").read_text())
    return ModelConfig(
        num_layers=inputs["num_hidden_layers"],
        vocab_size=inputs["vocab_size"],
        embed_dim=inputs["hidden_size"],
        hidden_dim=inputs["intermediate_size"],
        num_heads=inputs["num_attention_heads"],
        head_dim=inputs["head_dim"],
        num_kv_heads=inputs["num_key_value_heads"],
        rope_theta=inputs["rope_theta"],
        norm_eps=inputs["rms_norm_eps"],
        weight_tying=inputs["tie_word_embeddings"],
    )


def load(model: Path) -> tuple[Llama3, ModelConfig, jax.sharding.Mesh]:
    """The model in float32 on a mesh of one device, its config and the mesh."""
    mesh = jax.make_mesh(
        (1, 1),
        ("fsdp", "tp"),
        axis_types=(jax.sharding.AxisType.Auto,) * 2,
        devices=jax.devices()[:1],
    )
    config = shape(model)
    return create_model_from_safe_tensors(str(model), config, mesh, jnp.float32), config, mesh
