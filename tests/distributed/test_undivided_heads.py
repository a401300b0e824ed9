"""Heads that `tensor` does not divide: every device has them whole, and no device waits for one
that has gone on.

On CPUs a collective-permute is one meeting of all devices. Inside a sampler's loops, which its
shards leave at times of their own, the first to leave would be waited for forever.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from isojax.core.config import CellConfig, ModelConfig, RLConfig, SamplingConfig
from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import shard_count
from isojax.models.layers.attention_layer import queries_align
from isojax.models.transformer import Decoder
from isojax.rl.fused_rollouts import ProblemBatches, build_fused_update
from isojax.rl.objective import make_coefficients
from isojax.rl.optimizer import build_init_state
from tests.compiler import QUICK
from tests.device import CONFIG, VOCAB, P, Parity, mesh, random_problems
from tests.hlo import collectives

T, B_p, n = 8, 12, 4
SAMPLING = SamplingConfig(prompt_length=P, response_length=T)


def model(heads: int, kv_heads: int) -> ModelConfig:
    return CONFIG.model_copy(update={"layers": 1, "heads": heads, "kv_heads": kv_heads})


class FusedUpdate:
    """Two updates with rollouts of the policy that they train: a sampler and a gradient in one
    program."""

    def __init__(self, config: ModelConfig, axes: str):
        on, decoder = mesh(axes), Decoder(config, VOCAB)
        cell = CellConfig(
            model=config, sampling=SAMPLING, rl=RLConfig(kl=0.1, learning_rate=1e-3, warmup=1)
        )
        shapes = SamplerShapes([(B_p, n)], shard_count(on), 4, 4, P, T)

        first = jax.device_put(jax.jit(decoder.init)(jax.random.key(1)), decoder.shardings(on))
        state = build_init_state(decoder, on)(first)
        index = np.tile(np.arange(shapes.problem_rows, dtype=np.int32) % B_p, (2, 1))
        scalars = {
            "num_updates": np.int32(2),
            "B_p": np.int32(B_p),
            "n": np.int32(n),
            "seed": np.int32(0),
        }
        batches = ProblemBatches(random_problems(B_p, seed=5), index, **scalars)
        self.inputs = (state, first, batches, make_coefficients(cell.rl))

        update: Any = build_fused_update(cell, decoder, Parity(), shapes, on)
        self.compiled = update.lower(*self.inputs).compile(compiler_options=QUICK)

    def learn(self) -> tuple[Any, float]:
        """The parameters, and the sum of the responses' lengths."""
        state, result = self.compiled(*self.inputs)
        return jax.device_get(state.params), float(result.metrics["response_length"].sum)


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 1), (6, 3)])
def test_shards_that_leave_a_loop_early_are_not_waited_for(heads: int, kv_heads: int) -> None:
    """(4, 1) hung, as Gemma 3 270M has it. What two updates make of a policy is what one device
    makes of it."""
    config = model(heads, kv_heads)
    split = FusedUpdate(config, "data=2,fsdp=2,tensor=2")
    one = FusedUpdate(config, "auto")

    kinds = {collective.kind for collective in collectives(split.compiled.as_text())}
    assert "all-reduce" in kinds and "collective-permute" not in kinds

    (found, found_length), (expected, expected_length) = split.learn(), one.learn()
    assert found_length == expected_length
    for path, x in jax.tree_util.tree_leaves_with_path(expected):
        y = dict(jax.tree_util.tree_leaves_with_path(found))[path]
        np.testing.assert_allclose(y, x, atol=2e-5, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize(
    ("heads_of_device", "heads_of_key", "expected"),
    [
        (4, 2, True),  # those of two keys
        (2, 4, True),  # half of a key's
        (3, 3, True),
        (3, 2, False),  # a key's, and half of the next one's
        (6, 4, False),
    ],
)
def test_which_queries_a_device_may_have(
    heads_of_device: int, heads_of_key: int, expected: bool
) -> None:
    assert queries_align(heads_of_device, heads_of_key) == expected
