"""Folders in which two files, or a file and config.json, say different things: the right value, or
a refusal that names both. Through what a user's config reaches: resolve_model, check_weights and
load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from isojax.core.config import ModelConfig
from isojax.models.hf import hf_load
from tests.models.test_hf_load import V, checkpoint, config_json, edit_config, expected, flat, load
from tests.refusals import refused

HEAD, EMBED, NORM = "lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"
INDEX = "model.safetensors.index.json"


def check(folder: Path) -> ModelConfig:
    """What a launch does before any work."""
    model = hf_load.resolve_model(ModelConfig(path=str(folder)))
    hf_load.check_weights(model)
    return model


def refusal(folder: Path) -> str:
    with refused() as e:
        check(folder)
    assert str(folder) in str(e.value)
    return str(e.value)


def write_shards(
    folder: Path, *shards: dict[str, np.ndarray], total: int | None = None
) -> list[str]:
    names = [
        f"model-{i + 1:05}-of-{total or len(shards):05}.safetensors" for i in range(len(shards))
    ]
    for name, tensors in zip(names, shards, strict=True):
        save_file(tensors, folder / name)
    return names


def halves(stored: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    names = list(stored)
    return {n: stored[n] for n in names[::2]}, {n: stored[n] for n in names[1::2]}


def write_index(folder: Path, weight_map: dict[str, str]) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def assert_read(folder: Path, stored: dict[str, np.ndarray], tied: bool = False) -> None:
    params = flat(load(folder))
    for name, value in expected(stored, "llama", tied).items():
        np.testing.assert_array_equal(params[name], value, err_msg=name)


@pytest.mark.parametrize("right", [0, 1])
def test_the_index_says_which_of_two_copies_is_read(
    tmp_path: Path, right: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of two shards holds the norm; weight_map names the first or the second."""
    stored = checkpoint(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    shards = halves(stored)
    norms = [stored[NORM], stored[NORM] + 1]
    for shard, norm in zip(shards, norms, strict=True):
        shard[NORM] = norm
    names = write_shards(tmp_path, *shards)
    weight_map = {n: names[i] for i, shard in enumerate(shards) for n in shard}
    write_index(tmp_path, weight_map | {NORM: names[right]})

    check(tmp_path)
    assert_read(tmp_path, stored | {NORM: norms[right]})
    said = capsys.readouterr().err
    assert f"{NORM} is read from {names[right]}" in said and f"not from {names[1 - right]}" in said


def test_without_an_index_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    stored = checkpoint(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    first, second = halves(stored)
    names = write_shards(tmp_path, first, second)
    check(tmp_path)
    assert_read(tmp_path, stored)

    save_file(second | {next(iter(first)): first[next(iter(first))]}, tmp_path / names[1])
    error = refusal(tmp_path)
    assert all(name in error for name in names) and next(iter(first)) in error and INDEX in error


def test_shards_of_two_saves_without_an_index_are_refused(tmp_path: Path) -> None:
    stored = checkpoint(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    write_shards(tmp_path, *halves(stored))
    write_shards(tmp_path, {NORM: stored[NORM]}, total=3)
    error = refusal(tmp_path)
    assert (
        "2 of model-*-of-00002.safetensors and 1 of model-*-of-00003.safetensors" in error
        and "Remove" in error
    )


def test_stale_shards_beside_an_index_are_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = checkpoint(tmp_path, files=2)
    write_shards(tmp_path, {NORM: stored[NORM] + 1}, total=3)
    check(tmp_path)
    assert_read(tmp_path, stored)
    assert "model-00001-of-00003.safetensors is not read" in capsys.readouterr().err


def test_one_of_two_shards_without_an_index_is_refused(tmp_path: Path) -> None:
    stored = checkpoint(tmp_path, tied=True)
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00002.safetensors")
    assert "1 of the 2 files model-*-of-00002.safetensors" in refusal(tmp_path)
    (tmp_path / "model-00001-of-00002.safetensors").rename(tmp_path / "weights.safetensors")
    assert_read(tmp_path, stored, tied=True)


def test_one_file_beside_an_index_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = checkpoint(tmp_path, files=2)
    save_file({name: value + 1 for name, value in stored.items()}, tmp_path / "model.safetensors")
    error = refusal(tmp_path)
    assert (
        "weights twice" in error and INDEX in error and "model-00001-of-00002.safetensors" in error
    )

    for shard in tmp_path.glob("model-*.safetensors"):
        shard.unlink()
    check(tmp_path)
    assert_read(tmp_path, {name: value + 1 for name, value in stored.items()})
    assert (
        f"model.safetensors is read; {INDEX} names model-00001-of-00002.safetensors"
        in capsys.readouterr().err
    )


def test_one_file_beside_shards_without_an_index(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = checkpoint(tmp_path)
    write_shards(tmp_path, {NORM: stored[NORM] + 1}, {EMBED: stored[EMBED] + 1})
    check(tmp_path)
    assert_read(tmp_path, stored)
    assert (
        "model-00001-of-00002.safetensors, model-00002-of-00002.safetensors beside it"
        in capsys.readouterr().err
    )


def test_an_index_that_is_wrong(tmp_path: Path) -> None:
    stored = checkpoint(tmp_path, files=2)
    good = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    first, second = sorted(set(good.values()))
    place, other = (first, second) if good[NORM] == second else (second, first)

    write_index(tmp_path, good | {NORM: place})
    assert f"weight_map puts {NORM} in {place}, which lacks it; {other} has it" in refusal(tmp_path)

    write_index(tmp_path, good | {NORM: "model-00009-of-00009.safetensors"})
    assert "names model-00009-of-00009.safetensors, which is not there" in refusal(tmp_path)

    write_index(tmp_path, {name: f"part-{i}.safetensors" for i, name in enumerate(stored)})
    error = refusal(tmp_path)
    assert (
        "part-0.safetensors" in error
        and f"if {first}, {second} are the whole model, remove {INDEX}" in error
    )

    # weight_map may name tensors that no file holds, as a tied head that safetensors left out
    edit_config(tmp_path, tied=True)
    shard = dict(load_file(tmp_path / good[HEAD]))
    del shard[HEAD]
    save_file(shard, tmp_path / good[HEAD])
    write_index(tmp_path, good)
    assert_read(tmp_path, stored, tied=True)
    edit_config(tmp_path, tied=False)
    assert (
        f"{HEAD} is missing, expected shape [16, 8], though {INDEX} puts it in {good[HEAD]}"
        in refusal(tmp_path)
    )


def test_a_tensor_that_the_index_forgets_is_read(tmp_path: Path) -> None:
    stored = checkpoint(tmp_path, files=2)
    weight_map = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    del weight_map[NORM]
    write_index(tmp_path, weight_map)
    assert_read(tmp_path, stored)


def test_copies_in_other_formats_are_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = checkpoint(tmp_path, files=2)
    save_file({"tok_embeddings.weight": stored[EMBED]}, tmp_path / "consolidated.safetensors")
    (tmp_path / "original").mkdir()
    for name in ("model.gguf", "pytorch_model.bin", "original/consolidated.00.pth"):
        (tmp_path / name).write_bytes(b"another copy")
    check(tmp_path)
    assert_read(tmp_path, stored)
    assert capsys.readouterr().err == ""


def tied_with_head(folder: Path, head: Any) -> dict[str, np.ndarray]:
    stored = checkpoint(folder, tied=True)
    save_file(stored | {HEAD: head(stored[EMBED])}, folder / "model.safetensors")
    return stored


def test_a_tied_models_equal_head_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = tied_with_head(tmp_path, np.copy)
    assert check(tmp_path).tied
    assert_read(tmp_path, stored, tied=True)
    assert capsys.readouterr().err == ""


def test_a_tied_models_other_head_is_refused_with_both_remedies(tmp_path: Path) -> None:
    """Only one value differs: in the last row, the last column."""

    def last_changed(embedding: np.ndarray) -> np.ndarray:
        head = embedding.copy()
        head[-1, -1] += 0.5
        return head

    stored = tied_with_head(tmp_path, last_changed)
    error = refusal(tmp_path)
    assert (
        f"at row {V - 1}" in error
        and "tie_word_embeddings to false" in error
        and f"remove {HEAD}" in error
    )
    with refused():
        load(tmp_path)

    edit_config(tmp_path, tied=False)  # the first remedy
    assert_read(tmp_path, stored | {HEAD: last_changed(stored[EMBED])})
    edit_config(tmp_path, tied=True)  # and the second
    save_file(stored, tmp_path / "model.safetensors")
    assert_read(tmp_path, stored, tied=True)


def test_a_tied_model_whose_embedding_is_stored_as_the_head(tmp_path: Path) -> None:
    """safetensors keeps one of two tensors that share memory, by name."""
    stored = checkpoint(tmp_path, tied=True)
    renamed = {HEAD if name == EMBED else name: value for name, value in stored.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    check(tmp_path)
    assert_read(tmp_path, stored, tied=True)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_an_absent_flag_is_no_tie_in_any_family(tmp_path: Path, family: str) -> None:
    """As transformers' LlamaConfig, Qwen2Config and Qwen3Config have it."""
    checkpoint(tmp_path, family)
    content = config_json(family)
    del content["tie_word_embeddings"]
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert not check(tmp_path).tied

    stored = dict(load_file(tmp_path / "model.safetensors"))
    del stored[HEAD]
    save_file(stored, tmp_path / "model.safetensors")
    assert "set tie_word_embeddings to true in config.json" in refusal(tmp_path)


def test_layers_beyond_config_json_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(tmp_path)
    edit_config(tmp_path, num_hidden_layers=2)
    check(tmp_path)
    assert "the files hold 3 layers, and isojax reads the first 2" in capsys.readouterr().err
    edit_config(tmp_path, num_hidden_layers=4)
    assert "The files hold 3 layers, and config.json says num_hidden_layers = 4" in refusal(
        tmp_path
    )


@pytest.mark.parametrize(
    ("changes", "fitting"),
    [
        ({"vocab_size": V + 4}, "vocab_size = 16 instead of 20"),
        ({"head_dim": 12}, "head_dim = 6 instead of 12"),
        ({"num_key_value_heads": 4}, "num_key_value_heads = 2 instead of 4"),
        ({"intermediate_size": 12}, "intermediate_size = 10 instead of 12"),
    ],
)
def test_shapes_say_which_key_of_config_json_is_wrong(
    tmp_path: Path, changes: dict[str, int], fitting: str
) -> None:
    checkpoint(tmp_path)
    edit_config(tmp_path, **changes)
    assert f"The shapes fit {fitting}: correct config.json" in refusal(tmp_path)


def test_a_model_type_of_another_family_is_refused_or_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(tmp_path)
    edit_config(tmp_path, model_type="qwen2")
    error = refusal(tmp_path)
    assert "architectures = ['LlamaForCausalLM'], and model_type = 'qwen2'" in error

    edit_config(tmp_path, model_type="phi")
    assert check(tmp_path).family == "llama"
    assert "model_type = 'phi'; transformers goes by model_type" in capsys.readouterr().err


def test_an_adapter_beside_a_whole_model_is_not_applied_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = checkpoint(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    save_file(
        {"base_model.model.lm_head.lora_A.weight": np.zeros((2, 8))},
        tmp_path / "adapter_model.safetensors",
    )
    check(tmp_path)
    assert_read(tmp_path, stored)
    assert "adapter_config.json is not applied" in capsys.readouterr().err


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", [NORM, "model.layers.1.mlp.down_proj.weight", EMBED])
def test_values_that_are_no_numbers_are_counted_by_tensor_and_file(
    tmp_path: Path, name: str, value: float
) -> None:
    stored = checkpoint(tmp_path, files=2)
    file = json.loads((tmp_path / INDEX).read_text())["weight_map"][name]
    shard = dict(load_file(tmp_path / file))
    shard[name].reshape(-1)[[0, 3]] = value
    save_file(shard, tmp_path / file)
    with refused() as e:
        load(tmp_path, "fsdp=2,tensor=2")
    counts = "2 NaN and 0 infinite" if np.isnan(value) else "0 NaN and 2 infinite"
    assert f"{tmp_path / file}: {name} holds {counts} values of {stored[name].size}" in str(e.value)


RENAMED_FAMILY = """
from dataclasses import replace
from isojax.models.architecture import llama_architecture
from isojax.models.families import family
from isojax.models.families.llama import settings

@family(settings=settings)
def describe(config, vocab):
    return replace(llama_architecture(config, vocab), renamed={"embed_tokens": "wte"})
"""


def test_a_family_of_other_names_is_checked_by_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What isojax knows of published names says nothing about a fork's."""
    stored = checkpoint(tmp_path / "model", tied=True)
    renamed = {
        "model.wte.weight" if name == EMBED else name: value for name, value in stored.items()
    }
    save_file(renamed | {HEAD: stored[EMBED] + 1}, tmp_path / "model" / "model.safetensors")
    (tmp_path / "renamed_family.py").write_text(RENAMED_FAMILY)
    monkeypatch.chdir(tmp_path)

    hf_load.check_weights(hf_load.resolve_model(ModelConfig(path="model", family="renamed_family")))
    edit_config(tmp_path / "model", tied=True, vocab_size=V + 4)
    with refused(where="model"):
        hf_load.check_weights(
            hf_load.resolve_model(ModelConfig(path="model", family="renamed_family"))
        )
