"""Bytes a device takes for a sweep, from its sizes alone: the arrays that XLA holds at the same time.

    always     parameters, Adam's moments, the critic and its moments, in float32; the KL's reference, or what LoRA
               leaves, as products are computed; the rollouts
    sampling   weights as the sampler reads them; keys and values of slots and of the prompts' table; the rows written
    update     the gradient as a sum, of a microbatch and of the prompts (or of both in one pass); what layers keep for
               it, of a block of prompts and of a microbatch; logits; then the new parameters and moments

benchmarks/memory.py compares the two. Letters are those of distributed/sharding.py.
"""

from collections import defaultdict
from dataclasses import dataclass

from isojax.core import shapes
from isojax.core.config import CellConfig
from isojax.core.policy_sizes import PolicySizes, SizedAxes, WeightSizes
from isojax.core.shapes import SamplerShapes, layers_are_unrolled, row_padding
from isojax.distributed.mesh_spec import LOGICAL_AXIS_RULES, MeshShape

FLOAT_BYTES = 4
MASK_BYTES = 5  # of a token and a key: what is masked, the bias that cuDNN takes for it, and the gradient of that
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}


def shard_size(size: int, axis_shards: int) -> int:
    """A device's part of an axis; one that the mesh does not divide stays whole (distributed/sharding.py)."""
    return size // axis_shards if size % axis_shards == 0 else size


def device_size(weight: WeightSizes, mesh: MeshShape, mesh_axes: tuple[str, ...]) -> int:
    """Numbers of a weight that a device holds, where only these axes of the mesh split it."""
    return device_axes_size(weight.axes, mesh, mesh_axes)


def device_axes_size(axes: SizedAxes, mesh: MeshShape, mesh_axes: tuple[str, ...]) -> int:
    size, used = 1, set[str]()
    for name, axis_size in axes:
        mesh_axis = str(LOGICAL_AXIS_RULES[name])
        shards = vars(mesh)[mesh_axis] if mesh_axis in mesh_axes and mesh_axis not in used else 1
        size *= shard_size(axis_size, shards)
        if shards > 1 and axis_size % shards == 0:
            used.add(mesh_axis)
    return size


