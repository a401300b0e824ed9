"""What a text task must state, and the values that its refusal names: they can be pasted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from isojax.core.config import CellConfig, DataConfig, ModelConfig, load_config
from isojax.core.errors import InputError
from isojax.core.nouns import Problem
from isojax.tasks.problem_selection import LEARNING_RATE, LENGTHS, parameter_count, require_settings
from isojax.tasks.problem_sources import InMemorySource
from isojax.tasks.task import TextTask
from tests.tasks.tokenizer_folders import byte_level

LLAMA_8B = {"layers": 32, "width": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "mlp": 14336}
REQUIRED = (*LENGTHS, LEARNING_RATE)


def make_task(folder: Path, prompts: list[str], context: int | None) -> tuple[CellConfig, TextTask]:
    byte_level(folder)
    config_json = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": context}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config_json.items() if v is not None}))
    cell = CellConfig(task="mine", model=ModelConfig(path=str(folder), tied=True, **LLAMA_8B))
    problems = [Problem(i, prompt, "") for i, prompt in enumerate(prompts)]
    return cell, TextTask(InMemorySource(problems), cell)


def suggestions(cell: CellConfig, task: TextTask, *required: str) -> dict[str, str]:
    with pytest.raises(InputError, match=r"must be set for cell\.task = mine") as refusal:
        require_settings(cell, task, *required)
    return dict(re.findall(r"(cell\.\S+)=(\S+)", str(refusal.value)))


def test_values_come_from_prompts_context_and_size(tmp_path: Path) -> None:
    """Each prompt's "." is a token of its own: 199 of at most 20 tokens and one of 60, so 99% are within 20."""
    cell, task = make_task(tmp_path, ["." * (1 + i % 20) for i in range(199)] + ["." * 60], context=4096)
    assert sorted(task.prompt_lengths(task.problems(200, np.random.default_rng(0))))[-2:] == [20, 60]
    named = suggestions(cell, task, *REQUIRED)
    assert named == {LENGTHS[0]: "32", LENGTHS[1]: "512", LEARNING_RATE: "1e-06"}  # 20 is rounded up to 2 x 16
    config = load_config("smollm2_cpu", [f"{key}={value}" for key, value in named.items()])  # as pasted
    assert config.cell.sampling.prompt_length == 32 and config.cell.rl.learning_rate == 1e-6
    require_settings(config.cell, task, *REQUIRED)


def test_what_is_set_is_neither_required_nor_named(tmp_path: Path) -> None:
    cell, task = make_task(tmp_path, ["." * 8], context=None)
    cell = CellConfig.model_validate({**cell.model_dump(exclude_unset=True), "sampling": {"prompt_length": 9}})
    assert set(suggestions(cell, task, *LENGTHS)) == {LENGTHS[1], LEARNING_RATE}
    cell = CellConfig.model_validate({**cell.model_dump(exclude_unset=True), "rl": {"learning_rate": 1e-4}})
    assert suggestions(cell, task, *LENGTHS) == {LENGTHS[1]: "512"}
    require_settings(cell, task, LEARNING_RATE)


def test_both_lengths_are_within_a_short_context(tmp_path: Path) -> None:
    cell, task = make_task(tmp_path, ["." * 90] * 5, context=128)
    named = suggestions(cell.model_copy(update={"data": DataConfig(candidates=3)}), task, *LENGTHS)
    assert (named[LENGTHS[0]], named[LENGTHS[1]]) == ("64", "64")


def test_the_rate_falls_with_the_root_of_the_parameters() -> None:
    """Llama 3.1 8B has 8.03e9 parameters, norms aside; SmolLM2 has 134.5e6."""
    assert parameter_count(ModelConfig(**LLAMA_8B), 128_256) == pytest.approx(8.03e9, rel=1e-3)
    smollm2 = {"layers": 30, "width": 576, "heads": 9, "kv_heads": 3, "head_dim": 64, "mlp": 1536, "tied": True}
    assert parameter_count(ModelConfig(**smollm2), 49_152) == pytest.approx(134.5e6, rel=1e-3)
