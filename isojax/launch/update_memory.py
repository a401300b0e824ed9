"""Bytes of one device at the peak of an update, beside what a run always holds.

The update (rl/gradient.py) takes the problems of a batch in blocks of g prompts. A block's prompts
go through the layers, then the responses to them in microbatches of m, each forwards and backwards,
then the prompts backwards. Where one microbatch holds all responses to a block, prompts and
responses go through the layers together (`SamplerShapes.joint_forward`), and neither keys and
values of prompts nor a gradient of these are kept between them.

Which arrays are alive at the same time is XLA's decision, and no documented one: the sums here
follow its schedules on CPUs, GPUs and TPUs, and benchmarks/memory.py and benchmarks/tpu_meshes.py
compare both. Where a new release schedules in another way, a moment of `update_bytes` changes.
"""

from dataclasses import dataclass

from isojax.core import shapes
from isojax.launch.device_sizes import (
    DeviceSizes,
    prompt_activations,
    prompt_backward_bytes,
    response_activations,
    response_backward_bytes,
)
from isojax.launch.device_weights import FLOAT_BYTES


@dataclass(frozen=True)
class UpdateArrays:
    """Bytes of the arrays of an update, in the order in which it makes them."""

    gathered_weights: int  # over fsdp, for the products that read them
    cast_weights: int  # what is trained, as products are computed
    reordered_rollouts: int
    gradient_sum: int  # over microbatches and blocks, in float32
    prompt_activations: int  # what layers keep of a block's prompts until they go backwards
    prefix_kv: int  # keys and values of a block's prompts, which its responses attend to
    prefix_kv_gradient: int  # its sum over the block's microbatches, in float32
    response_activations: int  # what layers keep of a microbatch until it goes backwards
    hidden_states: int  # of a microbatch after the layers, which logits are made of
    hidden_gradient: int  # that of the policy's
    logits: int  # and their gradient, of a microbatch
    table_gradient: int  # of one matrix between tokens and hidden states
    response_backward: int  # of the layer that a microbatch goes backwards through
    prompt_backward: int  # of the layer that a block's prompts go backwards through

    @property
    def throughout(self) -> int:
        """What is there from the first microbatch of a block until its prompts went backwards."""
        return (
            self.gathered_weights
            + self.cast_weights
            + self.reordered_rollouts
            + self.gradient_sum
            + self.prompt_activations
            + self.prefix_kv_gradient
        )


def update_arrays(s: DeviceSizes) -> UpdateArrays:
    """The bytes of the arrays of an update with these sizes."""
    num_policies = 1 + s.has_reference  # the policy, and the KL's reference if there is one

    # Each layer is gathered where it is used and given up after it. The matrix that makes logits
    # stays for a microbatch, and the reference has its own; of the embedding, devices gather only
    # the rows of the tokens that they look up.
    gathered_weights = 0
    if s.weights.fsdp_shards > 1:
        gathered_weights = s.compute_bytes * (
            s.weights.layer_params + num_policies * s.weights.table_params
        )

    # They are cast once in an update, not in each microbatch.
    is_cast = s.compute_bytes != FLOAT_BYTES
    cast_weights = s.weights.trained_bytes * s.compute_bytes // FLOAT_BYTES if is_cast else 0

    # Shards sampled the rollouts as slots became free; the update has them in the problems' order.
    is_reordered = s.shapes.shards > 1
    reordered_rollouts = s.rollout_bytes + s.expert_record_bytes if is_reordered else 0

    joint_forward = s.shapes.joint_forward(positions_split=s.mesh.sequence > 1)
    prefix_kv_values = 0 if joint_forward else s.prefill_tokens * s.kv_values  # of all layers

    # Each policy has its states twice: after responses' own tokens, and with those of prompts
    # before them, as logits of first tokens need. The gradient is of the policy's alone.
    state_bytes = s.compute_bytes * s.shapes.microbatch * s.shapes.response_length * s.D

    return UpdateArrays(
        gathered_weights=gathered_weights,
        cast_weights=cast_weights,
        reordered_rollouts=reordered_rollouts,
        gradient_sum=s.weights.trained_bytes,
        prompt_activations=prompt_activations(s),
        prefix_kv=s.compute_bytes * prefix_kv_values * num_policies,
        prefix_kv_gradient=FLOAT_BYTES * prefix_kv_values,
        response_activations=response_activations(s),
        hidden_states=2 * num_policies * state_bytes,
        hidden_gradient=state_bytes,
        logits=logits_bytes(s),
        table_gradient=s.compute_bytes * s.weights.table_params // s.weights.fsdp_shards,
        response_backward=response_backward_bytes(s),
        prompt_backward=prompt_backward_bytes(s),
    )