class DeviceSizes:
    """Sizes of one device's part of a sweep. `attention`: of prefill and update; `plain` holds the scores of all
    queries at once, `cudnn` a mask."""

    def __init__(
        self,
        cell: CellConfig,
        remat: bool,
        shapes: SamplerShapes,
        mesh: MeshShape,
        policy: PolicySizes,
        backend: str,
        attention: str = "plain",
    ):
        precision = cell.precision.for_platform(backend)
        self.cell, self.remat, self.shapes, self.mesh, self.policy = cell, remat, shapes, mesh, policy
        widest = max(policy.attention, key=lambda attention: attention.heads * attention.head_dim)
        self.L, self.D, self.H = policy.layers, policy.width, widest.head_dim
        # Every device sorts all rows by expert, whichever experts it has.
        has_experts = any("expert" in dict(weight.axes) for weight in policy.weights)
        self.F = policy.mlp if has_experts else shard_size(policy.mlp, mesh.tensor)
        self.V = shard_size(policy.vocab, mesh.tensor)
        self.N, self.K = shard_size(widest.heads, mesh.tensor), shard_size(widest.kv_heads, mesh.tensor)
        # Heads that attention is computed of: XLA splits queries over the heads of keys or of one key, else not at all.
        splits_queries = widest.kv_heads == 1 or widest.kv_heads % mesh.tensor == 0
        self.attention_heads = self.N if splits_queries else widest.heads

        self.score_bytes = FLOAT_BYTES * self.attention_heads if attention == "plain" else 0  # of one token and one key
        self.mask_bytes = MASK_BYTES if attention == "cudnn" else 0  # likewise
        self.compute_bytes = 4 if precision.compute == "float32" else 2  # of a number that products are computed in
        self.cache_bytes = ITEM_BYTES[precision.cache]  # of a number in the sampler's cache
        # Whether the sampler holds its layers both stacked and unrolled (`Decoding.prefills_stacked`).
        needs_both = precision.compute == "float32" or (backend == "cpu" and shapes.transpose_weights)
        self.quantises_weights = precision.rollout_weights == "int8"  # of the sampler
        self.has_unrolled_copy = (
            needs_both and layers_are_unrolled(backend, precision.cache) and not self.quantises_weights
        )

        # Positions of a prompt, padded until sequence divides them; of a block of prompts; of a microbatch, without the
        # last ones; and those that a response's last one attends to.
        self.prompt_positions = -(-shapes.prompt_length // mesh.sequence)
        self.prefill_tokens = shapes.prefill_batch * self.prompt_positions
        m, positions = shapes.microbatch, max(1, shapes.response_length - 1)
        self.microbatch_tokens = m * (positions + row_padding(attention, m, positions, mesh.tensor))
        self.key_positions = self.prompt_positions + shapes.response_length - 1

        layer_params: dict[str, int] = defaultdict(int)  # of one layer of each stack
        self.layers_params, outer_params, self.num_embeddings = 0, 0, 0
        self.active_params = 0.0  # of the layers' parameters, those that a token is multiplied by
        self.sampler_layers_bytes = 0  # of all layers as the sampler reads them
        for weight in policy.weights:
            size = device_size(weight, mesh, ("tensor",))
            if weight.is_adapter:
                continue
            if not weight.stack:
                outer_params += size
                self.num_embeddings += "vocab" in dict(weight.axes)
                continue
            layer_params[weight.stack] += size
            self.layers_params += weight.layers * size
            self.active_params += weight.layers * size * weight.share
            self.sampler_layers_bytes += weight.layers * self.sampler_bytes(weight)
        self.layer_params = max(layer_params.values())  # of the largest layer
        # XLA:CPU converts int8 weights before it multiplies, all layers' at once.
        converts_weights = self.quantises_weights and backend == "cpu"
        self.converted_bytes = self.compute_bytes * self.layers_params if converts_weights else 0
        self.embedding_params = self.V * self.D  # an unembedding has as many
        self.num_params = self.layers_params + outer_params
        self.fsdp_shards = mesh.fsdp if self.D % mesh.fsdp == 0 else 1  # of parameters and their gradients

        # Of the parameters in float32; of those that are trained; of the base policy's that LoRA leaves or KL reads.
        self.param_bytes = FLOAT_BYTES * self.num_params // self.fsdp_shards
        base_bytes = self.compute_bytes * self.num_params // self.fsdp_shards
        self.trained_bytes, self.frozen_bytes = self.param_bytes, 0
        adapters = [weight for weight in policy.weights if weight.is_adapter]
        if adapters:
            adapter_params = sum(weight.layers * device_size(weight, mesh, ("tensor", "fsdp")) for weight in adapters)
            self.trained_bytes, self.frozen_bytes = FLOAT_BYTES * adapter_params, base_bytes
        # The critic has no unembedding.
        unembedding_bytes = (self.num_embeddings - 1) * FLOAT_BYTES * self.embedding_params // self.fsdp_shards
        self.critic_bytes = 0 if cell.rl.critic is None else self.param_bytes - unembedding_bytes
        self.has_reference = cell.rl.kl > 0 or cell.rl.measure_kl
        self.reference_bytes = base_bytes if self.has_reference and not adapters else 0
        self.has_nucleus = cell.sampling.top_p < 1
        # A shard's rollouts: tokens, log-probabilities, mask, nuclei, ends and lengths.
        T = shapes.response_length
        self.rollout_bytes = shapes.buffer_rows * (9 * T + FLOAT_BYTES * (T if self.has_nucleus else 1) + 5)

    def sampler_bytes(self, weight: WeightSizes) -> int:
        """Of one layer's weight as the sampler reads it, with the scales of an int8 one."""
        size = device_size(weight, self.mesh, ("tensor",))
        if not (self.quantises_weights and weight.int8_outputs):
            return self.compute_bytes * size
        return size + FLOAT_BYTES * device_axes_size(weight.int8_outputs, self.mesh, ("tensor",))


def layer_bytes_read(s: DeviceSizes, rows: int) -> float:
    """Of the layers' weights, what a sampler's step of so many rows reads: of experts, all that any row chose."""
    read = 0.0
    for weight in s.policy.weights:
        if weight.stack and not weight.is_adapter:
            part = 1 - (1 - weight.share) ** rows
            read += weight.layers * s.sampler_bytes(weight) * part
    return read


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one device."""

    breakdown: dict[str, int]  # by what they are for
    program_bytes: dict[str, int]  # by compiled program
    weights_peak: int  # the most at once while the sampler's weights are made, with all that a run holds
    sampling_peak: int  # ... while it samples, in training and in an evaluation
    update_peak: int  # ... and in the update

    @property
    def peak(self) -> int:
        return max(self.sampling_peak, self.update_peak)

    def resident_bytes(self, program: str) -> int:
        """Bytes that a run holds while a program runs, in addition to what XLA counts of that program alone."""
        phases = {"train": self.peak, "weights": self.weights_peak, "decode": self.sampling_peak}
        return {**phases, "learn": self.update_peak}[program] - self.program_bytes[program]


def kv_bytes(s: DeviceSizes, rows: int, positions: int, item_bytes: int, rings: bool = True) -> int:
    """Bytes of the keys and values of so many positions in all layers, of which those that slide keep their window
    alone where they are `rings`; of int8 ones their scales too."""
    scales = FLOAT_BYTES if item_bytes == 1 else 0
    values = 0
    for attention in s.policy.attention:
        held = min(positions, attention.window) if rings and attention.window else positions
        heads = shard_size(attention.kv_heads, s.mesh.tensor)
        values += 2 * attention.layers * rows * heads * held * (attention.head_dim * item_bytes + scales)
    return values


def kv_cache_bytes(s: DeviceSizes) -> int:
    """Bytes of the sampler's keys and values: of the slots, and of the table of prompts."""
    P, T, slots = s.prompt_positions, s.shapes.response_length, s.shapes.slots
    prompt_table = kv_bytes(s, s.shapes.prefix_entries, P, s.cache_bytes)
    if s.shapes.slots_per_prefix == 1 and s.mesh.sequence == 1:  # a slot holds its prompt and response together
        return prompt_table + kv_bytes(s, slots, P + T, s.cache_bytes)
    prefix_groups = slots // s.shapes.slots_per_prefix
    return prompt_table + kv_bytes(s, slots, T, s.cache_bytes) + kv_bytes(s, prefix_groups, P, s.cache_bytes)


def _full_activations(s: DeviceSizes, tokens: int, key_positions: int, key_parts: int) -> int:
    """Bytes that a layer keeps for its gradient (models/transformer.py): its input and the MLP's (2 D) of the tokens
    that tensor splits; queries, and the mixed values of each part of its keys (N H each); keys and values (2 K H); both
    halves of the MLP (2 F); scores in float32, of tokens that attend to `key_positions` each."""
    values_per_token = (s.N + key_parts * s.attention_heads) * s.H + 2 * s.K * s.H + 2 * s.F
    values = 2 * shard_size(tokens, s.mesh.tensor) * s.D + tokens * values_per_token
    return s.compute_bytes * values + s.score_bytes * tokens * key_positions


def _saved_activations(s: DeviceSizes, tokens: int, key_positions: int, key_parts: int) -> int:
    """Of a layer that is computed again, its input alone. What attention kernels return is computed again anyway."""
    if s.remat:
        return s.compute_bytes * shard_size(tokens, s.mesh.tensor) * s.D
    return _full_activations(s, tokens, key_positions, key_parts if s.score_bytes else 0)


def prompt_activations(s: DeviceSizes) -> int:
    """Bytes kept for the gradient of a block of prompts, in all layers."""
    return s.L * _saved_activations(s, s.prefill_tokens, s.shapes.prompt_length, 1)


def response_activations(s: DeviceSizes) -> int:
    """Bytes kept for the gradient of a microbatch, in all layers."""
    return s.L * _saved_activations(s, s.microbatch_tokens, s.key_positions, 2)


def layer_backward_bytes(s: DeviceSizes, tokens: int, key_positions: int, key_parts: int) -> int:
    """Bytes in use while a layer is differentiated, in addition to what it has kept: gradients of the MLP (4 F), or
    attention's weights and their gradient; arrays between products, of the MLP's or attention's alone where kernels
    leave little else; and what a layer computed again would have kept."""
    layer = (s, tokens, key_positions, key_parts)
    recomputed = _full_activations(*layer) - _saved_activations(*layer)
    if not s.score_bytes:
        values = tokens * max(4 * s.F + 2 * s.D, 7 * s.D + 4 * s.attention_heads * s.H)
        return recomputed + s.compute_bytes * values + s.mask_bytes * tokens * key_positions
    mlp_bytes = 4 * s.compute_bytes * tokens * s.F
    width_factor, heads_factor = (7, 4) if s.remat else (8, 6)
    intermediates = s.compute_bytes * tokens * (width_factor * s.D + heads_factor * s.attention_heads * s.H)
    return recomputed + intermediates + max(mlp_bytes, 2 * s.score_bytes * tokens * key_positions)


def logits_bytes(s: DeviceSizes) -> int:
    """Bytes of the logits of a microbatch, at the width (rl/gradient.py) that takes most."""
    return max(_logits_bytes_at_width(s, width) for width in shapes.bucket_widths(s.shapes.response_length))


def _logits_bytes_at_width(s: DeviceSizes, width: int) -> int:
    """Of responses of `width` tokens: logits, log-probabilities, probabilities, their gradient; the reference's; a
    nucleus's ranks. Or blocks of the vocabulary (rl/logprobs.py) and the gradient of the whole unembedding: two blocks,
    and the remainder, which XLA computes early, for policy and reference; one block is no loop. Of first tokens one
    block more. The policy's logits where they are kept."""
    m = s.shapes.microbatch
    tokens, logit_rows = m * width, min(m, s.shapes.prefill_batch) + m * (width - 1)
    num_policies = 1 + s.has_reference
    nucleus_copies = 0 if not s.has_nucleus else 1 if s.cell.rl.entropy else 2
    if nucleus_copies or tokens * s.V <= shapes.MAX_DENSE_LOGITS:
        return FLOAT_BYTES * tokens * s.V * (3 + num_policies + nucleus_copies)
    block = shapes.vocabulary_block(s.V)
    block_logits = 2 * num_policies * s.V if block == s.V else 2 * block + 2 * (s.V % block) * num_policies
    saved_logits = s.V if logit_rows * s.V <= shapes.MAX_SAVED_LOGITS else 0
    row_floats = block_logits + saved_logits + 2 * s.D
    return FLOAT_BYTES * (logit_rows * row_floats + m * block) + s.compute_bytes * s.embedding_params


def update_bytes(s: DeviceSizes) -> int:
    """Bytes at the update's peak, in addition to what is always there."""
    num_policies = 1 + s.has_reference
    gathered_weights = 0  # each weight where it is used; of the embedding, rows alone
    if s.fsdp_shards > 1:
        gathered_weights = s.compute_bytes * (s.layer_params + num_policies * s.embedding_params)
    cast_weights = 0 if s.compute_bytes == FLOAT_BYTES else s.trained_bytes * s.compute_bytes // FLOAT_BYTES
    joint_forward = s.shapes.joint_forward(s.mesh.sequence > 1)
    prefix_kv_values = 0 if joint_forward else 2 * s.L * s.prefill_tokens * s.K * s.H  # of all layers at once
    prefix_kv = s.compute_bytes * prefix_kv_values * num_policies
    # Hidden states after the layers, with and without those of prompts, and their gradient.
    state_values = s.shapes.microbatch * s.shapes.response_length * s.D
    hidden_values = (2 * num_policies + 1) * state_values
    # Shards sampled the rollouts; the update has them in the order of problems.
    reordered_rollouts = s.rollout_bytes if s.shapes.shards > 1 else 0
    resident = gathered_weights + cast_weights + reordered_rollouts + s.trained_bytes + prompt_activations(s)
    resident += FLOAT_BYTES * prefix_kv_values  # the sum of its gradient
    table_bytes = s.compute_bytes * s.embedding_params // s.fsdp_shards
    microbatch_bytes = resident + prefix_kv + response_activations(s) + s.compute_bytes * hidden_values
    response_backward = layer_backward_bytes(s, s.microbatch_tokens, s.key_positions, 2)
    prompt_backward = layer_backward_bytes(s, s.prefill_tokens, s.shapes.prompt_length, 1)
    # While layers are differentiated, XLA holds all hidden states too; with kernels, as on TPUs, their gradient alone.
    dead_values = 0 if s.score_bytes else hidden_values - state_values
    layer_bytes = microbatch_bytes - s.compute_bytes * dead_values
    gradient_peak = max(
        microbatch_bytes + logits_bytes(s),
        layer_bytes + table_bytes + response_backward + (prompt_backward if joint_forward else 0),
        resident + prefix_kv + 2 * table_bytes,
        resident + (prefix_kv if s.has_reference else 0) + s.num_embeddings * table_bytes + prompt_backward,
    )
    waiting_gradient = s.trained_bytes if s.critic_bytes else 0  # the policy's, until the critic's is computed
    return max(waiting_gradient + gradient_peak, 2 * s.trained_bytes + gathered_weights)


def sampling_weight_bytes(s: DeviceSizes) -> int:
    """Bytes of the weights that the sampler reads, in addition to the run's own: gathered and cast; where layers are
    unrolled, each layer's own and the embeddings; int8 ones once, whatever the layers."""
    if s.quantises_weights:
        return s.sampler_layers_bytes + s.compute_bytes * (s.num_params - s.layers_params)
    prefills_stored_weights = s.has_unrolled_copy and s.compute_bytes == FLOAT_BYTES and s.fsdp_shards == 1
    values = 0 if prefills_stored_weights else s.num_params
    if s.has_unrolled_copy:
        values += s.layers_params + s.num_embeddings * s.embedding_params
    return s.compute_bytes * values


def sampling_work_bytes(s: DeviceSizes) -> int:
    """Bytes in use while sampling, without weights, cache and slots: of a block of prompts, or of a step's draw."""
    slots = s.shapes.slots
    prefill_kv = kv_bytes(s, s.shapes.prefill_batch, s.prompt_positions, s.compute_bytes, rings=False)
    score_bytes = s.score_bytes * s.prefill_tokens * s.shapes.prompt_length
    attention_or_mlp = max(s.compute_bytes * s.prefill_tokens * 2 * s.F, 2 * score_bytes)
    prefill_activations = s.compute_bytes * s.prefill_tokens * 2 * s.D + attention_or_mlp
    draw_bytes = FLOAT_BYTES * slots * s.V * (4 if s.has_nucleus else 2)
    decode_step_bytes = draw_bytes + s.compute_bytes * slots * (2 * s.F + 2 * s.D)
    return s.converted_bytes + max(prefill_kv + prefill_activations, decode_step_bytes)


def slot_bytes(s: DeviceSizes) -> int:
    """Bytes of the rows that slots write, and of the hidden states that they begin from."""
    T, slots = s.shapes.response_length, s.shapes.slots
    last_hidden_states = s.compute_bytes * s.D * (s.shapes.prefix_entries + slots // s.shapes.slots_per_prefix)
    return last_hidden_states + slots * (8 * T + FLOAT_BYTES * (T if s.has_nucleus else 1) + 40)


def estimate_memory(
    s: DeviceSizes, evaluation: DeviceSizes, on_device: bool, moments_on_host: bool = False
) -> MemoryEstimate:
    """What a sweep takes of each device, for which training and an evaluation have these sizes. `on_device`: it
    verifies responses. `moments_on_host`: while it samples."""
    P, T = s.shapes.prompt_length, s.shapes.response_length
    weights_and_moments = 3 * (s.trained_bytes + s.critic_bytes) + s.frozen_bytes + s.reference_bytes
    sampler_state = sampling_weight_bytes(s) + kv_cache_bytes(s) + slot_bytes(s)
    if s.cell.rl.max_staleness is not None:  # the batches that an asynchronous sampler has under way
        sampler_state += (s.cell.rl.max_staleness + 1) * s.rollout_bytes
    resident = weights_and_moments + s.rollout_bytes
    if on_device:
        resident += FLOAT_BYTES * shapes.ASSUMED_TRAINING_PROBLEMS * (P + T + 2)
        resident += FLOAT_BYTES * shapes.MAX_UPDATES_PER_CALL * s.shapes.problem_rows
    else:
        resident += FLOAT_BYTES * s.shapes.problem_rows * (P + 2)
    update_peak = resident + update_bytes(s)
    if moments_on_host:
        parked_bytes = 2 * s.trained_bytes + 3 * s.critic_bytes
        resident, weights_and_moments = resident - parked_bytes, weights_and_moments - parked_bytes
    sampling_peak = resident + sampler_state + sampling_work_bytes(s)
    if on_device:
        program_bytes, weights_peak = {"train": max(sampling_peak, update_peak)}, 0
    else:
        unrolled_values = s.layers_params + s.embedding_params if s.has_unrolled_copy else 0  # arguments too
        stored_bytes = sampling_weight_bytes(s) if s.quantises_weights else s.compute_bytes * s.num_params
        argument_bytes = stored_bytes + s.compute_bytes * unrolled_values
        decode_bytes = sampling_peak - weights_and_moments - sampling_weight_bytes(s) + argument_bytes
        is_cast = s.compute_bytes < FLOAT_BYTES and not s.frozen_bytes
        copies = 2 if is_cast or s.fsdp_shards > 1 else 1  # gathered or cast, and as the sampler reads them
        made_bytes = copies * stored_bytes
        weights_bytes, weights_peak = s.trained_bytes + s.frozen_bytes + made_bytes, weights_and_moments + made_bytes
        program_bytes = {"weights": weights_bytes, "decode": decode_bytes, "learn": update_peak}
    # The sampler holds keys and values, slots, rollouts and problems of a batch.
    batch_bytes = kv_cache_bytes(evaluation) + slot_bytes(evaluation) + evaluation.rollout_bytes
    problem_tokens = evaluation.shapes.prompt_length + (evaluation.shapes.response_length if on_device else 0) + 2
    batch_bytes += FLOAT_BYTES * evaluation.shapes.problem_rows * problem_tokens
    evaluation_peak = weights_and_moments + sampling_weight_bytes(s) + batch_bytes + sampling_work_bytes(s)
    if s.cell.rl.max_staleness is not None:  # the sampler's state is always there
        update_peak, weights_peak = update_peak + sampler_state, weights_peak + sampler_state
        evaluation_peak += sampler_state
    sampling_peak = max(sampling_peak, evaluation_peak)
    breakdown = {
        "parameters": s.trained_bytes + s.frozen_bytes,
        "optimizer": 2 * s.trained_bytes,
        "reference": s.reference_bytes,
        "critic": 3 * s.critic_bytes,
        "KV": kv_cache_bytes(s),
        "sampling weights": sampling_weight_bytes(s),
        "rollouts": s.rollout_bytes,
        "gradient": s.trained_bytes,
        "activations": prompt_activations(s) + response_activations(s) + logits_bytes(s),
    }
    return MemoryEstimate(breakdown, program_bytes, weights_peak, sampling_peak, update_peak)
