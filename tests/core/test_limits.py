"""Input that is too large, too deep or no text at all is refused with the limit, by the reader of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isojax.core import limits, registry, table_files
from isojax.core.config import EvalConfig, SweepConfig, load_config
from isojax.core.errors import InputError
from isojax.launch.planner import plan_cells
from isojax.models.hf import hf_config

DIGITS = "9" * 5000
CONFIGS = {
    "3,000 lists": ("cell: " + "[" * 3000 + "]" * 3000, "more than 64 deep"),
    "5,000 digits": (f"sweep: {{budget: {DIGITS}}}", "cannot read the config"),
    "a tag's own error": ("name: !!int x", "cannot read the config"),
    "aliases that multiply": ("a: &a [1,1,1]\n" + "".join(f"b{i}: &{'bcdefghij'[i]} [*{'abcdefghi'[i]}, "
                              f"*{'abcdefghi'[i]}, *{'abcdefghi'[i]}]\n" for i in range(9)), "not YAML .*nodes"),
    "a NUL": ('cell: {task: "jsonl:a\\0b"}', "text without NUL"),
    "a long file": ("# " + "x" * limits.MAX_YAML_BYTES, "the most are"),
    "beyond int64": ("sweep: {budget: 99999999999999999999}", "less than or equal to 1000000000000000"),
    "beyond a config": ("cell: {rl: {learning_rate: 1.0e+300}}", "less than or equal to 1000000000"),
    "layers": ("cell: {model: {layers: 1000000}}", "less than or equal to 1000"),
    "a name of 300": (f"name: {'a' * 300}", "at most 100 characters"),
    "itself": ("name: ${name}", "name a key"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONFIGS)
def test_configs(tmp_path: Path, case: str) -> None:
    text, message = CONFIGS[case]
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        load_config(str(tmp_path / "x.yaml"))


@pytest.mark.parametrize(
    "word", [f"sweep.budget={DIGITS}", "cell.data=" + "[" * 3000, "a." * 3000 + "a=1", "sweep.n=[1,-1]", "a\0b=1"]
)
def test_overrides(word: str) -> None:
    with pytest.raises(InputError, match="override"):
        load_config("quickstart", [word])


def test_grids() -> None:
    with pytest.raises(InputError, match=r"cell\.eval\.ratio = 1\.0000000001 takes .* steps .* at most 10,000"):
        EvalConfig(ratio=1.0000000001).evaluation_targets(250_000)
    assert EvalConfig(start=1, ratio=1.001).evaluation_targets(1000)[-1] == 1000
    with pytest.raises(InputError, match="make 250,000 cells, expected at most 10,000"):
        plan_cells(SweepConfig(B_p=tuple(range(1, 251)), seeds=1000, n=(1,)))


def test_lines_and_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": "' + "x" * limits.MAX_LINE_BYTES + '"}\n')
    with pytest.raises(InputError, match=r"line 2: longer than 8,388,608 bytes, the most of a line"):
        list(table_files.read_objects(path))
    monkeypatch.setattr(table_files, "MAX_DOCUMENT_BYTES", 100)
    path.write_text(json.dumps(list(range(100)), indent=1))
    with pytest.raises(InputError, match=r"more than 100 bytes, the most of a file of one JSON value"):
        table_files.read_json_object(path)


@pytest.mark.parametrize(
    "value", ["[" * 3000 + "]" * 3000, '{"a":' * 3000 + "1" + "}" * 3000, "[" * 65 + "]" * 65, DIGITS]
)
def test_json_that_is_too_deep_or_long(value: str) -> None:
    with pytest.raises(InputError, match=r"x\.jsonl, line 7: cannot be read"):
        table_files.parse_json(f'{{"a": {value}}}', Path("x.jsonl"), 7)
    assert table_files.parse_json("[" * 64 + "]" * 64, Path("x.jsonl"))


def test_columns(tmp_path: Path) -> None:
    (tmp_path / "wide.csv").write_text(",".join(map(str, range(5000))) + "\n1\n")
    with pytest.raises(InputError, match="5,000 columns, expected at most 4,096"):
        table_files.read_table(tmp_path / "wide.csv")


@pytest.mark.parametrize("name", ["../../x", "..", "a/b", "", "a..b", "a\0b", "x" * 300])
def test_plugins_are_names(name: str) -> None:
    with pytest.raises(InputError, match="no such module; expected one of"):
        registry.load("rl.losses", name, "loss", "token_loss")


@pytest.mark.parametrize("changed", [{"num_hidden_layers": 10**30}, {"vocab_size": 10**9}, {"rms_norm_eps": 1e300}])
def test_model_shapes(changed: dict[str, Any]) -> None:
    config_json = {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
        "vocab_size": 100, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    assert hf_config.common_settings(config_json)["layers"] == 2
    with pytest.raises(InputError, match=r"config\.json: .* at most"):
        hf_config.common_settings(config_json | changed)
