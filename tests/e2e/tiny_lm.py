"""A language model small enough for the end-to-end tests: random weights, a tokenizer made on the
spot, a coin for a verifier.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from isojax.core.config import ModelConfig
from isojax.models.hf import hf_export
from isojax.models.hf.hf_load import weight_layouts
from isojax.models.transformer import Decoder
from tests.tasks.tokenizer_folders import byte_level

VOCAB = 384
SHAPE = ModelConfig(
    family="llama",
    layers=2,
    width=16,
    heads=2,
    kv_heads=1,
    head_dim=8,
    mlp=32,
    vocab=VOCAB,
    tied=True,
)

# A verifier whose verdicts hang on problem and response, so that problems have rates from 0 to 1
# under a random policy.
COIN = """\
from zlib import crc32
from isojax.tasks.verifiers import Verdict, verifier
@verifier(isolated=False, pure=True)
def build(argument):
    def check(problem, prompt, response):
        rate = crc32(problem.prompt.encode()) % 17 / 16
        return Verdict(crc32(f"{problem.prompt}{response}".encode()) % 100 < 100 * rate, True)
    return check
"""

CONFIG = """\
name: {name}
cell:
  task: {task}
  model: {{path: models/smollm2-135m}}
  prompt: {{stop: ["\\n"]}}
  verifier: {{use: stand_in.coin}}
  sampling: {{prompt_length: 24, response_length: 3}}
  rl: {{learning_rate: 1.0e-3}}
  data: {{candidates: 100, attempts: {attempts}, validation: 8{data}}}
  eval: {{samples: 2, start: 256, ratio: 1.5}}
sweep: {{B_p: [16], n: [16], budget: 1024, decode_slots: 32, microbatch: 32}}
run: {{cells_at_once: 1}}
"""
# A chat of the model over problems of a file.
CHAT_CONFIG: dict[str, Any] = {
    "name": "text",
    "cell": {
        "task": "jsonl:problems.jsonl",
        "model": {"path": "lm"},
        "prompt": {"format": "chat"},
        "verifier": {"use": "integer"},
        "sampling": {"prompt_length": 64, "response_length": 3},
        "rl": {"learning_rate": 1e-3},
        "data": {"candidates": 60, "attempts": 0, "validation": 8},
        "eval": {"samples": 2, "start": 8, "ratio": 1.5},
    },
    "sweep": {"B_p": [4], "n": [2], "budget": 96},
}


def make_model(folder: Path, shape: ModelConfig = SHAPE) -> Path:
    """A folder as a hub gives it; its policy is uniform but for what random weights make of it."""
    byte_level(folder, vocab=340)
    rng = np.random.default_rng(0)
    tensors = {}
    for weight in weight_layouts(Decoder(shape, VOCAB)):
        for name in weight.tensor_names:
            one = "norm" in name
            tensors[name] = (
                np.ones(weight.spec.stored_shape, np.float32)
                if one
                else rng.normal(0, 0.3, weight.spec.stored_shape).astype(np.float32)
            )
    save_file(tensors, folder / "model.safetensors")
    hf_export.write_json(folder / "config.json", hf_export.make_config_json(shape, 512, "float32"))
    return folder
