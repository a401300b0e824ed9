"""How long a sweep takes: from its own clocks where cells have run, else from a floor and a stated efficiency. No jax
here.

The floor of an update counts the operations of its matrix products and the bytes it must move, each at the rate that a
probe measured on this machine, one after the other:

    sampling   2 operations a number of the weights for each token (of layers' weights, but for each response's first)
    and each prompt
               position; all weights, and the cache, once a step
    update     6 and 6, 2 more where a layer is computed again, 2 for the KL's reference, 8 for a critic; what layers
    keep for the
               gradient moves three times; sums of gradients once a microbatch, Adam's moments once
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from isojax.core.config import CellConfig, SweepConfig
from isojax.core.nouns import Cell, RunRecord
from isojax.core.shapes import make_sampler_shapes
from isojax.launch.device_sizes import FLOAT_BYTES, DeviceSizes, MeshSizes
from isojax.launch.memory_model import kv_cache_bytes, response_activations
from isojax.launch.planner import cell_cost

EFFICIENCY = 0.6  # of the floor's rates that an update reaches; see docs/performance.md for how far off that was
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class DeviceRates:
    """Of one device at work beside the others: operations a second of products with as many rows as a decode step and
    as a microbatch have, and bytes a second of memory."""

    decode_flops: float
    update_flops: float
    bandwidth: float


@dataclass(frozen=True)
class Forecast:
    """Expected: rollouts a second of training, and seconds of a cell with its evaluations, by (B_p, n); seconds of the
    sweep; and `source`, what they come from."""

    rollouts_per_second: Mapping[tuple[int, int], float]
    cell_seconds: Mapping[tuple[int, int], float]
    sweep_seconds: float
    source: str


@dataclass(frozen=True)
class DeviceWorkload:
    """What one device does in a sweep of these sizes."""

    sizes: DeviceSizes
    evaluation_rollouts: int  # rollouts of all evaluations of a cell

    def sampling_seconds(self, B_p: float, B: float, rates: DeviceRates) -> float:
        """Seconds of sampling B rollouts to B_p prompts, over all shards."""
        s, S = self.sizes, self.sizes.geometry.shards
        P, T, prompt_positions = s.geometry.prompt_length, s.geometry.response_length, s.prompt_positions
        layer_weights, attention_flops = s.L * s.layer_params, 4 * s.L * s.N * s.H
        layer_flops = 2 * layer_weights + attention_flops * (
            prompt_positions + T / 2
        )  # a token's; the first of a response is drawn from its prompt
        flops = B / S * ((T - 1) * layer_flops + T * 2 * s.embedding_params) + B_p / S * prompt_positions * (
            2 * layer_weights + attention_flops * P / 2
        )
        slot_fills = B / S / s.geometry.slots  # of all slots, a token each step; the first one's without layers
        slot_cache_bytes = kv_cache_bytes(s) * s.geometry.slots / (s.geometry.slots + s.geometry.prefix_entries)
        bytes_moved = slot_fills * (
            (T - 1) * (s.compute_itemsize * layer_weights + slot_cache_bytes)
            + T * s.compute_itemsize * s.embedding_params
        )
        return flops / rates.decode_flops + bytes_moved / rates.bandwidth

    def update_seconds(self, B_p: float, B: float, rates: DeviceRates) -> float:
        """Seconds of an update on B rollouts to B_p prompts."""
        s, S = self.sizes, self.sizes.geometry.shards
        P, T, prompt_positions = s.geometry.prompt_length, s.geometry.response_length, s.prompt_positions
        flops_per_weight = 6 + 2 * s.remat + 2 * (s.reference_bytes > 0) + 8 * (s.critic_bytes > 0)
        layer_weights, attention_flops = s.L * s.layer_params, 2 * s.L * s.N * s.H
        layer_flops = layer_weights + attention_flops * (prompt_positions + T / 2)
        flops = B / S * flops_per_weight * (
            (T - 1) * layer_flops + T * s.embedding_params
        ) + B_p / S * prompt_positions * flops_per_weight * (layer_weights + attention_flops * P / 2)
        microbatches = B / S / s.geometry.microbatch
        bytes_moved = microbatches * (3 * response_activations(s) + 3 * FLOAT_BYTES * s.num_params) + 9 * s.param_bytes
        return flops / rates.update_flops + bytes_moved / rates.bandwidth

    def rollouts_per_second(self, B_p: int, n: int, rates: DeviceRates) -> float:
        """Rollouts a second of training."""
        return (
            EFFICIENCY
            * B_p
            * n
            / (self.sampling_seconds(B_p, B_p * n, rates) + self.update_seconds(B_p, B_p * n, rates))
        )

    def evaluation_seconds(self, samples: int, rates: DeviceRates) -> float:
        """Seconds of all evaluations of a cell."""
        return self.sampling_seconds(self.evaluation_rollouts / samples, self.evaluation_rollouts, rates) / EFFICIENCY


def device_workload(
    cell: CellConfig,
    sweep: SweepConfig,
    pairs: Sequence[tuple[int, int]],
    mesh: MeshSizes,
    vocab: int,
    on_device: bool,
    backend: str,
) -> DeviceWorkload:
    """What a device does in a sweep whose sizes are chosen."""
    assert sweep.decode_slots and sweep.microbatch and sweep.prefill_batch, "the planner chooses them"
    lengths = cell.sampling.prompt_length, cell.sampling.response_length
    batch_sizes = mesh.data * mesh.fsdp, sweep.decode_slots, sweep.microbatch
    geometry = make_sampler_shapes(pairs, *batch_sizes, *lengths, sweep.prefill_batch, sweep.slots_per_prefix or 1)
    evaluation_rollouts = (
        len(cell.eval.evaluation_targets(sweep.budget)) * (cell.data.validation + cell.eval.panel) * cell.eval.samples
    )
    return DeviceWorkload(
        DeviceSizes(cell, sweep.remat == "layer", geometry, mesh, vocab, on_device, backend), evaluation_rollouts
    )


def rates_from_timing(
    runs: Iterable[RunRecord], pairs: Sequence[tuple[int, int]], devices_per_cell: int
) -> dict[tuple[int, int], float]:
    """Rollouts a second, evaluations included, of each pair: as its own cells' clocks have it, or, where none has run,
    as those of the others say it by planner.cost. Empty where no cell has clocks of two evaluations. `devices`: of a
    cell."""
    measured_rates: dict[tuple[int, int], list[float]] = {}
    for run in runs:
        if len(run.device_hours) < 2:
            continue
        seconds = (run.device_hours[-1] - run.device_hours[0]) * SECONDS_PER_HOUR / devices_per_cell
        rollouts = run.points[-1].rollouts - run.points[0].rollouts
        if seconds > 0 and rollouts > 0:
            measured_rates.setdefault((run.cell.B_p, run.cell.n), []).append(rollouts / seconds)
    if not measured_rates:
        return {}
    pair_rates = {pair: statistics.median(rates) for pair, rates in measured_rates.items()}
    cost_per_second = statistics.median(rate * _rollout_cost(pair) for pair, rate in pair_rates.items())
    return {pair: pair_rates[pair] if pair in pair_rates else cost_per_second / _rollout_cost(pair) for pair in pairs}


def _rollout_cost(pair: tuple[int, int]) -> float:
    """Of a rollout of this pair, in the planner's unit."""
    cell = Cell(*pair, 0)
    return cell_cost(cell, cell.B) / cell.B


