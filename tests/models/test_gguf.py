"""GGUF files made here by gguf's own writer, read back: weights, what llama.cpp turns round, quantised blocks,
tokenizers, refusals.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from isojax.core import registry
from isojax.core.config import ModelConfig, RopeScaling
from isojax.core.errors import InputError
from isojax.models.gguf import import_gguf
from isojax.models.hf import hf_load
from tests.device import mesh

L, D, N, K, H, F = 2, 32, 4, 2, 8, 64
LAYER_PREFIX = "blk.{layer}."
GGUF_NAMES = {
    "embed": "token_embd.weight",
    "norm": "output_norm.weight",
    "unembed": "output.weight",
    "blocks.attention_norm": LAYER_PREFIX + "attn_norm.weight",
    "blocks.query": LAYER_PREFIX + "attn_q.weight",
    "blocks.key": LAYER_PREFIX + "attn_k.weight",
    "blocks.value": LAYER_PREFIX + "attn_v.weight",
    "blocks.out": LAYER_PREFIX + "attn_output.weight",
    "blocks.mlp_norm": LAYER_PREFIX + "ffn_norm.weight",
    "blocks.gate": LAYER_PREFIX + "ffn_gate.weight",
    "blocks.up": LAYER_PREFIX + "ffn_up.weight",
    "blocks.down": LAYER_PREFIX + "ffn_down.weight",
    "blocks.query_bias": LAYER_PREFIX + "attn_q.bias",
    "blocks.key_bias": LAYER_PREFIX + "attn_k.bias",
    "blocks.value_bias": LAYER_PREFIX + "attn_v.bias",
    "blocks.query_norm": LAYER_PREFIX + "attn_q_norm.weight",
    "blocks.key_norm": LAYER_PREFIX + "attn_k_norm.weight",
}
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


def alphabet() -> list[str]:
    """The 256 characters of byte-level BPE, by byte: printable ones stand for themselves, the rest count up from
    U+0100.
    """
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    odd = [b for b in range(256) if b not in plain]
    return [chr(b) if b in plain else chr(256 + odd.index(b)) for b in range(256)]


MERGES = ["Ċ Ċ", "1 2", "h i", "Ġ hi", "² ²"]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", *alphabet(), *(m.replace(" ", "") for m in MERGES)]
VOCAB = len(TOKENS)
ID = {token: i for i, token in enumerate(TOKENS)}
SHAPE = {"layers": L, "width": D, "heads": N, "kv_heads": K, "head_dim": H, "mlp": F, "vocab": VOCAB}


def weights(config: ModelConfig) -> dict[str, np.ndarray]:
    """Random tensors by their names in a checkpoint of transformers."""
    rng = np.random.default_rng(0)
    names = registry.load("models.families", config.family, "settings").NAMES
    shapes = {
        "embed": (VOCAB, D), "norm": (D,), "unembed": (VOCAB, D),
        "blocks.attention_norm": (D,), "blocks.mlp_norm": (D,), "blocks.query_norm": (H,), "blocks.key_norm": (H,),
        "blocks.query": (N * H, D), "blocks.key": (K * H, D), "blocks.value": (K * H, D), "blocks.out": (D, N * H),
        "blocks.query_bias": (N * H,), "blocks.key_bias": (K * H,), "blocks.value_bias": (K * H,),
        "blocks.gate": (F, D), "blocks.up": (F, D), "blocks.down": (D, F),
    }  # fmt: skip
    result = {}
    for key, name in names.items():
        for layer in range(L if "{layer}" in name else 1):
            result[name.format(layer=layer)] = rng.standard_normal(shapes[key]).astype(np.float32)
    if config.tied:
        del result["lm_head.weight"]
    return result


def llama_cpp_rows(w: np.ndarray, heads: int) -> np.ndarray:
    """Row 2 i + j of a head in the file is row i + j H/2 of the head in the checkpoint (j = 0, 1)."""
    return np.concatenate(
        [w[h * H : (h + 1) * H][[i + j * (H // 2) for i in range(H // 2) for j in (0, 1)]] for h in range(heads)]
    )


def write_gguf(
    path: Path, config: ModelConfig, pre: str = "smollm", change: Callable[[Any, dict[str, Any]], None] | None = None
) -> dict[str, np.ndarray]:
    """A GGUF file of random weights as llama.cpp's converter writes it; `change(writer, tensors)` spoils it."""
    family = config.family
    writer = gguf.GGUFWriter(path, family)
    writer.add_block_count(L)
    writer.add_context_length(512)
    writer.add_embedding_length(D)
    writer.add_feed_forward_length(F)
    writer.add_head_count(N)
    writer.add_head_count_kv(K)
    writer.add_layer_norm_rms_eps(1e-5)
    if family == "qwen3":
        writer.add_key_length(H)
    writer.add_rope_freq_base(1e5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3, 4] + [1] * (VOCAB - 4))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    stored = weights(config)
    names = registry.load("models.families", family, "settings").NAMES
    renamed = {
        names[key].format(layer=i): name.format(layer=i)
        for key, name in GGUF_NAMES.items()
        if key in names
        for i in range(L)
    }
    tensors: dict[str, Any] = {}
    for name, value in stored.items():
        heads = N if "q_proj.weight" in name else K if "k_proj.weight" in name else 0
        tensors[renamed[name]] = llama_cpp_rows(value, heads) if heads and family == "llama" else value
    if change:
        change(writer, tensors)
    for name, value in tensors.items():
        raw = gguf.GGMLQuantizationType.Q8_0 if value.dtype == np.uint8 else None
        writer.add_tensor(name, value, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def shape(family: str, tied: bool = False) -> ModelConfig:
    return ModelConfig(
        family=family,
        **SHAPE,
        norm_eps=1e-5,
        rope_base=1e5,
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        tied=tied,
    )


@pytest.mark.parametrize(
    ("family", "tied", "pre"),
    [("llama", True, "smollm"), ("llama", False, "llama-bpe"), ("qwen2", False, "qwen2"), ("qwen3", True, "qwen2")],
)
def test_weights_and_shape_come_back(tmp_path: Path, family: str, tied: bool, pre: str) -> None:
    stored = write_gguf(tmp_path / "m.gguf", shape(family, tied), pre)
    import_gguf(tmp_path / "m.gguf", tmp_path / "m")
    result = load_file(tmp_path / "m" / "model.safetensors")
    assert result.keys() == stored.keys()
    for name, value in stored.items():
        np.testing.assert_array_equal(result[name], value, err_msg=name)
    config = hf_load.resolve_model(ModelConfig(path=str(tmp_path / "m")))
    assert config == shape(family, tied).model_copy(update={"path": str(tmp_path / "m")})
    about = json.loads((tmp_path / "m" / "config.json").read_text())
    assert (about["max_position_embeddings"], about["bos_token_id"], about["eos_token_id"]) == (512, 1, 2)
    params = hf_load.load(
        tmp_path / "m", config, registry.load("models.families", family, "build").build(config, VOCAB), mesh("fsdp=8")
    )
    query = stored["model.layers.1.self_attn.q_proj.weight"]
    assert float(params["blocks"]["query"][1, 5, 3, 7]) == query[3 * H + 7, 5]


def test_quantised_blocks_are_read_exactly(tmp_path: Path) -> None:
    """Q8_0: blocks of 32 numbers, a float16 scale and 32 signed bytes."""
    rng = np.random.default_rng(1)
    scales = rng.uniform(0.01, 0.1, (VOCAB, D // 32)).astype(np.float16)
    steps = rng.integers(-127, 128, (VOCAB, D // 32, 32)).astype(np.int8)
    packed = np.concatenate([scales[..., None].view(np.uint8), steps.view(np.uint8)], -1).reshape(VOCAB, -1)
    write_gguf(
        tmp_path / "m.gguf",
        shape("llama", True),
        change=lambda _, tensors: tensors.update({GGUF_NAMES["embed"]: packed}),
    )
    import_gguf(tmp_path / "m.gguf", tmp_path / "m")
    want = (scales[..., None].astype(np.float32) * steps).reshape(VOCAB, D)
    np.testing.assert_array_equal(load_file(tmp_path / "m" / "model.safetensors")["model.embed_tokens.weight"], want)
    import_gguf(tmp_path / "m.gguf", tmp_path / "half", "bfloat16")
    half = load_file(tmp_path / "half" / "model.safetensors")["model.embed_tokens.weight"]
    np.testing.assert_array_equal(half, want.astype(ml_dtypes.bfloat16))


def test_an_embedding_stored_twice_is_tied_again(tmp_path: Path) -> None:
    def twice(_: Any, tensors: dict[str, Any]) -> None:
        tensors[GGUF_NAMES["unembed"]] = tensors[GGUF_NAMES["embed"]]

    write_gguf(tmp_path / "m.gguf", shape("llama"), change=twice)
    import_gguf(tmp_path / "m.gguf", tmp_path / "m")
    assert hf_load.resolve_model(ModelConfig(path=str(tmp_path / "m"))).tied
    assert "lm_head.weight" not in load_file(tmp_path / "m" / "model.safetensors")


def test_llama_3s_stretching_is_recognised(tmp_path: Path) -> None:
    """Frequencies 1, 5.6e-2, 3.2e-3, 1.8e-4 turn 1304, 73, 4.12 and .23 times in 8192 positions: over 4 is kept, under
    1 divided by 32.
    """

    def stretch(_: Any, tensors: dict[str, Any]) -> None:
        tensors["rope_freqs.weight"] = np.array([1, 1, 1, 32], np.float32)

    write_gguf(tmp_path / "m.gguf", shape("llama"), change=stretch)
    import_gguf(tmp_path / "m.gguf", tmp_path / "m")
    scaling = hf_load.resolve_model(ModelConfig(path=str(tmp_path / "m"))).rope_scaling
    assert scaling == RopeScaling(
        factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
    )


TEXTS = {
    "smollm": {
        "12": ["1", "2"],
        "\n\n1": ["ĊĊ", "1"],
        " hi<|im_end|>hi": ["Ġhi", "<|im_end|>", "hi"],
        "<think>": ["<think>"],
    },
    "gpt-2": {"12": ["12"], "\n\n1": ["Ċ", "Ċ", "1"], " hi": ["Ġhi"]},
    "llama-bpe": {"12": ["<|im_start|>", "12"], "\n\n1": ["<|im_start|>", "ĊĊ", "1"]},
    "qwen2": {
        "12": ["1", "2"],
        "\n\n1": ["ĊĊ", "1"],
        "e\u0301": ["Ã", "©"],
    },  # an accent is joined to its letter
}


@pytest.mark.parametrize("pre", TEXTS)
def test_tokenizers(tmp_path: Path, pre: str) -> None:
    write_gguf(tmp_path / "m.gguf", shape("llama", True), pre)
    import_gguf(tmp_path / "m.gguf", tmp_path / "m")
    tokenizer = Tokenizer.from_file(str(tmp_path / "m" / "tokenizer.json"))
    for text, want in TEXTS[pre].items():
        got = tokenizer.encode(text)
        assert got.tokens == want and got.ids == [ID[token] for token in want], text
    every = "".join(map(chr, range(1, 0x250))) + "漢字🙂\u2028  \n 7"
    ids = tokenizer.encode(every, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == every
    about = json.loads((tmp_path / "m" / "tokenizer_config.json").read_text())
    assert (about["bos_token"], about["eos_token"], about["chat_template"]) == ("<|im_start|>", "<|im_end|>", TEMPLATE)
    assert "pad_token" not in about


def test_transformers_reads_the_tokenizer(tmp_path: Path) -> None:
    from isojax.tasks.tokenizer import end_tokens, load_tokenizer

    write_gguf(tmp_path / "m.gguf", shape("llama", True))
    import_gguf(tmp_path / "m.gguf", tmp_path / "m")
    tokenizer = load_tokenizer(tmp_path / "m")
    assert tokenizer("\n\n12").input_ids == [ID["ĊĊ"], ID["1"], ID["2"]]
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=True, return_dict=False)
    assert chat == [1, ID["hi"], 2]
    assert tuple(end_tokens(tokenizer, tmp_path / "m")) == (2,)


def metadata(writer: Any, key: str, value: Any) -> None:
    """Replace a number of the metadata."""
    del writer.kv_data[0][key]
    add = (
        writer.add_array
        if isinstance(value, list)
        else writer.add_float32
        if isinstance(value, float)
        else writer.add_uint32
    )
    add(key, value)


BROKEN: dict[str, tuple[Callable[[Any, dict[str, Any]], Any], str]] = {
    "missing": (lambda _, t: t.pop("blk.1.ffn_up.weight"), r"blk\.1\.ffn_up\.weight is missing, expected \[64, 32\]"),
    "unknown": (
        lambda _, t: t.update({"blk.0.attn_q.bias": np.ones(32, np.float32)}),
        r"blk\.0\.attn_q\.bias is unknown",
    ),
    "misshapen": (
        lambda _, t: t.update({"output_norm.weight": np.ones(31, np.float32)}),
        r"output_norm\.weight has shape \[31\], expected \[32\]",
    ),
    "no embedding": (lambda _, t: t.pop("token_embd.weight"), r"has no tensor token_embd\.weight"),
    "stretched": (
        lambda w, _: w.add_rope_scaling_type(gguf.RopeScalingType.YARN),
        r"stretched rotary positions \(yarn\)",
    ),
    "stretched otherwise": (
        lambda _, t: t.update({"rope_freqs.weight": np.array([1, 2, 3, 8], np.float32)}),
        r"rope_freqs\.weight is not Llama 3's stretching by 8",
    ),
    "no heads": (
        lambda w, _: metadata(w, "llama.attention.head_count", 0),
        r"its metadata, as config\.json: num_attention_heads = 0; expected a whole number",
    ),
    "heads by layer": (
        lambda w, _: metadata(w, "llama.attention.head_count_kv", [2, 1]),
        r"num_key_value_heads = \[2, 1\]; expected a whole number, at least 1",
    ),
    "more heads than width": (
        lambda w, _: metadata(w, "llama.attention.head_count", 64),
        r"hidden_size = 32 is no multiple of num_attention_heads = 64",
    ),
    "no epsilon": (
        lambda w, _: metadata(w, "llama.attention.layer_norm_rms_epsilon", 0.0),
        r"rms_norm_eps = 0\.0; expected a number above",
    ),
    "no tokens": (lambda w, _: w.kv_data[0].pop("tokenizer.ggml.tokens"), r"has no tokenizer\.ggml\.tokens; .* Take"),
    "no merges": (lambda w, _: w.kv_data[0].pop("tokenizer.ggml.merges"), r"has no tokenizer\.ggml\.merges; .* Take"),
    "half a head": (lambda w, _: w.add_rope_dimension_count(4), r"rope\.dimension_count = 4, head size 8"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_read_is_said(tmp_path: Path, case: str) -> None:
    change, words = BROKEN[case]
    write_gguf(tmp_path / "m.gguf", shape("llama", True), change=change)
    with pytest.raises(InputError, match=words):
        import_gguf(tmp_path / "m.gguf", tmp_path / "m")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf"]


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with pytest.raises(InputError, match="no such file"):
        import_gguf(path, tmp_path / "m")
    write_gguf(path, shape("llama", True))
    data = path.read_bytes()
    for size in (0, 3, 100, 5000, len(data) - 4000):
        path.write_bytes(data[:size])
        with pytest.raises(InputError, match="not a whole GGUF file"):
            import_gguf(path, tmp_path / "m")
    write_gguf(path, shape("llama", True), pre="tekken")
    with pytest.raises(InputError, match="its tokenizer is 'gpt2', split by 'tekken'"):
        import_gguf(path, tmp_path / "m")
    (tmp_path / "m").mkdir()
    with pytest.raises(InputError, match="exists, and nothing is overwritten"):
        import_gguf(path, tmp_path / "m")
