"""The grid as cells: order, seeds, what is refused; static sizes; the evaluation grid."""

from __future__ import annotations

import pytest

from isojax.core.config import CellConfig, EvalConfig, PrecisionConfig, SamplingConfig, SweepConfig
from isojax.core.nouns import Cell
from isojax.launch.device_budget import format_bytes
from isojax.launch.planner import MAX_PREFILL_BATCH, MAX_SHARD_ROWS, plan_cells, resolve_sweep_sizes
from isojax.launch.time_estimate import cell_cost
from tests.refusals import refused


def test_every_pair_and_seed_once_and_the_slowest_first() -> None:
    cells = plan_cells(
        SweepConfig(B_p=(16, 64), n=(2, 32), seeds=2, seed=3, B_max=4096, budget=10_000)
    )
    assert len(cells) == 8 == len(set(cells))
    assert {cell.seed for cell in cells} == {3000, 3001}
    assert (cells[0].B_p, cells[0].n) == (16, 2)  # the most updates
    assert (cells[-1].B_p, cells[-1].n) == (64, 32)
    costs = [cell_cost(cell, 10_000) for cell in cells]
    assert costs == sorted(costs, reverse=True)


def test_the_order_does_not_depend_on_how_the_grid_is_written() -> None:
    assert plan_cells(SweepConfig(n=(2, 4, 8))) == plan_cells(SweepConfig(n=(8, 2, 4)))


def test_cost_counts_updates_prompts_and_rollouts() -> None:
    # 100 rollouts at B = 2 x 5 are 10 updates of (32 + 2 prompts + 10 rollouts)
    assert cell_cost(Cell(2, 5, 0), 100) == 10 * (32 + 2 + 10)


def test_cells_over_B_max_are_left_out() -> None:
    cells = plan_cells(SweepConfig(B_p=(16, 64), n=(8, 32), B_max=512))
    assert {(cell.B_p, cell.n) for cell in cells} == {(16, 8), (16, 32), (64, 8)}


@pytest.mark.parametrize(
    "sizes",
    [{"B_p": (16, 1024), "n": (8, 32)}, {"n": (8, 64)}],
)
def test_values_of_which_B_max_leaves_no_cell_are_refused(
    sizes: dict[str, tuple[int, ...]],
) -> None:
    with refused():
        plan_cells(SweepConfig(**sizes, B_max=512))


def test_a_budget_below_one_update_is_refused() -> None:
    with refused(where="sweep.budget"):
        plan_cells(SweepConfig(B_p=(16,), n=(2, 32), budget=511))
    assert len(plan_cells(SweepConfig(B_p=(16,), n=(2, 32), budget=512))) == 2


@pytest.mark.parametrize("n", [(), (2, 2)])
def test_an_empty_axis_or_a_value_twice_is_refused(n: tuple[int, ...]) -> None:
    with refused(where="sweep.n"):
        plan_cells(SweepConfig(n=n))


@pytest.mark.parametrize(("shards", "R", "g"), [(1, 91, 13), (4, 23, 4), (8, 12, 2)])
def test_slots_and_prompts_fit_the_smallest_cell_of_a_shard(shards: int, R: int, g: int) -> None:
    # 13 x 7 = 91
    sweep = resolve_sweep_sizes(SweepConfig(B_p=(13,), n=(7, 32)), shards, CellConfig())
    assert (sweep.decode_slots, sweep.microbatch, sweep.prefill_batch) == (R, min(R, 7 * g), g)


def test_a_microbatch_does_not_reach_beyond_a_block_of_prompts() -> None:
    sweep = resolve_sweep_sizes(SweepConfig(B_p=(32, 64), n=(4, 32), B_max=2048), 1, CellConfig())
    assert (sweep.decode_slots, sweep.microbatch, sweep.prefill_batch) == (
        128,
        64,
        MAX_PREFILL_BATCH,
    )


