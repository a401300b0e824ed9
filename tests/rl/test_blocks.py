"""The blocks and microbatches that a gradient is computed in: every rollout is in one, with its own
prompt, whatever shards and padding."""

from __future__ import annotations

from collections import Counter
from functools import cache
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from isojax.core.shapes import SamplerShapes
from isojax.distributed.sharding import ROLLOUT_AXES, map_over_shards
from isojax.rl.gradient import (
    GradientAccumulator,
    ResponseBatch,
    ShardBatch,
    _reduce_gradient,
    microbatch_buckets,
)
from isojax.rl.objective import Microbatch
from isojax.sampling.batch import ProblemArrays
from isojax.sampling.layout import Layout
from tests.device import mesh, quick_jit

T, P = 32, 2  # of widths 16 and 32
CELLS = ((5, 3), (2, 8), (1, 1))


def make_responses(shapes: SamplerShapes, layout: Layout, shard: int) -> ResponseBatch:
    """A shard's rows, arrays [1 rows ...]: what the objective reads is the rollout's number, -1 of
    padding; the tokens that count end anywhere, also before the first."""
    rows = shapes.buffer_rows
    rng = np.random.default_rng([shard, rows, int(layout.B)])
    lengths = rng.integers(0, T + 1, (1, rows))
    mask = (np.arange(T) < lengths[..., None]) & (rng.random((1, rows, T)) < 0.8)
    number = np.where(np.arange(rows) < layout.rollouts_per_shard, np.arange(rows), -1)
    rollout = np.where(number >= 0, layout.rollout_at(shard, number), -1)
    rollout = np.where(rollout < layout.B, rollout, -1)[None]
    tokens = np.broadcast_to(rollout[..., None], (1, rows, T))
    prompt_experts = np.broadcast_to(rollout[..., None, None, None], (1, rows, P, 1, 1))
    return ResponseBatch(*map(jnp.asarray, (tokens, mask, rollout, prompt_experts)))


class Jitted:
    """What is asked of an accumulator, in three programs for all (B_p, n)."""

    def __init__(self, shapes: SamplerShapes, problems: ProblemArrays):
        objective: Any = None
        self.accumulator = accumulator = GradientAccumulator(objective, shapes)
        self.shard_batch = quick_jit(accumulator.shard_batch)
        self.take_microbatch = quick_jit(accumulator.take_microbatch)
        widths = accumulator.bucket_widths if shapes.shards == 1 else None

        @quick_jit
        def look(batch: ShardBatch, index: Any) -> Any:
            """(how many blocks there are, one of them, its prompts, which rows continue each, and
            of one shard its microbatches' widths)."""
            block = accumulator.block(batch, index)
            buckets = widths and microbatch_buckets(batch.lengths, block, shapes, widths)
            prompts = accumulator.block_prompts(problems, batch, block)
            continuing = accumulator.continues(batch, block)
            return accumulator.num_blocks(batch), block, prompts, continuing, buckets

        self.look = look


@cache
def jitted_of(shapes: SamplerShapes) -> Jitted:
    number = jnp.arange(shapes.problem_rows)
    prompts = jnp.stack([100 + number, 200 + number], 1)
    return Jitted(shapes, ProblemArrays(prompts, number + 1, number, number))


def length_of(mask: np.ndarray) -> int:
    """Up to the last token that counts."""
    return max((t + 1 for t in range(T) if mask[t]), default=0)


