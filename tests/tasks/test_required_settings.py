"""What a text task must state, and the values that its refusal names: they can be pasted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from isojax.core.config import CellConfig, DataConfig, ModelConfig, load_config
from isojax.core.config.model import LoraConfig
from isojax.core.nouns import Problem
from isojax.models.describe_sizes import count_parameters
from isojax.tasks.problem_selection import LEARNING_RATE, LENGTHS, require_settings
from isojax.tasks.problem_sources import InMemorySource
from isojax.tasks.task import TextTask
from tests.refusals import refused
from tests.tasks.tokenizer_folders import byte_level

LLAMA_8B: dict[str, Any] = {
    "layers": 32,
    "width": 4096,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "mlp": 14336,
}
REQUIRED = (*LENGTHS, LEARNING_RATE)


def make_task(folder: Path, prompts: list[str], context: int | None) -> tuple[CellConfig, TextTask]:
    byte_level(folder)
    config_json = json.loads((folder / "config.json").read_text()) | {
        "max_position_embeddings": context
    }
    (folder / "config.json").write_text(
        json.dumps({k: v for k, v in config_json.items() if v is not None})
    )
    cell = CellConfig(task="mine", model=ModelConfig(path=str(folder), tied=True, **LLAMA_8B))
    problems = [Problem(i, prompt, "") for i, prompt in enumerate(prompts)]
    return cell, TextTask(InMemorySource(problems), cell)


def suggestions(cell: CellConfig, task: TextTask, *required: str) -> dict[str, str]:
    with refused() as refusal:
        require_settings(cell, task, count_parameters, *required)
    return dict(re.findall(r"(cell\.\S+)=(\S+)", str(refusal.value)))


def test_values_come_from_prompts_context_and_size(tmp_path: Path) -> None:
    """Each prompt's "." is a token of its own: 199 of at most 20 tokens and one of 60, so 99% are
    within 20."""
    cell, task = make_task(
        tmp_path, ["." * (1 + i % 20) for i in range(199)] + ["." * 60], context=4096
    )
    assert sorted(task.prompt_lengths(task.problems(200, np.random.default_rng(0))))[-2:] == [
        20,
        60,
    ]
    named = suggestions(cell, task, *REQUIRED)
    # 20 is rounded up to 2 x 16
    assert named == {LENGTHS[0]: "32", LENGTHS[1]: "512", LEARNING_RATE: "1e-06"}
    # as pasted
    config = load_config("smollm2_cpu", [f"{key}={value}" for key, value in named.items()])
    assert config.cell.sampling.prompt_length == 32 and config.cell.rl.learning_rate == 1e-6
    require_settings(config.cell, task, count_parameters, *REQUIRED)


def test_what_is_set_is_neither_required_nor_named(tmp_path: Path) -> None:
    cell, task = make_task(tmp_path, ["." * 8], context=None)
    cell = CellConfig.model_validate(
        {**cell.model_dump(exclude_unset=True), "sampling": {"prompt_length": 9}}
    )
    assert set(suggestions(cell, task, *LENGTHS)) == {LENGTHS[1], LEARNING_RATE}
    cell = CellConfig.model_validate(
        {**cell.model_dump(exclude_unset=True), "rl": {"learning_rate": 1e-4}}
    )
    assert suggestions(cell, task, *LENGTHS) == {LENGTHS[1]: "512"}
    require_settings(cell, task, count_parameters, LEARNING_RATE)


def test_both_lengths_are_within_a_short_context(tmp_path: Path) -> None:
    cell, task = make_task(tmp_path, ["." * 90] * 5, context=128)
    named = suggestions(cell.model_copy(update={"data": DataConfig(candidates=3)}), task, *LENGTHS)
    assert (named[LENGTHS[0]], named[LENGTHS[1]]) == ("64", "64")


def test_parameters_are_counted_as_published() -> None:
    """Llama 3.1 8B has 8,030,261,248 parameters, SmolLM2 134,515,008, Qwen3-30B-A3B
    30,532,122,624."""
    assert count_parameters(ModelConfig(**LLAMA_8B), 128_256) == 8_030_261_248
    smollm2: dict[str, Any] = {
        "layers": 30,
        "width": 576,
        "heads": 9,
        "kv_heads": 3,
        "head_dim": 64,
        "mlp": 1536,
        "tied": True,
    }
    adapted = ModelConfig(**smollm2, lora=LoraConfig(rank=8))  # an adapter is none of the model's
    assert count_parameters(adapted, 49_152) == 134_515_008
    qwen3_moe: dict[str, Any] = {
        "layers": 48,
        "width": 2048,
        "heads": 32,
        "kv_heads": 4,
        "head_dim": 128,
        "mlp": 6144,
        "tied": False,
    }
    experts: dict[str, Any] = {"experts": 128, "top_k": 8, "expert_mlp": 768}
    assert (
        count_parameters(ModelConfig(family="qwen3_moe", **qwen3_moe, options=experts), 151_936)
        == 30_532_122_624
    )
