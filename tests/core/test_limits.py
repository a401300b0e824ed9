"""Input that is too large, too deep or no text at all is refused with the limit, by the reader of
it."""

from __future__ import annotations

import gzip
import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from isojax.core import limits, table_files
from isojax.core.columns import parse_number
from isojax.core.config import Config, EvalConfig, SweepConfig, load_config
from isojax.core.tabular import nearest_names
from isojax.core.yaml_files import config_keys, nearest_key
from isojax.launch.planner import plan_cells
from isojax.models.hf import hf_config
from isojax.rl.losses import loss
from isojax.runs.importers import verl_console
from tests.refusals import refused

DIGITS = "9" * 5000
# Each of b0 to b8 holds the one before three times, the first of them a.
ALIASES = "".join(
    f"b{i}: &{name} [*{before}, *{before}, *{before}]\n"
    for i, (before, name) in enumerate(pairwise("abcdefghij"))
)
CONFIGS = {
    "3,000 lists": "cell: " + "[" * 3000 + "]" * 3000,
    "5,000 digits": f"sweep: {{budget: {DIGITS}}}",
    "a tag's own error": "name: !!int x",
    "aliases that multiply": f"a: &a [1,1,1]\n{ALIASES}",
    "a NUL": 'cell: {task: "jsonl:a\\0b"}',
    "a long file": "# " + "x" * limits.MAX_YAML_BYTES,
    "beyond int64": "sweep: {budget: 99999999999999999999}",
    "beyond a config": "cell: {rl: {learning_rate: 1.0e+300}}",
    "layers": "cell: {model: {layers: 1000000}}",
    "a name of 300": f"name: {'a' * 300}",
    "itself": "name: ${name}",
    "references that multiply": (
        f"name: {'x' * 1000}\nrun: {{dir: \"{'${name}' * 1000}\"}}\ncell: {{task: "
        f"\"{'${run.dir}' * 1000}\"}}"
    ),
    "half of a character": 'name: "\\ud800"',
    "a long key": f"cell: {{rl: {{? {'learning_rat' * 9000} : 1}}}}",
    "workers": "run: {verifier_workers: 1000000}",
    "problems": "cell: {data: {candidates: 50000000}}",
    "a stage from infinity": "sweep: {schedules: {a: '16x2, 16x4 from 1e999'}}",
    "a stage of 5,000 digits": f"sweep: {{schedules: {{a: '16x{DIGITS}'}}}}",
    "a schedule of spaces": f"sweep: {{schedules: {{a: 'n*({' ' * 100_000}x'}}}}",
}  # fmt: skip


@pytest.mark.parametrize("case", CONFIGS)
def test_configs(tmp_path: Path, case: str) -> None:
    text = CONFIGS[case]
    (tmp_path / "x.yaml").write_text(text)
    with refused(where="x.yaml"):
        load_config(str(tmp_path / "x.yaml"))


@pytest.mark.parametrize(
    "word",
    [
        f"sweep.budget={DIGITS}",
        "cell.data=" + "[" * 3000,
        "a." * 3000 + "a=1",
        "sweep.n=[1,-1]",
        "a\0b=1",
    ],
)
def test_overrides(word: str) -> None:
    with refused(where="override"):
        load_config("quickstart", [word])


def test_grids() -> None:
    with refused(where="cell.eval.ratio"):
        EvalConfig(ratio=1.0000000001).evaluation_targets(250_000)
    assert EvalConfig(start=1, ratio=1.001).evaluation_targets(1000)[-1] == 1000
    with refused(where="sweep"):
        plan_cells(SweepConfig(B_p=tuple(range(1, 251)), seeds=1000, n=(1,)))


def test_lines_and_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": "' + "x" * limits.MAX_LINE_BYTES + '"}\n')
    with refused(where="rows.jsonl, line 2"):
        list(table_files.read_objects(path))
    monkeypatch.setattr(table_files, "MAX_DOCUMENT_BYTES", 100)
    path.write_text(json.dumps(list(range(100)), indent=1))
    with refused(where="rows.jsonl"):
        table_files.read_json_object(path)


@pytest.mark.parametrize(
    "value",
    ["[" * 3000 + "]" * 3000, '{"a":' * 3000 + "1" + "}" * 3000, "[" * 65 + "]" * 65, DIGITS],
)
def test_json_that_is_too_deep_or_long(value: str) -> None:
    with refused(where="x.jsonl, line 7"):
        table_files.parse_json(f'{{"a": {value}}}', Path("x.jsonl"), 7)
    assert table_files.parse_json("[" * 64 + "]" * 64, Path("x.jsonl"))


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.jsonl"])
@pytest.mark.parametrize("limit", ["MAX_LINES", "MAX_TEXT_BYTES"])
def test_files_of_many_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, limit: str
) -> None:
    text = '{"a": 1}\n' * 30 if name == "a.jsonl" else "a,b\n" + "1,2\n" * 60 + "\n"
    (tmp_path / name).write_bytes(
        gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
    )
    assert len(table_files.read_table(tmp_path / name).rows) in (30, 60)
    monkeypatch.setattr(limits, limit, 20)
    with refused():
        table_files.read_table(tmp_path / name)


def test_many_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_OBJECTS", 100)
    with refused(where="x.json, line 1"):
        table_files.parse_json("[" + ",".join(["[]"] * 100) + "]", Path("x.json"))


# Of a library's regular expressions and comparisons, whose time grew with the square of the length.
LONG_TEXTS = {
    "digits": lambda: parse_number("1" * 10**6 + "x"),
    "spaces": lambda: verl_console.is_step_line(" " * 10**6 + "x"),
    "numpy": lambda: verl_console._metric_values("a:" + "np.a(" * 10**5, False),
    "a wrapped line": lambda: [
        verl_console._WRAPPED.match(x * 10**5) for x in ("a/", "a/:1", ":1.1 - a/", "1 - ")
    ],
    "a key": lambda: nearest_key("cell.rl." + "learning_rat" * 10**5, config_keys(Config)),
    "columns": lambda: nearest_names("x" * 10**5, [f"{i}{'xy' * 100}" for i in range(10**5)]),
}


@pytest.mark.parametrize("case", LONG_TEXTS)
def test_long_texts_take_no_time(case: str) -> None:
    before = time.process_time()
    LONG_TEXTS[case]()
    assert time.process_time() - before < 3.0


def test_columns(tmp_path: Path) -> None:
    (tmp_path / "wide.csv").write_text(",".join(map(str, range(5000))) + "\n1\n")
    with refused(where="wide.csv, line 1"):
        table_files.read_table(tmp_path / "wide.csv")


@pytest.mark.parametrize("name", ["../../x", "..", "a/b", "", "a..b", "a\0b", "x" * 300])
def test_plugins_are_names(name: str) -> None:
    with refused(where="losses plug-in"):
        loss.load(name)


@pytest.mark.parametrize(
    "changed", [{"num_hidden_layers": 10**30}, {"vocab_size": 10**9}, {"rms_norm_eps": 1e300}]
)
def test_model_shapes(changed: dict[str, Any]) -> None:
    config_json = {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 100, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    assert hf_config.common_settings(config_json)["layers"] == 2
    with refused(where="config.json"):
        hf_config.common_settings(config_json | changed)