@pytest.mark.parametrize(("shards", "g", "m"), [(1, 2, 4), (3, 3, 3)])
@pytest.mark.parametrize(("B_p", "n"), CELLS)
def test_each_rollout_is_in_one_microbatch_with_its_prompt(
    shards: int, g: int, m: int, B_p: int, n: int
) -> None:
    """In a block of g problems that the shard has rollouts of, the longest first, m at a time; all
    shards have as many blocks and microbatches. What does not count is in none."""
    shapes = SamplerShapes(CELLS, shards, 4, m, P, T, prefill_batch=g)
    layout = Layout(B_p, n, shards)
    jitted = jitted_of(shapes)

    owned = [
        range(B_p * n)[s * layout.rollouts_per_shard :][: layout.rollouts_per_shard]
        for s in range(shards)
    ]
    groups_of = [sorted({r // n for r in of_shard}) for of_shard in owned]
    num_blocks = max(-(-len(groups) // g) for groups in groups_of)

    def rollouts_of_block(shard: int, index: int) -> list[int]:
        groups = groups_of[shard][index * g : (index + 1) * g]
        return [r for r in owned[shard] if r // n in groups]

    for shard in range(shards):
        responses = make_responses(shapes, layout, shard)
        batch = jitted.shard_batch(responses, np.array([shard]), np.int32(B_p), np.int32(n))
        masks = {
            int(r): x
            for r, x in zip(
                responses.objective_inputs[0], np.asarray(responses.mask[0]), strict=True
            )
        }
        for index in range(num_blocks):
            count, block, prompts, continuing, buckets = jitted.look(batch, np.int32(index))
            assert int(count) == num_blocks
            expected = rollouts_of_block(shard, index)
            most = max(-(-len(rollouts_of_block(s, index)) // m) for s in range(shards))
            assert int(block.num_microbatches) == most
            lengths = [length_of(masks[r]) for r in expected]

            first_group = int(block.first_group)
            if expected:
                assert first_group == groups_of[shard][index * g]
            assert prompts.prompts[:, 0].tolist() == [100 + first_group + i for i in range(g)]
            assert prompts.lengths.tolist() == [first_group + i + 1 for i in range(g)]
            continuing = np.asarray(continuing)
            of_rows = np.asarray(batch.responses.objective_inputs)
            for i in range(g):
                of_prompt = [
                    r for r in expected if r // n == first_group + i and length_of(masks[r])
                ]
                assert sorted(of_rows[continuing[i]].tolist()) == of_prompt
                if of_prompt:
                    assert int(prompts.experts[i, 0, 0, 0]) in of_prompt

            found: list[int] = []
            for i in range(most):
                microbatch = jax.device_get(jitted.take_microbatch(batch, block, np.int32(i)))
                group, entry = np.asarray(microbatch.group), np.asarray(microbatch.prefix_entry)
                assert ((entry >= 0) & (entry < g) & (group == first_group + entry)).all()
                assert microbatch.experts is None
                for row in np.flatnonzero(np.asarray(microbatch.mask).any(-1)):
                    rollout = int(microbatch.objective_inputs[row])
                    assert group[row] == rollout // n
                    assert (np.asarray(microbatch.mask[row]) == masks[rollout]).all()
                    assert (microbatch.tokens[row] == rollout).all()
                    found.append(rollout)
            assert Counter(found) == Counter(r for r in expected if masks[r].any())
            found_lengths = [length_of(masks[r]) for r in found]
            assert found_lengths == sorted(found_lengths, reverse=True)

            if shards == 1:
                buckets = buckets.tolist()
                by_length = sorted(lengths, reverse=True)
                longest = [
                    by_length[i * m] if i * m < len(by_length) else 0 for i in range(len(buckets))
                ]
                assert jitted.accumulator.bucket_widths == (16, 32)
                assert buckets == [int(k > 16) for k in longest]
                assert len(buckets) == -(-shapes.buffer_rows // m)


@pytest.mark.parametrize(
    ("axes", "spec", "sums"),
    [
        ("data=2,fsdp=2", PartitionSpec(None), [10, 10, 10, 10]),
        ("data=2,fsdp=2", PartitionSpec("fsdp"), [4, 6, 4, 6]),
        ("fsdp=4", PartitionSpec("fsdp"), [1, 2, 3, 4]),
        ("fsdp=4", PartitionSpec(None), [10, 10, 10, 10]),
        ("data=4", PartitionSpec(None, None), [10, 10, 10, 10]),
    ],
)
def test_a_gradient_is_summed_over_the_shards_that_have_it(
    axes: str, spec: PartitionSpec, sums: list[int]
) -> None:
    """Of shards with 1, 2, 3 and 4. A parameter that fsdp splits has been summed over fsdp."""
    on, by_shard = mesh(axes), PartitionSpec(ROLLOUT_AXES)
    reduce = map_over_shards(lambda x: _reduce_gradient(x, spec, on), on, (by_shard,), by_shard)
    assert quick_jit(reduce)(jnp.arange(1, 5)).tolist() == sums


class Counting(GradientAccumulator):
    """Counts what the microbatches hold, in the place of their gradients."""

    def add_microbatch(
        self, refs: Any, inputs: Any, prefix: Any, base_prefix: Any, microbatch: Microbatch
    ) -> Any:
        count = microbatch.mask.sum().astype(jnp.float32)
        return {"tokens": count, "columns": jnp.float32(microbatch.mask.shape[1]), "most": count}


def test_each_microbatch_is_as_wide_as_its_longest_response() -> None:
    """16 or 32 tokens: 15 rollouts of 5 problems, in blocks of two problems and microbatches of
    two."""
    shapes = SamplerShapes([(5, 3)], 1, 4, 2, P, T, prefill_batch=2)
    objective: Any = SimpleNamespace(
        metric_reductions={"tokens": "total", "columns": "total", "most": "max"}, routers=None
    )
    accumulator = Counting(objective, shapes)
    lengths = np.resize([1, 16, 3, 17, 32, 20, 5, 16, 16, 2, 1, 9, 18, 1, 16], shapes.buffer_rows)
    mask = jnp.asarray(np.arange(T) < lengths[:, None])[None]
    rows = jnp.zeros((1, shapes.buffer_rows), jnp.int32)
    responses = ResponseBatch(mask.astype(jnp.int32), mask, rows)
    shard = quick_jit(accumulator.shard_batch)
    batch = shard(responses, np.array([0]), np.int32(5), np.int32(3))
    inputs: Any = None

    @quick_jit
    def sums_of(batch: ShardBatch, index: Any) -> Any:
        block = accumulator.block(batch, index)
        zeros = accumulator.zero_sums()
        return accumulator.add_responses(zeros, (), inputs, inputs, None, batch, block)

    for index in range(3):
        of_block = sorted(lengths[:15][6 * index : 6 * index + 6].tolist(), reverse=True)
        pairs = [of_block[i : i + 2] for i in range(0, len(of_block), 2)]
        assert {name: float(x) for name, x in sums_of(batch, jnp.int32(index)).items()} == {
            "tokens": sum(of_block),
            "columns": sum(16 if pair[0] <= 16 else 32 for pair in pairs),
            "most": max(map(sum, pairs)),
        }
