"""Kernels made wrong on purpose are found: masks off by one, blocks that are stale or left out,
tokens that are not written, experts of another layer. TPU kernels run interpreted.

`python tests/models/test_kernel_checks.py` prints the figures: of each mistake the error and how
large it may be.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isojax.models.attention_calls import DecodeAttentionShape, SelfAttentionShape
from isojax.models.kernel_checks.attention_cases import (
    REFILL_AT,
    case_of,
    plan_decoding,
    spread_lengths,
)
from isojax.models.kernel_checks.device_kernels import kernels_to_check
from isojax.models.kernel_checks.expert_cases import GroupedCase
from isojax.models.kernel_checks.kernel_errors import (
    KernelError,
    Reference,
    kernel_error,
    largest_error,
    make_reference,
)
from isojax.models.kernels import gpu_decode, splash, tpu_decode, tpu_experts, tpu_grouped

CASES = {f"{x.kernel}: {x.what}": x for x in kernels_to_check("cpu")}
SPLASH = "splash: rows after prompts"
SPLASH_WINDOW = "splash: a window of 100"
DECODE = "flash_decode: slots that are refilled"
RING = "flash_decode: a ring of 1030"
EXPERTS = "tpu_experts: 2 experts of 4 rows"
GROUPED = "tpu_grouped: 5 groups of rows"

Patch = Callable[[pytest.MonkeyPatch], None]


@functools.cache
def reference(name: str) -> Reference:
    return make_reference(CASES[name].case)


def error_of(name: str) -> KernelError:
    splash._make_kernel.cache_clear()
    return kernel_error(CASES[name].case, "interpret", reference(name))


# ------------------------------------------------------------------ mistakes


def reads_up_to(change: int) -> Patch:
    """The sampler's mask ends `change` positions later."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        true = tpu_decode.flash_decode

        def wrong(q: Any, kv: Any, cache: Any, layer: Any, written: Any, last: Any, *rest: Any):
            return true(q, kv, cache, layer, written, jnp.maximum(last + change, 0), *rest)

        monkeypatch.setattr(tpu_decode, "flash_decode", wrong)

    return patch


def stale_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block that is read or written is the one before, but for the first."""
    true = tpu_decode._at_positions

    def wrong(layout: Any, array: Any, start: Any, count: int) -> Any:
        is_block = count == layout.block_positions
        return true(layout, array, jnp.maximum(start - count, 0) if is_block else start, count)

    monkeypatch.setattr(tpu_decode, "_at_positions", wrong)


def blocks_of_the_token_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of blocks is made for the position before: a new block is missed at its border."""
    true = tpu_decode.live_blocks
    monkeypatch.setattr(
        tpu_decode,
        "live_blocks",
        lambda last, cache, head_dim: true(jnp.maximum(last - 1, 0), cache, head_dim),
    )


def token_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tile goes back into the cache as it was."""
    monkeypatch.setattr(tpu_decode, "_with_new_position", lambda layout, old, new, index: old)


def other_prompt_length(change: int) -> Patch:
    """The update's mask of prompts ends `change` positions later."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        true = splash.splash_attention

        def wrong(q: Any, k: Any, v: Any, prefix: Any = None, **others: Any) -> Any:
            return true(q, k, v, prefix._replace(lengths=prefix.lengths + change), **others)

        monkeypatch.setattr(splash, "splash_attention", wrong)

    return patch


def other_causal_mask(change: int) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        true = splash.masks.CausalMask
        monkeypatch.setattr(
            splash.masks, "CausalMask", lambda shape, offset: true(shape, offset + change)
        )

    return patch


def other_window(change: int) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        true = splash.masks.LocalMask
        monkeypatch.setattr(
            splash.masks,
            "LocalMask",
            lambda shape, window, offset: true(shape, (window[0] + change, window[1]), offset),
        )

    return patch


def other_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts of the layer before."""
    true = tpu_experts.multiply_by_all_experts

    def wrong(rows: Any, weights: Any, matrices: Any, layer: Any, interpret: bool) -> Any:
        return true(rows, weights, matrices, layer - 1, interpret)

    monkeypatch.setattr("isojax.models.kernel_checks.expert_cases.multiply_by_all_experts", wrong)


def hidden_values_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step starts its expert's sum again, so that only the last block stays."""
    true = tpu_experts._kernel

    def wrong(layer: Any, rows: Any, weights: Any, gate: Any, up: Any, down: Any, out: Any) -> None:
        out[...] = jnp.zeros_like(out)
        true(layer, rows, weights, gate, up, down, out)

    monkeypatch.setattr(tpu_experts, "_kernel", wrong)


