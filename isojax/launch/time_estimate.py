"""How long the parts of a sweep's programs take: lower bounds, an efficiency and fixed overheads.

A lower bound counts the operations of matrix products and the bytes that must move, each at the
rate of the device, one after the other:

    decode step     2 operations per weight and 4 per number of the queries and position that they
                    see, for each of R slots, with or without a rollout; the layers' weights, the
                    table of logits and the slots' part of the cache, read once
    prefill         the same products for each prompt position; the layers' weights, once, and
                    what layers make of the prompts as often as TRAFFIC has it
    microbatch      6 operations per weight and token (4 where the weight is frozen), 2 more where a
                    layer is computed again, 2 for the KL's reference, 8 for a critic; what layers
                    make of the tokens, and logits, move as often as TRAFFIC has it, the sum of
                    gradients three times
    end of update   Adam's step: arrays of the parameters' size, as often as TRAFFIC has it
    links           where fsdp splits weights, each microbatch and block of prompts gathers them and
                    scatters their gradient; where tensor does, each layer has two sums forwards and
                    two backwards

A device reaches a share of these rates (`efficiency`), and there are times that do not shrink with
the sizes: each operation of a compiled program takes so long at least, and each step of a kernel.

The rates of chips that are not here are those that their makers publish.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from isojax.core.errors import InputError
from isojax.core.nouns import Cell
from isojax.core.shapes import PALLAS, TPU_LANES
from isojax.launch.device_sizes import (
    DeviceSizes,
    layer_bytes_read,
    prompt_products,
    response_products,
)
from isojax.launch.device_weights import FLOAT_BYTES

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
    """One device's rates while the others work too, and what each pass takes at least.

    Operations/s of products as wide as a decode step and as a microbatch, bytes/s of memory, and of
    its links along an axis of the mesh.
    """

    decode_flops: float
    update_flops: float
    bandwidth: float
    link_bandwidth: float = math.inf
    efficiency: float = EFFICIENCY  # the share of these rates that is reached
    origin: str = "probed"
    # Seconds that each operation of a program takes at least, and each step of a kernel's grid; 0
    # where the efficiency includes them.
    operation_seconds: float = 0.0
    kernel_step_seconds: float = 0.0

    def __str__(self) -> str:
        overheads = ""
        if self.operation_seconds:
            overheads = f" and {1e6 * self.operation_seconds:.2g} us for each operation at least"
        return (
            f"a lower bound at {self.efficiency:.0%} efficiency{overheads}, all responses of full"
            f" length ({self.origin}, per device: {self.decode_flops / 1e9:,.0f} and"
            f" {self.update_flops / 1e9:,.0f} GFLOP/s, {self.bandwidth / GIB:,.1f} GiB/s); expect a"
            " factor 2 either way"
        )


# The share of published rates that a program reaches, and what an operation takes at least: by the
# cycles that XLA expects of programs compiled for TPUs (docs/performance.md). A small operation is
# 2,120 cycles, at 1.5 GHz on v5e.
PUBLISHED_EFFICIENCY = 0.85
OPERATION_SECONDS = 1.4e-6
KERNEL_STEP_SECONDS = 0.35e-6
GPU_EFFICIENCY = 0.35  # of an H100's published rates, with all overheads

# Operations of the compiled programs: of a layer in a decode step, forwards and backwards; outside
# of the layers in a decode step, a block of prompts, a microbatch and the rest of an update.
DECODE_OPERATIONS = 20
FORWARD_OPERATIONS = 36
BACKWARD_OPERATIONS = 90
STEP_OPERATIONS = 40
BLOCK_OPERATIONS = 30
UPDATE_OPERATIONS = 100


@dataclass(frozen=True)
class Traffic:
    """How often arrays move between a device's memory and its cores, as XLA compiles them."""

    forward: int  # all that a layer makes of its tokens, forwards
    backward: int
    decode_logits: int  # arrays [slots, vocabulary] in float32, in a decode step
    update_logits: int  # arrays [tokens, vocabulary] in float32, in the update
    adam: int  # arrays of what is trained in float32, at an update's end


