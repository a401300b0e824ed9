"""Bytes a device takes for a sweep: what of a device's sizes (device_sizes.py) XLA holds at the
same time.

    always     parameters, Adam's moments, the critic and its moments, in float32; the KL's
               reference, or the base policy beside LoRA, as products are computed; the rollouts
    sampling   weights as the sampler reads them; keys and values of slots and of the prompts'
               table; the rows that slots write (sampling_memory.py)
    update     the gradient as a sum, of a microbatch and of the prompts (or of both in one pass);
               what layers keep for it, of a block of prompts and of a microbatch; logits; then the
               new parameters and moments (update_memory.py)

What is held is known; what XLA needs between is estimated, and off by at most MEMORY_MARGIN of the
whole. benchmarks/memory.py compares the two. Letters are those of distributed/sharding.py.
"""

from dataclasses import dataclass

from isojax.core import shapes
from isojax.launch.device_sizes import (
    FLOAT_BYTES,
    DeviceSizes,
    prompt_activations,
    response_activations,
)
from isojax.launch.sampling_memory import (
    merged_layer_bytes,
    moving_weight_bytes,
    sampling_weight_bytes,
    sampling_work_bytes,
    slot_bytes,
    stored_weight_bytes,
    transposed_layer_bytes,
)
from isojax.launch.update_memory import logits_bytes, update_bytes

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
        phase_peaks = {
            "train": self.peak,
            "weights": self.weights_peak,
            "decode": self.sampling_peak,
            "learn": self.update_peak,
        }
        return phase_peaks[program] - self.program_bytes[program]


def estimate_memory(
    s: DeviceSizes, evaluation: DeviceSizes, on_device: bool, moments_on_host: bool = False
) -> MemoryEstimate:
    """What a sweep takes of each device, for which training and an evaluation have these sizes.

    on_device: whether the device verifies responses, so that one program samples and updates.
    moments_on_host: whether what only the update reads waits in the host's memory meanwhile.
    """
    weights_and_moments = (
        3 * (s.trained_bytes + s.critic_bytes) + s.frozen_bytes + s.reference_bytes
    )
    batch = s.rollout_bytes + s.expert_record_bytes + _problem_bytes(s, on_device)
    sampler_weights = sampling_weight_bytes(s)
    sampler_state = sampler_weights + s.cache_bytes() + slot_bytes(s)
    max_staleness = s.cell.rl.max_staleness
    if max_staleness is not None:  # the batches that an asynchronous sampler has under way
        sampler_state += (max_staleness + 1) * (s.rollout_bytes + s.expert_record_bytes)

    update_peak = weights_and_moments + batch + update_bytes(s)

    # From here on, the device samples: the policy's moments, and the critic with its own, may be
    # on the host.
    held = weights_and_moments
    if moments_on_host:
        held -= 2 * s.trained_bytes + 3 * s.critic_bytes
    training_peak = held + batch + sampler_state + sampling_work_bytes(s)

    # An evaluation has slots, keys and values and rollouts of other numbers; the training batch is
    # gone, or not made yet.
    evaluation_batch = evaluation.cache_bytes() + slot_bytes(evaluation) + evaluation.rollout_bytes
    evaluation_batch += _evaluation_problem_bytes(evaluation, on_device)
    evaluation_peak = held + sampler_weights + evaluation_batch + sampling_work_bytes(s)

    if on_device:
        program_bytes = {"train": max(training_peak, update_peak)}
        weights_peak = 0
    else:
        made_weights = (
            stored_weight_bytes(s)
            + moving_weight_bytes(s)
            + merged_layer_bytes(s)
            + transposed_layer_bytes(s)
        )
        # XLA counts a program's arguments too: the sampler's weights, and what decoding reads
        # unrolled of them. The run's own weights and moments are no argument of the sampler.
        unrolled_values = s.layers_params + s.table_params if s.has_unrolled_copy else 0
        decode_arguments = stored_weight_bytes(s) + s.compute_bytes * unrolled_values
        program_bytes = {
            "weights": s.trained_bytes + s.frozen_bytes + made_weights,
            "decode": training_peak - held - sampler_weights + decode_arguments,
            "learn": update_peak,
        }
        weights_peak = held + made_weights

    if max_staleness is not None:
        # The sampler works while the trainer does, so that its state is always there.
        update_peak += sampler_state
        weights_peak += sampler_state
        evaluation_peak += sampler_state

    breakdown = {
        "parameters": s.trained_bytes + s.frozen_bytes,
        "optimizer": 2 * s.trained_bytes,
        "reference": s.reference_bytes,
        "critic": 3 * s.critic_bytes,
        "KV": s.cache_bytes(),
        "sampling weights": sampler_weights,
        "rollouts": s.rollout_bytes + s.expert_record_bytes,
        "gradient": s.trained_bytes,
        "activations": prompt_activations(s) + response_activations(s) + logits_bytes(s),
    }
    sampling_peak = max(training_peak, evaluation_peak)
    return MemoryEstimate(breakdown, program_bytes, weights_peak, sampling_peak, update_peak)


def _problem_bytes(s: DeviceSizes, on_device: bool) -> int:
    """Of the problems of training, int32[P] for a prompt and two numbers beside it.

    A device that verifies holds all problems, with answers of T tokens, and the numbers of those
    that a call's updates take; else the device holds the prompts of a batch.
    """
    P = s.shapes.prompt_length
    T = s.shapes.response_length
    if not on_device:
        return FLOAT_BYTES * s.shapes.problem_rows * (P + 2)

    table = shapes.ASSUMED_TRAINING_PROBLEMS * (P + T + 2)
    chosen_problems = shapes.MAX_UPDATES_PER_CALL * s.shapes.problem_rows
    return FLOAT_BYTES * (table + chosen_problems)


def _evaluation_problem_bytes(evaluation: DeviceSizes, on_device: bool) -> int:
    """Of the problems of an evaluation, all in one batch; answers where the device verifies."""
    answer = evaluation.shapes.response_length if on_device else 0
    return (
        FLOAT_BYTES
        * evaluation.shapes.problem_rows
        * (evaluation.shapes.prompt_length + answer + 2)
    )
