"""Bytes a device takes for a sweep, from its sizes alone. No jax here.

What is counted are the arrays that XLA holds at the same time, as its buffer assignment has them (benchmarks/memory.py
compares the two):

    always     parameters, Adam's moments, the KL's reference, the critic and its moments, in float32; the batch's
    rollouts sampling   weights as the sampler reads them, keys and values of slots and of the prompts' table, the rows
    being written update     the gradient, once as a sum, once of a microbatch and once of the prompts, or of both in
    one pass; what the layers keep for
               it, of a block of prompts and of a microbatch of responses; logits; then the new parameters and moments

Letters are those of device_sizes.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from isojax.core.config import CellConfig, SweepConfig
from isojax.core.shapes import (
    ASSUMED_TRAINING_PROBLEMS,
    MAX_DENSE_LOGITS,
    MAX_SAVED_LOGITS,
    MAX_UPDATES_PER_CALL,
    bucket_widths,
    make_sampler_shapes,
    vocabulary_block,
)
from isojax.launch.device_sizes import FLOAT_BYTES, DeviceSizes, MeshSizes


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one device. `parts`: what they are for; `programs`: what each compiled program must be given;
    `sampling`, `update`: the most at once in either half of an update, with all that a run holds."""

    breakdown: dict[str, int]
    program_bytes: dict[str, int]
    sampling_peak: int
    update_peak: int

    @property
    def peak(self) -> int:
        """The most at once."""
        return max(self.sampling_peak, self.update_peak)


def kv_bytes(s: DeviceSizes, rows: int, positions: int, itemsize: int) -> int:
    """Bytes of the keys and values of so many positions, `size` bytes a number, in all layers; of int8 ones their
    scales too.
    """
    scales = FLOAT_BYTES if itemsize == 1 else 0
    return 2 * s.L * rows * s.K * positions * (s.H * itemsize + scales)


def kv_cache_bytes(s: DeviceSizes) -> int:
    """Bytes of the sampler's keys and values: of the slots, and of the table of prompts."""
    geometry = s.geometry
    prompt_positions, T, prefix_groups = (
        s.prompt_positions,
        geometry.response_length,
        geometry.slots // geometry.slots_per_prefix,
    )
    prompt_table = kv_bytes(s, geometry.prefix_entries, prompt_positions, s.cache_itemsize)
    if not s.separate_prompt_cache:
        return prompt_table + kv_bytes(s, geometry.slots, prompt_positions + T, s.cache_itemsize)
    return (
        prompt_table
        + kv_bytes(s, geometry.slots, T, s.cache_itemsize)
        + kv_bytes(s, prefix_groups, prompt_positions, s.cache_itemsize)
    )


def saved_activations(s: DeviceSizes, tokens: int, key_positions: int, key_parts: int) -> int:
    """Bytes that a layer keeps for its gradient (models/transformer.py): of so many tokens, each of which attends to
    `keys` positions.

    Its input and the output projection (2 D); queries, and the mixed values of each part of its keys (N H each); keys
    and values (2 K H); both halves of the MLP (2 F); scores in float32. Where the layer is computed again: its input.
    """
    if s.remat:
        return s.compute_itemsize * tokens * s.D
    values_per_token = 2 * s.D + (s.N + key_parts * s.attention_heads) * s.H + 2 * s.K * s.H + 2 * s.F
    return s.compute_itemsize * tokens * values_per_token + FLOAT_BYTES * s.attention_heads * tokens * key_positions


def prompt_activations(s: DeviceSizes) -> int:
    """Bytes kept for the gradient of a block of prompts, in all layers."""
    return s.L * saved_activations(s, s.prefill_tokens, s.geometry.prompt_length, 1)


def response_activations(s: DeviceSizes) -> int:
    """Bytes kept for the gradient of a microbatch, in all layers."""
    return s.L * saved_activations(s, s.microbatch_tokens, s.key_positions, 2)


def layer_backward_bytes(s: DeviceSizes, tokens: int, key_positions: int, key_parts: int) -> int:
    """Bytes at work while a layer is differentiated, beside what it has kept.

    Of the MLP the product of its halves and the gradients (4 F), or of attention the weights and their gradient, which
    come after it; what goes between products (XLA lays few of these on each other). Where the layer is computed again,
    what it would have kept.
    """
    mlp_bytes, score_bytes = (
        4 * s.compute_itemsize * tokens * s.F,
        FLOAT_BYTES * s.attention_heads * tokens * key_positions,
    )
    width_factor, heads_factor = (7, 4) if s.remat else (8, 6)
    intermediates = s.compute_itemsize * tokens * (width_factor * s.D + heads_factor * s.attention_heads * s.H)
    recomputed = saved_activations(replace(s, remat=False), tokens, key_positions, key_parts) - saved_activations(
        s, tokens, key_positions, key_parts
    )
    return recomputed + intermediates + max(mlp_bytes, 2 * score_bytes)


