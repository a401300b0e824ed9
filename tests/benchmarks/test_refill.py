"""The benchmark of refilled slots: forced lengths, schedules by hand, and a small run that agrees
with both."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import lognorm

from isojax.core.config import ModelConfig
from isojax.sampling.logits import rollout_keys, uniforms

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ is not part of this copy", allow_module_level=True)
sys.path.insert(0, str(BENCHMARKS))

import refill  # noqa: E402


def test_the_odds_of_an_end_give_the_lognormal() -> None:
    """Chances to come as far as t, from the odds alone, against scipy's distribution of that
    mean."""
    ends = 1 / (1 + np.exp(-refill.log_odds(1024).astype(np.float64)))
    lengths = lognorm(0.8, scale=240 / np.exp(0.32))
    assert lengths.mean() == pytest.approx(240)
    np.testing.assert_allclose(np.cumprod(1 - ends), lengths.sf(np.arange(1, 1025)), rtol=1e-4)


def test_schedules_by_hand() -> None:
    lengths = np.array([5, 1, 2, 4])
    # two slots: 5 in one; 1, 2, then 4 in the other from step 3 on
    assert refill.at_once(lengths, 2) == 7
    # refills at 0, 2 (the second slot has waited for one step), 4, 8
    assert refill.schedule(lengths, 2, 2, 99) == (8, 4)
    # a slot that waits is a refill: at 0, 1, 3 and, with nothing left to admit, after a whole chunk
    assert refill.schedule(lengths, 2, 100, 1) == (7, 3)


def test_lengths_are_those_of_the_uniform_numbers_and_chunks_those_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A response ends where its number falls below the chance of an end, which the first token of
    the vocabulary holds.
    """
    monkeypatch.setattr(refill, "MEAN", 12.0)
    monkeypatch.setattr(refill.engine_module, "CHUNK_TOKENS", 8)
    decoder = refill.Ending(
        ModelConfig(layers=1, width=16, heads=2, kv_heads=1, head_dim=8, mlp=16), 40, 48
    )
    engine = refill.build(decoder, 32, 2, argparse.Namespace(slots=4, prompt=5, cap=48))
    params = decoder.init(jax.random.key(0))
    lengths, refills = refill.run(engine, params, 2)(params, jax.random.key(1), jnp.int32(0))
    keys = rollout_keys(
        jax.random.key(1), jnp.repeat(jnp.arange(16), 2), jnp.tile(jnp.arange(2), 16)
    )
    below = [
        np.asarray(uniforms(keys, jnp.full(32, t))) < 1 / (1 + np.exp(-odds))
        for t, odds in enumerate(refill.log_odds(48))
    ]
    ends = np.stack(below, 1)
    np.testing.assert_array_equal(lengths, np.where(ends.any(1), ends.argmax(1) + 1, 48))
    assert refills == refill.schedule(np.asarray(lengths), 4, 8, 4)[1]
