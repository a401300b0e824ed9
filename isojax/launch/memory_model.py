"""Bytes a device takes for a sweep: what of a device's sizes (device_sizes.py) XLA holds at the
same time.

    always     parameters, Adam's moments, the critic and its moments, in float32; the KL's reference, or what LoRA
               leaves, as products are computed; the rollouts
    sampling   weights as the sampler reads them; keys and values of slots and of the prompts' table; the rows written
    update     the gradient as a sum, of a microbatch and of the prompts (or of both in one pass); what layers keep for
               it, of a block of prompts and of a microbatch; logits; then the new parameters and moments

What is held is known; what XLA needs between is estimated, and off by at most MEMORY_MARGIN of the
whole. benchmarks/memory.py compares the two. Letters are those of distributed/sharding.py.
"""

from dataclasses import dataclass

from isojax.core import shapes
from isojax.launch.device_sizes import (
    FLOAT_BYTES,
    DeviceSizes,
    prompt_activations,
    prompt_backward_bytes,
    response_activations,
    response_backward_bytes,
)

# of a device's memory, which a plan leaves: what XLA allocates is that close to the estimate
MEMORY_MARGIN = 0.15


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one device."""

    breakdown: dict[str, int]  # by what they are for
    program_bytes: dict[str, int]  # by compiled program
    # the most at once while the sampler's weights are made, with all that a run holds
    weights_peak: int
    sampling_peak: int  # ... while it samples, in training and in an evaluation
    update_peak: int  # ... and in the update

    @property
    def peak(self) -> int:
        return max(self.sampling_peak, self.update_peak)

    def resident_bytes(self, program: str) -> int:
        """Bytes that a run holds while a program runs, in addition to what XLA counts of that
        program alone."""
        phases = {"train": self.peak, "weights": self.weights_peak, "decode": self.sampling_peak}
        return {**phases, "learn": self.update_peak}[program] - self.program_bytes[program]


def logits_bytes(s: DeviceSizes) -> int:
    """Bytes of the logits of a microbatch, at the width (rl/gradient.py) that takes most."""
    return max(
        _logits_bytes_at_width(s, width) for width in shapes.bucket_widths(s.shapes.response_length)
    )


def _logits_bytes_at_width(s: DeviceSizes, width: int) -> int:
    """Of responses of `width` tokens: logits, log-probabilities, probabilities, their gradient; the
    reference's; a nucleus's ranks. Or blocks of the vocabulary (rl/logprobs.py) and the gradient of
    the whole unembedding: two blocks, and the remainder, which XLA computes early, for policy and
    reference; one block is no loop. Of first tokens one block more. The policy's logits where they
    are kept."""
    m = s.shapes.microbatch
    tokens, logit_rows = m * width, min(m, s.shapes.prefill_batch) + m * (width - 1)
    num_policies = 1 + s.has_reference
    nucleus_copies = 0 if not s.has_nucleus else 1 if s.cell.rl.entropy else 2
    if nucleus_copies or tokens * s.V <= shapes.MAX_DENSE_LOGITS:
        return FLOAT_BYTES * tokens * s.V * (3 + num_policies + nucleus_copies)
    block = shapes.vocabulary_block(s.V)
    block_logits = (
        2 * num_policies * s.V if block == s.V else 2 * block + 2 * (s.V % block) * num_policies
    )
    saved_logits = s.V if logit_rows * s.V <= shapes.MAX_SAVED_LOGITS else 0
    row_floats = block_logits + saved_logits + 2 * s.D
    return FLOAT_BYTES * (logit_rows * row_floats + m * block) + s.compute_bytes * s.table_params


def update_bytes(s: DeviceSizes) -> int:
    """Bytes at the update's peak, in addition to what is always there."""
    num_policies = 1 + s.has_reference
    gathered_weights = 0  # each weight where it is used; of the embedding, rows alone
    if s.fsdp_shards > 1:
        gathered_weights = s.compute_bytes * (s.layer_params + num_policies * s.table_params)
    cast_weights = (
        0 if s.compute_bytes == FLOAT_BYTES else s.trained_bytes * s.compute_bytes // FLOAT_BYTES
    )
    joint_forward = s.shapes.joint_forward(s.mesh.sequence > 1)
    # of all layers at once
    prefix_kv_values = 0 if joint_forward else s.prefill_tokens * s.kv_values
    prefix_kv = s.compute_bytes * prefix_kv_values * num_policies
    # Hidden states after the layers, with and without those of prompts, and their gradient.
    state_values = s.shapes.microbatch * s.shapes.response_length * s.D
    hidden_values = (2 * num_policies + 1) * state_values
    # Shards sampled the rollouts; the update has them in the order of problems.
    reordered_rollouts = s.rollout_bytes + s.expert_record_bytes if s.shapes.shards > 1 else 0
    resident = (
        gathered_weights
        + cast_weights
        + reordered_rollouts
        + s.trained_bytes
        + prompt_activations(s)
    )
    resident += FLOAT_BYTES * prefix_kv_values  # the sum of its gradient
    table_bytes = s.compute_bytes * s.table_params // s.fsdp_shards
    microbatch_bytes = (
        resident + prefix_kv + response_activations(s) + s.compute_bytes * hidden_values
    )
    response_backward = response_backward_bytes(s)
    prompt_backward = prompt_backward_bytes(s)
    # While layers are differentiated, XLA holds all hidden states too; with kernels, as on TPUs,
    # their gradient alone.
    dead_values = 0 if s.holds_scores else hidden_values - state_values
    layer_bytes = microbatch_bytes - s.compute_bytes * dead_values
    gradient_peak = max(
        microbatch_bytes + logits_bytes(s),
        layer_bytes + table_bytes + response_backward + (prompt_backward if joint_forward else 0),
        resident + prefix_kv + 2 * table_bytes,
        resident
        + (prefix_kv if s.has_reference else 0)
        + len(s.tables) * table_bytes
        + prompt_backward,
    )
    # the policy's, until the critic's is computed
    waiting_gradient = s.trained_bytes if s.critic_bytes else 0
    return max(waiting_gradient + gradient_peak, 2 * s.trained_bytes + gathered_weights)