# On a TPU by the operations of compiled programs; elsewhere the efficiency includes the rest.
TRAFFIC = {
    "cpu": Traffic(forward=1, backward=2, decode_logits=0, update_logits=0, adam=9),
    "gpu": Traffic(forward=1, backward=2, decode_logits=0, update_logits=0, adam=9),
    "tpu": Traffic(forward=4, backward=9, decode_logits=15, update_logits=8, adam=20),
}
DECODE_BLOCK = 512  # positions of the cache that a step of the decode kernel reads, at most
DECODE_GROUP = 8  # slots of a step of the decode kernel, at most
ATTENTION_BLOCK = 512  # queries, and keys, of a step of the update's attention kernels, at most


def published_rates(tflops: float, memory: float, links: float) -> DeviceRates:
    """The rates of a TPU as its maker publishes them.

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
        operation_seconds=OPERATION_SECONDS,
        kernel_step_seconds=KERNEL_STEP_SECONDS,
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
    "gpu": DeviceRates(
        decode_flops=989e12,
        update_flops=989e12,
        bandwidth=3350e9,
        link_bandwidth=450e9,
        efficiency=GPU_EFFICIENCY,
        origin="published",
    ),
    "cpu": DeviceRates(
        decode_flops=0.08e12, update_flops=0.08e12, bandwidth=10e9, link_bandwidth=10e9
    ),
}


def find_chip(kind: str) -> tuple[float, DeviceRates]:
    """The GiB and rates of a chip, whose kind is a key of CHIPS; InputError where it is none."""
    if kind not in CHIPS:
        raise InputError(
            found=f"nothing is known of the memory of a {kind}; known are {', '.join(CHIPS)}",
        )
    return CHIPS[kind]


@dataclass(frozen=True)
class ProgramTimes:
    """Seconds that the parts of a sweep's programs take; all devices of a mesh work side by side.

    R slots, g prompts of a block and m rows of a microbatch are those of each shard.
    """

    decode_step: float  # of the sampler: one token in each of R slots
    prefill_block: float  # of the sampler: a block of g prompts
    gradient_block: float  # of the update: a block of g prompts, without its microbatches
    microbatch: float  # of the update: m responses of full length
    update_end: float  # once per update: Adam's step, and what is outside of the blocks


def program_times(s: DeviceSizes, rates: DeviceRates) -> ProgramTimes:
    """How long the programs of a sweep are expected to take, all responses of full length T."""
    bound = time_bounds(s, rates)
    start = start_times(s, rates)
    return ProgramTimes(
        decode_step=bound.decode_step / rates.efficiency + start.decode_step,
        prefill_block=bound.prefill_block / rates.efficiency + start.prefill_block,
        gradient_block=bound.gradient_block / rates.efficiency + start.gradient_block,
        microbatch=bound.microbatch / rates.efficiency + start.microbatch,
        update_end=bound.update_end / rates.efficiency + start.update_end,
    )


def start_times(s: DeviceSizes, rates: DeviceRates) -> ProgramTimes:
    """The times that do not shrink with the sizes: the start of each operation and kernel step."""
    P = s.prompt_positions
    T = s.shapes.response_length
    layers = s.num_layers

    # Forwards and backwards, and once more forwards for the reference, or to compute a layer again.
    forward_passes = 1 + s.remat + s.has_reference
    update_operations = forward_passes * FORWARD_OPERATIONS + BACKWARD_OPERATIONS
    # Backwards the kernel runs again, and two more compute the gradient.
    kernel_calls = forward_passes + 3

    decode_steps = math.ceil(s.shapes.slots / DECODE_GROUP) * (P + T) / DECODE_BLOCK
    prompt_steps = s.shapes.prefill_batch * _attention_steps(s, P, P)
    response_steps = s.shapes.microbatch * _attention_steps(s, T, P + T)
    is_joint = _is_joint(s)

    def seconds(operations: float, kernel_steps: float) -> float:
        return rates.operation_seconds * operations + rates.kernel_step_seconds * kernel_steps

    block_update = seconds(
        layers * update_operations + BLOCK_OPERATIONS, layers * kernel_calls * prompt_steps
    )
    return ProgramTimes(
        decode_step=seconds(
            layers * DECODE_OPERATIONS + STEP_OPERATIONS,
            layers * decode_steps if s.decode_attention in PALLAS else 0,
        ),
        prefill_block=seconds(
            layers * FORWARD_OPERATIONS + BLOCK_OPERATIONS, layers * prompt_steps
        ),
        # Prompts that go along with their responses take no pass of their own.
        gradient_block=rates.operation_seconds * BLOCK_OPERATIONS if is_joint else block_update,
        microbatch=seconds(
            layers * update_operations + BLOCK_OPERATIONS, layers * kernel_calls * response_steps
        ),
        update_end=seconds(UPDATE_OPERATIONS, 0),
    )


def _attention_steps(s: DeviceSizes, queries: int, keys: int) -> float:
    """Steps of the attention kernel's grid for a row, of so many queries and keys, in a layer.

    0 with attention without a kernel.
    """
    if s.holds_scores:
        return 0.0
    blocks = math.ceil(queries / ATTENTION_BLOCK) * math.ceil(keys / ATTENTION_BLOCK)
    heads = sum(layer.count * layer.heads for layer in s.layers) / s.num_layers
    return heads * blocks


def time_bounds(s: DeviceSizes, rates: DeviceRates) -> ProgramTimes:
    """Lower bounds: products, memory and links one after the other, each at its full rate."""
    # In Adam's step, arrays of the size of what is trained move.
    adam_bytes = TRAFFIC[s.backend].adam * (s.weights.trained_bytes + s.critic_bytes)
    return ProgramTimes(
        decode_step=_decode_step_bound(s, rates),
        prefill_block=_prefill_bound(s, rates),
        gradient_block=_gradient_block_bound(s, rates),
        microbatch=_microbatch_bound(s, rates),
        update_end=adam_bytes / rates.bandwidth,
    )


def _is_joint(s: DeviceSizes) -> bool:
    """Whether the update takes prompts and their responses through the layers together."""
    return s.shapes.joint_forward(positions_split=s.mesh.sequence > 1)


def _tensor_sum_seconds(
    s: DeviceSizes, tokens: float, sums_per_layer: float, rates: DeviceRates
) -> float:
    """Seconds in which the devices that share weights add up what each has of layers' outputs.

    tokens: whose outputs [tokens D] are summed, in every layer so many times (`sums_per_layer`).
    """
    # A ring of k devices sends all but 1/k of an array, twice: to add up, and to hand out.
    bytes_of_a_sum = 2 * (1 - 1 / s.mesh.weight_parts) * s.compute_bytes * tokens * s.D
    return s.num_layers * sums_per_layer * bytes_of_a_sum / rates.link_bandwidth


def _decode_step_bound(s: DeviceSizes, rates: DeviceRates) -> float:
    """Seconds of one token in each of R slots; a slot without a rollout takes the step too."""
    R = s.shapes.slots
    P = s.prompt_positions
    T = s.shapes.response_length

    # Of a token: 2 operations with each weight, and 4 with each position that it sees, for each
    # number of its queries (`attended_values`, in all layers): on average half of the response.
    layer_flops = 2 * s.weights.active_params + 4 * s.attended_values(P + T / 2)
    flops = R * (layer_flops + 2 * s.weights.table_params)

    # A step reads the slots' share of the cache, not that of the table of prompts, in positions;
    # W slots share the positions of a prompt.
    slot_positions = R * T + R // s.shapes.slots_per_prefix * P
    table_positions = s.shapes.prefix_entries * P
    cache_bytes = s.cache_bytes() * slot_positions / (slot_positions + table_positions)
    if s.decode_attention in PALLAS:
        # The kernel reads whole blocks of what is in use, on average half of the response.
        cache_bytes *= min(1.0, (P + T / 2 + DECODE_BLOCK / 2) / (P + T))
    table_bytes = s.compute_bytes * s.weights.table_params
    logit_bytes = TRAFFIC[s.backend].decode_logits * FLOAT_BYTES * R * s.V
    bytes_moved = layer_bytes_read(s, R) + cache_bytes + table_bytes + logit_bytes

    link_seconds = _tensor_sum_seconds(s, R, sums_per_layer=2, rates=rates)
    return flops / rates.decode_flops + bytes_moved / rates.bandwidth + link_seconds


def _prefill_bound(s: DeviceSizes, rates: DeviceRates) -> float:
    """Seconds of a block of g prompts through the sampler's layers; a position sees half of them
    before it on average."""
    layer_flops = 2 * s.weights.active_params + 4 * s.attended_values(s.shapes.prompt_length / 2)
    flops = s.prefill_tokens * layer_flops
    # What a layer makes of its tokens also moves where it is turned round, between products.
    products = prompt_products(s) + _prompt_padding(s)
    bytes_moved = layer_bytes_read(s, s.prefill_tokens) + TRAFFIC[s.backend].forward * products
    link_seconds = _tensor_sum_seconds(s, s.prefill_tokens, sums_per_layer=2, rates=rates)
    return flops / rates.decode_flops + bytes_moved / rates.bandwidth + link_seconds


def _flops_per_weight(s: DeviceSizes) -> int:
    """Operations with each weight for a token of an update.

    2 forwards, 2 backwards to the layer's inputs and 2 to the weight, unless it is frozen, as with
    adapters; 2 again by remat, 2 of the reference, 8 of a critic.
    """
    is_trained = not s.weights.adapters
    has_critic = s.critic_bytes > 0
    return 4 + 2 * is_trained + 2 * s.remat + 2 * s.has_reference + 8 * has_critic


def _gradient_block_bound(s: DeviceSizes, rates: DeviceRates) -> float:
    """Seconds of g prompts in the update; 0 where they go through the layers with responses."""
    if _is_joint(s):
        return 0.0
    flops = s.prefill_tokens * _prompt_position_flops(s)
    products = prompt_products(s) + _prompt_padding(s)
    bytes_moved = _update_moves(s) * products + 3 * _gradient_bytes(s)
    link_seconds = _weight_pass_seconds(s, rates) + _update_sum_seconds(s, s.prefill_tokens, rates)
    return flops / rates.update_flops + bytes_moved / rates.bandwidth + link_seconds


def _microbatch_bound(s: DeviceSizes, rates: DeviceRates) -> float:
    """Seconds of m responses of full length in the update; and of their g prompts, where both go
    through the layers together. P, T: positions of a prompt and of a response."""
    P = s.prompt_positions
    T = s.shapes.response_length
    m = s.shapes.microbatch

    # A token sees its prompt and on average half of the response. With each position it makes twice
    # the operations that it makes with a weight: for the scores, and for the mixed values.
    # The first token of a response is drawn from its prompt: it needs logits, and no layers.
    layer_flops = s.weights.active_params + 2 * s.attended_values(P + T / 2)
    response_flops = _flops_per_weight(s) * ((T - 1) * layer_flops + T * s.weights.table_params)
    flops = m * response_flops
    tokens = m * (T - 1)
    if _is_joint(s):
        flops += s.prefill_tokens * _prompt_position_flops(s)
        tokens += s.prefill_tokens

    # The sum of gradients is read and written, and the microbatch's own written.
    products = response_products(s) + _padding_bytes(s, m, T, P + T)
    logit_bytes = TRAFFIC[s.backend].update_logits * FLOAT_BYTES * m * T * s.V
    bytes_moved = _update_moves(s) * products + logit_bytes + 3 * _gradient_bytes(s)
    link_seconds = _weight_pass_seconds(s, rates) + _update_sum_seconds(s, tokens, rates)
    return flops / rates.update_flops + bytes_moved / rates.bandwidth + link_seconds


def _prompt_position_flops(s: DeviceSizes) -> float:
    """Operations of a prompt's position in the update; it needs no logits."""
    layer_flops = s.weights.active_params + 2 * s.attended_values(s.shapes.prompt_length / 2)
    return _flops_per_weight(s) * layer_flops


