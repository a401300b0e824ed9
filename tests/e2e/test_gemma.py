"""A Gemma 3 of a few layers from end to end: from scratch on the quickstart's task; and
by adapters from a checkpoint, which are exported with every stack of layers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from isojax.core.config import ModelConfig
from tests.compiler import QUICK, flags
from tests.e2e.command_line import Isojax
from tests.e2e.test_text import REWARDS, SETTINGS
from tests.e2e.tiny_lm import VOCAB, make_model

pytestmark = [pytest.mark.slow, pytest.mark.seconds(20)]

# Layers S F S F S, as (S F) x 2 and S; a window of 3 is shorter than prompts (6) and than responses
# (4).
OPTIONS = "options: {window: 3, sliding_layers: [0, 2, 4], query_scalar: 9.0, rope_factor: 2.0}"
SHAPE = "layers: 5, width: 16, heads: 2, kv_heads: 1, head_dim: 8, mlp: 24, tied: true"
MODEL = f"cell.model={{family: gemma3, {SHAPE}, {OPTIONS}}}"
WORDS = ("isojax.train", "tiny.yaml", MODEL, "sweep.seeds=1", "sweep.n=[4]", "sweep.budget=300")
FEW = ("sweep.n=[4]", "sweep.budget=50")
CELL = "8x4-s0"
FLAGS = flags(QUICK, devices=1)
GEMMA = ModelConfig(
    family="gemma3",
    layers=5,
    width=16,
    heads=2,
    kv_heads=1,
    head_dim=8,
    mlp=24,
    vocab=VOCAB,
    tied=True,
    options={"window": 4, "sliding_layers": [0, 2, 4], "query_scalar": 9.0},
)


def test_a_policy_from_scratch_is_trained(isojax: Isojax) -> None:
    isojax.swept(*WORDS, XLA_FLAGS=FLAGS)
    rows = isojax.rows(CELL)
    updates = [row["train"] for row in rows if row["M"]]
    assert len(updates) > 4 and all(train["sampler_logp_gap"] < 1e-4 for train in updates)
    assert all(train["grad_norm"] > 0 for train in updates) and updates[-1]["kl"] > 0


def test_an_option_that_is_misspelt_is_refused(isojax: Isojax) -> None:
    words = ("launch", "tiny.yaml", "cell.model={family: gemma3, options: {windw: 3}}")
    isojax.refused(
        *words, saying=["cell.model.options.windw", "has the options window, sliding_layers"]
    )


def test_the_language_model_of_a_folder_that_reads_images_is_trained_and_exported(
    isojax: Isojax,
) -> None:
    """By adapters, in every stack of layers. Its plan says what is left out; the export is a text
    folder, and adapters have the whole model's names."""
    make_model(isojax.folder / "lm", GEMMA)
    before = load_file(isojax.folder / "lm" / "model.safetensors")
    make_whole(isojax.folder / "lm")
    (isojax.folder / "sums.yaml").write_text(SETTINGS)
    (isojax.folder / "rewards.py").write_text(REWARDS)
    lora = "cell.model.lora={rank: 3, alpha: 6, targets: [query, down]}"
    done = isojax.swept("train", "sums.yaml", lora, *FEW, XLA_FLAGS=FLAGS)
    assert (
        "its language model alone is trained and exported, without images; 1 tensors of "
        "vision_tower"
    ) in done.stderr
    updates = [row["train"] for row in isojax.rows("4x4-s0", "sums") if row["M"]]
    assert updates and all(train["sampler_logp_gap"] < 1e-4 for train in updates)

    cell = str(isojax.run("sums") / "cells" / "4x4-s0")
    isojax.quick_ok("model", "export", cell, "trained")
    isojax.quick_ok("model", "export", cell, "adapter", "--adapter")
    written = json.loads((isojax.folder / "trained" / "config.json").read_text())
    assert (written["architectures"], written["num_hidden_layers"]) == (["Gemma3ForCausalLM"], 5)

    adapter = load_file(isojax.folder / "adapter" / "adapter_model.safetensors")
    after = load_file(isojax.folder / "trained" / "model.safetensors")
    assert before.keys() == after.keys()
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    parts = {"self_attn.q_proj", "mlp.down_proj"}
    assert changed == {
        f"model.layers.{layer}.{part}.weight" for layer in range(5) for part in parts
    }
    assert len(adapter) == 2 * len(changed)
    for name in changed:
        place = name.removeprefix("model.").removesuffix(".weight")
        a, b = (
            adapter[f"base_model.model.model.language_model.{place}.lora_{part}.weight"]
            for part in "AB"
        )
        np.testing.assert_allclose(after[name], before[name] + 2 * b @ a, atol=1e-6)


def make_whole(folder: Path) -> None:
    """Of a text folder that of a whole model, as published."""
    text_config = json.loads((folder / "config.json").read_text())
    del text_config["architectures"]
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": text_config,
    }
    (folder / "config.json").write_text(json.dumps(config))
    text = load_file(folder / "model.safetensors")
    tensors = {f"language_model.{name}": tensor for name, tensor in text.items()}
    tensors["vision_tower.vision_model.post_layernorm.weight"] = np.ones(6, np.float32)
    save_file(tensors, folder / "model.safetensors")
