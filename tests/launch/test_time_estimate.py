"""Expected times: a lower bound whose operations are counted by hand."""

from __future__ import annotations

import pytest

from isojax.core.config import CellConfig
from isojax.core.nouns import Cell
from isojax.core.schedule import Stage
from isojax.distributed.mesh_spec import MeshShape
from isojax.launch import time_estimate
from isojax.launch.device_sizes import DeviceSizes
from isojax.launch.time_estimate import EFFICIENCY, DeviceRates
from tests.launch import twelve_layers

CELL = twelve_layers.CELL.with_settings(eval={"samples": 2, "start": 100})
SWEEP = twelve_layers.SWEEP.model_copy(update={"budget": 100})
LAYERS, TABLE = 12 * twelve_layers.LAYER_NUMBERS, twelve_layers.TABLE_NUMBERS


def sizes(mesh: MeshShape | None = None, cell: CellConfig = CELL) -> DeviceSizes:
    return twelve_layers.make_budget(cell, mesh).sizes(SWEEP)


def one(mesh: MeshShape | None = None) -> float:
    return time_estimate.sampling_seconds(sizes(mesh), 8, 32, DeviceRates(1.0, 1e30, 1e30))


def test_operations_of_sampling_by_hand() -> None:
    """32 responses of 8 tokens, 7 of which go through layers and see 11 + 4 positions on average; 8
    prompts of 11 that see 5.5; 4 L N H operations a position seen."""
    attention = 4 * 12 * 4 * 16
    assert one() == 32 * (7 * (2 * LAYERS + attention * 15) + 8 * 2 * TABLE) + 8 * 11 * (
        2 * LAYERS + attention * 5.5
    )
    assert one(MeshShape(data=4)) == pytest.approx(one() / 4)


def test_slots_beyond_the_rollouts_make_nothing_faster() -> None:
    """By the memory's rate alone: a step of all slots, T of them, is the least there is."""
    budget = twelve_layers.make_budget(CELL)
    of_memory = DeviceRates(1e30, 1e30, 1.0)
    seconds = []
    for slots in (8, 16, 32, 64, 128, 256):
        s = budget.sizes(SWEEP.model_copy(update={"decode_slots": slots}))
        seconds.append(time_estimate.sampling_seconds(s, 8, 32, of_memory))
    assert seconds[0] > seconds[1] > seconds[2]
    assert seconds[2] <= seconds[3] <= seconds[4] <= seconds[5]


def test_layers_that_slide_see_their_window() -> None:
    """Of 15 positions and of 5.5, half of the layers see 4."""
    options = {"window": 4, "sliding_layers": list(range(6))}
    sliding = CELL.with_settings(model={"family": "qwen2", "options": options})
    fewer_seen = 4 * 6 * 4 * 16 * (32 * 7 * (15 - 4) + 8 * 11 * (5.5 - 4))
    found = time_estimate.sampling_seconds(sizes(cell=sliding), 8, 32, DeviceRates(1.0, 1e30, 1e30))
    assert found == one() - fewer_seen


def test_an_update_moves_and_multiplies() -> None:
    """6 operations a number; of memory, Adam's part alone: gradient, parameters and moments, 9
    times through."""
    s = sizes()
    attention = 2 * 12 * 4 * 16
    expected = 6 * (
        32 * (7 * (LAYERS + attention * 15) + 8 * TABLE) + 8 * 11 * (LAYERS + attention * 5.5)
    )
    assert time_estimate.update_seconds(s, 8, 32, DeviceRates(1e30, 1.0, 1e30)) == expected
    s_of_two = sizes(MeshShape(fsdp=2))
    gathered = time_estimate.update_seconds(s_of_two, 8, 32, DeviceRates(1e30, 1e30, 1e30, 1.0))
    # 2 microbatches of 8 and a block of 4 prompts a shard: half of 2 weight passes' weights and
    # gradients, in float32
    assert gathered == pytest.approx((2 + 1) / 2 * 3 * 4 * (LAYERS + TABLE + 64))
    nothing = time_estimate.update_seconds(s, 0, 0, DeviceRates(1e30, 1e30, 1.0))
    assert nothing == 9 * 4 * (LAYERS + TABLE + 64)


def test_the_sweep_takes_what_its_cells_take_side_by_side() -> None:
    """Cells of 100 and 128 rollouts at 2 a second, two seeds each, two at once; and no faster than
    the longest alone.
    """
    cells = [Cell(B_p, n, seed) for B_p, n in ((5, 20), (8, 16)) for seed in (0, 1)]
    rates = {(5, 20): 2.0, (8, 16): 2.0}
    forecast = time_estimate.make_forecast(cells, 100, 2, rates, 0.0, "timing")
    assert forecast.cell_seconds == {"5x20": 50.0, "8x16": 64.0}
    assert forecast.sweep_seconds == 114.0
    assert (
        time_estimate.make_forecast(cells[:1], 100, 4, rates, 0.0, "timing").sweep_seconds == 50.0
    )


def test_a_schedule_takes_what_its_stages_take() -> None:
    """80 rollouts at 2 a second, then 64 at 8."""
    cell = Cell(4, 4, 0, "grow", (Stage(0, 4, 4), Stage(70, 4, 8)))
    forecast = time_estimate.make_forecast(
        [cell], 144, 1, {(4, 4): 2.0, (4, 8): 8.0}, 1.0, "timing"
    )
    assert forecast.cell_seconds == {"grow": 49.0}


def test_a_probe_counts_evaluations_and_says_its_efficiency() -> None:
    s = sizes()
    rates = DeviceRates(1e9, 1e9, 1e30)
    pair_rates = time_estimate.rates_from_probe(s, [(8, 4)], rates)
    evaluation = time_estimate.evaluation_seconds(s, 2, rates)
    forecast = time_estimate.make_forecast(
        [Cell(8, 4, 0)], 100, 1, pair_rates, evaluation, str(rates)
    )
    update = time_estimate.sampling_seconds(s, 8, 32, rates) + time_estimate.update_seconds(
        s, 8, 32, rates
    )
    evaluated = 2 * 300 * 2  # at C = 0 and 100, validation problems, rollouts of each
    expected = (
        128 / 32 * update + time_estimate.sampling_seconds(s, evaluated / 2, evaluated, rates)
    ) / EFFICIENCY
    assert forecast.cell_seconds["8x4"] == pytest.approx(expected) == forecast.sweep_seconds
    assert f"{EFFICIENCY:.0%} efficiency" in forecast.source and "1 GFLOP/s" in forecast.source


def test_extra_sets_are_evaluated_too() -> None:
    """Each as many problems as the validation set: three sets of 300, and a panel of 50."""
    rates = DeviceRates(1e9, 1e9, 1e30)
    extra = {"ood": "solvers", "letters": "solvers:AB"}
    cell = CELL.with_settings(eval={"extra": extra, "panel": 50})
    problems = 2 * (3 * 300 + 50)
    expected = time_estimate.sampling_seconds(sizes(), problems, problems * 2, rates) / EFFICIENCY
    assert time_estimate.evaluation_seconds(sizes(cell=cell), 2, rates) == pytest.approx(expected)