def _update_moves(s: DeviceSizes) -> int:
    """How often all that layers make of their tokens moves in an update.

    Forwards once, again where a layer is computed again or for the reference, and backwards.
    """
    traffic = TRAFFIC[s.backend]
    return traffic.forward * (1 + s.remat + s.has_reference) + traffic.backward


def _prompt_padding(s: DeviceSizes) -> float:
    """As `_padding_bytes`, of a block of prompts."""
    P = s.prompt_positions
    return _padding_bytes(s, s.shapes.prefill_batch, P, P)


def _padding_bytes(s: DeviceSizes, rows: int, queries: int, keys: int) -> float:
    """Bytes by which arrays of a TPU's attention kernel exceed those of the tokens, in all layers.

    Positions and numbers of a head are padded to tiles of TPU_LANES: queries and mixed values
    [rows, queries, heads, H], keys and values [rows, keys, kv_heads, H]. 0 without that kernel.
    """
    if s.holds_scores or s.backend != "tpu":
        return 0.0
    padding = 0
    for layer in s.layers:
        H = layer.head_dim
        of_queries = _whole_tiles(queries) * _whole_tiles(H) - queries * H
        of_keys = _whole_tiles(keys) * _whole_tiles(H) - keys * H
        padding += layer.count * 2 * (layer.heads * of_queries + layer.kv_heads * of_keys)
    return s.compute_bytes * rows * padding


