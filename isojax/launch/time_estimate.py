"""How long a sweep takes, from a lower bound and a stated efficiency.

The lower bound counts the operations of an update's matrix products and the bytes it must move,
each at the rate that a probe measured on this machine, one after the other:

    sampling   2 operations per weight for each token (in the layers, but for each response's
               first) and each prompt position; all weights, and the cache, once per step
    update     6 and 6, 2 more where a layer is computed again, 2 for the KL's reference, 8 for a
               critic; what layers keep for the gradient moves three times; sums of gradients once
               per microbatch, Adam's moments once
    links      where fsdp splits weights, each microbatch and block of prompts gathers them and
               scatters their gradient; where tensor does, each layer has two sums forwards and two
               backwards

The rates of chips that are not here are those that their makers publish.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from isojax.core.errors import InputError
from isojax.core.nouns import Cell
from isojax.launch.device_sizes import (
    FLOAT_BYTES,
    DeviceSizes,
    layer_bytes_read,
    response_activations,
)

# of the probed rates that an update reaches; docs/performance.md says how far off that was
EFFICIENCY = 0.6
GIB = 2**30  # bytes
# The overheads that do not shrink with B, in the time of one rollout: of an update, and of a
# prompt's prefill.
UPDATE_COST = 32
PROMPT_COST = 1
Pair = tuple[int, int]  # B_p, n


@dataclass(frozen=True)
class DeviceRates:
    """One device's rates while the others work too: operations/s of products as wide as a decode
    step and as a microbatch, bytes/s of memory, and of its links along an axis of the mesh."""

    decode_flops: float
    update_flops: float
    bandwidth: float
    link_bandwidth: float = math.inf
    efficiency: float = EFFICIENCY  # the share of these rates that is reached
    origin: str = "probed"

    def __str__(self) -> str:
        return (
            f"a lower bound at {self.efficiency:.0%} efficiency, all responses of full length"
            f" ({self.origin}, per device: {self.decode_flops / 1e9:,.0f} and"
            f" {self.update_flops / 1e9:,.0f} GFLOP/s, {self.bandwidth / GIB:,.1f} GiB/s); expect a"
            " factor 2 either way"
        )


# The share of those rates that an update reaches: by XLA's cost model for v5e, decoding reaches 42%
# of the memory's rate, and the gradient 31% of the products'.
PUBLISHED_EFFICIENCY = 0.35


def published_rates(tflops: float, memory: float, links: float) -> DeviceRates:
    """The rates of a chip as its maker publishes them.

    tflops: of bfloat16 products, in TFLOP/s. memory, links: in GB/s; links: along one axis of a
    mesh, both directions together.
    """
    return DeviceRates(
        decode_flops=1e12 * tflops,
        update_flops=1e12 * tflops,
        bandwidth=1e9 * memory,
        link_bandwidth=1e9 * links,
        efficiency=PUBLISHED_EFFICIENCY,
        origin="published",
    )


# By the name that jax has for a device: GiB that libtpu's compiler has for a program, and rates. A
# device of v3 and TPU7x is half a chip. Those of v3 share their chip's links, of 164 GB/s an axis.
CHIPS = {
    "TPU v3": (15.48, published_rates(61.5, 450, 82)),
    "TPU v4": (30.75, published_rates(275, 1228, 90)),
    "TPU v5 lite": (15.75, published_rates(197, 819, 90)),
    "TPU v5": (95.74, published_rates(459, 2765, 180)),
    "TPU v6 lite": (31.25, published_rates(918, 1640, 180)),
    "TPU7x": (94.75, published_rates(1153, 3690, 180)),
}
# By which sizes that fit are compared before anything is measured: those of v5e, of an H100 and of
# a core of a CPU.
TYPICAL_RATES = {
    "tpu": CHIPS["TPU v5 lite"][1],
    "gpu": published_rates(989, 3350, 450),
    "cpu": published_rates(0.08, 10, 10),
}


def find_chip(kind: str) -> tuple[float, DeviceRates]:
    """The GiB and rates of a chip, whose kind is a key of CHIPS; InputError where it is none."""
    if kind not in CHIPS:
        raise InputError(
            found=f"nothing is known of the memory of a {kind}; known are {', '.join(CHIPS)}",
        )
    return CHIPS[kind]


@dataclass(frozen=True)
class Forecast:
    """How long a sweep is expected to take."""

    rollouts_per_second: Mapping[Pair, float]  # of training
    cell_seconds: Mapping[str, float]  # by the cell's kind, evaluations included
    sweep_seconds: float
    source: str  # what they come from


def _tensor_sum_seconds(
    s: DeviceSizes, tokens: float, sums_per_layer: float, rates: DeviceRates
) -> float:
    """Seconds in which the devices that share weights add up what each has of layers' outputs.

    tokens: whose outputs [tokens D] are summed, in every layer so many times (`sums_per_layer`).
    """
    # A ring of k devices sends all but 1/k of an array, twice: to add up, and to hand out.
    bytes_of_a_sum = 2 * (1 - 1 / s.mesh.weight_parts) * s.compute_bytes * tokens * s.D
    return s.num_layers * sums_per_layer * bytes_of_a_sum / rates.link_bandwidth


def sampling_seconds(s: DeviceSizes, B_p: float, B: float, rates: DeviceRates) -> float:
    """Seconds of sampling B rollouts of B_p prompts, which all shards share, at full length T.

    A lower bound: products, memory and links one after the other, each at its rate.
    """
    P = s.shapes.prompt_length
    T = s.shapes.response_length
    shard_rollouts = B / s.shapes.shards
    shard_prompts = B_p / s.shapes.shards

    # Of a token: 2 operations with each weight, and 4 with each position that it sees, for each
    # number of its queries (`attended_values`, in all layers); on average it sees half of the
    # response, or of the prompt. The first of a response is drawn from its prompt.
    weights = s.active_params
    layer_flops = 2 * weights + 4 * s.attended_values(s.prompt_positions + T / 2)
    response_flops = (T - 1) * layer_flops + T * 2 * s.table_params
    prompt_flops = s.prompt_positions * (2 * weights + 4 * s.attended_values(P / 2))
    flops = shard_rollouts * response_flops + shard_prompts * prompt_flops

    # All slots take a step together, a token each. The first token of a response needs logits only,
    # no layers: T - 1 steps read layers and cache, T the table of logits. A step reads the slots'
    # share of the cache, not that of the table of prompts.
    slots = s.shapes.slots
    # How often all slots are filled: once at least, as those without a rollout take each step too.
    slot_fills = max(1.0, shard_rollouts / slots)
    slot_cache_bytes = s.cache_bytes() * slots / (slots + s.shapes.prefix_entries)
    step_bytes = layer_bytes_read(s, slots) + slot_cache_bytes
    logits_bytes_read = s.compute_bytes * s.table_params
    bytes_moved = slot_fills * ((T - 1) * step_bytes + T * logits_bytes_read)

    tokens = shard_rollouts * (T - 1) + shard_prompts * s.prompt_positions
    link_seconds = _tensor_sum_seconds(s, tokens, sums_per_layer=2, rates=rates)
    return flops / rates.decode_flops + bytes_moved / rates.bandwidth + link_seconds


def update_seconds(s: DeviceSizes, B_p: float, B: float, rates: DeviceRates) -> float:
    """Seconds of an update on B rollouts of B_p prompts, which all shards share, at full length T.

    A lower bound, as that of `sampling_seconds`.
    """
    P = s.shapes.prompt_length
    T = s.shapes.response_length
    shard_rollouts = B / s.shapes.shards
    shard_prompts = B_p / s.shapes.shards

    # For each weight and token: 2 forward and 4 back, 2 again by remat, 2 of the reference, 8 of a
    # critic.
    has_critic = s.critic_bytes > 0
    flops_per_weight = 6 + 2 * s.remat + 2 * s.has_reference + 8 * has_critic
    weights = s.active_params
    layer_flops = weights + 2 * s.attended_values(s.prompt_positions + T / 2)
    response_flops = flops_per_weight * ((T - 1) * layer_flops + T * s.table_params)
    prompt_flops = s.prompt_positions * flops_per_weight * (weights + 2 * s.attended_values(P / 2))
    flops = shard_rollouts * response_flops + shard_prompts * prompt_flops

    # A microbatch does not reach into the next block of prompts, so there are at least as many. In
    # each, what layers keep and the sum of gradients move three times; in Adam's step, arrays of
    # the parameters' size nine times.
    prompt_blocks = shard_prompts / s.shapes.prefill_batch
    microbatches = max(shard_rollouts / s.shapes.microbatch, prompt_blocks)
    microbatch_bytes = 3 * response_activations(s) + 3 * FLOAT_BYTES * s.num_params
    bytes_moved = microbatches * microbatch_bytes + 9 * s.param_bytes

    # Each pass through the layers gathers weights as products are computed, forwards, backwards and
    # for the reference, and scatters their gradient in float32. A block's prompts take a pass, but
    # where they go through the layers together with their responses, in the microbatch's.
    is_joint = s.shapes.joint_forward(positions_split=s.mesh.sequence > 1)
    weight_passes = microbatches + (0 if is_joint else prompt_blocks)
    bytes_per_weight = FLOAT_BYTES + s.compute_bytes * (2 + s.has_reference)
    gathered_bytes = weight_passes * (1 - 1 / s.fsdp_shards) * bytes_per_weight * s.num_params

    # Two sums forwards and two backwards, each a scatter and a gather, as devices share the tokens
    # of hidden states between products. The gradient gathers inputs of both products once more,
    # half a sum each, and a layer that is computed again one of them more.
    tokens = shard_rollouts * (T - 1) + shard_prompts * s.prompt_positions
    link_seconds = gathered_bytes / rates.link_bandwidth
    sums_per_layer = 2 + 2 + 2 * 0.5 + s.remat * 0.5
    link_seconds += _tensor_sum_seconds(s, tokens, sums_per_layer, rates)
    return flops / rates.update_flops + bytes_moved / rates.bandwidth + link_seconds


def cell_cost(cell: Cell, budget: int) -> float:
    """A cell's expected time up to C = `budget`, in units of the time of one rollout.

    It decides which cells come first; it is no forecast.
    """
    updates_by_span = cell.updates_by_span(cell.updates_to_reach(budget))
    return sum(
        updates * (UPDATE_COST + PROMPT_COST * span.B_p + span.B)
        for span, updates in updates_by_span
    )


def rates_from_probe(
    s: DeviceSizes, pairs: Sequence[Pair], rates: DeviceRates
) -> dict[Pair, float]:
    """Rollouts/s of training at each (B_p, n), without evaluations."""
    pair_rates = {}
    for B_p, n in pairs:
        B = B_p * n
        seconds = sampling_seconds(s, B_p, B, rates) + update_seconds(s, B_p, B, rates)
        pair_rates[B_p, n] = rates.efficiency * B / seconds
    return pair_rates


def evaluation_seconds(s: DeviceSizes, num_evaluations: int, rates: DeviceRates) -> float:
    """Seconds of so many evaluations, which sample and train nothing.

    Each takes cell.eval.samples rollouts of each problem of validation, of every further problem
    set, taken to be as large, and of the panel of training problems.
    """
    data, evaluation = s.cell.data, s.cell.eval
    problem_sets = 1 + len(evaluation.extra)
    problems = num_evaluations * (data.validation * problem_sets + evaluation.panel)
    rollouts = problems * evaluation.samples
    return sampling_seconds(s, problems, rollouts, rates) / rates.efficiency


def forecast_from_rates(
    s: DeviceSizes, cells: Sequence[Cell], budget: int, concurrent_cells: int, rates: DeviceRates
) -> Forecast:
    """The times of cells that run up to C = `budget`, by the rates of their devices.

    s: the sizes of the sweep. concurrent_cells: how many train at the same time.
    """
    targets = s.cell.eval.evaluation_targets(budget)
    pairs = sorted({pair for cell in cells for pair in cell.pairs})
    return make_forecast(
        cells,
        final_target=targets[-1],
        concurrent_cells=concurrent_cells,
        rates=rates_from_probe(s, pairs, rates),
        evaluation_seconds=evaluation_seconds(s, len(targets), rates),
        source=str(rates),
    )


def make_forecast(
    cells: Sequence[Cell],
    final_target: int,
    concurrent_cells: int,
    rates: Mapping[Pair, float],
    evaluation_seconds: float,
    source: str,
) -> Forecast:
    """The times of cells that run up to C = `final_target` in whole updates.

    rates: rollouts/s of training at each (B_p, n) that the cells have. evaluation_seconds: of all
    evaluations of a run. source: what the forecast comes from, a text for its reader.
    """
    cell_seconds = {}
    for cell in cells:
        updates_by_span = cell.updates_by_span(cell.updates_to_reach(final_target))
        training_seconds = sum(
            updates * span.B / rates[span.B_p, span.n] for span, updates in updates_by_span
        )
        cell_seconds[cell.kind] = evaluation_seconds + training_seconds

    # Cells that run side by side share the work, but no cell is faster than alone.
    seconds = [cell_seconds[cell.kind] for cell in cells]
    sweep_seconds = max(sum(seconds) / concurrent_cells, *seconds)
    return Forecast(rates, cell_seconds, sweep_seconds, source)
