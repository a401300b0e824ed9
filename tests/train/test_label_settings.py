"""Labels made with other settings than those of a run are told apart, by name and by both
values."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from isojax.core.config import (
    CellConfig,
    DataConfig,
    ModelConfig,
    PromptConfig,
    SamplingConfig,
    VerifierConfig,
)
from isojax.train.label_settings import (
    describe_label_settings,
    engine_difference,
    label_differences,
    read_label_settings,
    warn_of_other_labels,
)
from isojax.train.verifier_copies import check_verifier_files, keep_verifier_files
from tests.refusals import refused

REWARD = "def f(completions, **_):\n    return [1.0]\n"


def write_model(folder: Path, weight: float = 1.0) -> ModelConfig:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")
    save_file({"w": np.full(3, weight, np.float32)}, folder / "model.safetensors")
    return ModelConfig(path=str(folder))


def write_labels(folder: Path, metadata: dict[str, Any]) -> str:
    """The metadata of a data set; the task that reads it."""
    folder.mkdir(exist_ok=True)
    (folder / "metadata.json").write_text(json.dumps(metadata))
    return f"tfds:{folder}"


def make_cell(folder: Path, **sections: Any) -> CellConfig:
    defaults = {
        "model": write_model(folder / "model"),
        "prompt": PromptConfig(template="Q: {prompt}"),
        "sampling": SamplingConfig(prompt_length=32, response_length=8),
        "verifier": VerifierConfig(use="exact"),
    }
    return CellConfig(**(defaults | sections))


def test_the_same_settings_differ_in_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = make_cell(tmp_path)
    task = write_labels(tmp_path / "splits", describe_label_settings(cell))
    stored = read_label_settings(tmp_path / "splits")
    longer_prompts = SamplingConfig(prompt_length=64, response_length=8)
    assert (
        label_differences(stored, cell)
        == label_differences(stored, make_cell(tmp_path, sampling=longer_prompts))
        == []
    )
    warn_of_other_labels(make_cell(tmp_path, task=task))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("section", "value", "difference"),
    [
        (
            "prompt",
            PromptConfig(template="{prompt}="),
            "cell.prompt.template = 'Q: {prompt}' (now '{prompt}=')",
        ),
        (
            "prompt",
            PromptConfig(template="Q: {prompt}", stop=("\n",)),
            r"cell.prompt.stop = [] (now ['\n'])",
        ),
        (
            "sampling",
            SamplingConfig(prompt_length=32, response_length=8, temperature=0.6),
            "cell.sampling.temperature = 1.0 (now 0.6)",
        ),
        (
            "sampling",
            SamplingConfig(prompt_length=32, response_length=99),
            "cell.sampling.response_length = 8 (now 99)",
        ),
        ("verifier", VerifierConfig(use="integer"), "cell.verifier.use = 'exact' (now 'integer')"),
    ],
)
def test_what_differs_is_named(
    tmp_path: Path, section: str, value: Any, difference: str, capsys: pytest.CaptureFixture[str]
) -> None:
    task = write_labels(tmp_path / "splits", describe_label_settings(make_cell(tmp_path)))
    run = make_cell(tmp_path, task=task, **{section: value})
    assert label_differences(read_label_settings(tmp_path / "splits"), run) == [difference]
    warn_of_other_labels(run)
    message = capsys.readouterr().err
    assert (
        message.startswith("warning: ") and difference in message and "isojax difficulty" in message
    )


def test_other_weights_and_another_tokenizer(tmp_path: Path) -> None:
    cell = make_cell(tmp_path)
    stored = describe_label_settings(cell)
    write_model(tmp_path / "model", weight=2.0)
    assert label_differences(stored, cell) == [
        f"other weights, those of {cell.model.path} (now {cell.model.path})"
    ]
    write_model(tmp_path / "model")
    (tmp_path / "model" / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    assert label_differences(stored, cell) == [
        f"another tokenizer or chat template than that in {cell.model.path}"
    ]


def test_the_labels_of_an_earlier_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They have the model's path and the sampling alone."""
    cell = make_cell(tmp_path)
    stored = {
        "model": cell.model.path,
        "task": "jsonl:x",
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": 0,
        "cell": "0",
    }
    task = write_labels(tmp_path / "splits", stored)
    warn_of_other_labels(make_cell(tmp_path, task=task))
    assert "does not record the prompt and the verifier" in capsys.readouterr().err
    warn_of_other_labels(make_cell(tmp_path, task=task, model=write_model(tmp_path / "other")))
    # Long paths are shown without their middles.
    difference = re.compile(r"cell\.model\.path = '[^']*/model' \(now '[^']*/other'\)")
    assert difference.search(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("split", "attempts", "is_used"),
    [("", 16, True), ("#hard_train", 0, True), ("#all", 0, False), ("", 0, False)],
)
def test_labels_that_choose_nothing_are_not_compared(
    tmp_path: Path, split: str, attempts: int, is_used: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    task = write_labels(tmp_path / "splits", describe_label_settings(make_cell(tmp_path)))
    data = DataConfig(attempts=attempts)
    warn_of_other_labels(
        make_cell(tmp_path, task=task + split, data=data, verifier=VerifierConfig(use="math"))
    )
    assert bool(capsys.readouterr().err) is is_used


def test_a_data_set_of_another_origin_says_nothing_of_labels(tmp_path: Path) -> None:
    task = write_labels(tmp_path / "splits", {"source": "a hub"})
    assert read_label_settings(tmp_path / "splits") == read_label_settings(tmp_path / "none") == {}
    warn_of_other_labels(make_cell(tmp_path, task=task, verifier=VerifierConfig(use="math")))


def test_a_changed_reward_file_makes_other_labels(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(REWARD)
    cell = make_cell(tmp_path, verifier=VerifierConfig(use=f"function:{tmp_path}/rewards.py:f"))
    stored = describe_label_settings(cell)
    assert label_differences(stored, cell) == []
    (tmp_path / "rewards.py").write_text(REWARD.replace("1.0", "0.5"))
    assert label_differences(stored, cell) == [
        "another rewards.py: this file of the verifier has changed"
    ]


def test_a_resumed_sweep_refuses_another_reward_file(tmp_path: Path) -> None:
    file, base = tmp_path / "rewards.py", tmp_path / "base"
    file.write_text(REWARD)
    use = {"accuracy": "math", "format": f"function:{file}:f"}
    check_verifier_files(base, use)  # a sweep that kept none
    keep_verifier_files(base, use)
    check_verifier_files(base, use)

    file.write_text(REWARD.replace("1.0", "0.5"))
    with refused() as e:
        check_verifier_files(base, use)
    assert f"cell.verifier.use: {file} has changed since this sweep began, first in line 2" in str(
        e.value
    )
    (copy,) = (base / "verifier_files").iterdir()
    assert f"cp {copy} {file}" in str(e.value)
    file.write_bytes(copy.read_bytes())
    check_verifier_files(base, use)


def test_line_ends_and_added_lines_are_changes(tmp_path: Path) -> None:
    file, base = tmp_path / "rewards.py", tmp_path / "base"
    use = f"function:{file}:f"
    file.write_text(REWARD)
    keep_verifier_files(base, use)
    file.write_text("LIMIT = 3\n" + REWARD)
    with refused():
        check_verifier_files(base, use)
    file.write_bytes(REWARD.replace("\n", "\r\n").encode())
    with refused():
        check_verifier_files(base, use)


def test_labels_by_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of which a run is told; and labels of another server, or of none, are others."""
    cell, engine = make_cell(tmp_path), {"server": "vllm", "model": "the-model"}
    task = write_labels(tmp_path / "splits", describe_label_settings(cell, engine))
    stored = read_label_settings(tmp_path / "splits")
    assert label_differences(stored, cell) == engine_difference(stored, engine) == []
    is_now = "a server of vllm that serves 'the-model' (now isojax's own sampler)"
    assert engine_difference(stored, None) == [is_now]
    assert engine_difference(stored, {"server": "vllm", "model": "other"}) != []
    warn_of_other_labels(make_cell(tmp_path, task=f"{task}#hard"))
    assert (
        "its labels were sampled by a server of vllm that serves 'the-model'"
        in capsys.readouterr().err
    )

    (tmp_path / "model" / "model.safetensors").unlink()  # only the server has weights
    assert "checkpoint" not in describe_label_settings(cell, engine)
