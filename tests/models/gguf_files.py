"""Small GGUF files of each family as llama.cpp's converter writes them, made by gguf's own
writer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from isojax.core.config import ModelConfig
from isojax.models.hf import hf_load
from isojax.models.transformer import Decoder

# A tokenizer as sentencepiece's: (token, score, type). Types: 1 normal, 2 unknown, 3 control, 4
# user-defined, 6 byte.
PIECES = [
    ("<pad>", -1000.0, 3),
    ("<eos>", -1000.0, 3),
    ("<bos>", -1000.0, 3),
    ("<unk>", -1000.0, 2),
    ("\n\n", -1000.0, 4),
    *((f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)),
    *((letter, 0.0, 1) for letter in "abcde▁"),
    ("bc", -1.0, 1),
    ("ab", -2.0, 1),
    ("▁a", -3.0, 1),
    ("abc", -4.0, 1),
    ("de", -5.0, 1),
]
VOCAB = len(PIECES)
ID = {piece: i for i, (piece, _, _) in enumerate(PIECES)}

D, F, N, K, H = 32, 64, 4, 2, 8
# Parts of a checkpoint's names -> GGUF's. The families differ in two norms.
COMMON_NAMES = {
    "model.embed_tokens.": "token_embd.",
    "model.norm.": "output_norm.",
    "lm_head.": "output.",
    "model.layers.": "blk.",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
}
LLAMA_NAMES = {"post_attention_layernorm": "ffn_norm"}
AFTER_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


@dataclass(frozen=True)
class Example:
    config: ModelConfig
    names: dict[str, str]
    metadata: dict[str, Any]
    architecture: str


def shape(family: str, layers: int = 2, **more: Any) -> ModelConfig:
    sizes: dict[str, Any] = {
        "layers": layers,
        "width": D,
        "heads": N,
        "kv_heads": K,
        "head_dim": H,
        "mlp": F,
        "vocab": VOCAB,
    }
    sizes |= {"norm_eps": 1e-5, "rope_base": 1e5}
    return ModelConfig(family=family, **(sizes | more))


GEMMA_OPTIONS = {
    "window": 5,
    "sliding_layers": [0, 1, 2, 3, 4, 6],  # the sixth is full
    "local_rope_base": 1e4,
    "rope_factor": 8.0,
    "query_scalar": 12.0,
}
BIASES = {"attention_bias": True, "mlp_bias": True}
EXAMPLES = {
    "llama": Example(shape("llama", options=BIASES), LLAMA_NAMES, {}, "llama"),
    "qwen2": Example(shape("qwen2", qkv_bias=True, tied=True), LLAMA_NAMES, {}, "qwen2"),
    "qwen3": Example(shape("qwen3", head_dim=12, qk_norm=True), LLAMA_NAMES, {}, "qwen3"),
    "olmo2": Example(shape("olmo2"), AFTER_NAMES, {}, "olmo2"),
    "gemma3": Example(
        shape("gemma3", layers=7, head_dim=12, tied=True, options=GEMMA_OPTIONS),
        AFTER_NAMES,
        {
            "attention.sliding_window": np.uint32(5),
            "rope.scaling.type": "linear",
            "rope.scaling.factor": np.float32(8),
        },
        "gemma3",
    ),
}


def weights(config: ModelConfig) -> dict[str, np.ndarray]:
    """Random tensors by their names in a checkpoint of transformers."""
    rng = np.random.default_rng(0)
    layouts = hf_load.weight_layouts(Decoder(config, VOCAB))
    shapes = {name: weight.spec.stored_shape for weight in layouts for name in weight.tensor_names}
    return {name: rng.standard_normal(size).astype(np.float32) for name, size in shapes.items()}


def gguf_name(name: str, names: dict[str, str]) -> str:
    for own, published in (COMMON_NAMES | names).items():
        name = name.replace(own, published)
    return name


def as_stored(name: str, value: np.ndarray, example: Example) -> np.ndarray:
    """What llama.cpp turns round: row i + j H/2 of a head of Llama is row 2 i + j there; Gemma's
    norms get 1."""
    heads = N if "q_proj" in name else K if "k_proj" in name else 0
    if example.architecture == "llama" and heads:
        size = len(value) // heads
        order = [
            h * size + i + j * (size // 2)
            for h in range(heads)
            for i in range(size // 2)
            for j in (0, 1)
        ]
        return value[order]
    return value + 1 if example.architecture == "gemma3" and "norm" in name else value


def write(path: Path, example: Example, tensors: dict[str, np.ndarray], **metadata: Any) -> None:
    config, prefix = example.config, example.architecture
    writer = gguf.GGUFWriter(path, prefix)
    writer.add_block_count(config.layers)
    writer.add_context_length(512)
    writer.add_embedding_length(config.width)
    writer.add_feed_forward_length(config.mlp)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_base)
    for key, value in (example.metadata | metadata).items():
        add = {
            str: writer.add_string,
            np.uint32: writer.add_uint32,
            np.float32: writer.add_float32,
        }[type(value)]
        add(f"{prefix}.{key}", value)

    writer.add_tokenizer_model("llama")
    writer.add_token_list([piece for piece, _, _ in PIECES])
    writer.add_token_scores([score for _, score, _ in PIECES])
    writer.add_token_types([kind for _, _, kind in PIECES])
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(3)
    writer.add_pad_token_id(0)
    writer.add_add_space_prefix(False)
    for name, value in tensors.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def stored_tensors(example: Example) -> dict[str, np.ndarray]:
    """The tensors of a file whose weights are `weights(example.config)`."""
    own = weights(example.config)
    return {
        gguf_name(name, example.names): as_stored(name, value, example)
        for name, value in own.items()
    }
