"""GGUF files of each family, made by gguf's own writer, become folders with the weights that they
were made from; a sentencepiece tokenizer; and files that are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from isojax.core.config import ModelConfig, RopeScaling
from isojax.models.families.gemma3 import from_gguf
from isojax.models.hf import hf_load
from isojax.models.hf.gguf_import import import_gguf
from isojax.models.layers.rope import rope_frequencies
from tests.models.gguf_files import EXAMPLES, ID, H, stored_tensors, weights, write
from tests.refusals import refused

KEYS = (
    "family",
    "layers",
    "width",
    "heads",
    "kv_heads",
    "head_dim",
    "mlp",
    "vocab",
    "norm_eps",
    "rope_base",
    "tied",
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_weights_and_shape_come_back(name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]
    write(tmp_path / "m.gguf", example, stored_tensors(example))
    import_gguf(tmp_path / "m.gguf", tmp_path / "m")

    result = load_file(tmp_path / "m" / "model.safetensors")
    expected = weights(example.config)
    assert result.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(result[key], value, atol=2e-7, err_msg=key)  # (w + 1) - 1

    config = hf_load.resolve_model(ModelConfig(path=str(tmp_path / "m")))
    for key in KEYS:
        assert getattr(config, key) == getattr(example.config, key), key
    if name == "gemma3":  # by the files' own silence: scores are divided by the root of head_dim
        assert config.options == (example.config.options or {}) | {"query_scalar": 12.0}
    else:
        assert config.options == example.config.options
    hf_load.check_weights(config)


def test_llama3_positions_are_read_from_their_factors(tmp_path: Path) -> None:
    example = EXAMPLES["llama"]
    scaling = RopeScaling(factor=32.0)
    factors = rope_frequencies(H, 1e5, None) / rope_frequencies(H, 1e5, scaling)
    assert 1 < factors.max() <= 32
    tensors = stored_tensors(example) | {"rope_freqs.weight": factors}
    write(tmp_path / "m.gguf", example, tensors)
    import_gguf(tmp_path / "m.gguf", tmp_path / "m")
    config = hf_load.resolve_model(ModelConfig(path=str(tmp_path / "m")))
    np.testing.assert_allclose(
        rope_frequencies(H, 1e5, config.rope_scaling), rope_frequencies(H, 1e5, scaling), rtol=1e-5
    )

    write(
        tmp_path / "other.gguf", example, tensors | {"rope_freqs.weight": factors + np.float32(0.5)}
    )
    with refused(where="other.gguf"):
        import_gguf(tmp_path / "other.gguf", tmp_path / "other")


def test_gemma_27b_divides_scores_by_width_over_heads() -> None:
    sizes = {"attention.head_count": 32, "attention.key_length": 128, "embedding_length": 5376}
    assert from_gguf({"block_count": 62, **sizes})["query_pre_attn_scalar"] == 168
    assert from_gguf({"block_count": 34, **sizes})["query_pre_attn_scalar"] == 128


# Text -> tokens. Pairs are merged by score, so "abc" is a, bc and not ab, c; then a, bc is abc.
TEXTS = {
    "abc": ["abc"],
    "dead": ["de", "a", "d"],
    " ab": ["▁", "ab"],
    "a a": ["a", "▁a"],
    "a\n\nb\n": ["a", "\n\n", "b", "<0x0A>"],
    "é": ["<0xC3>", "<0xA9>"],
    "<eos>b": ["<eos>", "b"],
}


def test_sentencepiece(tmp_path: Path) -> None:
    from isojax.tasks.tokenizer import end_tokens, load_tokenizer

    example = EXAMPLES["gemma3"]
    write(tmp_path / "m.gguf", example, stored_tensors(example))
    import_gguf(tmp_path / "m.gguf", tmp_path / "m")
    tokenizer = Tokenizer.from_file(str(tmp_path / "m" / "tokenizer.json"))
    for text, want in TEXTS.items():
        got = tokenizer.encode(text, add_special_tokens=False)
        assert got.ids == [ID[token] for token in want], text
        assert tokenizer.decode(got.ids, skip_special_tokens=False) == text
        assert tokenizer.encode(text).ids == [ID["<bos>"], *got.ids]

    loaded = load_tokenizer(tmp_path / "m")
    assert loaded("abc").input_ids == [ID["<bos>"], ID["abc"]] and tuple(
        end_tokens(loaded, tmp_path / "m")
    ) == (1,)
    about = json.loads((tmp_path / "m" / "config.json").read_text())
    assert (about["model_type"], about["bos_token_id"], about["eos_token_id"]) == (
        "gemma3_text",
        2,
        1,
    )


def test_what_is_refused(tmp_path: Path) -> None:
    example = EXAMPLES["qwen3"]
    tensors, path = stored_tensors(example), tmp_path / "m.gguf"
    lacking = {name: value for name, value in tensors.items() if name != "blk.1.attn_q.weight"}
    cases = [
        (lacking, {}),
        (
            tensors | {"blk.0.ffn_gate_exps.weight": np.zeros((2, 2), np.float32)},
            {},
        ),
        (
            tensors | {"output.weight": np.zeros((3, 32), np.float32)},
            {},
        ),
        (tensors, {"expert_count": np.uint32(8)}),
        (
            tensors,
            {"rope.scaling.type": "yarn", "rope.scaling.factor": np.float32(4)},
        ),
    ]
    for stored, metadata in cases:
        write(path, example, stored, **metadata)
        with refused(where="m.gguf") as e:
            import_gguf(path, tmp_path / "m")
        assert str(path) in str(e.value)

    write(path, example, tensors)
    whole = path.read_bytes()
    for broken in (b"", b"GGUF", whole[:300], whole[:-1000], b"x" * 100):
        path.write_bytes(broken)
        with refused(where="m.gguf"):
            import_gguf(path, tmp_path / "m")
    path.write_bytes(whole.replace(b"qwen3", b"qwen9"))
    with refused(where="m.gguf: general.architecture"):
        import_gguf(path, tmp_path / "m")
    with refused(where="none.gguf"):
        import_gguf(tmp_path / "none.gguf", tmp_path / "m")
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]