def logits_bytes(s: DeviceSizes) -> int:
    """Bytes of the logits of a microbatch, as often as they are held, at the width that takes most: narrow microbatches
    hold them whole where wide ones do not (rl/length_buckets.py)."""
    widths = bucket_widths(s.geometry.response_length)
    return max(_logits_bytes_at_width(s, width, len(widths) > 1) for width in widths)


def _logits_bytes_at_width(s: DeviceSizes, width: int, has_width_branches: bool) -> int:
    """Of responses of so many tokens: logits, log-probabilities, probabilities, their gradient; the reference's; a
    nucleus's ranks, and its log-probabilities where the entropy has no gradient.

    Or blocks of the vocabulary (rl/logprobs.py), beside the gradient of the whole unembedding: two, and what is left of
    the vocabulary, which XLA works out early, for the policy and the reference (logits, and those of the chosen
    tokens). Of one block it makes no loop, and holds the logits once more where `branches` choose a width. Of first
    tokens a block more. The policy's logits, where they are so few that they are kept.
    """
    m = s.geometry.microbatch
    tokens, logit_rows = m * width, min(m, s.geometry.prefill_batch) + m * (width - 1)
    num_policies = 1 + (s.reference_bytes > 0)
    nucleus_copies = 0 if s.cell.sampling.top_p == 1 else 1 if s.cell.rl.entropy else 2
    if nucleus_copies or s.mesh.tensor > 1 or tokens * s.vocab <= MAX_DENSE_LOGITS:
        return FLOAT_BYTES * tokens * s.V * (3 + num_policies + nucleus_copies)
    block = vocabulary_block(s.vocab)
    block_logits = (
        (2 * num_policies + has_width_branches) * s.vocab
        if block == s.vocab
        else 2 * block + 2 * (s.vocab % block) * num_policies
    )
    saved_logits = s.vocab if logit_rows * s.vocab <= MAX_SAVED_LOGITS else 0
    return (
        FLOAT_BYTES * (logit_rows * (block_logits + saved_logits + 2 * s.D) + m * block)
        + s.compute_itemsize * s.embedding_params
    )


def update_bytes(s: DeviceSizes) -> int:
    """Bytes beside what is always there, at the update's peak."""
    num_policies = 1 + (s.reference_bytes > 0)
    gathered_weights = (
        s.compute_itemsize * (s.layer_params + num_policies * s.embedding_params) if s.fsdp_shards > 1 else 0
    )  # each weight where it is used; of the embedding, rows alone
    cast_weights = (
        0 if s.compute_itemsize == FLOAT_BYTES else s.compute_itemsize * s.num_params // s.fsdp_shards * num_policies
    )
    one_pass = s.geometry.joint_forward(s.mesh.sequence > 1)
    prefix_kv_values = 0 if one_pass else 2 * s.L * s.prefill_tokens * s.K * s.H  # of all layers at once
    prefix_kv = s.compute_itemsize * prefix_kv_values * num_policies
    # Hidden states after the layers, alone and joined to those of prompts, and their gradient.
    hidden_states = (
        (2 * num_policies + 1) * s.compute_itemsize * s.geometry.microbatch * s.geometry.response_length * s.D
    )
    reordered_rollouts = (
        s.rollout_bytes if s.geometry.shards > 1 else 0
    )  # in the order of problems, from the shards that sampled them
    resident = (
        gathered_weights
        + cast_weights
        + reordered_rollouts
        + s.param_bytes
        + prompt_activations(s)
        + FLOAT_BYTES * prefix_kv_values
    )  # and the sum of its gradient
    table_bytes = s.compute_itemsize * s.embedding_params // s.fsdp_shards
    microbatch_activations = response_activations(s)
    response_backward, prompt_backward = (
        layer_backward_bytes(s, s.microbatch_tokens, s.key_positions, 2),
        layer_backward_bytes(s, s.prefill_tokens, s.geometry.prompt_length, 1),
    )
    candidate_peaks = (
        resident + prefix_kv + microbatch_activations + hidden_states + logits_bytes(s),
        resident
        + prefix_kv
        + microbatch_activations
        + hidden_states
        + table_bytes
        + response_backward
        + (prompt_backward if one_pass else 0),
        resident + prefix_kv + 2 * table_bytes,
        resident + (prefix_kv if s.reference_bytes else 0) + s.num_embeddings * table_bytes + prompt_backward,
    )
    waiting_policy_gradient = (
        s.param_bytes if s.critic_bytes else 0
    )  # the policy's gradient, which waits for the critic's
    return max(waiting_policy_gradient + max(candidate_peaks), 2 * s.param_bytes + gathered_weights)


def sampling_weight_bytes(s: DeviceSizes) -> int:
    """Bytes of the weights that the sampler reads, beside the run's own: gathered and cast as a whole, and each layer's
    apart; an unembedding's transpose, where slots are few."""
    reads_stored_weights = (
        s.compute_itemsize == FLOAT_BYTES and s.param_bytes == FLOAT_BYTES * s.num_params
    )  # nothing to gather or cast
    per_layer_copies = s.L * s.layer_params + (s.num_embeddings - 1) * s.embedding_params * s.geometry.transpose_weights
    return (0 if reads_stored_weights else s.compute_itemsize * s.num_params) + (
        s.compute_itemsize * per_layer_copies if s.unrolled_layers else 0
    )