def test_set_sizes_are_kept_dropped_pairs_do_not_count_and_there_is_a_cap() -> None:
    assert resolve_sweep_sizes(SweepConfig(decode_slots=5), 1, CellConfig()).decode_slots == 5
    assert resolve_sweep_sizes(SweepConfig(decode_slots=5), 1, CellConfig()).microbatch == 32
    assert (
        resolve_sweep_sizes(
            SweepConfig(B_p=(512,), n=(2,), B_max=2048), 1, CellConfig()
        ).decode_slots
        == MAX_SHARD_ROWS
    )


def test_targets_are_zero_and_a_log_grid_that_more_budget_only_extends() -> None:
    grid = EvalConfig(start=1000, ratio=1.1)
    assert grid.evaluation_targets(1500) == [0, 1000, 1100, 1210, 1331, 1465]  # 1464.1 rounded up
    assert grid.evaluation_targets(1465) == [0, 1000, 1100, 1210, 1331, 1465]
    assert grid.evaluation_targets(1464) == [0, 1000, 1100, 1210, 1331]
    with refused(where="sweep.budget"):
        grid.evaluation_targets(999)
    assert grid.evaluation_targets(90_000)[
        : len(grid.evaluation_targets(5000))
    ] == grid.evaluation_targets(5000)
    dense = EvalConfig(start=1, ratio=1.01).evaluation_targets(50)
    assert dense == sorted(set(dense)) == list(range(51))


@pytest.mark.parametrize(
    ("lengths", "slots", "n", "W"),
    [
        ((64, 128), 32, 8, 1),
        ((511, 128), 32, 8, 1),
        ((512, 128), 32, 8, 8),
        ((512, 128), 24, 32, 8),
        ((512, 128), 64, 32, 16),
        ((512, 128), 7, 8, 1),
    ],
)
def test_slots_share_long_prompts(lengths: tuple[int, int], slots: int, n: int, W: int) -> None:
    """From P = 4 T on, in prefix groups of at most 16 that divide R and that the smallest n
    fills."""
    cell = CellConfig(sampling=SamplingConfig(prompt_length=lengths[0], response_length=lengths[1]))
    assert (
        resolve_sweep_sizes(SweepConfig(n=(n, 64), decode_slots=slots), 1, cell).slots_per_prefix
        == W
    )


def test_prefix_groups_that_cannot_be_are_refused() -> None:
    long = SamplingConfig(prompt_length=512, response_length=64)
    with refused(where="sweep.slots_per_prefix"):
        resolve_sweep_sizes(
            SweepConfig(n=(8,), decode_slots=32, slots_per_prefix=5), 1, CellConfig()
        )
    with refused(where="sweep.slots_per_prefix"):
        resolve_sweep_sizes(
            SweepConfig(n=(8,), decode_slots=32, slots_per_prefix=4, decode_attention="pallas"),
            1,
            CellConfig(),
        )
    with refused(where="sweep.slots_per_prefix"):
        resolve_sweep_sizes(
            SweepConfig(n=(8,), decode_slots=32, slots_per_prefix=4),
            1,
            CellConfig(precision=PrecisionConfig(cache="int8")),
        )
    with refused(where="sweep.slots_per_prefix"):
        resolve_sweep_sizes(
            SweepConfig(n=(4, 32), decode_slots=32, slots_per_prefix=16), 1, CellConfig()
        )
    assert (
        resolve_sweep_sizes(
            SweepConfig(decode_slots=32),
            1,
            CellConfig(sampling=long, precision=PrecisionConfig(cache="int8")),
        ).slots_per_prefix
        == 1
    )
    assert (
        resolve_sweep_sizes(
            SweepConfig(decode_slots=32, decode_attention="pallas"), 1, CellConfig(sampling=long)
        ).slots_per_prefix
        == 1
    )


def test_memory_has_one_unit() -> None:
    sizes = (0, 1, 2**20, 2**29, 2**30, 23.5 * 2**30, 2**42)
    assert [format_bytes(size) for size in sizes] == [
        "0 GiB", "under 0.001 GiB", "under 0.001 GiB", "0.5 GiB", "1 GiB", "23.5 GiB", "4,096 GiB",
    ]  # fmt: skip
