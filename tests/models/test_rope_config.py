"""Rotary settings of config.json in every spelling: theta and scaling as transformers computes
them, or a refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from isojax.core.config import ModelConfig
from isojax.models.hf import hf_load
from tests.models.test_hf_load import FAMILIES, L, config_json
from tests.refusals import refused

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
OLD_LLAMA3 = {"type" if key == "rope_type" else key: value for key, value in LLAMA3.items()}
DEFAULT = {"rope_type": "default", "rope_theta": 5e5}
FULL, SLIDING = "full_attention", "sliding_attention"

# What stands in config.json -> theta, and whether the positions are stretched.
READ: dict[str, tuple[dict[str, Any], float, bool]] = {
    "transformers 4": ({"rope_theta": 5e5}, 5e5, False),
    "transformers 4, null": ({"rope_theta": 5e5, "rope_scaling": None}, 5e5, False),
    "transformers 4, stretched": ({"rope_theta": 5e5, "rope_scaling": LLAMA3}, 5e5, True),
    "transformers 4, its older key": ({"rope_theta": 5e5, "rope_scaling": OLD_LLAMA3}, 5e5, True),
    "both keys of the type": ({"rope_theta": 5e5, "rope_scaling": OLD_LLAMA3 | LLAMA3}, 5e5, True),
    "transformers 5": ({"rope_parameters": DEFAULT}, 5e5, False),
    "transformers 5, stretched": ({"rope_parameters": LLAMA3 | {"rope_theta": 5e5}}, 5e5, True),
    "transformers 5 without a type": ({"rope_parameters": {"rope_theta": 5e5}}, 5e5, False),
    "theta at the top alone": ({"rope_theta": 5e5, "rope_parameters": {"rope_type": "default"}},
        5e5, False),
    "theta in rope_scaling": ({"rope_scaling": LLAMA3 | {"rope_theta": 5e5}}, 5e5, True),
    "both alike": (
        {"rope_theta": 5e5, "rope_scaling": LLAMA3,
            "rope_parameters": LLAMA3 | {"rope_theta": 5e5}}, 5e5, True,
    ),
    "resaved by transformers 4": ({"rope_theta": 1e4, "rope_scaling": None,
            "rope_parameters": DEFAULT}, 5e5, False),
    "none": ({}, 1e4, False),
    "an empty section": ({"rope_scaling": {}, "rope_theta": 5e5}, 5e5, False),
    "a factor of 1 under default": ({"rope_parameters": DEFAULT | {"factor": 1.0}}, 5e5, False),
    "nulls": ({"rope_parameters": DEFAULT | {"factor": None, "beta_fast": None}}, 5e5, False),
    "theta as a whole number": ({"rope_theta": 500000}, 5e5, False),
    "not interleaved": ({"rope_theta": 5e5, "rope_interleaved": False}, 5e5, False),
    "all layers rotated": ({"rope_theta": 5e5, "no_rope_layers": [1] * L}, 5e5, False),
}  # fmt: skip

# By type of layer, which transformers reads only where layer_types is set.
READ_BY_TYPE: dict[str, tuple[dict[str, Any], float, bool]] = {
    "one type": ({"rope_parameters": {FULL: DEFAULT}}, 5e5, False),
    "one type, stretched": ({"rope_parameters": {FULL: LLAMA3 | {"rope_theta": 5e5}}}, 5e5, True),
    "another type is null": ({"rope_parameters": {FULL: DEFAULT, SLIDING: None}}, 5e5, False),
    "types alike": ({"rope_parameters": {FULL: DEFAULT, SLIDING: dict(DEFAULT)}}, 5e5, False),
    "no layer of the other type": (
        {"rope_parameters": {FULL: DEFAULT, SLIDING: {"rope_theta": 1e4}},
            "layer_types": [FULL] * L}, 5e5, False,
    ),
    "theta beside the types": ({"rope_parameters": {FULL: {"rope_type": "default"},
                "rope_theta": 5e5}}, 5e5, False),
}  # fmt: skip

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "theta in two sections": (
        {"rope_scaling": LLAMA3 | {"rope_theta": 1e6},
            "rope_parameters": LLAMA3 | {"rope_theta": 5e5}},
        "rope_theta = 1,000,000 in rope_scaling and 500,000 in rope_parameters",
    ),
    "theta at the top and in parameters": (
        {"rope_theta": 1e6, "rope_parameters": DEFAULT},
        "500,000 in rope_parameters and 1,000,000 at the top",
    ),
    "a lost theta in parameters": (
        {"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        "rope_theta = 10,000 in rope_parameters and 500,000 at the top",
    ),
    "theta of transformers 4 and of parameters": (
        {"rope_theta": 1e4, "rope_scaling": LLAMA3,
            "rope_parameters": LLAMA3 | {"rope_theta": 5e5}},
        "10,000 at the top",
    ),
    "stretched in one section": (
        {"rope_scaling": {"rope_type": "default"}, "rope_parameters": LLAMA3 | {"rope_theta": 5e5}},
        "Programs differ in which one they read",
    ),
    "two factors": (
        {"rope_theta": 5e5, "rope_scaling": LLAMA3 | {"factor": 32.0}, "rope_parameters": LLAMA3},
        "'factor': 32.0",
    ),
    "two types of one section": ({"rope_scaling": {"type": "linear", "rope_type": "default"}},
        "type = 'linear' and"),
    "types of layers differ": (
        {"rope_parameters": {FULL: DEFAULT, SLIDING: {"rope_theta": 1e4}}},
        "differs between types of layers",
    ),
    "theta beside other types": (
        {"rope_parameters": {FULL: DEFAULT, "rope_theta": 1e6}}, "{'rope_theta': 1000000.0} beside",
    ),
    "a factor without a type": ({"rope_theta": 5e5, "rope_scaling": {"factor": 8.0}},
        "has factor = 8.0"),
    "a type under another key": ({"rope_scaling": {"name": "dynamic", "factor": 2.0}},
        "name = 'dynamic'"),
    "keys of another type": ({"rope_parameters": DEFAULT | {"mrope_section": [1, 1, 1]}},
        "mrope_section"),
    "original length twice": (
        {"rope_theta": 5e5, "rope_scaling": LLAMA3, "original_max_position_embeddings": 4096},
        "4096 at the top",
    ),
    "theta as text": ({"rope_theta": "500000.0"}, "rope_theta = '500000.0'; expected a number"),
    "theta null": ({"rope_theta": None}, "rope_theta = None; expected a number"),
    "yarn": ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_type = 'yarn'"),
    "linear": ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type = 'linear'"),
    "mrope": ({"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}},
        "rope_type = 'mrope'"),
    "interleaved": ({"rope_interleaved": True}, "rope_interleaved = True"),
    "layers without positions": ({"no_rope_layers": [1, 0, 1]}, "no_rope_layers = [1, 0, 1]"),
    "a sliding layer": ({"layer_types": [FULL, SLIDING, FULL]},
        "layer_types has sliding_attention"),
    "a layer too few": ({"layer_types": [FULL] * (L - 1)},
        "2 layer_types, and num_hidden_layers = 3"),
}  # fmt: skip


def write(folder: Path, family: str, settings: dict[str, Any]) -> Path:
    content = config_json(family)
    del content["rope_theta"]
    (folder / "config.json").write_text(json.dumps(content | settings))
    return folder


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", READ)
def test_theta_and_scaling_are_those_of_transformers(
    tmp_path: Path, family: str, case: str
) -> None:
    settings, theta, stretched = READ[case]
    model = hf_load.resolve_model(ModelConfig(path=str(write(tmp_path, family, settings))))
    assert model.rope_base == theta
    assert (model.rope_scaling is not None) == stretched

    reference = AutoConfig.from_pretrained(tmp_path).rope_parameters
    assert reference["rope_theta"] == theta and (reference["rope_type"] == "llama3") == stretched
    if model.rope_scaling is not None:
        assert {"rope_type": "llama3", **model.rope_scaling.model_dump()} == LLAMA3
        assert reference | LLAMA3 == reference


def test_theta_of_parameters_stands_where_the_scaling_has_none(tmp_path: Path) -> None:
    """transformers takes the scaling alone, and 10,000: the model was trained with what the other
    section says."""
    settings = {"rope_scaling": LLAMA3, "rope_parameters": LLAMA3 | {"rope_theta": 5e5}}
    model = hf_load.resolve_model(ModelConfig(path=str(write(tmp_path, "llama", settings))))
    assert model.rope_base == 5e5 and model.rope_scaling is not None


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", READ_BY_TYPE)
def test_settings_by_type_of_layer(tmp_path: Path, family: str, case: str) -> None:
    settings, theta, stretched = READ_BY_TYPE[case]
    model = hf_load.resolve_model(ModelConfig(path=str(write(tmp_path, family, settings))))
    assert model.rope_base == theta
    assert (model.rope_scaling is not None) == stretched

    declared = {"layer_types": [FULL] * L} | settings
    reference = AutoConfig.from_pretrained(write(tmp_path, family, declared)).rope_parameters[FULL]
    if case != "theta beside the types":  # which transformers does not look at
        assert (
            reference["rope_theta"] == theta and (reference["rope_type"] == "llama3") == stretched
        )


@pytest.mark.parametrize("case", REFUSED)
def test_what_contradicts_itself_is_refused_with_both_values(tmp_path: Path, case: str) -> None:
    settings, words = REFUSED[case]
    with refused(where="config.json") as e:
        hf_load.resolve_model(ModelConfig(path=str(write(tmp_path, "llama", settings))))
    assert words in str(e.value) and str(tmp_path / "config.json") in str(e.value)