def sampling_work_bytes(s: DeviceSizes) -> int:
    """Bytes at work while sampling, beside weights, cache and slots: a block of prompts, or a step and the draw from
    its logits.
    """
    geometry = s.geometry
    prefill_kv = kv_bytes(s, geometry.prefill_batch, s.prompt_positions, s.compute_itemsize)
    score_bytes = FLOAT_BYTES * s.attention_heads * s.prefill_tokens * geometry.prompt_length
    prefill_activations = s.compute_itemsize * s.prefill_tokens * 2 * s.D + max(
        s.compute_itemsize * s.prefill_tokens * 2 * s.F, 2 * score_bytes
    )  # attention, then the MLP
    draw_bytes = FLOAT_BYTES * geometry.slots * s.V * (4 if s.cell.sampling.top_p < 1 else 2)
    decode_step_bytes = draw_bytes + s.compute_itemsize * geometry.slots * (2 * s.F + 2 * s.D)
    return max(prefill_kv + prefill_activations, decode_step_bytes)


def slot_bytes(s: DeviceSizes) -> int:
    """Bytes of the rows that slots write, and of the hidden states that they begin from: the table's, and the
    lanes'.
    """
    T = s.geometry.response_length
    last_hidden_states = (
        s.compute_itemsize * s.D * (s.geometry.prefix_entries + s.geometry.slots // s.geometry.slots_per_prefix)
    )
    return last_hidden_states + s.geometry.slots * (8 * T + FLOAT_BYTES * (T if s.cell.sampling.top_p < 1 else 1) + 40)


def estimate_memory(
    cell: CellConfig,
    sweep: SweepConfig,
    pairs: Sequence[tuple[int, int]],
    mesh: MeshSizes,
    vocab: int,
    on_device: bool,
    backend: str,
) -> MemoryEstimate:
    """What a sweep whose slots, microbatch, prompts and lanes are chosen takes of each device. `pairs`: every (B_p, n)
    of it.
    """
    assert sweep.decode_slots and sweep.microbatch and sweep.prefill_batch, "the planner chooses them"
    lengths = cell.sampling.prompt_length, cell.sampling.response_length
    batch_sizes = mesh.data * mesh.fsdp, sweep.decode_slots, sweep.microbatch
    geometry = make_sampler_shapes(pairs, *batch_sizes, *lengths, sweep.prefill_batch, sweep.slots_per_prefix or 1)
    s = DeviceSizes(cell, sweep.remat == "layer", geometry, mesh, vocab, on_device, backend)
    resident = 3 * (s.param_bytes + s.critic_bytes) + s.reference_bytes
    decoding_bytes = kv_cache_bytes(s) + slot_bytes(s) + sampling_work_bytes(s)
    P, T = lengths
    if on_device:
        problem_table = (
            FLOAT_BYTES * ASSUMED_TRAINING_PROBLEMS * (P + T + 2)
            + FLOAT_BYTES * MAX_UPDATES_PER_CALL * geometry.problem_rows
        )
        resident += problem_table + s.rollout_bytes
        sampling_peak, update_peak = (
            resident + 2 * s.param_bytes + sampling_weight_bytes(s) + decoding_bytes,
            resident + update_bytes(s),
        )  # zeros that sums begin with, kept for the loop
        program_bytes = {"train": max(sampling_peak, update_peak)}
    else:
        resident += FLOAT_BYTES * geometry.problem_rows * (P + 2) + s.rollout_bytes
        sampling_peak, update_peak = resident + sampling_weight_bytes(s) + decoding_bytes, resident + update_bytes(s)
        argument_bytes = s.compute_itemsize * (
            s.num_params + s.L * s.layer_params + s.embedding_params
        )  # XLA counts what is an argument twice as two
        program_bytes = {
            "decode": sampling_peak
            - 3 * (s.param_bytes + s.critic_bytes)
            - s.reference_bytes
            - sampling_weight_bytes(s)
            + argument_bytes,
            "learn": update_peak,
        }
    if cell.rl.max_staleness is not None:  # the sampler's state outlives an update
        update_peak += sampling_weight_bytes(s) + kv_cache_bytes(s) + slot_bytes(s)
    breakdown = {
        "parameters": s.param_bytes,
        "optimizer": 2 * s.param_bytes,
        "reference": s.reference_bytes,
        "critic": 3 * s.critic_bytes,
        "KV": kv_cache_bytes(s),
        "sampling weights": sampling_weight_bytes(s),
        "rollouts": s.rollout_bytes,
        "gradient": s.param_bytes,
        "activations": prompt_activations(s) + response_activations(s) + logits_bytes(s),
    }
    return MemoryEstimate(breakdown, program_bytes, sampling_peak, update_peak)