def stored_weight_bytes(s: DeviceSizes) -> int:
    """Bytes of the weights that the program `weights` makes, each once."""
    return sum(weight.layers * s.stored_bytes(weight) for weight in s.sampler_weights)


def moving_weight_bytes(s: DeviceSizes) -> int:
    """Bytes of weights that are gathered or cast, beside those that the sampler reads: of all of
    them; or, where layers are gathered one by one (sampling/stream.py), of a layer, and of the
    device's part of all, which XLA casts first."""
    is_cast = s.compute_bytes < FLOAT_BYTES and not s.frozen_bytes
    gathers_layers = s.fsdp_shards > 1 and not shapes.layers_are_unrolled(
        s.backend, s.precision.cache
    )
    if gathers_layers:
        return s.compute_bytes * s.layer_params + (s.base_bytes if is_cast else 0)
    return stored_weight_bytes(s) if is_cast or s.fsdp_shards > 1 else 0


def sampling_weight_bytes(s: DeviceSizes) -> int:
    """Bytes of the weights that the sampler reads, in addition to the run's own: gathered and cast;
    where layers are unrolled, each layer's own and the embeddings; int8 ones once, whatever the
    layers."""
    if not s.has_unrolled_copy:
        return stored_weight_bytes(s)
    unrolled_values = s.layers_params + len(s.tables) * s.table_params
    prefills_stored_weights = s.compute_bytes == FLOAT_BYTES and s.fsdp_shards == 1
    stacked_bytes = 0 if prefills_stored_weights else stored_weight_bytes(s)
    return stacked_bytes + s.compute_bytes * unrolled_values


def converted_weight_bytes(s: DeviceSizes) -> int:
    """Bytes of weights that XLA:CPU converts to float32 before it multiplies, all of them at
    once."""
    if s.backend != "cpu":
        return 0
    converted = [weight for weight in s.sampler_weights if weight.dtype != "float32"]
    return FLOAT_BYTES * s.numbers(converted)


def merged_layer_bytes(s: DeviceSizes) -> int:
    """Bytes of the layers with adapters merged, which int8 weights are made of."""
    stores_adapters = any(weight.is_adapter for weight in s.sampler_weights)
    if not s.adapters or stores_adapters or not s.quantises_weights:
        return 0
    return s.compute_bytes * s.layers_params


def transposed_layer_bytes(s: DeviceSizes) -> int:
    """Bytes of layers on their way from a stack to the matrices that a CPU's sampler reads: XLA:CPU
    moves those of each stack at a time, and holds one more."""
    if s.backend != "cpu" or not s.has_unrolled_copy:
        return 0
    return (1 + len(s.layers)) * s.compute_bytes * s.layer_params


def sampling_work_bytes(s: DeviceSizes) -> int:
    """Bytes in use while sampling, without weights, cache and slots: of a block of prompts, or of a
    step's draw."""
    slots, mlp_values = s.shapes.slots, max(layer.mlp_values for layer in s.layers)
    prefill_kv = s.compute_bytes * s.prefill_tokens * s.kv_values
    score_bytes = (
        max(layer.score_bytes for layer in s.layers) * s.prefill_tokens * s.shapes.prompt_length
    )
    attention_or_mlp = max(s.compute_bytes * s.prefill_tokens * mlp_values, 2 * score_bytes)
    prefill_activations = s.compute_bytes * s.prefill_tokens * 2 * s.D + attention_or_mlp

    draw_bytes = FLOAT_BYTES * slots * s.V * (4 if s.has_nucleus else 2)
    decode_step_bytes = draw_bytes + s.compute_bytes * slots * (mlp_values + 2 * s.D)
    return converted_weight_bytes(s) + max(prefill_kv + prefill_activations, decode_step_bytes)


