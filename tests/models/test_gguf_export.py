"""A folder's model as a GGUF file has the tensors and tokenizer that llama.cpp's converter would
write."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from tokenizers import Tokenizer, models

from isojax.core.config import ModelConfig
from isojax.models.families.gemma3 import to_gguf
from isojax.models.hf import hf_load
from isojax.models.hf.gguf_export import write_gguf
from isojax.models.hf.gguf_import import import_gguf
from isojax.models.hf.gguf_pretokenizers import PRE_TOKENIZERS, find_name
from isojax.models.smollm2 import import_smollm2
from isojax.models.transformer import Decoder
from tests.device import mesh
from tests.models.gguf_files import EXAMPLES, PIECES, shape, stored_tensors, write
from tests.models.test_smollm2_import import MERGES, TEMPLATE, TOKENS
from tests.models.test_smollm2_import import write_gguf as write_smollm2
from tests.refusals import refused


def export(folder: Path, path: Path, dtype: str) -> gguf.GGUFReader:
    config = hf_load.resolve_model(ModelConfig(path=str(folder)))
    params = hf_load.load(folder, config, Decoder(config), mesh())
    write_gguf(params, config, folder, path, dtype)
    return gguf.GGUFReader(path)


def metadata(reader: gguf.GGUFReader) -> dict[str, Any]:
    return {key: field.contents() for key, field in reader.fields.items()}


@pytest.fixture(params=EXAMPLES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_tensors_and_settings_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]
    expected = stored_tensors(example)
    write(tmp_path / "m.gguf", example, expected)
    import_gguf(tmp_path / "m.gguf", tmp_path / "m")
    (tmp_path / "m" / "NOTICE").write_text("Of its maker.")
    result = export(tmp_path / "m", tmp_path / "out.gguf", "f32")

    tensors = {tensor.name: tensor.data for tensor in result.tensors}
    assert tensors.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(tensors[key], value, atol=2e-7, err_msg=key)
    original = metadata(gguf.GGUFReader(tmp_path / "m.gguf"))
    exported = metadata(result)
    changed = {"GGUF.tensor_count", "GGUF.kv_count", "tokenizer.ggml.scores"}
    assert {key: exported.get(key) for key in original.keys() - changed} == {
        key: original[key] for key in original.keys() - changed
    }
    # merges come in the order of the scores
    scores = dict(
        zip([piece for piece, _, _ in PIECES], exported["tokenizer.ggml.scores"], strict=True)
    )
    assert scores["bc"] > scores["ab"] > scores["▁a"] > scores["abc"] > scores["de"]
    assert exported["general.description"] == "Of its maker."
    assert (
        exported["tokenizer.ggml.add_bos_token"] is True
        and exported["tokenizer.ggml.add_eos_token"] is False
    )


@pytest.mark.parametrize(("dtype", "relative"), [("f16", 2**-11), ("bf16", 2**-8), ("q8_0", None)])
def test_smaller_types(dtype: str, relative: float | None, tmp_path: Path) -> None:
    example = EXAMPLES["gemma3"]
    expected = stored_tensors(example)
    write(tmp_path / "m.gguf", example, expected)
    import_gguf(tmp_path / "m.gguf", tmp_path / "m")
    result = export(tmp_path / "m", tmp_path / "out.gguf", dtype)

    for tensor in result.tensors:
        value, want = dequantize(tensor.data, tensor.tensor_type), expected[tensor.name]
        is_matrix = want.ndim == 2
        # rows of attn_output have 4 x 12 values, no whole blocks of 32
        has_blocks = want.shape[-1] % 32 == 0
        kind = (
            "F32"
            if not is_matrix
            else "F16"
            if dtype == "q8_0" and not has_blocks
            else dtype.upper()
        )
        assert tensor.tensor_type.name == kind, tensor.name
        # half a step of 1/127 of the block's largest value, and the rounding of its scale
        if kind == "Q8_0":
            blocks = np.abs(want).reshape(-1, 32).max(1, keepdims=True)
            error = np.abs(value - want).reshape(-1, 32)
            assert (error <= blocks / 127 * 0.51 + blocks * 2**-10).all() and error.max() > 0
        elif kind != "F32":
            np.testing.assert_allclose(value, want, rtol=relative or 2**-11, atol=1e-7)


def test_byte_level_tokenizer_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_smollm2(tmp_path / "m.gguf", monkeypatch)
    import_smollm2(tmp_path / "m.gguf", tmp_path / "m")
    exported = metadata(export(tmp_path / "m", tmp_path / "out.gguf", "f32"))
    assert (exported["tokenizer.ggml.model"], exported["tokenizer.ggml.pre"]) == ("gpt2", "smollm")
    assert (
        exported["tokenizer.ggml.tokens"] == TOKENS and exported["tokenizer.ggml.merges"] == MERGES
    )
    assert exported["tokenizer.ggml.token_type"] == [3] * 4 + [1] * (len(TOKENS) - 4)
    assert (
        exported["tokenizer.chat_template"] == TEMPLATE
        and exported["tokenizer.ggml.bos_token_id"] == 1
    )


@pytest.mark.parametrize("name", ["gpt-2", "smollm", "llama-bpe", "dbrx", "qwen2", "tekken"])
def test_every_splitting_is_found_again(name: str) -> None:
    kind = PRE_TOKENIZERS[name]
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[], ignore_merges=kind.keeps_words))
    tokenizer.pre_tokenizer = kind.build()
    assert find_name(json.loads(tokenizer.to_str())) == name


def test_llama3_positions_become_factors(tmp_path: Path) -> None:
    example = EXAMPLES["llama"]
    write(tmp_path / "m.gguf", example, stored_tensors(example))
    import_gguf(tmp_path / "m.gguf", tmp_path / "m")
    about = (tmp_path / "m" / "config.json").read_text()
    scaling = (
        '{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, '
    )
    scaling += '"original_max_position_embeddings": 8192}'
    parameters = scaling.replace("{", '{"rope_theta": 100000.0, ')
    about = about.replace('"rope_scaling": null', f'"rope_scaling": {scaling}')
    start = about.index('"rope_parameters"')
    about = (
        about[:start] + f'"rope_parameters": {parameters}' + about[about.index("}", start) + 1 :]
    )
    (tmp_path / "m" / "config.json").write_text(about)

    result = export(tmp_path / "m", tmp_path / "out.gguf", "f32")
    found = {tensor.name: tensor.data for tensor in result.tensors}["rope_freqs.weight"]
    # theta 1e5, head_dim 8: wavelengths 6.28, 112, 1987 and 35,333. Beyond 8192 all of the factor,
    # below 2048 none.
    np.testing.assert_allclose(found, [1, 1, 1, 8], rtol=1e-6)


def test_what_llama_cpp_does_not_compute(tmp_path: Path) -> None:
    config = EXAMPLES["gemma3"].config
    other_scale = config.model_copy(
        update={"options": (config.options or {}) | {"query_scalar": 20.0}}
    )
    with refused():
        to_gguf(other_scale)
    example = replace(EXAMPLES["olmo2"], config=shape("olmo2", head_dim=16))
    write(tmp_path / "m.gguf", example, stored_tensors(example))
    import_gguf(tmp_path / "m.gguf", tmp_path / "m")
    with refused():
        export(tmp_path / "m", tmp_path / "out.gguf", "f32")
    (tmp_path / "there.gguf").touch()
    with refused(where="there.gguf"):
        export(tmp_path / "m", tmp_path / "there.gguf", "f32")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "m.gguf", "there.gguf"]