def _whole_tiles(size: int) -> int:
    return -(-size // TPU_LANES) * TPU_LANES


def _gradient_bytes(s: DeviceSizes) -> int:
    """Bytes of the gradient of what is trained, in float32, before fsdp splits it."""
    return FLOAT_BYTES * s.weights.gradient_params


def _weight_pass_seconds(s: DeviceSizes, rates: DeviceRates) -> float:
    """Seconds in which devices along fsdp gather all weights and scatter their gradient.

    Forwards, backwards and for the reference they gather the weights as products are computed; of
    what is trained they scatter the gradient in float32.
    """
    gathers = 2 + s.has_reference
    moved_bytes = gathers * s.compute_bytes * s.weights.num_params + _gradient_bytes(s)
    return (1 - 1 / s.weights.fsdp_shards) * moved_bytes / rates.link_bandwidth


def _update_sum_seconds(s: DeviceSizes, tokens: float, rates: DeviceRates) -> float:
    """Seconds of the sums of layers' outputs along tensor, for so many tokens of an update.

    Two sums forwards and two backwards, each a scatter and a gather, as devices share the tokens
    of hidden states between products. The gradient gathers inputs of both products once more,
    half a sum each, and a layer that is computed again one of them more.
    """
    sums_per_layer = 2 + 2 + 2 * 0.5 + s.remat * 0.5
    return _tensor_sum_seconds(s, tokens, sums_per_layer, rates)


# ------------------------------------------------------------------ batches and runs


def sampling_seconds(s: DeviceSizes, B_p: float, B: float, times: ProgramTimes) -> float:
    """Seconds of sampling B rollouts of B_p prompts, which all shards share, at full length T."""
    shard_rollouts = B / s.shapes.shards
    shard_prompts = B_p / s.shapes.shards
    # How often all slots are filled: once at least, as those without a rollout take each step too.
    slot_fills = max(1.0, shard_rollouts / s.shapes.slots)
    prefill_blocks = math.ceil(shard_prompts / s.shapes.prefill_batch)
    steps = slot_fills * s.shapes.response_length
    return steps * times.decode_step + prefill_blocks * times.prefill_block


def update_seconds(s: DeviceSizes, B_p: float, B: float, times: ProgramTimes) -> float:
    """Seconds of an update on B rollouts of B_p prompts, which all shards share, at full length."""
    n = B / B_p
    shard_prompts = B_p / s.shapes.shards
    g = s.shapes.prefill_batch
    # A microbatch does not reach into the next block of prompts.
    blocks = math.ceil(shard_prompts / g)
    rows_of_a_block = min(g, shard_prompts) * n
    microbatches = blocks * math.ceil(rows_of_a_block / s.shapes.microbatch)
    return blocks * times.gradient_block + microbatches * times.microbatch + times.update_end


def cell_cost(cell: Cell, budget: int) -> float:
    """A cell's expected time up to C = `budget`, in units of the time of one rollout.

    It decides which cells come first; it is no forecast.
    """
    updates_by_span = cell.updates_by_span(cell.updates_to_reach(budget))
    return sum(
        updates * (UPDATE_COST + PROMPT_COST * span.B_p + span.B)
        for span, updates in updates_by_span
    )


def rollout_rates(s: DeviceSizes, pairs: Sequence[Pair], times: ProgramTimes) -> dict[Pair, float]:
    """Rollouts/s of training at each (B_p, n), without evaluations."""
    pair_rates = {}
    for B_p, n in pairs:
        B = B_p * n
        seconds = sampling_seconds(s, B_p, B, times) + update_seconds(s, B_p, B, times)
        pair_rates[B_p, n] = B / seconds
    return pair_rates