def slot_bytes(s: DeviceSizes) -> int:
    """Bytes of the rows that slots write, and of the hidden states that they begin from."""
    T, slots = s.shapes.response_length, s.shapes.slots
    last_hidden_states = (
        s.compute_bytes * s.D * (s.shapes.prefix_entries + slots // s.shapes.slots_per_prefix)
    )
    return last_hidden_states + slots * (8 * T + FLOAT_BYTES * (T if s.has_nucleus else 1) + 40)


def estimate_memory(
    s: DeviceSizes, evaluation: DeviceSizes, on_device: bool, moments_on_host: bool = False
) -> MemoryEstimate:
    """What a sweep takes of each device, for which training and an evaluation have these sizes.
    `on_device`: it verifies responses. `moments_on_host`: while it samples."""
    P, T = s.shapes.prompt_length, s.shapes.response_length
    weights_and_moments = (
        3 * (s.trained_bytes + s.critic_bytes) + s.frozen_bytes + s.reference_bytes
    )
    sampler_state = sampling_weight_bytes(s) + s.cache_bytes() + slot_bytes(s)
    # the batches that an asynchronous sampler has under way
    if s.cell.rl.max_staleness is not None:
        sampler_state += (s.cell.rl.max_staleness + 1) * (s.rollout_bytes + s.expert_record_bytes)
    resident = weights_and_moments + s.rollout_bytes + s.expert_record_bytes
    if on_device:
        resident += FLOAT_BYTES * shapes.ASSUMED_TRAINING_PROBLEMS * (P + T + 2)
        resident += FLOAT_BYTES * shapes.MAX_UPDATES_PER_CALL * s.shapes.problem_rows
    else:
        resident += FLOAT_BYTES * s.shapes.problem_rows * (P + 2)
    update_peak = resident + update_bytes(s)
    if moments_on_host:
        parked_bytes = 2 * s.trained_bytes + 3 * s.critic_bytes
        resident = resident - parked_bytes
        weights_and_moments = weights_and_moments - parked_bytes
    sampling_peak = resident + sampler_state + sampling_work_bytes(s)
    if on_device:
        program_bytes, weights_peak = {"train": max(sampling_peak, update_peak)}, 0
    else:
        # arguments too
        unrolled_values = s.layers_params + s.table_params if s.has_unrolled_copy else 0
        stored_bytes = stored_weight_bytes(s)
        argument_bytes = stored_bytes + s.compute_bytes * unrolled_values
        decode_bytes = (
            sampling_peak - weights_and_moments - sampling_weight_bytes(s) + argument_bytes
        )
        made_bytes = (
            stored_bytes
            + moving_weight_bytes(s)
            + merged_layer_bytes(s)
            + transposed_layer_bytes(s)
        )
        weights_bytes = s.trained_bytes + s.frozen_bytes + made_bytes
        weights_peak = weights_and_moments + made_bytes
        program_bytes = {"weights": weights_bytes, "decode": decode_bytes, "learn": update_peak}
    # The sampler holds keys and values, slots, rollouts and problems of a batch.
    batch_bytes = evaluation.cache_bytes() + slot_bytes(evaluation) + evaluation.rollout_bytes
    problem_tokens = (
        evaluation.shapes.prompt_length
        + (evaluation.shapes.response_length if on_device else 0)
        + 2
    )
    batch_bytes += FLOAT_BYTES * evaluation.shapes.problem_rows * problem_tokens
    evaluation_peak = (
        weights_and_moments + sampling_weight_bytes(s) + batch_bytes + sampling_work_bytes(s)
    )
    if s.cell.rl.max_staleness is not None:  # the sampler's state is always there
        update_peak = update_peak + sampler_state
        weights_peak = weights_peak + sampler_state
        evaluation_peak += sampler_state
    sampling_peak = max(sampling_peak, evaluation_peak)
    breakdown = {
        "parameters": s.trained_bytes + s.frozen_bytes,
        "optimizer": 2 * s.trained_bytes,
        "reference": s.reference_bytes,
        "critic": 3 * s.critic_bytes,
        "KV": s.cache_bytes(),
        "sampling weights": sampling_weight_bytes(s),
        "rollouts": s.rollout_bytes + s.expert_record_bytes,
        "gradient": s.trained_bytes,
        "activations": prompt_activations(s) + response_activations(s) + logits_bytes(s),
    }
    return MemoryEstimate(breakdown, program_bytes, weights_peak, sampling_peak, update_peak)
