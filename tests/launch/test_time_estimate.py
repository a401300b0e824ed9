"""Expected times of a sweep's programs: lower bounds whose operations are counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isojax.core.config import CellConfig
from isojax.core.config.model import LoraConfig
from isojax.distributed.mesh_spec import MeshShape
from isojax.launch.device_sizes import DeviceSizes
from isojax.launch.time_estimate import (
    CHIPS,
    DeviceRates,
    ProgramTimes,
    program_times,
    rollout_rates,
    sampling_seconds,
    time_bounds,
    update_seconds,
)
from tests.launch import twelve_layers

CELL = twelve_layers.CELL
SWEEP = twelve_layers.SWEEP  # R = 16 slots, m = 8, g = 4; 11 prompt and 8 response positions
LAYERS, TABLE = 12 * twelve_layers.LAYER_NUMBERS, twelve_layers.TABLE_NUMBERS
# Of rates, all but one are so high that only that one counts; it is 1, so that seconds are counts.
OF_DECODE = DeviceRates(1.0, 1e30, 1e30)
OF_UPDATE = DeviceRates(1e30, 1.0, 1e30)
OF_MEMORY = DeviceRates(1e30, 1e30, 1.0)
OF_LINKS = DeviceRates(1e30, 1e30, 1e30, 1.0)
# 1 s for a step, and so on: times that are easy to add up.
TIMES = ProgramTimes(
    decode_step=1.0, prefill_block=10.0, gradient_block=100.0, microbatch=1000.0, update_end=1e4
)


def sizes(mesh: MeshShape | None = None, cell: CellConfig = CELL) -> DeviceSizes:
    return twelve_layers.make_budget(cell, mesh).sizes(SWEEP)


def test_operations_of_the_sampler_by_hand() -> None:
    """Each of 16 slots sees 11 + 4 positions on average, each of 4 x 11 prompt positions 5.5; 4
    operations for each of 12 x 4 x 16 numbers of the queries and each position."""
    attention = 4 * 12 * 4 * 16
    bound = time_bounds(sizes(), OF_DECODE)
    assert bound.decode_step == 16 * (2 * LAYERS + attention * 15 + 2 * TABLE)
    assert bound.prefill_block == 4 * 11 * (2 * LAYERS + attention * 5.5)


def test_a_step_reads_weights_cache_and_logits() -> None:
    """In float32: all weights but the last norm; of 16 slots, keys and values of 19 positions in
    12 layers of 2 x 2 x 16 numbers."""
    cache = 4 * 16 * 19 * 12 * 2 * 2 * 16
    bound = time_bounds(sizes(), OF_MEMORY)
    assert bound.decode_step == pytest.approx(4 * (LAYERS + TABLE) + cache)


def test_layers_that_slide_see_their_window() -> None:
    """Of 15 positions and of 5.5, half of the layers see 4."""
    options = {"window": 4, "sliding_layers": list(range(6))}
    sliding = CELL.with_settings(model={"family": "qwen2", "options": options})
    bound = time_bounds(sizes(), OF_DECODE)
    with_window = time_bounds(sizes(cell=sliding), OF_DECODE)
    attention = 4 * 6 * 4 * 16
    assert bound.decode_step - with_window.decode_step == 16 * attention * (15 - 4)
    assert bound.prefill_block - with_window.prefill_block == 44 * attention * (5.5 - 4)


def test_operations_of_the_update_by_hand() -> None:
    """6 a weight: of 8 responses, whose 7 tokens go through layers and 8 through the table; and of
    4 x 11 prompt positions, which go on their own, as a block has two microbatches."""
    attention = 2 * 12 * 4 * 16
    bound = time_bounds(sizes(), OF_UPDATE)
    assert bound.microbatch == 6 * 8 * (7 * (LAYERS + attention * 15) + 8 * TABLE)
    assert bound.gradient_block == 6 * 44 * (LAYERS + attention * 5.5)


def test_adam_moves_parameters_nine_times() -> None:
    assert time_bounds(sizes(), OF_MEMORY).update_end == 9 * 4 * (LAYERS + TABLE + 64)


def test_adapters_train_less() -> None:
    """A frozen weight has no gradient: 4 operations, and Adam's arrays are the adapters'."""
    lora = CELL.with_settings(model={"lora": LoraConfig(rank=2)})
    full, adapted = (time_bounds(sizes(cell=cell), OF_UPDATE) for cell in (CELL, lora))
    assert 4 / 6 <= adapted.microbatch / full.microbatch < 0.75
    of_memory = time_bounds(sizes(cell=lora), OF_MEMORY)
    assert of_memory.update_end < time_bounds(sizes(), OF_MEMORY).update_end / 5


def test_fsdp_gathers_weights_and_scatters_gradients() -> None:
    """Half of all weights, forwards, backwards and as a gradient, in float32."""
    bound = time_bounds(sizes(MeshShape(fsdp=2)), OF_LINKS)
    moved = 3 * 4 * (LAYERS + TABLE + 64) / 2
    assert bound.microbatch == pytest.approx(moved) == pytest.approx(bound.gradient_block)


def test_operations_take_their_time_and_the_rest_an_efficiency() -> None:
    """1 s an operation: 12 layers of 20 in a decode step, 36 forwards, 90 backwards, and those
    outside of the layers."""
    rates = DeviceRates(1e9, 1e9, 1e9, efficiency=0.5, operation_seconds=1.0)
    bound = time_bounds(sizes(), rates)
    times = program_times(sizes(), rates)
    assert times.decode_step == pytest.approx(bound.decode_step / 0.5 + 12 * 20 + 40)
    assert times.prefill_block == pytest.approx(bound.prefill_block / 0.5 + 12 * 36 + 30)
    both_ways = 12 * (36 + 90) + 30
    assert times.gradient_block == pytest.approx(bound.gradient_block / 0.5 + both_ways)
    assert times.microbatch == pytest.approx(bound.microbatch / 0.5 + both_ways)
    assert times.update_end == pytest.approx(bound.update_end / 0.5 + 100)


def test_a_batch_takes_steps_and_blocks() -> None:
    """32 rollouts fill 16 slots twice, for 8 tokens each; 8 prompts are two blocks of 4, of 16
    rollouts each, in microbatches of 8."""
    assert sampling_seconds(sizes(), 8, 32, TIMES) == 2 * 8 * 1 + 2 * 10
    assert update_seconds(sizes(), 8, 32, TIMES) == 2 * 100 + 4 * 1000 + 1e4
    assert rollout_rates(sizes(), [(8, 4)], TIMES) == {(8, 4): 32 / 14236}


def test_programs_of_fixed_size_are_filled_or_not() -> None:
    """8 rollouts of 2 prompts: 16 slots take 8 steps all the same, and there is one microbatch."""
    assert sampling_seconds(sizes(), 2, 8, TIMES) == 8 * 1 + 10
    assert update_seconds(sizes(), 2, 8, TIMES) == 100 + 1000 + 1e4


def test_shards_share_a_batch() -> None:
    """Of two shards each has 4 prompts, a block, and 16 rollouts, which fill its slots once."""
    s = sizes(MeshShape(data=2))
    assert sampling_seconds(s, 8, 32, TIMES) == 8 * 1 + 10
    assert update_seconds(s, 8, 32, TIMES) == 100 + 2 * 1000 + 1e4


SLOTS = (8, 16, 32, 64, 128, 256)


@pytest.mark.parametrize("rates", [rates for _, rates in CHIPS.values()])
def test_slots_beyond_the_rollouts_make_nothing_faster(rates: DeviceRates) -> None:
    """A step of all slots, T of them, is the least there is. Up to 32, more slots are faster."""
    budget = twelve_layers.make_budget(CELL)
    seconds = []
    for slots in SLOTS:
        s = budget.sizes(SWEEP.model_copy(update={"decode_slots": slots}))
        seconds.append(sampling_seconds(s, 8, 32, program_times(s, rates)))
    assert seconds[0] > seconds[1] > seconds[2]
    assert seconds[2] <= seconds[3] <= seconds[4] <= seconds[5]


def test_a_step_takes_time_however_small_the_model() -> None:
    """On a fast chip the operations of 12 layers are most of it."""
    _, rates = CHIPS["TPU v5"]
    times = program_times(sizes(), rates)
    assert times.decode_step >= (12 * 20 + 40) * rates.operation_seconds > 0
    assert times.decode_step > 10 * time_bounds(sizes(), rates).decode_step
    without = replace(rates, operation_seconds=0.0)
    assert program_times(sizes(), without).decode_step < times.decode_step / 10
