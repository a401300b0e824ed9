"""The family that docs/extending.md shows, as its reader would have it: a file beside the config."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from isojax.core import registry
from isojax.core.config import ModelConfig
from isojax.core.config.model import LoraConfig
from isojax.core.errors import InputError
from isojax.models.hf import hf_export, hf_load
from isojax.models.transformer import Decoder
from tests.device import mesh
from tests.models.agreement import differences
from tests.models.test_families import MOST, REFERENCES

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
FOLDER = REFERENCES / "phi3"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelConfig:
    code = re.search(r"```python\n# phi3\.py\n(.*?)```", PAGE.read_text(), re.S)
    assert code
    (tmp_path / "phi3.py").write_text(code[1])
    monkeypatch.chdir(tmp_path)
    registry.set_plugin_folders(())
    return hf_load.resolve_model(ModelConfig(path=str(FOLDER), family="phi3"))


@pytest.mark.parametrize("axes", ["auto", "data=2,fsdp=2,tensor=2"])
def test_its_logits_equal_transformers(config: ModelConfig, axes: str) -> None:
    assert config.options == {"window": 8}
    decoder, batch = Decoder(config), np.load(FOLDER / "batch.npz")
    params = hf_load.load(FOLDER, config, decoder, mesh(axes))
    assert axes == "auto" or not all(x.sharding.is_fully_replicated for x in jax.tree.leaves(params))
    for way, difference in differences(decoder, params, batch["tokens"], batch["lengths"], batch["logits"]).items():
        assert np.abs(difference).max() < MOST, way


def test_it_is_exported_as_it_was_loaded(config: ModelConfig, tmp_path: Path) -> None:
    params = hf_load.load(FOLDER, config, Decoder(config), mesh())
    hf_export.save(params, config, FOLDER, tmp_path / "trained")
    before, after = (load_file(folder / "model.safetensors") for folder in (FOLDER, tmp_path / "trained"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        np.testing.assert_array_equal(after[name], tensor, err_msg=name)


def test_lora_adapts_the_matrices_that_it_has(config: ModelConfig) -> None:
    adapted = Decoder(config.model_copy(update={"lora": LoraConfig(rank=2)})).shapes()["blocks"]
    assert {name for name in adapted if name.endswith("_lora_a")} == {"out_lora_a", "down_lora_a"}
    with pytest.raises(InputError, match=r"cell\.model\.lora\.targets = query: a layer of this family has none"):
        Decoder(config.model_copy(update={"lora": LoraConfig(targets=("query",))}))


def test_there_is_no_config_json_of_what_does_not_write_one(config: ModelConfig) -> None:
    with pytest.raises(InputError, match="the family phi3 has no `config_json`"):
        hf_export.make_config_json(config, 64, "float32")