def update_bytes(s: DeviceSizes) -> int:
    """Bytes at the update's peak, in addition to what is always there: the most of five moments.

    Each moment below is a sum of what XLA was seen to hold then, so terms are no free choice.
    """
    arrays = update_arrays(s)
    microbatch = arrays.throughout + arrays.prefix_kv + arrays.response_activations

    # 1. A microbatch has gone forwards, and the gradient of its logits is made.
    at_logits = microbatch + arrays.hidden_states + arrays.hidden_gradient + arrays.logits

    # 2. It goes backwards through the layers, while the gradient of the matrix that made logits
    # waits. Without attention kernels XLA still holds all hidden states, which nothing reads any
    # more; with them, as on TPUs, their gradient alone. Prompts of the same pass go backwards in
    # the same layer.
    joint_forward = s.shapes.joint_forward(positions_split=s.mesh.sequence > 1)
    in_layers = microbatch + arrays.hidden_gradient + arrays.table_gradient
    in_layers += arrays.hidden_states if s.holds_scores else 0
    in_layers += arrays.response_backward
    in_layers += arrays.prompt_backward if joint_forward else 0

    # 3. What the layers kept is gone, and the gradients of embedding and unembedding (of a tied
    # table both of its uses) wait until they are added to the sum.
    after_layers = arrays.throughout + arrays.prefix_kv + 2 * arrays.table_gradient

    # 4. The prompts go backwards. Their keys and values are not read any more; XLA gives them up,
    # but not where the reference has some too. The gradient of each table waits once.
    in_prompt_layers = arrays.throughout + arrays.prompt_backward
    in_prompt_layers += len(s.weights.tables) * arrays.table_gradient
    in_prompt_layers += arrays.prefix_kv if s.has_reference else 0

    gradient_peak = max(at_logits, in_layers, after_layers, in_prompt_layers)

    # The policy's gradient waits while the critic's is computed.
    waiting_gradient = s.weights.trained_bytes if s.critic_bytes else 0

    # 5. AdamW: parameters and moments are written in place, so that the gradient and the step made
    # of it are all that comes to them. What was gathered for products is still held.
    gradient_and_step = 2 * s.weights.trained_bytes
    in_optimizer = gradient_and_step + arrays.gathered_weights

    return max(waiting_gradient + gradient_peak, in_optimizer)


def logits_bytes(s: DeviceSizes) -> int:
    """Bytes of the logits of a microbatch, at the width (rl/gradient.py) that takes most."""
    # A smaller width may take more: its logits may be few enough to be held at once.
    widths = shapes.bucket_widths(s.shapes.response_length)
    return max(_logits_bytes_at_width(s, width) for width in widths)


def _logits_bytes_at_width(s: DeviceSizes, width: int) -> int:
    """Bytes of the logits of m responses of `width` tokens, one of `shapes.bucket_widths`.

    All logits are there at once, or a block of the vocabulary at a time, by the same rule as in
    rl/logprobs.py: change both together.
    """
    logits = s.shapes.microbatch * width * s.V
    if s.has_nucleus or logits <= shapes.MAX_DENSE_LOGITS:
        return _dense_logits_bytes(s, logits)
    return _blockwise_logits_bytes(s, width)


def _dense_logits_bytes(s: DeviceSizes, logits: int) -> int:
    """Bytes of all arrays f32[m width V]; logits: m width V, the numbers of one of them.

    Logits, log-probabilities, probabilities and their gradient; the reference's log-probabilities;
    where top_p < 1, ranks of the tokens.
    """
    copies = 4 + s.has_reference
    if s.has_nucleus:
        # With an entropy bonus XLA holds one less.
        copies += 1 if s.cell.rl.entropy else 2
    return FLOAT_BYTES * logits * copies


def _blockwise_logits_bytes(s: DeviceSizes, width: int) -> int:
    """Bytes where logits are made by blocks of the vocabulary: f32[states block] and more.

    The gradient of the whole unembedding is part of them. width: tokens of a response.
    """
    m = s.shapes.microbatch
    num_policies = 1 + s.has_reference

    # States that logits are made of: the last of each prompt, once for all responses to it, and
    # those after each response's tokens but the last.
    states = min(m, s.shapes.prefill_batch) + m * (width - 1)

    # Of each state, logits of a block and their gradient. One block is no loop, so that XLA holds
    # those of policy and reference; of several it holds two blocks, and what whole blocks leave
    # over of the vocabulary, which it computes before the loop, for both.
    block = shapes.vocabulary_block(s.V)
    if block == s.V:
        block_logits = 2 * num_policies * s.V
    else:
        block_logits = 2 * block + 2 * num_policies * (s.V % block)

    # Few enough logits of the policy are saved for the gradient, instead of computed again.
    saved_logits = s.V if states * s.V <= shapes.MAX_SAVED_LOGITS else 0

    floats = states * (block_logits + saved_logits + 2 * s.D)  # 2 D: the state and its gradient
    # [m block]: of each response, its prompt's logits, among which its first token's is looked up.
    first_token_floats = m * block
    unembedding_gradient = s.compute_bytes * s.weights.table_params
    return FLOAT_BYTES * (floats + first_token_floats) + unembedding_gradient