def groups_one_row_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first row of a group is still multiplied by the matrix of the one before."""
    true = tpu_grouped.grouped_product

    def wrong(x: Any, matrices: Any, sizes: Any, interpret: bool) -> Any:
        return true(x, matrices, sizes.at[0].add(1).at[2].add(-1), interpret)

    monkeypatch.setattr("isojax.models.kernel_checks.expert_cases.grouped_product", wrong)


MISTAKES: dict[str, tuple[str, Patch]] = {
    "decode sees one more": (DECODE, reads_up_to(1)),
    "decode sees one less": (DECODE, reads_up_to(-1)),
    "decode reads the block before": (DECODE, stale_block),
    "decode misses a new block": (DECODE, blocks_of_the_token_before),
    "decode does not write": (RING, token_not_written),
    "a ring lacks one": (RING, reads_up_to(-1)),
    "a query sees the next token": (SPLASH, other_causal_mask(1)),
    "a query misses itself": (SPLASH, other_causal_mask(-1)),
    "a prompt is one longer": (SPLASH, other_prompt_length(1)),
    "a prompt is one shorter": (SPLASH, other_prompt_length(-1)),
    "a window is one longer": (SPLASH_WINDOW, other_window(1)),
    "a window is one shorter": (SPLASH_WINDOW, other_window(-1)),
    "experts of the layer before": (EXPERTS, other_layer),
    "experts lack a block": (EXPERTS, hidden_values_left_out),
    "groups end one row late": (GROUPED, groups_one_row_late),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_kernels_are_right(name: str) -> None:
    """In float32, which leaves a factor of 10 up to what may be."""
    error = error_of(name)
    assert error.is_right and error.error < 1e-5, error


# what CI plants; the nightly tests plant the others
OF_CI = ("decode sees one more", "decode reads the block before", "a query sees the next token")


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(name, marks=pytest.mark.slow if name in OF_CI else pytest.mark.nightly)
        for name in MISTAKES
    ],
)
def test_a_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is 1,000 times what is allowed in float32, and twice what bfloat16 allows."""
    name, patch = MISTAKES[mistake]
    patch(monkeypatch)
    error = error_of(name)
    assert not error.is_right and error.error > 0.1, error


# ------------------------------------------------------------------ the cases themselves, fast


def test_the_error_of_the_worst_vector_counts() -> None:
    exact = np.ones((4, 3), np.float32)
    actual = exact.copy()
    actual[2] += [0.3, 0, 0]
    # of one of four vectors, whose length is the root of 3
    assert float(largest_error(actual, exact)) == pytest.approx(0.3 / 3**0.5)
    # a vector of zeros counts as being as long as is usual: the root of 3/4 times 3
    exact[1] = 0
    actual = exact.copy()
    actual[1] = [0, 0.3, 0]
    assert float(largest_error(actual, exact)) == pytest.approx(0.3 / (9 / 4) ** 0.5)
    assert np.isnan(largest_error(np.full((4, 3), np.nan, np.float32), exact))


def test_what_is_no_number_is_wrong() -> None:
    assert not KernelError("out", float("nan"), 1e-4).is_right
    assert KernelError("out", 1e-4, 1e-4).is_right


def test_slots_cross_the_borders_of_blocks_and_one_starts_again() -> None:
    plan = plan_decoding(rows=8, positions=700)
    assert plan.positions[0].tolist() == [696, 126, 254, 382, 510, 638, 0, 350]
    assert plan.positions[:, 1].tolist() == [126, 127, 128, 129]
    # a text of 129 positions in the place of one of 698
    assert plan.refilled_slot == 0 and plan.prompt_length == 129
    assert plan.positions[REFILL_AT:, 0].tolist() == [129, 130]
    for rows, positions in ((1, 1), (3, 2), (2, 5), (1, 4096)):
        plan = plan_decoding(rows, positions)
        assert plan.positions.shape == (4, rows)
        assert plan.positions.min() >= 0 and plan.positions.max() < positions


def test_prompts_end_around_the_borders_of_blocks() -> None:
    lengths = spread_lengths(8, 300).tolist()
    assert lengths[:5] == [300, 1, 255, 256, 257] and {127, 128, 129} <= set(lengths)
    assert spread_lengths(3, 0).tolist() == [0, 0, 0]
    assert spread_lengths(4, 2).tolist() == [2, 1, 2, 1]


def test_groups_are_of_all_rows_but_an_eighth_and_one_is_empty() -> None:
    case = GroupedCase(rows=192, inputs=8, outputs_per_row=8, experts=5, dtype="float32")
    assert case.group_sizes.tolist() == [47, 0, 50, 35, 36]  # 168 of 192


def test_large_shapes_are_compared_in_part() -> None:
    """Scores of 32,768 positions by array code would be 100s of GiB."""
    update: Any = case_of(SelfAttentionShape(64, 32768, 1024, 32, 8, 128, "bfloat16"))
    shape = update.shape
    scores = shape.rows * shape.heads * shape.positions * (shape.positions + shape.prefix_length)
    assert shape.rows == 2 and 2**25 < scores <= 2**27
    cache: Any = case_of(DecodeAttentionShape(256, 4096, 32, 8, 128, "bfloat16", "bfloat16"))
    assert cache.shape.rows == 8 and cache.shape.positions == 4096


@pytest.mark.parametrize("change", [0, 1, -1])
def test_a_gpus_mask_that_is_off_by_one(change: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Triton kernel, interpreted."""
    true = gpu_decode.triton_decode

    def wrong(q: Any, keys: Any, values: Any, positions: Any) -> Any:
        return true(q, keys, values, jnp.maximum(positions + change, 0), interpret=True)

    monkeypatch.setattr(gpu_decode, "triton_decode", wrong)
    shape = DecodeAttentionShape(3, 140, 2, 1, 16, "bfloat16", "bfloat16", unrolled=True, layers=1)
    error = kernel_error(case_of(shape), "triton")
    assert error.is_right == (change == 0), error
    assert (error.error > 0.1) == (change != 0), error


def main() -> None:
    for name in CASES:
        print(f"{name}: right: {error_of(name)}", flush=True)
    for mistake, (name, patch) in MISTAKES.items():
        with pytest.MonkeyPatch.context() as monkeypatch:
            patch(monkeypatch)
            print(f"{name}: {mistake}: {error_of(name)}", flush=True)


if __name__ == "__main__":
    jax.config.update("jax_numpy_rank_promotion", "raise")
    main()