def make_forecast(
    cells: Sequence[Cell],
    final_target: int,
    concurrent_cells: int,
    measured_rates: Mapping[tuple[int, int], float],
    floor_model: tuple[DeviceWorkload, DeviceRates, int] | None,
) -> Forecast:
    """For cells that run up to C = last, `at_once` side by side: by their clocks, else by the floor: work, rates, and
    rollouts a problem of an evaluation."""
    pairs = sorted({(cell.B_p, cell.n) for cell in cells})
    rollouts = {(B_p, n): -(-final_target // (B_p * n)) * B_p * n for B_p, n in pairs}
    if measured_rates:
        rates, source = dict(measured_rates), "this sweep's own clocks, evaluations included"
        pair_seconds = {pair: rollouts[pair] / rates[pair] for pair in pairs}
    else:
        assert floor_model is not None, "without clocks there is a floor"
        workload, device_rates, samples = floor_model
        rates = {(B_p, n): workload.rollouts_per_second(B_p, n, device_rates) for B_p, n in pairs}
        evaluation_seconds = workload.evaluation_seconds(samples, device_rates)
        pair_seconds = {pair: rollouts[pair] / rates[pair] + evaluation_seconds for pair in pairs}
        source = (
            f"a floor at {EFFICIENCY:.0%} efficiency, all responses of full length (probed, a device: "
            f"{device_rates.decode_flops / 1e9:,.0f} and {device_rates.update_flops / 1e9:,.0f} GFLOP/s, "
            f"{device_rates.bandwidth / 1e9:,.1f} GB/s); expect a factor 2 either way"
        )
    per_cell_seconds = [pair_seconds[cell.B_p, cell.n] for cell in cells]
    return Forecast(rates, pair_seconds, max(sum(per_cell_seconds) / concurrent_cells, *per_cell_seconds), source)
